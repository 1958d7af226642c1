"""B40: events become visible in another order than that of their positions, and a reader skips one.

The store's positions come from a sequence.  Whoever takes one earlier may commit later, and whoever rolls back leaves
a gap for ever.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_es import AgentRun, Projection, RunStore
from agent_es.store.projection import row_of

pytestmark = pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


class Order(AgentRun):
    """An order."""


@pytest.fixture
def open_another(new_url: Callable[[Path], str], tmp_path: Path) -> Iterator[Callable[[], RunStore]]:
    url = new_url(tmp_path)
    with ExitStack() as opened:
        yield lambda: opened.enter_context(RunStore(url))


@contextmanager
def open_transaction(store: RunStore, run_id: str) -> Iterator[None]:
    """Insert a run; commit at the end, or roll back where that raises."""
    run = Order.begin(run_id, "order", "null", {}, store.clock)
    stored = [store.mapper.to_stored_event(event) for event in run.pending_events]
    with store.recorder.datastore.writing() as connection:
        store.recorder.append_in(connection, stored, row_of(run.state), [])
        yield


def roll_back(store: RunStore, run_id: str) -> None:
    with pytest.raises(ZeroDivisionError), open_transaction(store, run_id):
        raise ZeroDivisionError


def test_what_took_its_position_earlier_and_commits_later_is_not_skipped(
    open_another: Callable[[], RunStore],
) -> None:
    store, other, reader = (open_another() for _ in range(3))
    applied: list[str] = []
    orders = Projection(reader, "orders", lambda _, entry: applied.append(entry.run_id))
    follower = threading.Thread(target=orders.catch_up)

    with open_transaction(store, "first"):
        other.start(Order, run_id="second", goal="order")
        follower.start()
        time.sleep(0.3)
        assert applied == []
    follower.join(20)
    orders.catch_up()

    assert applied == ["first", "second"]


def test_a_gap_that_stays_delays_nobody(open_another: Callable[[], RunStore]) -> None:
    store = open_another()
    store.start(Order, run_id="first", goal="order")
    roll_back(store, "never")
    store.start(Order, run_id="third", goal="order")

    began = time.monotonic()
    entries = [*store.feed()]

    assert [entry.run_id for entry in entries] == ["first", "third"]
    assert entries[1].position - entries[0].position == 2
    assert time.monotonic() - began < 2


def test_a_writer_of_the_event_store_library_is_waited_for_too(open_another: Callable[[], RunStore]) -> None:
    store, reader = open_another(), open_another()
    run = Order.begin("first", "order", "null", {}, store.clock)
    stored = [store.mapper.to_stored_event(event) for event in run.pending_events]
    seen: list[Any] = []
    follower = threading.Thread(target=lambda: seen.extend(reader.feed()))

    with store.recorder.transaction(commit=True) as session:
        store.recorder.insert_events(stored, session=session)
        session.flush()
        follower.start()
        time.sleep(0.3)
        assert seen == []
    follower.join(20)

    assert [entry.run_id for entry in seen] == ["first"]
