"""One, four and eight processes that append to PostgreSQL, against psycopg by itself, and the stock recorder.

Each writer has a run of its own, which it moves in memory before the round, off the clock: what is timed is the
append.  A round's rate is what all writers appended, from the first one's start to the last one's end.  The server is
one of our own, on the folder's disk, set as it comes: a commit is on the disk.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from eventsourcing.application import Application
from eventsourcing.persistence import StoredEvent

from agent_es.bench.journals import begin, go_on
from agent_es.bench.measure import Bar, Figure, Measured, Report, Samples, Show
from agent_es.run import AgentRun
from agent_es.store import RunStore, system_clock
from benchmarks.databases import STUCK, Server, connect, serving

CREWS = (1, 4, 8)
"""How many writers there are."""

OURS = "RunStore.save"
KEYED = "RunStore.save, a key with each decision"
BOTH = "psycopg, row and event in one transaction"
ALONE = "psycopg, the event alone"
STOCK = "the stock recorder"
SYSTEMS = {OURS: "agent_es", BOTH: "floor", ALONE: "floor, the event alone", STOCK: "eventsourcing"}
"""What each side is called among the systems."""

INSERT_EVENT = "INSERT INTO plain_events (originator_id, originator_version, topic, state) VALUES (%s, %s, %s, %s)"
UPDATE_ROW = "UPDATE plain_runs SET status = %s, waiting_for = %s, cursor = %s, updated_at = %s WHERE run_id = %s"
COLUMNS = "originator_id UUID NOT NULL, originator_version BIGINT NOT NULL, topic TEXT NOT NULL, state BYTEA NOT NULL"
PLAIN_TABLES = (
    f"CREATE TABLE plain_events (id BIGSERIAL PRIMARY KEY, {COLUMNS})",
    "CREATE UNIQUE INDEX plain_idx ON plain_events (originator_id, originator_version)",
    "CREATE TABLE plain_runs AS SELECT * FROM agent_es_runs",
    "ALTER TABLE plain_runs ADD PRIMARY KEY (run_id)",
    "CREATE INDEX plain_by_status ON plain_runs (status, waiting_for)",
)

Appends = list[Callable[[], object]]
"""What a writer does in a round, one call after the other."""


@dataclass(frozen=True, slots=True)
class Span:
    """When a writer did its appends of a round."""

    began: float
    ended: float


class Stock(Application[UUID]):
    """An application with nothing of its own."""

    name = "stock"


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return how many events a second writers append, side by side."""
    rounds, appends = (2, 50) if quick else (5, 500)
    counts = {OURS: appends, KEYED: appends, BOTH: appends, ALONE: appends, STOCK: appends // 5}
    with serving(folder / "postgres") as url:
        found = {
            writers: compare(Server(url).new(f"appends_{writers}"), writers, counts, show(range(rounds), what))
            for writers in CREWS
            for what in [f"appends, {writers} writing"]
        }
    most = found[max(CREWS)]
    slowest = {side: most.spread(OURS, side)[1] for side in (BOTH, ALONE, STOCK)}
    return Report(
        (
            *(
                Figure(f"{side}, {writers} writing", samples.per_second(side), "events/s")
                for side in counts
                for writers, samples in found.items()
            ),
            *(Figure(f"{OURS} / {side}, worst round", 1 / ratio, "x") for side, ratio in slowest.items()),
        ),
        Bar(f"{OURS} / {BOTH}", most.ratio(BOTH, OURS), "at least", 0.8),
        (
            Bar(f"{OURS} / {ALONE}", most.ratio(ALONE, OURS), "at least", 0.5),
            Bar(f"{OURS} / {STOCK}", most.ratio(STOCK, OURS), "at least", 8),
        ),
        tuple(
            Measured.of(system, "postgres", writers, [1 / second for second in samples.of(side)], "events/s")
            for side, system in SYSTEMS.items()
            for writers, samples in found.items()
        ),
    )


def compare(url: str, writers: int, counts: Mapping[str, int], rounds: Iterable[int]) -> Samples:
    """Return the seconds that an event took, all writers together."""
    make_tables(url, writers)
    spawning = multiprocessing.get_context("spawn")
    barrier = spawning.Barrier(writers + 1)
    spans: Queue[Span] = spawning.Queue()
    orders: list[Queue[tuple[str, int] | None]] = [spawning.Queue() for _ in range(writers)]
    processes = [
        spawning.Process(target=write, args=(url, writer, orders[writer], barrier, spans), daemon=True)
        for writer in range(writers)
    ]
    for process in processes:
        process.start()

    def play(side: str, number: int) -> float:
        for order in orders:
            order.put((side, number))
        barrier.wait(STUCK)
        played = [spans.get(timeout=STUCK) for _ in range(writers)]
        return (max(it.ended for it in played) - min(it.began for it in played)) / (number * writers)

    samples = take_turns(play, counts, rounds)
    for order, process in zip(orders, processes, strict=True):
        order.put(None)
        process.join(STUCK)
        assert process.exitcode == 0
    return samples


def take_turns(play: Callable[[str, int], float], counts: Mapping[str, int], rounds: Iterable[int]) -> Samples:
    """Let the sides take turns, every other round backwards."""
    samples = Samples(counts)
    for side in counts:
        play(side, 10)  # to warm up
    for n in rounds:
        for side in reversed([*counts]) if n % 2 else counts:
            samples.add(side, play(side, counts[side]))
    return samples


def make_tables(url: str, writers: int) -> None:
    """Make every side's tables before the writers come."""
    with RunStore(url) as store, connect(url) as connection:
        for writer in range(writers):
            begin(store, name_of(writer))
        for statement in PLAIN_TABLES:
            connection.execute(statement)
    stock_of(url)


def write(
    url: str, writer: int, orders: "Queue[tuple[str, int] | None]", barrier: Barrier, spans: "Queue[Span]"
) -> None:
    """Prepare and append as ordered; a process's whole life."""
    sides: Mapping[str, Callable[[int], Appends]] = {
        OURS: saving(url, name_of(writer)),
        KEYED: saving(url, f"{name_of(writer)}, keyed", key=name_of(writer)),
        BOTH: plain(url, writer, with_row=True),
        ALONE: plain(url, writer),
        STOCK: stock(url),
    }
    while (order := orders.get(timeout=STUCK)) is not None:
        side, number = order
        appends = sides[side](number)
        barrier.wait(STUCK)
        began = monotonic()
        for append in appends:
            append()
        spans.put(Span(began, monotonic()))


def moved(run: AgentRun, key: str | None) -> AgentRun:
    """Return the run with one more event, which is pending."""
    next_run = type(run).of(run.state, system_clock)
    go_on(next_run, key=key)
    return next_run


def saving(url: str, run_id: str, key: str | None = None) -> Callable[[int], Appends]:
    """Return the side of the library."""
    store = RunStore(url)
    runs = [store.aggregate(AgentRun, run_id) if key is None else begin(store, run_id)]

    def prepare(number: int) -> Appends:
        appends: Appends = []
        for _ in range(number):
            runs[0] = moved(runs[0], key)
            appends.append(lambda run=runs[0]: store.save(run))  # type: ignore[misc]
        return appends

    return prepare


def plain(url: str, writer: int, *, with_row: bool = False) -> Callable[[int], Appends]:
    """Return the side that speaks to psycopg as its documentation does, with prepared statements."""
    connection, store = connect(url), RunStore(url)
    run = store.aggregate(AgentRun, name_of(writer))
    stream, versions = uuid4(), count(1)

    def append(row: tuple[Any, ...], event: tuple[Any, ...]) -> None:
        if with_row:
            with connection.transaction():
                connection.execute(UPDATE_ROW, row, prepare=True)
                connection.execute(INSERT_EVENT, event, prepare=True)
        else:
            connection.execute(INSERT_EVENT, event, prepare=True)

    def prepare(number: int) -> Appends:
        nonlocal run
        appends: Appends = []
        for _ in range(number):
            run = moved(run, None)
            (event,) = run.pending_events
            stored = store.mapper.to_stored_event(event)
            state = run.state
            changed = state.updated_at.timestamp() if state.updated_at else None
            row = (state.status.value, state.waiting_for, state.version, changed, state.run_id)
            values = (stream, next(versions), stored.topic, stored.state)
            appends.append(lambda row=row, values=values: append(row, values))  # type: ignore[misc]
        return appends

    return prepare


def stock(url: str) -> Callable[[int], Appends]:
    """Return the side of the stock recorder, alone: without a row, and with the events made already."""
    recorder, stream, versions = stock_of(url).recorder, uuid4(), count(1)

    def prepare(number: int) -> Appends:
        events = [StoredEvent(stream, next(versions), "agent_es:ToolResult", b"x" * 350) for _ in range(number)]
        return [lambda event=event: recorder.insert_events([event]) for event in events]  # type: ignore[misc]

    return prepare


def stock_of(url: str) -> Stock:
    """Return the stock application."""
    return Stock(
        env={
            "PERSISTENCE_MODULE": "eventsourcing_sqlalchemy",
            "SQLALCHEMY_URL": url,
            "STOCK_SQLALCHEMY_URL": url,  # the prefixed name wins over the environment
        }
    )


def name_of(writer: int) -> str:
    """Return the run that a writer appends to."""
    return f"run-writer-{writer}"
