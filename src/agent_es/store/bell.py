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
        self._listening: dict[int, bool] = {}
        """Whether each of those who listen here has heard itself ring."""

    @property
    def is_heard(self) -> bool:
        """Whether all who listen here, at least one, hear what is told: else due runs are noticed by polling."""
        heard = [*self._listening.values()]
        return bool(heard) and all(heard)

    def listen(self, stop: threading.Event, ring: Callable[[], object]) -> None:
        """Call ``ring`` whenever a run becomes due, until ``stop`` is set."""
        me = threading.get_ident()
        try:
            while not stop.is_set():
                self._listening[me] = False
                try:
                    self._listen(me, stop, ring)
                except PersistenceError:  # who rings by the clock alone is late, and misses nothing
                    self._listening[me] = False
                    stop.wait(AGAIN)
        finally:
            self._listening.pop(me, None)

    def _listen(self, me: int, stop: threading.Event, ring: Callable[[], object]) -> None:
        dialect = self._datastore.dialect
        with self._datastore.translated(), self._datastore.apart() as connection:
            hear = dialect.listen(connection)
            ring()
            if dialect.echoes:  # what stands in between may pass on all but notices
                with self._datastore.writing() as other:
                    dialect.ring(other)
            self._listening[me] = not dialect.echoes
            while not stop.is_set():
                if hear(LISTEN, stop):
                    self._listening[me] = True
                    ring()
