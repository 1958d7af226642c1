"""The page about speed says what the results say, keeps what is written by hand, and draws the same picture twice."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_es.bench.measure import Measured
from benchmarks import page, results
from benchmarks.page import written
from benchmarks.results import Found, pictures, workloads
from docs._generate import pages

EMPTY = """# Speed

## What it was measured on

<!-- generated: the machine -->
<!-- end -->

<!-- generated: the systems -->
<!-- end -->
"""


def one(system: str, size: int, value: float, *, database: str = "sqlite", unit: str = "ms") -> dict[str, Any]:
    spread = {"low": value * 0.5, "high": value * 2}
    return {
        "system": system, "database": database, "size": size, "value": value, **spread, "unit": unit, "rounds": 5,
    }  # fmt: skip


@pytest.fixture
def found() -> dict[str, Any]:
    """What a run would write: a workload of several sizes on two databases, and one of two units and no size."""
    steps = [
        one(system, size, value * size, database=database)
        for database in ("sqlite", "postgres")
        for system, value in {"floor": 0.25, "dbos": 4.0, "agent_es": 0.5}.items()
        for size in (100, 1_000)
        if (system, size) != ("dbos", 1_000)
    ]
    return {
        "began_at": "2026-07-05T10:00:00+00:00",
        "quick": False,
        "commit": "c0ffee+changes",
        "machine": {"platform": "Linux", "machine": "x86_64", "cpu": "A | processor", "cpus": 2, "load_average": 0.1},
        "versions": {"python": "3.11.7"},
        "workloads": {
            "resume": {
                "figures": [],
                "bars": [
                    {"name": "agent_es / floor", "value": 2.0, "wanted": "at most", "limit": 1.6, "is_met": False},
                    {"name": "dbos / agent_es", "value": 8.0, "wanted": "at least", "limit": 5.0, "is_met": True},
                ],
                "measured": steps,
            },
            "imports": {
                "figures": [],
                "bars": [],
                "measured": [
                    one("dbos", 0, 376.0, database=""),
                    one("agent_es", 0, 20.0, database=""),
                    one("dbos", 0, 33.0, database="", unit="MB"),
                ],
            },
            "help": {"figures": [{"name": "--help", "value": 0.125, "unit": "s"}], "bars": []},
        },
        "systems": {"dbos": "keeps | no keys", "floor": {"version": "3.40", "note": "plain SQL"}},
    }


def part(text: str, name: str) -> str:
    """Return what stands in a place of the page."""
    (made,) = re.findall(f"<!-- generated: {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    return str(made)


def test_each_workload_has_its_bars_and_its_medians_with_their_spread(found: dict[str, Any]) -> None:
    made = part(written(EMPTY, found), "resume")

    assert "| agent_es / floor | 2.00 | at most 1.6 | **MISSED** |" in made
    assert "| dbos / agent_es | 8.00 | at least 5 | met |" in made
    assert "PostgreSQL, ms, by steps in the run, medians of up to 5 rounds" in made
    sqlite = made[made.index("\nSQLite, ms") : made.index("\nPostgreSQL, ms")]
    assert re.findall(r"^\| (.*) \|$", sqlite, re.MULTILINE) == [
        "system | 100 | 1,000",
        "agent_es | 50.0 (25.0 to 100) | 500 (250 to 1,000)",
        "dbos | 400 (200 to 800) | ",
        "floor | 25.0 (12.5 to 50.0) | 250 (125 to 500)",
    ]


def test_a_workload_that_is_not_compared_shows_its_figures(found: dict[str, Any]) -> None:
    assert "| --help | 0.12 | s |" in part(written(EMPTY, found), "help")


def test_each_picture_is_told_in_words(found: dict[str, Any]) -> None:
    text = written(EMPTY, found)

    told = dict(re.findall(r"^!\[(.*)\]\(performance/(.*)\.svg\)$", text, re.MULTILINE))
    assert [*told.values()] == ["resume-sqlite", "resume-postgres", "imports-ms", "imports-mb"]
    first, *_ = told
    assert first == (
        "Cold resume on SQLite, ms, a line for each system, by steps in the run; at 1,000 as follows.  "
        "agent_es: 500; floor: 250"
    )


def test_what_it_was_measured_on_and_what_systems_are_stands_there_and_leaves_no_cell(found: dict[str, Any]) -> None:
    text = written(EMPTY, found)

    assert "| commit | `c0ffee+changes` |" in part(text, "the machine")
    assert "| processor | A &#124; processor, 2 of them |" in part(text, "the machine")
    assert "| measured | 2026-07-05 10:00 UTC |" in part(text, "the machine")
    assert "| dbos |  | keeps &#124; no keys |" in part(text, "the systems")
    assert "| floor | 3.40 | plain SQL |" in part(text, "the systems")


def test_small_sizes_are_named_as_such(found: dict[str, Any]) -> None:
    assert "Small sizes" not in written(EMPTY, found)
    assert "Small sizes" in part(written(EMPTY, {**found, "quick": True}), "the machine")


def test_what_is_written_by_hand_stays_and_what_was_not_measured_says_so(found: dict[str, Any]) -> None:
    before = written(EMPTY, found).replace("## Imports\n", "## What imports take\n\nWritten by hand.\n")
    del found["workloads"]["imports"]

    after = written(before, found)

    assert (
        "## What imports take\n\nWritten by hand.\n\n<!-- generated: imports -->\n\nNot measured in this run.\n"
        in after
    )
    assert written(after, found) == after


def test_a_page_that_is_not_of_the_results_is_stale(
    found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "performance.md"
    own.write_text(written(page.PAGE.read_text(), found))
    monkeypatch.setattr(page, "PAGE", own)
    monkeypatch.setattr(pages, "WHOLE", {})
    monkeypatch.setattr(pages, "PARTS", {})

    stale = pages.stale()

    assert stale == {own: written(own.read_text(), results.read())}


def test_the_page_is_of_the_results_that_are_kept_and_its_pictures_are_there() -> None:
    kept, text = results.read(), page.PAGE.read_text()

    drawn = [picture.name for name, of in workloads(kept).items() for picture in pictures(name, of)]
    assert written(text, kept) == text, "run: python -m benchmarks.page"
    for name in drawn:
        assert (page.PAGE.parent / "performance" / f"{name}.svg").is_file()
        assert (page.PAGE.parent / "performance" / f"{name}.png").is_file()


def test_a_picture_lists_agent_es_first_and_the_floor_last() -> None:
    measured = [
        Measured(name, "sqlite", 0, 1.0, 1.0, 1.0, "ms", 1)
        for name in ("floor", "dbos", "agent_es, snapshot", "agent_es")
    ]

    (picture,) = pictures("step", Found([], [], measured))

    assert picture.systems == ["agent_es", "agent_es, snapshot", "dbos", "floor"]


def test_without_matplotlib_it_says_what_to_install_and_changes_nothing(
    found: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "found.json").write_text(json.dumps(found))
    before = page.PAGE.read_bytes()
    hide = "import sys; sys.modules['matplotlib'] = None\n"
    code = f"{hide}from benchmarks import page\nimport typer; typer.run(page.main)"

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "found.json")],
        cwd=page.PAGE.parents[1], capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (1, "pictures need matplotlib: pip install -e '.[bench]'\n")
    assert page.PAGE.read_bytes() == before


def draw_all(found: Mapping[str, Any], folder: Path) -> dict[str, bytes]:
    """Draw in a process of its own, and return the files."""
    folder.mkdir()
    (folder / "performance.md").write_text(EMPTY)
    (folder / "found.json").write_text(json.dumps(found))
    code = (
        "import sys; from pathlib import Path; from benchmarks import page\n"
        "page.PAGE = Path(sys.argv[1]) / 'performance.md'\n"
        "page.main(Path(sys.argv[1]) / 'found.json')"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=page.PAGE.parents[1], check=True)
    return {file.name: file.read_bytes() for file in (folder / "performance").iterdir()}


@pytest.mark.crash
def test_the_same_results_give_the_same_bytes_and_a_picture_names_its_systems_and_units(
    found: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")

    first, again = draw_all(found, tmp_path / "first"), draw_all(found, tmp_path / "again")

    names = ("resume-sqlite", "resume-postgres", "imports-ms", "imports-mb")
    assert first.keys() == {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    assert first == again
    words = re.findall(r"<text [^>]*>(.*?)</text>", first["resume-sqlite.svg"].decode())
    assert {"agent_es", "dbos", "floor", "ms", "steps in the run", "1,000"} <= set(words)
    assert words.index("agent_es") < words.index("dbos") < words.index("floor")


def test_what_several_runs_measured_on_one_machine_is_put_together(found: dict[str, Any]) -> None:
    (name, told), *_ = found["workloads"].items()
    earlier = found | {
        "began_at": "2026-07-05T09:00:00+00:00",
        "workloads": {"other": told},
        "all_met": True,
        "commit": "beef",
    }
    later = found | {"workloads": {name: told}, "all_met": False}

    made = results.together([later, earlier])

    assert made["workloads"] == {name: told, "other": told}
    assert (made["began_at"], made["all_met"]) == (earlier["began_at"], False)
    assert made["commit"] == "c0ffee+changes, beef"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"quick": True}, "quick: one run has False"),
        ({"versions": {"python": "3.12.1"}}, "versions: "),
        ({"machine": {"platform": "Linux", "cpu": "B", "cpus": 4}}, "different machines: cpu, cpus"),
        ({}, "measured in two runs: "),
    ],
)
def test_runs_that_cannot_be_compared_are_not_put_together(
    found: dict[str, Any], change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        results.together([found, found | change])


def test_what_was_measured_apart_keeps_the_machine_that_it_was_measured_on(found: dict[str, Any]) -> None:
    machine = {**found["machine"], "cpu": "another one"}
    course = {"figures": [], "bars": [], "measured": [one("agent_es", n, n, database="") for n in range(1, 31)]}
    found["all_met"] = True
    other = found | {"machine": machine, "workloads": {"memory": course}}

    made = results.together([found], apart=[other])
    text = written(EMPTY, results.together([made]))

    assert "| processor | another one, 2 of them |" in part(text, "memory")
    assert "another one" not in part(text, "the machine")
    assert "| system | 1 | 10 | 20 | 30 |" in part(text, "memory")
    assert made["machine"] == found["machine"]
    with pytest.raises(ValueError, match="measured in two runs: memory"):
        results.together([made], apart=[other])
