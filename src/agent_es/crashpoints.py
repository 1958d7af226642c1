"""Places where a test may kill the process.

Rule: in production a place is one look at a variable; only the crash kit ever sets it, for its own thread.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Kind = Literal["commit", "mark"]

BEFORE_COMMIT = "before the commit"
AFTER_COMMIT = "after the commit"

_reached: ContextVar[Callable[[str, Kind], object] | None] = ContextVar("agent_es_crash_point", default=None)


def crash_point(name: str, kind: Kind = "mark") -> None:
    """Mark a place where the process may die, in a tool or in a fake of the world; it does nothing by itself.

    >>> crash_point("the money has moved")
    """
    if (reached := _reached.get()) is not None:
        reached(name, kind)


@contextmanager
def watching(reached: Callable[[str, Kind], object]) -> Iterator[None]:
    """Be told of each place that this thread reaches; whatever ``reached`` raises, happens there."""
    token = _reached.set(reached)
    try:
        yield
    finally:
        _reached.reset(token)
