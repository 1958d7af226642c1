"""What a week of idle costs: runs that sleep, a worker that has nothing to do, and how soon both go on.

Rule 1: what is compared takes turns, or stands side by side: a database for each number of sleepers.
Rule 2: the worker is ``agent-es worker``, a process of its own that knows nothing of this; whoever wakes a run is
another one.
Rule 3: there is one clock, the machine's: a body notes when it starts, and its journal says when it was due.
Rule 4: what is claimed goes on to its end before the next claim, as it would: a run that is due stays so only once.
"""

import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import accumulate
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from pathlib import Path
from random import Random
from statistics import median, quantiles
from subprocess import Popen
from time import perf_counter
from typing import Literal, NamedTuple

from agent_es import Notice, Runner, RunStore, Status
from agent_es.bench.journals import BATCH
from agent_es.bench.measure import Bar, Figure, Measured, Report, Samples, Show, Side, alternate
from agent_es.bench.payloads import url_of
from agent_es.events import LlmDecided, RunStarted, ToolResult
from agent_es.journal import JournalEntry
from agent_es.notices import OnEvent
from agent_es.owners import Lease, Owner
from agent_es.store.leases import Leases
from agent_es.store.tables import runs
from agent_es.worker import Worker
from benchmarks.databases import STUCK, connect, serving
from benchmarks.sleepers import MODEL, SIGNAL, WEEK, IdleRun, Sleepers

AGENTS = [IdleRun.agent_name]
HOUR = 3600.0
ROOT = Path(__file__).parents[1]
CREW = 2
"""Worker processes that drain what is due at once."""
GAP = 0.05, 0.15
"""Seconds between two that are woken: drawn, so that none keeps step with what looks every so often."""
LEAD = 1.5
"""Seconds before the first of them is due: it is known by then that it will be."""
HELD = 30.0
"""Seconds of a lease."""

CLAIM, LOOK, EMPTY = "claim of a due run", "look, nothing due", "claim, nothing due"
OTHER = "look, nothing due, for another agent"
COMMIT = "one UPDATE by its key, and the commit"

CLAIM_AT_MOST = 1.0
"""Milliseconds."""
GROWTH_AT_MOST = 2.0
"""Times: what grew with the sleepers would grow by a thousand."""
WAKE_AT_MOST = 50.0
"""Milliseconds."""
MORE_AT_MOST = 10.0
"""Per cent."""
FRESH = 20
"""After each such part of what is due at once, a new run is started, until half is done."""
BEGINS_AT_MOST = 1.0
"""Seconds."""
FAIR = 0.5
"""The least part of the luckiest worker's claims that the unluckiest must have."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    sizes: Sequence[int] = (100, 1_000, 10_000, 100_000)
    """How many runs sleep."""
    rounds: int = 9
    claims: int = 10
    """In a round, of each kind and on each database."""
    idle: int = 20
    """Seconds for which workers have nothing to do."""
    woken: int = 60
    """Runs that are woken by the clock, and as many by a signal."""
    due: int = 10_000
    """Runs that are due at once."""


FULL, QUICK = Scale(), Scale((100, 1_000), rounds=2, claims=5, idle=2, woken=10, due=400)


class Found:
    """What was found on one database."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.figures: list[Figure] = []
        self.bars: list[Bar] = []
        self.measured: list[Measured] = []

    def note(self, name: str, value: float, unit: str) -> None:
        """Keep a figure."""
        self.figures.append(Figure(f"{self.database}, {name}", value, unit))

    def judge(self, name: str, value: float, wanted: Literal["at most", "at least"], limit: float) -> None:
        """Keep a figure that has a bar."""
        self.bars.append(Bar(f"{self.database}, {name}", value, wanted, limit))


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return what idling costs, and how soon it ends, on each database."""
    scale = QUICK if quick else FULL
    on_sqlite = spend("sqlite", lambda name: url_of(folder / f"{name}.db"), scale, show)
    with serving(folder / "postgres") as url:
        on_postgres = spend("postgres", lambda name: new_database(url, name), scale, show)
    first, *more = on_sqlite.bars + on_postgres.bars
    measured = (*on_sqlite.measured, *on_postgres.measured)
    return Report((*on_sqlite.figures, *on_postgres.figures), first, tuple(more), measured)


def new_database(url: str, name: str) -> str:
    """Make a database on the server: what listens on one hears nothing of another.  Return its URL."""
    connect(url).execute(f"CREATE DATABASE {name}")
    return url.replace("@/postgres?", f"@/{name}?")


def spend(database: str, new_url: Callable[[str], str], scale: Scale, show: Show) -> Found:
    """Measure on one kind of database."""
    found = Found(database)
    smallest, largest = min(scale.sizes), max(scale.sizes)
    with ExitStack() as opened:
        beds = {size: Sleepers(opened.enter_context(RunStore(new_url(f"idle_{size}")))) for size in scale.sizes}
        began = perf_counter()
        for size, sleepers in beds.items():
            fill(sleepers, size, show(range(0, size, BATCH), f"{database}: {size:,} fall asleep"))
        found.note(f"putting {sum(scale.sizes):,} to sleep", perf_counter() - began, "s")
        look(found, beds, scale, show(range(scale.rounds), f"{database}: looking, claiming"))
        with working(beds[smallest].store.url) as few, working(beds[largest].store.url) as many:
            idle(found, {smallest: few, largest: many}, show(range(scale.idle), f"{database}: idling"))
            ticks = range(scale.woken)
            wake(found, beds[largest], show(ticks, f"{database}: woken by the clock"), scale.woken)
            signal(found, beds[largest], show(ticks, f"{database}: woken by a signal"), scale.woken)
        drain(found, beds[largest], scale, show)
    return found


def fill(sleepers: Sleepers, size: int, firsts: Iterable[int]) -> None:
    """Put so many runs to sleep, which wake one after the other in the course of a week, an hour from now."""
    soonest, apart = time.time() + HOUR, (WEEK.total_seconds() - HOUR) / size
    for first in firsts:
        sleepers.put({f"sleeper-{n}": soonest + n * apart for n in range(first, min(first + BATCH, size))})


# Looking, and claiming.


def look(found: Found, beds: Mapping[int, Sleepers], scale: Scale, rounds: Iterable[int]) -> None:
    """Measure what it costs to find out what is due."""
    smallest, largest = min(beds), max(beds)
    kinds: Mapping[str, Callable[[Sleepers], Side]] = {
        CLAIM: partial(claiming, scale.claims),
        EMPTY: lambda it: repeated(scale.claims, partial(claim, it.store)),
        LOOK: lambda it: repeated(scale.claims, partial(it.store.leases.due_in, AGENTS)),
        OTHER: lambda it: repeated(scale.claims, partial(it.store.leases.due_in, ["OtherRun"])),
    }
    sides = {among(kind, size): side(beds[size]) for kind, side in kinds.items() for size in beds}
    with beds[largest].store.recorder.datastore.apart() as connection:
        grow = f"UPDATE {runs.name} SET lease_token = lease_token + 1 WHERE run_id = '{MODEL}'"  # noqa: S608  # our own
        sides[COMMIT] = repeated(scale.claims, partial(connection.execute, grow))
        samples = alternate(sides, rounds)
    for side in sides:
        found.note(side, millis(samples, side), "ms")
    for size in beds:
        claims = [second * 1e3 for second in samples.of(among(CLAIM, size))]
        found.measured.append(Measured.of("agent_es", found.database, size, claims, "ms"))
    due = among(CLAIM, largest)
    found.judge(f"{due}, ms", millis(samples, due), "at most", CLAIM_AT_MOST)
    beyond = median(samples.differences(due, COMMIT)) * 1e3
    found.judge(f"{due}, beyond {COMMIT}, ms", beyond, "at most", CLAIM_AT_MOST)
    for kind in kinds:
        growth = samples.ratio(among(kind, largest), among(kind, smallest))
        found.judge(f"{kind}, {largest:,} asleep / {smallest:,}", growth, "at most", GROWTH_AT_MOST)


def among(kind: str, size: int) -> str:
    """Return how a side is called that does something beside so many sleepers."""
    return f"{kind}, {size:,} asleep"


def millis(samples: Samples, side: str) -> float:
    """Return the median of the rounds, in milliseconds."""
    return samples.micros(side) / 1e3


def claim(store: RunStore) -> Lease | None:
    """Claim what is due."""
    return store.leases.claim(AGENTS, Owner.here(), HELD)


def claiming(times: int, sleepers: Sleepers) -> Side:
    """Return the side that claims what is due, which goes on to its end off the clock."""
    store, runner = sleepers.store, Runner(sleepers.store)

    def side() -> float:
        first, long_ago = store.count(), time.time() - HOUR
        sleepers.put({f"due-{n}": long_ago + n - first for n in range(first, first + times)})
        seconds = []
        for n in range(first, first + times):
            began = perf_counter()
            lease = claim(store)
            seconds.append(perf_counter() - began)
            assert lease is not None
            assert lease.run_id == f"due-{n}", "what is due longest comes first"
            store.leases.release(lease)
            assert runner.resume(lease.run_id).status is Status.DONE
        return median(seconds)

    return side


def repeated(times: int, act: Callable[[], object]) -> Side:
    """Return the side that does something so many times."""

    def side() -> float:
        seconds = []
        for _ in range(times):
            began = perf_counter()
            act()
            seconds.append(perf_counter() - began)
        return median(seconds)

    return side


# A worker that has nothing to do.


class Footprint(NamedTuple):
    """What a process takes."""

    mebibytes: float
    """Of memory, resident."""
    threads: int
    seconds: float
    """Of the processor, since it began."""


def footprint(pid: int) -> Footprint:
    """Return what a process takes now, as the system tells it."""
    told = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    behind_the_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(behind_the_name[11]) + int(behind_the_name[12])  # the user's and the system's
    return Footprint(int(told["VmRSS"].split()[0]) / 1024, int(told["Threads"]), ticks / os.sysconf("SC_CLK_TCK"))


@contextmanager
def working(url: str) -> Iterator[int]:
    """Let ``agent-es worker`` run meanwhile; lend its number."""
    module, name = IdleRun.__module__, IdleRun.__name__
    words = [sys.executable, "-m", "agent_es", "worker", f"{module}:{name}", "--store", url]
    process = Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
        assert process.poll() is None, "the worker ended by itself"
        process.terminate()
        assert process.wait(STUCK) == 0
    finally:
        process.kill()
        process.wait()


def idle(found: Found, workers: Mapping[int, int], ticks: Iterable[int]) -> None:
    """Measure what workers take that have nothing to do, side by side: each beside so many that sleep."""
    for pid in workers.values():
        await_loop(pid)
    began, before = time.monotonic(), {size: footprint(pid).seconds for size, pid in workers.items()}
    for _ in ticks:
        time.sleep(1.0)
    minutes, after = (time.monotonic() - began) / 60, {size: footprint(pid) for size, pid in workers.items()}
    for size, took in after.items():
        found.note(f"idle worker, {size:,} asleep, resident memory", took.mebibytes, "MiB")
        found.note(f"idle worker, {size:,} asleep, threads", took.threads, "")
        found.note(f"idle worker, {size:,} asleep, processor", (took.seconds - before[size]) / minutes, "s/min")
    few, many = after[min(after)], after[max(after)]
    more = f"{max(after):,} asleep against {min(after):,}, % more"
    found.judge(f"resident memory, {more}", (many.mebibytes / few.mebibytes - 1) * 100, "at most", MORE_AT_MOST)
    found.judge(f"threads, {more}", (many.threads / few.threads - 1) * 100, "at most", MORE_AT_MOST)


def await_loop(pid: int) -> None:
    """Wait until a worker listens to the bell: a thread of its own, which is there when its loop begins."""
    until = time.monotonic() + STUCK
    while footprint(pid).threads == 1:
        assert time.monotonic() < until, "the worker never began"
        time.sleep(0.1)
    time.sleep(1.0)  # until it has looked for the first time, and rests


# Going on.


def wake(found: Found, sleepers: Sleepers, ticks: Iterable[int], count: int) -> None:
    """Measure how long after its time a run goes on."""
    store, names = sleepers.store, [f"clock-{n}" for n in range(count)]
    starts = time.time() + LEAD
    due = dict(zip(names, (starts + after for after in accumulate(gaps(count))), strict=True))
    sleepers.put(due)
    position = store.recorder.settled()
    for _, name in zip(ticks, names, strict=True):
        await_ends(store, [name])
    tell(found, "due by the clock to its body", noted(store.feed(after=position)), due)


def signal(found: Found, sleepers: Sleepers, ticks: Iterable[int], count: int) -> None:
    """Measure how long after its signal a run goes on."""
    store, names = sleepers.store, [f"signal-{n}" for n in range(count)]
    called: dict[str, float] = {}
    returned: dict[str, float] = {}
    sleepers.put(dict.fromkeys(names, time.time() + HOUR))
    position = store.recorder.settled()
    for _, name, gap in zip(ticks, names, gaps(count), strict=True):
        time.sleep(gap)
        called[name] = time.time()
        store.signal(name, SIGNAL)
        returned[name] = time.time()
    await_ends(store, names)
    starts = noted(store.feed(after=position))
    tell(found, "signal called to its body", starts, called)
    tell(found, "signal returned to its body", starts, returned)


def gaps(count: int) -> list[float]:
    """Return the seconds between those that are woken."""
    drawn = Random(0)  # noqa: S311  # chance, and no secret
    return [drawn.uniform(*GAP) for _ in range(count)]


def await_ends(store: RunStore, names: Iterable[str]) -> None:
    """Wait until these runs are done."""
    until = time.monotonic() + STUCK
    for name in names:
        while store.record(name).status is not Status.DONE:
            assert time.monotonic() < until, f"{name} is {store.record(name).status}"
            time.sleep(0.02)


def noted(entries: Iterable[JournalEntry]) -> Mapping[str, list[float]]:
    """Return when the bodies of each run started, as the journals say."""
    starts: dict[str, list[float]] = {}
    for entry in entries:
        if isinstance(entry.event, ToolResult):
            starts.setdefault(entry.run_id, []).append(entry.data["result"])
    return starts


def tell(found: Found, what: str, starts: Mapping[str, list[float]], since: Mapping[str, float]) -> None:
    """Tell how long after a moment the body of each run started."""
    millis = [(starts[name][0] - moment) * 1e3 for name, moment in since.items()]
    found.note(f"{what}, 95th percentile", quantiles(millis, n=20)[-1], "ms")
    found.judge(f"{what}, median, ms", median(millis), "at most", WAKE_AT_MOST)


# Many at once.


class TimedLeases(Leases):
    """Leases that remember how long each claim took."""

    seconds: list[float]
    """Of those that got a run."""

    def __init__(self, store: RunStore) -> None:
        super().__init__(store.recorder.datastore)
        self.seconds = []

    def claim(self, agents: Sequence[str], owner: Owner, seconds: float) -> Lease | None:
        """Claim, and look at the time."""
        began = perf_counter()
        lease = super().claim(agents, owner, seconds)
        if lease is not None:
            self.seconds.append(perf_counter() - began)
        return lease


@dataclass(frozen=True, slots=True)
class Shift:
    """What one worker did."""

    began: float
    ended: float
    claims: Sequence[float]
    """Seconds that each took."""


def drain(found: Found, sleepers: Sleepers, scale: Scale, show: Show) -> None:
    """Let two workers go on with many runs that were all due while nobody worked."""
    long_ago = time.time() - HOUR
    due = {f"late-{n}": long_ago + n / scale.due for n in range(scale.due)}
    store = sleepers.store
    sleepers.put(due)
    position = store.recorder.settled()
    spawning = multiprocessing.get_context("spawn")
    barrier, shifts, awake = spawning.Barrier(CREW), spawning.Queue(), spawning.Value("i", 0)
    crew = [spawning.Process(target=work, args=(store.url, barrier, shifts, awake), daemon=True) for _ in range(CREW)]
    for process in crew:
        process.start()
    for n in show(range(scale.due), f"{found.database}: {scale.due:,} were due at once"):
        until = time.monotonic() + STUCK
        while awake.value <= n:
            assert time.monotonic() < until, f"{awake.value} of {scale.due} runs went on"
            assert all(process.exitcode in (None, 0) for process in crew), "a worker died"
            time.sleep(0.1)
        if n % (scale.due // FRESH) == 0 and n < scale.due / 2:
            store.start(IdleRun, run_id=f"fresh-{n}", goal="Sleep for a week")
    did: list[Shift] = [shifts.get(timeout=STUCK) for _ in crew]
    for process in crew:
        process.join(STUCK)
        assert process.exitcode == 0
    seconds = max(it.ended for it in did) - min(it.began for it in did)
    entries = [*store.feed(after=position)]
    once, again = went_on(noted(entries), due)
    waits = begun(entry for entry in entries if entry.run_id.startswith("fresh-"))
    claims = sorted(len(it.claims) for it in did)
    took = sorted(second * 1e3 for it in did for second in it.claims)
    found.note(f"{scale.due:,} due at once, {CREW} workers", scale.due / seconds, "runs/s")
    found.note("a claim meanwhile, median", median(took), "ms")
    found.note("the longest claim meanwhile", took[-1], "ms")
    for number, count in enumerate(claims, start=1):
        found.note(f"claims of worker {number}", count, "")
    found.judge("claims, unluckiest worker / luckiest", claims[0] / claims[-1], "at least", FAIR)
    found.judge("a run that is new meanwhile begins, the latest, s", max(waits), "at most", BEGINS_AT_MOST)
    found.judge(f"of {scale.due:,} due at once, went on once", once, "at least", scale.due)
    found.judge("went on again", again, "at most", 0)


def went_on(starts: Mapping[str, Sequence[float]], due: Iterable[str]) -> tuple[int, int]:
    """Return how many of the runs went on once, and how many did more than once."""
    times = Counter(min(len(starts.get(name, ())), 2) for name in due)
    return times[1], times[2]


def begun(entries: Iterable[JournalEntry]) -> Sequence[float]:
    """Return how many seconds each run waited for its first decision."""
    started: dict[str, datetime] = {}
    waits: list[float] = []
    for entry in entries:
        if isinstance(entry.event, RunStarted):
            started[entry.run_id] = entry.event.timestamp
        elif isinstance(entry.event, LlmDecided):
            waits.append((entry.event.timestamp - started[entry.run_id]).total_seconds())
    assert len(waits) == len(started)
    return waits


def work(url: str, barrier: Barrier, shifts: "Queue[Shift]", awake: "Synchronized[int]") -> None:
    """Move what is due; a process's whole life."""
    with RunStore(url) as store:
        store.leases = leases = TimedLeases(store)
        worker = Worker(store, agents=[IdleRun], on_event=counting(awake))
        barrier.wait(STUCK)
        began = time.monotonic()
        worker.run(until_idle=True)
        shifts.put(Shift(began, time.monotonic(), leases.seconds))


def counting(awake: "Synchronized[int]") -> OnEvent:
    """Return what counts the bodies that have returned: one of each run."""

    def count(notice: Notice) -> None:
        if notice.kind == "completed":
            with awake.get_lock():
                awake.value += 1

    return count
