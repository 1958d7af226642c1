"""Cold resume: from opening the store in a new process until the next step of a long run is recorded.

The run was left by a process that died when it was to decide on that step.  Each round is a process of its own, on a
copy of what was left; what it imports is loaded before the clock starts.
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
AGAINST_DBOS = 20.0
SNAPSHOT = system(OURS, "snapshot")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    sizes: Sequence[int] = (100, 1_000, 10_000)
    """How many steps a run has."""
    rounds: int = 5
    longest: Mapping[str, int] = field(default_factory=lambda: {PYDANTIC_AI: 1_000})
    """Beyond which a system takes minutes to resume."""


FULL, QUICK = Scale(), Scale((20, 100), rounds=2)
SLOW = {DBOS: 10_000, PYDANTIC_AI: 1_000}
"""From where on a system takes part in few rounds."""


def measure(folder: Path, show: Show, *, quick: bool, systems: Sequence[str] = ()) -> Report:
    """Return how long each system takes to go on."""
    scale = QUICK if quick else FULL
    with every_kind(folder) as kinds:
        return put_together([compare(kind, scale, chosen(systems), show) for kind in kinds])


def compare(kind: Databases, scale: Scale, names: Sequence[str], show: Show) -> Found:
    """Measure on one kind of database."""
    stores = Stores(kind)
    entered = [(asked, size) for asked in variants(names) for size in scale.sizes if is_in(asked, size, scale)]
    for n in show(range(len(entered)), f"resume, {kind.name}: filling"):
        asked, size = entered[n]
        stores.prepare(asked, "fill", size)
    sides: dict[str, Side] = {
        after(asked, size): partial(stores.in_copy, asked, "fill", size, seconds_of(asked, "resume", size))
        for asked, size in entered
    }
    slow = [after(asked, size) for asked, size in entered if size >= SLOW.get(asked.module, size + 1)]
    samples = take_turns(sides, show, f"resume, {kind.name}", scale.rounds, slow)
    found = Found(kind.name, samples, "ms")
    for asked, size in entered:
        found.keep(asked.name, size, after(asked, size), lambda seconds: seconds * 1e3)
    judge(found, scale)
    return found


def judge(found: Found, scale: Scale) -> None:
    """Judge the longest runs."""
    shorter, longest = scale.sizes[-2:]
    ours, snapshot = after(system(OURS), longest), after(SNAPSHOT, longest)
    found.at_most(ours, after(system(FLOOR), longest), AGAINST_FLOOR)
    found.at_most(snapshot, after(system(FLOOR), longest), 1.0)
    found.at_most(snapshot, after(SNAPSHOT, shorter), longest / shorter / 2)  # half as fast as the journal
    best = found.fastest(after(system(LANGGRAPH), longest), after(system(LANGGRAPH, "delta"), longest))
    for side in (ours, snapshot):
        found.at_most(side, best, 1.0)
        found.at_least(side, after(system(DBOS), longest), AGAINST_DBOS)


def variants(names: Sequence[str]) -> list[System]:
    """Return the ways of resuming that are compared."""
    every = [
        (OURS,),
        (OURS, "snapshot"),
        (FLOOR,),
        (STOCK,),
        (DBOS,),
        (LANGGRAPH,),
        (LANGGRAPH, "delta"),
        (PYDANTIC_AI,),
    ]
    return [system(*way) for way in every if way[0] in names]


def is_in(asked: System, size: int, scale: Scale) -> bool:
    """Whether a system takes part with a run of that length."""
    return size <= scale.longest.get(asked.module, size)


def after(asked: System, size: int) -> str:
    """Return how a side is called that resumes after so many steps."""
    return f"{asked.name}, {size:,} steps"
