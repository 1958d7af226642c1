"""Four agents with a bug each, and what mends them: the kit finds every bug, and blames no agent that is right."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_es.testing import DidNotSurvive, Failure, survives_every_crash
from examples import broken_agents

ROOT = Path(__file__).parents[2]
DOUBLE = "double: ('ORD-3300', '180.00') "


@dataclass(frozen=True)
class Found:
    """What the kit is to find: how many workers die in a smallest schedule, where, and what it says first."""

    crashes: int
    dies: str | None
    says: str
    ledger: str
    """What the invariant found."""
    double: bool = True


BROKEN = {
    "no_key": Found(1, "the money has moved, in the body of step 0 (refund)", DOUBLE, "360.00"),
    "key_by_arguments": Found(0, None, "the invariant both_paid does not hold", "20.00", double=False),
    "effect_while_deciding": Found(1, "the money has moved, in the decision of turn 0", DOUBLE, "360.00"),
    "state_in_a_variable": Found(1, "after the commit, in the append of llm_decided of step 0", DOUBLE, "360.00"),
}
MENDED = ("mended", "key_by_arguments_mended", "state_in_a_variable_mended")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_agent_does_not_survive_and_the_smallest_schedule_leads_to_its_bug(name: str) -> None:
    expected = BROKEN[name]

    with pytest.raises(DidNotSurvive) as raised:
        survives_every_crash(getattr(broken_agents, name))

    smallest = raised.value.report.smallest
    assert isinstance(smallest, Failure)
    assert len(smallest.schedule) == expected.crashes
    assert [*smallest.deaths] == [expected.dies][: expected.crashes]
    assert smallest.problems[0].startswith(expected.says)
    assert any(expected.ledger in problem for problem in smallest.problems[:2])
    assert smallest.journal


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.crash
def test_the_command_finds_it_too_and_ends_with_1(name: str) -> None:
    expected = BROKEN[name]
    command = [sys.executable, "-m", "agent_es", "fuzz", f"examples.broken_agents:{name}", "--json"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    assert (report["double"] > 0, report["lost"], report["in_doubt"]) == (expected.double, 0, 0)
    assert report["broken"] == (report["double"] or 1)
    assert len(report["smallest"]["schedule"]) == expected.crashes
    assert report["crashes"] == (report["points"] if expected.crashes else 0)


@pytest.mark.parametrize("name", MENDED)
def test_a_mended_agent_survives_every_crash(name: str) -> None:
    report = survives_every_crash(getattr(broken_agents, name))

    assert (report.crashes, report.runs) == (report.points, report.points + 1)
    assert (report.double, report.lost, report.in_doubt, report.broken) == (0, 0, 0, 0)


def test_every_scenario_of_the_example_is_tried_here() -> None:
    scenarios = {name for name, value in vars(broken_agents).items() if isinstance(value, broken_agents.Scenario)}

    assert scenarios == {*BROKEN, *MENDED}
