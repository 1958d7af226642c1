"""The refund of the demo, killed at every place where its worker can die, once and during the recovery too."""

from collections.abc import Sequence
from typing import Any

import pytest

from agent_es import Decision, Runner, RunState, ToolSpec
from agent_es.demo import RUN_ID, SCRIPT, scenario
from agent_es.testing import CrashPoint, live_through

KEY = "ORD-3300:refund:180.00"


def test_a_crash_at_any_place_of_the_story_pays_once(crash_kit: Any) -> None:
    report = crash_kit.survives(scenario)

    assert report.crashes == report.runs - 1
    assert (report.points, report.in_doubt) == (42, 0)


@pytest.mark.crash
def test_a_second_crash_at_any_place_of_the_recovery_pays_once(crash_kit: Any) -> None:
    crash_kit.survives(scenario, crashes=2)


class Counting:
    """Says the script, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        self.asked += 1
        return SCRIPT.decide(run, tools)


@pytest.mark.parametrize(
    ("point", "asked"),
    [
        (CrashPoint(7, "before"), 4),  # the decision of step 1 was made and not recorded: no tool can have run
        (CrashPoint(7, "after"), 3),
        (CrashPoint(9, "before"), 3),
        (CrashPoint(9, "after"), 3),
    ],
)
def test_a_decision_that_was_recorded_is_never_asked_for_anew(point: CrashPoint, asked: int, world: Any) -> None:
    decider = Counting()

    def run(runner: Runner) -> RunState:
        runner.decider = decider
        state: RunState = world.run(runner)
        return state

    live_through([point], world.worker, run)

    assert decider.asked == asked


def test_the_hard_spot_records_the_decision_a_second_time_and_sends_the_same_key(world: Any) -> None:
    live_through([CrashPoint(9, "after")], world.worker, world.run)

    journal = world.store.journal(RUN_ID)
    assert [(entry.seq, entry.type) for entry in journal] == [
        (0, "run_started"),
        (1, "llm_decided"),
        (2, "tool_result"),
        (3, "llm_decided"),
        (4, "llm_decided"),
        (5, "tool_result"),
        (6, "finished"),
    ]
    first, again = journal[3].data, journal[4].data
    assert (first["attempt"], again["attempt"]) == (1, 2)
    assert {**first, "attempt": 0} == {**again, "attempt": 0}
    assert world.provider.keystore == {KEY: 2}
