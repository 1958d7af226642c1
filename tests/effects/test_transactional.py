"""A transactional effect: the rows of a tool and its result commit in one transaction, or neither."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import ForeignKey, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from agent_es import AgentRun, CallTool, Finish, RunState, RunStore, Status, ToolContext, tool
from agent_es.errors import BadTool, StoreReentered
from agent_es.tools import Retry

Play = Callable[..., RunState]


class Base(DeclarativeBase):
    """The host's own tables."""


class Booking(Base):
    __tablename__ = "bookings"
    invoice: Mapped[str] = mapped_column(String(20), primary_key=True)
    day: Mapped[str | None] = mapped_column(ForeignKey("days.day", deferrable=True, initially="DEFERRED"))


class Day(Base):
    __tablename__ = "days"
    day: Mapped[str] = mapped_column(String(10), primary_key=True)


class Books(AgentRun):
    """Books an invoice in the host's own table."""

    @tool(effect="transactional")
    def book(self, ctx: ToolContext[Any], invoice: str) -> str:
        ctx.session.add(Booking(invoice=invoice))
        then = getattr(ctx.deps, "then", None)
        return then(ctx) if then else "booked"


class Deps:
    """What the body does after it has written."""

    def __init__(self, then: Callable[[ToolContext[Any]], Any] | None = None) -> None:
        self.then = then


@pytest.fixture
def booked(store: RunStore) -> Callable[[], list[str]]:
    Base.metadata.create_all(store.recorder.datastore.engine)

    def read() -> list[str]:
        with store.recorder.transaction(commit=False) as session:
            return [*session.execute(text("SELECT invoice FROM bookings ORDER BY invoice")).scalars()]

    return read


SCRIPT = [CallTool("book", {"invoice": "INV-1"}), Finish("done")]


def test_the_row_and_the_result_are_there(play: Play, booked: Callable[[], list[str]]) -> None:
    state = play(Books, SCRIPT, Deps())

    assert (state.status, state.steps[0].result, booked()) == (Status.DONE, "booked", ["INV-1"])


def test_a_body_that_raises_leaves_neither(play: Play, booked: Callable[[], list[str]]) -> None:
    def fail(_: Any) -> Any:
        raise ValueError("no")

    state = play(Books, SCRIPT, Deps(fail))

    assert (state.steps[0].status, (state.steps[0].error or {})["type"], booked()) == ("failed", "ValueError", [])


def test_a_body_that_commits_and_then_raises_leaves_neither(play: Play, booked: Callable[[], list[str]]) -> None:
    def commit_and_fail(ctx: ToolContext[Any]) -> Any:
        ctx.session.commit()
        raise ValueError("no")

    play(Books, SCRIPT, Deps(commit_and_fail))

    assert booked() == []


def test_a_body_may_roll_back_what_it_wrote_and_write_again(play: Play, booked: Callable[[], list[str]]) -> None:
    def think_again(ctx: ToolContext[Any]) -> str:
        ctx.session.rollback()
        ctx.session.add(Booking(invoice="INV-2"))
        return "the other one"

    state = play(Books, SCRIPT, Deps(think_again))

    assert (state.steps[0].result, booked()) == ("the other one", ["INV-2"])


def test_a_constraint_that_fails_is_the_bodys_failure_and_no_lost_race(
    play: Play, booked: Callable[[], list[str]]
) -> None:
    script = [SCRIPT[0], SCRIPT[0], Finish("done")]

    state = play(Books, script, Deps())

    assert [step.status for step in state.steps] == ["done", "failed"]
    assert (state.steps[1].error or {})["type"] == "IntegrityError"
    assert booked() == ["INV-1"]


def test_a_constraint_that_fails_at_the_commit_is_the_bodys_failure_too(
    play: Play, store: RunStore, booked: Callable[[], list[str]]
) -> None:
    class Deferred(AgentRun):
        @tool(effect="transactional")
        def book(self, ctx: ToolContext[None], invoice: str) -> str:
            ctx.session.execute(text("PRAGMA foreign_keys"))
            ctx.session.add(Booking(invoice=invoice, day="never"))
            return "booked"

    engine = store.recorder.datastore.engine
    with engine.connect() as connection:
        connection.connection.driver_connection.execute("PRAGMA foreign_keys=ON")  # type: ignore[union-attr]

    state = play(Deferred, SCRIPT)

    assert (state.steps[0].status, booked()) == ("failed", [])


def test_a_result_that_cannot_be_recorded_takes_the_rows_with_it(play: Play, booked: Callable[[], list[str]]) -> None:
    state = play(Books, SCRIPT, Deps(lambda _: {1, 2}))

    error = state.steps[0].error or {}
    assert (error["type"], error["applied"], booked()) == ("NotRecordable", False, [])


def test_a_lost_race_takes_the_rows_with_it(play: Play, store: RunStore, booked: Callable[[], list[str]]) -> None:
    moved: list[str] = []

    def overtake(ctx: ToolContext[Any]) -> str:
        ctx.session.flush()
        connection = ctx.session.connection().connection.driver_connection
        moved.append("moved")
        connection.execute(
            "INSERT INTO agent_es_events (originator_id, originator_version, topic, state) "
            "SELECT originator_id, 3, topic, state FROM agent_es_events WHERE originator_version = 2"
        )
        return "too late"

    state = play(Books, SCRIPT, Deps(overtake))

    assert moved == ["moved"]
    assert (state.steps[0].status, booked()) == ("failed", [])


def test_a_body_that_calls_the_store_is_told_at_once(play: Play, store: RunStore, booked: Any) -> None:
    def call_the_store(_: Any) -> str:
        store.start(Books, run_id="run-2", goal="another")
        return "never"

    state = play(Books, SCRIPT, Deps(call_the_store))

    assert (state.steps[0].error or {})["type"] == StoreReentered.__name__
    assert [record.run_id for record in store.runs()] == ["run-1"]


def test_a_body_that_holds_its_transaction_too_long_is_rolled_back(
    play: Play, booked: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_es.runtime.TRANSACTION_LIMIT", -1.0)

    state = play(Books, SCRIPT, Deps())

    assert ((state.steps[0].error or {})["type"], booked()) == ("TransactionLimit", [])


def test_another_writer_goes_on_after_it(play: Play, store: RunStore, booked: Callable[[], list[str]]) -> None:
    for nth in range(5):
        play(Books, [CallTool("book", {"invoice": f"INV-{nth}"}), Finish("done")], Deps(), run_id=f"run-{nth}")

    assert booked() == [f"INV-{nth}" for nth in range(5)]


def test_a_failure_is_retried_where_the_tool_says_so(play: Play, booked: Callable[[], list[str]]) -> None:
    class Stubborn(AgentRun):
        @tool(effect="transactional", retry=Retry(max_attempts=3, initial=0))
        def book(self, ctx: ToolContext[Any], invoice: str) -> int:
            ctx.session.add(Booking(invoice=invoice))
            if ctx.attempt < 3:
                raise ConnectionError
            return ctx.attempt

    state = play(Stubborn, SCRIPT)

    assert (state.steps[0].result, booked()) == (3, ["INV-1"])


def test_the_session_is_there_for_a_transactional_tool_only(play: Play) -> None:
    class Wrong(AgentRun):
        @tool(effect="read")
        def book(self, ctx: ToolContext[Any], invoice: str) -> str:
            ctx.session.add(Booking(invoice=invoice))
            return "booked"

    assert "TRANSACTIONAL tool only" in (play(Wrong, SCRIPT).steps[0].error or {})["message"]


def test_an_asynchronous_transactional_tool_is_refused_where_it_is_declared() -> None:
    with pytest.raises(BadTool, match="make it synchronous"):

        @tool(effect="transactional")
        async def book(ctx: ToolContext[Any]) -> None: ...


WORKER = """
import os, signal, sys
from sqlalchemy import text
from agent_es import AgentRun, CallTool, Finish, RunStore, ScriptedDecider, ToolContext, tool
from agent_es.testing import CrashingRunner, CrashPoint, sigkill

class Books(AgentRun):
    @tool(effect="transactional")
    def book(self, ctx: ToolContext, invoice: str) -> str:
        ctx.session.execute(text("INSERT INTO bookings (invoice) VALUES (:i)"), {"i": invoice})
        if sys.argv[2] == "body":
            os.kill(os.getpid(), signal.SIGKILL)
        return "booked"

at = None if sys.argv[2] in ("body", "none") else CrashPoint(int(sys.argv[2]), sys.argv[3])
plan = ScriptedDecider([CallTool("book", {"invoice": "INV-1"}), Finish("done")])
CrashingRunner(RunStore(sys.argv[1]), plan, at=at, die=sigkill).run(Books, run_id="run-1", goal="book")
"""


@pytest.mark.crash
@pytest.mark.parametrize(
    ("where", "side"), [("body", ""), *((str(n), side) for n in range(1, 6) for side in ("before", "after"))]
)
def test_a_process_killed_there_books_once(
    where: str, side: str, store: RunStore, booked: Callable[[], list[str]], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", WORKER, f"sqlite:///{tmp_path / 'runs.db'}"]

    killed = subprocess.run([*command, where, side], check=False, capture_output=True)
    ended = subprocess.run([*command, "none"], check=False, capture_output=True)

    assert (killed.returncode, ended.returncode) == (-signal.SIGKILL, 0), ended.stderr
    assert booked() == ["INV-1"]
    assert store.load("run-1").status is Status.DONE
