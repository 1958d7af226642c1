"""B15: a worker that froze in a step, and thaws when another has taken over, stops there: no later step is its own.

Run as a program, this file is one of the two workers.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from decimal import Decimal
from pathlib import Path

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    Notice,
    Runner,
    RunState,
    RunStore,
    ToolContext,
    ToolSpec,
    Worker,
    tool,
)
from agent_es.errors import LeaseLost
from agent_es.testing import PaymentProvider

RUN_ID = "order-7"
LEASE = 0.5
STEPS = ("reserve", "send_mail", "ship")


class World:
    """Who did what, whichever process it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.provider = PaymentProvider(folder / "provider.db")
        self._notes = folder / "world"
        self._notes.touch()
        self.freezes = False

    def note(self, what: str) -> None:
        with self._notes.open("a") as notes:
            notes.write(f"{os.getpid()} {what}\n")

    def who(self, what: str) -> list[int]:
        """Return the processes that did it, in order."""
        noted = [line.split(maxsplit=1) for line in self._notes.read_text().splitlines()]
        return [int(pid) for pid, done in noted if done == what]

    def freeze(self) -> None:
        """Stand still, once; the signal is this thread's, so that it gets no further."""
        if self.freezes:
            self.freezes = False
            let_writers_end(self._notes.with_name("runs.db"))
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def let_writers_end(file: Path) -> None:
    """Wait until no thread of this process writes: one that froze there would keep the file from all others.

    Where it is this thread that does, that is what the test is about.
    """
    if file.exists():
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(file, timeout=0.2)) as database:
            database.execute("BEGIN IMMEDIATE")


class Order(AgentRun):
    """Reserves, mails, ships."""

    @tool(effect=Effect.IDEMPOTENT)
    def reserve(self, ctx: ToolContext[World]) -> str:
        ctx.deps.note("reserve")
        ctx.deps.freeze()
        return ctx.deps.provider.refund("A", Decimal(1), key=ctx.idempotency_key)["refund_id"]

    @tool(effect=Effect.AT_MOST_ONCE)
    def send_mail(self, ctx: ToolContext[World]) -> None:
        ctx.deps.note("send_mail")

    @tool(effect=Effect.AT_MOST_ONCE)
    def ship(self, ctx: ToolContext[World]) -> None:
        ctx.deps.note("ship")


class Plan:
    """One step after the other; before the second it waits, where it is told to, until it may go on."""

    def __init__(self, world: World, *, waits: bool) -> None:
        self._world = world
        self._waits = waits

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        if run.turns == 1 and self._waits:
            self._world.note("waits")
            wait_for((self._world.folder / "go on").exists)
        return CallTool(STEPS[run.turns]) if run.turns < len(STEPS) else Finish("shipped")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with closing(RunStore(f"sqlite:///{tmp_path / 'runs.db'}")) as store:
        store.start(Order, run_id=RUN_ID, goal="ship the order")
        yield store


Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Starts a worker, which waits until it is let loose."""
    with ExitStack() as started:

        def start(*arguments: str) -> "subprocess.Popen[str]":
            command = [sys.executable, __file__, str(tmp_path), *arguments]
            process = started.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            started.callback(process.kill)
            return process

        yield start


def let_loose(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def is_frozen(process: "subprocess.Popen[str]") -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


@pytest.mark.parametrize("holder", ["runner", pytest.param("worker", marks=pytest.mark.crash)])
@pytest.mark.parametrize(
    "thaws", [pytest.param("at the end", marks=pytest.mark.crash), "behind the other's first step"]
)
def test_a_worker_that_froze_in_a_step_and_lost_its_run_appends_nothing_and_runs_no_later_step(
    thaws: str, holder: str, spawn: Spawn, store: RunStore, world: World, tmp_path: Path
) -> None:
    frozen, other = spawn(holder, "freezes"), spawn("worker", *(["waits"] if thaws != "at the end" else []))
    let_loose(frozen)
    wait_for(lambda: is_frozen(frozen))
    let_loose(other)
    if thaws == "at the end":
        wait_for(lambda: store.load(RUN_ID).is_over)
    else:
        wait_for(lambda: bool(world.who("waits")))
    before = store.load(RUN_ID).version

    os.kill(frozen.pid, signal.SIGCONT)
    wait_for(lambda: frozen.poll() is not None or bool(world.who("lost")))

    assert store.load(RUN_ID).version == before
    frozen.terminate()  # a worker would only look for runs now
    (tmp_path / "go on").touch()
    wait_for(lambda: store.load(RUN_ID).is_over)
    other.terminate()
    said = [process.communicate(timeout=30)[0] for process in (frozen, other)]
    assert said == [f"run {RUN_ID}: the lease 1 was taken over", "done"]
    assert world.who("reserve") == [frozen.pid, other.pid]
    assert (world.who("send_mail"), world.who("ship")) == ([other.pid], [other.pid])
    assert world.provider.keystore == {f"{RUN_ID}:0:reserve": 2}  # the thawed one sent it again, under the key
    assert world.provider.refunds == 1
    journal = store.journal(RUN_ID)
    assert [entry.seq for entry in journal] == [*range(len(journal))]
    assert [entry.data["idx"] for entry in journal if entry.type == "tool_result"] == [0, 1, 2]


# The two workers.


def move(folder: Path, who: str, how: str = "") -> None:
    """Move the run, and report how it ended as this worker sees it."""
    world = World(folder)
    world.freezes = how == "freezes"
    store = RunStore(f"sqlite:///{folder / 'runs.db'}")
    plan = Plan(world, waits=how == "waits")
    reports: list[str] = []

    def tell(notice: Notice) -> None:
        if notice.kind == "lease_lost":
            reports.append(notice.text)
            world.note("lost")
        elif notice.kind == "finished":
            reports.append("done")

    sys.stdin.readline()
    if who == "worker":
        Worker(store, agents=[Order], decider=plan, deps=world, lease=LEASE, poll=0.02, on_event=tell).run()
    else:
        try:
            reports.append(Runner(store, plan, deps=world, lease=LEASE).run(Order, run_id=RUN_ID).status)
        except LeaseLost as lost:
            reports.append(str(lost))
    sys.stdout.write("; ".join(report.partition(";")[0] for report in reports))


if __name__ == "__main__":
    folder, *arguments = sys.argv[1:]
    move(Path(folder), *arguments)
