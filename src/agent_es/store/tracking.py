"""How far each reader of the feed got, kept beside what it made of it.

Rule: it is moved in the transaction of what was done there, and only from where it stood: of two processes that
did the same, one is rolled back.
"""

from collections.abc import Callable
from typing import Any

from agent_es.errors import StoreUnusable
from agent_es.store.datastore import Datastore
from agent_es.store.tables import tracking


class Overtaken(Exception):  # never leaves this module
    """Another process was faster."""


class Tracking:
    """Keeps the positions of readers, by name."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        sql, table = datastore.dialect.sql, tracking.name
        self._select = sql(f"SELECT position FROM {table} WHERE name = ?")
        self._insert = sql(f"INSERT INTO {table} (name, position) VALUES (?, 0) ON CONFLICT DO NOTHING")
        self._update = sql(f"UPDATE {table} SET position = ? WHERE name = ? AND position = ?")
        self._put = sql(
            f"INSERT INTO {table} (name, position) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET position = excluded.position"
        )

    def position(self, name: str) -> int:
        """Return the last position that a reader has done with; 0 for one that never came."""
        dialect = self._datastore.dialect
        with self._datastore.usable(f"how far {name} got cannot be read"):
            found = self._datastore.reading(
                lambda connection: list(dialect.select(connection, self._select, (name,)))
            )
        return int(found[0][0]) if found else 0

    def advance(self, name: str, at: int, to: int, act: Callable[[Any], object]) -> bool:
        """Let ``act`` write through a session, and move the reader from ``at`` to ``to``: both, or neither.

        Return False, with nothing done, where it does not stand at ``at`` any more.
        """
        try:
            with self._datastore.lending() as (session, connection):
                self._move(connection, name, at, to)
                act(session)
                session.commit()
        except Overtaken:
            return False
        return True

    def _move(self, connection: Any, name: str, at: int, to: int) -> None:
        connection.execute(self._insert, (name,))
        if connection.execute(self._update, (to, name, at)).rowcount != 1:
            raise Overtaken

    def put(self, name: str, position: int) -> None:
        """Let a reader stand at a position, wherever it stood."""
        if position < 0:
            raise StoreUnusable(f"position={position}: positions count from 1, and 0 is before all of them")
        with self._datastore.usable(f"how far {name} got cannot be set"), self._datastore.writing() as connection:
            connection.execute(self._put, (name, position))
