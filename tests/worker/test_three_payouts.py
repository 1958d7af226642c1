"""Three payouts of one turn: one in doubt, one approved, one edited; a worker freezes, another is killed.

The money is counted where it moves: in the ledger of a bank that outlives every process.

Run as a program, this file is a worker: one that freezes while it pays A, one that hangs around the payout of B until
it is killed, or one that just works.
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
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    Approval,
    Budget,
    DidNotHappen,
    Effect,
    Envelope,
    Finish,
    Happened,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    Usage,
    Used,
    Worker,
    tool,
)
from agent_es.decider import Answered
from agent_es.errors import AnswerConflict, BadSettlement, NotAllowed, OutcomeUnknown, StillHeld
from agent_es.events import LlmDecided

RUN_ID = "run-1"
SHORT, LONG = 1.0, 2.5
"""Seconds of a lease: of the one that freezes, and of those that must keep theirs on a busy machine."""
A, B, C = range(3)
EDITED = {"amount": "90", "payee": "C"}
ENVELOPE = Envelope(
    budget=Budget(tokens=30_000, each=Usage(tokens=8_000)),
    needs_approval=(Approval(call="pay.amount > 200", by=("dana", "ann")),),
)

UNDER_WAY = "A is under way"
NOT_MARKED = "B is granted, and its start mark is not appended"
IN_BODY = "the body of B has begun, and has not asked for anything"
PAID = "B is paid, and that is not recorded"


class Bank:
    """Pays in two moves: it takes an order, and moves the money; between them it cannot say what will come of it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "bank.db"
        with closing(self._connect()) as bank:
            bank.execute("CREATE TABLE IF NOT EXISTS orders (key TEXT)")
            bank.execute("CREATE TABLE IF NOT EXISTS ledger (key TEXT, payee TEXT, amount TEXT)")

    def order(self, key: str) -> None:
        with closing(self._connect()) as bank:
            bank.execute("INSERT INTO orders VALUES (?)", (key,))

    def move(self, key: str, payee: str, amount: Decimal) -> str:
        with closing(self._connect()) as bank:
            bank.execute("INSERT INTO ledger VALUES (?, ?, ?)", (key, payee, str(amount)))
        return f"{payee}: {amount}"

    def find(self, key: str) -> str | None:
        with closing(self._connect()) as bank:
            for payee, amount in bank.execute("SELECT payee, amount FROM ledger WHERE key = ?", (key,)):
                return f"{payee}: {amount}"
            if bank.execute("SELECT 1 FROM orders WHERE key = ?", (key,)).fetchone():
                raise OutcomeUnknown(f"the order {key} is under way")
        return None

    @property
    def ledger(self) -> list[tuple[str, str]]:
        with closing(self._connect()) as bank:
            return bank.execute("SELECT payee, amount FROM ledger ORDER BY payee").fetchall()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=30, isolation_level=None)


class World:
    """What outlives every process: the bank, and a note of who did what.  A process stops at one place at most."""

    def __init__(self, folder: Path, stops: str = "") -> None:
        self.bank = Bank(folder)
        self._runs, self._notes = folder / "runs.db", folder / "notes"
        self._notes.touch()
        self._stops = stops

    def note(self, what: str) -> None:
        with self._notes.open("a") as notes:
            notes.write(f"{os.getpid()} {what}\n")

    def who(self, what: str) -> list[int]:
        """Return the processes that did it, in order."""
        noted = [line.split(maxsplit=1) for line in self._notes.read_text().splitlines()]
        return [int(pid) for pid, done in noted if done == what]

    def reach(self, place: str) -> None:
        """Stop, where this is the place: with the whole process, or only here, and for ever."""
        if place != self._stops:
            return
        self._stops = ""
        if place == UNDER_WAY:
            self._let_writers_end()
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            return
        self.note(place)
        while True:
            time.sleep(60)

    def _let_writers_end(self) -> None:
        """Wait until no thread of this process writes: one that froze there would keep a file from all others."""
        if self._runs.exists():
            with suppress(sqlite3.OperationalError), closing(sqlite3.connect(self._runs, timeout=0.2)) as database:
                database.execute("BEGIN IMMEDIATE")


class Payouts(AgentRun):
    """Pays."""

    def find_payout(self, ctx: ToolContext[World], key: str) -> Happened | DidNotHappen:
        receipt = ctx.deps.bank.find(key)
        return DidNotHappen() if receipt is None else Happened(receipt)

    @tool(effect=Effect.PROBED, probe=find_payout)
    def pay(self, ctx: ToolContext[World], payee: str, amount: Decimal) -> str:
        world, key = ctx.deps, ctx.idempotency_key
        assert key is not None
        world.note(f"body {payee}")
        if payee == "B":
            world.reach(IN_BODY)
        world.bank.order(key)
        if payee == "A":
            world.reach(UNDER_WAY)
        receipt = world.bank.move(key, payee, amount)
        if payee == "B":
            world.reach(PAID)
        return receipt


class PaysThree:
    """Pays three in one turn, and tells what was paid; each question has its price."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
        if run.steps:
            return Used(Finish([step.result for step in run.steps]), tokens=1_300)
        due = {"A": Decimal(150), "B": Decimal(250), "C": Decimal(900)}
        return Used([Payouts.pay.call(payee=payee, amount=amount) for payee, amount in due.items()], tokens=5_200)


class StoppingStore(RunStore):
    """A store whose process may stop before the append of the start mark of B."""

    world: World

    def save(self, *objs: Any, **kwargs: Any) -> Any:
        pending = objs[0].pending_events
        if any(isinstance(event, LlmDecided) and (event.idx, event.attempt) == (B, 1) for event in pending):
            self.world.reach(NOT_MARKED)
        return super().save(*objs, **kwargs)


# The test's side.


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    with closing(RunStore(url)) as store:
        store.start(Payouts, run_id=RUN_ID, goal="pay", envelope=ENVELOPE)
        yield store


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


Hire = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def hire(tmp_path: Path, store: RunStore) -> Iterator[Hire]:
    """Starts this file as a worker, which stops at a place."""
    with ExitStack() as started:

        def start(stops: str = "") -> "subprocess.Popen[str]":
            command = [sys.executable, __file__, str(tmp_path), store.url, stops]
            worker = started.enter_context(subprocess.Popen(command, text=True))
            started.callback(worker.kill)
            return worker

        yield start


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.03)


def is_frozen(worker: "subprocess.Popen[str]") -> bool:
    return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def spent(store: RunStore) -> dict[str, int]:
    """Return what the store has counted for the run's budget."""
    return dict(store.recorder.select("SELECT what, amount FROM agent_es_spending", ()))


def check_journal(store: RunStore, place: str) -> None:
    """The journal tells of each payout once, of who said yes to what, and of each token."""
    state, journal = store.load(RUN_ID), store.journal(RUN_ID)
    results = {entry.data["idx"]: entry.data["attempt"] for entry in journal if entry.type == "tool_result"}
    assert [entry.type for entry in journal].count("tool_result") == 3
    assert results == {A: 1, B: 2 if place == IN_BODY else 1, C: 1}
    settled = [(entry.data["idx"], entry.data["by"]) for entry in journal if entry.type == "doubt_settled"]
    assert settled == ([] if place == NOT_MARKED else [(B, "probe")])
    granted = [entry.data for entry in journal if entry.type == "approval_granted"]
    assert [(yes["idx"], yes["by"], yes.get("args")) for yes in granted] == [
        (B, "ann", None),
        (C, "dana", EDITED),
    ]
    assert (state.steps[C].args, state.steps[C].said_json) == (EDITED, '{"amount":"900","payee":"C"}')
    used = [entry.data["tokens"] for entry in journal if entry.type == "usage_recorded"]
    assert (sum(used), state.tokens, spent(store), state.reserved) == (6_500, 6_500, {"tokens": 6_500}, None)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(IN_BODY, id="in its body"),
        pytest.param(NOT_MARKED, id="not marked", marks=pytest.mark.crash),
        pytest.param(PAID, id="paid", marks=pytest.mark.crash),
    ],
)
def test_one_in_doubt_one_approved_and_one_edited_are_paid_once_each_whoever_freezes_or_dies(
    place: str, hire: Hire, store: RunStore, world: World
) -> None:
    # A worker freezes while it pays A; another one takes over, and the bank cannot say.
    frozen = hire(UNDER_WAY)
    wait_for(lambda: is_frozen(frozen))
    with pytest.raises(BadSettlement, match="not in doubt"):
        store.settle(RUN_ID, A, "did_not_happen", by="ann")
    killed = hire(place)
    wait_for(lambda: store.load(RUN_ID).waiting_for == "doubt")

    doubt, *approvals = sorted(store.inbox(), key=lambda item: item.idx or 0)
    assert (doubt.kind, doubt.idx, doubt.tool, doubt.key) == ("doubt", A, "pay", "run-1:0:pay")
    assert doubt.args == {"amount": "150", "payee": "A"}
    assert "the order run-1:0:pay is under way" in doubt.text
    assert [(item.kind, item.idx, item.tool, item.args) for item in approvals] == [
        ("approval", B, "pay", {"amount": "250", "payee": "B"}),
        ("approval", C, "pay", {"amount": "900", "payee": "C"}),
    ]
    assert {(item.text, item.by, item.people) for item in approvals} == {
        ("needs_approval: pay.amount > 200", (("dana", "ann"),), 1)
    }
    assert world.bank.ledger == []
    assert store.record(RUN_ID).lease_owner is None
    with pytest.raises(StillHeld, match="may still be alive"):  # it is frozen in the call
        store.settle(RUN_ID, A, "did_not_happen", by="ann")

    # Ann approves B, whose worker stops there; it holds the run, so that nobody may say that A did not happen.
    with pytest.raises(NotAllowed):
        store.approve(RUN_ID, B, by="eve")
    store.approve(RUN_ID, B, by="ann", digest=approvals[0].digest)
    wait_for(lambda: bool(world.who(place)))
    with pytest.raises(StillHeld, match="could still happen"):
        store.settle(RUN_ID, A, "did_not_happen", by="ann")

    # A second click changes nothing, whoever makes it; dana gives C other arguments.
    version = store.load(RUN_ID).version
    for who in ("ann", "dana"):
        with pytest.raises(AnswerConflict, match="was approved by ann"):
            store.approve(RUN_ID, B, by=who, digest=approvals[0].digest)
    with pytest.raises(AnswerConflict, match="was approved by ann"):
        store.deny(RUN_ID, B, by="dana")
    assert store.load(RUN_ID).version == version
    store.approve(RUN_ID, C, args=EDITED, by="dana", digest=approvals[1].digest, agent=Payouts)

    # The worker is killed; a third one goes on with both, and leaves A alone.
    killed.kill()
    killed.wait(30)
    third = hire()
    wait_for(lambda: [step.status for step in store.load(RUN_ID).steps] == ["in_doubt", "done", "done"])
    assert world.bank.ledger == [("B", "250"), ("C", "90")]
    assert [(item.kind, item.idx) for item in store.inbox()] == [("doubt", A)]
    with pytest.raises(StillHeld, match="may still be alive"):
        store.settle(RUN_ID, A, "did_not_happen", by="ann")

    # The frozen one thaws: the bank moves the money of A, and the late result settles it.
    frozen.send_signal(signal.SIGCONT)
    wait_for(lambda: store.load(RUN_ID).is_over)

    state = store.load(RUN_ID)
    assert (state.status, state.answer) == (Status.DONE, ["A: 150", "B: 250", "C: 90"])
    assert world.bank.ledger == [("A", "150"), ("B", "250"), ("C", "90")]
    assert world.who("body A") == [frozen.pid]
    bodies = {NOT_MARKED: [third.pid], IN_BODY: [killed.pid, third.pid], PAID: [killed.pid]}
    assert world.who("body B") == bodies[place]
    assert world.who("body C") == [third.pid]
    assert store.inbox() == []

    check_journal(store, place)
    for worker in (frozen, third):
        worker.terminate()
        assert worker.wait(30) == 0


# The processes.


def work(folder: Path, url: str, stops: str) -> None:
    store = StoppingStore(url)
    store.world = World(folder, stops)
    lease = SHORT if stops == UNDER_WAY else LONG
    Worker(store, agents=[Payouts], decider=PaysThree(), deps=store.world, lease=lease, poll=0.02).run()


if __name__ == "__main__":
    folder, url, stops = sys.argv[1:]
    work(Path(folder), url, stops)
