"""Writing beside an append: a user's rows and the run's events commit in one transaction, or neither does."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import eventsourcing.persistence as es
import pytest
from sqlalchemy import text

from agent_es import AgentRun, CallTool, RunStore, tool
from agent_es.errors import NotApplied, RunMoved, StoreBusy, StoreReentered
from agent_es.run import Planned
from agent_es.store.projection import ALL, row_of

Sql = Callable[..., list[tuple[Any, ...]]]
ROWS = f"SELECT {', '.join(ALL)} FROM agent_es_runs"  # noqa: S608
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


class Books(AgentRun):
    @tool(effect="transactional")
    def book(self, invoice: str) -> str: ...  # type: ignore[empty-body]


@pytest.fixture
def run(store: RunStore, sql: Sql) -> Books:
    """A run with a step that was started, beside a table of the user's own."""
    sql("CREATE TABLE bookings (invoice TEXT PRIMARY KEY)")
    store.start(Books, run_id="run-7f3a", goal="Book INV-1")
    begun = store.aggregate(Books, "run-7f3a")
    begun.record_turn([Planned(CallTool("book"), '{"invoice":"INV-1"}', key="k")], at_once=1)
    store.save(begun)
    return begun


def book(session: Any, invoice: str = "INV-1") -> None:
    session.execute(text("INSERT INTO bookings VALUES (:invoice)"), {"invoice": invoice})


def booking(run: AgentRun) -> Callable[[Any], None]:
    """Return an act that books and records the result."""

    def act(session: Any) -> None:
        book(session)
        run.record_result(0, '"booked"')

    return act


def nothing_happened(store: RunStore, sql: Sql) -> bool:
    return store.load("run-7f3a").version == 2 and sql("SELECT * FROM bookings") == []


def test_what_was_written_and_what_happened_commit_together(store: RunStore, run: Books, sql: Sql) -> None:
    store.transact(run, booking(run))

    loaded = store.load("run-7f3a")
    assert loaded == run.state
    assert (loaded.steps[0].result, run.pending_events) == ("booked", [])
    assert sql("SELECT * FROM bookings") == [("INV-1",)]
    assert sql(ROWS) == [row_of(loaded)[1]]


class Upset(Exception):
    """The user's own."""


@pytest.mark.parametrize("committing", [False, True])
def test_where_the_act_raises_neither_is_there_and_the_run_is_as_it_was(
    store: RunStore,
    run: Books,
    sql: Sql,
    committing: bool,  # noqa: FBT001
) -> None:
    before = run.state

    def act(session: Any) -> None:
        booking(run)(session)
        if committing:
            session.commit()
        raise Upset

    with pytest.raises(Upset):
        store.transact(run, act)

    assert nothing_happened(store, sql)
    assert (run.state, run.version, run.pending_events) == (before, 2, [])
    store.transact(run, booking(run))
    assert store.load("run-7f3a").steps[0].result == "booked"


def test_what_the_act_rolled_back_itself_is_not_there_and_what_it_wrote_after_is(
    store: RunStore, run: Books, sql: Sql
) -> None:
    def think_again(session: Any) -> None:
        book(session, "INV-2")
        session.rollback()
        booking(run)(session)

    store.transact(run, think_again)

    assert sql("SELECT * FROM bookings") == [("INV-1",)]


def test_what_the_database_refuses_was_not_applied(store: RunStore, run: Books, sql: Sql) -> None:
    def twice(session: Any) -> None:
        booking(run)(session)
        book(session)

    with pytest.raises(NotApplied, match=r"the database refused the transaction: (?i:.*unique)"):
        store.transact(run, twice)

    assert nothing_happened(store, sql)
    assert run.pending_events == []


def test_the_slower_of_two_workers_writes_nothing(store: RunStore, run: Books, sql: Sql) -> None:
    slower = store.aggregate(Books, "run-7f3a")
    run.record_start(0)
    store.save(run)

    with pytest.raises(RunMoved, match="run run-7f3a: another worker appended seq 2 first"):
        store.transact(slower, booking(slower))

    assert store.load("run-7f3a") == run.state
    assert sql("SELECT * FROM bookings") == []


def test_in_an_act_the_store_is_not_to_be_called_and_after_it_it_is(store: RunStore, run: Books, sql: Sql) -> None:
    def call_the_store(_: Any) -> None:
        store.start(Books, run_id="run-2", goal="another")

    with pytest.raises(StoreReentered):
        store.transact(run, call_the_store)

    assert nothing_happened(store, sql)
    assert store.start(Books, run_id="run-2", goal="another").version == 1


@on_sqlite
def test_while_an_act_holds_the_lock_others_wait_and_read(
    store: RunStore, run: Books, open_store: Callable[..., RunStore]
) -> None:
    other = open_store()
    other.recorder.datastore.patience = 0.05
    seen: list[object] = []

    def look() -> None:
        seen.append(other.load("run-7f3a").version)
        try:
            other.start(Books, run_id="run-2", goal="another")
        except StoreBusy as busy:
            seen.append(type(busy))

    def act(session: Any) -> None:
        booking(run)(session)
        elsewhere = threading.Thread(target=look)
        elsewhere.start()
        elsewhere.join()

    store.transact(run, act)

    assert seen == [2, StoreBusy]


def test_a_commit_whose_answer_was_lost_is_found_and_not_made_again(
    store: RunStore, run: Books, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    lending = store.recorder.datastore.lending

    @contextmanager
    def losing_the_answer() -> Iterator[Any]:
        with lending() as lent:
            yield lent
        raise es.OperationalError("the answer is lost")

    monkeypatch.setattr(store.recorder.datastore, "lending", losing_the_answer)

    store.transact(run, booking(run))

    assert store.load("run-7f3a") == run.state
    assert (run.version, run.pending_events) == (3, [])
    assert sql("SELECT * FROM bookings") == [("INV-1",)]


def test_a_commit_whose_answer_was_lost_and_whose_place_another_took_stops_the_execution(
    store: RunStore, run: Books, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    lending = store.recorder.datastore.lending
    other = store.aggregate(Books, "run-7f3a")
    other.record_doubt(0, "the worker was lost")

    @contextmanager
    def losing_to_another() -> Iterator[Any]:
        with suppress(ZeroDivisionError), lending() as lent:
            yield lent
            raise ZeroDivisionError  # the transaction is rolled back
        store.save(other)
        raise es.OperationalError("the answer is lost")

    monkeypatch.setattr(store.recorder.datastore, "lending", losing_to_another)

    with pytest.raises(RunMoved):
        store.transact(run, booking(run))

    assert store.load("run-7f3a") == other.state
    assert (run.version, run.pending_events) == (2, [])
    assert sql("SELECT * FROM bookings") == []


def test_a_commit_that_never_arrived_leaves_neither(
    store: RunStore, run: Books, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    lending = store.recorder.datastore.lending

    @contextmanager
    def failing_to_commit() -> Iterator[Any]:
        with lending() as lent:
            yield lent
            raise es.OperationalError("disk I/O error")

    monkeypatch.setattr(store.recorder.datastore, "lending", failing_to_commit)

    with pytest.raises(Exception, match="disk I/O error"):
        store.transact(run, booking(run))

    assert nothing_happened(store, sql)
    assert (run.version, run.pending_events) == (2, [])
