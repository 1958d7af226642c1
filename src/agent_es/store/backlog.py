"""How the runs of a store stand: how many wait for what, and for how long the oldest is due.

Rule: what is done is not counted, since it would cost more each day; both statements read indexes alone.
"""

from typing import Any

from agent_es.state import Status
from agent_es.store.datastore import Datastore
from agent_es.store.tables import DUE_BY_LEASE, DUE_BY_TIME, IS_MOVABLE, IS_WAITING, runs

Depth = dict[tuple[str, str], int]
"""How many runs have which status and wait for what."""

_OPEN = ", ".join(f"'{status.value}'" for status in Status if status not in (Status.DONE, Status.CANCELLED))


class Backlog:
    """Counts what is not done."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        dialect, table = datastore.dialect, runs.name
        now = f"(SELECT {dialect.now})"  # asked for once, not for each row
        by_time, by_lease = (f"{table}{dialect.using(index)}" for index in (DUE_BY_TIME, DUE_BY_LEASE))
        is_free = f"lease_until <= {now}"
        woken = f"SELECT min(wake_at) AS since FROM {by_time} WHERE {IS_WAITING} AND wake_at <= {now} AND {is_free}"
        since = "CASE WHEN lease_until > updated_at THEN lease_until ELSE updated_at END"
        movable = f"SELECT min({since}) FROM {by_lease} WHERE {IS_MOVABLE} AND {is_free}"
        self._oldest = f"SELECT {now} - min(since) FROM ({woken} UNION ALL {movable}) AS due"
        self._depth = f"SELECT status, waiting_for, count(*) FROM {table} WHERE status IN ({_OPEN}) GROUP BY 1, 2"

    def look(self) -> tuple[Depth, float]:
        """Return how many runs stand how, and the seconds for which the oldest is due, or 0.

        Due is what a worker of every agent would claim.  Raises ``StoreUnusable``.
        """
        with self._datastore.usable("the runs cannot be counted"):
            return self._datastore.reading(self._look)

    def _look(self, connection: Any) -> tuple[Depth, float]:
        select = self._datastore.dialect.select
        depth = {(status, what or ""): count for status, what, count in select(connection, self._depth, ())}
        ((seconds,),) = select(connection, self._oldest, ())
        return depth, max(0.0, seconds or 0.0)
