"""B16: a worker whose clock is ten minutes out steals no lease, keeps none, and wakes nothing at a wrong time.

The lease is 0.6 s for the 60 s of the case; the clocks are as wrong as there.  Every expiry is the database's to
judge, whose clock no process sets: what a process gets wrong is its own, and the times of the events that it records.

Run as a program, this file is a worker with a clock of its own, which waits until it is let loose.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest

import agent_es.store.application
import agent_es.store.clocks
import agent_es.store.leases
from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    Runner,
    RunState,
    RunStore,
    Sleep,
    Status,
    ToolContext,
    ToolSpec,
    Worker,
    tool,
)
from agent_es.errors import OutcomeUnknown, RunHeld, StillHeld
from agent_es.owners import Owner
from agent_es.tools import Retry

AHEAD, BEHIND, RIGHT = "10", "-10", "0"
"""Minutes by which a worker's clock is out."""
TELL_THE_TIME = (agent_es.store.application, agent_es.store.clocks, agent_es.store.leases)
"""What of the library knows the machine's own time."""
LEASE = 0.6
POLL = 0.02
SLACK = 1.0
"""Seconds that a busy machine may be late."""


class World:
    """Who did what, and when by a clock that nobody touched."""

    now = staticmethod(time.time)

    def __init__(self, folder: Path) -> None:
        self._notes = folder / "world"
        self._notes.touch()

    def note(self, what: str, value: Any = None) -> None:
        with self._notes.open("a") as notes:
            notes.write(json.dumps([what, os.getpid(), self.now(), value]) + "\n")

    def noted(self, what: str) -> list[tuple[int, float, Any]]:
        """Return process, time and value of each note of it."""
        notes = [json.loads(line) for line in self._notes.read_text().splitlines()]
        return [(pid, at, value) for noted, pid, at, value in notes if noted == what]


class Job(AgentRun):
    """Calls the tool that its input names."""

    @tool(effect=Effect.READ)
    def crunch(self, ctx: ToolContext[World]) -> None:
        """Take three leases; or no time at all, when it is called again."""
        ctx.deps.note("begins", ctx.attempt)
        if ctx.attempt == 1:
            time.sleep(3 * LEASE)
        ctx.deps.note("ends")

    @tool(effect=Effect.READ)
    def crunch_on(self, ctx: ToolContext[World]) -> None:
        """Take three leases at least, and until somebody has looked."""
        ctx.deps.note("begins", ctx.attempt)
        time.sleep(3 * LEASE)
        wait_for(lambda: bool(ctx.deps.noted("looks")))
        ctx.deps.note("ends")

    @tool(effect=Effect.READ)
    def look(self, ctx: ToolContext[World]) -> None:
        ctx.deps.note("looks", ctx.run_id)

    @tool(effect=Effect.READ, retry=Retry(initial=1.2, jitter=0))
    def call_back(self, ctx: ToolContext[World]) -> None:
        """Get no answer, and come again a while later."""
        ctx.deps.note("calls")
        if ctx.attempt == 1:
            raise ConnectionError

    @tool(effect=Effect.AT_MOST_ONCE)
    def send(self) -> None:
        raise OutcomeUnknown("no answer")


class CallsItsInput:
    """Calls the tool that the run's input names, or sleeps a while and then looks; then ends."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        if run.input == "sleep":
            return (Sleep(timedelta(seconds=1.2)), CallTool("look"), Finish("done"))[run.turns]
        return Finish("done") if run.turns else CallTool(run.input)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    with closing(RunStore(url)) as store:
        yield store


@pytest.fixture
def be_ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Sets this process's clock ten minutes ahead."""

    def set_ahead() -> None:
        for module in TELL_THE_TIME:
            monkeypatch.setattr(module, "datetime", clock_out_by(10))

    return set_ahead


Process = subprocess.Popen
Spawn = Callable[[str], "Process[str]"]


@pytest.fixture
def spawn(tmp_path: Path, store: RunStore) -> Iterator[Spawn]:
    """Starts a worker whose clock is so many minutes out."""
    with ExitStack() as started:

        def start(minutes: str) -> "Process[str]":
            command = [sys.executable, __file__, str(tmp_path), store.url, minutes]
            process = started.enter_context(Process(command, stdin=subprocess.PIPE, text=True))
            started.callback(process.kill)
            return process

        yield start


def let_loose(process: "Process[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def wait_for(happened: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


# A lease.


@pytest.mark.crash
def test_a_worker_whose_clock_is_ahead_takes_no_run_from_one_that_holds_it(
    spawn: Spawn, store: RunStore, world: World
) -> None:
    store.start(Job, run_id="r", goal="work", input="crunch_on")
    holder, other = spawn(RIGHT), spawn(AHEAD)
    let_loose(holder)
    wait_for(lambda: bool(world.noted("begins")))

    let_loose(other)
    store.start(Job, run_id="quick", goal="work", input="look")
    wait_for(lambda: store.load("r").is_over)

    ((looked_by, looked_at, _),) = world.noted("looks")
    ((ended_by, ended_at, _),) = world.noted("ends")
    assert (looked_by, ended_by) == (other.pid, holder.pid)
    assert looked_at < ended_at  # it looked for runs all the time
    assert [pid for pid, _, _ in world.noted("begins")] == [holder.pid]
    assert store.load("r").steps[0].attempt == 1


@pytest.mark.crash
def test_what_a_worker_held_whose_clock_was_behind_is_free_when_its_lease_has_lapsed_in_real_time(
    spawn: Spawn, store: RunStore, world: World
) -> None:
    store.start(Job, run_id="r", goal="work", input="crunch")
    holder, other = spawn(BEHIND), spawn(RIGHT)
    let_loose(holder)
    wait_for(lambda: bool(world.noted("begins")))
    let_loose(other)

    holder.kill()
    holder.wait()
    killed_at, until = time.time(), store.record("r").lease_until
    wait_for(lambda: store.load("r").is_over)

    _, (pid, began_at, attempt) = world.noted("begins")
    assert (pid, attempt) == (other.pid, 2)
    assert until is not None
    assert until.timestamp() - killed_at <= LEASE
    assert until.timestamp() - POLL <= began_at < killed_at + LEASE + POLL + SLACK


def test_a_runner_whose_clock_is_ahead_leaves_a_run_to_the_worker_that_holds_it(
    store: RunStore, world: World, be_ahead: Callable[[], None]
) -> None:
    store.start(Job, run_id="r", goal="work", input="look")
    store.leases.take("r", Owner.here("a living worker"), 60.0)
    be_ahead()

    with pytest.raises(RunHeld):
        Runner(store, CallsItsInput(), agents=[Job], deps=world).resume("r")

    assert world.noted("looks") == []


def test_one_whose_clock_is_ahead_settles_no_doubt_while_its_worker_may_still_live(
    store: RunStore, be_ahead: Callable[[], None]
) -> None:
    state = Runner(store, CallsItsInput()).run(Job, run_id="r", goal="work", input="send")
    assert state.waiting_for == "doubt"
    store.leases.take("r", Owner.here("a living worker"), 60.0)
    be_ahead()

    with pytest.raises(StillHeld):
        store.settle("r", 0, "did_not_happen", by="ann")


# A timer that is due.


@pytest.mark.parametrize(
    "clock",
    [
        AHEAD,
        pytest.param(RIGHT, marks=pytest.mark.crash),
        pytest.param(BEHIND, marks=pytest.mark.crash),
    ],
    ids=["ahead", "right", "behind"],
)
def test_a_run_that_waits_for_the_clock_is_woken_at_its_time_whatever_time_its_worker_thinks_it_is(
    clock: str, spawn: Spawn, store: RunStore, world: World
) -> None:
    worker = spawn(clock)
    wait_for(lambda: bool(world.noted("ready")))
    store.start(Job, run_id="quick", goal="work", input="look")
    state = Runner(store, CallsItsInput(), deps=world, max_wait=0).run(
        Job, run_id="r", goal="work", input="call_back"
    )
    assert (state.status, state.waiting_for) == (Status.WAITING, "retry")
    assert state.wake_at is not None

    let_loose(worker)
    wait_for(lambda: store.load("r").is_over, 5.0)

    _, (pid, called_at, _) = world.noted("calls")
    assert pid == worker.pid
    assert world.noted("looks")[0][1] < state.wake_at.timestamp()  # it looked for runs all the time
    assert 0 <= called_at - state.wake_at.timestamp() < POLL + SLACK


@pytest.mark.crash
@pytest.mark.parametrize(
    "clock",
    [
        AHEAD,
        pytest.param(RIGHT, marks=pytest.mark.crash),
        pytest.param(BEHIND, marks=pytest.mark.crash),
    ],
    ids=["ahead", "right", "behind"],
)
def test_a_run_that_sleeps_wakes_at_its_time_whatever_time_its_worker_thinks_it_is(
    clock: str, spawn: Spawn, store: RunStore, world: World
) -> None:
    worker = spawn(clock)
    wait_for(lambda: bool(world.noted("ready")))
    store.start(Job, run_id="r", goal="work", input="sleep")

    let_loose(worker)
    wait_for(lambda: store.record("r").waiting_for == "clock")
    wake_at, asleep_at = store.record("r").wake_at, time.time()
    wait_for(lambda: store.load("r").is_over, 5.0)

    ((pid, looked_at, _),) = world.noted("looks")
    assert pid == worker.pid
    assert wake_at is not None
    assert asleep_at < wake_at.timestamp() < asleep_at + 1.2
    assert 0 <= looked_at - wake_at.timestamp() < POLL + SLACK


def test_a_runner_whose_clock_is_ahead_wakes_no_run_that_sleeps(
    store: RunStore, world: World, be_ahead: Callable[[], None]
) -> None:
    runner = Runner(store, CallsItsInput(), deps=world, max_wait=0)
    runner.run(Job, run_id="r", goal="work", input="sleep")
    be_ahead()

    state = runner.resume("r")

    assert (state.status, state.waiting_for, world.noted("looks")) == (Status.WAITING, "clock", [])


def test_a_runner_whose_clock_is_ahead_wakes_no_run_before_its_time(
    store: RunStore, world: World, be_ahead: Callable[[], None]
) -> None:
    runner = Runner(store, CallsItsInput(), deps=world, max_wait=0)
    runner.run(Job, run_id="r", goal="work", input="call_back")
    be_ahead()

    state = runner.resume("r")

    assert (state.status, len(world.noted("calls"))) == (Status.WAITING, 1)


# The workers.


def clock_out_by(minutes: float) -> type[datetime]:
    """Return what tells the time so many minutes wrong."""
    out = timedelta(minutes=minutes)

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + out

    return Wrong


def work(folder: Path, url: str, minutes: str) -> None:
    for module in TELL_THE_TIME:
        module.datetime = clock_out_by(float(minutes))
    time.time = lambda: World.now() + float(minutes) * 60
    world, store = World(folder), RunStore(url)
    world.note("ready")
    sys.stdin.readline()
    Worker(store, agents=[Job], decider=CallsItsInput(), deps=world, lease=LEASE, poll=POLL, concurrency=1).run()


if __name__ == "__main__":
    work(Path(sys.argv[1]), *sys.argv[2:])
