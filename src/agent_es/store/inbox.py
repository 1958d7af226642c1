"""What waits for a person, over all runs, and telling somebody of it.

Rule 1: what waits is written in the transaction that lets it wait: a row that is there is an outbox, too.
Rule 2: somebody is told once; once more only where who told it died, or raised, while telling.
"""

import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

from agent_es.errors import AgentError
from agent_es.inbox import WHOLE, InboxItem, ItemKind, item_of
from agent_es.state import RunState
from agent_es.store.datastore import Datastore
from agent_es.store.items import Item, open_in
from agent_es.store.tables import inbox

T = TypeVar("T")

Load = Callable[[str], RunState]
Tell = Callable[[InboxItem], object]
"""Tells somebody that something waits for a person."""

TELLING = 60.0
"""Seconds after which somebody else tells it, where who wanted to is gone."""
AT_ONCE = 100
_ALL = 2**31 - 1


class Inbox:
    """Lists what waits for a person, the oldest first.

    What loads a run is handed to each call: kept, it would be a cycle, and a store that is let go would stay open.
    """

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        dialect, table, now = datastore.dialect, inbox.name, datastore.dialect.now
        item, order = "run_id, idx, kind, since", "ORDER BY since, run_id, idx"
        self._list = dialect.sql(f"SELECT {item} FROM {table} WHERE since >= ? {order} LIMIT ?")
        self._list_kind = dialect.sql(f"SELECT {item} FROM {table} WHERE since >= ? AND kind = ? {order} LIMIT ?")
        free = f"told_at IS NULL AND telling_until <= {now}"
        first = f"SELECT run_id, idx, kind FROM {table} WHERE {free} {order} LIMIT {AT_ONCE}{dialect.skip_locked}"
        self._any = dialect.sql(f"SELECT 1 FROM {table} WHERE {free} LIMIT 1")
        self._take = dialect.sql(
            f"UPDATE {table} SET telling_until = {now} + ? WHERE (run_id, idx, kind) IN ({first}) RETURNING {item}"
        )
        which = "WHERE run_id = ? AND idx = ? AND kind = ? AND since = ?"
        self._told = dialect.sql(f"UPDATE {table} SET told_at = {now} {which}")

    def items(self, load: Load, kind: ItemKind | None, since: datetime | None, limit: int | None) -> list[InboxItem]:
        """Return what waits, since then or later."""
        most, first = _ALL if limit is None else limit, 0.0 if since is None else since.timestamp()
        sql, values = (self._list, (first, most)) if kind is None else (self._list_kind, (first, kind, most))
        return [*_known(load, [Item(*row) for row in self._select(sql, values)])]

    def tell(self, load: Load, tell: Tell) -> int:
        """Tell what nobody was told yet; return how much that was.  What raises is told again later."""
        if not self._select(self._any, ()):
            return 0  # on a database with one writer, nobody waits for who looks
        taken = self._written(lambda connection: connection.execute(self._take, (TELLING,)).fetchall())
        told, until = 0, time.monotonic() + TELLING / 2
        for item in sorted((Item(*row) for row in taken), key=lambda item: (item.since, item.run_id, item.idx)):
            if time.monotonic() > until:
                break  # somebody else may tell the rest by now, or soon
            for known in _known(load, [item]):
                try:
                    tell(known)
                except Exception:
                    traceback.print_exc()
                else:
                    self._mark(item)
                    told += 1
        return told

    def _mark(self, item: Item) -> None:
        self._written(lambda connection: connection.execute(self._told, tuple(item)))

    def _select(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._datastore.usable("the inbox cannot be read"):
            return self._datastore.reading(
                lambda connection: list(self._datastore.dialect.select(connection, sql, values))
            )

    def _written(self, act: Callable[[Any], T]) -> T:
        return self._datastore.repeatable(act, "the inbox could not be written")


def _known(load: Load, items: list[Item]) -> Iterator[InboxItem]:
    """Yield what is known of them; what was answered meanwhile waits for nobody any more."""
    states: dict[str, RunState] = {}
    for run_id, idx, kind, seconds in items:
        since = datetime.fromtimestamp(seconds, UTC)
        try:
            state = states.get(run_id) or load(run_id)
        except AgentError as error:
            why = f"this code cannot read the run: {error}"
            yield InboxItem(kind, run_id, "", "", since, why, None if idx == WHOLE else idx)
            continue
        states[run_id] = state
        if (idx, kind) in open_in(state):
            yield item_of(state, idx, kind, since)
