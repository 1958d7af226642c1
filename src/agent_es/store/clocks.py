"""The time of events: the database's, which all workers share.

Rule: a machine's own time may be wrong, and may jump.  The database is asked once in a while; in between, seconds are
counted by a clock that nobody sets.
"""

from datetime import UTC, datetime

from agent_es.errors import StoreUnusable
from agent_es.owners import elapsed
from agent_es.store.datastore import Datastore

FRESH = 60.0
"""Seconds after which the database is asked again."""


def system_clock(_: int) -> datetime:
    """Return the machine's own time, whatever the event's ``seq``."""
    return datetime.now(UTC)


class DatabaseClock:
    """Tells the database's time; the machine's own, where the database never answered."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self._select = f"SELECT {datastore.dialect.now}"
        self._told: tuple[float, float] | None = None
        """A time of the database, and what had elapsed then."""

    def __call__(self, seq: int) -> datetime:
        """Return the time now, whatever the event's ``seq``."""
        now = elapsed()
        told = self._told
        if told is None or now > told[1] + FRESH:
            told = self._told = self._ask() or told
        return system_clock(seq) if told is None else datetime.fromtimestamp(told[0] + elapsed() - told[1], UTC)

    def _ask(self) -> tuple[float, float] | None:
        select = self._datastore.dialect.select
        asked_at = elapsed()
        try:
            with self._datastore.usable("the time cannot be asked for"):
                ((told,),) = self._datastore.reading(lambda connection: list(select(connection, self._select, ())))
        except StoreUnusable:
            return None
        return float(told), (asked_at + elapsed()) / 2
