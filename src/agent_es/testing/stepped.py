"""A worker that moves from place to place when a test says so, stands still in between, and may die there.

Rule 1: one worker moves at a time: each has a thread, and there is one baton, so an interleaving is a list of moves.
Rule 2: what a worker does when its store fails, or when another was faster, is its own affair; the rest is a problem.
"""

import sqlite3
import threading
from collections.abc import Callable, Mapping
from typing import Literal

import sqlalchemy.exc as sa

from agent_es.crashpoints import AFTER_COMMIT, BEFORE_COMMIT
from agent_es.errors import AppendUnknown, RunMoved, StoreBusy, StoreUnusable
from agent_es.owners import Lease, Owner
from agent_es.state import RunState
from agent_es.step import Transact
from agent_es.testing.crash import Crash, Life, Place

PATIENCE = 60.0
"""Seconds within which a worker must come to its next place, or to its end."""

Fault = Literal["busy", "disk_full", "lost_answer"]

_FAULTS: Mapping[Fault, tuple[str, str, int]] = {
    "busy": (BEFORE_COMMIT, "database is locked", sqlite3.SQLITE_BUSY),
    "disk_full": (BEFORE_COMMIT, "database or disk is full", sqlite3.SQLITE_FULL),
    "lost_answer": (AFTER_COMMIT, "disk I/O error", sqlite3.SQLITE_IOERR),
}
"""Where a storage fault happens, and what the driver says then."""

EXPECTED = (RunMoved, StoreBusy, StoreUnusable, AppendUnknown)
"""What may stop a worker that is not alone, or whose store fails."""


class SteppedWorker:
    """Lives the life that ``live`` lives, one move after the other.

    ``state`` is what its run came to, ``error`` what stopped it; both are None while it lives.  It takes leases as
    ``owner``: left out, as one whom others take for dead.
    """

    def __init__(
        self,
        live: Callable[[Life], RunState],
        *,
        seed: int = 0,
        owner: Owner | None = None,
        force_takeover: bool = False,
    ) -> None:
        self.state: RunState | None = None
        self.error: BaseException | None = None
        self.at: Place | None = None
        """Where it stands."""
        self._live = live
        self._life = _Stepped(self, seed)
        self._life.owner = owner or self._life.owner
        self._life.force_takeover = force_takeover
        self._left = 0
        self._order: BaseException | None = None
        self._fault: Fault | None = None
        self._go = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._started = False

    @property
    def is_alive(self) -> bool:
        """Whether it neither ended nor died."""
        return self.state is None and self.error is None

    def move(self, places: int = 1) -> None:
        """Let it go on for so many places, or to its end."""
        self._left = places
        self._pass_the_baton()

    def finish(self) -> None:
        """Let it go on to its end."""
        self.move(1 << 30)

    def die(self) -> None:
        """Let it die where it stands."""
        if not self._started:
            self.error = Crash("before it began")
        elif self.is_alive:
            self._order = Crash(str(self.at))
            self._pass_the_baton()

    def fail_next(self, fault: Fault) -> None:
        """Let its store fail at its next commit."""
        self._fault = fault

    @property
    def lease(self) -> Lease | None:
        """The lease that it took last."""
        return self._life.lease

    def reach(self, place: Place) -> None:
        """Stand at a place, in its own thread, until the baton comes back; then do as was ordered."""
        self.at = place
        self._left -= 1
        if self._left <= 0:
            self._stands.release()
            self._go.acquire()
        if self._order is not None:
            order, self._order = self._order, None
            raise order
        if self._fault is not None and place.kind == "commit" and _FAULTS[self._fault][0] == place.what:
            fault, self._fault = self._fault, None
            raise _error_of(fault, in_session=isinstance(place.request, Transact))

    def _pass_the_baton(self) -> None:
        if not self._started:
            self._started = True
            self._thread.start()
        else:
            self._go.release()
        if not self._stands.acquire(timeout=PATIENCE):
            raise AssertionError(f"a worker went on from {self.at}, and came nowhere in {PATIENCE:g} s")

    def _work(self) -> None:
        try:
            self.state = self._live(self._life)
        except BaseException as error:  # the test is told
            self.error = error
        finally:
            self._stands.release()


class _Stepped(Life):
    """A life that stands still at each place."""

    def __init__(self, worker: SteppedWorker, seed: int) -> None:
        super().__init__(seed=seed)
        self._worker = worker

    def reach(self, place: Place) -> None:
        """Stand there."""
        self._worker.reach(place)


def _error_of(fault: Fault, *, in_session: bool) -> Exception:
    """Return what the store's driver raises; a session of SQLAlchemy's wraps it."""
    _, message, code = _FAULTS[fault]
    if fault == "busy":
        return StoreBusy(f"{message}; nothing was recorded")
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return sa.OperationalError("COMMIT", None, error) if in_session else error
