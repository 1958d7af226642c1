"""The bell: who waits for work is told when a run becomes due.

PostgreSQL notifies; a SQLite file is looked at, and every commit of another connection rings.

Rule 1: it only shortens a wait.  Whoever listens looks by itself too, every so often: a notice may be lost.
Rule 2: it rings after each new connection, since what became due before that was told to nobody.
"""

import threading
from collections.abc import Callable

from eventsourcing.persistence import PersistenceError

from agent_es.store.datastore import Datastore

LISTEN = 0.2
"""Seconds after which a listener looks whether it is to stop."""
AGAIN = 2.0
"""Seconds after which a connection that was lost is made again."""


class Bell:
    """Listens to what the store's database tells."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self.is_heard = False
        """Whether somebody listens here, on a connection that stands: else a due run is noticed by polling."""

    def listen(self, stop: threading.Event, ring: Callable[[], object]) -> None:
        """Call ``ring`` whenever a run becomes due, until ``stop`` is set."""
        while not stop.is_set():
            try:
                self._listen(stop, ring)
            except PersistenceError:  # who rings by the clock alone is late, and misses nothing
                self.is_heard = False
                stop.wait(AGAIN)
        self.is_heard = False

    def _listen(self, stop: threading.Event, ring: Callable[[], object]) -> None:
        dialect = self._datastore.dialect
        with self._datastore.translated(), self._datastore.apart() as connection:
            hear = dialect.listen(connection)
            self.is_heard = True
            ring()
            while not stop.is_set():
                if hear(LISTEN, stop):
                    ring()
