"""B54: a run that holds an event of newer code is left alone: not half read, not appended to, no attempt burnt.

Newer code is played by raw SQL that writes the rows as it would.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_es import AgentRun, CallTool, Effect, Finish, Runner, RunStore, ScriptedDecider, Status, ToolContext, tool
from agent_es.errors import RunMoved, RunUnreadable
from agent_es.store.projection import ALL
from agent_es.testing import Crash, CrashingRunner, CrashPoint

RUN_ID = "run-1"
GOAL = "work"
SCRIPT = ScriptedDecider([CallTool("work"), Finish("worked")])
IN_THE_BODY = CrashPoint(4, "before")  # decide, append, start, next done


class Worker(AgentRun):
    """Works, and tells where it was started."""

    @tool(effect=Effect.IDEMPOTENT)
    def work(self, ctx: ToolContext[Callable[[], object]]) -> str:
        ctx.deps()
        return "worked"


@pytest.fixture
def database(tmp_path: Path, store: RunStore) -> Iterator[sqlite3.Connection]:
    """The database, as newer code reaches it."""
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as connection:
        yield connection


@pytest.fixture
def bodies() -> list[str]:
    return []


@pytest.fixture
def runner(store: RunStore, bodies: list[str]) -> Runner:
    return Runner(store, SCRIPT, deps=lambda: bodies.append("body"))


def rewrite(database: sqlite3.Connection, version: int, **changes: Any) -> None:
    """Write an event of the run as newer code would have written it."""
    where = "FROM agent_es_events WHERE originator_version = ?"
    ((state,),) = database.execute(f"SELECT state {where}", (version,)).fetchall()
    newer = json.dumps({**json.loads(state), **changes}).encode()
    database.execute("UPDATE agent_es_events SET state = ? WHERE originator_version = ?", (newer, version))


def raise_budget(database: sqlite3.Connection) -> None:
    """Append an event of a type that only newer code knows."""
    event = {"class_version": 1, "timestamp": "2026-07-05T10:00:09Z", "budget": 5}
    database.execute(
        "INSERT INTO agent_es_events (originator_id, originator_version, topic, state) "
        "SELECT originator_id, max(originator_version) + 1, 'agent_es:BudgetRaised', ? FROM agent_es_events",
        (json.dumps(event).encode(),),
    )
    database.execute("UPDATE agent_es_runs SET cursor = cursor + 1")


def dump(database: sqlite3.Connection) -> list[list[Any]]:
    """Return every row of every table, but for who holds it."""
    tables = {"agent_es_events": "*", "agent_es_runs": ", ".join(ALL), "agent_es_keys": "*"}
    return [
        database.execute(f"SELECT {names} FROM {table} ORDER BY 1, 2").fetchall()  # noqa: S608  # the library's own tables
        for table, names in tables.items()
    ]


NEWER: dict[str, tuple[Callable[[sqlite3.Connection], None], str]] = {
    "a newer version with a new field": (
        lambda database: rewrite(database, 1, class_version=2, budget=5),
        "RunStarted was written as version 2, this code reads up to 1",
    ),
    "a newer version with the same fields": (
        lambda database: rewrite(database, 2, class_version=2),
        "LlmDecided was written as version 2, this code reads up to 1",
    ),
    "a version of another kind": (
        lambda database: rewrite(database, 1, class_version="2.0", budget=5),
        "RunStarted",
    ),
    "a new field only": (lambda database: rewrite(database, 1, budget=5), "budget"),
    "a new type of event": (raise_budget, "agent_es:BudgetRaised"),
}

USES: dict[str, Callable[[Runner], object]] = {
    "load": lambda runner: runner.store.load(RUN_ID),
    "journal": lambda runner: runner.store.journal(RUN_ID),
    "aggregate": lambda runner: runner.store.aggregate(Worker, RUN_ID),
    "start": lambda runner: runner.store.start(Worker, run_id=RUN_ID, goal=GOAL),
    "run": lambda runner: runner.run(Worker, run_id=RUN_ID, goal=GOAL),
    "run without its goal": lambda runner: runner.run(Worker, run_id=RUN_ID),
    "resume": lambda runner: runner.resume(RUN_ID),
    "step": lambda runner: runner.step(RUN_ID),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize(("write", "named"), NEWER.values(), ids=NEWER.keys())
def test_a_run_that_newer_code_wrote_is_refused_by_name_and_stays_as_it_is(
    write: Callable[[sqlite3.Connection], None],
    named: str,
    use: Callable[[Runner], object],
    store: RunStore,
    runner: Runner,
    bodies: list[str],
    database: sqlite3.Connection,
) -> None:
    with pytest.raises(Crash):
        CrashingRunner(store, SCRIPT, deps=bodies.clear, at=IN_THE_BODY).run(Worker, run_id=RUN_ID, goal=GOAL)
    write(database)
    before = dump(database)

    with pytest.raises(RunUnreadable, match=named):
        use(runner)

    assert dump(database) == before
    assert bodies == []


def test_a_worker_that_is_overtaken_by_newer_code_in_the_middle_of_a_body_appends_nothing(
    store: RunStore, database: sqlite3.Connection
) -> None:
    written: list[Any] = []

    def roll_out() -> None:
        raise_budget(database)
        written.append(dump(database))

    with pytest.raises(RunMoved):
        Runner(store, SCRIPT, deps=roll_out).run(Worker, run_id=RUN_ID, goal=GOAL)

    assert [dump(database)] == written
    with pytest.raises(RunUnreadable, match="BudgetRaised"):
        store.load(RUN_ID)


def test_one_run_of_newer_code_hides_no_other_run_and_stops_none(
    store: RunStore, runner: Runner, database: sqlite3.Connection
) -> None:
    runner.run(Worker, run_id=RUN_ID, goal=GOAL)
    raise_budget(database)

    other = runner.run(Worker, run_id="run-2", goal=GOAL)

    assert other.status is Status.DONE
    assert {record.run_id for record in store.runs()} == {RUN_ID, "run-2"}


def test_a_rebuild_by_older_code_keeps_the_row_and_the_keys_that_newer_code_wrote(
    store: RunStore, runner: Runner, database: sqlite3.Connection
) -> None:
    runner.run(Worker, run_id=RUN_ID, goal=GOAL)
    raise_budget(database)
    before = dump(database)

    store.rebuild()

    assert dump(database) == before
