"""One append with its run row, against the least that SQLite can do: INSERT and COMMIT of the same bytes.

Each side has a file of its own, with the same tables, WAL and synchronous=FULL, and moves a run of its own in memory
before each append, off the clock: a caller does that, and a loop that does nothing else finds the processor's caches
as it left them.  The sides between the two show where the time goes: what the row costs in bare SQL, what our
recorder adds to it, what the whole save adds.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from agent_es.bench.journals import begin, go_on
from agent_es.bench.measure import Bar, Figure, Report, Show, Side, alternate
from agent_es.bench.payloads import url_of
from agent_es.run import AgentRun
from agent_es.store import RunStore

T = TypeVar("T")

AT_MOST = 1.6
RUN_ID = "run-append"

INSERT_EVENT = "INSERT INTO agent_es_events (originator_id, originator_version, topic, state) VALUES (?, ?, ?, ?)"
UPDATE_ROW = "UPDATE agent_es_runs SET status = ?, waiting_for = ?, cursor = ?, updated_at = ? WHERE run_id = ?"

EventValues = tuple[bytes, int, str, bytes]
"""What ``INSERT_EVENT`` asks for."""


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return what an append costs, side by side."""
    rounds, appends = (5, 50) if quick else (60, 100)
    sides: dict[str, Side] = {
        "bare": bare(folder / "bare.db", appends),
        "bare, with the row": bare(folder / "row.db", appends, with_row=True),
        "recorder.append": recorder(folder / "recorder.db", appends),
        "RunStore.save": save(folder / "save.db", appends),
        "RunStore.save, a key with each decision": save(folder / "key.db", appends, key="key"),
        "command and RunStore.save": command_and_save(folder / "command.db", appends),
        "bare, in a tight loop": tight(folder / "tight.db", appends),
    }
    samples = alternate(sides, show(range(rounds), "append"))
    low, high = samples.spread("RunStore.save", "bare")
    return Report(
        (
            *(Figure(side, samples.micros(side), "µs") for side in sides),
            *(Figure(f"{side} / bare", samples.ratio(side, "bare"), "x") for side in sides if side != "bare"),
            Figure("RunStore.save / bare, best round", low, "x"),
            Figure("RunStore.save / bare, worst round", high, "x"),
        ),
        Bar("RunStore.save / bare INSERT and COMMIT", samples.ratio("RunStore.save", "bare"), "at most", AT_MOST),
    )


def timed(times: int, prepare: Callable[[], T], act: Callable[[T], object]) -> Side:
    """Return the side that does something so many times, each prepared off the clock."""

    def side() -> float:
        seconds = 0.0
        for _ in range(times):
            prepared = prepare()
            began = perf_counter()
            act(prepared)
            seconds += perf_counter() - began
        return seconds / times

    return side


def bare(path: Path, appends: int, *, with_row: bool = False) -> Side:
    """Return the side that speaks to sqlite3 as its documentation does."""
    store = RunStore(url_of(path))
    run = begin(store, RUN_ID)
    database = connect(path)

    def append(values: EventValues) -> None:
        database.execute(INSERT_EVENT, values)
        if with_row:
            state = run.state
            changed = state.updated_at.timestamp() if state.updated_at else None
            database.execute(UPDATE_ROW, (state.status, state.waiting_for, state.version, changed, state.run_id))
        database.commit()

    return timed(appends, lambda: next_values(store, run), append)


def tight(path: Path, appends: int) -> Side:
    """Return the bare side with all of a round's appends prepared before the first one."""
    store = RunStore(url_of(path))
    run = begin(store, RUN_ID)
    database = connect(path)

    def side() -> float:
        prepared = [next_values(store, run) for _ in range(appends)]
        began = perf_counter()
        for values in prepared:
            database.execute(INSERT_EVENT, values)
            database.commit()
        return (perf_counter() - began) / appends

    return side


class Heard:
    """Stands where a recorder stood, and remembers what it is told to append."""

    def __init__(self) -> None:
        self.told: tuple[Any, ...] = ()

    def append(self, *told: Any) -> None:
        """Append nothing."""
        self.told = told


def recorder(path: Path, appends: int) -> Side:
    """Return the side of our recorder alone: events are encoded and the row is made already."""
    store = RunStore(url_of(path))
    run = begin(store, RUN_ID)
    real, heard = store.recorder, Heard()
    store.recorder = heard  # type: ignore[assignment]  # it is only told to append

    def prepare() -> tuple[Any, ...]:
        go_on(run)
        store.save(run)
        return heard.told

    return timed(appends, prepare, lambda told: real.append(*told))


def save(path: Path, appends: int, *, key: str | None = None) -> Side:
    """Return the side of the library: each append is a save of a run with one pending event."""
    store = RunStore(url_of(path))
    run = begin(store, RUN_ID)

    def prepare() -> AgentRun:
        go_on(run, key=key)
        return run

    return timed(appends, prepare, store.save)


def command_and_save(path: Path, appends: int) -> Side:
    """Return the side of the library with the command that makes the event, on the clock."""
    store = RunStore(url_of(path))
    run = begin(store, RUN_ID)

    def act(_: None) -> None:
        go_on(run)
        store.save(run)

    return timed(appends, lambda: None, act)


def connect(path: Path) -> sqlite3.Connection:
    """Open a file as durably as the library does, and say no more about it."""
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    database.execute("PRAGMA synchronous=FULL")
    return database


def next_values(store: RunStore, run: AgentRun) -> EventValues:
    """Move a run in memory; return the columns that the library would store."""
    go_on(run)
    (event,) = run.collect_events()
    stored = store.mapper.to_stored_event(event)
    return event.originator_id.bytes, stored.originator_version, stored.topic, stored.state
