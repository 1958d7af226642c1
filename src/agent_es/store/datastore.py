"""Connections to SQLite: durable, in write mode from the start, and patient without starving anyone.

Rule 1: every connection runs at ``synchronous=FULL`` in WAL mode, and it is read back.
Rule 2: a transaction that will write begins in write mode: one that reads first would fail at once, whatever
the timeout, when another writer has committed in between.
Rule 3: waiting for the write lock is a loop of short random sleeps, bounded in time.  SQLite's own busy handler
starves: of eight writers in tight loops the worst got one append in three seconds.
Rule 4: no ambient transaction: whoever wants to join one is handed its session.
"""

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import eventsourcing.persistence as es
import sqlalchemy.exc as sa
from eventsourcing_sqlalchemy.datastore import SQLAlchemyDatastore
from sqlalchemy import Connection, Engine, PoolProxiedConnection, event
from sqlalchemy.orm import Session, sessionmaker

from agent_es.crashpoints import AFTER_COMMIT, BEFORE_COMMIT, crash_point
from agent_es.errors import StoreBusy, StoreReentered
from agent_es.store.tables import EventRow

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a writer waits for the write lock before it gives up."""

_TRANSLATED: tuple[tuple[type[Exception], type[es.PersistenceError]], ...] = (
    (sqlite3.IntegrityError, es.IntegrityError),
    (sa.IntegrityError, es.IntegrityError),
    (sqlite3.OperationalError, es.OperationalError),
    (sa.OperationalError, es.OperationalError),
    (sa.ProgrammingError, es.ProgrammingError),
    (sa.InterfaceError, es.InterfaceError),
    (sa.DataError, es.DataError),
    (Exception, es.PersistenceError),
)


def is_busy(error: BaseException) -> bool:
    """Whether an error says that somebody else holds the lock, and nothing was done."""
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def patiently(act: Callable[[], T], patience: float) -> T:
    """Do what fails at once where the database is busy, again until it does not; raise ``StoreBusy``."""
    until = time.monotonic() + patience
    while True:
        try:
            return act()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() > until:
                raise StoreBusy(
                    f"the database was busy for {patience:g} s and nothing was recorded; "
                    "another process holds a transaction open"
                ) from error
        time.sleep(random.uniform(0.0002, 0.003))  # noqa: S311  # spreads writers out, guards nothing


class Datastore(SQLAlchemyDatastore):
    """The event store library's datastore, with transactions of our own."""

    base_stored_event_record_cls = EventRow
    engine: Engine
    session_maker: sessionmaker[Session]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"max_overflow": -1, **kwargs})  # connections at hand count as taken from the pool
        self._at_hand: list[PoolProxiedConnection] = []
        self.patience = PATIENCE
        self._lent = threading.local()
        self.write_lock = None  # it has no timeout; ours is in `patiently`
        event.listen(self.engine, "connect", self._on_connect)
        event.listen(self.engine, "begin", self._on_begin)

    def _on_connect(self, connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        connection.execute("PRAGMA busy_timeout=0")
        patiently(lambda: connection.execute("PRAGMA journal_mode=WAL").fetchone(), self.patience)
        connection.execute("PRAGMA synchronous=FULL")
        if connection.execute("PRAGMA synchronous").fetchone() != (2,):
            raise es.PersistenceError("SQLite refused synchronous=FULL; a committed event could be lost")

    def _on_begin(self, connection: Connection) -> None:
        mode = "BEGIN IMMEDIATE" if connection.get_execution_options().get("agent_es_write") else "BEGIN"
        driver = cast(sqlite3.Connection, connection.connection.driver_connection)
        patiently(lambda: driver.execute(mode), self.patience)

    def init_sqlite_wal_mode(self) -> None:
        """Nothing to do: every connection is in WAL mode from the start."""
        self._tried_init_sqlite_wal_mode = True

    @contextmanager
    def transaction(self, commit: bool) -> Iterator[Session]:  # type: ignore[override]  # noqa: FBT001  # its call, our object
        """Open a transaction, in write mode where it will commit; raise the event store library's errors."""
        self._refuse_reentry()
        with translated(), self.session_maker() as session:
            session.connection(execution_options={"agent_es_write": commit})
            yield session
            if commit:
                session.commit()

    @contextmanager
    def raw(self) -> Iterator[sqlite3.Connection]:
        """Lend the driver's own connection, for the hot path: SQLAlchemy's session costs half an append.

        One that served well is kept at hand: a round through the pool costs a fifth of an append.
        """
        lent = self._lend()
        try:
            yield cast(sqlite3.Connection, lent.driver_connection)
        except BaseException:
            lent.close()  # the pool rolls back
            raise
        self._at_hand.append(lent)

    def _lend(self) -> PoolProxiedConnection:
        try:
            return self._at_hand.pop()
        except IndexError:
            return self.engine.raw_connection()

    def close(self) -> None:
        """Close every connection that is not in use; one that is asked for later is a new one."""
        while self._at_hand:
            self._lend().close()
        self.engine.dispose()

    @contextmanager
    def lending(self) -> Iterator[tuple[Session, sqlite3.Connection]]:
        """Lend a session to a user's code, inside a transaction of ours that alone decides what is committed.

        Beside it, the driver's connection of the same transaction.  Whatever the session commits or rolls back is a
        savepoint.  A call to the store from this thread meanwhile raises ``StoreReentered``.
        """
        with translated(), self.engine.connect().execution_options(agent_es_write=True) as connection:
            with connection.begin(), Session(bind=connection, join_transaction_mode="create_savepoint") as session:
                self._lent.to_this_thread = True
                try:
                    yield session, cast(sqlite3.Connection, connection.connection.driver_connection)
                finally:
                    self._lent.to_this_thread = False
                crash_point(BEFORE_COMMIT, "commit")
            crash_point(AFTER_COMMIT, "commit")

    def _refuse_reentry(self) -> None:
        if getattr(self._lent, "to_this_thread", False):
            raise StoreReentered

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Lend the driver's connection inside a transaction in write mode; commit, or roll back on an error."""
        self._refuse_reentry()
        with self.raw() as connection:
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"), self.patience)
            yield connection
            crash_point(BEFORE_COMMIT, "commit")
            connection.execute("COMMIT")
            crash_point(AFTER_COMMIT, "commit")


@contextmanager
def translated() -> Iterator[None]:
    """Turn the errors of SQLAlchemy and of its driver into those of the event store library."""
    try:
        yield
    except (sa.SQLAlchemyError, sqlite3.Error) as error:
        raise next(ours for theirs, ours in _TRANSLATED if isinstance(error, theirs))(error) from error
