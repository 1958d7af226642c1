"""The feed: every event of all runs once, in order, on every database; and read models that are made of it."""

import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from agent_es import AgentRun, Projection, RunStore
from agent_es.errors import RunUnreadable, StoreUnusable
from agent_es.store.feed import FeedEntry

Sql = Callable[..., list[tuple[Any, ...]]]


class Count(AgentRun):
    """Counts."""


def begin(store: RunStore, *run_ids: str) -> None:
    for run_id in run_ids:
        store.start(Count, run_id=run_id, goal="count")


def answer(store: RunStore, run_id: str, text: str) -> None:
    run = store.aggregate(Count, run_id)
    run.record_answer(text)
    store.save(run)


def lines(store: RunStore, **options: Any) -> list[tuple[str, int, str]]:
    return [(entry.run_id, entry.seq, entry.type) for entry in store.feed(**options)]


# What it yields.


def test_every_event_of_all_runs_comes_once_in_the_order_in_which_they_were_stored(store: RunStore) -> None:
    begin(store, "run-1", "run-2")
    answer(store, "run-2", '"two"')
    answer(store, "run-1", '"one"')

    entries = [*store.feed()]

    assert [(entry.run_id, entry.seq, entry.type) for entry in entries] == [
        ("run-1", 0, "run_started"),
        ("run-2", 0, "run_started"),
        ("run-2", 1, "finished"),
        ("run-1", 1, "finished"),
    ]
    assert [entry.position for entry in entries] == sorted({entry.position for entry in entries})
    assert entries[2].data == {"answer": "two"}
    assert str(entries[2]) == str(store.journal("run-2")[1])


def test_who_goes_on_from_a_position_sees_what_came_after_it(store: RunStore) -> None:
    begin(store, "run-1", "run-2", "run-3")
    first, second, _ = store.feed()

    assert [entry.run_id for entry in store.feed(after=second.position)] == ["run-3"]
    assert [entry.run_id for entry in store.feed(after=first.position, limit=1)] == ["run-2"]
    assert [*store.feed(limit=0)] == []


def test_it_ends_where_the_store_ended_when_it_was_begun(store: RunStore) -> None:
    begin(store, "run-1")
    feed = store.feed()
    seen = [next(feed)]
    begin(store, "run-2")

    seen += feed

    assert [entry.run_id for entry in seen] == ["run-1"]


def test_an_empty_store_has_an_empty_feed(store: RunStore) -> None:
    assert [*store.feed()] == []


def test_more_than_a_page_is_read_page_by_page(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_es.store.feed.PAGE", 3)
    monkeypatch.setattr("agent_es.store.feed.KNOWN", 2)
    names = [f"run-{n}" for n in range(10)]
    begin(store, *names)

    assert [entry.run_id for entry in store.feed()] == names
    assert [entry.run_id for entry in store.feed(limit=7)] == names[:7]


def test_an_event_that_this_code_does_not_know_is_an_error_that_says_where(store: RunStore, sql: Sql) -> None:
    begin(store, "run-1", "run-2")
    first, _ = store.feed()
    sql("UPDATE agent_es_events SET topic = 'agent_es:FromTomorrow' WHERE id = ?", (first.position,))

    with pytest.raises(RunUnreadable, match=rf"position {first.position} of the feed: .*FromTomorrow.*after="):
        next(store.feed())

    assert [entry.run_id for entry in store.feed(after=first.position)] == ["run-2"]


# What is appended meanwhile.


def test_whoever_follows_while_many_append_sees_each_event_once_and_in_order(
    store: RunStore, open_store: Callable[..., RunStore]
) -> None:
    names = [f"run-{n}" for n in range(4)]
    writers = [threading.Thread(target=append_answers, args=[open_store(), f"{name}-", 40]) for name in names]
    seen: list[FeedEntry] = []
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        seen += store.feed(after=seen[-1].position if seen else 0)
    seen += store.feed(after=seen[-1].position)

    positions = [entry.position for entry in seen]
    assert positions == sorted(set(positions))
    assert len(seen) == 4 * 40 * 2
    for run_id in {entry.run_id for entry in seen}:
        assert [entry.seq for entry in seen if entry.run_id == run_id] == [0, 1]


def append_answers(store: RunStore, prefix: str, count: int) -> None:
    for n in range(count):
        begin(store, f"{prefix}{n}")
        answer(store, f"{prefix}{n}", str(n))


# Read models.


@pytest.fixture
def totals(store: RunStore) -> Callable[[], int]:
    """A table of the user's own; returns what it sums up to."""
    with store.recorder.datastore.lending() as (session, _):
        session.execute(text("CREATE TABLE totals (run_id VARCHAR(200), events INTEGER)"))
        session.commit()

    def total() -> int:
        with store.recorder.datastore.lending() as (session, _):
            return int(session.execute(text("SELECT coalesce(sum(events), 0) FROM totals")).scalar_one())

    return total


def add(session: Any, entry: FeedEntry) -> None:
    session.execute(text("INSERT INTO totals VALUES (:run_id, 1)"), {"run_id": entry.run_id})


def test_a_read_model_is_brought_up_to_date_by_what_is_new(store: RunStore, totals: Callable[[], int]) -> None:
    projection = Projection(store, "totals", add, batch=2)
    begin(store, "run-1", "run-2", "run-3")

    assert projection.catch_up() == 3
    assert projection.catch_up() == 0
    begin(store, "run-4")
    assert projection.catch_up() == 1

    assert totals() == 4
    assert projection.position == [*store.feed()][-1].position


def test_where_an_event_cannot_be_applied_its_batch_is_not_and_the_next_call_goes_on_there(
    store: RunStore, totals: Callable[[], int]
) -> None:
    begin(store, "run-1", "run-2", "run-3")
    is_broken = True

    def add_some(session: Any, entry: FeedEntry) -> None:
        add(session, entry)
        if is_broken and entry.run_id == "run-3":
            raise ZeroDivisionError

    projection = Projection(store, "totals", add_some, batch=2)
    with pytest.raises(ZeroDivisionError):
        projection.catch_up()
    assert totals() == 2

    is_broken = False
    assert projection.catch_up() == 1
    assert totals() == 3


def test_each_read_model_has_a_position_of_its_own_and_can_be_made_again(
    store: RunStore, totals: Callable[[], int]
) -> None:
    begin(store, "run-1", "run-2")
    one, other = (Projection(store, name, add) for name in ("one", "other"))

    one.catch_up()
    assert (one.position > 0, other.position) == (True, 0)
    one.rewind()
    one.catch_up()

    assert totals() == 4
    with pytest.raises(StoreUnusable, match="position=-1"):
        one.rewind(-1)


def test_a_projection_needs_a_name_and_a_batch(store: RunStore) -> None:
    for name, batch in (("", 1), ("totals", 0)):
        with pytest.raises(StoreUnusable, match="needs a name"):
            Projection(store, name, add, batch=batch)


def test_many_that_keep_one_read_model_apply_each_event_once(
    store: RunStore, open_store: Callable[..., RunStore], totals: Callable[[], int]
) -> None:
    begin(store, *(f"run-{n}" for n in range(60)))
    applied: list[int] = []

    def keep() -> None:
        projection = Projection(open_store(), "totals", add, batch=3)
        applied.append(projection.catch_up())

    keepers = [threading.Thread(target=keep) for _ in range(6)]
    for keeper in keepers:
        keeper.start()
    for keeper in keepers:
        keeper.join()

    assert sum(applied) == totals() == 60


def test_who_follows_applies_what_comes_until_told_to_stop(store: RunStore, totals: Callable[[], int]) -> None:
    stop = threading.Event()
    follower = threading.Thread(target=Projection(store, "totals", add).follow, args=[stop], kwargs={"poll": 0.01})
    follower.start()

    begin(store, "run-1", "run-2")
    until = time.monotonic() + 20
    while totals() < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    stop.set()
    follower.join(20)

    assert not follower.is_alive()
    assert totals() == 2


def test_a_projection_whose_database_fails_says_so(store: RunStore, sql: Sql) -> None:
    projection = Projection(store, "totals", add)
    begin(store, "run-1")
    sql("DROP TABLE agent_es_tracking")

    for ask in (projection.catch_up, projection.rewind):
        with pytest.raises(StoreUnusable, match="how far totals got"):
            ask()


def test_a_stream_without_its_first_event_names_no_run(store: RunStore, sql: Sql) -> None:
    begin(store, "run-1")
    answer(store, "run-1", '"one"')
    sql("DELETE FROM agent_es_events WHERE originator_version = 1")

    with pytest.raises(RunUnreadable, match=r"position \d+ of the feed"):
        next(store.feed())
    assert isinstance(store.recorder.page(0, 9, 9)[0][1].originator_id, UUID)
