"""Appends events and what is projected from them, in one transaction.

Rule 1: there is never a moment when the events say one thing and the run's row another.
Rule 2: the version of a run is the fence: an append whose version is taken is refused as a whole.
Rule 3: the hot path speaks SQL on the driver's own connection; the event store library's other methods stay.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from typing import Any, TypeVar
from uuid import UUID

import eventsourcing.persistence as es
from eventsourcing.persistence import StoredEvent
from eventsourcing_sqlalchemy.factory import SQLAlchemyFactory
from eventsourcing_sqlalchemy.recorders import SQLAlchemyApplicationRecorder
from sqlalchemy import Table
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from agent_es.errors import SchemaMismatch, StoreUnusable
from agent_es.events import stream_id
from agent_es.store.datastore import Datastore, patiently, translated
from agent_es.store.mapper import Row
from agent_es.store.projection import ALL, CURSOR, STATUS, Change, Claim
from agent_es.store.tables import SCHEMA_VERSION, keys, metadata, runs, schema

_ALL = 2**63 - 1
"""A version that no run reaches."""

_INSERT_KEY = f"INSERT INTO {keys.name} VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"

T = TypeVar("T")


class KeyHeld(Exception):  # never leaves the store: it becomes KeyReused, which says more
    """Another step holds the key of this claim."""

    def __init__(self, claim: Claim, holder: Claim) -> None:
        super().__init__(claim, holder)
        self.claim = claim
        self.holder = holder


class RunRecorder(SQLAlchemyApplicationRecorder):
    """Records the events of runs, their rows and their keys."""

    datastore: Datastore

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        events = self.events_table_name
        self._insert_event = (
            f"INSERT INTO {events} (originator_id, originator_version, topic, state) VALUES (?, ?, ?, ?)"
        )
        self._select = (
            f"SELECT originator_version, topic, state FROM {events} "
            "WHERE originator_id = ? AND originator_version > ? AND originator_version <= ? "
            "ORDER BY originator_version"
        )
        self._select_streams = f"SELECT DISTINCT originator_id FROM {events}"
        self._insert_row = f"INSERT INTO {runs.name} ({', '.join(ALL)}) VALUES ({', '.join('?' * len(ALL))})"
        self._upsert_row = f"{self._insert_row} ON CONFLICT (run_id) DO UPDATE SET " + ", ".join(
            f"{name} = excluded.{name}" for name in ALL[:-1]
        )
        self._update_row = {
            columns: f"UPDATE {runs.name} SET {', '.join(f'{name} = ?' for name in columns[:-1])} "
            "WHERE run_id = ? AND cursor = ?"
            for columns in (STATUS, CURSOR)
        }

    def create_table(self) -> None:
        """Leave the tables to ``open``, which knows whether they may be made."""

    def open(self, *, migrate: bool) -> None:
        """Check the schema, and create what is missing, in one transaction.

        Raises ``SchemaMismatch`` where another version wrote it.
        """
        with translated(), self.datastore.raw() as connection:
            found = patiently(lambda: self._version(connection), self.datastore.patience)
        if is_present(found, migrate=migrate):
            return
        with translated(), self.datastore.writing() as connection:
            found = self._version(connection)  # again: another process may have been here
            if is_present(found, migrate=migrate):
                return
            there = self._tables(connection)
            if found is not None and runs.name in there:
                self._replace_table(connection, runs)
            for table in (*self.tables, *metadata.sorted_tables):
                if table.name not in there:
                    self._create(connection, table)
            connection.execute(f"DELETE FROM {schema.name}")
            connection.execute(f"INSERT INTO {schema.name} VALUES (?)", (SCHEMA_VERSION,))

    @staticmethod
    def _tables(connection: sqlite3.Connection) -> frozenset[str]:
        return frozenset(name for (name,) in connection.execute("SELECT name FROM sqlite_schema"))

    def _version(self, connection: sqlite3.Connection) -> int | None:
        if schema.name not in self._tables(connection):
            return None
        found = connection.execute(f"SELECT version FROM {schema.name}").fetchone()
        if found is None:
            raise StoreUnusable(f"{self.datastore.engine.url} has a schema without a version; restore a backup")
        return int(found[0])

    def _create(self, connection: sqlite3.Connection, table: Table) -> None:
        made: list[ExecutableDDLElement] = [CreateTable(table), *map(CreateIndex, table.indexes)]
        for ddl in made:
            connection.execute(str(ddl.compile(dialect=self.datastore.engine.dialect)))

    def _replace_table(self, connection: sqlite3.Connection, table: Table) -> None:
        """Give a table its present shape, keeping what both shapes have: above all the leases."""
        old = f"{table.name}_old"
        connection.execute(f"ALTER TABLE {table.name} RENAME TO {old}")
        for index in table.indexes:
            connection.execute(f"DROP INDEX IF EXISTS {index.name}")
        self._create(connection, table)
        had = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({old})")}
        common = ", ".join(column.name for column in table.columns if column.name in had)
        connection.execute(f"INSERT INTO {table.name} ({common}) SELECT {common} FROM {old}")
        connection.execute(f"DROP TABLE {old}")

    def append(
        self,
        stored: Sequence[StoredEvent],
        row: Change,
        claims: Sequence[Claim] = (),
    ) -> None:
        """Insert the events, what they claim, and the row they lead to, in one transaction.

        Raises ``IntegrityError`` where the version is taken, ``KeyHeld`` where another step holds a key,
        ``StoreBusy`` where nothing was done, and ``OperationalError`` where nobody knows.
        """
        self.append_all([(stored, row, claims)])

    def append_all(self, batch: Sequence[tuple[Sequence[StoredEvent], Change, Sequence[Claim]]]) -> None:
        """Append to several runs, in one transaction."""
        with translated(), self.datastore.writing() as connection:
            for stored, row, claims in batch:
                self._append(connection, stored, row, claims)

    def append_in(
        self,
        connection: sqlite3.Connection,
        stored: Sequence[StoredEvent],
        row: Change,
        claims: Sequence[Claim],
    ) -> None:
        """Append inside a transaction that somebody else commits."""
        with translated():
            self._append(connection, stored, row, claims)

    def _append(
        self,
        connection: sqlite3.Connection,
        stored: Sequence[StoredEvent],
        row: Change,
        claims: Sequence[Claim],
    ) -> None:
        before = stored[0].originator_version - 1
        for event in stored:
            connection.execute(
                self._insert_event,
                (event.originator_id.bytes, event.originator_version, event.topic, event.state),  # type: ignore[union-attr]
            )
        for claim in claims:
            self._claim(connection, claim)
        columns, values = row
        if columns is ALL:
            connection.execute(self._insert_row, values)
        elif connection.execute(self._update_row[columns], (*values, before)).rowcount != 1:
            raise es.IntegrityError(f"the row of run {values[-1]} is not at version {before}")

    def rows(self, stream: UUID, *, after: int = 0, upto: int | None = None) -> list[Row]:
        """Return version, topic and state of a stream's events with ``after < version <= upto``."""
        return self.read(stream, list, after=after, upto=upto)

    def read(self, stream: UUID, take: Callable[[Iterable[Row]], T], *, after: int = 0, upto: int | None = None) -> T:
        """Hand what ``rows`` returns to ``take`` while it is read: a long stream is never held as a whole."""
        return self._read(self._select, (stream.bytes, after, _ALL if upto is None else upto), take)

    def select_runs(self, where: str, values: Sequence[Any], limit: int | None) -> list[tuple[Any, ...]]:
        """Return rows of the runs table, the run that changed last first."""
        names = ", ".join(column.name for column in runs.columns)
        sql = f"SELECT {names} FROM {runs.name} {where} ORDER BY updated_at DESC, run_id LIMIT ?"
        return self._read(sql, (*values, -1 if limit is None else limit), list)

    def count_runs(self) -> int:
        """Return how many rows the runs table has."""
        ((count,),) = self._read(f"SELECT count(*) FROM {runs.name}", (), list)
        return int(count)

    def _read(self, sql: str, values: Sequence[Any], take: Callable[[Iterable[Any]], T]) -> T:
        try:
            with self.datastore.raw() as connection:
                return patiently(lambda: take(connection.execute(sql, values)), self.datastore.patience)
        except sqlite3.Error as error:
            raise StoreUnusable(f"{self.datastore.engine.url} cannot be read: {error}; restore a backup") from error

    def rebuild(self, project: Callable[[list[Row]], tuple[Change, Sequence[Claim]] | None]) -> int:
        """Make rows and keys again from the events, in one transaction; return how many runs there are.

        ``project`` gives a stream's row and claims, or None where it cannot be read: then its row stays as it is.
        The lease columns are never touched; a row without events goes.
        """
        with translated(), self.datastore.writing() as connection:
            streams = {stream for (stream,) in connection.execute(self._select_streams)}
            claims: list[Claim] = []
            readable = set()
            for stream in streams:
                projected = project(connection.execute(self._select, (stream, 0, _ALL)).fetchall())
                if projected is not None:
                    connection.execute(self._upsert_row, projected[0][1])
                    claims.extend(projected[1])
                    readable.add(stream)
            kept = set()
            for (run_id,) in connection.execute(f"SELECT run_id FROM {runs.name}").fetchall():
                if stream_id(run_id).bytes not in streams:
                    connection.execute(f"DELETE FROM {runs.name} WHERE run_id = ?", (run_id,))
                elif stream_id(run_id).bytes not in readable:
                    kept.add(run_id)
            for (run_id,) in connection.execute(f"SELECT DISTINCT run_id FROM {keys.name}").fetchall():
                if run_id not in kept:
                    connection.execute(f"DELETE FROM {keys.name} WHERE run_id = ?", (run_id,))
            connection.executemany(_INSERT_KEY, [astuple(claim) for claim in claims])
        return len(streams)

    @staticmethod
    def _claim(connection: sqlite3.Connection, claim: Claim) -> None:
        if connection.execute(_INSERT_KEY, astuple(claim)).rowcount == 1:
            return
        held = connection.execute(
            f"SELECT * FROM {keys.name} WHERE tool = ? AND key = ?",
            (claim.tool, claim.key),
        )
        holder = Claim(*held.fetchone())
        if (holder.run_id, holder.idx) != (claim.run_id, claim.idx):
            raise KeyHeld(claim, holder)


def is_present(found: int | None, *, migrate: bool) -> bool:
    """Say whether the schema that was found is this code's; raise ``SchemaMismatch`` where it cannot be."""
    if found is not None and found > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the store has schema {found} and this code knows {SCHEMA_VERSION}; upgrade agent-es to open it"
        )
    if found is not None and found < SCHEMA_VERSION and not migrate:
        raise SchemaMismatch(
            f"the store has schema {found} and this code needs {SCHEMA_VERSION}; bring it up: agent-es migrate"
        )
    return found == SCHEMA_VERSION


class Factory(SQLAlchemyFactory):
    """Builds our parts where the event store library asks for its own."""

    datastore_class = Datastore
    application_recorder_class = RunRecorder
