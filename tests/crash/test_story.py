"""The refund of the demo, killed at every request of its step generator, once and during the recovery too."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest

from agent_es import Decision, Runner, RunState, Status, ToolSpec
from agent_es.demo import RUN_ID, SCRIPT
from agent_es.testing import CrashPoint, essence, live_through

KEY = "ORD-3300:refund:180.00"


def points(requests: int) -> list[CrashPoint]:
    return [CrashPoint(n, side) for n, side in product(range(1, requests + 1), ("before", "after"))]


def requests_of_the_story(world: Any) -> int:
    worker = world.worker()
    world.run(worker)
    return worker.requests


def assert_one_refund(world: Any, state: RunState, expected: RunState) -> None:
    assert state.status is Status.DONE
    assert world.provider.ledger == {"ORD-3300": "180.00"}
    assert world.provider.refunds == 1
    assert list(world.provider.keystore) == [KEY]
    assert essence(world.store.load(RUN_ID)) == essence(expected)


def test_the_story_takes_twelve_requests(world: Any) -> None:
    assert requests_of_the_story(world) == 12


def test_a_crash_at_any_request_of_the_story_pays_once(new_world: Callable[[], Any]) -> None:
    calm = new_world()
    expected = calm.run(calm.worker())

    for point in points(12):
        world = new_world()
        state = live_through([point], world.worker, world.run)

        assert_one_refund(world, state, expected)


@pytest.mark.crash
def test_a_second_crash_at_any_request_of_the_recovery_pays_once(new_world: Callable[[], Any]) -> None:
    calm = new_world()
    expected = calm.run(calm.worker())

    for first, second in product(points(12), points(12)):
        world = new_world()
        state = live_through([first, second], world.worker, world.run)

        assert_one_refund(world, state, expected)


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
