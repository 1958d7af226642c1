"""The event store library as its tutorial has it: an ordinary aggregate, by ``eventsourcing_sqlalchemy``."""

from time import monotonic

import benchmarks.systems.dialects  # noqa: F401
from agent_es.bench.journals import BATCH
from agent_es.bench.payloads import GOAL, TOOL, args_json, result_json
from agent_es.bench.replay import StockRun, StockRuns, stock_application
from benchmarks.systems.process import RUN_ID, STEPS, WARM, WARM_STEPS, Job, Span, Work, answer, die

NOTE = (
    "No rows of runs, no lease, nothing that finds work.  SQLite is in WAL mode and keeps its own default of "
    "synchronous=FULL; on PostgreSQL each insert locks the table and notifies."
)


def move(runs: StockRuns, run: StockRun, idx: int) -> None:
    """Record a step: its decision, then its result."""
    run.decide(idx=idx, turn=idx, tool=TOOL, args=args_json(idx), attempt=1)
    runs.save(run)
    run.end(idx=idx, tool=TOOL, attempt=1, result=result_json(idx))
    runs.save(run)


def run_of(runs: StockRuns, run_id: str, count: int) -> None:
    """Record a run from its start to its end."""
    run = StockRun(run_id, "LookingRun", GOAL)
    runs.save(run)
    for idx in range(count):
        move(runs, run, idx)
    run.finish(answer='"seen"')
    runs.save(run)


def steps(job: Job) -> Span:
    """Record a run, record by record."""
    runs = stock_application(job.url)
    run_of(runs, WARM, WARM_STEPS)
    began = monotonic()
    run_of(runs, RUN_ID, job.count)
    return Span(began, monotonic())


def fill(job: Job) -> Span:
    """Record a run, and die."""
    began = monotonic()
    runs = stock_application(job.url)
    run = StockRun(RUN_ID, "LookingRun", GOAL)
    for idx in range(job.count):
        run.decide(idx=idx, turn=idx, tool=TOOL, args=args_json(idx), attempt=1)
        run.end(idx=idx, tool=TOOL, attempt=1, result=result_json(idx))
        if idx % BATCH == 0:  # one save of some 20,000 events never comes back from PostgreSQL
            runs.save(run)
    runs.save(run)
    die(began)
    raise AssertionError("it outlived itself")


def resume(job: Job) -> Span:
    """Load the aggregate, and record the next step."""
    began = monotonic()
    runs = stock_application(job.url)
    run: StockRun = runs.repository.get(StockRun.create_id(RUN_ID))
    move(runs, run, len(run.results))
    ended = monotonic()
    assert len(run.results) == job.count + 1
    return Span(began, ended)


def runs(job: Job) -> Span:
    """Record this process's part of the runs."""
    app = stock_application(job.url)
    run_of(app, f"{WARM}-{job.part}", WARM_STEPS)
    job.await_start()
    began = monotonic()
    for n in job.mine():
        run_of(app, f"run-{n}", STEPS)
    return Span(began, monotonic())


WORKS: dict[str, Work] = {"steps": steps, "fill": fill, "resume": resume, "runs": runs}

if __name__ == "__main__":
    answer(NOTE, WORKS)
