"""Who holds a run, and the lease by which it does.

Rule 1: an owner is a process, named so that another on the same host can tell whether it is surely dead.
Rule 2: when unsure, it lives: only one of the same boot and the same namespace of processes can be looked for.
"""

import os
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Self
from uuid import uuid4

PROC = Path("/proc")
UNKNOWN, GONE = "?", "gone"

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed() -> float:
    """Return the seconds since some moment of the past, those among them that the machine slept through."""
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that holds leases.  ``str`` gives the text that a lease row keeps."""

    boot: str
    """Which boot of which machine."""
    namespace: str
    """Among which processes its number counts."""
    pid: int
    started: str
    """When it started, by the kernel's clock: a number that is given out again has another."""
    name: str
    """What tells it from others of the same process."""

    def __str__(self) -> str:
        return "/".join((self.boot, self.namespace, str(self.pid), self.started, self.name))

    @classmethod
    def here(cls, name: str | None = None) -> Self:
        """Return an owner in this process; without a name, one of its own."""
        boot, namespace, pid, started = _this_process(os.getpid())
        return cls(boot, namespace, pid, started, name or uuid4().hex[:8])

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the owner that a lease row names; None where it is no text of ours.

        >>> str(Owner.parse("b/n/17/99/worker")), Owner.parse("somebody")
        ('b/n/17/99/worker', None)
        """
        try:
            boot, namespace, pid, started, name = text.split("/", 4)
        except ValueError:
            return None
        return cls(boot, namespace, int(pid), started, name) if pid.isdecimal() else None

    @property
    def is_surely_dead(self) -> bool:
        """Whether the process is gone, as far as this one can know: what it may not look at, it does not know."""
        boot, namespace, _, _ = _this_process(os.getpid())
        if UNKNOWN in (boot, namespace, self.started) or (self.boot, self.namespace) != (boot, namespace):
            return False
        try:
            os.kill(self.pid, 0)  # it sends nothing
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            return False
        return _started(self.pid) not in (self.started, UNKNOWN)


@dataclass(slots=True)
class Lease:
    """The right to move one run, for as long as it is renewed."""

    run_id: str
    token: int
    seconds: float
    """For how long it holds without being renewed."""
    claims: int = 0
    """How many workers had the run since it last got anywhere, this one among them."""
    holder: str = ""
    is_lost: bool = False
    _fresh_at: float = field(default_factory=elapsed)

    @property
    def is_fresh(self) -> bool:
        """Whether it surely holds, as far as this process's own clock can tell: one that froze cannot."""
        return not self.is_lost and elapsed() < self._fresh_at + self.seconds

    def lapse(self) -> None:
        """Take it for lapsed: the database is asked whose it is, before anything starts."""
        self._fresh_at = float("-inf")

    def refresh(self, asked_at: float) -> None:
        """Note that it was ours when the database was asked, ``asked_at`` by what had elapsed."""
        self._fresh_at = max(self._fresh_at, asked_at)


@cache
def _this_process(pid: int) -> tuple[str, str, int, str]:
    """Return what names this process; ``pid`` makes a forked child ask again."""
    return (
        _read("sys/kernel/random/boot_id"),
        _namespace(),
        pid,
        _started(pid),
    )


def _namespace() -> str:
    try:
        return (PROC / "self/ns/pid").readlink().name
    except OSError:
        return UNKNOWN


def _started(pid: int) -> str:
    """Return when a process started; a zombie is as good as gone."""
    behind_the_name = _read(f"{pid}/stat").rpartition(")")[2].split()
    try:  # the third field of all is the state, the twenty-second the time
        state, started = behind_the_name[0], behind_the_name[19]
    except IndexError:
        return UNKNOWN
    return GONE if state in "ZX" else started


def _read(name: str) -> str:
    try:
        return (PROC / name).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return UNKNOWN
