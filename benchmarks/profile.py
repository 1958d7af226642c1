"""Where the time of a step goes: what a run does whenever a timer looks at it, on each kind of database.

The timer counts time as it passes on a clock, so that a wait for the disk or for a server is seen too.  What it finds
counts for all the time since it looked last.
"""

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from agent_es import Runner, RunStore
from agent_es.bench.measure import Bar, Figure, Report, Show
from agent_es.bench.payloads import GOAL
from benchmarks.databases import Databases, every_kind
from benchmarks.systems.agent_es import LookingRun, Looks

EVERY = 0.0005
"""Seconds between two looks."""
NAMED_AT_LEAST = 0.95
"""The share of the time that must have a name."""

DATABASE, AROUND = "statements and commits", "around them: rows, retries, connections"
EVENTS, FOLD = "commands and events", "the fold"
JSON, COURSE = "arguments and results as JSON", "the course of a step, and its tool"
NAMELESS = "anything else"

STATEMENTS = frozenset({("sqlite", "begin"), ("sqlite", "insert"), ("recorder", "_update"), ("datastore", "writing")})
"""Which functions of the store do little but wait for SQLite."""
PARTS = {
    **dict.fromkeys(("application", "datastore", "recorder", "postgres", "sqlite", "dialects"), AROUND),
    **dict.fromkeys(("mapper", "projection", "leases", "snapshots", "clocks", "arrivals", "heart"), AROUND),
    **dict.fromkeys(("run", "events", "main"), EVENTS),
    "state": FOLD,
    **dict.fromkeys(("values", "tools", "keys", "payloads"), JSON),
    **dict.fromkeys(("step", "drivers", "runtime", "decider", "agent_es", "crashpoints", "notices"), COURSE),
}
"""What each module of the library is for here."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int = 5
    steps: int = 1_000


FULL, QUICK = Scale(), Scale(2, 200)


@dataclass(slots=True)
class Looked:
    """What was found, in seconds by part."""

    seconds: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    _last: float = 0.0

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look meanwhile."""
        before = signal.signal(signal.SIGALRM, self._look)
        self._last = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, EVERY)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _look(self, _: int, frame: FrameType | None) -> None:
        self.seconds[part_of(frame)] += time.perf_counter() - self._last
        self._last = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, EVERY)  # from now on: a look that takes long is not itself looked at


def part_of(frame: FrameType | None) -> str:
    """Return what is done there: by the innermost function that has a name here, where that is no driver's."""
    while frame is not None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if path.parent.name == "psycopg" or (path.stem, name) in STATEMENTS:
            return DATABASE
        if path.stem in PARTS and path.parent.name != "json":
            return PARTS[path.stem]
        frame = frame.f_back
    return NAMELESS


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return which part of a step takes how long."""
    scale = QUICK if quick else FULL
    figures: list[Figure] = []
    named: list[Bar] = []
    with every_kind(folder) as kinds:
        for kind in kinds:
            looked = watch(kind, scale, show)
            whole = sum(looked.seconds.values())
            figures.append(Figure(f"{kind.name}, a step", 1e3 * whole / looked.steps, "ms"))
            for part, seconds in looked.seconds.most_common():
                figures.append(Figure(f"{kind.name}, {part}", 1e3 * seconds / looked.steps, "ms"))
                figures.append(Figure(f"{kind.name}, {part}, of the whole", 100 * seconds / whole, "%"))
            share = 1 - looked.seconds[NAMELESS] / whole
            named.append(Bar(f"{kind.name}, time that has a name / all of it", share, "at least", NAMED_AT_LEAST))
    return Report(tuple(figures), named[0], tuple(named[1:]))


def watch(kind: Databases, scale: Scale, show: Show) -> Looked:
    """Return what was found in some runs from their start to their end; the first is moved before that."""
    looked = Looked()
    url = kind.new("profile")
    with RunStore(url, snapshots=False) as store:
        runner = Runner(store, Looks(scale.steps))
        for n in show(range(scale.rounds + 1), f"profile, {kind.name}"):
            if n == 0:
                Runner(store, Looks(20)).run(LookingRun, run_id="warm", goal=GOAL)
                continue
            with looked.looking():
                runner.run(LookingRun, run_id=f"run-{n}", goal=GOAL)
            looked.steps += scale.steps
    kind.drop(url)
    return looked
