"""B05: the append of a result fails after the effect; the result is stored once, or the caller is told.

Storage errors are put in at the driver's border: a lock that another connection holds, and an append whose
answer is lost, before or after its commit.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from eventsourcing.persistence import OperationalError

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
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.errors import AppendUnknown, RunMoved, StoreBusy
from agent_es.testing import FrozenClock

RUN_ID = "run-1"
WHOLE_JOURNAL = ["run_started", "llm_decided", "tool_result", "finished"]


class Charges:
    """What the provider saw, and what happens elsewhere while its answer is on its way."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.keys: list[str | None] = []
        self.meanwhile = meanwhile

    def charge(self, key: str | None) -> str:
        self.keys.append(key)
        if len(self.keys) == 1:
            self.meanwhile()
        return "receipt-5"


class Shop(AgentRun):
    """Charges, and gets a receipt."""

    @tool(effect=Effect.IDEMPOTENT)
    def charge(self, ctx: ToolContext[Charges]) -> str:
        return ctx.deps.charge(ctx.idempotency_key)

    @tool(effect=Effect.IDEMPOTENT)
    async def charge_awaiting(self, ctx: ToolContext[Charges]) -> str:
        return ctx.deps.charge(ctx.idempotency_key)


class Model:
    """Calls one tool, and compares at each request what it is shown with what the journal holds."""

    def __init__(self, store: RunStore, tool_name: str = "charge") -> None:
        self.store = store
        self.tool_name = tool_name
        self.shown: list[list[Any]] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        assert run == self.store.load(run.run_id)
        self.shown.append([step.result for step in run.steps])
        return Finish("charged") if run.turns else CallTool(self.tool_name)


class WriteLock:
    """Another connection, which holds SQLite's only write lock."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def take(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        self.connection.execute("ROLLBACK")


@pytest.fixture
def lock(store: RunStore, tmp_path: Path) -> Iterator[WriteLock]:
    held = WriteLock(tmp_path / "runs.db")
    yield held
    held.connection.close()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[RunStore]:
    """The same store in another process: reads and writes that no injected error reaches."""
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}", clock=FrozenClock()) as opened:
        yield opened


def types(store: RunStore) -> list[str]:
    return [entry.type for entry in store.journal(RUN_ID)]


def receipts(store: RunStore) -> list[str]:
    return [entry.data["result"] for entry in store.journal(RUN_ID) if entry.type == "tool_result"]


# The write lock is held.


def test_an_append_outwaits_a_lock_that_is_released_within_its_patience(
    store: RunStore, elsewhere: RunStore, lock: WriteLock
) -> None:
    def hold_for_a_moment() -> None:
        lock.take()
        threading.Timer(0.3, lock.release).start()

    charges = Charges(hold_for_a_moment)
    store.recorder.datastore.patience = 30.0

    state = Runner(store, Model(elsewhere), deps=charges).run(Shop, run_id=RUN_ID, goal="charge")

    assert state.status is Status.DONE
    assert (types(store), receipts(store)) == (WHOLE_JOURNAL, ["receipt-5"])
    assert charges.keys == ["run-1:0:charge"]


def test_an_append_that_cannot_be_made_is_an_error_and_the_run_has_not_advanced(
    store: RunStore, elsewhere: RunStore, lock: WriteLock
) -> None:
    charges, model = Charges(lock.take), Model(elsewhere)
    store.recorder.datastore.patience = 0.05

    with pytest.raises(StoreBusy):
        Runner(store, model, deps=charges).run(Shop, run_id=RUN_ID, goal="charge")

    assert types(store) == ["run_started", "llm_decided"]
    assert [(step.status, step.result) for step in store.load(RUN_ID).steps] == [("started", None)]
    assert model.shown == [[]]

    lock.release()
    state = Runner(store, model, deps=charges).run(Shop, run_id=RUN_ID)

    assert state.status is Status.DONE
    assert receipts(store) == ["receipt-5"]
    assert charges.keys == ["run-1:0:charge", "run-1:0:charge"]
    assert model.shown == [[], ["receipt-5"]]


def test_a_save_that_failed_can_be_made_again_and_then_stores_the_result(
    store: RunStore, elsewhere: RunStore, lock: WriteLock
) -> None:
    class Stubborn(Runner):
        """Saves again what could not be saved."""

        refused = 0

        def save(self, run: AgentRun) -> None:
            try:
                super().save(run)
            except StoreBusy:
                self.refused += 1
                lock.release()
                super().save(run)

    charges, model = Charges(lock.take), Model(elsewhere)
    store.recorder.datastore.patience = 0.05
    runner = Stubborn(store, model, deps=charges)

    state = runner.run(Shop, run_id=RUN_ID, goal="charge")

    assert runner.refused == 1
    assert (types(store), receipts(store)) == (WHOLE_JOURNAL, ["receipt-5"])
    assert state == elsewhere.load(RUN_ID)
    assert charges.keys == ["run-1:0:charge"]
    assert model.shown == [[], ["receipt-5"]]


# The answer to an append is lost.


def lose_the_answer(store: RunStore, *, nth: int, commits: bool, then: Callable[[], object] = lambda: None) -> None:
    """Let the append of that number fail as the driver would: after its commit, or instead of it."""
    append, count = store.recorder.append, 0

    def fail_once(*args: Any) -> None:
        nonlocal count
        count += 1
        if count != nth:
            append(*args)
            return
        if commits:
            append(*args)
        then()
        raise OperationalError("disk I/O error")

    store.recorder.append = fail_once  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("commits", [True, False], ids=["after its commit", "instead of its commit"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4], ids=WHOLE_JOURNAL)
def test_an_append_whose_answer_is_lost_is_in_the_journal_once(
    nth: int, store: RunStore, elsewhere: RunStore, *, commits: bool
) -> None:
    charges, model = Charges(), Model(elsewhere)
    lose_the_answer(store, nth=nth, commits=commits)

    state = Runner(store, model, deps=charges).run(Shop, run_id=RUN_ID, goal="charge")

    assert (types(elsewhere), receipts(elsewhere)) == (WHOLE_JOURNAL, ["receipt-5"])
    assert state == elsewhere.load(RUN_ID)
    assert charges.keys == ["run-1:0:charge"]
    assert model.shown == [[], ["receipt-5"]]


@pytest.mark.parametrize("commits", [True, False], ids=["it had committed", "it had not"])
def test_an_append_that_nobody_can_read_back_is_an_error_and_a_resume_finds_out(
    store: RunStore, elsewhere: RunStore, monkeypatch: pytest.MonkeyPatch, *, commits: bool
) -> None:
    def unplug() -> None:
        def fail(*_: object) -> Any:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

        for way in ("reading", "writing"):
            monkeypatch.setattr(store.recorder.datastore, way, fail)

    charges, model = Charges(), Model(elsewhere)
    lose_the_answer(store, nth=3, commits=commits, then=unplug)

    with pytest.raises(AppendUnknown):
        Runner(store, model, deps=charges).run(Shop, run_id=RUN_ID, goal="charge")
    assert model.shown == [[]]

    state = Runner(elsewhere, model, deps=charges).run(Shop, run_id=RUN_ID)

    assert state.status is Status.DONE
    assert receipts(elsewhere) == ["receipt-5"]
    assert charges.keys == ["run-1:0:charge"] * (1 if commits else 2)


def test_a_lost_append_whose_place_another_worker_took_ends_this_execution(
    store: RunStore, elsewhere: RunStore
) -> None:
    charges, model = Charges(), Model(elsewhere)
    other = Runner(elsewhere, Model(elsewhere), deps=charges, force_takeover=True)
    lose_the_answer(store, nth=3, commits=False, then=lambda: other.run(Shop, run_id=RUN_ID))

    with pytest.raises(RunMoved):
        Runner(store, model, deps=charges).run(Shop, run_id=RUN_ID, goal="charge")

    assert receipts(elsewhere) == ["receipt-5"]
    assert elsewhere.load(RUN_ID).status is Status.DONE
    assert model.shown == [[]]


# The caller is cancelled.


async def cancelled(runner: Runner, when: Callable[[asyncio.Task[Any]], object]) -> None:
    """Start the run, and cancel it there."""
    task = asyncio.create_task(runner.arun(Shop, run_id=RUN_ID, goal="charge"))
    when(task)
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_caller_cancelled_between_the_body_and_the_append_keeps_the_result(
    store: RunStore, elsewhere: RunStore
) -> None:
    charges = Charges()
    runner = Runner(store, Model(elsewhere, "charge_awaiting"), deps=charges)

    async def cancel_then_resume() -> RunState:
        def cancel_as_the_body_returns(task: asyncio.Task[Any]) -> None:
            charges.meanwhile = task.cancel

        await cancelled(runner, cancel_as_the_body_returns)
        return await runner.arun(Shop, run_id=RUN_ID)

    state = asyncio.run(cancel_then_resume())

    assert state.status is Status.DONE
    assert receipts(elsewhere) == ["receipt-5"]
    assert charges.keys == ["run-1:0:charge_awaiting"]


def test_a_caller_cancelled_in_the_append_keeps_the_result(
    store: RunStore, elsewhere: RunStore, lock: WriteLock
) -> None:
    charges = Charges(lock.take)
    runner = Runner(store, Model(elsewhere, "charge_awaiting"), deps=charges)
    store.recorder.datastore.patience = 30.0

    async def cancel_then_resume() -> RunState:
        def cancel_as_the_append_waits(task: asyncio.Task[Any]) -> None:
            asyncio.get_running_loop().call_later(0.2, task.cancel)
            threading.Timer(0.4, lock.release).start()

        await cancelled(runner, cancel_as_the_append_waits)
        return await runner.arun(Shop, run_id=RUN_ID)

    state = asyncio.run(cancel_then_resume())

    assert state.status is Status.DONE
    assert receipts(elsewhere) == ["receipt-5"]
    assert charges.keys == ["run-1:0:charge_awaiting"]
