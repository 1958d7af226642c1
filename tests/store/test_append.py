"""Appending: events, row and keys in one transaction; who comes second is told; a lost answer is read back."""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import eventsourcing.persistence as es
import pytest

from agent_es import AgentRun, CallTool, Effect, RunStore, Status, tool
from agent_es.errors import (
    AppendUnknown,
    BadSettlement,
    IllegalEvent,
    KeyReused,
    RunConflict,
    RunMoved,
    RunNotFound,
    StoreBusy,
    StoreUnusable,
)
from agent_es.run import Planned
from agent_es.state import fold
from agent_es.store.projection import ALL, row_of
from agent_es.testing import FrozenClock
from agent_es.tools import Failed, Returned, Unknown

Sql = Callable[..., list[tuple[Any, ...]]]
ROWS = f"SELECT {', '.join(ALL)} FROM agent_es_runs"  # noqa: S608
at = FrozenClock()
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


class Refund(AgentRun):
    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:refund")
    def refund(self, order_id: str) -> str:
        return order_id


def refund(order_id: str, *, note: str = "") -> Planned:
    args = f'{{"note":"{note}","order_id":"{order_id}"}}' if note else f'{{"order_id":"{order_id}"}}'
    return Planned(CallTool("refund"), args, key=f"{order_id}:refund")


def begun(store: RunStore, run_id: str = "run-7f3a") -> Refund:
    store.start(Refund, run_id=run_id, goal="Refund ORD-3300", tags={"team": "support"})
    return store.aggregate(Refund, run_id)


# Events and row.

STORY: list[Callable[[AgentRun], None]] = [
    lambda run: run.record_turn([refund("A"), refund("B")], at_once=1),
    lambda run: run.record_result(0, '"refunded"'),
    lambda run: run.record_start(1),
    lambda run: run.record_doubt(1, "time-out"),
]
ENDS: dict[str, list[Callable[[AgentRun], None]]] = {
    "in doubt": STORY,
    "done": [*STORY[:3], lambda run: run.record_failure(1, Failed("E", "no")), lambda run: run.record_answer("1")],
    "failed": [lambda run: run.record_surrender("no such order")],
    "retrying": [
        *STORY[:3],
        lambda run: run.record_retry(1, Unknown("TimeoutError", "late"), at(60)),
        lambda run: run.record_rest(at(60)),
        lambda run: run.record_rest_ended(),
        lambda run: run.record_start(1),
        lambda run: run.record_result(1, "1"),
    ],
    "settled": [
        *STORY,
        lambda run: run.record_settlement(1, "did_not_happen", "ann"),
        lambda run: run.record_start(1),
        lambda run: run.record_result(1, "1"),
    ],
    "sent back": [
        lambda run: run.record_parked("no such tool"),
        lambda run: run.record_requeued("ann"),
        lambda run: run.record_surrender("no such order"),
        lambda run: run.record_requeued("ann"),
    ],
    "undone": [
        lambda run: run.record_answer("1"),
        lambda run: run.record_compensation("ann"),
        lambda run: run.record_compensated(),
    ],
}


@pytest.mark.parametrize("commands", ENDS.values(), ids=ENDS.keys())
def test_after_each_append_the_row_is_the_fold_of_the_events(
    store: RunStore, sql: Sql, commands: list[Callable[[AgentRun], None]]
) -> None:
    run = begun(store)

    for command in commands:
        command(run)
        store.save(run)

        loaded = store.load("run-7f3a")
        assert loaded == run.state
        assert sql(ROWS) == [row_of(loaded)[1]]


def test_the_row_is_what_a_user_would_query(store: RunStore) -> None:
    run = begun(store)
    for command in STORY:
        command(run)
    store.save(run)

    (record,) = store.runs()

    assert (record.run_id, record.agent, record.goal) == ("run-7f3a", "Refund", "Refund ORD-3300")
    assert (record.status, record.waiting_for, record.cursor) == (Status.WAITING, "doubt", 6)
    assert (record.tags, record.wake_at, record.envelope_id) == ({"team": "support"}, None, None)
    assert (record.started_at, record.updated_at) == (run.state.started_at, run.state.updated_at)
    assert (record.lease_owner, record.lease_token, record.lease_until) == (None, 0, None)


def test_the_row_says_until_when_a_run_waits_and_no_longer(store: RunStore) -> None:
    run = begun(store)
    run.record_turn([refund("A")], at_once=1)
    run.record_retry(0, Unknown("TimeoutError", "late"), at(60))
    run.record_rest(at(60))
    store.save(run)
    waiting = store.record("run-7f3a")

    run.record_rest_ended()
    store.save(run)
    goes_on = store.record("run-7f3a")

    assert (waiting.status, waiting.waiting_for, waiting.wake_at) == (Status.WAITING, "retry", at(60))
    assert (goes_on.status, goes_on.waiting_for, goes_on.wake_at) == (Status.RUNNING, None, None)


@on_sqlite
def test_where_the_row_cannot_be_written_the_events_are_not_there_either(store: RunStore, sql: Sql) -> None:
    run = begun(store)
    sql("CREATE TRIGGER no BEFORE UPDATE ON agent_es_runs BEGIN SELECT RAISE(ABORT, 'no'); END")
    run.record_turn([refund("A")], at_once=1)

    with pytest.raises(RunMoved):
        store.save(run)

    assert store.load("run-7f3a").version == 1
    assert sql("SELECT * FROM agent_es_keys") == []


@on_sqlite
def test_where_one_event_cannot_be_written_none_is(store: RunStore, sql: Sql) -> None:
    run = begun(store)
    sql(
        "CREATE TRIGGER no BEFORE INSERT ON agent_es_events WHEN new.originator_version = 3 "
        "BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    run.record_turn([refund("A"), refund("B")], at_once=1)

    with pytest.raises(RunMoved):
        store.save(run)

    assert sql(ROWS) == [row_of(store.load("run-7f3a"))[1]]
    assert store.load("run-7f3a").version == 1


@pytest.mark.parametrize("damage", ["DELETE FROM agent_es_runs", "UPDATE agent_es_runs SET cursor = 7"])
def test_an_append_to_a_run_whose_row_is_elsewhere_is_refused(store: RunStore, sql: Sql, damage: str) -> None:
    run = begun(store)
    run.record_turn([refund("A")], at_once=1)
    sql(damage)
    before = sql(ROWS)

    with pytest.raises(RunMoved):
        store.save(run)

    assert store.load("run-7f3a").version == 1
    assert (sql(ROWS), sql("SELECT * FROM agent_es_keys")) == (before, [])


def test_a_run_without_pending_events_costs_nothing(store: RunStore, sql: Sql) -> None:
    run = begun(store)
    before = sql("SELECT count(*) FROM agent_es_events")

    store.save(run)

    assert sql("SELECT count(*) FROM agent_es_events") == before


@pytest.mark.parametrize("what", [object(), None, "run-7f3a"])
def test_a_store_saves_runs_only(store: RunStore, what: object) -> None:
    with pytest.raises(TypeError, match="a RunStore saves runs"):
        store.save(what)


# Two workers.


def test_the_slower_of_two_workers_is_told_and_nothing_of_it_is_recorded(store: RunStore, sql: Sql) -> None:
    begun(store)
    faster, slower = (store.aggregate(Refund, "run-7f3a") for _ in range(2))
    faster.record_turn([refund("A")], at_once=1)
    slower.record_turn([refund("B"), refund("C")], at_once=2)
    store.save(faster)

    with pytest.raises(RunMoved, match="run run-7f3a: another worker appended seq 1 first"):
        store.save(slower)

    assert store.load("run-7f3a") == faster.state
    assert sql("SELECT key FROM agent_es_keys") == [("A:refund",)]


def test_a_worker_that_was_refused_once_is_refused_again(store: RunStore) -> None:
    begun(store)
    faster, slower = (store.aggregate(Refund, "run-7f3a") for _ in range(2))
    faster.record_turn([refund("A")], at_once=1)
    slower.record_turn([refund("B")], at_once=1)
    store.save(faster)

    for _ in range(2):
        with pytest.raises(RunMoved):
            store.save(slower)

    assert len(slower.pending_events) == 1
    assert store.load("run-7f3a") == faster.state


def test_a_worker_that_comes_later_with_the_same_words_is_refused_too(store: RunStore) -> None:
    begun(store)
    faster, slower = (store.aggregate(Refund, "run-7f3a") for _ in range(2))
    for run in (faster, slower):
        run.record_turn([refund("A")], at_once=1)
    store.save(faster)

    with pytest.raises(RunMoved):
        store.save(slower)

    assert store.load("run-7f3a").version == 2


# Keys.


def test_a_key_that_comes_again_in_the_same_turn_is_refused(store: RunStore, sql: Sql) -> None:
    run = begun(store)
    run.record_turn([refund("A"), refund("A")], at_once=2)

    says = r"step 0 of run run-7f3a .* the same arguments, which is decided in the same turn"
    with pytest.raises(KeyReused, match=says) as caught:
        store.save(run)

    assert caught.value.idx == 1
    assert store.load("run-7f3a").version == 1
    assert sql("SELECT * FROM agent_es_keys") == []


def test_a_key_that_comes_again_in_another_run_names_the_step_and_what_it_came_to(store: RunStore) -> None:
    first = begun(store, "run-1")
    first.record_turn([refund("A"), refund("B")], at_once=2)
    first.record_result(1, '"rf-9"')
    store.save(first)
    second = begun(store, "run-2")
    second.record_turn([refund("C"), refund("B")], at_once=2)

    with pytest.raises(KeyReused) as caught:
        store.save(second)

    assert str(caught.value) == (
        "refund was not called: its key 'B:refund' stands for one intent, and step 1 of run run-1 holds it with the "
        'same arguments, which is done with "rf-9". If this is another intent, its arguments must make another key.'
    )
    assert caught.value.idx == 1


def test_a_key_that_comes_again_with_other_arguments_says_so(store: RunStore) -> None:
    first = begun(store, "run-1")
    first.record_turn([refund("A")], at_once=1)
    store.save(first)
    second = begun(store, "run-2")
    second.record_turn([refund("A", note="twice")], at_once=1)

    with pytest.raises(KeyReused, match="step 0 of run run-1 holds it with OTHER ARGUMENTS, which is started"):
        store.save(second)


@pytest.mark.parametrize(
    ("ends", "first", "is_free"),
    [
        (lambda run: None, None, False),
        (lambda run: run.record_result(0, '"rf-9"'), '"rf-9"', False),
        (lambda run: run.record_doubt(0, "time-out"), None, False),
        (lambda run: run.record_retry(0, Unknown("TimeoutError", "late"), at(60)), None, False),
        (lambda run: run.record_failure(0, Failed("NotApplied", "no")), None, True),
        (lambda run: run.record_failure(0, Failed("NotRecordable", "lost", applied=True)), None, False),
        (lambda run: run.record_failure(0, Failed("OutcomeUnknown", "told", applied=None)), None, False),
    ],
    ids=["started", "done", "in doubt", "retrying", "not applied", "applied", "told"],
)
def test_a_key_is_free_where_its_holder_surely_did_not_happen_and_only_there(
    store: RunStore,
    ends: Callable[[AgentRun], None],
    first: str | None,
    is_free: bool,  # noqa: FBT001
) -> None:
    holder = begun(store, "run-1")
    holder.record_turn([refund("A")], at_once=1)
    ends(holder)
    store.save(holder)
    second = begun(store, "run-2")
    second.record_turn([refund("A")], at_once=1)

    with pytest.raises(KeyReused) as caught:
        store.save(second)

    assert (caught.value.first, caught.value.is_free) == (first, is_free)


def test_what_a_key_with_other_arguments_gave_is_not_handed_on(store: RunStore) -> None:
    holder = begun(store, "run-1")
    holder.record_turn([refund("A")], at_once=1)
    holder.record_result(0, '"rf-9"')
    store.save(holder)
    second = begun(store, "run-2")
    second.record_turn([refund("A", note="twice")], at_once=1)

    with pytest.raises(KeyReused) as caught:
        store.save(second)

    assert caught.value.first is None


def test_a_key_that_was_renewed_is_held_beside_the_old_one(store: RunStore, sql: Sql) -> None:
    run = begun(store)
    run.record_turn([refund("A")], at_once=1)
    run.record_doubt(0, "time-out")
    run.record_settlement(0, "did_not_happen", "ann")
    run.record_start(0)

    store.save(run)

    assert sql("SELECT key, idx FROM agent_es_keys ORDER BY key") == [("A:refund", 0), ("A:refund#2", 0)]


def test_a_call_that_is_answered_by_an_earlier_one_holds_no_key(store: RunStore, sql: Sql) -> None:
    run = begun(store)

    run.record_turn([Planned(CallTool("refund"), "{}", key="A:refund", answer='"rf-9"')], at_once=1)
    store.save(run)

    assert sql("SELECT * FROM agent_es_keys") == []


def test_a_step_keeps_its_key_at_every_attempt(store: RunStore, sql: Sql) -> None:
    run = begun(store)
    run.record_turn([refund("A")], at_once=1)
    store.save(run)

    run.record_start(0)
    store.save(run)

    assert sql("SELECT tool, key, run_id, idx FROM agent_es_keys") == [("refund", "A:refund", "run-7f3a", 0)]


def test_a_step_that_waits_for_its_siblings_holds_its_key_already(store: RunStore, sql: Sql) -> None:
    run = begun(store)

    run.record_turn([refund("A"), refund("B")], at_once=1)
    store.save(run)

    assert sql("SELECT key, idx FROM agent_es_keys ORDER BY idx") == [("A:refund", 0), ("B:refund", 1)]


def test_two_tools_may_have_the_same_key(store: RunStore, sql: Sql) -> None:
    run = begun(store)

    run.record_turn([refund("A"), Planned(CallTool("remind"), "{}", key="A:refund")], at_once=2)
    store.save(run)

    assert sql("SELECT tool, key FROM agent_es_keys ORDER BY tool") == [
        ("refund", "A:refund"),
        ("remind", "A:refund"),
    ]


# What a person says.


def in_doubt(store: RunStore) -> Refund:
    run = begun(store)
    for command in STORY:
        command(run)
    store.save(run)
    return run


def test_a_doubt_that_a_person_settles_is_settled_in_the_journal_and_in_the_row(store: RunStore, sql: Sql) -> None:
    in_doubt(store)

    state = store.settle("run-7f3a", 1, "happened", by="ann", result={"receipt": 5})

    assert state == store.load("run-7f3a")
    assert (state.status, state.steps[1].result) == (Status.RUNNING, {"receipt": 5})
    assert sql(ROWS) == [row_of(state)[1]]
    assert [entry.type for entry in store.journal("run-7f3a")[-2:]] == ["doubt_settled", "tool_result"]


@pytest.mark.parametrize(("idx", "outcome"), [(0, "happened"), (7, "happened"), (-1, "happened"), (1, "skipped")])
def test_what_a_person_cannot_settle_is_refused_and_nothing_is_recorded(
    store: RunStore, idx: int, outcome: Any
) -> None:
    before = in_doubt(store).state

    with pytest.raises(BadSettlement):
        store.settle("run-7f3a", idx, outcome, by="ann")

    assert store.load("run-7f3a") == before


def test_a_doubt_that_two_people_settle_is_settled_once(store: RunStore, open_store: Callable[..., RunStore]) -> None:
    in_doubt(store)
    store.settle("run-7f3a", 1, "did_not_happen", by="ann")

    with pytest.raises(BadSettlement, match="step 1 is not in doubt; in doubt: none"):
        open_store().settle("run-7f3a", 1, "happened", by="bob")

    assert store.load("run-7f3a").steps[1].key == "B:refund#2"


def test_a_run_that_is_parked_or_has_failed_is_sent_back_and_no_other(store: RunStore) -> None:
    parked, failed, going = (begun(store, name) for name in ("parked", "failed", "going"))
    parked.record_parked("no such tool")
    failed.record_surrender("no such order")
    for run in (parked, failed):
        store.save(run)

    states = [store.requeue(run_id, by="ann") for run_id in ("parked", "failed")]

    assert [(state.status, state.waiting_for) for state in states] == [(Status.PENDING, None)] * 2
    assert [store.record(state.run_id).status for state in states] == [Status.PENDING] * 2
    for run_id in ("parked", going.state.run_id):
        with pytest.raises(IllegalEvent):
            store.requeue(run_id, by="ann")


def test_a_result_that_comes_late_is_recorded_while_its_attempt_is_open_and_refused_after(store: RunStore) -> None:
    in_doubt(store)

    lates = [(0, 1, "1"), (1, 2, "1"), (1, 1, '"late"'), (1, 1, "1")]
    told = [store.record_late("run-7f3a", idx, attempt, Returned(value)) for idx, attempt, value in lates]

    assert told == [False, False, True, False]
    assert store.load("run-7f3a").steps[1].result == "late"


# Whole journals.


def journal_of(store: RunStore, run_id: str, *commands: Callable[[AgentRun], None]) -> list[Any]:
    run = Refund.begin(run_id, "Refund ORD-3300", "null", {}, store.clock)
    for command in commands:
        command(run)
    return list(run.pending_events)


def test_whole_journals_are_stored_with_their_rows_and_keys(store: RunStore, sql: Sql) -> None:
    journals = {"run-1": journal_of(store, "run-1", *STORY), "run-2": journal_of(store, "run-2")}

    store.put_journals(journals)

    assert store.load("run-1") == fold(journals["run-1"])
    assert sorted(sql(ROWS)) == sorted(row_of(store.load(run_id))[1] for run_id in journals)
    assert sql("SELECT key, run_id FROM agent_es_keys ORDER BY key") == [("A:refund", "run-1"), ("B:refund", "run-1")]


@pytest.mark.parametrize("there", ["run-2", "run-9"], ids=["the run", "a key"])
def test_whole_journals_are_stored_all_or_none(store: RunStore, there: str) -> None:
    run = begun(store, there)
    run.record_turn([refund("A")], at_once=1)
    store.save(run)
    journals = {name: journal_of(store, name, *commands) for name, commands in [("run-1", []), ("run-2", STORY)]}

    with pytest.raises((RunConflict, KeyReused), match=there):
        store.put_journals(journals)

    assert [record.run_id for record in store.runs()] == [there]
    with pytest.raises(RunNotFound):
        store.load("run-1")


# Answers that were lost.


class Unreliable:
    """An append that fails as told: ``lost`` appends and loses the answer, ``down`` does not append."""

    def __init__(self, store: RunStore, monkeypatch: pytest.MonkeyPatch, fails: Sequence[str]) -> None:
        self.calls = 0
        self._fails = iter(fails)
        self._append = store.recorder.append
        monkeypatch.setattr(store.recorder, "append", self)

    def __call__(self, *args: Any) -> None:
        self.calls += 1
        fails = next(self._fails, None)
        if fails != "down":
            self._append(*args)
        if fails:
            raise es.OperationalError(fails)


def test_an_append_whose_answer_was_lost_is_recorded_once(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun(store)
    run.record_turn([refund("A"), refund("B")], at_once=1)
    unreliable = Unreliable(store, monkeypatch, ["lost"])

    store.save(run)

    assert unreliable.calls == 1
    assert store.load("run-7f3a") == run.state
    assert (run.pending_events, run.version) == ([], 3)


@pytest.mark.parametrize("fails", [["down"], ["down", "down"], ["down", "lost"]], ids=str)
def test_an_append_that_never_arrived_is_made_again(
    store: RunStore, sql: Sql, monkeypatch: pytest.MonkeyPatch, fails: list[str]
) -> None:
    run = begun(store)
    run.record_turn([refund("A")], at_once=1)
    Unreliable(store, monkeypatch, fails)

    store.save(run)

    assert store.load("run-7f3a") == run.state
    assert sql(ROWS) == [row_of(run.state)[1]]
    assert run.pending_events == []


def test_a_first_append_whose_answer_was_lost_starts_a_run_and_does_not_find_one(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Unreliable(store, monkeypatch, ["lost"])

    state = store.start(Refund, run_id="run-7f3a", goal="Refund ORD-3300")

    assert not state.resumed
    assert store.load("run-7f3a") == state


def test_an_append_that_never_arrives_is_given_up_within_a_bound_and_stays_pending(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(store)
    run.record_turn([refund("A")], at_once=1)
    unreliable = Unreliable(store, monkeypatch, ["down"] * 99)

    with pytest.raises(AppendUnknown, match=r"run run-7f3a: .* resume it to find out") as caught:
        store.save(run)

    assert isinstance(caught.value.__cause__, es.OperationalError)
    assert unreliable.calls == 5
    assert len(run.pending_events) == 1
    assert store.load("run-7f3a").version == 1


def test_the_last_append_too_is_read_back_before_it_is_given_up(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(store)
    run.record_turn([refund("A")], at_once=1)
    Unreliable(store, monkeypatch, [*["down"] * 4, "lost"])

    store.save(run)

    assert store.load("run-7f3a") == run.state


def test_an_append_that_nobody_can_read_back_is_unknown_and_stays_pending(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(store)
    run.record_turn([refund("A")], at_once=1)
    Unreliable(store, monkeypatch, ["lost"])

    def cannot_be_read(*_: Any, **__: Any) -> Any:
        raise StoreUnusable("the disk is gone")

    monkeypatch.setattr(store.recorder, "rows", cannot_be_read)

    with pytest.raises(AppendUnknown, match=r"run run-7f3a: .* resume it to find out"):
        store.save(run)

    assert len(run.pending_events) == 1


def test_an_append_that_is_made_again_does_not_take_the_place_of_another_workers(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(store)
    faster, slower = (store.aggregate(Refund, "run-7f3a") for _ in range(2))
    faster.record_turn([refund("A")], at_once=1)
    slower.record_turn([refund("B")], at_once=1)
    store.save(faster)
    unreliable = Unreliable(store, monkeypatch, ["down"])

    with pytest.raises(RunMoved):
        store.save(slower)

    assert unreliable.calls == 1
    assert store.load("run-7f3a") == faster.state


def test_an_append_whose_answer_was_lost_and_that_another_worker_followed_is_ours(
    store: RunStore, open_store: Callable[..., RunStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(store)
    run.record_turn([refund("A")], at_once=1)
    append = store.recorder.append

    def append_and_lose_the_answer(*args: Any) -> None:
        append(*args)
        other = open_store().aggregate(Refund, "run-7f3a")
        other.record_result(0, '"refunded"')
        open_store().save(other)
        raise es.OperationalError("the answer is lost")

    monkeypatch.setattr(store.recorder, "append", append_and_lose_the_answer)

    store.save(run)

    assert (run.version, store.load("run-7f3a").version) == (2, 3)


# Others who hold the database.


@pytest.fixture
def elsewhere(tmp_path: Path, store: RunStore) -> Iterator[sqlite3.Connection]:
    """Another process's connection to the file of ``store``."""
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as connection:
        yield connection


@on_sqlite
def test_a_writer_that_waited_too_long_is_told_and_nothing_is_recorded(
    store: RunStore, elsewhere: sqlite3.Connection
) -> None:
    run = begun(store)
    run.record_turn([refund("A")], at_once=1)
    store.recorder.datastore.patience = 0.05
    elsewhere.execute("BEGIN IMMEDIATE")
    began = time.monotonic()

    with pytest.raises(StoreBusy, match=r"the database was busy for 0\.05 s and nothing was recorded"):
        store.save(run)
    waited = time.monotonic() - began
    elsewhere.execute("ROLLBACK")

    assert 0.05 <= waited < 5
    assert store.load("run-7f3a").version == 1
    store.save(run)
    assert store.load("run-7f3a") == run.state


@on_sqlite
def test_a_run_that_could_not_be_started_is_not_there(store: RunStore, elsewhere: sqlite3.Connection) -> None:
    store.recorder.datastore.patience = 0.05
    elsewhere.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreBusy):
        store.start(Refund, run_id="run-7f3a", goal="Refund ORD-3300")

    with pytest.raises(RunNotFound):
        store.load("run-7f3a")
    assert store.runs() == []


@on_sqlite
def test_who_reads_does_not_wait_for_who_writes(store: RunStore, elsewhere: sqlite3.Connection) -> None:
    begun(store)
    store.recorder.datastore.patience = 0.0
    elsewhere.execute("BEGIN IMMEDIATE")

    assert store.load("run-7f3a").version == 1
    assert len(store.runs()) == 1
    assert len(store.journal("run-7f3a")) == 1


@on_sqlite
def test_who_reads_for_long_does_not_keep_a_writer_waiting(store: RunStore, elsewhere: sqlite3.Connection) -> None:
    run = begun(store)
    run.record_turn([refund("A")], at_once=1)
    store.recorder.datastore.patience = 0.0
    elsewhere.execute("BEGIN")
    elsewhere.execute("SELECT * FROM agent_es_events").fetchall()

    store.save(run)

    assert store.load("run-7f3a") == run.state
