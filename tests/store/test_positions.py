"""Positions: what follows the events of every run is never shown a number twice."""

from collections.abc import Callable
from typing import Any

import pytest
from eventsourcing.persistence import IntegrityError, StoredEvent

from agent_es import AgentRun, RunStore
from agent_es.events import stream_id

Sql = Callable[..., list[tuple[Any, ...]]]


class Refund(AgentRun):
    pass


def start(store: RunStore, *run_ids: str) -> None:
    for run_id in run_ids:
        store.start(Refund, run_id=run_id, goal="Refund ORD-3300")


def purge(sql: Sql, *run_ids: str) -> None:
    for run_id in run_ids:
        sql("DELETE FROM agent_es_events WHERE originator_id = ?", (stream_id(run_id),))
        sql("DELETE FROM agent_es_runs WHERE run_id = ?", (run_id,))


def test_a_follower_sees_what_was_started_after_the_newest_run_was_deleted(store: RunStore, sql: Sql) -> None:
    start(store, "run-1", "run-2", "run-3")
    cursor = store.recorder.max_notification_id()
    purge(sql, "run-3")

    start(store, "run-4")

    seen = store.recorder.select_notifications(start=cursor, limit=10, inclusive_of_start=False)
    assert [it.originator_id for it in seen] == [stream_id("run-4")]


def test_a_follower_sees_what_was_started_after_everything_was_deleted(
    store: RunStore, sql: Sql, open_store: Callable[..., RunStore]
) -> None:
    start(store, "run-1", "run-2", "run-3")
    cursor = store.recorder.max_notification_id()
    purge(sql, "run-1", "run-2", "run-3")
    store.close()

    again = open_store()
    start(again, "run-4")

    seen = again.recorder.select_notifications(start=cursor, limit=10, inclusive_of_start=False)
    assert [it.originator_id for it in seen] == [stream_id("run-4")]


def test_a_refused_append_takes_no_position_that_a_follower_has_passed(store: RunStore) -> None:
    start(store, "run-1")
    faster, slower = (store.aggregate(Refund, "run-1") for _ in range(2))
    for run in (faster, slower):
        run.record_answer("1")
    store.save(faster)
    with pytest.raises(Exception, match="another worker"):
        store.save(slower)

    start(store, "run-2")

    positions = [it.id for it in store.recorder.select_notifications(start=1, limit=10)]
    assert positions == sorted(set(positions))
    assert len(positions) == 3


def test_the_librarys_notification_log_tells_every_event_in_order(store: RunStore) -> None:
    start(store, "run-1", "run-2")

    told = store.notification_log.select(start=1, limit=10)

    assert [(it.originator_id, it.originator_version, it.topic) for it in told] == [
        (stream_id("run-1"), 1, "agent_es:RunStarted"),
        (stream_id("run-2"), 1, "agent_es:RunStarted"),
    ]


def test_the_librarys_insert_is_fenced_by_the_version_too(store: RunStore) -> None:
    start(store, "run-1")
    event = StoredEvent(stream_id("run-1"), 1, "agent_es:Finished", b"{}")

    with pytest.raises(IntegrityError):
        store.recorder.insert_events([event])

    assert store.load("run-1").version == 1
