"""The bell: who waits for work is told when a run becomes due, on a database that can tell.

Rule 1: it only shortens a wait.  Whoever listens looks by itself too, every so often: a notice may be lost.
Rule 2: it rings after each new connection, since what became due before that was told to nobody.
"""

import threading
from collections.abc import Callable

from eventsourcing.persistence import PersistenceError

from agent_es.store.datastore import Datastore

LISTEN = 1.0
"""Seconds after which a listener looks whether it is to stop."""
AGAIN = 2.0
"""Seconds after which a connection that was lost is made again."""


class Bell:
    """Listens to what the store's database tells."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore

    @property
    def is_there(self) -> bool:
        """Whether this database tells anything."""
        return self._datastore.dialect.can_tell

    def listen(self, stop: threading.Event, ring: Callable[[], object]) -> None:
        """Call ``ring`` whenever a run becomes due, until ``stop`` is set; return at once where nothing is told."""
        while self.is_there and not stop.is_set():
            try:
                self._listen(stop, ring)
            except PersistenceError:  # who rings by the clock alone is late, and misses nothing
                stop.wait(AGAIN)

    def _listen(self, stop: threading.Event, ring: Callable[[], object]) -> None:
        dialect = self._datastore.dialect
        with self._datastore.translated(), self._datastore.apart() as connection:
            dialect.listen(connection)
            ring()
            while not stop.is_set():
                if dialect.hear(connection, LISTEN):
                    ring()
