"""Loading a long run, against the stock repository of the event store library, and against a floor.

The stock side is an ordinary aggregate with the library's JSON transcoder and ``eventsourcing_sqlalchemy``, holding
the same values.  The floor is what is left when nobody asks for anything: a SELECT, pydantic's decoding of each
event, and the smallest fold that knows the steps.
"""

import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from time import perf_counter
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from pydantic import BaseModel, ConfigDict

from agent_es.bench.journals import BATCH, GOAL, TOOL, args_json, fill, result_json, url_of
from agent_es.bench.measure import Bar, Figure, Report, Show, Side, alternate
from agent_es.events import stream_id
from agent_es.store import RunStore

AT_LEAST = 5.0
RUN_ID = "run-load"

SELECT = "SELECT originator_version, topic, state FROM agent_es_events WHERE originator_id = ? ORDER BY 1"


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return how fast a run is loaded, side by side."""
    rounds, events = (5, 1_000) if quick else (9, 10_000)
    sides: dict[str, Side] = {
        "ours": ours(folder / "load.db", events, show),
        "stock": stock(folder / "load-stock.db", events, show),
        "floor": floor(folder / "load.db", events),
    }
    samples = alternate(sides, show(range(rounds), f"load, {events:,} events"))
    low, high = samples.spread("stock", "ours")
    return Report(
        (
            Figure("RunStore.load", samples.per_second("ours"), "events/s"),
            Figure("stock repository.get", samples.per_second("stock"), "events/s"),
            Figure("floor: SELECT, decode, smallest fold", samples.per_second("floor"), "events/s"),
            Figure("RunStore.load", samples.micros("ours"), "µs/event"),
            Figure("stock repository.get", samples.micros("stock"), "µs/event"),
            Figure("floor: SELECT, decode, smallest fold", samples.micros("floor"), "µs/event"),
            Figure("share of the floor", samples.ratio("floor", "ours"), "x"),
            Figure("against stock, worst round", low, "x"),
            Figure("against stock, best round", high, "x"),
        ),
        Bar("events/s of RunStore.load / stock", samples.ratio("stock", "ours"), "at least", AT_LEAST),
    )


def ours(path: Path, events: int, show: Show) -> Side:
    """Return the side of the library."""
    store = RunStore(url_of(path))
    fill(store, RUN_ID, events, show)

    def side() -> float:
        began = perf_counter()
        state = store.load(RUN_ID)
        seconds = perf_counter() - began
        assert state.version == events
        assert len(state.steps) == events // 2
        return seconds / events

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

    @event("Decided")
    def decide(self, idx: int, turn: int, tool: str, args: str, attempt: int) -> None:  # noqa: ARG002  # it is stored
        """Take in a decision."""
        self.turns = turn + 1
        self.decided[idx] = (tool, args)

    @event("Resulted")
    def end(self, idx: int, tool: str, attempt: int, result: str) -> None:  # noqa: ARG002  # it is stored
        """Take in a result."""
        self.results[idx] = result


class StockRuns(Application[UUID]):
    """An application with nothing of its own."""

    name = "stock"


def stock(path: Path, events: int, show: Show) -> Side:
    """Return the side of the stock repository."""
    url = url_of(path)
    settings = {"SQLALCHEMY_URL": url, "STOCK_SQLALCHEMY_URL": url}  # the prefixed name wins over the environment
    app = StockRuns(env={"PERSISTENCE_MODULE": "eventsourcing_sqlalchemy", **settings})
    run = StockRun(RUN_ID, "BenchRun", GOAL)
    for start in show(range(1, events, BATCH), f"filling a stock run of {events:,} events"):
        for version in range(start, min(start + BATCH, events)):
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
        assert found.version == events
        assert len(found.decided) == events // 2
        return seconds / events

    return side


class Plain(BaseModel):
    """An event that is only decoded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timestamp: datetime


class PlainStarted(Plain):
    """The first event."""

    run_id: str
    agent: str
    agent_version: str
    goal: str
    input: str
    tags: dict[str, str]


class PlainDecided(Plain):
    """A decision."""

    idx: int
    turn: int
    tool: str
    args: str
    attempt: int
    key: str | None = None
    call_id: str | None = None


class PlainResult(Plain):
    """A result."""

    idx: int
    tool: str
    attempt: int
    result: str


def floor(path: Path, events: int) -> Side:
    """Return the side that does the least, on the file that our side filled."""
    stream = stream_id(RUN_ID).bytes

    def side() -> float:
        with closing(sqlite3.connect(path)) as database:
            began = perf_counter()
            version, steps = fold_least(database.execute(SELECT, (stream,)).fetchall())
            seconds = perf_counter() - began
        assert version == events
        assert len(steps) == (events - 1) // 2
        return seconds / events

    return side


def fold_least(rows: list[tuple[int, str, bytes]]) -> tuple[int, list[tuple[int, str, str]]]:
    """Decode every event, and keep what each finished step was."""
    decode = {
        "agent_es:RunStarted": PlainStarted.__pydantic_validator__.validate_json,
        "agent_es:LlmDecided": PlainDecided.__pydantic_validator__.validate_json,
        "agent_es:ToolResult": PlainResult.__pydantic_validator__.validate_json,
    }
    version = 0
    is_open: dict[int, PlainDecided] = {}
    steps: list[tuple[int, str, str]] = []
    for version, topic, state in rows:  # noqa: B007  # the last one is returned
        plain = decode[topic](state)
        if type(plain) is PlainDecided:
            is_open[plain.idx] = plain
        elif type(plain) is PlainResult:
            steps.append((plain.idx, is_open.pop(plain.idx).args, plain.result))
    return version, steps
