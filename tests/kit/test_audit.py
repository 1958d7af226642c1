"""What must hold of every run's waits: who looks at a journal, and what it says."""

from datetime import timedelta

import pytest

from agent_es import AgentRun, CallTool, WaitFor
from agent_es.journal import JournalEntry
from agent_es.run import Planned
from agent_es.testing import MovableClock
from agent_es.testing.audit import wrong_waits

A_WEEK = timedelta(days=7)


@pytest.fixture
def run() -> AgentRun:
    """A run that waits for a payment twice, within a week, and once for good."""
    run = AgentRun.begin("run-1", "wait", "null", {}, MovableClock())
    waits = [WaitFor("paid", A_WEEK), WaitFor("packed", A_WEEK), WaitFor("paid")]
    run.record_turn([Planned(CallTool(wait.tool), "{}", wait=wait) for wait in waits], at_once=8)
    return run


def problems(run: AgentRun) -> list[str]:
    return [*wrong_waits([JournalEntry("run-1", event) for event in run.pending_events])]  # type: ignore[arg-type]


def test_each_signal_ends_the_wait_that_it_came_first_for_and_the_clock_another(run: AgentRun) -> None:
    run.record_signal("paid", "1", "evt-1")
    run.record_signal("paid", "2", "evt-2")
    run.record_wait_ended(0, run.version - 2)
    run.record_wait_ended(1)
    run.record_wait_ended(2, run.version - 3)

    assert problems(run) == []


def test_the_clock_ends_no_wait_whose_signal_is_there(run: AgentRun) -> None:
    run.record_signal("paid", "1", "evt-1")
    seq = run.version - 1
    run.record_wait_ended(0)

    assert problems(run) == [
        f"seq {seq + 1}: the clock ended the wait of step 0, and the signal of seq {seq} came first"
    ]


def test_a_signal_waits_for_those_that_came_before_it(run: AgentRun) -> None:
    run.record_signal("paid", "1", "evt-1")
    run.record_signal("paid", "2", "evt-2")
    seq = run.version - 1
    run.record_wait_ended(0, seq)

    (problem,) = problems(run)
    assert problem.endswith(
        f"the signal of seq {seq} ended the wait of step 0, and the signal of seq {seq - 1} came first"
    )


def test_a_delivery_is_there_once(run: AgentRun) -> None:
    run.record_signal("paid", "1", "evt-1")
    run.record_signal("paid", "1", "evt-1")

    assert problems(run) == [f"seq {run.version - 1}: the delivery evt-1 of the signal 'paid' was recorded before"]
