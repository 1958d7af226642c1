"""Loading runs of growing length: an event must cost the same in a long run as in a short one."""

from pathlib import Path
from time import perf_counter

from agent_es.bench.journals import fill, url_of
from agent_es.bench.measure import Bar, Figure, Report, Show, Side, alternate
from agent_es.store import RunStore

AT_MOST = 1.2
ENOUGH = 20_000
"""Events that a round holds at least, so that it can be timed."""


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return what an event costs in runs of three lengths."""
    rounds, sizes = (5, (100, 1_000, 10_000)) if quick else (25, (1_000, 10_000, 100_000))
    store = RunStore(url_of(folder / "growth.db"))
    for size in sizes:
        fill(store, name_of(size), size, show)
    shortest, longest = min(sizes), max(sizes)
    sides = {name_of(size): load(store, size) for size in sizes}
    samples = alternate(sides, show(range(rounds), "load_growth"))
    low, high = samples.spread(name_of(longest), name_of(shortest))
    return Report(
        (
            *(Figure(f"in a run of {size:,}", samples.micros(name_of(size)), "µs/event") for size in sizes),
            Figure("longest / shortest, best round", low, "x"),
            Figure("longest / shortest, worst round", high, "x"),
        ),
        Bar(
            f"an event in a run of {longest:,} / in one of {shortest:,}",
            samples.ratio(name_of(longest), name_of(shortest)),
            "at most",
            AT_MOST,
        ),
    )


def load(store: RunStore, size: int) -> Side:
    """Return the side that loads one run, again and again where it is short."""
    repeats = max(1, ENOUGH // size)

    def side() -> float:
        seconds = 0.0
        for _ in range(repeats):
            began = perf_counter()
            state = store.load(name_of(size))
            seconds += perf_counter() - began
            assert state.version == size
            del state  # off the clock
        return seconds / (repeats * size)

    return side


def name_of(size: int) -> str:
    """Return the run of that length."""
    return f"run-{size}"
