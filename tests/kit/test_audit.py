"""What must hold of every run: who looks at a journal and at the tables beside it, and what is said of them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from agent_es import AgentRun, CallTool, RunStore, WaitFor
from agent_es.journal import JournalEntry
from agent_es.run import Planned
from agent_es.testing import MovableClock
from agent_es.testing.audit import problems_of, wrong_waits

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


# The tables, which say what the journals say.

DAMAGES = {
    "agent_es_runs": "UPDATE agent_es_runs SET goal = 'another'",
    "agent_es_keys": "INSERT INTO agent_es_keys VALUES ('refund', 'ORD-3300', 'run-1', 0, 'abc')",
    "agent_es_tags": "DELETE FROM agent_es_tags",
    "agent_es_deliveries": "UPDATE agent_es_deliveries SET seq = 9",
    "agent_es_inbox": "INSERT INTO agent_es_inbox (run_id, idx, kind, since) VALUES ('run-1', 0, 'doubt', 1)",
}


@pytest.mark.parametrize(("table", "damage"), DAMAGES.items(), ids=DAMAGES.keys())
def test_a_table_that_says_something_else_than_the_journals_is_named(
    table: str, damage: str, url: str, sql: Callable[..., list[tuple[Any, ...]]]
) -> None:
    with RunStore(url) as store:
        store.start(AgentRun, run_id="run-1", goal="wait", tags={"customer": "ann"})
        store.signal("run-1", "paid", delivery_id="evt-1")
        assert [*problems_of(store, "run-1", None)] == []

        sql(damage)

        (problem,) = problems_of(store, "run-1", None)
        assert problem.startswith(f"the table {table} was ")
