"""Time that tests hold in their hand."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

STORY = datetime(2026, 7, 5, 10, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class FrozenClock:
    """Gives the event of seq n the time ``base`` + n seconds, so that it goes on where another process stopped.

    >>> FrozenClock()(3).isoformat()
    '2026-07-05T10:00:03+00:00'
    """

    base: datetime = STORY

    def __call__(self, seq: int) -> datetime:
        """Return the time of the event with that ``seq``."""
        return self.base + timedelta(seconds=seq)

    def sleep(self, seconds: float) -> None:
        """Sleep no time at all: here events alone move the time."""


class MovableClock:
    """Stands still until it is moved, forward or back; who sleeps by it moves it.

    >>> clock = MovableClock()
    >>> clock.sleep(90)
    >>> clock.now().isoformat()
    '2026-07-05T10:01:30+00:00'
    """

    def __init__(self, base: datetime = STORY) -> None:
        self._now = base

    def __call__(self, seq: int) -> datetime:  # noqa: ARG002  # what a store's clock is called with
        """Return the time of the event with that ``seq``: now."""
        return self._now

    def now(self) -> datetime:
        """Return the time."""
        return self._now

    def move(self, seconds: float) -> None:
        """Move the time; back, where ``seconds`` is negative."""
        self._now += timedelta(seconds=seconds)

    def sleep(self, seconds: float) -> None:
        """Sleep: it takes no time, and afterwards it is later."""
        self.move(seconds)


class WrongClock:
    """Tells the time of another clock, and is wrong by ``by`` seconds."""

    def __init__(self, right: MovableClock, by: float) -> None:
        self._right = right
        self._by = timedelta(seconds=by)

    def __call__(self, seq: int) -> datetime:
        """Return the time of the event with that ``seq``, as it is taken to be here."""
        return self._right(seq) + self._by

    def sleep(self, seconds: float) -> None:
        """Sleep: seconds are as long as elsewhere."""
        self._right.sleep(seconds)
