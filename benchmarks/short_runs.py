"""Many runs of three steps, each from its start to its end, by one process and by two that share them.

Each round is a database of its own, which has its tables.  The processes have moved a run each before the clock
starts, and start together.  The tool takes no time, so that what is measured is the system.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_es.bench.measure import Figure, Report, Show, Side
from benchmarks.databases import Databases, every_kind
from benchmarks.systems.process import (
    DBOS,
    FLOOR,
    LANGGRAPH,
    OURS,
    PYDANTIC_AI,
    STEPS,
    STOCK,
    Job,
    System,
    chosen,
    share,
    system,
)
from benchmarks.turns import Found, Stores, put_together, take_turns

CREWS = (1, 2)
SHARED = (OURS, FLOOR)
"""Which systems two processes share the runs of, too."""
AGAINST_FLOOR = 0.5
AGAINST_DBOS = 5.0
SECOND_WORKER = {"sqlite": 0.7, "postgres": 1.6}
"""How many times the runs of one worker two must move: a file has one writer at a time."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int = 5
    runs: int = 400
    """Of the systems that are not slow."""
    fewer: Mapping[str, int] = field(default_factory=lambda: {STOCK: 100, DBOS: 100, LANGGRAPH: 100, PYDANTIC_AI: 20})


FULL, QUICK = Scale(), Scale(2, 20, dict.fromkeys((STOCK, DBOS, LANGGRAPH, PYDANTIC_AI), 6))


def measure(folder: Path, show: Show, *, quick: bool, systems: Sequence[str] = ()) -> Report:
    """Return how many runs a second each system moves."""
    scale = QUICK if quick else FULL
    with every_kind(folder) as kinds:
        return put_together([compare(kind, scale, chosen(systems), show) for kind in kinds])


def compare(kind: Databases, scale: Scale, names: Sequence[str], show: Show) -> Found:
    """Measure on one kind of database."""
    stores = Stores(kind)
    entered = [(asked, crew) for asked in variants(names) for crew in CREWS if crew == 1 or asked.name in SHARED]
    for asked in variants(names):
        stores.prepare(asked, "steps", 0)
    sides = {by(asked, crew): sharing(stores, asked, crew, scale) for asked, crew in entered}
    samples = take_turns(sides, show, f"short runs, {kind.name}", scale.rounds)
    found = Found(kind.name, samples, "runs/s")
    for asked, crew in entered:
        found.keep(asked.name, crew, by(asked, crew), lambda seconds: 1 / seconds)
    for crew in CREWS:
        steps = samples.per_second(by(system(OURS), crew)) * STEPS
        found.figures.append(Figure(f"{kind.name}, {by(system(OURS), crew)}, steps", steps, "steps/s"))
    judge(found)
    return found


def sharing(stores: Stores, asked: System, crew: int, scale: Scale) -> Side:
    """Return the side of so many processes of a system; its seconds are those of a run."""
    count = scale.fewer.get(asked.module, scale.runs)

    def move(url: str) -> float:
        return share(asked, "runs", Job(url, count), crew).seconds / count

    return lambda: stores.in_copy(asked, "steps", 0, move)


def judge(found: Found) -> None:
    """Judge one worker against others, and against two."""
    one, two = (by(system(OURS), crew) for crew in CREWS)
    found.at_least(one, by(system(FLOOR), 1), AGAINST_FLOOR)
    found.at_least(one, found.fastest(by(system(DBOS), 1), by(system(DBOS, "threads"), 1)), AGAINST_DBOS)
    found.at_least(two, one, SECOND_WORKER[found.database])


def variants(names: Sequence[str]) -> list[System]:
    """Return the ways of moving runs that are compared."""
    every = [
        *((OURS,), (OURS, "runner"), (FLOOR,), (STOCK,)),
        *((DBOS,), (DBOS, "threads"), (LANGGRAPH,), (LANGGRAPH, "delta"), (PYDANTIC_AI,)),
    ]
    return [system(*way) for way in every if way[0] in names]


def by(asked: System, crew: int) -> str:
    """Return how a side of so many processes is called."""
    return f"{asked.name}, {crew} worker{'s' if crew > 1 else ''}"
