"""Connections: patient without end to nobody, found again where a server was restarted, and of one process.

Rule 1: what finds the database busy is made again after a short random sleep, within a bound in time; where one
writes at a time, those of one process take turns first.
Rule 2: no ambient transaction: whoever wants to join one is handed its session.
Rule 3: a connection that is lost is never kept at hand; a server that was there once is waited for, within a bound.
Rule 4: a process that was forked uses none of its parent's connections, and closes none of them.
"""

import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

import eventsourcing.persistence as es
import sqlalchemy.exc as sa
from eventsourcing_sqlalchemy.datastore import SQLAlchemyDatastore
from sqlalchemy import Connection, Engine, PoolProxiedConnection, event
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from agent_es.crashpoints import AFTER_COMMIT, BEFORE_COMMIT, crash_point
from agent_es.errors import StoreBusy, StoreReentered, StoreUnusable
from agent_es.store.dialects import dialect_of, is_same, shown
from agent_es.store.tables import EventRow

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a writer waits for a lock before it gives up."""

TRIES = 5
"""How often something is written whose answer was lost."""

RECONNECT = 15.0
"""Seconds that a server is waited for that was there before: long enough for its restart."""


class Joined:
    """The connection of somebody's own transaction, spoken to as a driver's is."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = (), **_: object) -> Any:
        """Execute a statement with the driver's marks for values; hints for the driver are left out."""
        return self._connection.exec_driver_sql(statement, tuple(values))


class Datastore(SQLAlchemyDatastore):
    """The event store library's datastore, with transactions of our own."""

    base_stored_event_record_cls = EventRow
    engine: Engine
    session_maker: sessionmaker[Session]

    def __init__(self, **kwargs: Any) -> None:
        url = make_url(kwargs["url"])
        self.dialect = dialect_of(url)
        # Connections at hand count as taken from the pool.
        super().__init__(**{"max_overflow": -1, **self.dialect.options(url), **kwargs})
        self._at_hand: list[PoolProxiedConnection] = []
        self.patience = PATIENCE
        self.reconnect = RECONNECT
        self._was_reached = False
        self._is_closed = False
        self._lent = threading.local()
        self.write_lock = None  # it has no timeout; ours have
        self._turn = threading.Lock() if self.dialect.has_one_writer else None
        event.listen(self.engine, "connect", self._on_connect)
        event.listen(self.engine, "begin", self._on_begin)
        event.listen(self.engine, "checkin", self._on_checkin)
        _datastores.add(self)

    def _on_connect(self, connection: Any, _: object) -> None:
        self.patiently(lambda: self.dialect.configure(connection, self.patience))

    def _on_begin(self, connection: Connection) -> None:
        to_write = bool(connection.get_execution_options().get("agent_es_write"))
        driver = connection.connection.driver_connection
        self.patiently(lambda: self.dialect.begin(driver, to_write=to_write))

    def _on_checkin(self, connection: Any, record: ConnectionPoolEntry) -> None:
        if self._is_closed and connection is not None:
            record.invalidate()

    def init_sqlite_wal_mode(self) -> None:
        """Nothing to do: every connection is in WAL mode from the start."""
        self._tried_init_sqlite_wal_mode = True

    def patiently(self, act: Callable[[], T]) -> T:
        """Do what fails where the database is busy, again until it does not; raise ``StoreBusy``."""
        until = time.monotonic() + self.patience
        while True:
            try:
                return act()
            except self.dialect.errors as error:
                if not self.dialect.is_busy(error):
                    raise
                if time.monotonic() > until:
                    raise self._busy() from error
            time.sleep(random.uniform(0.0002, 0.003))  # noqa: S311  # spreads writers out, guards nothing

    def _busy(self) -> StoreBusy:
        return StoreBusy(
            f"the database was busy for {self.patience:g} s and nothing was recorded; "
            "somebody else holds a transaction open"
        )

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        self._take_turn()
        try:
            yield
        finally:
            self._end_turn()

    def _take_turn(self) -> None:
        """Wait for those of this process who write, where one writes at a time: the next is woken, none guesses."""
        if self._turn is not None and not self._turn.acquire(timeout=max(0.0, self.patience)):
            raise self._busy()

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.release()

    @contextmanager
    def transaction(self, commit: bool) -> Iterator[Session]:  # type: ignore[override]  # noqa: FBT001  # its call, our object
        """Open a transaction, in write mode where it will commit; raise the event store library's errors."""
        self.refuse_reentry()
        with self.translated(), self._in_turn() if commit else nullcontext(), self.session_maker() as session:
            self._reach(lambda: session.connection(execution_options={"agent_es_write": commit}))
            yield session
            if commit:
                session.commit()

    @contextmanager
    def raw(self, lent: PoolProxiedConnection | None = None) -> Iterator[Any]:
        """Lend the driver's own connection, for the hot path: SQLAlchemy's session costs half an append.

        One that served well is kept at hand: a round through the pool costs a fifth of an append.
        """
        if lent is None:
            lent = self._lend()
        try:
            yield lent.driver_connection
        except BaseException:
            self._take_back(lent)
            raise
        self._keep_at_hand(lent)

    def _keep_at_hand(self, lent: PoolProxiedConnection) -> None:
        self._at_hand.append(lent)
        if self._is_closed:
            self._set_aside()

    def reading(self, act: Callable[[Any], T]) -> T:
        """Let ``act`` read; where its connection is lost meanwhile, once more on another one, within the bound."""
        until = time.monotonic() + self.reconnect
        while True:
            lent = self._lend()
            connection = lent.driver_connection
            try:
                with self.raw(lent):
                    return self.patiently(partial(act, connection))
            except self.dialect.errors:
                if not self.dialect.is_lost(connection) or time.monotonic() > until:
                    raise

    def _lend(self) -> PoolProxiedConnection:
        try:
            return self._at_hand.pop()
        except IndexError:
            return self._reach(self.engine.raw_connection)

    def _reach(self, connect: Callable[[], T]) -> T:
        """Connect; where a server is away that was there before, again with growing waits, within a bound."""
        until, wait = time.monotonic() + self.reconnect, 0.02
        while True:
            try:
                reached = connect()
            except (self.dialect.errors, sa.DBAPIError) as error:
                is_away = self.dialect.is_away(getattr(error, "orig", None) or error)
                if not (self._was_reached and is_away) or time.monotonic() + wait > until:
                    raise
            else:
                self._was_reached = True
                return reached
            time.sleep(wait)
            wait = min(2 * wait, 0.5)

    def _begin(self) -> PoolProxiedConnection:
        """Lend a connection on which a transaction has begun; one that turns out to be lost is replaced."""
        until = time.monotonic() + self.reconnect
        while True:
            lent = self._lend()
            connection = lent.driver_connection
            try:
                self.patiently(partial(self.dialect.begin, connection, to_write=True))
            except BaseException as error:
                self._take_back(lent)
                is_away = isinstance(error, self.dialect.errors) and self.dialect.is_lost(connection)
                if not is_away or time.monotonic() > until:
                    raise
            else:
                return lent

    def _take_back(self, lent: PoolProxiedConnection) -> None:
        """Return to the pool what an error was seen on; where the server is gone, all others are lost too."""
        if lent.driver_connection is not None and self.dialect.is_lost(lent.driver_connection):
            lent.invalidate()
            self._set_aside()
        else:
            lent.close()  # the pool rolls back

    def close(self) -> None:
        """Close every connection, one that is in use when it is given back; one that is asked for later is new."""
        self._is_closed = True
        self._set_aside()
        self.engine.dispose()

    def _set_aside(self) -> None:
        """Return what is at hand to the pool, which looks at a connection before it gives it away."""
        with suppress(IndexError):
            while True:
                self._at_hand.pop().close()

    @contextmanager
    def lending(self) -> Iterator[tuple[Session, Any]]:
        """Lend a session to a user's code, inside a transaction of ours that alone decides what is committed.

        Beside it, the driver's connection of the same transaction.  Whatever the session commits or rolls back is a
        savepoint.  A call to the store from this thread meanwhile raises ``StoreReentered``.
        """
        with (
            self.translated(),
            self._in_turn(),
            self._reach(self.engine.connect).execution_options(agent_es_write=True) as connection,
        ):
            with connection.begin(), Session(bind=connection, join_transaction_mode="create_savepoint") as session:
                self._lent.to_this_thread = True
                try:
                    yield session, connection.connection.driver_connection
                finally:
                    self._lent.to_this_thread = False
                crash_point(BEFORE_COMMIT, "commit")
            crash_point(AFTER_COMMIT, "commit")

    def joined(self, session: Session) -> Joined:
        """Return the connection of a session of the caller's own; raise ``StoreUnusable`` where it is elsewhere."""
        connection = session.connection()
        theirs, ours = connection.engine.url, self.engine.url
        if not is_same(theirs, ours):
            raise StoreUnusable(
                f"the session is of {shown(str(theirs))}, and the runs are in {shown(str(ours))}: one commit is of "
                "one database; open the store with the URL that the session's engine has"
            )
        return Joined(connection)

    @contextmanager
    def apart(self) -> Iterator[Any]:
        """Lend a connection of the driver for as long as it is wanted, which nobody gets after that."""
        lent = self._reach(self.engine.raw_connection)
        try:
            yield lent.driver_connection
        finally:
            lent.invalidate()

    def refuse_reentry(self) -> None:
        """Raise ``StoreReentered`` in a thread whose transaction is under way."""
        if getattr(self._lent, "to_this_thread", False):
            raise StoreReentered

    @contextmanager
    def writing(self, *, alone: bool = False) -> Iterator[Any]:
        """Lend the driver's connection inside a transaction in write mode; commit, or roll back on an error.

        ``alone`` keeps everybody else from appending until then, on a database where several may.
        """
        self.refuse_reentry()
        self._take_turn()
        try:
            lent = self._begin()
            try:
                connection: Any = lent.driver_connection
                if alone:
                    self.patiently(lambda: self.dialect.lock_out(connection))
                yield connection
                crash_point(BEFORE_COMMIT, "commit")
                connection.execute("COMMIT")
                crash_point(AFTER_COMMIT, "commit")
            except BaseException:
                self._take_back(lent)
                raise
            self._keep_at_hand(lent)
        finally:
            self._end_turn()

    def repeatable(self, act: Callable[[Any], T], what: str) -> T:
        """Let ``act`` write in a transaction of its own; where its answer is lost, again: that must harm nothing.

        Raises ``StoreUnusable`` where ``what`` could not be done, ``StoreBusy`` where somebody was in the way.
        """
        for tries in range(TRIES):
            try:
                with self.translated(), self.writing() as connection:
                    return act(connection)
            except es.PersistenceError as error:
                failed = error
                cause = error.__cause__ or error
                if self.dialect.is_busy(getattr(cause, "orig", None) or cause):
                    raise self._busy() from error  # it has waited for long enough
                if not isinstance(error, es.OperationalError):
                    break  # it was refused, and will be
                time.sleep(0.01 * 2**tries)
        raise StoreUnusable(f"{what}: {failed}") from failed

    @contextmanager
    def usable(self, what: str) -> Iterator[None]:
        """Turn every error of the database into ``StoreUnusable``, which says what could not be done."""
        try:
            with self.translated():
                yield
        except es.PersistenceError as error:
            raise StoreUnusable(f"{what}: {error}") from error

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn the errors of SQLAlchemy and of its driver into those of the event store library."""
        try:
            yield
        except (sa.SQLAlchemyError, self.dialect.errors, sqlite3.Error) as error:
            raise self._translate(error)(error) from error

    def _translate(self, error: Exception) -> type[es.PersistenceError]:
        """Return the class of the same name: drivers, SQLAlchemy and the library have them all from PEP 249."""
        if self.dialect.is_away(getattr(error, "orig", None) or error):
            return es.OperationalError
        named = (getattr(es, cls.__name__, None) for cls in type(error).__mro__)
        return next(
            (it for it in named if isinstance(it, type) and issubclass(it, es.PersistenceError)), es.PersistenceError
        )

    def leave_to_parent(self) -> None:
        """Forget every connection without closing it, in a process that was forked."""
        _left_to_parents.append((self.engine.pool, self._at_hand))
        self._at_hand = []
        self._lent = threading.local()
        self._turn = self._turn and threading.Lock()
        self.engine.dispose(close=False)


_datastores: "weakref.WeakSet[Datastore]" = weakref.WeakSet()
_left_to_parents: list[Any] = []
"""What a child must neither use nor let go of: collecting it would close it, at the server too."""


def _after_fork() -> None:
    for datastore in list(_datastores):
        datastore.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
