"""B33: many processes write to one SQLite file, and nothing is lost, done twice, or failed for it.

Run as a program, this file is the processes: one that takes requests and starts runs, and workers that move them.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
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
    tool,
)
from agent_es.worker import Worker

WORKERS = 4
STEPS = 9
EVENTS = 20
"""One that starts the run, two for each step, and one that ends it."""


class World:
    """What the processes did to it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "runs.db"
        self.folder = folder
        self._notes = folder / "world"
        self._notes.touch()

    def note(self, what: str, value: Any) -> None:
        with self._notes.open("a") as notes:
            notes.write(json.dumps([what, value]) + "\n")

    def noted(self, what: str) -> list[Any]:
        """Return the value of each note of it."""
        notes = [json.loads(line) for line in self._notes.read_text().splitlines()]
        return [value for noted, value in notes if noted == what]


class Job(AgentRun):
    """Takes nine steps; the first one of the first run waits for the test."""

    decider = ScriptedDecider([*[CallTool("work")] * STEPS, Finish("worked")])

    @tool(effect=Effect.AT_MOST_ONCE)
    def work(self, ctx: ToolContext[World]) -> None:
        ctx.deps.note("step", [ctx.run_id, ctx.idx])
        if ctx.run_id == "run-0" and ctx.idx == 0:
            wait_for((ctx.deps.folder / "go on").exists)


class Unmoved(AgentRun):
    """Of no worker here."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def store(world: World) -> Iterator[RunStore]:
    with closing(RunStore(f"sqlite:///{world.path}")) as store:
        yield store


@pytest.fixture
def start(world: World) -> Iterator[Callable[[int], None]]:
    """Starts the processes, with so many runs to make."""
    started: list[subprocess.Popen[bytes]] = []

    def start_processes(runs: int) -> None:
        command = [sys.executable, __file__, str(world.folder), str(runs)]
        started.append(subprocess.Popen(command, start_new_session=True))

    yield start_processes
    for process in started:
        with process:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(happened: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def are_done(store: RunStore, runs: int) -> bool:
    return len(store.runs(status=Status.DONE, limit=None)) == runs


def check(store: RunStore, world: World, runs: int) -> None:
    """Nothing was lost, done twice or failed: so say the workers' tallies, the journals, and the world."""
    wait_for(lambda: len(world.noted("worker")) == WORKERS)
    for pid in world.noted("worker"):
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: len(world.noted("tally")) == WORKERS)
    tallies = sum((Counter(tally) for tally in world.noted("tally")), Counter())
    assert tallies == Counter(steps=runs * (STEPS + 1), events=runs * (2 * STEPS + 1))
    assert world.noted("trouble") == []
    assert sorted(world.noted("step")) == sorted([f"run-{n}", idx] for n in range(runs) for idx in range(STEPS))
    for n in range(runs):
        journal = store.journal(f"run-{n}")
        assert [entry.seq for entry in journal] == [*range(EVENTS)]
        assert {entry.data["attempt"] for entry in journal if entry.type == "llm_decided"} == {1}


@pytest.mark.parametrize("runs", [12, pytest.param(200, marks=pytest.mark.crash)])
def test_a_process_that_starts_runs_and_four_workers_share_a_file_that_somebody_reads_all_the_time(
    runs: int, start: Callable[[int], None], store: RunStore, world: World
) -> None:
    (world.folder / "go on").touch()
    store.start(Unmoved, run_id="first", goal="be read")
    with closing(sqlite3.connect(world.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reading = reader.execute("SELECT goal FROM agent_es_runs")

        start(runs)
        wait_for(lambda: are_done(store, runs), 120)

        assert reading.fetchall() == [("be read",)]
    check(store, world, runs)


@pytest.mark.crash
def test_who_finds_the_file_locked_for_long_waits_and_no_body_runs_again(
    start: Callable[[int], None], store: RunStore, world: World
) -> None:
    """The lock is held for 2 s instead of 7 s.  One body ends meanwhile, so that its result finds the lock."""
    start(5)
    wait_for(lambda: ["run-0", 0] in world.noted("step"))

    with write_lock(world):
        (world.folder / "go on").touch()
        locked_until = time.monotonic() + 2.0
        wait_for(lambda: time.monotonic() > locked_until)
        assert store.load("run-0").steps[0].status == "started"
    wait_for(lambda: are_done(store, 5))

    check(store, world, 5)


@contextmanager
def write_lock(world: World) -> Iterator[None]:
    with closing(sqlite3.connect(world.path, isolation_level=None, timeout=10)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        yield
        writer.execute("ROLLBACK")


def test_nobody_holds_a_transaction_while_a_decider_or_a_tool_is_at_work(store: RunStore, world: World) -> None:
    written: list[str] = []

    def write(what: str) -> None:
        with closing(sqlite3.connect(world.path, isolation_level=None, timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        written.append(what)

    class Writing(AgentRun):
        @tool(effect=Effect.IDEMPOTENT)
        def work(self) -> None:
            write("tool")

    class Plan:
        def decide(self, run: Any, tools: Any, /) -> CallTool | Finish:
            write("decider")
            return Finish("worked") if run.turns else CallTool("work")

    Runner(store, Plan()).run(Writing, run_id="run-1", goal="work")

    assert written == ["decider", "tool", "decider"]


# The processes.


def take_requests(world: World, runs: int) -> None:
    store = RunStore(f"sqlite:///{world.path}")
    for n in range(runs):
        store.start(Job, run_id=f"run-{n}", goal="work")


def work(world: World, _: int) -> None:
    troubles = {"lease_lost", "skipped", "step_failed", "store_failed", "handed_back"}

    def hear(notice: Notice) -> None:
        if notice.kind == "ready":
            world.note("worker", os.getpid())
        elif notice.kind in troubles:
            world.note("trouble", str(notice))

    tally = Worker(
        RunStore(f"sqlite:///{world.path}"),
        agents=[Job],
        deps=world,
        concurrency=2,
        poll=0.02,
        on_event=hear,
    ).run()
    world.note("tally", asdict(tally))


def fork(act: Callable[[World, int], None], world: World, runs: int) -> None:
    if not os.fork():
        try:
            act(world, runs)
        except BaseException as error:
            world.note("trouble", repr(error))
        os._exit(0)


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    for act in (take_requests, *[work] * WORKERS):
        fork(act, World(folder), count)
    for _ in range(WORKERS + 1):
        os.wait()
