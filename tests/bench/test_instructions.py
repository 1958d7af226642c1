"""What a replay, a step and a claim cost, in instructions: a tenth more is a change of ours, not a busy machine.

All of it is counted in processes of their own: here, coverage may trace by the same means.
"""

import copy
import json
import subprocess
from functools import cache
from pathlib import Path

import pytest
import typer

from benchmarks import instructions
from benchmarks.instructions import PYTHON, Entry, count, grown, recorded

pytestmark = pytest.mark.crash  # programs, one after the other

SLOWER = """
from agent_es.state import apply
from agent_es.store import mapper


def slowly(draft, event):
    for _ in range(20):
        pass
    apply(draft, event)


mapper.apply = slowly
"""
TRACED = "import sys; sys.settrace(lambda *_: None)"

counted = cache(count)


def more(entry: Entry, workload: str, what: str, times: float) -> Entry:
    changed = copy.deepcopy(entry)
    changed[workload]["counts"][what] *= times
    return changed


def test_nothing_costs_a_tenth_more_than_what_was_recorded() -> None:
    before = recorded()
    if before is None:
        pytest.skip(f"nothing is recorded for Python {PYTHON}: python -m benchmarks.instructions --record")

    now = counted()

    assert grown(now, before) == [], "if it is worth that: python -m benchmarks.instructions --record"


def test_what_is_counted_is_the_same_under_another_hash_seed_and_where_coverage_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "4711")
    monkeypatch.setenv("COVERAGE_PROCESS_START", str(instructions.ROOT / "pyproject.toml"))

    again = count()

    for workload in instructions.WORKLOADS:
        for what, value in counted()[workload]["counts"].items():
            assert again[workload]["counts"][what] == pytest.approx(value, rel=0.01), f"{workload}: {what}"


def test_a_step_makes_four_commits_and_a_load_none() -> None:
    now = counted()

    commits = {workload: now[workload]["counts"]["commits"] for workload in instructions.WORKLOADS}
    assert commits == {
        "replay": 0,
        "snapshot": 0,
        "step": 4,
        "claim": 4,
    }  # the lease, the decision, the result, the lease given back


def test_a_loop_in_the_fold_is_noticed_and_named() -> None:
    slower = count(SLOWER)

    lines = grown(slower, counted())
    assert [line.split(": ")[0] for line in lines] == ["replay"]
    assert "<string> slowly (+" in lines[0]


@pytest.mark.parametrize("what", ["instructions", "calls of C", "statements", "commits"])
def test_each_count_is_held_against_its_own(what: str) -> None:
    now = counted()

    assert grown(more(now, "step", what, 1.09), now) == []
    (line,) = grown(more(now, "step", what, 1.11), now)
    assert line.startswith("step: ")
    assert f" {what}, recorded " in line


def test_other_versions_of_what_it_stands_on_are_named_where_something_grew() -> None:
    now = counted()
    before = {**now, "versions": {**now["versions"], "sqlalchemy": "2.0.0"}}

    assert grown(now, before) == []
    assert "'sqlalchemy': '2.0.0'" in grown(more(now, "step", "commits", 2), before)[-1]


def test_a_process_that_is_traced_counts_nothing() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        count(TRACED)


def test_what_is_recorded_for_one_version_of_python_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "instructions.json"
    file.write_text('{"3.10": {"replay": {}}}')
    monkeypatch.setattr(instructions, "RECORDED", file)

    assert recorded() is None
    instructions.record(counted())

    assert recorded() == counted()
    assert json.loads(file.read_text()).keys() == {"3.10", PYTHON}


def test_the_command_says_what_is_recorded_beside_what_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = counted()
    monkeypatch.setattr(instructions, "count", counted)  # once for all tests
    monkeypatch.setattr(instructions, "RECORDED", tmp_path / "instructions.json")

    def status(*, to_record: bool = False) -> int:
        with pytest.raises(typer.Exit) as ended:
            instructions.main(to_record=to_record, as_json=False)
        return ended.value.exit_code

    instructions.main(as_json=False, to_record=False)
    assert "python -m benchmarks.instructions --record" in capsys.readouterr().err
    assert status(to_record=True) == 0
    assert f"{now['step']['counts']['instructions']:,} instructions" in capsys.readouterr().out
    instructions.record(more(now, "replay", "calls of C", 0.5))
    assert status() == 1
    assert capsys.readouterr().err.startswith("grown: replay: ")
