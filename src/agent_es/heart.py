"""Keeps leases while their runs are moved: a thread that no tool can block.

Rule: a renewal that could not be made is no loss; the lease is lost when somebody else has it.
"""

import threading
import time
from contextlib import suppress

from agent_es.owners import Lease
from agent_es.store.leases import Leases

EVERY = 1 / 3
"""After which part of its time a lease is renewed."""
IDLE = 5.0
"""Seconds after which the thread ends where there is no lease to keep."""


class Heart:
    """Renews the leases that it is given, until they are taken away again."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._due: dict[int, tuple[float, Lease]] = {}
        """When each is to be renewed next."""
        self._changed = threading.Condition()
        self._beats = False

    def keep(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        with self._changed:
            self._due[id(lease)] = (time.monotonic() + lease.seconds * EVERY, lease)
            if not self._beats:
                self._beats = True
                threading.Thread(target=self._beat, name="agent_es leases", daemon=True).start()
            self._changed.notify()

    def leave(self, lease: Lease) -> None:
        """Renew this lease no more."""
        with self._changed:
            self._due.pop(id(lease), None)

    def _beat(self) -> None:
        idle_until = time.monotonic() + IDLE
        while True:
            with self._changed:
                now = time.monotonic()
                if self._due:
                    idle_until = now + IDLE
                elif now >= idle_until:
                    self._beats = False
                    return
                next_at = min((at for at, _ in self._due.values()), default=idle_until)
                if next_at > now:
                    self._changed.wait(next_at - now)
                now = time.monotonic()
                due = [(key, lease) for key, (at, lease) in self._due.items() if at <= now]
            for key, lease in due:
                self._renew(key, lease)

    def _renew(self, key: int, lease: Lease) -> None:
        """Renew a lease, unless it was given back meanwhile, with an append or by itself."""
        if not lease.is_lost:
            with suppress(Exception):  # busy, or away: what counts is whose it is when it is asked for next
                self._leases.renew(lease)
        with self._changed:
            if key in self._due:
                if lease.is_lost:
                    del self._due[key]
                else:
                    self._due[key] = (time.monotonic() + lease.seconds * EVERY, lease)
