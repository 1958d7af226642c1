"""SQLite: durable, in write mode from the start, and patient without starving anyone.

Rule 1: every connection runs at ``synchronous=FULL`` in WAL mode, and it is read back.
Rule 2: a transaction that will write begins in write mode: one that reads first would fail at once, whatever
the timeout, when another writer has committed in between.  So whoever writes has locked out all others.
Rule 3: SQLite's own busy handler starves: of eight writers in tight loops the worst got one append in three
seconds.  It is off; a statement that finds the database busy fails at once, and is made again by the datastore.
"""

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import eventsourcing.persistence as es
from eventsourcing.persistence import StoredEvent
from sqlalchemy import URL

from agent_es.errors import StoreUnusable
from agent_es.store.mapper import Row
from agent_es.store.tables import is_present, schema

LOOK = 0.02
"""Seconds between two looks at whether somebody has committed: each takes microseconds, and locks nothing."""


class SQLite:
    """Speaks to SQLite through the standard library's driver."""

    errors: type[Exception] = sqlite3.Error
    append: None = None
    now = "((julianday('now') - 2440587.5) * 86400.0)"
    for_update = skip_locked = ""
    has_one_writer = True
    echoes = False

    def check(self, url: URL, *, create: bool, migrate: bool) -> None:
        """Refuse a file that is not for us, without changing a byte of it."""
        check_file(url, create=create, migrate=migrate)

    def options(self, _: URL) -> Mapping[str, Any]:
        """Return nothing: what SQLAlchemy does by itself will do."""
        return {}

    def configure(self, connection: sqlite3.Connection, _: float) -> None:
        """Set what makes a commit durable, and read it back."""
        connection.isolation_level = None  # we say BEGIN ourselves
        connection.execute("PRAGMA busy_timeout=0")
        connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute("PRAGMA synchronous=FULL")
        if connection.execute("PRAGMA synchronous").fetchone() != (2,):
            raise es.PersistenceError("SQLite refused synchronous=FULL; a committed event could be lost")

    def begin(self, connection: sqlite3.Connection, *, to_write: bool) -> None:
        """Begin, in write mode where it is asked for."""
        connection.execute("BEGIN IMMEDIATE" if to_write else "BEGIN")

    def lock_feed(self, _: sqlite3.Connection) -> None:
        """Do nothing: whoever writes is alone."""

    def lock_out(self, _: sqlite3.Connection) -> None:
        """Do nothing: whoever writes is alone."""

    def using(self, index: str) -> str:
        """Name the index: without figures of its own SQLite takes a partial one for no better than another."""
        return f" INDEXED BY {index}"

    def ring(self, _: sqlite3.Connection) -> None:
        """Do nothing: every commit is seen by those who listen."""

    def listen(self, connection: sqlite3.Connection) -> Callable[[float, threading.Event], bool]:
        """Return what looks at the file every so often: its version changes with each commit of others."""
        seen = _version_of(connection)

        def hear(seconds: float, stop: threading.Event) -> bool:
            nonlocal seen
            until = time.monotonic() + seconds
            while (now := _version_of(connection)) == seen:
                if time.monotonic() >= until or stop.wait(LOOK):
                    return False
            seen = now
            return True

        return hear

    def is_busy(self, error: BaseException) -> bool:
        """Whether somebody else holds the lock."""
        code = getattr(error, "sqlite_errorcode", 0)  # an error that others make has none
        return isinstance(error, sqlite3.OperationalError) and code & 0xFF in (
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
        )

    def is_away(self, _: BaseException) -> bool:
        """Return False: there is no server."""
        return False

    def is_lost(self, _: sqlite3.Connection) -> bool:
        """Return False: there is no server."""
        return False

    def sql(self, statement: str) -> str:
        """Return the statement as it is."""
        return statement

    def stream(self, stream: UUID) -> bytes:
        """Return the sixteen bytes."""
        return stream.bytes

    def stream_of(self, found: bytes) -> UUID:
        """Return the id that the bytes stand for."""
        return UUID(bytes=found)

    def settled(self, connection: sqlite3.Connection, table: str, _: float) -> int:
        """Return the last position: whoever writes is alone, so they appear in their order."""
        return int(connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0])

    def moment(self, table: str) -> str:
        """Ask for the last position: whoever writes is alone, so it grows with each commit."""
        return f"SELECT coalesce(max(id), 0) FROM {table}"

    def position(self, column: str) -> str:
        """Compare bytes."""
        return f"instr({column}, ?) > 0"

    def occurs(self, column: str) -> str:
        """Compare by LIKE, which knows capitals of ASCII alone."""
        return f"{column} LIKE ? ESCAPE '\\'"

    def sought(self, text: str) -> str:
        """Escape what stands for other characters."""
        escaped = re.sub(r"([\\%_])", r"\\\1", text)
        return f"%{escaped}%"

    def tables(self, connection: sqlite3.Connection) -> frozenset[str]:
        """Return what the file has."""
        return frozenset(name for (name,) in connection.execute("SELECT name FROM sqlite_schema"))

    def tune(self, _: sqlite3.Connection, _table: str) -> None:
        """Leave it as it is."""

    def columns(self, connection: sqlite3.Connection, table: str) -> frozenset[str]:
        """Return what the file has."""
        return frozenset(name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})"))

    def select(self, connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
        """Return the rows while they are read."""
        return connection.execute(sql, values)

    def rows(self, connection: sqlite3.Connection, sql: str, stream: UUID, after: int, upto: int) -> Iterable[Row]:
        """Return the rows while they are read."""
        return connection.execute(sql, (stream.bytes, after, upto))

    def insert(self, connection: sqlite3.Connection, table: str, stored: Sequence[StoredEvent]) -> None:
        """Insert one event after the other."""
        sql = _insert_into(table)
        for event in stored:
            connection.execute(
                sql,
                (event.originator_id.bytes, event.originator_version, event.topic, event.state),  # type: ignore[union-attr]
            )


def _version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


@cache
def _insert_into(table: str) -> str:
    return f"INSERT INTO {table} (originator_id, originator_version, topic, state) VALUES (?, ?, ?, ?)"


def check_file(url: URL, *, create: bool, migrate: bool) -> None:
    """Raise ``StoreUnusable`` or ``SchemaMismatch`` where no store is or can be, without changing a byte."""
    text = str(url)
    if not url.database or ":memory:" in text or "mode=memory" in text or url.database.startswith("file:"):
        raise StoreUnusable(f"{text!r}: a run in memory dies with its process; name a file: sqlite:///runs.db")
    path = Path(url.database)
    if not path.parent.is_dir():
        raise StoreUnusable(f"{text!r}: there is no folder {str(path.parent)!r}; create it first")
    if path.exists() and (path.is_dir() or path.stat().st_size):
        _check_ours(text, path, create=create, migrate=migrate)
    elif not create:
        what = "a database without runs of agent_es" if path.exists() else "no file"
        raise StoreUnusable(f"{text!r} is {what}: there is nothing to read; start a run there, or name another store")


def _check_ours(url: str, path: Path, *, create: bool, migrate: bool) -> None:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (schema.name,)).fetchone()
            version = found and connection.execute(f"SELECT version FROM {schema.name}").fetchone()
    except sqlite3.Error as error:
        raise StoreUnusable(f"{url!r} cannot be read: {error}") from None
    if version:
        is_present(version[0], migrate=migrate)
    elif not create:
        raise StoreUnusable(f"{url!r} is a database without runs of agent_es; name another store")
