"""Appends events and what is projected from them, in one transaction.

Rule 1: there is never a moment when the events say one thing and the run's row another.
Rule 2: the version of a run is the fence: an append whose version is taken is refused as a whole.
Rule 3: the hot path speaks SQL on the driver's own connection; the event store library's other methods stay.
Rule 4: the order of locks is the same everywhere: who appends, the row, the keys by name, the events.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import astuple
from functools import cache
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import eventsourcing.persistence as es
from eventsourcing.persistence import StoredEvent
from eventsourcing_sqlalchemy.factory import SQLAlchemyFactory
from eventsourcing_sqlalchemy.recorders import SQLAlchemyApplicationRecorder
from sqlalchemy import Table
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from agent_es.errors import LeaseLost, StoreUnusable
from agent_es.events import stream_id
from agent_es.store.datastore import Datastore
from agent_es.store.dialects import shown
from agent_es.store.mapper import Row
from agent_es.store.projection import ALL, Change, Claim, Columns, Delivery, Tag
from agent_es.store.spending import Spend
from agent_es.store.tables import (
    SCHEMA_VERSION,
    deliveries,
    inbox,
    is_present,
    keys,
    metadata,
    runs,
    schema,
    snapshots,
    spending,
    tags,
)

_ALL = 2**63 - 1
"""A version that no run reaches."""

Append = tuple[Sequence[StoredEvent], Change, Sequence[Claim]]
"""Events of one run, the row that they lead to, and what they claim."""

T = TypeVar("T")


class HeldRow(NamedTuple):
    """A run's row, which nobody else changes before the transaction ends."""

    cursor: int
    token: int


class KeyHeld(Exception):  # never leaves the store: it becomes KeyReused, which says more
    """Another step holds the key of this claim."""

    def __init__(self, claim: Claim, holder: Claim) -> None:
        super().__init__(claim, holder)
        self.claim = claim
        self.holder = holder


class Overspent(Exception):  # never leaves the store: it becomes BudgetSpent, which says more
    """More would be spent than may be."""

    def __init__(self, spend: Spend, amount: int) -> None:
        super().__init__(spend, amount)
        self.spend = spend
        self.amount = amount


class RunRecorder(SQLAlchemyApplicationRecorder):
    """Records the events of runs, their rows and their keys."""

    datastore: Datastore

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.schema_name:
            raise StoreUnusable("SQLALCHEMY_SCHEMA is not for runs; name it in the URL: ?options=-csearch_path=name")
        events, sql = self.events_table_name, self.datastore.dialect.sql
        self._select = sql(
            f"SELECT originator_version, topic, state FROM {events} "
            "WHERE originator_id = ? AND originator_version > ? AND originator_version <= ? "
            "ORDER BY originator_version"
        )
        self._select_page = sql(
            f"SELECT id, originator_id, originator_version, topic, state FROM {events} "
            "WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"
        )
        self._select_streams = f"SELECT DISTINCT originator_id FROM {events}"
        self._insert_row = sql(f"INSERT INTO {runs.name} ({', '.join(ALL)}) VALUES ({', '.join('?' * len(ALL))})")
        self._insert_new_row = f"{self._insert_row} ON CONFLICT (run_id) DO NOTHING RETURNING cursor"
        self._upsert_row = f"{self._insert_row} ON CONFLICT (run_id) DO UPDATE SET " + ", ".join(
            f"{name} = excluded.{name}" for name in ALL[:-1]
        )
        self._insert_key = sql(f"INSERT INTO {keys.name} VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING")
        self._insert_tag = sql(f"INSERT INTO {tags.name} VALUES (?, ?, ?) ON CONFLICT DO NOTHING")
        self._insert_delivery = sql(f"INSERT INTO {deliveries.name} VALUES (?, ?, ?, ?)")
        self._close_item = sql(f"DELETE FROM {inbox.name} WHERE run_id = ? AND idx = ? AND kind = ?")
        self._open_item = sql(
            f"INSERT INTO {inbox.name} (run_id, idx, kind, since) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (run_id, idx, kind) DO UPDATE SET since = excluded.since, told_at = NULL, telling_until = 0"
        )
        which = ("run_id", "idx", "kind", "since")
        self._told_items = (
            f"SELECT told_at, telling_until, {', '.join(which)} FROM {inbox.name} "
            "WHERE told_at IS NOT NULL OR telling_until > 0"
        )
        self._told_item = sql(
            f"UPDATE {inbox.name} SET told_at = ?, telling_until = ? WHERE {' AND '.join(f'{n} = ?' for n in which)}"
        )
        self._add_spent = sql(
            f"INSERT INTO {spending.name} VALUES (?, ?, ?) ON CONFLICT (run_id, what) DO UPDATE "
            f"SET amount = {spending.name}.amount + excluded.amount RETURNING amount"
        )
        self._select_delivery = sql(f"SELECT * FROM {deliveries.name} WHERE run_id = ? AND delivery_id = ?")
        self.tagged = f"SELECT run_id FROM {tags.name} WHERE name = ? AND value = ?"
        """Finds the runs that have a tag."""
        self._select_tagged = sql(f"{self.tagged} ORDER BY run_id")
        self._hold = sql(f"UPDATE {runs.name} SET cursor = cursor WHERE run_id = ? RETURNING cursor, lease_token")
        self._select_key = sql(f"SELECT * FROM {keys.name} WHERE tool = ? AND key = ?")

    def create_table(self) -> None:
        """Leave the tables to ``open``, which knows whether they may be made."""

    def open(self, *, create: bool, migrate: bool) -> None:
        """Check the schema, and create what is missing, in one transaction.

        Raises ``SchemaMismatch`` where another version wrote it, ``StoreUnusable`` where nothing is to be created.
        """
        with self.datastore.translated():
            found = self.datastore.reading(self._version)
        if is_present(found, migrate=migrate):
            return
        if found is None and not create:
            raise StoreUnusable(f"{self._url} is a database without runs of agent_es; name another store")
        with self.datastore.translated(), self.datastore.writing(alone=True) as connection:
            found = self._version(connection)  # again: another process may have been here
            if is_present(found, migrate=migrate):
                return
            there = self.datastore.dialect.tables(connection)
            if found is not None and runs.name in there:
                self._replace_table(connection, runs)
            for table in (*self.tables, *metadata.sorted_tables):
                if table.name not in there:
                    self._create(connection, table)
            connection.execute(f"DELETE FROM {schema.name}")
            connection.execute(f"INSERT INTO {schema.name} VALUES ({SCHEMA_VERSION})")

    @property
    def _url(self) -> str:
        return shown(str(self.datastore.engine.url))

    def _version(self, connection: Any) -> int | None:
        if schema.name not in self.datastore.dialect.tables(connection):
            return None
        found = connection.execute(f"SELECT version FROM {schema.name}").fetchone()
        if found is None:
            raise StoreUnusable(f"{self._url} has a schema without a version; restore a backup")
        return int(found[0])

    def _create(self, connection: Any, table: Table) -> None:
        made: list[ExecutableDDLElement] = [CreateTable(table), *map(CreateIndex, table.indexes)]
        for ddl in made:
            connection.execute(str(ddl.compile(dialect=self.datastore.engine.dialect)))
        self.datastore.dialect.tune(connection, table.name)

    def _replace_table(self, connection: Any, table: Table) -> None:
        """Give a table its present shape, keeping what both shapes have: above all the leases."""
        old = f"{table.name}_old"
        connection.execute(f"ALTER TABLE {table.name} RENAME TO {old}")
        for index in table.indexes:
            connection.execute(f"DROP INDEX IF EXISTS {index.name}")
        self._create(connection, table)
        had = self.datastore.dialect.columns(connection, old)
        common = [column for column in table.columns if column.name in had]
        names = ", ".join(column.name for column in common)
        values = ", ".join(
            f"COALESCE({column.name}, 0)" if column.server_default is not None else column.name for column in common
        )
        connection.execute(f"INSERT INTO {table.name} ({names}) SELECT {values} FROM {old}")
        connection.execute(f"DROP TABLE {old}")

    def append(self, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim] = ()) -> None:
        """Insert the events, what they claim, and the row they lead to, in one transaction.

        Raises ``IntegrityError`` where the version is taken, ``KeyHeld`` where another step holds a key,
        ``StoreBusy`` where nothing was done, and ``OperationalError`` where nobody knows.
        """
        claims = in_order(claims)
        with self.datastore.translated():
            if not self._append_at_once(stored, row, claims):
                self._append_all([(stored, row, claims)])

    def append_all(self, batch: Sequence[Append], first: Callable[[Any], object] = lambda _: None) -> None:
        """Append to several runs, in one transaction; ``first`` does what comes before that."""
        with self.datastore.translated():
            self._append_all([(stored, row, in_order(claims)) for stored, row, claims in batch], first)

    def append_in(self, connection: Any, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim]) -> None:
        """Append inside a transaction that somebody else commits."""
        with self.datastore.translated():
            self._append(connection, stored, row, in_order(claims))

    def _append_at_once(self, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim]) -> bool:
        """Append in one statement, where the database gains by it; say whether that was done.

        A refusal is told by the transaction that is tried next, step by step.
        """
        at_once = self.datastore.dialect.append
        if at_once is None:
            return False
        self.datastore.refuse_reentry()
        with self.datastore.raw() as connection:
            return self.datastore.patiently(lambda: at_once(connection, self.events_table_name, stored, row, claims))

    def _append_all(self, batch: Sequence[Append], first: Callable[[Any], object] = lambda _: None) -> None:
        with self.datastore.writing() as connection:
            first(connection)
            for stored, row, claims in batch:
                self._append(connection, stored, row, claims)

    def _append(self, connection: Any, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim]) -> None:
        before = stored[0].originator_version - 1
        dialect = self.datastore.dialect
        dialect.lock_feed(connection)
        if row.columns is ALL:
            connection.execute(self._insert_row, row.values)
        else:
            self._update(connection, row, before)
        for claim in claims:
            self._claim(connection, claim)
        self._note(connection, row, is_bounded=True)
        dialect.insert(connection, self.events_table_name, stored)
        if row.rings:
            dialect.ring(connection)

    def begin_in(self, connection: Any, stored: Sequence[StoredEvent], row: Change) -> list[Row]:
        """Insert a new run inside a transaction that somebody else commits; return the events of one that is there.

        Nothing is refused there: on PostgreSQL that would be the end of the whole transaction.
        """
        dialect = self.datastore.dialect
        dialect.lock_feed(connection)
        if connection.execute(self._insert_new_row, row.values).fetchone() is None:
            stream = dialect.stream(UUID(str(stored[0].originator_id)))
            return self._rows_in(connection, stream)
        self._note(connection, row)
        dialect.insert(connection, self.events_table_name, stored)
        dialect.ring(connection)
        return []

    def _note(self, connection: Any, row: Change, *, is_bounded: bool = False) -> None:
        """Insert what stands beside a row; raise ``Overspent`` where more is spent than may be, and that matters."""
        for tag in row.tags:
            connection.execute(self._insert_tag, tuple(tag))
        for delivery in row.deliveries:
            connection.execute(self._insert_delivery, tuple(delivery))
        for place in sorted(row.closes):
            connection.execute(self._close_item, (row.values[-1], *place))
        for item in row.opens:
            connection.execute(self._open_item, tuple(item))
        for spend in row.spends:
            ((amount,),) = connection.execute(self._add_spent, (spend.run_id, spend.what, spend.amount)).fetchall()
            if is_bounded and spend.is_over(amount):
                raise Overspent(spend, amount)

    # Inside a transaction that somebody else commits.

    def hold(self, connection: Any, run_id: str) -> HeldRow | None:
        """Keep everybody else from a run's row until the commit; return what it says, None where it is not there.

        It writes, so that a transaction which reads after that is in write mode on every database.
        """
        self.datastore.dialect.lock_feed(connection)
        found = connection.execute(self._hold, (run_id,)).fetchone()
        return None if found is None else HeldRow(*found)

    def rows_in(self, connection: Any, stream: UUID, *, after: int = 0) -> list[Row]:
        """Return what ``rows`` does, as that transaction sees it."""
        return self._rows_in(connection, self.datastore.dialect.stream(stream), after)

    def _rows_in(self, connection: Any, stream: Any, after: int = 0) -> list[Row]:
        return [tuple(found) for found in connection.execute(self._select, (stream, after, _ALL)).fetchall()]

    def claim_in(self, connection: Any, claims: Sequence[Claim]) -> None:
        """Claim keys; raise ``KeyHeld`` where another step holds one, with nothing written that is of this one."""
        for claim in in_order(claims):
            self._claim(connection, claim)

    def delivery_in(self, connection: Any, run_id: str, delivery_id: str) -> Delivery | None:
        """Return the delivery of that id to a run, where there was one."""
        found = connection.execute(self._select_delivery, (run_id, delivery_id)).fetchone()
        return None if found is None else Delivery(*found)

    def tagged_in(self, connection: Any, tag: Tag) -> list[str]:
        """Return the ids of the runs that have a tag, in their order."""
        return [run_id for (run_id,) in connection.execute(self._select_tagged, (tag.name, tag.value)).fetchall()]

    def _update(self, connection: Any, row: Change, before: int) -> None:
        """Update a row that is where it should be, under the lease that it should be under."""
        fence = () if row.token is None else (row.token,)
        update = _update_of(row.columns, row.also, is_fenced=bool(fence))
        if connection.execute(self.datastore.dialect.sql(update), (*row.values, before, *fence)).rowcount == 1:
            return
        run_id = row.values[-1]
        look = self.datastore.dialect.sql(f"SELECT lease_token FROM {runs.name} WHERE run_id = ?")
        found = connection.execute(look, (run_id,)).fetchone()
        if fence and (found is None or found[0] != row.token):
            raise LeaseLost(
                f"run {run_id}: the lease {row.token} was taken over; "
                "this execution stopped and recorded nothing more"
            )
        raise es.IntegrityError(f"the row of run {run_id} is not at version {before}")

    def rows(self, stream: UUID, *, after: int = 0, upto: int | None = None) -> list[Row]:
        """Return version, topic and state of a stream's events with ``after < version <= upto``."""
        return self.read(stream, list, after=after, upto=upto)

    def read(self, stream: UUID, take: Callable[[Iterable[Row]], T], *, after: int = 0, upto: int | None = None) -> T:
        """Hand what ``rows`` returns to ``take`` while it is read: a long stream is never held as a whole."""
        last = _ALL if upto is None else upto
        return self._reading(
            lambda connection: take(self.datastore.dialect.rows(connection, self._select, stream, after, last))
        )

    def settled(self) -> int:
        """Return the position up to which every event has appeared that ever will; wait for who is appending.

        Raises ``StoreBusy`` where somebody holds that up for longer than the patience, ``StoreUnusable``.
        """
        dialect, patience = self.datastore.dialect, self.datastore.patience
        return self._reading(lambda connection: dialect.settled(connection, self.events_table_name, patience))

    def page(self, after: int, upto: int, limit: int) -> list[tuple[int, StoredEvent]]:
        """Return the events of all runs with ``after < position <= upto``, with their positions, in order."""
        stream = self.datastore.dialect.stream_of
        found = self._rows_of(self._select_page, (after, upto, limit))
        return [(position, StoredEvent(stream(origin), *rest)) for position, origin, *rest in found]

    def firsts(self, streams: Iterable[UUID]) -> list[StoredEvent]:
        """Return the first events of some streams."""
        dialect = self.datastore.dialect
        wanted = [dialect.stream(stream) for stream in streams]
        if not wanted:
            return []
        marks = ", ".join("?" * len(wanted))
        found = self._rows_of(
            "SELECT originator_id, originator_version, topic, state "
            f"FROM {self.events_table_name} WHERE originator_version = 1 AND originator_id IN ({marks})",
            wanted,
        )
        return [StoredEvent(dialect.stream_of(origin), *rest) for origin, *rest in found]

    def _rows_of(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self.select(self.datastore.dialect.sql(sql), values)

    def select(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a statement in the words of the database."""
        dialect = self.datastore.dialect
        return self._reading(lambda connection: list(dialect.select(connection, sql, values)))

    def _reading(self, act: Callable[[Any], T]) -> T:
        try:
            return self.datastore.reading(act)
        except self.datastore.dialect.errors as error:
            advice = "is the server up?" if self.datastore.dialect.is_away(error) else "restore a backup"
            raise StoreUnusable(f"{self._url} cannot be read: {error}; {advice}") from error

    def rebuild(self, project: Callable[[list[Row]], tuple[Change, Sequence[Claim]] | None]) -> int:
        """Make rows, and what stands beside them, again from the events, in one transaction; return how many runs.

        ``project`` gives a stream's row and claims, or None where it cannot be read: then its row stays as it is.
        The lease columns are never touched; a row without events goes.
        """
        dialect = self.datastore.dialect
        with self.datastore.translated(), self.datastore.writing(alone=True) as connection:
            streams = {stream for (stream,) in connection.execute(self._select_streams)}
            made: list[tuple[Change, Sequence[Claim]]] = []
            readable = set()
            for stream in streams:
                projected = project(connection.execute(self._select, (stream, 0, _ALL)).fetchall())
                if projected is not None:
                    connection.execute(self._upsert_row, projected[0].values)
                    made.append(projected)
                    readable.add(stream)
            kept = set()
            for (run_id,) in connection.execute(f"SELECT run_id FROM {runs.name}").fetchall():
                stream = dialect.stream(stream_id(run_id))
                if stream not in streams:
                    connection.execute(dialect.sql(f"DELETE FROM {runs.name} WHERE run_id = ?"), (run_id,))
                elif stream not in readable:
                    kept.add(run_id)
            told = connection.execute(
                self._told_items
            ).fetchall()  # who was told, or is just being told, is not told again
            for table in (keys, tags, deliveries, inbox):
                self._clear(connection, table, kept)
            if not kept:  # else nobody knows what those spent that cannot be read: what is counted stays
                self._clear(connection, spending, kept)
            self._clear(connection, snapshots, set())
            for row, claims in made:
                if claims:
                    connection.cursor().executemany(self._insert_key, [astuple(claim) for claim in claims])
                self._note(connection, row._replace(spends=()) if kept else row)
            connection.cursor().executemany(self._told_item, told)
        return len(streams)

    def _clear(self, connection: Any, table: Table, kept: Collection[str]) -> None:
        """Delete the rows of a table, but for those of some runs."""
        if not kept:
            connection.execute(f"DELETE FROM {table.name}")
            return
        for (run_id,) in connection.execute(f"SELECT DISTINCT run_id FROM {table.name}").fetchall():
            if run_id not in kept:
                sql = self.datastore.dialect.sql(f"DELETE FROM {table.name} WHERE run_id = ?")
                connection.execute(sql, (run_id,))

    def _claim(self, connection: Any, claim: Claim) -> None:
        if connection.execute(self._insert_key, astuple(claim)).rowcount == 1:
            return
        holder = Claim(*connection.execute(self._select_key, (claim.tool, claim.key)).fetchone())
        if (holder.run_id, holder.idx) != (claim.run_id, claim.idx):
            raise KeyHeld(claim, holder)

    # What the event store library's own inserts do on PostgreSQL.

    def _lock_table(self, session: Session) -> None:
        """Let nobody append meanwhile; the table itself stays free for all."""
        self.datastore.dialect.lock_out(session.connection().connection.driver_connection)

    def _notify_channel(self, _: Session) -> None:
        """Notify nobody: one notification per event halves what the database can do."""


@cache
def _update_of(columns: Columns, also: Sequence[str], *, is_fenced: bool) -> str:
    changes = ", ".join([*(f"{name} = ?" for name in columns[:-1]), *also])
    fence = " AND lease_token = ?" if is_fenced else ""
    return f"UPDATE {runs.name} SET {changes} WHERE run_id = ? AND cursor = ?{fence}"


def in_order(claims: Sequence[Claim]) -> Sequence[Claim]:
    """Return claims in the order in which everybody takes them: so no two writers wait for each other."""
    return sorted(claims, key=lambda claim: (claim.tool, claim.key))


class Factory(SQLAlchemyFactory):
    """Builds our parts where the event store library asks for its own."""

    datastore_class = Datastore
    application_recorder_class = RunRecorder
