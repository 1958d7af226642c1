from pathlib import Path

import pytest

from benchmarks.databases import Files
from benchmarks.inspecting import Scale, compare, pages

SMALL = Scale(runs=120, rounds=2, starts=1)


@pytest.mark.crash
def test_each_page_of_a_store_is_asked_for_and_has_its_bar(tmp_path: Path) -> None:
    found = dict(compare(Files(tmp_path), SMALL, lambda rounds, _: rounds))

    assert [bar.name for bar in found] == [
        "sqlite, a start, s",
        *(f"sqlite, {name}, ms" for name in pages(SMALL, "")),
    ]
    for bar, measured in found.items():
        assert 0 < bar.value == measured.value
        assert measured.low <= measured.value <= measured.high
        assert (bar.limit, measured.rounds) == ((1.5, 1) if measured.unit == "s" else (200.0, 2))
