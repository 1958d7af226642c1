"""Bytes on disk: what a step leaves behind, in tables and indexes, beyond what an empty store takes.

What is counted is a file of SQLite with its journal written back, or PostgreSQL's tables with their indexes; nothing
is vacuumed.  The floor is a bare table with the indexes of our events; the JSON in it stands beside it.  There is one
round: the same work leaves the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agent_es.bench.measure import Bar, Figure, Measured, Report, Show, Side
from benchmarks.databases import Databases, every_kind
from benchmarks.step import among, variants
from benchmarks.systems.floor import decision, result
from benchmarks.systems.process import FLOOR, LANGGRAPH, OURS, PYDANTIC_AI, Job, System, call, chosen, system
from benchmarks.turns import Found, Stores, put_together, take_turns

UNIT = "bytes/step"
AGAINST_FLOOR = 1.6
TWICE_AT_MOST = 2.3


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    size: int = 1_000
    """How many steps a run has; and then twice as many."""
    only_once: Sequence[str] = (system(LANGGRAPH).name, PYDANTIC_AI)
    """What takes gigabytes, or minutes, for twice as many."""


FULL, QUICK = Scale(), Scale(100)


def measure(folder: Path, show: Show, *, quick: bool, systems: Sequence[str] = ()) -> Report:
    """Return how much each system stores."""
    scale = QUICK if quick else FULL
    with every_kind(folder) as kinds:
        return put_together([compare(kind, scale, chosen(systems), show) for kind in kinds])


def compare(kind: Databases, scale: Scale, names: Sequence[str], show: Show) -> Found:
    """Measure on one kind of database."""
    stores, empty = Stores(kind), partial(left_by, kind, 0)
    entered = [
        (asked, size)
        for asked in variants(names)
        for size in (scale.size, 2 * scale.size)
        if size == scale.size or asked.name not in scale.only_once
    ]
    bare = {asked: stores.in_new(asked, partial(empty, asked)) for asked in variants(names)}
    sides = {among(asked, size): storing(stores, asked, size, bare[asked]) for asked, size in entered}
    samples = take_turns(sides, show, f"size, {kind.name}", rounds=1)
    found = Found(kind.name, samples, UNIT)
    for asked, size in entered:
        found.keep(asked.name, size, among(asked, size), float)
    json = sum(len(decision(idx)) + len(result(idx)) for idx in range(scale.size)) / scale.size
    found.measured.append(Measured.of("json", kind.name, scale.size, [json], UNIT))
    found.figures.append(Figure(f"{kind.name}, the JSON itself", json, UNIT))
    once, twice = (among(system(OURS), size) for size in (scale.size, 2 * scale.size))
    found.at_most(once, among(system(FLOOR), scale.size), AGAINST_FLOOR)
    growth = 2 * samples.ratio(twice, once)
    name = f"{kind.name}, bytes of {2 * scale.size:,} steps / of {scale.size:,}"
    found.bars.append(Bar(name, growth, "at most", TWICE_AT_MOST))
    return found


def storing(stores: Stores, asked: System, size: int, empty: float) -> Side:
    """Return the side of a system; it returns bytes where others return seconds."""
    return lambda: (stores.in_new(asked, partial(left_by, stores.kind, size, asked)) - empty) / size


def left_by(kind: Databases, size: int, asked: System, url: str) -> float:
    """Return how many bytes a database takes after a run of so many steps."""
    call(asked, "steps", Job(url, size))
    return kind.size(url)
