"""Several processes that append to one SQLite file in tight loops, and whether each gets its share.

SQLite's own busy handler lets some wait for seconds.  A share is what the unluckiest got of what the luckiest got.
"""

import multiprocessing
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter

from agent_es.bench.journals import begin, go_on
from agent_es.bench.measure import Bar, Figure, Report, Show
from agent_es.bench.payloads import url_of
from agent_es.store import RunStore

WRITERS = 8
AT_LEAST = 0.5
STUCK = 120.0
"""Seconds after which a process that never came is taken for dead."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How many rounds, and how many seconds each."""

    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Turn:
    """What one writer did in one round; seconds."""

    writer: int
    appends: int
    slowest: float


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return how evenly the writers got to append."""
    pace = Pace(5, 0.5) if quick else Pace(5, 3.0)
    url = url_of(folder / "writers.db")
    store = RunStore(url)  # the tables are there before the writers come
    spawning = multiprocessing.get_context("spawn")
    barrier = spawning.Barrier(WRITERS + 1)
    turns: Queue[Turn] = spawning.Queue()
    writers = [
        spawning.Process(target=write, args=(url, writer, pace, barrier, turns), daemon=True)
        for writer in range(WRITERS)
    ]
    for process in writers:
        process.start()
    played = [play(barrier, turns) for _ in show(range(pace.rounds), f"writers, {pace.seconds:g} s a round")]
    for process in writers:
        process.join(STUCK)
        assert process.exitcode == 0
    appended = [sum(turns[writer].appends for turns in played) for writer in range(WRITERS)]
    assert [store.load(name_of(writer)).version - 1 for writer in range(WRITERS)] == appended
    return report(played, appended, pace)


def play(barrier: Barrier, turns: "Queue[Turn]") -> list[Turn]:
    """Let every writer go for one round; return what each did."""
    barrier.wait(STUCK)
    return sorted((turns.get(timeout=STUCK) for _ in range(WRITERS)), key=lambda turn: turn.writer)


def report(played: list[list[Turn]], appended: list[int], pace: Pace) -> Report:
    """Return the figures of all rounds."""
    shares = [min(counts) / max(counts) for counts in ([turn.appends for turn in turns] for turns in played)]
    return Report(
        (
            *(Figure(f"writer {writer}, all rounds", count, "appends") for writer, count in enumerate(appended)),
            Figure("all writers", sum(appended) / (pace.seconds * pace.rounds), "appends/s"),
            Figure("slowest append", max(turn.slowest for turns in played for turn in turns) * 1e3, "ms"),
            Figure(
                "slowest append of a round, median", median(max(t.slowest for t in p) for p in played) * 1e3, "ms"
            ),
            Figure("least / most, worst round", min(shares), "x"),
        ),
        Bar("least / most appends of a round", median(shares), "at least", AT_LEAST),
    )


def write(url: str, writer: int, pace: Pace, barrier: Barrier, turns: "Queue[Turn]") -> None:
    """Append to a run of one's own for some seconds, in each round; a process's whole life."""
    store = RunStore(url)
    run = begin(store, name_of(writer))
    for _ in range(pace.rounds):
        barrier.wait(STUCK)
        until = monotonic() + pace.seconds
        appends, slowest = 0, 0.0
        while monotonic() < until:
            go_on(run)
            began = perf_counter()
            store.save(run)
            slowest = max(slowest, perf_counter() - began)
            appends += 1
        turns.put(Turn(writer, appends, slowest))


def name_of(writer: int) -> str:
    """Return the run that a writer appends to."""
    return f"run-writer-{writer}"
