"""What is not recorded any more because a person was first, and what a run that ends leaves of its calls."""

from collections.abc import Callable
from typing import Any

import pytest

from agent_es import AgentRun, CallTool, WaitFor, Woken
from agent_es.envelope import Asks
from agent_es.run import Planned
from agent_es.state import BY_PROBE, Status
from agent_es.testing import FrozenClock
from agent_es.tools import Failed, Unknown

at = FrozenClock()

UNKNOWN = Unknown("TimeoutError", "late")
SURE = Failed("NotApplied", "closed", may_retry=True)

Act = Callable[[AgentRun], object]


def planned(key: str | None = None, **more: Any) -> Planned:
    return Planned(CallTool("pay", {"to": key}), "{}", key=key, **more)


def recorded(*acts: Act) -> AgentRun:
    """Return a run to which this happened, all of it recorded."""
    run = AgentRun.begin("run-7f3a", "pay", "null", {}, at)
    for act in acts:
        act(run)
    run.mark_recorded()
    return run


def turn(*plan: Planned, at_once: int = 1) -> Act:
    return lambda run: run.record_turn(plan, at_once=at_once)


def meanwhile(run: AgentRun, *acts: Act) -> list[str]:
    """Let people be first; return what is still to be recorded after that."""
    other = AgentRun.of(run.recorded, at)
    for act in acts:
        act(other)
    run.catch_up(other.pending)
    return [type(event).__name__ for event in run.pending]


def undo(run: AgentRun) -> None:
    run.record_undoing("ann", "enough")


def pause(run: AgentRun) -> None:
    run.record_paused("ann", "lunch")


def cancel(run: AgentRun) -> None:
    run.record_cancelled("ann", "enough")


TWO = turn(planned("a"), planned("b"))


def test_a_start_is_not_recorded_of_a_step_that_a_person_ended_and_a_result_beside_it_is() -> None:
    run = recorded(TWO)
    run.record_result(0, "1")
    run.record_start(1)

    kept = meanwhile(run, undo)

    assert kept == ["ToolResult"]
    assert [step.status for step in run.state.steps] == ["done", "failed"]


@pytest.mark.parametrize("act", [undo, pause])
def test_nor_is_that_such_a_step_or_one_of_a_paused_run_is_held_up_by_a_limit(act: Act) -> None:
    run = recorded(TWO)
    run.record_delay(1, at(90), is_given=True)

    assert meanwhile(run, act) == []


def test_a_run_does_not_rest_where_a_person_gave_it_something_to_do() -> None:
    asks = Asks("needs_approval: pay")
    run = recorded(turn(planned("a"), planned("b", asks=asks)), lambda run: run.record_retry(0, UNKNOWN, at(90)))
    run.record_rest(at(90))

    kept = meanwhile(run, lambda run: run.record_granted(1, "ann"))

    assert kept == []
    assert run.state.status is Status.RUNNING


@pytest.mark.parametrize("error", [UNKNOWN, SURE])
@pytest.mark.parametrize("act", [undo, cancel])
def test_a_failure_is_recorded_also_where_the_run_does_not_rest_after_it_any_more(
    error: Failed | Unknown, act: Act
) -> None:
    run = recorded(turn(planned("a")))
    run.record_retry(0, error, at(90))
    run.record_rest(at(90))

    kept = meanwhile(run, act)

    still_rests = act is undo and error is UNKNOWN
    assert kept == (["ToolFailed", "WaitBegan"] if still_rests else ["ToolFailed"])


def test_a_rest_does_not_end_that_a_person_ended() -> None:
    run = recorded(
        turn(planned("a")), lambda run: run.record_retry(0, SURE, at(3)), lambda run: run.record_rest(at(3))
    )
    run.record_rest_ended()
    run.record_start(0)

    assert meanwhile(run, undo) == []
    assert run.state.steps[0].status == "failed"


def test_a_run_that_is_paused_ends_its_undoing_when_it_goes_on() -> None:
    run = recorded(turn(planned("a")), lambda run: run.record_result(0, "1"), undo)
    run.record_compensated()

    assert meanwhile(run, pause) == []
    run.record_resumed("ann")
    run.record_compensated()
    assert run.state.status is Status.CANCELLED


def test_a_run_that_is_to_be_undone_is_not_parked_for_what_it_would_have_done_next() -> None:
    run = recorded(turn(planned("a")), lambda run: run.record_result(0, "1"))
    run.record_parked("its budget is spent")

    assert meanwhile(run, undo) == []
    assert (run.state.can_move, run.state.parked) == (True, None)


# What is left of the calls.


@pytest.mark.parametrize("first", ["person", "failure"])
def test_a_call_that_may_have_happened_is_in_doubt_once_its_run_is_cancelled_whichever_is_recorded_first(
    first: str,
) -> None:
    def fail(run: AgentRun) -> None:
        run.record_retry(0, UNKNOWN, at(90))

    run = recorded(turn(planned("a")), *([cancel, fail] if first == "person" else [fail, cancel]))

    (step,) = run.state.steps
    assert (step.status, step.attempt) == ("in_doubt", 1)
    assert step.doubt == "the run was cancelled while it was under way, after TimeoutError: late"
    assert [doubt.idx for doubt in run.state.doubts] == [0]


@pytest.mark.parametrize("first", ["person", "failure"])
@pytest.mark.parametrize("act", [undo, cancel])
def test_one_that_surely_did_not_happen_is_not_made_any_more(act: Act, first: str) -> None:
    def fail(run: AgentRun) -> None:
        run.record_retry(0, SURE, at(90))

    run = recorded(turn(planned("a")), *([act, fail] if first == "person" else [fail, act]))

    assert run.state.steps[0].status == "failed"
    assert not run.state.open_steps


@pytest.mark.parametrize("act", [undo, cancel])
def test_nor_is_one_that_waits_for_its_turn_under_a_limit(act: Act) -> None:
    run = recorded(turn(planned("a"), at_once=0), lambda run: run.record_delay(0, at(90), is_given=True), act)

    (step,) = run.state.steps
    assert step.error == {
        "applied": False,
        "message": "the run was cancelled before it was made",
        "type": "Cancelled",
    }
    assert run.state.status is (Status.CANCELLED if act is cancel else Status.RUNNING)


@pytest.mark.parametrize("by", [BY_PROBE, "ann"])
def test_nor_is_one_of_which_somebody_says_that_it_did_not_happen_while_the_run_is_to_be_undone(by: str) -> None:
    run = recorded(turn(planned("a")), undo, lambda run: run.record_doubt(0, "time-out"))

    run.record_settlement(0, "did_not_happen", by)

    assert run.state.steps[0].status == "failed"
    assert (run.state.status, run.state.open_steps) == (Status.RUNNING, ())


def test_what_undoes_another_is_made_until_it_has_happened() -> None:
    run = recorded(turn(planned("a")), lambda run: run.record_result(0, "1"), undo, turn(planned("u", undoes=0)))
    statuses = []

    run.record_retry(1, SURE, at(90))
    statuses.append(run.state.steps[1].status)
    run.record_settlement(1, "did_not_happen", BY_PROBE)
    statuses.append(run.state.steps[1].status)

    assert statuses == ["retrying", "queued"]


@pytest.mark.parametrize("end", [cancel, undo])
def test_a_body_that_asks_to_wait_when_its_run_is_to_end_is_done_and_nothing_waits(end: Act) -> None:
    run = recorded(turn(planned("k")), end)

    run.record_wait_of(0, WaitFor("confirmed"), attempt=1)

    (step,) = run.state.steps
    assert (step.status, step.woken) == ("done", Woken("cancelled", "confirmed"))
    assert (run.state.waits, run.state.wake_at) == ((), None)
    assert run.state.status is (Status.CANCELLED if end is cancel else Status.RUNNING)
