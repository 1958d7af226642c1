"""Systems that take turns, each piece of work in a process of its own, and how what they needed is told."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from agent_es.bench.measure import Bar, Figure, Measured, Report, Samples, Show, Side
from benchmarks.databases import Databases
from benchmarks.systems.process import Job, Span, System, call

AT_LEAST = 3
"""Rounds of the slowest side."""


def take_turns(sides: Mapping[str, Side], show: Show, what: str, rounds: int, slow: Sequence[str] = ()) -> Samples:
    """Let the sides take turns, every other round backwards; the slow ones in the first rounds only.

    Nothing warms up: each is a process of its own anyway.
    """
    samples = Samples(sides)
    turns = [
        side
        for n in range(rounds)
        for side in (reversed([*sides]) if n % 2 else sides)
        if n < AT_LEAST or side not in slow
    ]
    for turn in show(range(len(turns)), what):
        gc.collect()
        samples.add(turns[turn], sides[turns[turn]]())
    return samples


@dataclass(slots=True)
class Stores:
    """The databases that systems work in, on one kind of database: each is there for one piece of work."""

    kind: Databases
    _numbers: Iterator[int] = field(default_factory=count)
    _filled: dict[tuple[str, str, int], str] = field(default_factory=dict)

    def prepare(self, asked: System, work: str, size: int) -> None:
        """Let a system leave something in a database, of which there will be copies."""
        url = self.kind.new(self._name(asked))
        call(asked, work, Job(url, size))
        self._filled[asked.name, work, size] = url

    def in_new(self, asked: System, act: Callable[[str], float]) -> float:
        """Do something in a database that is empty."""
        return self._then_drop(self.kind.new(self._name(asked)), act)

    def in_copy(self, asked: System, work: str, size: int, act: Callable[[str], float]) -> float:
        """Do something in a copy of what was prepared."""
        return self._then_drop(self.kind.copy(self._filled[asked.name, work, size], self._name(asked)), act)

    def _then_drop(self, url: str, act: Callable[[str], float]) -> float:
        try:
            return act(url)
        finally:
            self.kind.drop(url)

    def _name(self, asked: System) -> str:
        return f"{asked.module}_{next(self._numbers)}"


@dataclass(slots=True)
class Found:
    """What was found, on one kind of database."""

    database: str
    samples: Samples
    unit: str
    figures: list[Figure] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)

    def keep(self, system: str, size: int, side: str, of: Callable[[float], float]) -> None:
        """Keep what a side needed, in the unit of the workload."""
        kept = Measured.of(system, self.database, size, [of(second) for second in self.samples.of(side)], self.unit)
        self.measured.append(kept)
        self.figures.append(Figure(f"{self.database}, {side}", kept.value, self.unit))

    def fastest(self, *sides: str) -> str:
        """Return the side whose median is least, of those that took part; the first where none did."""
        took_part = [side for side in sides if side in self.samples.sides]
        return min(took_part, key=self.samples.micros, default=sides[0])

    def at_most(self, side: str, other: str, limit: float) -> None:
        """Judge how long a side took of what another one took, where both took part."""
        if {side, other} <= {*self.samples.sides}:
            name = f"{self.database}, {side} / {other}"
            self.bars.append(Bar(name, self.samples.ratio(side, other), "at most", limit))
            self.figures.append(Figure(f"{name}, worst round", self.samples.spread(side, other)[1], "x"))

    def at_least(self, side: str, other: str, limit: float) -> None:
        """Judge how much faster a side was than another one, where both took part."""
        if {side, other} <= {*self.samples.sides}:
            name = f"{self.database}, {side} / {other}"
            self.bars.append(Bar(name, self.samples.ratio(other, side), "at least", limit))
            self.figures.append(Figure(f"{name}, worst round", self.samples.spread(other, side)[0], "x"))


def seconds_of(asked: System, work: str, size: int) -> Callable[[str], float]:
    """Return what lets a system do a piece of work in a database, and tells how long it took."""

    def act(url: str) -> float:
        span: Span = call(asked, work, Job(url, size))
        return span.seconds

    return act


def put_together(found: Sequence[Found]) -> Report:
    """Return the report of what was found on each kind of database."""
    first, *more = [bar for each in found for bar in each.bars]
    return Report(
        tuple(figure for each in found for figure in each.figures),
        first,
        tuple(more),
        tuple(measured for each in found for measured in each.measured),
    )
