"""A store that is full of runs: some of every kind, each of them again and again under other numbers, at other times.

Rule 1: nothing is made up: the model of each kind is a run that a ``Runner`` moved, and a copy is that run, with
another number wherever its own stands (in its id, goal, tags and keys), moved in time by whole minutes.
Rule 2: a copy has all that a run has (events, row, tags, keys, and what waits for a person), so that everything can
be done with it; a test rebuilds a store that was filled.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agent_es import (
    AgentRun,
    CallTool,
    Effect,
    Envelope,
    Fail,
    Finish,
    Runner,
    RunState,
    RunStore,
    Sleep,
    ToolSpec,
    Used,
    WaitFor,
    tool,
)
from agent_es.bench.payloads import url_of
from agent_es.decider import Decision
from agent_es.events import stream_id
from agent_es.store.tables import inbox, keys, runs, tags
from agent_es.testing.clock import STORY, FrozenClock

LONG = timedelta(days=3650)
"""Whatever waits for the clock does so for as long as anybody looks."""
BATCH = 5_000
"""So many runs are stored in one transaction."""
LOOK = CallTool("look", {"query": "refund policy window"})
EVENTS = "agent_es_events"
TABLES = (EVENTS, runs.name, tags.name, keys.name, inbox.name)
"""Where something of a run stands."""
TIMES = frozenset({"started_at", "updated_at", "since"})
"""Columns that move in time with a run."""


class Paid:
    """Says the next line of a script, and what asking it took."""

    def __init__(self, *script: Decision) -> None:
        self.script = script

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Used:  # noqa: ARG002  # a script knows
        """Return the line of the turn that the run is at."""
        return Used(self.script[run.turns], tokens=1_200, cost="0.0125")


class ManyRun(AgentRun):
    """Looks, refunds and calls."""

    @tool(effect=Effect.READ)
    def look(self, query: str) -> str:
        """Return something at once."""
        return f"found for {query}"

    @tool(effect=Effect.READ)
    def write_off(self, amount: int) -> int:
        """Do what a person must say yes to."""
        return amount

    @tool(effect=Effect.AT_MOST_ONCE)
    def call(self) -> str:
        """Call somebody, who does not say whether they heard it."""
        raise TimeoutError


def _to_its_end(*script: Decision) -> Callable[[RunStore, str], object]:
    return lambda store, run_id: Runner(store, Paid(*script)).resume(run_id)


def _paused(store: RunStore, run_id: str) -> None:
    Runner(store, Paid(LOOK, LOOK)).step(run_id)
    store.pause(run_id, by="dana", reason="we look into it")


KINDS: Mapping[str, tuple[int, Callable[[RunStore, str], object]]] = {
    "done": (70, _to_its_end(LOOK, LOOK, Finish("refunded"))),
    "failed": (5, _to_its_end(LOOK, Fail("the order is not known"))),
    "cancelled": (3, lambda store, run_id: store.cancel(run_id, by="dana", reason="it is over")),
    "pending": (4, lambda _store, _run_id: None),
    "running": (4, lambda store, run_id: Runner(store, Paid(LOOK, LOOK)).step(run_id)),
    "clock": (6, _to_its_end(LOOK, Sleep(LONG))),
    "signal": (4, _to_its_end(WaitFor("paid"))),
    "approval": (2, _to_its_end(LOOK, CallTool("write_off", {"amount": 180}))),
    "doubt": (1, _to_its_end(CallTool("call"))),
    "person": (1, _paused),
}
"""Of a hundred runs so many, and how the model of each kind gets there."""


NUMBER = "987654"
"""The number of every model: it occurs nowhere else in its journal."""
MINUTE = f"{STORY:%Y-%m-%dT%H:%M}:"
"""When all of a model happens."""

Row = dict[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""Rows by the table that they stand in."""
Model = Mapping[str, Sequence[tuple[Row, Sequence[str]]]]
"""The same of a model: each row, and the columns in which a copy is another one."""


def name_of(number: int) -> str:
    """Return the id of a run.

    >>> name_of(42)
    'run-000042'
    """
    return f"run-{number:06}"


def fill(store: RunStore, count: int, *, seed: int = 7) -> dict[str, list[str]]:
    """Store so many runs, up to a million, into a store without them; return the ids of each kind.

    They are called ``run-000000`` and on: ``run-000042`` has the goal ``Refund order ORD-000042`` and the tag
    ``invoice=INV-000042``.  Their last changes lie a minute apart, in no order of their numbers.
    """
    drawn = random.Random(seed)  # noqa: S311  # it spreads, and guards nothing
    kinds = drawn.choices([*KINDS], [weight for weight, _ in KINDS.values()], k=count)
    minutes = drawn.sample(range(count), count)
    models = {kind: model_of(kind) for kind in KINDS}
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        insert(store, [copied(models[kinds[number]], number, -minutes[number]) for number in numbers])
    return {kind: [name_of(number) for number, its in enumerate(kinds) if its == kind] for kind in KINDS}


def model_of(kind: str) -> Model:
    """Return all that a store has of one run of a kind."""
    run_id, get_there = f"run-{NUMBER}", KINDS[kind][1]
    with TemporaryDirectory() as folder, RunStore(url_of(Path(folder) / "model.db"), clock=FrozenClock()) as store:
        envelope = Envelope(needs_approval=["write_off"]) if kind == "approval" else None
        words = {"goal": f"Refund order ORD-{NUMBER}", "tags": {"invoice": f"INV-{NUMBER}", "team": "support"}}
        store.start(ManyRun, run_id=run_id, envelope=envelope, **words)
        get_there(store, run_id)
        with store.recorder.datastore.raw() as connection:
            found = {table: rows_of(connection.execute(f"SELECT * FROM {table}")) for table in TABLES}  # noqa: S608  # our own
    return {table: [(row, _varying(row)) for row in rows] for table, rows in found.items()}


def rows_of(cursor: Any) -> list[Row]:
    """Return what a statement found, but for the position of an event, which each copy gets anew."""
    names = [name for name, *_ in cursor.description]
    return [{name: value for name, value in zip(names, row, strict=True) if name != "id"} for row in cursor]


def copied(model: Model, number: int, minutes: int) -> Rows:
    """Return a model under another number, so many minutes later."""
    minute = f"{STORY + timedelta(minutes=minutes):%Y-%m-%dT%H:%M}:"
    text, stored, at = f"{number:06}", b"%06d" % number, minute.encode()

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(NUMBER, text)
        if isinstance(value, bytes):
            return value.replace(_STORED_NUMBER, stored).replace(_STORED_MINUTE, at)
        return value + 60 * minutes

    return {
        table: [{**row, **{name: changed(row[name]) for name in varying}} for row, varying in rows]
        for table, rows in model.items()
    }


_STORED_NUMBER, _STORED_MINUTE = NUMBER.encode(), MINUTE.encode()


def _varying(row: Row) -> list[str]:
    """Return the columns in which a copy of a row is another one."""
    return [
        name
        for name, value in row.items()
        if name in TIMES
        or (isinstance(value, str) and NUMBER in value)
        or (isinstance(value, bytes) and (_STORED_NUMBER in value or _STORED_MINUTE in value))
    ]


def insert(store: RunStore, copies: Iterable[Rows]) -> None:
    """Store copies, in one transaction."""
    recorder, dialect = store.recorder, store.recorder.datastore.dialect
    found: dict[str, list[Row]] = {table: [] for table in TABLES}
    for copy in copies:
        stream = dialect.stream(stream_id(copy[runs.name][0]["run_id"]))
        for row in copy[EVENTS]:
            row["originator_id"] = stream
        for table in TABLES:
            found[table] += copy[table]
    with recorder.datastore.writing() as connection:
        dialect.lock_feed(connection)
        for table, rows in found.items():
            if rows:
                names, marks = ", ".join(rows[0]), ", ".join("?" * len(rows[0]))
                statement = dialect.sql(f"INSERT INTO {table} ({names}) VALUES ({marks})")  # noqa: S608  # our own
                connection.cursor().executemany(statement, [tuple(row.values()) for row in rows])
