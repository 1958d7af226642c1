"""What differs between databases: one small protocol, which SQLite and PostgreSQL keep.

Rule 1: a statement is written once, with ``?`` for its values; a dialect translates it once.
Rule 2: what both do alike stays in the datastore and the recorder, which know no database by its name.
Rule 3: a driver is imported where a URL asks for it, and a password is in no message.
"""

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import sqlalchemy.exc as sa
from eventsourcing.persistence import StoredEvent
from sqlalchemy import URL
from sqlalchemy.engine import make_url

from agent_es.errors import StoreUnusable
from agent_es.store.mapper import Row
from agent_es.store.projection import Change, Claim
from agent_es.store.sqlite import SQLite

SQLITE = ("sqlite", "sqlite+pysqlite")
POSTGRES = ("postgresql", "postgresql+psycopg")
WHICH = "use sqlite:///path/to/runs.db or postgresql+psycopg://user@host/database"


Append = Callable[[Any, str, Sequence[StoredEvent], Change, Sequence[Claim]], bool]
"""Appends and commits on a connection, into a table; returns False, with nothing done, where it cannot be."""


Hear = Callable[[float, threading.Event], bool]
"""Waits for so many seconds to be told, or until the event is set where that can be seen; says whether that came."""


class Dialect(Protocol):
    """How a database is spoken to.  A ``connection`` is the driver's own, and never begins by itself."""

    errors: type[Exception]
    """What every error of the driver is."""
    now: str
    """The database's clock: seconds since 1970, UTC, with fractions."""
    for_update: str
    """What a SELECT ends with that holds what it finds until the commit."""
    skip_locked: str
    """The same, passing over what others hold."""

    has_one_writer: bool
    """Whether a transaction that writes keeps out all others."""
    echoes: bool
    """Whether who listens hears its own ring, by which it knows that it hears."""

    @property
    def append(self) -> Append | None:
        """What appends in one statement, where that saves a round trip."""
        ...

    def check(self, url: URL, *, create: bool, migrate: bool) -> None:
        """Raise ``StoreUnusable`` or ``SchemaMismatch`` for what is wrong before a connection is made."""
        ...

    def options(self, url: URL) -> Mapping[str, Any]:
        """Return what SQLAlchemy's engine is made with."""
        ...

    def configure(self, connection: Any, patience: float) -> None:
        """Make a new connection durable, and bound its waits."""
        ...

    def begin(self, connection: Any, *, to_write: bool) -> None:
        """Begin a transaction; fail at once, or within the patience, where somebody is in the way."""
        ...

    def lock_feed(self, connection: Any) -> None:
        """Be seen, until the commit, by whoever reads the events of all runs in order."""
        ...

    def lock_out(self, connection: Any) -> None:
        """Let nobody else append before this transaction ends."""
        ...

    def using(self, index: str) -> str:
        """Return what follows a table's name so that an index is used, where the planner does not find it itself."""
        ...

    def ring(self, connection: Any) -> None:
        """Tell those who listen, once this transaction has committed, that a run is due."""
        ...

    def listen(self, connection: Any) -> Hear:
        """Listen on a connection from now on, and return how it is heard."""
        ...

    def is_busy(self, error: BaseException) -> bool:
        """Whether an error says that somebody was in the way, and nothing was done."""
        ...

    def is_away(self, error: BaseException) -> bool:
        """Whether an error says that the server cannot be reached, or no longer on this connection."""
        ...

    def is_lost(self, connection: Any) -> bool:
        """Whether a connection has ended."""
        ...

    def sql(self, statement: str) -> str:
        """Return a statement with the driver's own marks for values."""
        ...

    def stream(self, stream: UUID) -> Any:
        """Return a stream's id as it is bound and read back."""
        ...

    def stream_of(self, found: Any) -> UUID:
        """Return a stream's id as the event store library has it."""
        ...

    def settled(self, connection: Any, table: str, patience: float) -> int:
        """Return the position of an events table up to which none can appear any more; raise ``StoreBusy``."""
        ...

    def moment(self, table: str) -> str:
        """Return a statement that gives something else after each commit that inserts into an events table."""
        ...

    def position(self, column: str) -> str:
        """Return the condition that a text, which is its one value, occurs in a column to the letter."""
        ...

    def occurs(self, column: str) -> str:
        """Return the condition that a text occurs in a column, in capitals of ASCII or not."""
        ...

    def sought(self, text: str) -> str:
        """Return the value of that condition for a text without such capitals."""
        ...

    def tables(self, connection: Any) -> frozenset[str]:
        """Return the names of the tables that are there."""
        ...

    def tune(self, connection: Any, table: str) -> None:
        """Set what a new table is to be stored like."""
        ...

    def columns(self, connection: Any, table: str) -> frozenset[str]:
        """Return the names of a table's columns."""
        ...

    def select(self, connection: Any, sql: str, values: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
        """Return the rows of a statement that reads."""
        ...

    def rows(self, connection: Any, sql: str, stream: UUID, after: int, upto: int) -> Iterable[Row]:
        """Return a stream's events one after the other, and never hold all of them."""
        ...

    def insert(self, connection: Any, table: str, stored: Sequence[StoredEvent]) -> None:
        """Insert events, inside a transaction."""
        ...


def parsed(url: str) -> URL:
    """Return a URL with the driver that we use; raise ``StoreUnusable`` for what is none of ours."""
    try:
        made = make_url(url)
    except (sa.ArgumentError, ValueError):
        raise StoreUnusable(f"{shown(url)!r} is no store URL; {WHICH}") from None
    if made.drivername in POSTGRES:
        return made.set(drivername=POSTGRES[-1])
    if made.drivername not in SQLITE:
        raise StoreUnusable(f"{shown(url)!r}: this version keeps runs in SQLite or PostgreSQL; {WHICH}")
    return made


def dialect_of(url: URL) -> Dialect:
    """Return how the database of a URL is spoken to; raise ``StoreUnusable`` where its driver is missing."""
    if url.drivername in SQLITE:
        return SQLite()
    try:
        from agent_es.store.postgres import Postgres  # noqa: PLC0415  # an optional extra
    except ImportError as error:
        raise StoreUnusable(
            f"PostgreSQL needs a driver that is not here ({error}): pip install 'agent-es[postgres]'"
        ) from None
    return Postgres()


def is_same(url: URL, other: URL) -> bool:
    """Whether two URLs are of one database, as far as they say; by what driver is not asked.

    >>> is_same(make_url("sqlite:///a.db"), make_url("sqlite+aiosqlite:///./a.db"))
    True
    """
    if url.get_backend_name() != other.get_backend_name():
        return False
    if url.get_backend_name() in SQLITE:
        return Path(url.database or "").resolve() == Path(other.database or "").resolve()
    return url.database == other.database


def shown(url: str) -> str:
    """Return a URL for people to read, without its password.

    >>> shown("postgresql://ann:secret@db/runs"), shown("postgresql://db/runs?user=ann&password=secret")
    ('postgresql://ann:***@db/runs', 'postgresql://db/runs?user=ann&password=***')
    """
    return re.sub(r"(password=)[^&]*", r"\1***", re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url))
