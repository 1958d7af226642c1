"""Time that stands still between events."""

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
