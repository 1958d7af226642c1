"""Workers that freeze at a boundary of a step, and thaw when another has gone on: they do nothing more.

What "nothing more" is, is read from the world: who ran the later steps, by its process id, and how often money moved.
A result that settles its own doubt is the one thing that a thawed worker may still record.

Run as a program, this file is a process that moves the run: one that freezes where it is told, or the one that takes
over.
"""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

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
from agent_es.crashpoints import BEFORE_COMMIT, watching
from agent_es.errors import RunMoved
from agent_es.events import LlmDecided, ToolResult
from agent_es.testing import PaymentProvider
from agent_es.tools import DidNotHappen, Happened

RUN_ID = "run-1"
LEASE = 0.5
ENDED_AFTER = 1.0
"""Seconds after which PostgreSQL ends the transaction of a frozen body; in production it is longer."""

BEFORE_START = "before the append of its start mark"
IN_BODY = "in its body"
BEFORE_RESULT = "before the append of its result"
BEFORE_THE_COMMIT = "before the commit of its transaction"


class World:
    """What outlives every process: who did what, and the payment provider.  A process freezes at most once."""

    def __init__(self, folder: Path, freezes: str = "") -> None:
        self.provider = PaymentProvider(folder / "provider.db")
        self._notes = folder / "world"
        self._notes.touch()
        self._freezes = freezes

    def note(self, what: str) -> None:
        with self._notes.open("a") as notes:
            notes.write(f"{os.getpid()} {what}\n")

    def who(self, what: str) -> list[int]:
        """Return the processes that did it, in order."""
        noted = [line.split(maxsplit=1) for line in self._notes.read_text().splitlines()]
        return [int(pid) for pid, done in noted if done == what]

    def freeze(self, place: str) -> None:
        """Stand still, where this is the place; the signal is this thread's, so that it gets no further."""
        if place == self._freezes:
            self._freezes = ""
            let_writers_end(self._notes.with_name("runs.db"))
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def let_writers_end(file: Path) -> None:
    """Wait until no thread of this process writes: one that froze there would keep the file from all others.

    Where it is this thread that does, that is what the test is about.
    """
    if file.exists():
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(file, timeout=0.2)) as database:
            database.execute("BEGIN IMMEDIATE")


def look_up(ctx: ToolContext[World], args: dict[str, Any]) -> Happened | DidNotHappen:
    return Happened(None) if ctx.deps.provider.refunds else DidNotHappen()


class Shop(AgentRun):
    """Does one step of each effect; behind it, one of the same turn is queued, and one of another turn follows."""

    at_once = 1

    @tool(effect=Effect.READ)
    def read(self, ctx: ToolContext[World]) -> None:
        ctx.deps.note("body")
        ctx.deps.freeze(IN_BODY)

    @tool(effect=Effect.IDEMPOTENT)
    def idempotent(self, ctx: ToolContext[World]) -> None:
        ctx.deps.note("body")
        ctx.deps.freeze(IN_BODY)
        ctx.deps.provider.refund("A", Decimal(1), key=ctx.idempotency_key)

    @tool(effect=Effect.TRANSACTIONAL)
    def transactional(self, ctx: ToolContext[World]) -> None:
        ctx.deps.note("body")
        ctx.session.execute(text("INSERT INTO bookings VALUES ('A', :pid)"), {"pid": os.getpid()})
        ctx.deps.freeze(IN_BODY)

    @tool(effect=Effect.PROBED, probe=look_up)
    def probed(self, ctx: ToolContext[World]) -> None:
        ctx.deps.note("body")
        ctx.deps.provider.refund("A", Decimal(1), key=None)
        ctx.deps.freeze(IN_BODY)  # behind the effect: nothing helps where it happens after the probe was asked

    @tool(effect=Effect.AT_MOST_ONCE)
    def at_most_once(self, ctx: ToolContext[World]) -> None:
        ctx.deps.note("body")
        ctx.deps.freeze(IN_BODY)
        ctx.deps.provider.refund("A", Decimal(1), key=None)

    @tool(effect=Effect.READ)
    def mail(self, ctx: ToolContext[World]) -> None:
        ctx.deps.note("mail")

    @tool(effect=Effect.READ)
    def ship(self, ctx: ToolContext[World]) -> None:
        ctx.deps.note("ship")


class FreezingStore(RunStore):
    """A store whose process freezes just before it appends."""

    world: World

    def save(self, *objs: Any, **kwargs: Any) -> Any:
        for event in objs[0].pending_events:
            if isinstance(event, LlmDecided) and event.idx == 0:
                self.world.freeze(BEFORE_START)
            if isinstance(event, ToolResult) and event.idx == 0:
                self.world.freeze(BEFORE_RESULT)
        return super().save(*objs, **kwargs)

    def transact(self, run: AgentRun, act: Callable[[Any], object]) -> None:
        def act_and_freeze(session: Any) -> None:
            act(session)
            self.world.freeze(BEFORE_RESULT)

        def reach(place: str, _: object) -> None:
            if place == BEFORE_COMMIT:
                self.world.freeze(BEFORE_THE_COMMIT)

        with watching(reach):
            super().transact(run, act_and_freeze)


# The test's side.


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    """The store, with the run in it, and a table of the host's own."""
    with closing(RunStore(url)) as store:
        with store.recorder.transaction(commit=True) as session:
            session.execute(text("CREATE TABLE bookings (order_id VARCHAR(9) PRIMARY KEY, pid INTEGER)"))
        store.start(Shop, run_id=RUN_ID, goal="ship")
        yield store


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Process(subprocess.Popen[str]):
    """A process that moves the run."""

    log: Path

    @property
    def is_frozen(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    @property
    def told(self) -> str:
        """What its worker told."""
        return self.log.read_text() if self.log.exists() else ""

    def go(self) -> None:
        assert self.stdin is not None
        self.stdin.write("go\n")
        self.stdin.flush()

    def end(self) -> str:
        """Wait for its end, after its worker was told to come to it; return what it said."""
        said, _ = self.communicate(timeout=30)
        assert self.returncode == 0
        return said


Pair = Callable[..., tuple[Process, Process]]


@pytest.fixture
def pair(tmp_path: Path, store: RunStore, world: World) -> Iterator[Pair]:
    """Starts a process that freezes, waits until it has, and lets another one loose on the run."""
    with ExitStack() as started:

        def start(who: str, effect: Effect, place: str = "") -> Process:
            command = [sys.executable, __file__, str(tmp_path), store.url, who, effect.value, place]
            process = Process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            process.log = tmp_path / f"{process.pid}.log"
            started.enter_context(process)
            started.callback(process.kill)
            return process

        def start_both(who: str, effect: Effect, place: str) -> tuple[Process, Process]:
            frozen, other = start(who, effect, place), start("worker", effect)
            frozen.go()
            wait_for(lambda: frozen.is_frozen)
            other.go()
            return frozen, other

        yield start_both


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def thaw(frozen: Process, who: str) -> None:
    """Thaw it, and let it come to its end: a runner does by itself, a worker goes on with what it may claim."""
    os.kill(frozen.pid, signal.SIGCONT)
    if who == "worker":
        wait_for(lambda: "lease lost" in frozen.told)
        frozen.terminate()
    said = frozen.end()
    lost = re.search(r"lost=[1-9]", said) if who == "worker" else said in {"LeaseLost", "RunMoved"}
    assert lost, said


def check_journal(store: RunStore) -> None:
    """The journal is one chain: each step has one result, and each attempt one start mark."""
    entries = store.journal(RUN_ID)
    assert [entry.seq for entry in entries] == [*range(len(entries))]
    results = [entry.data["idx"] for entry in entries if entry.type == "tool_result"]
    assert sorted(results) == [0, 1, 2]
    starts = [(entry.data["idx"], entry.data["attempt"]) for entry in entries if entry.type == "llm_decided"]
    assert len(starts) == len(set(starts))


PLACES = [BEFORE_START, IN_BODY, BEFORE_RESULT]
FINISHED = [Effect.READ, Effect.IDEMPOTENT, Effect.PROBED]
"""The effects whose steps another worker can bring to an end, whatever the database."""

slow = pytest.mark.crash
WHERE = [
    pytest.param(who, place, marks=() if (who, place) == ("runner", IN_BODY) else slow)
    for place in PLACES
    for who in ("runner", "worker")
]


@pytest.mark.parametrize(("who", "place"), WHERE)
@pytest.mark.parametrize("effect", FINISHED)
def test_one_that_thaws_after_the_end_of_its_run_runs_no_later_step_and_appends_nothing(
    effect: Effect, who: str, place: str, pair: Pair, store: RunStore, world: World
) -> None:
    frozen, other = pair(who, effect, place)
    wait_for(lambda: store.load(RUN_ID).is_over)
    version = store.load(RUN_ID).version

    thaw(frozen, who)

    assert store.load(RUN_ID).version == version
    check_journal(store)
    assert (world.who("mail"), world.who("ship")) == ([other.pid], [other.pid])
    again = [] if effect is Effect.PROBED else [other.pid]
    assert world.who("body") == ([other.pid] if place == BEFORE_START else [frozen.pid, *again])
    assert world.provider.refunds == (effect is not Effect.READ)


@pytest.mark.parametrize(("who", "place"), WHERE)
def test_an_at_most_once_step_of_one_that_froze_in_it_is_in_doubt_until_its_late_result_settles_it(
    who: str, place: str, pair: Pair, store: RunStore, world: World
) -> None:
    """The other worker must not start it again, and cannot go on to the next turn without it.  What the turn has
    beside it is no later step: it is run."""
    frozen, other = pair(who, Effect.AT_MOST_ONCE, place)
    if place == BEFORE_START:  # it never started, so there is no doubt
        wait_for(lambda: store.load(RUN_ID).is_over)
        thaw(frozen, who)
        assert (world.who("body"), world.who("mail"), world.who("ship")) == ([other.pid],) * 3
        return
    wait_for(lambda: store.load(RUN_ID).waiting_for == "doubt")
    assert (world.who("mail"), world.who("ship")) == ([other.pid], [])
    version = store.load(RUN_ID).version

    thaw(frozen, who)
    wait_for(lambda: store.load(RUN_ID).is_over)

    late = store.journal(RUN_ID)[version]
    assert (late.type, late.data["idx"], late.data["attempt"]) == ("tool_result", 0, 1)
    check_journal(store)
    assert (world.who("body"), world.provider.refunds) == ([frozen.pid], 1)
    assert world.who("mail") == [other.pid]
    # A runner has stopped; a worker may claim the run anew, as any other worker.
    (shipped_by,) = world.who("ship")
    assert who == "worker" or shipped_by == other.pid


# A transactional body holds the database's transaction while it is frozen.


def bookings(store: RunStore) -> list[tuple[str, int]]:
    with store.recorder.transaction(commit=False) as session:
        return [(order, pid) for order, pid in session.execute(text("SELECT order_id, pid FROM bookings"))]


on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


@pytest.mark.parametrize(
    ("who", "database"),
    [
        *(pytest.param(who, "sqlite", marks=slow) for who in ("runner", "worker")),
        *(pytest.param(who, "postgres", marks=pytest.mark.postgres) for who in ("runner", "worker")),
    ],
    indirect=["database"],
)
def test_a_transactional_step_that_was_not_started_is_the_others(
    who: str, pair: Pair, store: RunStore, world: World
) -> None:
    frozen, other = pair(who, Effect.TRANSACTIONAL, BEFORE_START)
    wait_for(lambda: store.load(RUN_ID).is_over)
    version = store.load(RUN_ID).version

    thaw(frozen, who)

    assert store.load(RUN_ID).version == version
    check_journal(store)
    assert bookings(store) == [("A", other.pid)]
    assert (world.who("body"), world.who("mail"), world.who("ship")) == ([other.pid],) * 3


@on_sqlite
@pytest.mark.parametrize(
    ("place", "end"),
    [
        pytest.param(IN_BODY, "thawed"),
        pytest.param(IN_BODY, "killed", marks=slow),
        *(
            pytest.param(place, end, marks=slow)
            for place in (BEFORE_RESULT, BEFORE_THE_COMMIT)
            for end in ("thawed", "killed")
        ),
    ],
)
def test_on_sqlite_nobody_goes_on_while_a_frozen_body_holds_the_write_lock(
    place: str, end: str, pair: Pair, store: RunStore, world: World
) -> None:
    """Its lease lapses, but to take the run is to write.  So it is the thawed one that commits its body and result,
    as if nothing had been, and a lease that nobody took is as good as new; a killed one has done nothing."""
    frozen, other = pair("runner", Effect.TRANSACTIONAL, place)
    wait_for(lambda: other.told.count("store failed") >= 3)
    lapsed_at = store.record(RUN_ID).lease_until
    assert lapsed_at is not None
    assert time.time() > lapsed_at.timestamp()
    assert (world.who("body"), world.who("mail"), bookings(store)) == ([frozen.pid], [], [])

    os.kill(frozen.pid, signal.SIGCONT if end == "thawed" else signal.SIGKILL)
    wait_for(lambda: store.load(RUN_ID).is_over)

    check_journal(store)
    assert bookings(store) == [("A", frozen.pid if end == "thawed" else other.pid)]
    assert world.who("body") == ([frozen.pid] if end == "thawed" else [frozen.pid, other.pid])
    # Once it is thawed, both are alive, and either may be the one to go on: each step is still one's own.
    assert (len(world.who("mail")), len(world.who("ship"))) == (1, 1)


@on_postgres
@pytest.mark.parametrize("who", ["runner", "worker"])
@pytest.mark.parametrize("place", [IN_BODY, BEFORE_RESULT, BEFORE_THE_COMMIT])
def test_on_postgresql_the_server_ends_the_transaction_of_a_frozen_body_and_another_does_it_over(
    place: str, who: str, pair: Pair, store: RunStore, world: World
) -> None:
    """What the body wrote is locked until then, and with the append done so is the run's row, which nobody claims
    meanwhile.  The thawed one finds its transaction gone, and its run moved."""
    frozen, other = pair(who, Effect.TRANSACTIONAL, place)
    wait_for(lambda: store.load(RUN_ID).is_over)
    version = store.load(RUN_ID).version

    thaw(frozen, who)

    assert store.load(RUN_ID).version == version
    check_journal(store)
    assert bookings(store) == [("A", other.pid)]
    assert world.who("body") == [frozen.pid, other.pid]
    assert (world.who("mail"), world.who("ship")) == ([other.pid], [other.pid])


# The processes.


def move(folder: Path, url: str, who: str, effect: str, place: str) -> None:
    """Move the run when told to, until it is over or lost, or the process is told to end."""
    is_patient = who == "runner" or url.startswith("postgresql")
    if url.startswith("postgresql"):
        from agent_es.store import postgres  # noqa: PLC0415  # only where PostgreSQL is asked for

        postgres.IDLE_TIMEOUT = ENDED_AFTER
    world = World(folder, place)
    store = FreezingStore(url, patience=30.0 if is_patient else 0.2)  # who gives up soon tells so soon
    store.world = world
    script = ScriptedDecider([[CallTool(effect), CallTool("mail")], CallTool("ship"), Finish("shipped")])
    log = (folder / f"{os.getpid()}.log").open("a", buffering=1)

    def tell(notice: Notice) -> None:
        log.write(f"{notice}\n")

    sys.stdin.readline()
    if who == "worker":
        working = Worker(store, agents=[Shop], decider=script, deps=world, lease=LEASE, poll=0.02, on_event=tell)
        sys.stdout.write(str(working.run()))
        return
    try:
        state = Runner(store, script, deps=world, lease=LEASE, on_event=tell).run(Shop, run_id=RUN_ID)
    except RunMoved as moved:
        sys.stdout.write(type(moved).__name__)
    else:
        assert state.status is Status.DONE


if __name__ == "__main__":
    folder, *arguments = sys.argv[1:]
    move(Path(folder), *arguments)
