"""PostgreSQL: one round trip per append, no lock on a table, and no wait without an end.

Rule 1: a connection commits by itself unless we say BEGIN, so that an append is one prepared statement.
Rule 2: whoever appends shares an advisory lock until the commit.  So a reader of all events can wait for those
who are appending now, without ever being in their way; only who must be alone takes the lock for itself.
Rule 3: locks are taken in one order: the shared one, the run's row, the keys by name, the events.
Rule 4: every wait has a bound, also the one of a transaction for its own worker.
Rule 5: what is not one statement's business (what refused an append, say) is left to the recorder, step by step.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any
from uuid import UUID

import psycopg
from eventsourcing.persistence import StoredEvent
from psycopg import errors
from sqlalchemy import URL

from agent_es.crashpoints import AFTER_COMMIT, BEFORE_COMMIT, crash_point
from agent_es.errors import StoreBusy
from agent_es.store.mapper import Row
from agent_es.store.projection import ALL, Change, Claim, Columns
from agent_es.store.tables import keys, runs

STATEMENT_TIMEOUT = 60.0
"""Seconds that one statement may take, where the patience for locks is not longer still."""

IDLE_TIMEOUT = 15.0
"""Seconds that a transaction may wait for its worker: then the server ends it, and frees what it holds.

Longer than the body of a ``TRANSACTIONAL`` tool may take; shorter than the patience of those who wait for it.
"""

CONNECT_TIMEOUT = 5
"""Seconds to reach the server, where the URL says nothing else."""

FEED_LOCK = 0x6165735F66656564
"""The advisory lock of those who append: ``aes_feed``."""

CHANNEL = "agent_es_due"
"""Where those listen who wait for work; a notification says no more than: look."""

BATCH = 1_000
"""How many events one statement inserts at most."""

PAGE = 5_000
"""How many events one statement reads at most."""

_DURABLE = (
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END"
)
_TYPES = {
    "cursor": "integer",
    **dict.fromkeys(("tokens", "cost"), "bigint"),
    **dict.fromkeys(("started_at", "wake_at", "updated_at"), "double precision"),
}
_EVENT = "originator_id, originator_version, topic, state"
_RING = f"pg_notify('{CHANNEL}', '')"
_LAST_POSITION = "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence(%s, 'id')::regclass), 0)"
_HOLDERS = (
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'advisory' AND granted "
    f"AND classid = {FEED_LOCK >> 32} AND objid = {FEED_LOCK & 0xFFFFFFFF} AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_SHARE = f"SELECT pg_advisory_xact_lock_shared({FEED_LOCK})"


class Postgres:
    """Speaks to PostgreSQL through psycopg."""

    errors: type[Exception] = psycopg.Error
    now = "extract(epoch FROM clock_timestamp())::double precision"
    for_update = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    has_one_writer = False
    echoes = True

    def check(self, url: URL, *, create: bool, migrate: bool) -> None:
        """Leave it to the server."""

    def options(self, url: URL) -> Mapping[str, Any]:
        """Return how to connect: without a transaction of the driver's own, and noticing when the server is gone."""
        reach = {
            "connect_timeout": CONNECT_TIMEOUT,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "application_name": "agent_es",
        }
        ours = {name: value for name, value in reach.items() if name not in url.query}
        return {
            "connect_args": {"autocommit": True, **ours},
            "use_native_hstore": False,  # it would cost a round trip
            "pool_pre_ping": True,  # what is at hand is not asked: an append whose connection is lost is read back
        }

    def configure(self, connection: psycopg.Connection[Any], patience: float) -> None:
        """Make a commit durable, and bound every wait."""
        settings = {
            "lock_timeout": patience,
            "statement_timeout": max(STATEMENT_TIMEOUT, 2 * patience),
            "idle_in_transaction_session_timeout": IDLE_TIMEOUT,
        }
        values = [text for name, seconds in settings.items() for text in (name, f"{max(1, int(seconds * 1e3))}ms")]
        selected = ", ".join([_DURABLE, *["set_config(%s, %s, false)"] * len(settings)])
        connection.execute(f"SELECT {selected}", values)

    def begin(self, connection: psycopg.Connection[Any], *, to_write: bool) -> None:  # noqa: ARG002  # both are alike
        """Begin: there is no write lock to take."""
        connection.execute("BEGIN")

    def lock_feed(self, connection: psycopg.Connection[Any]) -> None:
        """Share the lock of those who append."""
        connection.execute(_SHARE)

    def lock_out(self, connection: psycopg.Connection[Any]) -> None:
        """Wait for those who append, and keep all others waiting; such work may take its time."""
        connection.execute(f"SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock({FEED_LOCK})")

    def using(self, _: str) -> str:
        """Leave it to the planner."""
        return ""

    def ring(self, connection: psycopg.Connection[Any]) -> None:
        """Notify those who listen."""
        connection.execute(f"SELECT {_RING}")

    def listen(self, connection: psycopg.Connection[Any]) -> Callable[[float, threading.Event], bool]:
        """Listen on a connection of its own, and return what waits: several notifications at once are one."""
        connection.execute(f"LISTEN {CHANNEL}")
        return lambda seconds, _: bool([*connection.notifies(timeout=seconds, stop_after=1)])

    def is_busy(self, error: BaseException) -> bool:
        """Whether a lock was not to be had, or two waited for each other."""
        return isinstance(error, errors.LockNotAvailable | errors.DeadlockDetected | errors.SerializationFailure)

    def is_away(self, error: BaseException) -> bool:
        """Whether the connection is lost, or could not be made."""
        if isinstance(error, errors.IdleInTransactionSessionTimeout):
            return True
        return isinstance(error, psycopg.OperationalError) and not self.is_busy(error)

    def is_lost(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the connection has ended."""
        return connection.closed

    def sql(self, statement: str) -> str:
        """Return the statement with psycopg's marks."""
        return statement.replace("?", "%s")

    def stream(self, stream: UUID) -> UUID:
        """Return the id itself."""
        return stream

    def stream_of(self, found: UUID) -> UUID:
        """Return the id itself."""
        return found

    def settled(self, connection: psycopg.Connection[Any], table: str, patience: float) -> int:
        """Return the last position that was given out, once who had one by then has committed or rolled back.

        A position is taken under the shared lock.  So those who hold it now may have one up to the last, and whoever
        takes it later gets a later one.
        """
        until, wait = time.monotonic() + patience, 0.001
        last = connection.execute(_LAST_POSITION, (table,), prepare=True).fetchone()
        holders = _who_appends(connection, None)
        while holders:
            if time.monotonic() > until:
                raise StoreBusy(f"a transaction that appends was open for {patience:g} s, and what follows it waits")
            time.sleep(wait)
            wait = min(2 * wait, 0.02)
            holders = _who_appends(connection, holders)
        return int(last[0]) if last else 0

    def moment(self, _: str) -> str:
        """Ask which transactions have ended: who took an earlier position may commit later."""
        return "SELECT pg_current_snapshot()::text"

    def position(self, column: str) -> str:
        """Compare characters."""
        return f"strpos({column}, ?) > 0"

    def occurs(self, column: str) -> str:
        """Compare characters, which the collation C makes small where they are of ASCII."""
        return f'strpos(lower({column} COLLATE "C"), ?) > 0'

    def sought(self, text: str) -> str:
        """Leave it as it is."""
        return text

    def tables(self, connection: psycopg.Connection[Any]) -> frozenset[str]:
        """Return what can be named without its schema."""
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = ANY (current_schemas(false))")
        return frozenset(name for (name,) in found)

    def tune(self, connection: psycopg.Connection[Any], table: str) -> None:
        """Leave room beside a run's row for its next version: then no index is written when nothing in it changes."""
        if table == runs.name:
            connection.execute(f"ALTER TABLE {table} SET (fillfactor = 70)")

    def columns(self, connection: psycopg.Connection[Any], table: str) -> frozenset[str]:
        """Return what the table has now."""
        found = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            (table,),
        )
        return frozenset(name for (name,) in found)

    def select(
        self, connection: psycopg.Connection[Any], sql: str, values: Sequence[Any]
    ) -> Iterable[tuple[Any, ...]]:
        """Return all rows; they are few."""
        return connection.execute(sql, values, prepare=True, binary=True)

    def rows(
        self, connection: psycopg.Connection[Any], sql: str, stream: UUID, after: int, upto: int
    ) -> Iterator[Row]:
        """Read page by page: the driver holds the whole answer to a statement."""
        while True:
            page = connection.execute(
                f"{sql} LIMIT {PAGE}", (stream, after, upto), prepare=True, binary=True
            ).fetchall()
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1][0]

    def insert(self, connection: psycopg.Connection[Any], table: str, stored: Sequence[StoredEvent]) -> None:
        """Insert the events in bounded batches, in their order."""
        for first in range(0, len(stored), BATCH):
            batch = stored[first : first + BATCH]
            connection.execute(
                f"INSERT INTO {table} ({_EVENT}) {_selected(len(batch))}", _values_of(batch), prepare=True
            )

    def append(
        self,
        connection: psycopg.Connection[Any],
        table: str,
        stored: Sequence[StoredEvent],
        row: Change,
        claims: Sequence[Claim],
    ) -> bool:
        """Append in one statement; return False, with nothing done, where it was refused or is more than that."""
        if len(stored) > BATCH or _has_more(row) or not _are_of_one(claims):
            return False
        guard = () if row.columns is ALL else (stored[0].originator_version - 1,)
        fence = () if row.token is None else (row.token,)
        given = (*row.values, *guard, *fence, *_claimed(claims), *_values_of(stored))
        statement = _append_to(
            table,
            row.columns,
            row.also,
            is_fenced=bool(fence),
            is_one=len(stored) == 1,
            claims=bool(claims),
            rings=row.rings,
        )
        crash_point(BEFORE_COMMIT, "commit")
        try:
            done = _cursor_of(connection).execute(statement, given, prepare=True).rowcount == len(stored)
        except (errors.IntegrityError, errors.DivisionByZero):
            return False
        if done:
            crash_point(AFTER_COMMIT, "commit")
        return done


def _who_appends(connection: psycopg.Connection[Any], among: list[str] | None) -> list[str]:
    """Return the transactions that hold the lock of those who append."""
    if among is None:
        found = connection.execute(_HOLDERS, prepare=True)
    else:
        found = connection.execute(f"{_HOLDERS} AND virtualtransaction = ANY (%s)", (among,), prepare=True)
    return [holder for (holder,) in found]


def _cursor_of(connection: psycopg.Connection[Any]) -> psycopg.Cursor[Any]:
    """Return the one cursor that appends on this connection: making another each time costs a tenth of an append."""
    try:
        cursor: psycopg.Cursor[Any] = connection.__dict__["agent_es_cursor"]
    except KeyError:
        cursor = connection.__dict__["agent_es_cursor"] = connection.cursor()
    return cursor


def _has_more(row: Change) -> bool:
    """Say whether more than a run's row, its keys and its events is written."""
    return bool(row.tags or row.deliveries or row.spends or row.opens or row.closes)


def _are_of_one(claims: Sequence[Claim]) -> bool:
    """Say whether no key is claimed twice, which one statement cannot do."""
    return len({(claim.tool, claim.key) for claim in claims}) == len(claims)


@cache
def _append_to(
    table: str, columns: Columns, also: Sequence[str], *, is_fenced: bool, is_one: bool, claims: bool, rings: bool
) -> str:
    """Return the statement of an append.

    Where the row is not where it should be, nothing is inserted; a key that somebody else holds divides by zero,
    since what was done to the row must be undone.
    """
    told = _RING if rings else "1"
    values = [f"%s::{_TYPES.get(name, 'text')}" for name in columns]
    if columns is ALL:
        row = f"INSERT INTO {runs.name} ({', '.join(columns)}) SELECT {', '.join(values)} FROM feed RETURNING {told}"
    else:
        changes = ", ".join(
            [*(f"{name} = {value}" for name, value in zip(columns[:-1], values, strict=False)), *also]
        )
        fence = " AND lease_token = %s" if is_fenced else ""
        row = f"UPDATE {runs.name} SET {changes} FROM feed WHERE run_id = %s AND cursor = %s{fence} RETURNING {told}"
    parts = [f"feed AS MATERIALIZED ({_SHARE})", f"moved AS ({row})"]
    source, where = "moved", ""
    if claims:
        names = [column.name for column in keys.columns]
        kinds = ("text", "text", "text", "integer", "text")
        arrays = ", ".join(f"%s::{kind}[]" for kind in kinds)
        held = (
            f"held AS (INSERT INTO {keys.name} SELECT claim.* FROM moved, unnest({arrays}) "
            f"AS claim ({', '.join(names)}) ON CONFLICT (tool, key) DO UPDATE SET run_id = {keys.name}.run_id "
            f"WHERE {keys.name}.run_id = excluded.run_id AND {keys.name}.idx = excluded.idx RETURNING 1)"
        )
        parts += [held, "claimed AS (SELECT 1 / (count(*) = %s)::integer AS is_all FROM held)"]
        source, where = "moved, claimed", "WHERE claimed.is_all = 1 "
    return f"WITH {', '.join(parts)} INSERT INTO {table} ({_EVENT}) {_selected(1 if is_one else 2, source, where)}"


def _claimed(claims: Sequence[Claim]) -> tuple[Any, ...]:
    if not claims:
        return ()
    columns = zip(*((claim.tool, claim.key, claim.run_id, claim.idx, claim.digest) for claim in claims), strict=True)
    return (*map(list, columns), len(claims))


def _selected(count: int, source: str = "", where: str = "") -> str:
    """Return the SELECT that makes rows of what ``_values_of`` gives."""
    if count == 1:
        source = f" FROM {source} " if source else ""
        return f"SELECT %s::uuid, %s::bigint, %s::text, %s::bytea{source}{where}"
    source = f"{source}, " if source else ""
    return (
        f"SELECT %s::uuid, event.version, event.topic, event.state FROM {source}"
        "unnest(%s::bigint[], %s::text[], %s::bytea[]) WITH ORDINALITY AS event (version, topic, state, n) "
        f"{where}ORDER BY event.n"
    )


def _values_of(stored: Sequence[StoredEvent]) -> tuple[Any, ...]:
    stream = stored[0].originator_id
    if len(stored) == 1:
        return (stream, stored[0].originator_version, stored[0].topic, stored[0].state)
    return (
        stream,
        [event.originator_version for event in stored],
        [event.topic for event in stored],
        [event.state for event in stored],
    )
