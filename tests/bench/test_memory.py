"""What a model is sent is counted, stays under its cap, and loses no fact."""

from pathlib import Path

import pytest

from agent_es.bench.measure import Report
from benchmarks.memory import ALL, CAP, CAPPED, CHARACTERS, NO_FACTS, OUTLINE, WAYS, Scale, compare, read, text_of

PAGES = 9


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return compare(tmp_path_factory.mktemp("memory"), Scale(PAGES), lambda rounds, _: rounds)


def test_every_way_but_prose_alone_has_all_figures_at_the_end(report: Report) -> None:
    right = {figure.name: figure.value for figure in report.figures if "right" in figure.name}

    for name in (ALL, *CAPPED):
        for pages in (PAGES, 2 * PAGES):
            assert right[f"{name}, {pages} pages, right figures in the answer"] == pages
    assert 0 < right[f"{NO_FACTS}, {2 * PAGES} pages, right figures in the answer"] < PAGES


def test_all_questions_are_drawn_and_only_those_without_a_cap_go_on_growing(report: Report) -> None:
    lines = {name: [one for one in report.measured if one.system == name] for name in (ALL, *CAPPED)}

    for line in lines.values():
        assert [one.size for one in line] == [*range(1, 2 * PAGES + 2)]
    values = [one.value for one in lines[ALL]]
    assert values == sorted(values)
    assert values[-1] > 2 * PAGES * CHARACTERS / 4 > 2 * CAP > 2 * lines[OUTLINE][-1].value


def test_what_a_summary_takes_to_be_written_is_counted(report: Report) -> None:
    outline, summed = (sum(one.value for one in report.measured if one.system == name) for name in CAPPED)

    assert summed > outline + CHARACTERS / 4


@pytest.mark.crash
def test_a_run_that_has_no_cap_misses_the_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WAYS, OUTLINE, WAYS[ALL])

    missed = {bar.name for bar in compare(tmp_path, Scale(PAGES), lambda rounds, _: rounds).missed}

    assert {f"{OUTLINE}, {PAGES} pages / everything is sent", f"{OUTLINE}, 18 pages / 9 pages"} <= missed
    assert f"{OUTLINE}, the longest question / the cap and a turn" in missed


@pytest.mark.crash
def test_the_same_run_sends_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("first", "again"):
        (tmp_path / folder).mkdir()

    assert read(tmp_path / "first", OUTLINE, PAGES) == read(tmp_path / "again", OUTLINE, PAGES)


def test_a_page_has_its_length_and_its_figure_where_an_outline_does_not_see_it() -> None:
    assert len(text_of(3)) == CHARACTERS
    assert CHARACTERS / 3 < text_of(3).index("The figure of page 3 is 33757.") < CHARACTERS / 2
