"""agent_es: a ``Runner`` that drives one run after the other, and for many short runs a ``Worker`` too.

Variants: ``snapshot`` resumes from a snapshot that was taken some steps before the end; ``runner`` drives many short
runs without a worker.
"""

from collections.abc import Callable, Sequence
from time import monotonic

import benchmarks.systems.dialects  # noqa: F401
from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolSpec,
    tool,
)
from agent_es.bench.payloads import GOAL, TOOL
from agent_es.worker import Worker
from benchmarks.systems.process import (
    RUN_ID,
    STEPS,
    WARM,
    WARM_STEPS,
    Job,
    Span,
    Work,
    answer,
    args_of,
    die,
    result_of,
)

NOTE = (
    "Beside the two records of a step it commits the start of a run, its lease (taken, given back) and its answer, "
    "and keeps a row that says where each run is.  A Worker claims a run anew for each step, up to eight at once."
)
SNAPSHOT, RUNNER = "snapshot", "runner"
BEHIND = 5
"""How many steps before the end a snapshot is taken."""


class Looks:
    """Looks so many times; then says so, or does what it is told instead."""

    def __init__(self, count: int, at: Callable[[int], object] | None = None) -> None:
        self.count = count
        self.at = at

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:  # noqa: ARG002  # it knows them
        """Return what the run's turn is."""
        if self.at is not None:
            self.at(run.turns)
        return CallTool(TOOL, args_of(run.turns)) if run.turns < self.count else Finish("seen")


class LookingRun(AgentRun):
    """Looks things up."""

    @tool(effect=Effect.READ)
    def search_policy(self, page: int, query: str, why: str) -> dict[str, str]:  # noqa: ARG002  # a model gives them
        """Return what is found, at once."""
        return result_of(int(query[-6:]))


def reopened(job: Job) -> RunStore:
    """Open the store of a run that is resumed: without snapshots, but for the variant that is about them."""
    return RunStore(job.url, snapshots=job.variant == SNAPSHOT)


def warm(store: RunStore) -> None:
    """Move a run to its end."""
    Runner(store, Looks(WARM_STEPS)).run(LookingRun, run_id=f"{WARM}-{monotonic()}", goal=GOAL)


def steps(job: Job) -> Span:
    """Drive a run to its end."""
    with RunStore(job.url) as store:
        warm(store)
        runner = Runner(store, Looks(job.count))
        began = monotonic()
        done = runner.run(LookingRun, run_id=RUN_ID, goal=GOAL)
        ended = monotonic()
        assert (done.status, len(done.steps)) == (Status.DONE, job.count)
    return Span(began, ended)


def fill(job: Job) -> Span:
    """Drive a run until its process dies."""
    began = monotonic()
    store = reopened(job)

    def at(turn: int) -> None:
        if turn == job.count - BEHIND and job.variant == SNAPSHOT:
            assert store.snapshot(RUN_ID)
        if turn == job.count:
            die(began)

    Runner(store, Looks(job.count + 1, at)).run(LookingRun, run_id=RUN_ID, goal=GOAL)
    raise AssertionError("it outlived itself")


def resume(job: Job) -> Span:
    """Resume the run of a dead process; what comes after its next step is off the clock."""
    ended = 0.0

    def at(turn: int) -> None:
        nonlocal ended
        if turn > job.count:  # what it is asked next shows that the step is recorded
            ended = monotonic()

    decider = Looks(job.count + 1, at)
    began = monotonic()
    with reopened(job) as store:
        done = Runner(store, decider, agents=[LookingRun]).resume(RUN_ID)
    assert (done.status, len(done.steps)) == (Status.DONE, job.count + 1)
    return Span(began, ended)


def runs(job: Job) -> Span:
    """Start this process's part of the runs, and move whatever is due to its end."""
    with RunStore(job.url) as store:
        warm(store)
        decider = Looks(STEPS)
        runner, worker = Runner(store, decider), Worker(store, agents=[LookingRun], decider=decider)
        job.await_start()
        began = monotonic()
        for n in job.mine():
            if job.variant == RUNNER:
                runner.run(LookingRun, run_id=f"run-{n}", goal=GOAL)
            else:
                store.start(LookingRun, run_id=f"run-{n}", goal=GOAL)
        if job.variant != RUNNER:
            worker.run(until_idle=True)
        return Span(began, monotonic())


WORKS: dict[str, Work] = {"steps": steps, "fill": fill, "resume": resume, "runs": runs}

if __name__ == "__main__":
    answer(NOTE, WORKS)
