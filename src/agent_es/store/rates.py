"""How often, and how many at once, a tool may be called by all workers together: limits that the store keeps.

Rule 1: who may not call yet is told when to come: the run waits until then as a row, and nobody waits in a process.
Rule 2: a time that was given to a step is its own: it gets no other one, and needs no more than a place then.
Rule 3: a place among those who call at once is held under the run's lease, and is free when that lapses.

The times are given out as by the generic cell rate algorithm, with a burst of one.
"""

import random
import time
from collections.abc import Collection
from typing import Any, NamedTuple

from agent_es.errors import BadLimit
from agent_es.state import RunState, Step
from agent_es.store.datastore import Datastore
from agent_es.store.projection import tag_of
from agent_es.store.tables import rate_holds, rate_times, rates, runs

KNOWN_FOR = 1.0
"""Seconds for which a process believes the limits that it has read."""

BUSY, LONGEST = 0.2, 10.0
"""Seconds after which a step that found no place asks again: twice as many each time, and up to half as many more."""


KNOWN_TRIES = 10_000
"""Of so many steps a process knows how often they asked."""


class ToolLimit(NamedTuple):
    """What the calls of a tool are held to, over all workers; with a ``tag``, apart for each of its values."""

    tool: str
    tag: str
    """The name of the tag; empty where the limit is for all runs together."""
    per_second: float | None
    at_once: int | None


class Rates:
    """Keeps the limits of tools, and gives out times and places."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self._known: tuple[list[ToolLimit], frozenset[str]] = [], frozenset()
        self._until = 0.0
        self._tries: dict[tuple[str, int], int] = {}
        """How often a step found no place here; what is forgotten asks sooner."""
        sql = datastore.dialect.sql
        now = datastore.dialect.now
        self._select = f"SELECT tool, tag, per_second, at_once FROM {rates.name} ORDER BY tool, tag"
        self._put = sql(
            f"INSERT INTO {rates.name} VALUES (?, ?, ?, ?) ON CONFLICT (tool, tag) DO UPDATE "
            "SET per_second = excluded.per_second, at_once = excluded.at_once"
        )
        self._drop = sql(f"DELETE FROM {rates.name} WHERE tool = ? AND tag = ?")
        self._lock = sql(f"UPDATE {rates.name} SET at_once = at_once WHERE tool = ? AND tag = ?")
        self._next = sql(
            f"INSERT INTO {rate_times.name} AS was VALUES (?, ?, ?, ?) ON CONFLICT (tool, tag, value) DO UPDATE "
            "SET next_at = CASE WHEN was.next_at > ? THEN was.next_at ELSE ? END + ? RETURNING next_at"
        )
        self._count = sql(
            f"SELECT count(*) FROM {rate_holds.name} AS hold JOIN {runs.name} AS run ON run.run_id = hold.run_id "
            f"WHERE tool = ? AND tag = ? AND value = ? AND run.lease_until > {now} "
            "AND NOT (hold.run_id = ? AND hold.idx = ?)"
        )
        self._hold = sql(f"INSERT INTO {rate_holds.name} VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING")
        self._leave = sql(f"DELETE FROM {rate_holds.name} WHERE run_id = ? AND idx = ?")

    def put(self, limit: ToolLimit) -> None:
        """Keep a limit; one without numbers is dropped.  Raises ``BadLimit``."""
        if limit.per_second is not None and not 0 < limit.per_second < float("inf"):
            raise BadLimit(
                f"{limit.tool}: per_second={limit.per_second}: a rate is more than 0; leave it out for none"
            )
        if limit.at_once is not None and limit.at_once < 1:
            raise BadLimit(f"{limit.tool}: at_once={limit.at_once}: one call at least must be allowed")
        is_none = limit.per_second is None and limit.at_once is None

        def write(connection: Any) -> None:
            if is_none:
                connection.execute(self._drop, limit[:2])
            else:
                connection.execute(self._put, tuple(limit))

        self._datastore.repeatable(write, f"the limit of {limit.tool} could not be kept")
        self._until = 0.0

    def listed(self) -> list[ToolLimit]:
        """Return all limits."""
        with self._datastore.usable("the limits of tools cannot be read"):
            found = self._datastore.reading(lambda connection: list(connection.execute(self._select)))
        return [ToolLimit(*row) for row in found]

    def enter(self, state: RunState, names: Collection[str], step: Step, now: float) -> tuple[float, bool]:
        """Return in how many seconds a call may start, and whether it has that time for its own; else it asks again.

        Where that is now, it has its place.  Raises ``StoreBusy``, ``StoreUnusable``.
        """
        limits = [it for it in self._all() if it.tool in names and (not it.tag or it.tag in state.tags)]
        if not limits:
            return 0.0, True

        def enter(connection: Any) -> tuple[float, bool]:
            found = [(limit, tag_of(limit.tag, state.tags[limit.tag]).value if limit.tag else "") for limit in limits]
            for limit, value in found:
                connection.execute(self._lock, limit[:2])
                if limit.at_once is not None:
                    asked = (limit.tool, limit.tag, value, state.run_id, step.idx)
                    ((busy,),) = connection.execute(self._count, asked).fetchall()
                    if busy >= limit.at_once:
                        return self._later(state.run_id, step.idx), step.has_its_time
            at = now
            for limit, value in found:
                if limit.at_once is not None:
                    connection.execute(self._hold, (limit.tool, limit.tag, value, state.run_id, step.idx))
                if limit.per_second is not None and not step.has_its_time:
                    apart = 1 / limit.per_second
                    given = (limit.tool, limit.tag, value, now + apart, now, now, apart)
                    ((next_at,),) = connection.execute(self._next, given).fetchall()
                    at = max(at, next_at - apart)
            self._tries.pop((state.run_id, step.idx), None)
            return at - now, True

        return self._datastore.repeatable(enter, f"the limits of {', '.join(names)} could not be asked")

    def _later(self, run_id: str, idx: int) -> float:
        """Return in how many seconds a step that found no place asks again."""
        if len(self._tries) >= KNOWN_TRIES:
            self._tries.clear()
        tries = self._tries[run_id, idx] = self._tries.get((run_id, idx), -1) + 1
        return min(BUSY * 2.0 ** min(tries, 9), LONGEST) * random.uniform(1, 1.5)  # noqa: S311  # spreads them out, guards nothing

    def leave(self, run_id: str, idx: int) -> None:
        """Give a place back, where a step may have had one."""
        if any(limit.at_once is not None for limit in self._all()):
            what = f"a place of run {run_id} could not be given back"
            self._datastore.repeatable(lambda connection: connection.execute(self._leave, (run_id, idx)), what)

    @property
    def limited(self) -> frozenset[str]:
        """The tools that have a limit."""
        return self._fresh()[1]

    def _all(self) -> list[ToolLimit]:
        return self._fresh()[0]

    def _fresh(self) -> tuple[list[ToolLimit], frozenset[str]]:
        now = time.monotonic()
        if now > self._until:
            limits = self.listed()
            self._known = limits, frozenset(limit.tool for limit in limits)
            self._until = now + KNOWN_FOR
        return self._known
