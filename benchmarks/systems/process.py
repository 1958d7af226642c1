"""How a system is asked for a piece of work: a process of its own, which prints one JSON object.

``python -m benchmarks.systems.floor steps --url sqlite:///runs.db --count 100`` does such a piece, in a database that
is there:

* ``steps``: one run of so many steps from its start to its end, in an empty database;
* ``fill``: leaves a run of so many steps behind whose process died when it was to decide on the next one;
* ``resume``: in a copy of what was filled: from opening the store until the next step of that run is recorded;
* ``runs``: so many runs of three steps, or this process's part of them;
* ``about``: what the system does more or less than the others.

Rule 1: a step is a decision (some 200 bytes) and a result (some 300), each durable before what comes after it begins.
Rule 2: nothing is on the clock that a process does once: imports, and but for ``resume`` opening the store.
Rule 3: there is one clock, the machine's, so that what several processes did can be put together.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from subprocess import PIPE, Popen
from time import monotonic
from typing import Any

from agent_es.bench.payloads import args_json, result_json

ROOT = Path(__file__).parents[2]
STUCK = 900.0
"""Seconds after which a process is taken for dead."""
READY = "ready"

RUN_ID = "run-bench"
WARM = "run-warm"
"""A run of ``WARM_STEPS`` steps that is over before the clock starts."""
WARM_STEPS = 5
STEPS = 3
"""Of each of many short runs."""


# What a program needs.


@dataclass(frozen=True, slots=True)
class Span:
    """When a piece of work was done, in seconds on the machine's clock."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked for."""

    url: str
    count: int
    """How many steps, or runs."""
    variant: str = ""
    """Which way of doing it, where a system has several."""
    part: int = 0
    """Which of the processes that share the work this one is."""
    parts: int = 1
    waits: bool = False
    """Whether to say ``ready`` and wait for a line before the clock starts."""

    def mine(self) -> range:
        """Return which of the runs are this process's."""
        return range(self.part, self.count, self.parts)

    def await_start(self) -> None:
        """Wait until the others are ready too, where there are others."""
        if self.waits:
            print(READY, flush=True)
            sys.stdin.readline()


Work = Callable[[Job], Span]


def answer(note: str, works: Mapping[str, Work], words: Sequence[str] | None = None) -> None:
    """Do what the command line asks for, and print what came of it; the whole life of a program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["about", *works])
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--variant", default="")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--waits", action="store_true")
    given = vars(parser.parse_args(words))
    work = given.pop("work")
    if work == "about":
        print(json.dumps({"note": note, "works": [*works]}))
    else:
        tell(works[work](Job(**given)))


def tell(span: Span) -> None:
    """Print what came of it."""
    print(json.dumps({"began": span.began, "ended": span.ended, "seconds": span.seconds}), flush=True)


def die(began: float) -> None:
    """Tell what was done, and end at once, as a process does that is killed: nothing is closed or given back."""
    tell(Span(began, monotonic()))
    os._exit(0)


def args_of(idx: int) -> dict[str, Any]:
    """Return the arguments of a step: some 200 bytes."""
    found: dict[str, Any] = json.loads(args_json(idx))
    return found


def result_of(idx: int) -> dict[str, str]:
    """Return the result of a step: some 300 bytes."""
    found: dict[str, str] = json.loads(result_json(idx))
    return found


# What whoever calls it needs.


@dataclass(frozen=True, slots=True)
class System:
    """One system, as it is called in a table."""

    name: str
    module: str
    variant: str = ""
    packages: tuple[str, ...] = ()
    """What must be installed, beside what ``agent_es`` stands on."""

    @property
    def is_installed(self) -> bool:
        """Whether its packages are there."""
        with suppress(PackageNotFoundError):
            return all(distribution(package) for package in self.packages)
        return False


OURS, FLOOR, STOCK, DBOS, LANGGRAPH, PYDANTIC_AI = (
    *("agent_es", "floor", "eventsourcing", "dbos", "langgraph", "pydantic_ai"),
)
NAMES = (OURS, FLOOR, STOCK, DBOS, LANGGRAPH, PYDANTIC_AI)
PACKAGES: Mapping[str, tuple[str, ...]] = {
    DBOS: ("dbos",),
    LANGGRAPH: ("langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres"),
    PYDANTIC_AI: ("pydantic-ai-slim", "dbos"),
}
ALWAYS = (OURS, FLOOR)
"""What takes part whatever is chosen: bars are ratios of these."""


class Failure(Exception):
    """A system did not do its work."""


def system(name: str, variant: str = "") -> System:
    """Return a system, or a variant of it.

    >>> system("langgraph", "delta").name
    'langgraph, delta'
    """
    return System(f"{name}, {variant}" if variant else name, name, variant, PACKAGES.get(name, ()))


def chosen(names: Sequence[str] = ()) -> list[str]:
    """Return which systems take part: those that were named, or all, as far as they are installed."""
    wanted = [name for name in NAMES if not names or name in (*names, *ALWAYS)]
    return [name for name in wanted if system(name).is_installed]


def missing(names: Sequence[str] = ()) -> list[str]:
    """Return which systems were wanted and are not installed."""
    return [name for name in names or NAMES if not system(name).is_installed]


def call(asked: System, work: str, job: Job) -> Span:
    """Let a system do a piece of work in a fresh process; raise ``Failure``."""
    (span,) = call_all(asked, work, [job])
    return span


def share(asked: System, work: str, job: Job, parts: int) -> Span:
    """Let some processes of a system share a piece of work; return when the first began and the last ended."""
    jobs = [Job(job.url, job.count, asked.variant, part, parts, waits=True) for part in range(parts)]
    spans = call_all(asked, work, jobs)
    return Span(min(span.began for span in spans), max(span.ended for span in spans))


def call_all(asked: System, work: str, jobs: Sequence[Job]) -> list[Span]:
    """Let a process do each job; those that wait start together, when all are ready."""
    processes = [start(asked, work, job) for job in jobs]
    try:
        for process, job in zip(processes, jobs, strict=True):
            if job.waits and pipe(process.stdout).readline().strip() != READY:
                read(asked, work, process)
        for process, job in zip(processes, jobs, strict=True):
            if job.waits:
                pipe(process.stdin).write("go\n")
                pipe(process.stdin).flush()
        told = [read(asked, work, process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [Span(it["began"], it["ended"]) for it in told]


@cache
def about(name: str) -> str:
    """Return what a system does more or less than the others, as its program says."""
    asked = system(name)
    note: str = read(asked, "about", start(asked, "about", Job("", 0)))["note"]
    return note


def start(asked: System, work: str, job: Job) -> "Popen[str]":
    """Start a program."""
    words = [sys.executable, "-m", f"benchmarks.systems.{asked.module}", work, *words_of(job, asked.variant)]
    return Popen(words, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env=environment())


def words_of(job: Job, variant: str) -> Iterator[str]:
    """Yield a job as a command line has it."""
    given = {"url": job.url, "count": job.count, "variant": variant, "part": job.part, "parts": job.parts}
    for name, value in given.items():
        yield from (f"--{name}", str(value))
    if job.waits:
        yield "--waits"


def environment() -> dict[str, str]:
    """Return the environment of a program: it finds this checkout first, and tells nobody of itself."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "LANGSMITH_TRACING": "false"}


def read(asked: System, work: str, process: "Popen[str]") -> dict[str, Any]:
    """Return what a program printed; raise ``Failure`` with what it said of its trouble."""
    try:
        out, err = process.communicate(timeout=STUCK)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"\nit took more than {STUCK:g} s"
    try:
        found: dict[str, Any] = json.loads(out)
    except json.JSONDecodeError:
        raise Failure(f"{asked.name} failed at {work} ({process.returncode}): {(err or out)[-2_000:]}") from None
    return found


def pipe(stream: Any) -> Any:
    """Return a stream that was asked for as a pipe."""
    assert stream is not None
    return stream
