"""B41: positions are given out again after a delete, and who follows skips what is new."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from agent_es import AgentRun, Projection, RunStore
from agent_es.events import stream_id


class Order(AgentRun):
    """An order."""


def purge(folder: Path, *run_ids: str) -> None:
    with closing(sqlite3.connect(folder / "runs.db", isolation_level=None)) as connection:
        for run_id in run_ids:
            connection.execute("DELETE FROM agent_es_events WHERE originator_id = ?", (stream_id(run_id).bytes,))
            connection.execute("DELETE FROM agent_es_runs WHERE run_id = ?", (run_id,))


def start(store: RunStore, *run_ids: str) -> None:
    for run_id in run_ids:
        store.start(Order, run_id=run_id, goal="order")


def test_a_run_that_is_started_after_the_newest_one_was_deleted_is_seen(store: RunStore, tmp_path: Path) -> None:
    start(store, "run-1", "run-2", "run-3")
    cursor = [entry.position for entry in store.feed()][-1]
    purge(tmp_path, "run-3")

    start(store, "run-4")

    (entry,) = store.feed(after=cursor)
    assert (entry.run_id, entry.position) == ("run-4", cursor + 1)


def test_a_run_that_is_started_after_everything_was_deleted_is_seen_by_a_read_model(
    store: RunStore, open_store: Callable[[], RunStore], tmp_path: Path
) -> None:
    applied: list[str] = []
    start(store, "run-1", "run-2")
    Projection(store, "orders", lambda _, entry: applied.append(entry.run_id)).catch_up()
    purge(tmp_path, "run-1", "run-2")
    store.close()

    again = open_store()
    start(again, "run-3")
    Projection(again, "orders", lambda _, entry: applied.append(entry.run_id)).catch_up()

    assert applied == ["run-1", "run-2", "run-3"]
