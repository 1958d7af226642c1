"""Reading: a run at every version, its journal, the rows of many runs, and run ids of any text."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from eventsourcing.application import AggregateNotFoundError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_es import (
    AgentRun,
    CallTool,
    Effect,
    Fail,
    Finish,
    NotApplied,
    Retry,
    Runner,
    RunStore,
    ScriptedDecider,
    Status,
    tool,
)
from agent_es.errors import AgentError, BadJournal, BadRunId, IllegalEvent, NotRecordable, RunConflict, RunNotFound
from agent_es.events import stream_id
from agent_es.owners import Owner
from agent_es.state import fold
from agent_es.testing import FrozenClock

Sql = Callable[..., list[tuple[Any, ...]]]
RUN_ID = "run-7f3a"
GOAL = "Refund ORD-3300"


class Refund(AgentRun):
    @tool(effect=Effect.READ)
    def search(self, query: str) -> str:
        return f"the policy on {query}"

    @tool(effect=Effect.IDEMPOTENT)
    def refund(self, order_id: str) -> str:
        raise NotApplied(f"{order_id} was refunded before")

    @tool(effect=Effect.AT_MOST_ONCE)
    def vanish(self) -> str:
        raise TimeoutError

    @tool(effect=Effect.IDEMPOTENT, retry=Retry(initial=60, jitter=0))
    def lag(self) -> str:
        raise TimeoutError


class Remind(AgentRun):
    pass


SCRIPT = [
    CallTool("search", {"query": "refunds"}),
    [CallTool("refund", {"order_id": "A"}), CallTool("search", {"query": "notes"})],
    Finish("nothing to do"),
]


def play(store: RunStore, script: list[Any], run_id: str = RUN_ID, agent: type[AgentRun] = Refund) -> None:
    Runner(store, ScriptedDecider(script), at_once=1).run(agent, run_id=run_id, goal=GOAL)


# One run.


def test_a_run_can_be_read_as_it_was_after_each_of_its_events(store: RunStore) -> None:
    play(store, SCRIPT)
    events = [entry.event for entry in store.journal(RUN_ID)]
    last = len(events)
    assert last == 9

    states = [store.load(RUN_ID, version=n) for n in range(1, last + 1)]

    assert states == [fold(events[:n]) for n in range(1, last + 1)]
    assert [state.version for state in states] == [*range(1, last + 1)]
    assert states[-1] == store.load(RUN_ID)
    assert [state.status for state in states] == [Status.PENDING, *[Status.RUNNING] * 7, Status.DONE]


@pytest.mark.parametrize(("version", "says"), [(0, "versions count from 1"), (-1, "from 1"), (10, "its last is 9")])
def test_a_version_that_a_run_does_not_have_is_told(store: RunStore, version: int, says: str) -> None:
    play(store, SCRIPT)

    with pytest.raises(RunNotFound, match=f"run run-7f3a has no version {version}: .*{says}"):
        store.load(RUN_ID, version=version)


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.load("run-0"),
        lambda store: store.load("run-0", version=1),
        lambda store: store.journal("run-0"),
        lambda store: store.aggregate(Refund, "run-0"),
        lambda store: store.record("run-0"),
    ],
)
def test_a_run_that_is_not_there_is_told_by_name(store: RunStore, read: Callable[[RunStore], object]) -> None:
    play(store, SCRIPT)

    with pytest.raises(RunNotFound, match=r"no run 'run-0' in (sqlite|postgresql)"):
        read(store)


def test_a_journal_is_every_event_in_order(store: RunStore) -> None:
    play(store, SCRIPT)

    journal = store.journal(RUN_ID)

    assert [entry.type for entry in journal] == [
        "run_started",
        "llm_decided",
        "tool_result",
        "llm_decided",
        "llm_decided",
        "tool_failed",
        "llm_decided",
        "tool_result",
        "finished",
    ]
    assert [entry.seq for entry in journal] == [*range(9)]
    assert [entry.at for entry in journal] == [FrozenClock()(seq) for seq in range(9)]
    assert {entry.event.originator_id for entry in journal} == {stream_id(RUN_ID)}


@pytest.mark.parametrize("after", range(-1, 10))
def test_a_journal_can_be_followed(store: RunStore, after: int) -> None:
    play(store, SCRIPT)

    assert store.journal(RUN_ID, after=after) == store.journal(RUN_ID)[after + 1 :]


def test_what_a_store_read_another_store_reads(store: RunStore, open_store: Callable[..., RunStore]) -> None:
    play(store, SCRIPT)

    other = open_store()

    assert other.load(RUN_ID) == store.load(RUN_ID)
    assert [*map(str, other.journal(RUN_ID))] == [*map(str, store.journal(RUN_ID))]


@pytest.mark.parametrize("version", [None, 1, 4, 9])
def test_the_librarys_repository_gives_a_frozen_run_folded_by_ours(store: RunStore, version: int | None) -> None:
    play(store, SCRIPT)

    run: Any = store.repository.get(stream_id(RUN_ID), version=version)

    assert isinstance(run, AgentRun)
    assert run.state == store.load(RUN_ID, version=version)
    assert (run.id, run.version) == (stream_id(RUN_ID), version or 9)
    with pytest.raises(IllegalEvent):
        run.record_answer("1")


def test_the_librarys_repository_is_not_told_how_to_fold(store: RunStore) -> None:
    play(store, SCRIPT)

    run: Any = store.repository.get(stream_id(RUN_ID), projector_func=lambda *_: None)

    assert run.state == store.load(RUN_ID)


def test_the_librarys_repository_has_no_run_that_is_not_there(store: RunStore) -> None:
    with pytest.raises(AggregateNotFoundError):
        store.repository.get(UUID(int=7))


# Starting.


def test_a_run_that_is_started_again_is_the_one_that_is_there(store: RunStore) -> None:
    first = store.start(Refund, run_id=RUN_ID, goal=GOAL, input={"a": 1, "b": 2})

    second = store.start(Refund, run_id=RUN_ID, goal=GOAL, input={"b": 2, "a": 1}, tags={"team": "late"})

    assert (first.resumed, second.resumed) == (False, True)
    assert second == first
    assert store.load(RUN_ID).version == 1


@pytest.mark.parametrize(
    ("agent", "goal", "given", "says"),
    [
        (Remind, GOAL, None, "was started with agent 'Refund', not 'Remind'"),
        (Refund, "Refund ORD-1", None, "was started with goal 'Refund ORD-3300', not 'Refund ORD-1'"),
        (Refund, GOAL, {"a": 1}, "was started with input 'null', not '{\"a\":1}'"),
    ],
)
def test_a_run_that_is_started_again_as_something_else_is_refused(
    store: RunStore, agent: type[AgentRun], goal: str, given: Any, says: str
) -> None:
    store.start(Refund, run_id=RUN_ID, goal=GOAL)

    with pytest.raises(RunConflict, match=f"run run-7f3a {says}; resume it as it is, or start another run id"):
        store.start(agent, run_id=RUN_ID, goal=goal, input=given)

    assert store.load(RUN_ID).goal == GOAL


def test_a_run_whose_input_cannot_be_recorded_is_not_started(store: RunStore) -> None:
    with pytest.raises(NotRecordable, match="set is not JSON"):
        store.start(Refund, run_id=RUN_ID, goal=GOAL, input={1, 2})

    assert store.runs() == []


def test_words_with_a_lone_surrogate_are_recorded_as_any_other_text(store: RunStore) -> None:
    state = store.start(Refund, run_id=RUN_ID, goal="cut \ud83d", input="cut \ud83d", tags={"cut": "\ud83d"})

    assert (state.goal, state.input, state.tags) == ("cut \ufffd", "cut \ufffd", {"cut": "\ufffd"})
    assert store.load(RUN_ID) == state
    assert store.start(Refund, run_id=RUN_ID, goal="cut \ud83d", input="cut \ud83d").resumed


# Run ids.


@pytest.fixture(scope="module")
def big_store(new_url: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunStore]:
    """A store that keeps the runs of many examples."""
    with RunStore(new_url(tmp_path_factory.mktemp("run ids")), clock=FrozenClock()) as store:
        yield store


RUN_IDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=200)


@settings(max_examples=50)
@given(run_id=RUN_IDS)
@example("x")
@example("x" * 200)
@example("\N{GRINNING FACE}" * 200)
@example("'; DROP TABLE agent_es_runs; --")
@example(" \n\t")
def test_a_run_id_is_any_text_of_1_to_200_characters(big_store: RunStore, run_id: str) -> None:
    big_store.start(Refund, run_id=run_id, goal="remember me")

    run = big_store.aggregate(Refund, run_id)
    if not run.state.is_over:
        run.record_answer("1")
        big_store.save(run)

    assert big_store.load(run_id).run_id == run_id
    assert [entry.run_id for entry in big_store.journal(run_id)] == [run_id] * 2
    assert (big_store.record(run_id).run_id, big_store.record(run_id).cursor) == (run_id, 2)


@pytest.mark.parametrize(
    ("one", "other"), [("run", "run "), ("run", "Run"), ("é", "e\u0301"), ("1", "01"), ("%", "_"), ("a\n", "a")]
)
def test_run_ids_that_look_alike_are_two(store: RunStore, one: str, other: str) -> None:
    store.start(Refund, run_id=one, goal="the one")
    store.start(Refund, run_id=other, goal="the other")

    assert [store.load(run_id).goal for run_id in (one, other)] == ["the one", "the other"]
    assert [store.record(run_id).goal for run_id in (one, other)] == ["the one", "the other"]


@pytest.mark.parametrize("run_id", ["", "x" * 201, "a\0b", "\0", "cut \ud83d", "\ud83d\ude00"], ids=ascii)
def test_what_is_no_run_id_is_refused_and_nothing_is_recorded(store: RunStore, sql: Sql, run_id: str) -> None:
    with pytest.raises(AgentError, match="1 to 200 characters"):
        store.start(Refund, run_id=run_id, goal=GOAL)
    with pytest.raises(AgentError):
        store.load(run_id)

    assert sql("SELECT * FROM agent_es_events") == []


# Many runs.


@pytest.fixture
def many(store: RunStore) -> RunStore:
    """A store with runs in every status, and waiting for all that there is to wait for yet."""
    play(store, SCRIPT, "done")
    play(store, [Fail("no")], "failed")
    play(store, [CallTool("vanish")], "in doubt")
    play(store, [CallTool("lag")], "retrying")
    play(store, SCRIPT, "undone")
    Runner(store, agents=[Refund]).compensate("undone")
    parked = begun(store, "parked")
    parked.record_parked("no such tool")
    store.save(parked)
    store.start(Refund, run_id="pending", goal=GOAL)
    store.start(Remind, run_id="reminder", goal=GOAL)
    return store


def begun(store: RunStore, run_id: str) -> Refund:
    store.start(Refund, run_id=run_id, goal=GOAL)
    return store.aggregate(Refund, run_id)


LAST_CHANGED_FIRST = ["undone", "done", "retrying", "in doubt", "failed", "parked", "pending", "reminder"]


def ids(store: RunStore, **filters: Any) -> list[str]:
    return [record.run_id for record in store.runs(**filters)]


def test_runs_are_listed_with_the_one_that_changed_last_first(many: RunStore) -> None:
    assert ids(many) == LAST_CHANGED_FIRST
    times = [record.updated_at for record in many.runs()]
    assert times == sorted(times, reverse=True)
    assert times[1] - many.runs()[1].started_at == timedelta(seconds=8)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"status": "done"}, ["done"]),
        ({"status": Status.WAITING}, ["retrying", "in doubt", "parked"]),
        ({"status": "waiting", "waiting_for": "retry"}, ["retrying"]),
        ({"waiting_for": "person"}, ["parked"]),
        ({"waiting_for": "doubt"}, ["in doubt"]),
        ({"waiting_for": "clock"}, []),
        ({"status": "pending"}, ["pending", "reminder"]),
        ({"agent": "Remind"}, ["reminder"]),
        ({"agent": "Refund", "status": "pending"}, ["pending"]),
        ({"agent": "' OR 1 = 1 --"}, []),
        ({"status": "cancelled"}, ["undone"]),
        ({"limit": 2}, LAST_CHANGED_FIRST[:2]),
        ({"limit": 0}, []),
        ({"limit": None}, LAST_CHANGED_FIRST),
    ],
    ids=str,
)
def test_runs_are_found_by_what_they_are(many: RunStore, filters: dict[str, Any], found: list[str]) -> None:
    assert ids(many, **filters) == found


def test_a_hundred_runs_are_listed_unless_more_are_asked_for(store: RunStore) -> None:
    for n in range(101):
        store.start(Refund, run_id=f"run-{n}", goal=GOAL)

    assert (len(store.runs()), len(store.runs(limit=None)), len(store.runs(limit=101))) == (100, 101, 101)


def test_a_status_that_there_is_not_is_refused(many: RunStore) -> None:
    with pytest.raises(ValueError, match="sleeping"):
        many.runs(status="sleeping")


def test_a_run_that_is_listed_is_the_run_that_is_loaded(many: RunStore) -> None:
    for record in many.runs():
        state = many.load(record.run_id)

        assert (record.agent, record.goal, record.status) == (state.agent, state.goal, state.status)
        assert (record.waiting_for, record.wake_at) == (state.waiting_for, state.wake_at)
        assert (record.cursor, record.updated_at, record.tags) == (state.version, state.updated_at, state.tags)
        assert many.record(record.run_id) == record


@pytest.mark.parametrize("run_id", ["", "x\0", "x\ud83d", "x" * 201])
def test_what_no_run_can_be_called_is_refused_alike_by_every_database(store: RunStore, run_id: str) -> None:
    for ask in (store.load, store.record, lambda it: store.leases.take(it, Owner.here(), 1.0)):
        with pytest.raises(BadRunId):
            ask(run_id)


def test_odd_questions_are_answered_alike_by_every_database(store: RunStore) -> None:
    assert store.leases.claim([], Owner.here(), 1.0) is None
    with pytest.raises(ValueError, match="limit=-1: write how many"):
        store.runs(limit=-1)
    with pytest.raises(BadJournal, match="a journal without events is no run"):
        store.put_journals({"run-1": []})


def test_a_transaction_that_records_nothing_of_its_run_is_refused_and_rolled_back(store: RunStore) -> None:
    store.start(AgentRun, run_id="run-1", goal="none")

    with pytest.raises(IllegalEvent, match="must record an event"):
        store.transact(store.aggregate(AgentRun, "run-1"), lambda session: None)


def test_a_time_of_zero_is_a_time(store: RunStore) -> None:
    store.clock = FrozenClock(datetime.fromtimestamp(0, UTC))
    store.start(AgentRun, run_id="run-1", goal="begin with the epoch")

    record = store.record("run-1")

    assert record.started_at == record.updated_at == datetime.fromtimestamp(0, UTC)
    assert (record.wake_at, record.lease_until) == (None, None)
