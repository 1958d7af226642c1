"""Step cost: a run from its start to its end, by one process that does nothing else; what that takes for each step.

Each round is a process of its own in an empty database, and warm: it has moved a short run before the clock starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agent_es.bench.measure import Report, Show, Side
from benchmarks.databases import Databases, every_kind
from benchmarks.systems.process import DBOS, FLOOR, LANGGRAPH, OURS, PYDANTIC_AI, STOCK, System, chosen, system
from benchmarks.turns import Found, Stores, put_together, seconds_of, take_turns

AGAINST_FLOOR = 1.6
AGAINST_LANGGRAPH = 0.5
AGAINST_DBOS = 0.25
GROWTH_AT_MOST = 1.2


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    sizes: Sequence[int] = (100, 1_000, 10_000)
    """How many steps a run has."""
    rounds: int = 5
    longest: Mapping[str, int] = field(
        default_factory=lambda: dict.fromkeys((STOCK, DBOS, LANGGRAPH, PYDANTIC_AI), 1_000)
    )
    """Beyond which a system does not go."""
    judged: int = 1_000
    """The size at which systems are compared."""


FULL, QUICK = Scale(), Scale((20, 100), rounds=2, judged=100)
SLOW = {PYDANTIC_AI: 1_000}
"""From where on a system takes part in few rounds."""


def measure(folder: Path, show: Show, *, quick: bool, systems: Sequence[str] = ()) -> Report:
    """Return what a step costs with each system."""
    scale = QUICK if quick else FULL
    with every_kind(folder) as kinds:
        return put_together([compare(kind, scale, chosen(systems), show) for kind in kinds])


def compare(kind: Databases, scale: Scale, names: Sequence[str], show: Show) -> Found:
    """Measure on one kind of database."""
    stores = Stores(kind)
    entered = [
        (asked, size)
        for asked in variants(names)
        for size in scale.sizes
        if size <= scale.longest.get(asked.module, size)
    ]
    sides = {among(asked, size): costing(stores, asked, size) for asked, size in entered}
    slow = [among(asked, size) for asked, size in entered if size >= SLOW.get(asked.module, size + 1)]
    samples = take_turns(sides, show, f"step, {kind.name}", scale.rounds, slow)
    found = Found(kind.name, samples, "ms/step")
    for asked, size in entered:
        found.keep(asked.name, size, among(asked, size), lambda seconds: seconds * 1e3)
    judge(found, scale)
    return found


def costing(stores: Stores, asked: System, size: int) -> Side:
    """Return the side that moves a run; its seconds are those of a step."""
    move = partial(stores.in_new, asked, seconds_of(asked, "steps", size))
    return lambda: move() / size


def judge(found: Found, scale: Scale) -> None:
    """Judge a step of a run that is neither short nor long, and what it costs in a long one."""
    ours = among(system(OURS), scale.judged)
    found.at_most(ours, among(system(FLOOR), scale.judged), AGAINST_FLOOR)
    if found.database == "sqlite":
        ways = [among(system(LANGGRAPH, way), scale.judged) for way in ("", "delta")]
        found.at_most(ours, found.fastest(*ways), AGAINST_LANGGRAPH)
    found.at_most(ours, among(system(DBOS), scale.judged), AGAINST_DBOS)
    found.at_most(among(system(OURS), max(scale.sizes)), among(system(OURS), min(scale.sizes)), GROWTH_AT_MOST)


def variants(names: Sequence[str]) -> list[System]:
    """Return the systems that are compared."""
    every = [(OURS,), (FLOOR,), (STOCK,), (DBOS,), (LANGGRAPH,), (LANGGRAPH, "delta"), (PYDANTIC_AI,)]
    return [system(*way) for way in every if way[0] in names]


def among(asked: System, size: int) -> str:
    """Return how a side is called that moves a run of so many steps."""
    return f"{asked.name}, {size:,} steps"
