"""Loading runs of growing length: an event must cost the same in a long run as in a short one."""

from pathlib import Path
from time import perf_counter

from agent_es.store import RunStore
from benchmarks.journals import fill, url_of
from benchmarks.measure import Bar, Figure, Report, Show, Side, alternate

AT_MOST = 1.2


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return what an event costs in runs of three lengths."""
    rounds, sizes = (5, (100, 1_000, 10_000)) if quick else (9, (1_000, 10_000, 100_000))
    store = RunStore(url_of(folder / "growth.db"))
    for size in sizes:
        fill(store, name_of(size), size, show)
    shortest, *_, longest = sizes
    repeats = {size: max(1, longest // size // 5) for size in sizes}  # a short run is over too soon to be timed once
    sides = {name_of(size): load(store, size, repeats[size]) for size in sizes}
    samples = alternate(sides, show(range(rounds), "load_growth"))
    # Rounds are compared per event, and a side's rounds hold another number of events than the other's.
    scale = (shortest * repeats[shortest]) / (longest * repeats[longest])
    low, high = samples.spread(name_of(longest), name_of(shortest))
    return Report(
        (
            *(
                Figure(f"{size:,} events", samples.micros(name_of(size), size * repeats[size]), "µs/event")
                for size in sizes
            ),
            Figure("longest / shortest, best round", low * scale, "x"),
            Figure("longest / shortest, worst round", high * scale, "x"),
        ),
        Bar(
            f"an event of {longest:,} / an event of {shortest:,}",
            samples.ratio(name_of(longest), name_of(shortest)) * scale,
            "at most",
            AT_MOST,
        ),
    )


def load(store: RunStore, size: int, repeats: int) -> Side:
    """Return the side that loads one run some times; what it gave is dropped off the clock."""

    def side() -> float:
        seconds = 0.0
        for _ in range(repeats):
            began = perf_counter()
            state = store.load(name_of(size))
            seconds += perf_counter() - began
            assert state.version == size
            del state
        return seconds

    return side


def name_of(size: int) -> str:
    """Return the run of that length."""
    return f"run-{size}"
