"""Read models of a user's own: each event of all runs is applied once, in order, whoever applies it.

Rule 1: what is written for an event, and that it was, are one transaction of the store's database.
Rule 2: any number of processes may keep one read model up to date; each event is applied by one of them.
Rule 3: a read model is disposable: empty it, rewind, and it is made again.
"""

import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

from eventsourcing.persistence import OperationalError

from agent_es.errors import StoreUnusable
from agent_es.store import RunStore
from agent_es.store.feed import FeedEntry

Apply = Callable[[Any, FeedEntry], object]
"""Writes what an event means for the read model, through a SQLAlchemy session; it does no other I/O."""


class Projection:
    """Keeps a read model up to date: ``apply(session, entry)`` is called for each event of all runs, in order.

    ``name`` is what it is known by in the store: another name is another read model, from the first event on.
    ``batch`` events are applied in one transaction at most.  The session is of the store's database; what it wrote
    is committed with the position, or not at all.
    """

    def __init__(self, store: RunStore, name: str, apply: Apply, *, batch: int = 100) -> None:
        if not name or batch < 1:
            raise StoreUnusable("a projection needs a name, and a batch of one event at least")
        self.store = store
        self.name = name
        self.batch = batch
        self._apply = apply

    @property
    def position(self) -> int:
        """The position of the last event that was applied; 0 before the first."""
        return self.store.tracking.position(self.name)

    def catch_up(self) -> int:
        """Apply what is there; return how many events this call applied, those of other processes not among them.

        Raises what ``apply`` raises: the position stays before that batch.  Raises ``StoreBusy``, and
        ``StoreUnusable`` where the database failed: nothing is applied twice when it is called again.
        """
        applied = 0
        while True:
            at = self.position
            entries = [*islice(self.store.feed(after=at, limit=self.batch), self.batch)]
            if not entries:
                return applied

            def apply(session: Any, entries: list[FeedEntry] = entries) -> None:
                for entry in entries:
                    self._apply(session, entry)

            try:
                if self.store.tracking.advance(self.name, at, entries[-1].position, apply):
                    applied += len(entries)
            except OperationalError as error:
                raise StoreUnusable(f"projection {self.name}: {error}; catch_up again goes on after it") from error

    def follow(self, stop: threading.Event, *, poll: float = 0.5) -> int:
        """Keep up until ``stop`` is set, looking every ``poll`` seconds; return how many events were applied."""
        applied = self.catch_up()
        while not stop.wait(poll):
            applied += self.catch_up()
        return applied

    def rewind(self, to: int = 0) -> None:
        """Go back, so that what follows is applied again: first undo what it made, or empty the read model."""
        self.store.tracking.put(self.name, to)
