"""What is due is found without looking at what is not: nobody pays for those who sleep, nor for other agents."""

import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest

from agent_es import AgentRun, RunStore
from agent_es.owners import Owner
from benchmarks.sleepers import IdleRun, Sleepers

HOUR = 3600.0
MANY = 2_000
FEW = 200
"""Rows that may be looked at where an index has what is asked for in front."""


class OtherRun(AgentRun):
    """A run of another agent."""


@pytest.fixture
def sleepers(url: str) -> Iterator[Sleepers]:
    """Many runs of one agent, all of them asleep."""
    with RunStore(url) as store:
        sleepers, now = Sleepers(store), time.time()
        sleepers.put({f"asleep-{n}": now + HOUR + n for n in range(MANY)})
        yield sleepers


@pytest.mark.parametrize("agents", [["IdleRun"], ["OtherRun"], ["IdleRun", "OtherRun"]], ids="+".join)
def test_a_look_does_not_go_through_those_who_sleep(sleepers: Sleepers, database: str, agents: list[str]) -> None:
    leases = sleepers.store.leases

    looked = seen(sleepers.store, database, leases._looks(len(agents)), agents)  # noqa: SLF001  # what it asks for

    assert looked < FEW


@pytest.mark.parametrize("agents", [["IdleRun"], ["OtherRun"], ["IdleRun", "OtherRun"]], ids="+".join)
def test_a_claim_does_not_go_through_those_who_sleep(sleepers: Sleepers, database: str, agents: list[str]) -> None:
    leases = sleepers.store.leases

    looked = seen(sleepers.store, database, leases._claims(len(agents)), ["me", "me", 30.0, *agents])  # noqa: SLF001

    assert looked < FEW


def test_a_worker_of_one_agent_does_not_go_through_what_is_overdue_of_another(
    sleepers: Sleepers, database: str
) -> None:
    store, long_ago = sleepers.store, time.time() - HOUR
    sleepers.put({f"overdue-{n}": long_ago + n for n in range(MANY)})

    looked = seen(store, database, store.leases._claims(1), ["me", "me", 30.0, "OtherRun"])  # noqa: SLF001

    assert looked < FEW


def test_of_several_agents_the_run_that_is_due_longest_is_claimed_first(sleepers: Sleepers) -> None:
    store, now = sleepers.store, time.time()
    sleepers.put({"late": now - 1, "later": now - 2, "latest": now - 3})
    store.start(OtherRun, run_id="other", goal="be moved")

    claimed = [store.leases.claim(["IdleRun", "OtherRun"], Owner.here(), 30.0) for _ in range(5)]

    names = [lease.run_id for lease in claimed if lease]
    assert [name for name in names if name != "other"] == ["latest", "later", "late"]
    assert names.count("other") == 1


def test_a_run_that_is_new_does_not_wait_for_all_that_are_overdue(sleepers: Sleepers) -> None:
    store, long_ago = sleepers.store, time.time() - HOUR
    sleepers.put({f"overdue-{n}": long_ago + n for n in range(20)})
    store.start(IdleRun, run_id="new", goal="sleep")

    claimed = [store.leases.claim(["IdleRun"], Owner.here(), 30.0) for _ in range(4)]

    assert "new" in {lease.run_id for lease in claimed if lease}
    assert {"overdue-0", "overdue-1"} <= {lease.run_id for lease in claimed if lease}


def seen(store: RunStore, database: str, statements: Iterator[str], values: list[Any]) -> int:
    """Return how many rows are looked at to answer these statements: ten steps of SQLite count as one."""
    with store.recorder.datastore.apart() as connection:
        if database == "sqlite":
            return sum(steps(connection, sql, values) for sql in statements) // 10
        plans = [connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", values).fetchone() for sql in statements]
        return sum(rows(plan["Plan"]) for ((plan,),) in plans)


def steps(connection: sqlite3.Connection, sql: str, values: list[Any]) -> int:
    """Return how many steps SQLite takes."""
    taken = 0

    def count() -> None:
        nonlocal taken
        taken += 1

    connection.set_progress_handler(count, 1)
    connection.execute(sql, values).fetchall()
    connection.set_progress_handler(None, 0)
    return taken


def rows(node: dict[str, Any]) -> int:
    """Return how many rows of tables the nodes of a plan have come across."""
    found = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) if "Relation Name" in node else 0
    return int(found) + sum(rows(child) for child in node.get("Plans", ()))
