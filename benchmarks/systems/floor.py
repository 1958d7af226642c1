"""The least that it takes: ``sqlite3`` and ``psycopg`` as their documentation has them.

Each record is an INSERT and a COMMIT of the bytes that agent_es stores, into a table with the columns and the indexes
of its events.  Resuming is a SELECT, pydantic's decoding of each event, and the smallest fold that knows the steps.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Protocol
from uuid import NAMESPACE_URL, UUID, uuid5

from agent_es.bench.least import Row, fold_least
from agent_es.bench.payloads import GOAL, TOOL, args_json, result_json
from benchmarks.databases import dsn_of, is_sqlite
from benchmarks.systems.process import RUN_ID, STEPS, WARM, WARM_STEPS, Job, Span, Work, answer, die

with suppress(ImportError):  # it is asked for where PostgreSQL is
    import psycopg

NOTE = (
    "No rows of runs, no lease, no check, nothing that finds work: two commits a step, and one each for the start "
    "and the end of a run."
)
COLUMNS = "originator_id {} NOT NULL, originator_version BIGINT NOT NULL, topic TEXT NOT NULL, state {} NOT NULL"
IN_FILE = f"id INTEGER PRIMARY KEY AUTOINCREMENT, {COLUMNS.format('BLOB', 'BLOB')}"
ON_SERVER = f"id BIGSERIAL PRIMARY KEY, {COLUMNS.format('UUID', 'BYTEA')}"
TABLE = "CREATE TABLE IF NOT EXISTS events ({})"
INDEX = "CREATE UNIQUE INDEX IF NOT EXISTS events_idx ON events (originator_id, originator_version)"
INSERT = "INSERT INTO events (originator_id, originator_version, topic, state) VALUES (?, ?, ?, ?)"
SELECT = "SELECT originator_version, topic, state FROM events WHERE originator_id = ? ORDER BY 1"
TIME = "2026-07-05T10:00:00.000000Z"


class Table(Protocol):
    """The events, in one database or another."""

    def insert(self, stream: UUID, version: int, topic: str, state: bytes) -> None:
        """Insert an event, and commit unless a transaction is open."""
        ...

    def rows(self, stream: UUID) -> list[Row]:
        """Return version, topic and state of a run's events."""
        ...

    def begin(self) -> None:
        """Open a transaction."""
        ...

    def commit(self) -> None:
        """Commit it."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...


class InFile:
    """By ``sqlite3``."""

    def __init__(self, url: str) -> None:
        self._database = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        assert self._database.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
        self._database.execute("PRAGMA synchronous=FULL")

    def create(self) -> None:
        """Make the table."""
        self._database.execute(TABLE.format(IN_FILE))
        self._database.execute(INDEX)

    def insert(self, stream: UUID, version: int, topic: str, state: bytes) -> None:
        """Insert an event, which commits unless a transaction is open."""
        self._database.execute(INSERT, (stream.bytes, version, topic, state))

    def rows(self, stream: UUID) -> list[Row]:
        """Return version, topic and state of a run's events."""
        return self._database.execute(SELECT, (stream.bytes,)).fetchall()

    def begin(self) -> None:
        """Open a transaction."""
        self._database.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit it."""
        self._database.execute("COMMIT")

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()


class OnServer:
    """By ``psycopg``, with prepared statements."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(dsn_of(url), autocommit=True)

    def create(self) -> None:
        """Make the table."""
        self._connection.execute(TABLE.format(ON_SERVER))
        self._connection.execute(INDEX)

    def insert(self, stream: UUID, version: int, topic: str, state: bytes) -> None:
        """Insert an event, which commits unless a transaction is open."""
        self._connection.execute(INSERT.replace("?", "%s"), (stream, version, topic, state), prepare=True)

    def rows(self, stream: UUID) -> list[Row]:
        """Return version, topic and state of a run's events."""
        return self._connection.execute(SELECT.replace("?", "%s"), (stream,), binary=True).fetchall()

    def begin(self) -> None:
        """Open a transaction."""
        self._connection.execute("BEGIN")

    def commit(self) -> None:
        """Commit it."""
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Let go of the server."""
        self._connection.close()


def stream_id(run_id: str) -> UUID:
    """Return the id of a run's events."""
    return uuid5(NAMESPACE_URL, f"/bare-runs/{run_id}")


@contextmanager
def opened(job: Job) -> Iterator[Table]:
    """Open the table."""
    table = (InFile if is_sqlite(job.url) else OnServer)(job.url)
    table.create()
    try:
        yield table
    finally:
        table.close()


def event(**told: Any) -> bytes:
    """Return an event's JSON, as agent_es writes it."""
    return json.dumps({"timestamp": TIME, **told}, separators=(",", ":")).encode()


def decision(idx: int) -> bytes:
    """Return the decision of a step."""
    return event(idx=idx, turn=idx, tool=TOOL, args=args_json(idx), attempt=1)


def result(idx: int) -> bytes:
    """Return the result of a step."""
    return event(idx=idx, tool=TOOL, attempt=1, result=result_json(idx))


def begin(table: Table, run_id: str) -> None:
    """Record the start of a run."""
    state = event(run_id=run_id, agent="LookingRun", agent_version="1", goal=GOAL, input="null", tags={})
    table.insert(stream_id(run_id), 1, "agent_es:RunStarted", state)


def move(table: Table, run_id: str, idx: int) -> None:
    """Record a step: its decision, then its result."""
    stream, version = stream_id(run_id), 2 * idx + 2
    table.insert(stream, version, "agent_es:LlmDecided", decision(idx))
    table.insert(stream, version + 1, "agent_es:ToolResult", result(idx))


def run(table: Table, run_id: str, count: int) -> None:
    """Record a run."""
    begin(table, run_id)
    for idx in range(count):
        move(table, run_id, idx)
    table.insert(stream_id(run_id), 2 * count + 2, "agent_es:Finished", event(answer='"seen"'))


def steps(job: Job) -> Span:
    """Record a run, record by record."""
    with opened(job) as table:
        run(table, WARM, WARM_STEPS)
        began = monotonic()
        run(table, RUN_ID, job.count)
        return Span(began, monotonic())


def fill(job: Job) -> Span:
    """Record a run in one transaction, which is not clocked against anything, and die."""
    began = monotonic()
    with opened(job) as table:
        table.begin()
        begin(table, RUN_ID)
        for idx in range(job.count):
            move(table, RUN_ID, idx)
        table.commit()
        die(began)
    raise AssertionError("it outlived itself")


def resume(job: Job) -> Span:
    """Fold what is there, and record the next step."""
    began = monotonic()
    with opened(job) as table:
        version, done = fold_least(table.rows(stream_id(RUN_ID)))
        move(table, RUN_ID, len(done))
        ended = monotonic()
        assert (version, len(done)) == (2 * job.count + 1, job.count)
    return Span(began, ended)


def runs(job: Job) -> Span:
    """Record this process's part of the runs."""
    with opened(job) as table:
        run(table, f"{WARM}-{job.part}", WARM_STEPS)
        job.await_start()
        began = monotonic()
        for n in job.mine():
            run(table, f"run-{n}", STEPS)
        return Span(began, monotonic())


WORKS: dict[str, Work] = {"steps": steps, "fill": fill, "resume": resume, "runs": runs}

if __name__ == "__main__":
    answer(NOTE, WORKS)
