"""What only PostgreSQL does: one statement per append, bounded waits, lost connections, a server that is killed."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import eventsourcing.persistence as es
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from agent_es import AgentRun, CallTool, Finish, Runner, RunStore, ScriptedDecider, Status, tool
from agent_es.crashpoints import AFTER_COMMIT, BEFORE_COMMIT, watching
from agent_es.errors import KeyReused, RunMoved, StoreBusy, StoreUnusable
from agent_es.run import Planned
from agent_es.store.projection import ALL, CURSOR, Change, change_of, claims_of, row_of
from agent_es.testing import FrozenClock

Sql = Callable[..., list[tuple[Any, ...]]]
ROWS = f"SELECT {', '.join(ALL)} FROM agent_es_runs ORDER BY run_id"  # noqa: S608
pytestmark = pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


@pytest.fixture(autouse=True)
def _on_postgres(database: str) -> None:
    """Every test here."""


class Refund(AgentRun):
    @tool(effect="idempotent", key="{order_id}:refund")
    def refund(self, order_id: str) -> str:
        return order_id

    @tool(effect="transactional")
    def book(self, invoice: str) -> str: ...  # type: ignore[empty-body]


def refund(*order_ids: str) -> list[Planned]:
    return [Planned(CallTool("refund"), f'{{"order_id":"{it}"}}', key=f"{it}:refund") for it in order_ids]


def begun(store: RunStore, run_id: str = "run-7f3a") -> Refund:
    store.start(Refund, run_id=run_id, goal="Refund ORD-3300")
    return store.aggregate(Refund, run_id)


def decided(store: RunStore, run_id: str, *order_ids: str) -> Refund:
    run = begun(store, run_id)
    run.record_turn(refund(*order_ids), at_once=len(order_ids))
    return run


# One statement.


@pytest.fixture
def statements(sql: Sql, store: RunStore) -> Callable[[], int]:
    """Counts the transactions in which somebody wrote."""
    sql("SELECT pg_current_xact_id()")
    return lambda: int(sql("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")[0][0])


@pytest.mark.parametrize("order_ids", [(), ("A",), ("A", "B", "C")], ids=len)
def test_an_append_is_one_transaction_whatever_it_holds(
    store: RunStore, sql: Sql, statements: Callable[[], int], order_ids: tuple[str, ...]
) -> None:
    run = begun(store)
    run.record_turn(refund(*order_ids), at_once=1) if order_ids else run.record_answer("1")
    before = statements()

    store.save(run)

    assert statements() == before + 1
    assert store.load("run-7f3a") == run.state
    assert sql(ROWS) == [row_of(run.state)[1]]
    assert sorted(sql("SELECT key FROM agent_es_keys")) == [(f"{it}:refund",) for it in order_ids]


def test_a_step_that_is_decided_and_started_in_one_append_claims_its_key_once(store: RunStore, sql: Sql) -> None:
    run = decided(store, "run-7f3a", "A")
    run.record_start(0)

    store.save(run)

    assert store.load("run-7f3a") == run.state
    assert sql("SELECT key, idx FROM agent_es_keys") == [("A:refund", 0)]


def test_what_one_key_refuses_is_refused_as_a_whole(store: RunStore, sql: Sql) -> None:
    store.save(decided(store, "run-1", "B"))
    second = decided(store, "run-2", "A", "B", "C")
    before = sql(ROWS)

    with pytest.raises(KeyReused, match="step 0 of run run-1") as caught:
        store.save(second)

    assert caught.value.idx == 1
    assert sql(ROWS) == before
    assert sql("SELECT key FROM agent_es_keys") == [("B:refund",)]
    assert store.load("run-2").version == 1


def test_an_append_that_is_both_late_and_without_its_key_is_late(store: RunStore) -> None:
    store.save(decided(store, "run-1", "A"))
    faster, slower = begun(store, "run-2"), store.aggregate(Refund, "run-2")
    faster.record_answer("1")
    store.save(faster)
    slower.record_turn(refund("A"), at_once=1)

    with pytest.raises(RunMoved):
        store.save(slower)


@pytest.mark.parametrize("count", [999, 1_000, 1_001, 25_000])
def test_an_append_may_be_of_any_length(store: RunStore, sql: Sql, count: int) -> None:
    run = decided(store, "run-7f3a", "A")
    (first,) = [store.mapper.to_stored_event(event) for event in run.pending_events]
    events = [replace(first, originator_version=2 + n) for n in range(count)]
    row = row_of(run.state)
    change = Change(CURSOR, (count + 1, *row.values[-2:]))

    store.recorder.append(events, change, claims_of("run-7f3a", run.pending_events))

    assert store.record("run-7f3a").cursor == count + 1
    assert store.recorder.rows(first.originator_id, after=1) == [
        (it.originator_version, it.topic, it.state) for it in events
    ]
    assert sql("SELECT bool_and(id = originator_version) FROM agent_es_events") == [(True,)]


@pytest.mark.parametrize("place", [BEFORE_COMMIT, AFTER_COMMIT])
def test_a_worker_may_die_before_an_append_is_sent_and_after_its_answer(store: RunStore, place: str) -> None:
    run = decided(store, "run-7f3a", "A")

    def die(reached: str, _: object) -> None:
        if reached == place:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), watching(die):
        store.save(run)

    assert store.load("run-7f3a").version == (1 if place == BEFORE_COMMIT else 2)
    assert store.start(Refund, run_id="another", goal="go on").version == 1


def test_where_a_row_or_an_event_cannot_be_written_nothing_is(store: RunStore, sql: Sql) -> None:
    run = decided(store, "run-7f3a", "A")
    sql("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE check_violation; END $$")
    sql("CREATE TRIGGER no BEFORE INSERT ON agent_es_events FOR EACH ROW EXECUTE FUNCTION no()")
    before = sql(ROWS)

    with pytest.raises(RunMoved):
        store.save(run)

    assert (sql(ROWS), sql("SELECT * FROM agent_es_keys")) == (before, [])


def test_texts_that_hold_nul_are_kept_to_the_letter_in_the_events_and_made_safe_in_the_row(store: RunStore) -> None:
    state = store.start(Refund, run_id="run-7f3a", goal="a\0b", input="c\0d", tags={"e\0": "f\0"})

    assert store.load("run-7f3a") == state
    assert (state.goal, state.input) == ("a\0b", "c\0d")
    assert store.record("run-7f3a").goal == "a\ufffdb"
    assert store.record("run-7f3a").tags == {"e\0": "f\0"}
    assert store.rebuild() == 1


# Waits.


def test_every_connection_bounds_its_waits(open_store: Callable[..., RunStore]) -> None:
    store = open_store(patience=40.0)
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")

    with store.recorder.datastore.raw() as connection:
        set_to = [connection.execute(f"SHOW {name}").fetchone()[0] for name in names]
    with store.recorder.datastore.transaction(commit=False) as session:
        set_to += [session.execute(text(f"SHOW {name}")).scalar_one() for name in names]

    assert set_to == ["40s", "80s", "15s"] * 2


@pytest.mark.parametrize(("asked", "given"), [("off", "on"), ("on", "on"), ("remote_apply", "remote_apply")])
def test_a_commit_is_on_the_disk_whatever_the_role_is_set_to(url: str, asked: str, given: str) -> None:
    url = f"{url}%20-csynchronous_commit%3D{asked}"

    with RunStore(url) as store, store.recorder.datastore.raw() as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == (given,)


@pytest.fixture
def other(url: str) -> Iterator[Any]:
    """Another process's connection."""
    import psycopg  # noqa: PLC0415  # only where PostgreSQL is asked for

    with suppress(psycopg.OperationalError), psycopg.connect(url.replace("+psycopg", "")) as connection:
        yield connection


def test_a_writer_that_waited_too_long_is_told_and_nothing_is_recorded(
    open_store: Callable[..., RunStore], other: Any
) -> None:
    store = open_store(patience=0.1)
    run = decided(store, "run-7f3a", "A")
    other.execute("SELECT * FROM agent_es_runs FOR UPDATE")
    began = time.monotonic()

    with pytest.raises(StoreBusy, match=r"the database was busy for 0\.1 s and nothing was recorded"):
        store.save(run)
    waited = time.monotonic() - began
    other.rollback()

    assert 0.1 <= waited < 5
    assert store.load("run-7f3a").version == 1
    store.save(run)
    assert store.load("run-7f3a") == run.state


def test_who_is_stuck_in_a_transaction_is_in_the_way_of_nobody_with_another_run(
    open_store: Callable[..., RunStore], other: Any
) -> None:
    store = open_store(patience=0.1)
    begun(store, "stuck")
    other.execute("SELECT pg_advisory_xact_lock_shared(x'6165735F66656564'::bigint)")
    other.execute("UPDATE agent_es_runs SET goal = goal WHERE run_id = 'stuck'")

    store.save(decided(store, "run-7f3a", "A"))

    assert store.load("run-7f3a").version == 2


def test_who_appends_can_be_seen_by_a_follower_until_the_commit(store: RunStore, sql: Sql) -> None:
    run = begun(store)
    run.record_answer("1")
    holders = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ShareLock' "
        "AND (classid::bigint << 32 | objid::bigint) = x'6165735F66656564'::bigint"
    )
    seen: list[Any] = []

    with store.recorder.datastore.lending() as (_, connection):
        seen += sql(holders)
        events = [store.mapper.to_stored_event(event) for event in run.pending_events]
        store.recorder.append_in(connection, events, change_of(run.state, run.recorded, run.pending_events, None), [])
        seen += sql(holders)
    seen += sql(holders)

    assert seen == [(0,), (1,), (0,)]


def test_a_writer_that_is_frozen_in_its_transaction_keeps_others_waiting_within_a_bound(
    open_store: Callable[..., RunStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_es.store.postgres.IDLE_TIMEOUT", 0.5)
    store = open_store()
    run, late = begun(store), open_store().aggregate(Refund, "run-7f3a")
    run.record_answer("1")
    late.record_answer("2")
    began, waited = time.monotonic(), list[float]()

    def freeze() -> None:
        with store.recorder.datastore.lending() as (_, connection):
            events = [store.mapper.to_stored_event(event) for event in run.pending_events]
            store.recorder.append_in(
                connection, events, change_of(run.state, run.recorded, run.pending_events, None), []
            )
            open_store().save(late)
            waited.append(time.monotonic() - began)

    with pytest.raises(es.OperationalError):
        freeze()

    assert 0.4 < waited[0] < 10
    assert store.load("run-7f3a") == late.state


def test_a_rebuild_waits_for_who_appends_and_keeps_the_next_one_waiting(
    open_store: Callable[..., RunStore], sql: Sql
) -> None:
    store, another = open_store(), open_store()
    run = decided(another, "run-7f3a", "A")
    saving = threading.Thread(target=another.save, args=(run,))
    appended: list[bool] = []

    def meanwhile(_: str) -> None:
        saving.start()
        saving.join(0.3)
        appended.append(not saving.is_alive())

    store.rebuild(meanwhile)
    saving.join()

    assert appended == [False]
    assert sql(ROWS) == [row_of(store.load("run-7f3a"))[1]]


def test_two_that_append_to_one_run_again_and_again_never_wait_for_each_other_in_a_circle(
    open_store: Callable[..., RunStore], server: Any
) -> None:
    begun(open_store())
    refused = [0, 0]
    together = threading.Barrier(2, timeout=30)

    def hammer(who: int) -> None:
        store = open_store()
        for n in range(100):
            run = store.aggregate(Refund, "run-7f3a")
            if not run.state.open_steps:
                run.record_turn(refund(f"{n}", f"{n}b"), at_once=2)
            for step in run.state.open_steps:
                run.record_result(step.idx, str(who))
            together.wait()
            try:
                store.save(run)
            except RunMoved:
                refused[who] += 1
            together.wait()

    threads = [threading.Thread(target=hammer, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert server.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'") == [(0,)]
    assert sum(refused) == 100


# Lost connections.


def cut(sql: Sql) -> None:
    sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'agent_es'")


def test_a_connection_that_was_cut_is_replaced(store: RunStore, sql: Sql) -> None:
    run = decided(store, "run-7f3a", "A")
    cut(sql)
    store.save(run)
    cut(sql)
    assert store.load("run-7f3a") == run.state
    cut(sql)
    assert [it.run_id for it in store.runs()] == ["run-7f3a"]
    cut(sql)
    assert store.recorder.max_notification_id() == 2
    cut(sql)
    assert store.rebuild() == 1


def test_an_append_whose_answer_was_lost_is_found(store: RunStore, sql: Sql) -> None:
    run = decided(store, "run-7f3a", "A")
    append = store.recorder.append

    def lose(*args: Any) -> None:
        append(*args)
        cut(sql)
        raise es.OperationalError("the connection is lost")

    store.recorder.append = lose  # type: ignore[method-assign]

    store.save(run)

    assert (store.load("run-7f3a"), run.pending_events) == (run.state, [])


def test_a_transaction_that_was_cut_before_its_commit_was_not_applied(store: RunStore, sql: Sql) -> None:
    sql("CREATE TABLE bookings (invoice TEXT PRIMARY KEY)")
    run = begun(store)
    run.record_turn([Planned(CallTool("book"), '{"invoice":"INV-1"}', key="k")], at_once=1)
    store.save(run)

    def act(session: Any) -> None:
        session.execute(text("INSERT INTO bookings VALUES ('INV-1')"))
        run.record_result(0, '"booked"')
        cut(sql)

    with pytest.raises(Exception, match="did not commit the transaction"):
        store.transact(run, act)

    assert (store.load("run-7f3a").version, sql("SELECT * FROM bookings")) == (2, [])
    store.transact(run, lambda _: run.record_result(0, '"booked"'))
    assert store.load("run-7f3a") == run.state


def test_a_body_that_swallows_an_error_of_the_database_was_not_applied(store: RunStore, sql: Sql) -> None:
    run = begun(store)
    run.record_turn([Planned(CallTool("book"), '{"invoice":"INV-1"}', key="k")], at_once=1)
    store.save(run)

    def act(session: Any) -> None:
        with suppress(Exception):
            session.execute(text("SELECT no_such_column"))
        run.record_result(0, '"booked"')

    with pytest.raises(Exception, match="the transaction"):
        store.transact(run, act)

    assert store.load("run-7f3a").version == 2


# The server.


APPENDING = """
import sys, time
from agent_es import AgentRun, CallTool
from agent_es.run import Planned
from agent_es.store import RunStore

store = RunStore(sys.argv[1])
store.start(AgentRun, run_id=sys.argv[2], goal="go on")
run = store.aggregate(AgentRun, sys.argv[2])
until, turns = time.monotonic() + 4, 0
while time.monotonic() < until:
    run.record_turn([Planned(CallTool("work"), "{}", key=f"{sys.argv[2]}:{turns}")], at_once=1)
    run.record_result(turns, str(turns))
    store.save(run)
    turns += 1
print(turns)
store.close()
"""


def test_a_server_that_is_killed_while_many_append_loses_nothing_and_doubles_nothing(
    new_server: Callable[[], Any],
) -> None:
    server = new_server()
    url = server.new_url()
    RunStore(url).close()
    program = [sys.executable, "-W", "error", "-c", APPENDING, url]
    workers = [subprocess.Popen([*program, f"run-{n}"], stdout=subprocess.PIPE, text=True) for n in range(4)]

    while len(server.execute("SELECT * FROM agent_es_runs", url=url)) < 4:
        time.sleep(0.05)
    for _ in range(4):
        time.sleep(0.3)
        server.kill()
        server.start()
    said = [worker.communicate(timeout=60)[0] for worker in workers]

    assert [worker.returncode for worker in workers] == [0] * 4
    with RunStore(url) as store:
        for n, turns in enumerate(map(int, said)):
            assert turns > 50
            assert [step.result for step in store.load(f"run-{n}").steps] == [*range(turns)]
            assert store.record(f"run-{n}").cursor == len(store.journal(f"run-{n}")) == 1 + 2 * turns
        assert store.recorder.max_notification_id() >= sum(1 + 2 * int(it) for it in said)
        assert len(server.execute("SELECT * FROM agent_es_keys", url=url)) == sum(map(int, said))


def test_a_server_that_stays_away_is_given_up_within_the_bound(new_server: Callable[[], Any]) -> None:
    server = new_server()
    with RunStore(server.new_url(), clock=FrozenClock()) as store:
        run = decided(store, "run-7f3a", "A")
        store.recorder.datastore.reconnect = 0.5
        server.kill()
        began = time.monotonic()

        with pytest.raises(Exception, match=r"(?s)run run-7f3a: nobody could tell .* resume it to find out"):
            store.save(run)
        with pytest.raises(StoreUnusable, match=r"(?s)cannot be read: .* is the server up\?"):
            store.load("run-7f3a")

        assert time.monotonic() - began < 10
        assert len(run.pending_events) == 1
        server.start()
        store.save(run)
        assert store.load("run-7f3a") == run.state


# Opening.


def test_a_server_that_is_not_there_is_told_at_once(tmp_path: Any) -> None:
    with pytest.raises(StoreUnusable, match=r"cannot be opened: .*No such file"):
        RunStore(f"postgresql:///runs?host={tmp_path}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:se:cr@t@localhost:1/runs",
        "postgresql+psycopg://ann@localhost:1/runs?password=secr@t",
        "postgresql://ann:secr@t@[localhost/runs",
        "mysql://ann:secr@t@localhost/runs",
        "postgresql+psycopg://ann:secr@t@localhost:1/runs?no_such_option=1",
        "postgresql+psycopg://ann:secr@t@localhost:port/runs",
    ],
)
def test_no_message_holds_a_password(url: str) -> None:
    with pytest.raises(StoreUnusable) as caught:
        RunStore(url)

    told = [str(caught.value), repr(caught.value), str(caught.value.__cause__)]
    assert not any("secr" in it or "cr@t" in it for it in told)


def test_no_message_of_a_store_that_is_open_holds_a_password(server: Any, url: str) -> None:
    with_password = url.replace("postgres@", "postgres:secret@")

    with RunStore(with_password) as store, pytest.raises(Exception, match=r"postgres:\*\*\*@") as caught:
        store.load("run-0")

    assert "secret" not in str(caught.value)


def test_a_plain_url_is_psycopgs(url: str) -> None:
    with RunStore(url.replace("+psycopg", "")) as store:
        done = ScriptedDecider([CallTool("refund", {"order_id": "A"}), Finish("refunded")])

        assert Runner(store, done).run(Refund, run_id="run-7f3a", goal="Refund A").status is Status.DONE


def test_a_schema_for_the_events_alone_is_refused(open_store: Callable[..., RunStore]) -> None:
    with pytest.raises(StoreUnusable, match="search_path"):
        open_store(env={"SQLALCHEMY_SCHEMA": "agents"})


# Whether anything changed.


def test_a_moment_is_another_one_where_who_was_first_commits_last(
    store: RunStore, open_store: Callable[..., RunStore]
) -> None:
    slow, fast = open_store(), open_store()
    with Session(slow.recorder.datastore.engine) as session:
        slow.start(AgentRun, run_id="slow", goal="wait", session=session)
        fast.start(AgentRun, run_id="fast", goal="wait")
        before, last = store.moment(), store.recorder.max_notification_id()
        session.commit()

    assert store.recorder.max_notification_id() == last  # which would not have told
    assert store.moment() != before
    assert {record.run_id for record in store.runs()} == {"slow", "fast"}
