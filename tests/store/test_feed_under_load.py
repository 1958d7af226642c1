"""The feed beside eight writers, one of which is stuck and some of which roll back."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from agent_es import AgentRun, RunStore
from agent_es.store.feed import FeedEntry
from agent_es.store.projection import row_of

pytestmark = pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)

WRITERS = 8
RUNS = 40
STUCK = 2.0


class Count(AgentRun):
    """Counts."""


@contextmanager
def open_transaction(store: RunStore, run_id: str) -> Iterator[None]:
    """Insert a run; commit at the end, or roll back where that raises."""
    run = Count.begin(run_id, "count", "null", {}, store.clock)
    stored = [store.mapper.to_stored_event(event) for event in run.pending_events]
    with store.recorder.datastore.writing() as connection:
        store.recorder.append_in(connection, stored, row_of(run.state), [])
        yield


def roll_back(store: RunStore, run_id: str) -> None:
    with suppress(ZeroDivisionError), open_transaction(store, run_id):
        time.sleep(0.01)
        raise ZeroDivisionError


def write(store: RunStore, writer: int, told: list[str]) -> None:
    """Start runs, and answer them; roll back one transaction in ten."""
    for n in range(RUNS):
        run_id = f"run-{writer}-{n}"
        if (n + writer) % 10 == 0:
            roll_back(store, f"never-{writer}-{n}")
        store.start(Count, run_id=run_id, goal="count")
        run = store.aggregate(Count, run_id)
        run.record_answer(str(n))
        store.save(run)
        told += [run_id, run_id]


def test_every_event_is_seen_once_and_in_order_and_no_writer_waits_for_the_one_that_is_stuck(
    store: RunStore, open_store: Callable[..., RunStore]
) -> None:
    told: list[str] = []
    seen: list[FeedEntry] = []
    stands = threading.Event()
    meanwhile: list[int] = []

    def be_stuck(store: RunStore) -> None:
        with open_transaction(store, "run-stuck"):
            stands.set()
            before = len(told)
            time.sleep(STUCK)
            meanwhile.append(len(told) - before)
        told.append("run-stuck")

    writers = [threading.Thread(target=write, args=[open_store(), n, told]) for n in range(WRITERS - 1)]
    writers.append(threading.Thread(target=be_stuck, args=[open_store()]))
    writers[-1].start()
    assert stands.wait(20)
    for writer in writers[:-1]:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        seen += store.feed(after=seen[-1].position if seen else 0)
    seen += store.feed(after=seen[-1].position if seen else 0)

    positions = [entry.position for entry in seen]
    assert positions == sorted(set(positions))
    assert sorted(entry.run_id for entry in seen) == sorted(told)
    assert seen[0].run_id == "run-stuck"
    assert len(told) == (WRITERS - 1) * RUNS * 2 + 1
    assert meanwhile[0] > WRITERS * RUNS
    assert positions[-1] > len(seen)
