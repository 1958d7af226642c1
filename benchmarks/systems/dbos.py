"""DBOS: a workflow that calls two steps for each of ours, ``decide`` and ``look``, as its documentation has it.

The variant ``threads`` runs many short workflows from eight threads.
"""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

from dbos import DBOS, DBOSConfig, SetWorkflowID

import benchmarks.systems.dialects  # noqa: F401
from benchmarks.databases import dsn_of, is_sqlite
from benchmarks.systems.process import (
    RUN_ID,
    STEPS,
    STUCK,
    WARM,
    WARM_STEPS,
    Job,
    Span,
    Work,
    answer,
    args_of,
    die,
    result_of,
    tell,
)

NOTE = (
    "A step is two of its steps.  Around each it reads what was recorded and whether the workflow is cancelled, and "
    "commits a row; it keeps status, recovery and queues.  Its file of SQLite is switched to WAL beforehand; "
    "synchronous stays at its default, FULL."
)
THREADS = "threads"
AT_ONCE = 8


class Goal:
    """How far workflows go in this process, and what is done there."""

    count = 0
    then: Callable[[], object] = staticmethod(lambda: None)


@DBOS.step()
def decide(idx: int) -> dict[str, Any]:
    """Return the decision of a step."""
    return {"tool": "search_policy", "args": args_of(idx)}


@DBOS.step()
def look(idx: int) -> dict[str, str]:
    """Return the result of a step."""
    return result_of(idx)


@DBOS.workflow()
def agent() -> int:
    """Look so many times."""
    seen = [(decide(idx), look(idx)) for idx in range(Goal.count)]
    Goal.then()
    return len(seen)


def launch(job: Job) -> None:
    """Start DBOS in this process: it recovers what a dead one of the same name left."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": job.url if is_sqlite(job.url) else dsn_of(job.url),
        "application_version": "1",
        "executor_id": f"part-{job.part}",
        "log_level": "ERROR",
        "enable_otlp": False,
    }
    DBOS(config=config)
    DBOS.launch()


def run(workflow_id: str) -> None:
    """Run a workflow to its end."""
    with SetWorkflowID(workflow_id):
        assert agent() == Goal.count


def steps(job: Job) -> Span:
    """Run a workflow to its end."""
    launch(job)
    Goal.count = WARM_STEPS
    run(WARM)
    Goal.count = job.count
    began = monotonic()
    run(RUN_ID)
    return Span(began, monotonic())


def fill(job: Job) -> Span:
    """Run a workflow until its process dies."""
    launch(job)
    began = monotonic()
    Goal.count, Goal.then = job.count, lambda: die(began)
    run(RUN_ID)
    raise AssertionError("it outlived itself")


def resume(job: Job) -> Span:
    """Launch DBOS, and wait until the workflow that it recovers has its next step."""
    is_there = threading.Event()
    ended = 0.0

    def note() -> None:
        nonlocal ended
        ended = monotonic()
        is_there.set()

    Goal.count, Goal.then = job.count + 1, note
    began = monotonic()
    launch(job)
    assert is_there.wait(STUCK), "nothing was recovered"
    return Span(began, ended)


def runs(job: Job) -> Span:
    """Run this process's part of the workflows."""
    launch(job)
    Goal.count = WARM_STEPS
    run(f"{WARM}-{job.part}")
    Goal.count = STEPS
    names = [f"run-{n}" for n in job.mine()]
    job.await_start()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        began = monotonic()
        for _ in threads.map(run, names) if job.variant == THREADS else map(run, names):
            pass
        return Span(began, monotonic())


def abruptly(work: Work) -> Work:
    """Return a work after which the process ends at once: DBOS would take its time."""

    def done(job: Job) -> Span:
        tell(work(job))
        sys.stdout.flush()
        os._exit(0)

    return done


WORKS: dict[str, Work] = {
    name: abruptly(work) for name, work in [("steps", steps), ("resume", resume), ("runs", runs)]
}
WORKS["fill"] = fill

if __name__ == "__main__":
    answer(NOTE, WORKS)
