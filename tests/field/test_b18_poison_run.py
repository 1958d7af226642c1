"""B18: a run that kills its worker at every start, or that nobody can read, stops no other run.

Run as a program, this file is a supervisor: it starts a worker, and another one whenever that has ended.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Effect,
    Finish,
    Notice,
    Runner,
    RunStore,
    ScriptedDecider,
    Status,
    ToolContext,
    Worker,
    tool,
)
from agent_es.errors import RunUnreadable
from agent_es.tools import Retry

LIMIT = 3
EXIT = 137
LEASE = 0.4
RUNS = ("run-1", "run-2", "run-3")
POISON = "run-2"


class World:
    """What outlives every worker: who did what, and what becomes of the starts of the bad run."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'runs.db'}"
        self.folder = folder
        self._notes = folder / "world"
        self._notes.touch()

    def note(self, what: str, value: Any = None) -> None:
        with self._notes.open("a") as notes:
            notes.write(json.dumps([what, os.getpid(), value]) + "\n")

    def noted(self, what: str) -> list[tuple[int, Any]]:
        """Return process and value of each note of it."""
        notes = [json.loads(line) for line in self._notes.read_text().splitlines()]
        return [(pid, value) for noted, pid, value in notes if noted == what]

    def plan(self, *fates: str, others: float = 0.0) -> None:
        """Say what becomes of the bad run's starts, the last for all that follow, and how long the others take."""
        (self.folder / "plan").write_text(json.dumps([fates, others]))

    def meet_fate(self, run_id: str) -> None:
        fates, others = json.loads((self.folder / "plan").read_text())
        fate = fates[min(len(self.noted(POISON)), len(fates)) - 1] if run_id == POISON else others
        if fate == "exit":
            os._exit(EXIT)
        if fate == "take the others along":
            starts = len(self.noted(POISON))
            with suppress(AssertionError):  # they are done, or not beside it
                wait_for(lambda: min(len(self.noted(it)) for it in RUNS) >= starts, 2.0)
            os._exit(EXIT)
        time.sleep(60 if fate == "hang" else float(fate))


class Job(AgentRun):
    """Looks, then works."""

    decider = ScriptedDecider([CallTool("look"), CallTool("work"), Finish("worked")])

    @tool(effect=Effect.READ)
    def look(self) -> None:
        """Give the run a second event, and a third."""

    @tool(effect=Effect.READ, retry=Retry(max_attempts=20))
    def work(self, ctx: ToolContext[World]) -> None:
        with closing(RunStore(ctx.deps.url)) as store:
            ctx.deps.note(ctx.run_id, store.record(ctx.run_id).claims)
        ctx.deps.meet_fate(ctx.run_id)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def store(world: World) -> Iterator[RunStore]:
    """The store, with three runs."""
    with closing(RunStore(world.url)) as store:
        for run_id in RUNS:
            store.start(Job, run_id=run_id, goal="work")
        yield store


Ends = Callable[[], list[int]]
Supervise = Callable[..., Ends]


@pytest.fixture
def supervise(world: World) -> Iterator[Supervise]:
    """Starts a supervisor; what it returns ends it in good order, and says how its workers ended."""
    started: list[subprocess.Popen[str]] = []

    def start(at_once: int = 1) -> Ends:
        command = [sys.executable, __file__, str(world.folder), str(at_once)]
        supervisor = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(supervisor)

        def end() -> list[int]:
            (world.folder / "enough").touch()
            os.kill(world.noted("up")[-1][0], signal.SIGTERM)
            said, _ = supervisor.communicate(timeout=30)
            return [int(line) for line in said.splitlines()]

        return end

    yield start
    for supervisor in started:
        with supervisor:
            if supervisor.returncode is None:
                os.killpg(supervisor.pid, signal.SIGKILL)


def wait_for(happened: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def is_parked(store: RunStore) -> bool:
    return store.record(POISON).waiting_for == "person"


def with_the_store(store: RunStore) -> None:
    store.requeue(POISON, by="ann")


def with_the_command(store: RunStore) -> None:
    command = [sys.executable, "-m", "agent_es", "requeue", POISON, "--by", "ann", "--store", store.url]
    subprocess.run(command, check=True, capture_output=True, timeout=30)


@pytest.mark.parametrize(
    "requeue", [with_the_store, pytest.param(with_the_command, marks=pytest.mark.crash)], ids=["store", "command"]
)
def test_a_run_that_kills_its_workers_is_parked_with_a_reason_and_can_be_sent_back_to_work(
    requeue: Callable[[RunStore], None], supervise: Supervise, store: RunStore, world: World
) -> None:
    world.plan("exit")
    end = supervise()
    wait_for(lambda: is_parked(store))
    wait_for(lambda: {store.record(run_id).status for run_id in ("run-1", "run-3")} == {Status.DONE})
    parked, starts = store.load(POISON), len(world.noted(POISON))

    world.plan("0")
    requeue(store)
    wait_for(lambda: store.record(POISON).status is Status.DONE)
    ends = end()

    assert (parked.status, parked.steps[1].attempt) == (Status.WAITING, starts)
    assert parked.parked == f"{LIMIT} workers had the run, and none of them got anywhere"
    assert ends == [EXIT] * starts + [0]
    assert len(world.noted(POISON)) == starts + 1
    assert [entry.type for entry in store.journal(POISON)][-4:-2] == ["requeued", "llm_decided"]


@pytest.mark.crash
@pytest.mark.parametrize("deploys", [0, 2], ids=["no deploy", "two deploys in between"])
def test_it_is_parked_after_exactly_as_many_starts_as_the_limit_says_but_for_those_that_ended_in_good_order(
    deploys: int, supervise: Supervise, store: RunStore, world: World
) -> None:
    starts = live_with(deploys, supervise, store, world)

    assert len(starts) - deploys == LIMIT


@pytest.mark.crash
def test_a_deploy_in_between_uses_up_no_claim(supervise: Supervise, store: RunStore, world: World) -> None:
    starts = live_with(2, supervise, store, world)

    _, first_deploy, second_deploy, behind, *_ = starts
    assert first_deploy == second_deploy == behind


def live_with(deploys: int, supervise: Supervise, store: RunStore, world: World) -> list[int]:
    """Let the bad run kill its worker, then so many deploys come while it hangs, then let it kill until it is
    parked; return how many claims without progress it had at each start."""
    world.plan("exit", *["hang"] * deploys, "exit")
    end = supervise()
    for n in range(deploys):
        wait_for(lambda n=n: len(world.noted(POISON)) == n + 2)
        os.kill(world.noted(POISON)[-1][0], signal.SIGTERM)
    wait_for(lambda: is_parked(store))
    ends = end()
    assert ends.count(0) == deploys + 1
    return [claims for _, claims in world.noted(POISON)]


@pytest.mark.crash
def test_runs_that_are_under_way_when_another_kills_their_worker_finish_too(
    supervise: Supervise, store: RunStore, world: World
) -> None:
    """The one that kills does so when the others are under way, each time."""
    world.plan("take the others along", others=1.0)
    end = supervise(at_once=len(RUNS))

    wait_for(lambda: {store.record(run_id).status for run_id in RUNS} <= {Status.DONE, Status.WAITING})

    end()
    assert [store.record(run_id).status for run_id in RUNS] == [Status.DONE, Status.WAITING, Status.DONE]


def test_a_run_with_an_event_that_cannot_be_decoded_is_skipped_and_told_and_the_others_finish(
    supervise: Supervise, store: RunStore, world: World
) -> None:
    world.plan("0")
    version = Runner(store, agents=[Job], deps=world).step(POISON).version
    with store.recorder.datastore.writing() as connection:
        connection.execute(
            "UPDATE agent_es_events SET state = X'7B' WHERE originator_version = 2"  # only this run has a second one
        )

    end = supervise()
    wait_for(lambda: {store.record(run_id).status for run_id in ("run-1", "run-3")} == {Status.DONE})
    wait_for(lambda: bool(world.noted("skipped")))
    ends = end()

    assert ends == [0]
    assert {run_id for _, run_id in world.noted("skipped")} == {POISON}
    record = store.record(POISON)
    assert (record.cursor, record.claims, record.lease_owner) == (version, 0, None)
    (shown,) = [record for record in store.runs() if record.trouble]
    assert (shown.run_id, "cannot be read" in (shown.trouble or "")) == (POISON, True)
    with pytest.raises(RunUnreadable, match=POISON):
        store.load(POISON)
    assert world.noted(POISON) == []


# The supervisor.


def work(world: World, at_once: int) -> None:
    def tell(notice: Notice) -> None:
        if notice.kind == "skipped":
            world.note("skipped", notice.run_id)
        elif notice.kind == "ready":
            world.note("up")

    store = RunStore(world.url)
    Worker(
        store,
        agents=[Job],
        deps=world,
        concurrency=at_once,
        lease=LEASE,
        poll=0.02,
        park_after=LIMIT,
        grace=0.1,
        on_event=tell,
    ).run()


def keep_up(world: World, at_once: int) -> None:
    """Start a worker whenever there is none, and say how each ended."""
    while not (world.folder / "enough").exists():
        worker = os.fork()
        if not worker:
            try:
                work(world, at_once)
            except BaseException:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(worker, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    keep_up(World(Path(sys.argv[1])), int(sys.argv[2]))
