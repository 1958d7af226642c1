"""Rebuilding: rows and keys are folds of the events, so they can be lost; leases are no event's business."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Effect,
    Fail,
    Finish,
    NotApplied,
    Retry,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    ToolSpec,
    Used,
    tool,
)
from agent_es.errors import KeyReused
from agent_es.events import stream_id

Sql = Callable[..., list[tuple[Any, ...]]]

RUNS = (
    "SELECT run_id, agent, goal, status, waiting_for, cursor, wake_at, tags, envelope_id, tokens, cost, started_at, "
    "updated_at FROM agent_es_runs ORDER BY run_id"
)
KEYS = "SELECT * FROM agent_es_keys ORDER BY tool, key"


class Refund(AgentRun):
    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:refund")
    def refund(self, order_id: str) -> str:
        return order_id

    @tool(effect=Effect.AT_MOST_ONCE, key="{order_id}:call")
    def call(self, order_id: str) -> str:
        raise NotApplied(order_id) if self.state.run_id == "run-4" else TimeoutError

    @tool(effect=Effect.IDEMPOTENT, retry=Retry(initial=60, jitter=0))
    def lag(self) -> str:
        raise TimeoutError


def refunds(*order_ids: str) -> list[CallTool]:
    return [CallTool("refund", {"order_id": order_id}) for order_id in order_ids]


class Paid(ScriptedDecider):
    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Used:  # type: ignore[override]
        return Used(super().decide(run, tools), tokens=1_200, cost="0.0125")


@pytest.fixture
def full(store: RunStore) -> RunStore:
    """A store with a run that is done, one that failed, one that has not begun, and keys that were renewed.

    One run waits for a retry, one for a doubt to be settled.
    """
    done = ScriptedDecider([refunds("A", "B"), refunds("A"), Finish("refunded")])
    Runner(store, done).run(Refund, run_id="run-1", goal="Refund A and B", tags={"team": "support"})
    Runner(store, Paid([refunds("C"), Fail("no")])).run(Refund, run_id="run-2", goal="Refund C")
    store.start(Refund, run_id="run-3", goal="Refund D")
    call = CallTool("call", {"order_id": "E"})
    Runner(store, ScriptedDecider([call, CallTool("lag")])).run(Refund, run_id="run-4", goal="Call E, and lag")
    Runner(store, ScriptedDecider([call])).run(Refund, run_id="run-5", goal="Call E")
    store.settle("run-5", 0, "did_not_happen", by="ann")
    Runner(store, ScriptedDecider([])).run(Refund, run_id="run-5")
    return store


def test_the_store_that_is_damaged_below_has_something_to_lose(full: RunStore, sql: Sql) -> None:
    waiting = {record.run_id: record.waiting_for for record in full.runs(status="waiting")}
    assert waiting == {"run-4": "retry", "run-5": "doubt"}
    assert full.record("run-4").wake_at is not None
    assert (full.record("run-2").tokens, full.record("run-2").cost) == (2_400, Decimal("0.025"))
    keys = sql("SELECT key, run_id FROM agent_es_keys WHERE tool = 'call' ORDER BY key")
    assert keys == [("E:call", "run-4"), ("E:call#2", "run-5"), ("E:call#3", "run-5")]


DAMAGE = {
    "nothing": "SELECT 1",
    "rows wiped": "DELETE FROM agent_es_runs",
    "one row gone": "DELETE FROM agent_es_runs WHERE run_id = 'run-2'",
    "rows wrong": "UPDATE agent_es_runs SET status = 'waiting', waiting_for = 'doubt', cursor = 99, tags = '{}'",
    "what was used wrong": "UPDATE agent_es_runs SET tokens = tokens + 1, cost = cost + 1",
    "times wrong": "UPDATE agent_es_runs SET started_at = 0, updated_at = 0, wake_at = 7",
    "a row too many": (
        "INSERT INTO agent_es_runs (run_id, agent, goal, status, cursor, tags, started_at, updated_at) "
        "VALUES ('ghost', '', '', 'done', 1, '{}', 0, 0)"
    ),
    "keys wiped": "DELETE FROM agent_es_keys",
    "keys with other texts": "UPDATE agent_es_keys SET key = key || '!', digest = ''",
    "keys of other steps": "UPDATE agent_es_keys SET idx = idx + 7",
    "keys of another run": "UPDATE agent_es_keys SET run_id = 'run-3'",
    "keys of no run": "UPDATE agent_es_keys SET run_id = 'ghost'",
    "a key too many": "INSERT INTO agent_es_keys VALUES ('refund', 'Z:refund', 'run-3', 0, '')",
    "a key too many of no run": "INSERT INTO agent_es_keys VALUES ('refund', 'Z:refund', 'ghost', 0, '')",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_rows_and_keys_that_were_damaged_are_made_again_from_the_events(
    full: RunStore, sql: Sql, damage: str
) -> None:
    before = sql(RUNS), sql(KEYS)
    sql(damage)

    count = full.rebuild()

    assert (sql(RUNS), sql(KEYS)) == before
    assert count == 5


def test_a_run_goes_on_after_a_rebuild(full: RunStore, sql: Sql) -> None:
    sql("UPDATE agent_es_runs SET cursor = 99")
    full.rebuild()

    state = Runner(full, ScriptedDecider([Finish("refunded")])).run(Refund, run_id="run-3")

    assert state.answer == "refunded"


def test_a_key_is_held_after_a_rebuild(full: RunStore, sql: Sql) -> None:
    sql("DELETE FROM agent_es_keys")
    full.rebuild()

    state = Runner(full, ScriptedDecider([refunds("C"), Finish("refunded")])).run(Refund, run_id="run-3")

    error = state.steps[0].error
    assert error is not None
    assert error["type"] == KeyReused.__name__
    assert "step 0 of run run-2" in error["message"]


def test_a_rebuild_leaves_the_leases_alone(full: RunStore, sql: Sql) -> None:
    sql("UPDATE agent_es_runs SET lease_owner = 'worker-1', lease_token = 7, lease_until = 1.5, goal = 'wrong'")

    full.rebuild()

    rows = sql("SELECT goal, lease_owner, lease_token, lease_until FROM agent_es_runs ORDER BY run_id")
    goals = ["Refund A and B", "Refund C", "Refund D", "Call E, and lag", "Call E"]
    assert rows == [(goal, "worker-1", 7, 1.5) for goal in goals]


def test_a_rebuild_tells_each_run_that_it_made_again(full: RunStore) -> None:
    told: list[str] = []

    full.rebuild(told.append)

    assert sorted(told) == ["run-1", "run-2", "run-3", "run-4", "run-5"]


def test_a_run_that_cannot_be_read_keeps_its_row_and_its_keys_and_the_others_are_rebuilt(
    full: RunStore, sql: Sql
) -> None:
    before = sql(RUNS), sql(KEYS)
    sql("UPDATE agent_es_events SET topic = 'agent_es:Newer' WHERE originator_id = ?", (stream_id("run-1"),))
    sql("UPDATE agent_es_runs SET goal = 'wrong' WHERE run_id <> 'run-1'")
    told: list[str] = []

    full.rebuild(told.append)

    assert (sql(RUNS), sql(KEYS)) == before
    assert sorted(told) == ["run-2", "run-3", "run-4", "run-5"]


def test_a_rebuild_that_is_interrupted_changes_nothing(full: RunStore, sql: Sql) -> None:
    sql("UPDATE agent_es_runs SET goal = 'wrong'")
    before = sql(RUNS), sql(KEYS)

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        full.rebuild(interrupt)

    assert (sql(RUNS), sql(KEYS)) == before


def test_an_empty_store_has_nothing_to_rebuild(store: RunStore) -> None:
    assert store.rebuild() == 0
