"""How a workload is measured, and what it reports.

Rule 1: a machine is noisy and another machine is faster: only a ratio is judged, of two sides that ran in turns.
Rule 2: the ratio is taken in each round and its median is reported, so that a slow minute slows both sides.
Rule 3: no side collects the garbage that another one left.
Rule 4: a side returns the seconds that one piece of its work took; it prepares and checks off the clock.
"""

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal, Protocol, Self

Side = Callable[[], float]
"""Works for one round; returns seconds per append, or per event."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured, in its unit."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio and the bound that it must keep."""

    name: str
    value: float
    wanted: Literal["at most", "at least"]
    limit: float

    @property
    def is_met(self) -> bool:
        """Whether the ratio keeps its bound."""
        return self.value <= self.limit if self.wanted == "at most" else self.value >= self.limit

    def __str__(self) -> str:
        return f"{self.name} is {self.value:.2f}, wanted {self.wanted} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What one system needed for one size of a workload, over some rounds."""

    system: str
    database: str
    """``sqlite``, ``postgres``, or the empty string where there is none."""
    size: int
    """How many steps, events, sleepers or writers; 0 where the workload has one size."""
    value: float
    """The median of the rounds."""
    low: float
    high: float
    unit: str
    rounds: int

    @classmethod
    def of(cls, system: str, database: str, size: int, values: Sequence[float], unit: str) -> Self:
        """Return what stands for the values of some rounds."""
        return cls(system, database, size, median(values), min(values), max(values), unit, len(values))


@dataclass(frozen=True, slots=True)
class Report:
    """What one workload found."""

    figures: tuple[Figure, ...]
    bar: Bar
    more: tuple[Bar, ...] = ()
    measured: tuple[Measured, ...] = ()
    """What is drawn: one curve, or one bar, for each system and database."""

    @property
    def bars(self) -> tuple[Bar, ...]:
        """Every bar."""
        return self.bar, *self.more

    @property
    def missed(self) -> tuple[Bar, ...]:
        """The bars that are not met."""
        return tuple(bar for bar in self.bars if not bar.is_met)


class Show(Protocol):
    """Goes through some rounds and shows how far it got."""

    def __call__(self, rounds: range, description: str, /) -> Iterable[int]:
        """Yield the rounds."""
        ...


class Measure(Protocol):
    """Runs one workload on files in a folder of its own."""

    def __call__(self, folder: Path, show: Show, *, quick: bool) -> Report:
        """Return what was found."""
        ...


class Samples:
    """What sides that took turns returned, round by round; one that is slow may have left out the last ones."""

    def __init__(self, sides: Iterable[str]) -> None:
        self._seconds: dict[str, list[float]] = {side: [] for side in sides}

    def add(self, side: str, seconds: float) -> None:
        """Keep what a side returned in this round."""
        self._seconds[side].append(seconds)

    @property
    def sides(self) -> Sequence[str]:
        """Which there are."""
        return [*self._seconds]

    def of(self, side: str) -> Sequence[float]:
        """Return what a side returned in each of its rounds."""
        return self._seconds[side]

    def micros(self, side: str) -> float:
        """Return the median of the rounds, in microseconds."""
        return median(self._seconds[side]) * 1e6

    def per_second(self, side: str) -> float:
        """Return how many pieces of work a second that makes."""
        return 1 / median(self._seconds[side])

    def ratio(self, side: str, other: str) -> float:
        """Return the median of the ratios of the rounds that both took part in."""
        return median(self._ratios(side, other))

    def spread(self, side: str, other: str) -> tuple[float, float]:
        """Return the smallest and the largest ratio of a round."""
        ratios = self._ratios(side, other)
        return min(ratios), max(ratios)

    def differences(self, side: str, other: str) -> list[float]:
        """Return the rounds' differences, in seconds."""
        return [a - b for a, b in zip(self._seconds[side], self._seconds[other], strict=False)]

    def _ratios(self, side: str, other: str) -> list[float]:
        return [a / b for a, b in zip(self._seconds[side], self._seconds[other], strict=False)]


def alternate(sides: Mapping[str, Side], rounds: Iterable[int]) -> Samples:
    """Run each side once to warm up, then all of them in turns, every other round backwards.

    A machine that slows down in a round slows its last side most: that way, each side is last as often as first.
    """
    samples = Samples(sides)
    for side in sides.values():
        side()
    for n in rounds:
        for name in reversed([*sides]) if n % 2 else sides:
            gc.collect()
            samples.add(name, sides[name]())
    return samples
