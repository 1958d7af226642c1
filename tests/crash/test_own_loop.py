"""The story of the demo, driven by a loop of somebody's own, and killed at every place where its process can die."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent_es import Decision, RunState
from agent_es.demo import GOAL, RUN_ID, SCRIPT, RefundRun, scenario
from agent_es.errors import BadScenario
from agent_es.own_loop import OpenRun
from agent_es.testing import Crash, DidNotSurvive, Scenario
from agent_es.testing.crash import CrashingRunner, essence

Ask = Callable[[RunState], Decision]


def says_the_script(state: RunState) -> Decision:
    return SCRIPT.decide(state, ())


def loop(run: OpenRun, ask: Ask = says_the_script) -> None:
    while not run.done:
        run.decide(ask)
        run.act()


own_loop = replace(scenario, drive=loop)


def refund(runner: CrashingRunner, ask: Ask) -> RunState:
    with runner.open(RefundRun, run_id=RUN_ID, goal=GOAL) as run:
        loop(run, ask)
    return run.state


class Counting:
    """Says the script, and counts how often it was asked at each turn."""

    def __init__(self) -> None:
        self.asked = Counter[int]()

    def __call__(self, state: RunState) -> Decision:
        self.asked[state.turns] += 1
        return says_the_script(state)


def test_the_loop_survives_a_crash_at_any_place(crash_kit: Any) -> None:
    report = crash_kit.survives(own_loop)

    assert report.crashes == report.runs - 1
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)
    assert report.kinds["request"] > 0 < report.kinds["commit"]


@pytest.mark.exhaustive
def test_the_loop_survives_a_second_crash_at_any_place_of_the_recovery(crash_kit: Any) -> None:
    crash_kit.survives(own_loop, crashes=2)


@pytest.mark.crash
def test_the_loop_survives_a_kill_at_any_place(crash_kit: Any) -> None:
    report = crash_kit.survives_kills("tests.crash.test_own_loop:own_loop")

    assert report.crashes
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


def test_at_every_place_the_order_is_refunded_once_and_the_function_is_called_again_only_where_its_answer_was_lost(
    new_world: Callable[[], Any],
) -> None:
    calm = new_world()
    worker = calm.worker()
    ended = refund(worker, Counting())
    places = worker.life.places
    lost_answers = 0

    for place in places:
        world, counting = new_world(), Counting()
        with pytest.raises(Crash):
            refund(world.worker(place.n), counting)
        before = Counter(counting.asked)
        durable = world.store.load(RUN_ID) if place.requests else None
        lost = {turn for turn in before if durable is None or (durable.turns <= turn and not durable.is_over)}
        state = refund(world.worker(), counting)

        assert counting.asked == {turn: 1 + (turn in lost) for turn in range(3)}, str(place)
        assert world.provider.ledger == {"ORD-3300": "180.00"}, str(place)
        assert essence(state) == essence(ended), str(place)
        assert world.store.journal(RUN_ID)[-1].data == calm.store.journal(RUN_ID)[-1].data
        lost_answers += len(lost)

    assert {place.kind for place in places} == {"request", "commit", "mark"}
    assert 0 < lost_answers < len(places)


@pytest.mark.crash
def test_a_loop_that_goes_by_a_variable_instead_of_the_state_does_not_survive(crash_kit: Any) -> None:
    def forgetful(run: OpenRun) -> None:
        lines = iter(SCRIPT.script)
        loop(run, lambda _: next(lines))

    with pytest.raises(DidNotSurvive, match="BROKEN in"):
        crash_kit.survives(replace(scenario, drive=forgetful))


def test_a_loop_needs_no_decider_and_an_agent_without_either_is_refused() -> None:
    class Undecided(RefundRun):
        decider = None

    assert Scenario(agent=Undecided, drive=loop).drive is loop
    with pytest.raises(BadScenario, match=r"or drive=\.\.\."):
        Scenario(agent=Undecided)
