"""A run that starts in the caller's own transaction: the order and its run are one commit, or neither is."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from agent_es import AgentRun, RunStore, Status, awaitable
from agent_es.errors import RunConflict, RunNotFound, StoreUnusable


class Ship(AgentRun):
    """Ships an order."""


@pytest.fixture
def engine(url: str, store: RunStore) -> Iterator[Engine]:
    """The caller's own engine, with a table of orders."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id VARCHAR(20) PRIMARY KEY)"))
    yield engine
    engine.dispose()


def order(session: Session, name: str) -> None:
    session.execute(text("INSERT INTO orders VALUES (:name)"), {"name": name})


def orders(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return [name for (name,) in session.execute(text("SELECT id FROM orders ORDER BY id"))]


def test_an_order_and_its_run_are_one_commit(store: RunStore, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        order(session, "A")
        state = store.start(Ship, run_id="ship-A", goal="ship", input={"n": 1}, tags={"by": "ann"}, session=session)
        with pytest.raises(RunNotFound):
            store.load("ship-A")

    assert (state.run_id, state.resumed) == ("ship-A", False)
    assert store.load("ship-A") == state
    assert (store.record("ship-A").status, store.record("ship-A").tags) == (Status.PENDING, {"by": "ann"})
    assert orders(engine) == ["A"]
    assert [entry.run_id for entry in store.feed()] == ["ship-A"]


def test_where_the_caller_rolls_back_neither_is_there_and_the_id_is_free(store: RunStore, engine: Engine) -> None:
    with Session(engine) as session:
        store.start(Ship, run_id="ship-A", goal="ship", session=session)
        order(session, "A")
        session.rollback()

    assert orders(engine) == []
    assert store.runs() == []
    assert store.start(Ship, run_id="ship-A", goal="another").resumed is False


def test_where_the_run_is_there_it_is_returned_and_the_transaction_goes_on(store: RunStore, engine: Engine) -> None:
    store.start(Ship, run_id="ship-A", goal="ship")

    with Session(engine) as session, session.begin():
        order(session, "A")
        again = store.start(Ship, run_id="ship-A", goal="ship", session=session)
        with pytest.raises(RunConflict, match="'ship', not 'sink'"):
            store.start(Ship, run_id="ship-A", goal="sink", session=session)
        twice = [store.start(Ship, run_id="ship-B", goal="ship", session=session).resumed for _ in range(2)]

    assert again.resumed
    assert twice == [False, True]
    assert orders(engine) == ["A"]
    assert store.load("ship-B").version == 1


def test_a_session_of_another_database_is_refused_and_nothing_is_written(store: RunStore, tmp_path: Path) -> None:
    elsewhere = create_engine(f"sqlite:///{tmp_path / 'other.db'}")

    with Session(elsewhere) as session, pytest.raises(StoreUnusable, match=r"the session is of .*other\.db"):
        store.start(Ship, run_id="ship-A", goal="ship", session=session)

    elsewhere.dispose()
    assert store.runs() == []


def test_the_caller_may_have_its_own_connection_and_savepoints(store: RunStore, engine: Engine) -> None:
    with engine.connect() as connection, connection.begin(), Session(bind=connection) as session:
        order(session, "A")
        with session.begin_nested() as savepoint:
            store.start(Ship, run_id="ship-A", goal="ship", session=session)
            savepoint.rollback()
        store.start(Ship, run_id="ship-B", goal="ship", session=session)
        session.commit()

    assert [record.run_id for record in store.runs()] == ["ship-B"]


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_an_asynchronous_session_joins_too(store: RunStore, engine: Engine, url: str) -> None:
    async def main() -> None:
        engine = create_async_engine(url)
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(text("INSERT INTO orders VALUES ('A')"))
            await session.run_sync(lambda own: store.start(Ship, run_id="ship-A", goal="ship", session=own))
        await engine.dispose()

    asyncio.run(main())

    assert orders(engine) == ["A"]
    assert store.load("ship-A").goal == "ship"


# Awaited.


def test_every_call_of_a_store_can_be_awaited(store: RunStore) -> None:
    async def main() -> tuple[str, list[str], int]:
        await awaitable(store.start)(Ship, run_id="ship-A", goal="ship")
        state = await awaitable(store.load)("ship-A")
        fed = await awaitable(list)(store.feed(after=0, limit=10))
        with pytest.raises(RunNotFound):
            await awaitable(store.load)("ship-B")
        return state.run_id, [entry.type for entry in fed], await awaitable(store.count)()

    assert asyncio.run(main()) == ("ship-A", ["run_started"], 1)


def test_the_event_loop_goes_on_meanwhile_and_a_call_that_is_cancelled_comes_to_its_end(store: RunStore) -> None:
    may_go, ended = threading.Event(), threading.Event()

    def start_slowly() -> None:
        may_go.wait(20)
        store.start(Ship, run_id="ship-A", goal="ship")
        ended.set()

    async def main() -> None:
        call = asyncio.ensure_future(awaitable(start_slowly)())
        await asyncio.sleep(0.01)
        call.cancel()
        may_go.set()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())

    assert ended.wait(20)
    assert store.load("ship-A").goal == "ship"


# The bell.


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_who_listens_is_told_when_a_run_becomes_due_and_not_of_other_events(
    store: RunStore, open_store: Callable[..., RunStore], engine: Engine
) -> None:
    rings: list[float] = []
    stop = threading.Event()
    bell = open_store().bell
    listener = threading.Thread(target=bell.listen, args=[stop, lambda: rings.append(time.monotonic())])
    listener.start()

    def rung(times: int) -> bool:
        until = time.monotonic() + 10
        while len(rings) < times:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        time.sleep(0.1)
        return len(rings) == times

    assert rung(2)  # it listens, and hears itself
    assert bell.is_heard
    rings.pop()
    store.start(Ship, run_id="ship-A", goal="ship")
    assert rung(2)
    with Session(engine) as session, session.begin():
        store.start(Ship, run_id="ship-B", goal="ship", session=session)
    assert rung(3)
    run = store.aggregate(Ship, "ship-A")
    run.record_parked("for a test")
    store.save(run)
    assert rung(3)
    store.requeue("ship-A", by="ann")
    assert rung(4)
    run = store.aggregate(Ship, "ship-A")
    run.record_answer("1")
    store.save(run)
    assert rung(4)

    stop.set()
    listener.join(10)
    assert not listener.is_alive()


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_a_listener_whose_connection_is_ended_listens_again_and_looks(
    store: RunStore, open_store: Callable[..., RunStore], server: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_es.store.bell.AGAIN", 0.05)
    rings = threading.Semaphore(0)
    stop = threading.Event()
    listener = threading.Thread(target=open_store().bell.listen, args=[stop, rings.release])
    listener.start()
    assert rings.acquire(timeout=10)

    server.execute(  # type: ignore[attr-defined]
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN agent_es%'"
    )

    assert rings.acquire(timeout=10)  # it looks, since what it missed was told to nobody
    store.start(Ship, run_id="ship-A", goal="ship")
    assert rings.acquire(timeout=10)
    stop.set()
    listener.join(10)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_file_rings_with_each_commit_of_another_connection(
    store: RunStore, open_store: Callable[..., RunStore]
) -> None:
    rings = threading.Semaphore(0)
    stop = threading.Event()
    listening = open_store()
    listener = threading.Thread(target=listening.bell.listen, args=[stop, rings.release])
    listener.start()
    assert rings.acquire(timeout=10)  # it listens
    assert listening.bell.is_heard

    assert not rings.acquire(timeout=0.2)  # nobody has written
    store.start(Ship, run_id="ship-A", goal="ship")
    assert rings.acquire(timeout=10)
    listening.start(Ship, run_id="ship-B", goal="ship")  # nor does it matter who writes
    assert rings.acquire(timeout=10)

    stop.set()
    listener.join(10)
    assert not listener.is_alive()
    assert not listening.bell.is_heard
