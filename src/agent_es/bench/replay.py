"""Loading runs by their id in a warm process, short ones and long ones, against two others.

The stock side is an ordinary aggregate with the library's JSON transcoder and ``eventsourcing_sqlalchemy``, holding
the same values.  The floor is what is left when nobody asks for anything: a SELECT, pydantic's decoding of each
event, and the smallest fold that knows the steps.

Rule: every event is read and folded, each time: no snapshot is taken or used.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

from agent_es.bench.journals import BATCH, fill
from agent_es.bench.least import fold_least
from agent_es.bench.measure import Bar, Figure, Measured, Report, Samples, Show, Side, alternate
from agent_es.bench.payloads import GOAL, TOOL, args_json, result_json, url_of
from agent_es.events import stream_id
from agent_es.store import RunStore

OURS, STOCK, FLOOR = "agent_es", "eventsourcing", "floor"

AGAINST_STOCK = 10.0
AGAINST_FLOOR = 0.6
GROWTH_AT_MOST = 1.2

SELECT = "SELECT originator_version, topic, state FROM agent_es_events WHERE originator_id = ? ORDER BY 1"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int = 15
    sizes: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    """How many events a run has."""
    judged: int = 10_000
    """The size at which the sides are compared; the longest run of the stock side, which is slow."""
    shortest: int = 1_000
    """From which on an event must cost as much as in the longest run."""
    enough: int = 10_000
    """Events that a side reads at least in a round, so that it can be timed."""


FULL, QUICK = Scale(), Scale(5, (100, 1_000, 4_000), judged=1_000, shortest=1_000)


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return how fast runs are loaded, side by side."""
    return compare(folder, QUICK if quick else FULL, show)


def compare(folder: Path, scale: Scale, show: Show) -> Report:
    """Return how fast runs of some sizes are loaded."""
    path = folder / "replay.db"
    store, app = RunStore(url_of(path), snapshots=False), stock_application(url_of(folder / "replay-stock.db"))
    sides: dict[str, Side] = {}
    for size in scale.sizes:
        fill(store, run_of(size), size, show)
        sides[among(OURS, size)] = repeated(scale.enough, size, ours(store, size))
        sides[among(FLOOR, size)] = repeated(scale.enough, size, floor(path, size))
        if size <= scale.judged:
            sides[among(STOCK, size)] = repeated(scale.enough, size, stock(app, size, show))
    return judged(alternate(sides, show(range(scale.rounds), "replay")), scale)


def judged(samples: Samples, scale: Scale) -> Report:
    """Return what is shown of the rounds."""
    longest, judged = max(scale.sizes), scale.judged
    mine, others, least = (among(system, judged) for system in (OURS, STOCK, FLOOR))
    low, high = samples.spread(others, mine)
    slow, fast = samples.spread(least, mine)
    grown, shortest = among(OURS, longest), among(OURS, scale.shortest)
    return Report(
        (
            *(Figure(side, samples.per_second(side), "events/s") for side in samples.sides),
            Figure(f"{OURS} / {STOCK}, worst round", low, "x"),
            Figure(f"{OURS} / {STOCK}, best round", high, "x"),
            Figure(f"{OURS} / {FLOOR}, worst round", slow, "x"),
            Figure(f"{OURS} / {FLOOR}, best round", fast, "x"),
            Figure("an event in the longest run, worst round", samples.spread(grown, shortest)[1], "x"),
        ),
        Bar(f"events/s of {OURS} / {STOCK}, {judged:,}", samples.ratio(others, mine), "at least", AGAINST_STOCK),
        (
            Bar(f"events/s of {OURS} / {FLOOR}, {judged:,}", samples.ratio(least, mine), "at least", AGAINST_FLOOR),
            Bar(
                f"an event in a run of {longest:,} / in one of {scale.shortest:,}",
                samples.ratio(grown, shortest),
                "at most",
                GROWTH_AT_MOST,
            ),
        ),
        tuple(
            Measured.of(
                system, "sqlite", size, [1 / second for second in samples.of(among(system, size))], "events/s"
            )
            for system in (OURS, STOCK, FLOOR)
            for size in scale.sizes
            if among(system, size) in samples.sides
        ),
    )


def among(system: str, size: int) -> str:
    """Return how a side is called that loads a run of so many events."""
    return f"{system}, {size:,} events"


def run_of(size: int) -> str:
    """Return the run of that length."""
    return f"run-{size}"


def repeated(enough: int, size: int, load: Side) -> Side:
    """Return the side that loads a run again and again where it is short; its seconds are those of an event."""
    times = max(1, enough // size)
    return lambda: sum(load() for _ in range(times)) / (times * size)


def ours(store: RunStore, size: int) -> Side:
    """Return the side of the library."""

    def side() -> float:
        began = perf_counter()
        state = store.load(run_of(size))
        seconds = perf_counter() - began
        assert state.version == size
        assert len(state.steps) == size // 2
        del state  # off the clock
        return seconds

    return side


class StockRun(Aggregate):
    """A run as the library's tutorial would write it."""

    def __init__(self, run_id: str, agent: str, goal: str) -> None:
        self.run_id = run_id
        self.agent = agent
        self.goal = goal
        self.turns = 0
        self.decided: dict[int, tuple[str, str]] = {}
        self.results: dict[int, str] = {}
        self.answer: str | None = None

    @staticmethod
    def create_id(run_id: str) -> UUID:
        """Return the id of the run's stream."""
        return uuid5(NAMESPACE_URL, f"/stock-runs/{run_id}")

    @event("Decided")
    def decide(self, idx: int, turn: int, tool: str, args: str, attempt: int) -> None:  # noqa: ARG002  # it is stored
        """Take in a decision."""
        self.turns = turn + 1
        self.decided[idx] = (tool, args)

    @event("Resulted")
    def end(self, idx: int, tool: str, attempt: int, result: str) -> None:  # noqa: ARG002  # it is stored
        """Take in a result."""
        self.results[idx] = result

    @event("Finished")
    def finish(self, answer: str) -> None:
        """Take in an answer."""
        self.answer = answer


class StockRuns(Application[UUID]):
    """An application with nothing of its own."""

    name = "stock"


def stock_application(url: str) -> StockRuns:
    """Return the application on a database."""
    settings = {"SQLALCHEMY_URL": url, "STOCK_SQLALCHEMY_URL": url}  # the prefixed name wins over the environment
    return StockRuns(env={"PERSISTENCE_MODULE": "eventsourcing_sqlalchemy", **settings})


def stock(app: StockRuns, size: int, show: Show) -> Side:
    """Return the side of the stock repository."""
    run = StockRun(run_of(size), "BenchRun", GOAL)
    for start in show(range(1, size, BATCH), f"filling a stock run of {size:,} events"):
        for version in range(start, min(start + BATCH, size)):
            idx, is_result = divmod(version - 1, 2)
            if is_result:
                run.end(idx=idx, tool=TOOL, attempt=1, result=result_json(idx))
            else:
                run.decide(idx=idx, turn=idx, tool=TOOL, args=args_json(idx), attempt=1)
        app.save(run)

    def side() -> float:
        began = perf_counter()
        found: StockRun = app.repository.get(run.id)
        seconds = perf_counter() - began
        assert found.version == size
        assert len(found.decided) == size // 2
        return seconds

    return side


def floor(path: Path, size: int) -> Side:
    """Return the side that does the least, on the file that our side filled."""
    stream = stream_id(run_of(size)).bytes

    def side() -> float:
        with closing(sqlite3.connect(path)) as database:
            began = perf_counter()
            version, steps = fold_least(database.execute(SELECT, (stream,)).fetchall())
            seconds = perf_counter() - began
        assert version == size
        assert len(steps) == (size - 1) // 2
        return seconds

    return side
