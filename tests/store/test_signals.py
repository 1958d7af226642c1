"""What comes to a run from outside: kept once, whoever brings it, beside whoever moves the run."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from agent_es import AgentRun, CallTool, Finish, Runner, RunStore, ScriptedDecider, Status, WaitFor, Worker, tool
from agent_es.errors import (
    BadRunId,
    BadSignal,
    BadTag,
    IllegalEvent,
    LeaseLost,
    RunMoved,
    RunNotFound,
    RunUnreadable,
    SignalConflict,
    StoreBusy,
    StoreUnusable,
)
from agent_es.owners import Owner
from agent_es.run import Planned
from agent_es.store.arrivals import Delivered

Sql = Callable[..., list[tuple[Any, ...]]]
WEEK = timedelta(days=7)
SIDE = "agent_es_tags", "agent_es_deliveries"


class Collect(AgentRun):
    decider = ScriptedDecider([WaitFor("paid", WEEK), Finish("paid")])

    @tool(effect="transactional")
    def book(self, invoice: str) -> str: ...  # type: ignore[empty-body]


def begun(store: RunStore, run_id: str = "run-1", **tags: str) -> Collect:
    store.start(Collect, run_id=run_id, goal="collect", tags=tags)
    return store.aggregate(Collect, run_id)


def waiting(store: RunStore, run_id: str = "run-1", **tags: str) -> None:
    begun(store, run_id, **tags)
    assert Runner(store, agents=[Collect]).resume(run_id).waiting_for == "signal"


def names(store: RunStore, run_id: str = "run-1") -> list[str]:
    return [entry.type for entry in store.journal(run_id)]


def beside(sql: Sql) -> list[list[tuple[Any, ...]]]:
    return [sorted(sql(f"SELECT * FROM {table}")) for table in SIDE]  # noqa: S608


# Once.


def test_a_signal_lets_the_run_go_on_and_its_row_says_so(store: RunStore) -> None:
    waiting(store)
    asleep = store.record("run-1")

    delivered = store.signal("run-1", "paid", {"amount": "180.00"})

    assert (asleep.waiting_for, asleep.lease_owner) == ("signal", None)
    assert asleep.wake_at == store.load("run-1").steps[0].wake_at
    assert delivered == [Delivered("run-1", 3, is_new=True)]
    assert (store.record("run-1").status, store.record("run-1").wake_at) == (Status.RUNNING, None)
    assert Runner(store, agents=[Collect]).resume("run-1").status is Status.DONE
    woken = store.load("run-1").steps[0].woken
    assert woken is not None
    assert (woken.reason, woken.payload) == ("signal", {"amount": "180.00"})


def test_a_delivery_is_recorded_once_however_often_it_comes_also_after_the_end(store: RunStore) -> None:
    waiting(store)

    told = [store.signal("run-1", "paid", 1, delivery_id="evt-1") for _ in range(3)]
    Runner(store, agents=[Collect]).resume("run-1")
    after = store.signal("run-1", "paid", 1, delivery_id="evt-1")

    assert [[it.is_new for it in delivered] for delivered in (*told, after)] == [[True], [False], [False], [False]]
    assert {it.seq for delivered in (*told, after) for it in delivered} == {3}
    assert names(store).count("signal_received") == 1


@pytest.mark.parametrize(("name", "payload"), [("paid", 2), ("paid", True), ("returned", 1)])
def test_a_delivery_that_brings_something_else_is_refused(store: RunStore, name: str, payload: Any) -> None:
    waiting(store)
    store.signal("run-1", "paid", 1, delivery_id="evt-1")

    with pytest.raises(
        SignalConflict, match=r"run run-1: the delivery 'evt-1' brought something else before, at seq 3"
    ):
        store.signal("run-1", name, payload, delivery_id="evt-1")

    assert names(store).count("signal_received") == 1


def test_one_delivery_may_come_to_many_runs_and_many_at_once(store: RunStore) -> None:
    for n in range(3):
        begun(store, f"run-{n}")

    def deliver(n: int) -> bool:
        return store.signal(f"run-{n % 3}", "paid", n % 3, delivery_id="evt-1")[0].is_new

    with ThreadPoolExecutor(8) as pool:
        new = [*pool.map(deliver, range(24))]

    assert sum(new) == 3
    assert [len(store.load(f"run-{n}").signals) for n in range(3)] == [1, 1, 1]


def test_an_answer_that_was_lost_is_no_second_signal(store: RunStore) -> None:
    waiting(store)
    datastore, lose = store.recorder.datastore, [True]
    commit = datastore.writing

    def losing(**options: Any) -> Any:
        return _Losing(commit(**options), lose)

    datastore.writing = losing  # type: ignore[method-assign]

    assert [it.is_new for it in store.signal("run-1", "paid")] == [False]
    assert names(store).count("signal_received") == 1


class _Losing:
    """A transaction whose answer is lost the first time."""

    def __init__(self, inner: Any, lose: list[bool]) -> None:
        self._inner, self._lose = inner, lose

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(self, *error: object) -> Any:
        done = self._inner.__exit__(*error)
        if self._lose:
            self._lose.clear()
            import eventsourcing.persistence as es  # noqa: PLC0415

            raise es.OperationalError("the connection was lost")
        return done


# For whom.


def test_a_signal_finds_the_runs_with_a_tag_that_are_not_over(store: RunStore) -> None:
    for n, invoice in enumerate(["INV-1", "INV-2", "INV-1", "INV-1"]):
        begun(store, f"run-{n}", invoice=invoice, team="a")
    store.cancel("run-3", by="ann")

    delivered = store.signal(tag=("invoice", "INV-1"), name="paid", delivery_id="evt-1")
    again = store.signal(tag=("invoice", "INV-1"), name="paid", delivery_id="evt-1")

    assert [(it.run_id, it.is_new) for it in delivered] == [("run-0", True), ("run-2", True)]
    assert [(it.run_id, it.is_new) for it in again] == [("run-0", False), ("run-2", False)]
    assert {record.run_id for record in store.runs(tag=("invoice", "INV-1"))} == {"run-0", "run-2", "run-3"}
    assert [record.run_id for record in store.runs(tag=("invoice", "INV-1"), status="cancelled")] == ["run-3"]
    assert store.runs(tag=("invoice", "team")) == []


def test_what_is_too_long_for_an_index_is_found_all_the_same(store: RunStore) -> None:
    value = "x" * 5_000
    begun(store, "run-1", text=value, other="with\0nul")

    assert [record.run_id for record in store.runs(tag=("text", value))] == ["run-1"]
    assert [record.run_id for record in store.runs(tag=("other", "with\0nul"))] == ["run-1"]
    assert store.signal(tag=("text", value), name="paid")[0].is_new
    assert store.runs(tag=("text", "\ud800")) == []
    assert store.runs(tag=("text", value + "y")) == store.runs(tag=("text", value[:200])) == []


def test_a_tag_that_is_no_text_is_refused(store: RunStore) -> None:
    tags: Any = {"n": 1}

    with pytest.raises(BadTag, match="'n', 1"):
        store.start(Collect, run_id="run-1", goal="collect", tags=tags)
    with pytest.raises(BadTag):
        store.runs(tag=("a", "b", "c"))  # type: ignore[arg-type]  # refused


def test_a_signal_that_nobody_could_get_is_told_to_its_sender(store: RunStore) -> None:
    begun(store, "run-1", invoice="INV-1")
    store.cancel("run-1", by="ann")

    with pytest.raises(RunNotFound, match="no run 'run-9'"):
        store.signal("run-9", "paid")
    with pytest.raises(RunNotFound, match="no run has the tag invoice=INV-9"):
        store.signal(tag=("invoice", "INV-9"), name="paid")
    with pytest.raises(IllegalEvent, match="run run-1 is cancelled: SignalReceived cannot happen to it"):
        store.signal("run-1", "paid")
    with pytest.raises(IllegalEvent, match="run-1: every run with the tag invoice=INV-1 is over"):
        store.signal(tag=("invoice", "INV-1"), name="paid")


@pytest.mark.parametrize(
    "wrong",
    [
        {"run_id": "run-1", "name": ""},
        {"run_id": "run-1", "name": "a\0b"},
        {"run_id": "run-1", "name": "paid", "delivery_id": ""},
        {"name": "paid"},
        {"run_id": "run-1", "tag": ("a", "b"), "name": "paid"},
        {"tag": ("a",), "name": "paid"},
        {"tag": ("a", 1), "name": "paid"},
        {"run_id": "\ud800", "name": "paid"},
        {"run_id": "a\0b", "name": "paid"},
        {"run_id": "run-1", "name": "ended:run-1.0"},
    ],
    ids=ascii,
)
def test_a_signal_that_cannot_be_is_refused(store: RunStore, wrong: dict[str, Any]) -> None:
    begun(store)

    with pytest.raises((BadSignal, BadTag, BadRunId)):
        store.signal(**wrong)

    assert store.load("run-1").version == 1


def test_nothing_is_appended_to_a_run_that_cannot_be_read(store: RunStore, sql: Sql) -> None:
    begun(store)
    sql("UPDATE agent_es_events SET topic = 'agent_es:FromTheFuture'")

    with pytest.raises(RunUnreadable):
        store.signal("run-1", "paid")

    assert sql("SELECT cursor FROM agent_es_runs") == [(1,)]


# In the caller's transaction.


@pytest.fixture
def engine(url: str, store: RunStore) -> Iterator[Engine]:
    """The caller's own engine, with a table of payments."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE payments (invoice VARCHAR(20) PRIMARY KEY)"))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("commits", [True, False])
def test_a_payment_and_its_signal_are_one_commit(store: RunStore, engine: Engine, commits: bool) -> None:  # noqa: FBT001
    waiting(store, invoice="INV-1")

    with Session(engine) as session:
        session.execute(text("INSERT INTO payments VALUES ('INV-1')"))
        store.signal(tag=("invoice", "INV-1"), name="paid", delivery_id="evt-1", session=session)
        assert store.record("run-1").status is Status.WAITING
        (session.commit if commits else session.rollback)()

    with Session(engine) as session:
        assert len(session.execute(text("SELECT * FROM payments")).all()) == commits
    assert names(store).count("signal_received") == commits
    assert store.record("run-1").status is (Status.RUNNING if commits else Status.WAITING)


def test_a_refusal_leaves_the_callers_transaction_as_it_is(store: RunStore, engine: Engine) -> None:
    begun(store)
    store.signal("run-1", "paid", 1, delivery_id="evt-1")

    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO payments VALUES ('INV-1')"))
        for refused in ({"run_id": "run-9"}, {"run_id": "run-1", "payload": 2, "delivery_id": "evt-1"}):
            with pytest.raises((RunNotFound, SignalConflict)):
                store.signal(name="paid", session=session, **refused)
        with pytest.raises(RunNotFound):
            store.cancel("run-9", by="ann", session=session)

    with Session(engine) as session:
        assert len(session.execute(text("SELECT * FROM payments")).all()) == 1


# Beside whoever moves the run.


@pytest.mark.parametrize("held", [True, False])
def test_an_append_comes_after_what_came_first_and_is_not_refused(store: RunStore, held: bool) -> None:  # noqa: FBT001
    run = begun(store)
    if held:
        run.lease = store.leases.take("run-1", Owner.here(), 30.0)
    run.record_turn([Planned(CallTool("book"), '{"invoice":"INV-1"}', key="k")], at_once=1)
    store.signal("run-1", "paid", 1)
    store.signal("run-1", "paid", 2)

    store.save(run)

    assert names(store) == ["run_started", "signal_received", "signal_received", "llm_decided"]
    assert run.state == store.load("run-1")
    assert [event.originator_version for event in run.appended] == [4]


def test_a_signal_that_comes_while_a_body_holds_its_transaction_keeps_nothing_from_it(
    store: RunStore, database: str
) -> None:
    run = begun(store)
    run.record_turn([Planned(CallTool("book"), '{"invoice":"INV-1"}', key="k")], at_once=1)
    store.save(run)

    def act(_: Any) -> None:
        if database == "postgres":  # there is no lock that one would wait for
            with ThreadPoolExecutor(1) as pool:
                pool.submit(store.signal, "run-1", "paid").result(10)
        run.record_result(0, '"booked"')

    if database == "sqlite":
        store.signal("run-1", "paid")
    store.transact(run, act)

    assert names(store)[2:] == ["signal_received", "tool_result"]
    assert run.state == store.load("run-1")


def test_a_signal_does_not_count_as_getting_anywhere(store: RunStore) -> None:
    begun(store)
    for _ in range(3):
        store.leases.release(store.leases.take("run-1", Owner.here(), 30.0))
        lease = store.leases.take("run-1", Owner.here(), 30.0)
        store.leases.defer(lease, 0.0, counts=True)

    before = store.record("run-1").claims
    store.signal("run-1", "paid")

    assert before == store.record("run-1").claims == 3


def test_what_others_did_to_a_run_under_no_lease_refuses_an_append_still(store: RunStore) -> None:
    slower, faster = begun(store), store.aggregate(Collect, "run-1")
    slower.record_parked("slower")
    store.signal("run-1", "paid")
    faster.record_parked("faster")
    store.save(faster)

    with pytest.raises(RunMoved, match="another worker appended seq 1 first"):
        store.save(slower)


def test_a_lease_that_was_lost_is_lost_however_much_came(store: RunStore) -> None:
    run = begun(store)
    run.lease = store.leases.take("run-1", Owner.here(), 30.0)
    store.leases.take("run-1", Owner.here(), 30.0, force=True)
    store.signal("run-1", "paid")
    run.record_turn([Planned(CallTool("book"), '{"invoice":"INV-1"}', key="k")], at_once=1)

    with pytest.raises(LeaseLost):
        store.save(run)


def test_a_body_whose_lease_was_lost_takes_nothing_in(store: RunStore) -> None:
    run = begun(store)
    run.lease = store.leases.take("run-1", Owner.here(), 30.0)
    run.record_turn([Planned(CallTool("book"), '{"invoice":"INV-1"}', key="k")], at_once=1)
    store.save(run)
    other = store.aggregate(Collect, "run-1")
    other.lease = store.leases.take("run-1", Owner.here(), 30.0, force=True)
    other.record_start(0)
    store.save(other)

    with pytest.raises(LeaseLost):
        store.transact(run, lambda _: run.record_result(0, '"booked"'))

    assert run.state.version == 2
    assert store.load("run-1") == other.state


def test_nobody_who_appends_and_nobody_who_signals_waits_for_ever(store: RunStore) -> None:
    run, over = begun(store), threading.Event()
    run.lease = store.leases.take("run-1", Owner.here(), 30.0)
    sent: list[Delivered] = []

    def send() -> None:
        while not over.is_set():
            sent.extend(store.signal("run-1", "paid", len(sent)))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for n in range(30):
            run.record_turn([Planned(CallTool("look"), "{}")], at_once=1)
            store.save(run)
            run.record_result(n, "1")
            store.save(run)
    finally:
        over.set()
        sender.join(30)

    state = store.load("run-1")
    assert [step.status for step in state.steps] == ["done"] * 30
    assert [signal.payload for signal in state.signals] == [*range(len(sent))]
    assert sent


def test_who_signals_a_run_whose_row_somebody_holds_is_told_within_the_patience(
    open_store: Callable[..., RunStore],
) -> None:
    store, stuck = open_store(patience=0.3), open_store()
    begun(store)

    with stuck.recorder.datastore.writing() as connection:
        stuck.recorder.hold(connection, "run-1")
        began = time.monotonic()
        with pytest.raises(StoreBusy):
            store.signal("run-1", "paid")
        took = time.monotonic() - began

    assert took < 5
    assert store.load("run-1").version == 1


# What is projected.


def test_what_stands_beside_a_run_can_be_made_again(store: RunStore, sql: Sql) -> None:
    waiting(store, invoice="INV-1", team="a")
    store.signal("run-1", "paid", 1, delivery_id="evt-1")
    store.signal("run-1", "other", 2, delivery_id="evt-2")
    before = beside(sql)
    assert [len(rows) for rows in before] == [2, 2]
    for table in SIDE:
        sql(f"DELETE FROM {table}")  # noqa: S608

    store.rebuild()

    assert beside(sql) == before
    assert not store.signal("run-1", "paid", 1, delivery_id="evt-1")[0].is_new


def test_a_rebuild_leaves_what_stands_beside_a_run_that_it_cannot_read(store: RunStore, sql: Sql) -> None:
    for n in range(2):
        begun(store, f"run-{n}", invoice=f"INV-{n}")
        store.signal(f"run-{n}", "paid", delivery_id="evt-1")
    before = beside(sql)
    sql("UPDATE agent_es_events SET topic = 'agent_es:FromTheFuture' WHERE id = 1")

    store.rebuild()

    assert beside(sql) == before


def test_a_journal_that_is_put_elsewhere_takes_along_what_stands_beside_it(
    store: RunStore, sql: Sql, open_store: Callable[..., RunStore]
) -> None:
    waiting(store, invoice="INV-1")
    store.signal("run-1", "paid", delivery_id="evt-1")
    events = [entry.event for entry in store.journal("run-1")]
    before = beside(sql)
    for table in ("agent_es_events", "agent_es_runs", *SIDE):
        sql(f"DELETE FROM {table}")  # noqa: S608

    store.put_journals({"run-1": events})

    assert beside(sql) == before
    assert not store.signal("run-1", "paid", delivery_id="evt-1")[0].is_new


# Cancelling.


def test_a_run_that_was_cancelled_is_over_and_a_second_time_changes_nothing(store: RunStore) -> None:
    waiting(store)

    first = store.cancel("run-1", by="ann", reason="the order is gone")
    second = store.cancel("run-1", by="bob")

    assert first == second == store.load("run-1")
    assert (first.status, first.failure) == (Status.CANCELLED, "cancelled by ann: the order is gone")
    assert store.record("run-1").wake_at is None
    assert Worker(store, agents=[Collect]).run(until_idle=True).steps == 0


def test_a_worker_finds_its_run_cancelled_and_stops_and_what_it_knows_is_kept(store: RunStore) -> None:
    asked = []

    class Slow(AgentRun):
        @tool(effect="at_most_once")
        def pay(self) -> str:
            store.cancel("run-1", by="ann")
            return "paid"

        @tool(effect="read")
        def look(self) -> str:
            asked.append("look")
            return "seen"

    script = ScriptedDecider([[CallTool("pay"), CallTool("look")], CallTool("look"), Finish("done")])

    with suppress(RunMoved):
        Runner(store, script, at_once=1).run(Slow, run_id="run-1", goal="pay")

    state = store.load("run-1")
    assert state.status is Status.CANCELLED
    assert state.steps[0].result == "paid"
    assert asked == []


def test_cancel_and_finish_at_one_moment_are_one_end(store: RunStore) -> None:
    for n in range(20):
        run = begun(store, f"run-{n}")
        run.lease = store.leases.take(f"run-{n}", Owner.here(), 30.0)
        run.record_answer('"done"')
        together, told = threading.Barrier(2), []

        def finish(run: AgentRun = run, together: threading.Barrier = together, told: list[Any] = told) -> None:
            together.wait()
            try:
                store.save(run)
                told.append("done")
            except RunMoved:
                told.append("refused")

        finishing = threading.Thread(target=finish)
        finishing.start()
        together.wait()
        state = store.cancel(f"run-{n}", by="ann")
        finishing.join(30)

        end = store.load(f"run-{n}")
        assert state == end
        assert told == ["done" if end.status is Status.DONE else "refused"]
        assert end.version == 2


def test_a_session_of_another_database_is_refused(store: RunStore) -> None:
    begun(store)
    elsewhere = create_engine("sqlite://")

    with Session(elsewhere) as session, pytest.raises(StoreUnusable, match="one commit is of one database"):
        store.signal("run-1", "paid", session=session)
    elsewhere.dispose()
