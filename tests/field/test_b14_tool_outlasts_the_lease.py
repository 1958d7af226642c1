"""B14: a tool that outlasts its lease is left to the worker that runs it, and taken over when that worker is dead.

The times are those of the case over 67: a lease of 0.45 s for 30 s, a tool of 3 s for 200 s.

Run as a program, this file is a worker that waits until it is let loose.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Effect,
    Finish,
    Runner,
    RunStore,
    Status,
    ToolContext,
    Worker,
    tool,
)
from agent_es.tools import Retry

LEASE = 0.45
TOOL = 3.0
POLL = 0.02
SLACK = 1.0
"""Seconds that a busy machine may add to a takeover; much less than what the tool still has to run."""


class World:
    """Who did what, and when, whichever process it was."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'runs.db'}"
        self._notes = folder / "world"
        self._notes.touch()

    def note(self, what: str, value: Any = None) -> None:
        with self._notes.open("a") as notes:
            notes.write(json.dumps([what, os.getpid(), time.time(), value]) + "\n")

    def noted(self, what: str) -> list[tuple[int, float, Any]]:
        """Return process, time and value of each note of it."""
        notes = [json.loads(line) for line in self._notes.read_text().splitlines()]
        return [(pid, at, value) for noted, pid, at, value in notes if noted == what]

    def crunch(self, ctx: ToolContext["World"]) -> None:
        """Block this thread, and whatever loop runs in it; the run's token grows with every worker that takes it."""
        self.note("begins", ctx.attempt)
        time.sleep(TOOL)
        with closing(RunStore(self.url)) as store:
            self.note("ends", store.record(ctx.run_id).lease_token)


class Report(AgentRun):
    """Calls the slow tool that its input names."""

    @tool(effect=Effect.AT_MOST_ONCE)
    def crunch(self, ctx: ToolContext[World]) -> None:
        ctx.deps.crunch(ctx)

    @tool(effect=Effect.AT_MOST_ONCE)
    async def crunch_in_the_loop(self, ctx: ToolContext[World]) -> None:
        ctx.deps.crunch(ctx)

    @tool(effect=Effect.READ, retry=Retry(max_attempts=10))
    def crunch_again(self, ctx: ToolContext[World]) -> None:
        ctx.deps.crunch(ctx)

    @tool(effect=Effect.IDEMPOTENT, retry=Retry(max_attempts=3))
    def crunch_thrice(self, ctx: ToolContext[World]) -> None:
        ctx.deps.crunch(ctx)

    @tool(effect=Effect.READ)
    def look(self, ctx: ToolContext[World]) -> None:
        ctx.deps.note("looks")


class CallsItsInput:
    """Calls the tool that the run's input names, then ends."""

    def decide(self, run: Any, _: object, /) -> CallTool | Finish:
        return Finish("done") if run.turns else CallTool(run.input)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def store(world: World) -> Iterator[RunStore]:
    with closing(RunStore(world.url)) as store:
        yield store


Spawn = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Starts a process that waits until it is let loose."""
    with ExitStack() as started:

        def start(who: str) -> "subprocess.Popen[str]":
            command = [sys.executable, __file__, str(tmp_path), who]
            process = started.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, text=True))
            started.callback(process.kill)
            return process

        yield start


def let_loose(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("who", "tool_name"),
    [
        ("worker", "crunch"),
        pytest.param("worker", "crunch_in_the_loop", marks=pytest.mark.crash),
        pytest.param("arun", "crunch_in_the_loop", marks=pytest.mark.crash),
    ],
    ids=["a worker", "a worker, in a loop", "arun, in its loop"],
)
def test_a_tool_that_blocks_for_several_leases_runs_once_and_its_run_is_taken_by_nobody(
    who: str, tool_name: str, spawn: Spawn, store: RunStore, world: World
) -> None:
    store.start(Report, run_id="slow", goal="report", input=tool_name)
    holder, other = spawn(who), spawn("worker")
    let_loose(holder)
    wait_for(lambda: bool(world.noted("begins")))
    let_loose(other)
    store.start(Report, run_id="quick", goal="report", input="look")

    wait_for(lambda: bool(world.noted("ends")))
    wait_for(lambda: store.load("slow").is_over)

    assert [pid for pid, _, _ in world.noted("begins")] == [holder.pid]
    assert [token for _, _, token in world.noted("ends")] == [1]  # the holder's: nobody took it meanwhile
    assert store.load("slow").steps[0].attempt == 1
    ((looked_by, looked_at, _),) = world.noted("looks")
    assert looked_by == other.pid  # it looked for runs all the time
    assert looked_at < world.noted("ends")[0][1]


def test_a_run_whose_worker_is_killed_in_a_slow_tool_is_taken_over_when_its_lease_has_lapsed(
    spawn: Spawn, store: RunStore, world: World
) -> None:
    store.start(Report, run_id="slow", goal="report", input="crunch_again")
    holder, other = spawn("worker"), spawn("worker")
    let_loose(holder)
    wait_for(lambda: bool(world.noted("begins")))
    let_loose(other)
    first_until = store.record("slow").lease_until
    assert first_until is not None
    wait_for(lambda: (store.record("slow").lease_until or first_until) > first_until)  # it was renewed

    holder.kill()
    killed_at = time.time()
    wait_for(lambda: len(world.noted("begins")) == 2)

    _, (pid, began_at, attempt) = world.noted("begins")
    assert (pid, attempt) == (other.pid, 2)
    assert began_at - killed_at < LEASE + POLL + SLACK
    assert world.noted("ends") == []


@pytest.mark.crash
@pytest.mark.parametrize(
    ("tool_name", "limit", "waiting_for", "why"),
    [
        ("crunch_again", 5, "person", "5 workers had the run, and none of them got anywhere"),
        ("crunch_thrice", 3, "doubt", "attempt 3 of 3: the process died in it"),
    ],
    ids=["claims", "attempts"],
)
def test_the_attempts_of_a_run_that_is_always_too_slow_only_rise_and_it_waits_for_a_person_at_its_limit(
    tool_name: str, limit: int, waiting_for: str, why: str, spawn: Spawn, store: RunStore, world: World
) -> None:
    """There are two limits: of claims that got nowhere, which a worker has, and of attempts, which a tool has."""
    store.start(Report, run_id="slow", goal="report", input=tool_name)
    for worker in [spawn("worker") for _ in range(limit + 2)]:
        let_loose(worker)

    attempts: list[int] = []

    def waits_after_kills() -> bool:
        begun = world.noted("begins")
        if len(begun) > len(attempts):
            attempts.append(store.load("slow").steps[0].attempt)
            os.kill(begun[-1][0], signal.SIGKILL)
        return store.load("slow").status is Status.WAITING

    wait_for(waits_after_kills)
    state = store.load("slow")

    assert attempts == [*range(1, limit + 1)]
    assert state.waiting_for == waiting_for
    assert why in (state.parked or state.steps[0].doubt or "")


# The processes.


def work(folder: Path, who: str) -> None:
    world = World(folder)
    store = RunStore(world.url)
    sys.stdin.readline()
    if who == "arun":
        asyncio.run(Runner(store, CallsItsInput(), deps=world, lease=LEASE).arun(Report, run_id="slow"))
    else:
        Worker(
            store, agents=[Report], decider=CallsItsInput(), deps=world, lease=LEASE, poll=POLL, concurrency=1
        ).run()


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2])
