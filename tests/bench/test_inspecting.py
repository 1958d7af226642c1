from pathlib import Path

import pytest

from benchmarks.databases import Files
from benchmarks.inspecting import Scale, compare, pages

SMALL = Scale(runs=120, rounds=2, starts=1)


@pytest.mark.crash
def test_each_page_of_a_store_is_asked_for_and_has_its_bar(tmp_path: Path) -> None:
    found = [*compare(Files(tmp_path), SMALL, lambda rounds, _: rounds)]

    assert [bar.name for bar in found] == [
        "sqlite, a start, s",
        *(f"sqlite, {name}, ms" for name in pages(SMALL, "")),
    ]
    assert [bar.limit for bar in found] == [1.5, *(200.0 for _ in found[1:])]
    assert all(0 < bar.value < 60_000 for bar in found)
