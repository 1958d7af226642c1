"""One append with its run row, against the least that SQLite can do: INSERT and COMMIT of the same bytes.

Each side has a file of its own, with the same tables, WAL and synchronous=FULL.  The sides between the two show
where the time goes: what the row costs in bare SQL, what our recorder adds to it, what the whole save adds.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from eventsourcing.persistence import StoredEvent

from agent_es.events import AnyEvent
from agent_es.run import AgentRun
from agent_es.store import RunStore
from agent_es.store.projection import ROW_COLUMNS, Claim, claims_of, row_of
from benchmarks.journals import begin, go_on, url_of
from benchmarks.measure import Bar, Figure, Report, Show, Side, alternate

AT_MOST = 1.6
RUN_ID = "run-append"

INSERT_EVENT = "INSERT INTO agent_es_events (originator_id, originator_version, topic, state) VALUES (?, ?, ?, ?)"
UPDATE_ROW = (
    "UPDATE agent_es_runs SET agent = ?, goal = ?, status = ?, waiting_for = ?, cursor = ?, tags = ?, "
    "started_at = ?, updated_at = ? WHERE run_id = ?"
)

Append = tuple[Sequence[StoredEvent], tuple[str | float | None, ...], Sequence[Claim]]
"""What a recorder is told to append: events, the row that they lead to, the keys that they claim."""


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return what an append costs, side by side."""
    rounds, appends = (5, 50) if quick else (25, 200)
    total = (rounds + 1) * appends  # one round warms up
    files = [folder / f"append-{n}.db" for n in range(6)]
    sides: dict[str, Side] = {
        "bare": bare(files[0], total, appends),
        "bare with row": bare(files[1], total, appends, with_row=True),
        "recorder": recorder(files[2], total, appends),
        "save": save(files[3], appends),
        "save with key": save(files[4], appends, key="key"),
        "command and save": save(files[5], appends, with_command=True),
    }
    samples = alternate(sides, show(range(rounds), "append"))
    micros = {side: samples.micros(side, appends) for side in sides}
    low, high = samples.spread("save", "bare")
    return Report(
        (
            Figure("bare INSERT and COMMIT", micros["bare"], "µs"),
            Figure("the same with UPDATE of the row", micros["bare with row"], "µs"),
            Figure("recorder.append", micros["recorder"], "µs"),
            Figure("RunStore.save", micros["save"], "µs"),
            Figure("RunStore.save, a key with each decision", micros["save with key"], "µs"),
            Figure("command and RunStore.save", micros["command and save"], "µs"),
            *(Figure(f"{side} / bare", samples.ratio(side, "bare"), "x") for side in sides if side != "bare"),
            Figure("save / bare, best round", low, "x"),
            Figure("save / bare, worst round", high, "x"),
        ),
        Bar("RunStore.save / bare INSERT and COMMIT", samples.ratio("save", "bare"), "at most", AT_MOST),
    )


def bare(path: Path, total: int, appends: int, *, with_row: bool = False) -> Side:
    """Return the side that speaks to sqlite3, as its documentation does."""
    store = RunStore(url_of(path))  # it makes the tables
    prepared = iter(prepare(store, total))
    store.close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")

    def side() -> float:
        seconds = 0.0
        for _ in range(appends):
            (event,), row, _ = next(prepared)
            began = perf_counter()
            database.execute(INSERT_EVENT, values_of(event))
            if with_row:
                database.execute(UPDATE_ROW, row)
            database.commit()
            seconds += perf_counter() - began
        return seconds

    return side


def recorder(path: Path, total: int, appends: int) -> Side:
    """Return the side of our recorder alone: its events are encoded and its row is made already."""
    store = RunStore(url_of(path))
    prepared = iter(prepare(store, total))

    def side() -> float:
        seconds = 0.0
        for _ in range(appends):
            append = next(prepared)
            began = perf_counter()
            store.recorder.append(*append)
            seconds += perf_counter() - began
        return seconds

    return side


def save(path: Path, appends: int, *, key: str | None = None, with_command: bool = False) -> Side:
    """Return the side of the library: each append is a save of a run with one pending event."""
    store = RunStore(url_of(path))
    run = begin(store, RUN_ID)

    def side() -> float:
        seconds = 0.0
        for _ in range(appends):
            commanded = perf_counter()
            go_on(run, key=key)
            began = commanded if with_command else perf_counter()
            store.save(run)
            seconds += perf_counter() - began
        return seconds

    return side


def prepare(store: RunStore, total: int) -> list[Append]:
    """Start a run and return the appends that come next, ready to be recorded one after the other."""
    run = begin(store, RUN_ID)
    return [prepare_next(store, run) for _ in range(total)]


def prepare_next(store: RunStore, run: AgentRun) -> Append:
    """Go on with a run in memory, and return the append that a save would make of it."""
    go_on(run)
    events: list[AnyEvent] = list(run.collect_events())  # type: ignore[arg-type]  # triggered by AgentRun
    stored = [store.mapper.to_stored_event(event) for event in events]
    row = row_of(run.state)
    assert len(stored) == 1
    assert len(row) == len(ROW_COLUMNS)
    return stored, row, claims_of(RUN_ID, events)


def values_of(event: StoredEvent) -> tuple[bytes, int, str, bytes]:
    """Return an event's columns as our recorder stores them."""
    stream = event.originator_id
    assert not isinstance(stream, str)
    return stream.bytes, event.originator_version, event.topic, event.state
