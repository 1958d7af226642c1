"""When a schedule comes: a cron expression, as it is read in a zone.

Rule 1: an instant is a whole number of seconds since 1970, in UTC.  What the clocks of a zone show then is looked up
here, and nowhere else.
Rule 2: where clocks are set forward or back, Debian's cron is followed, by the library ``cronsim``.
Rule 3: nothing is remembered: which instant comes next depends on the time asked for alone.
"""

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from math import floor
from typing import Self
from zoneinfo import ZoneInfo

from agent_es.errors import BadSchedule

FIELDS = "minute, hour, day-of-month, month and day-of-week"
EXAMPLE = "'0 9 * * MON-FRI' is 09:00 from Monday to Friday"

WORDS = 5
"""Minute, hour, day of the month, month, day of the week."""

LONGEST = 200
"""Characters of an expression."""

STEP = 60
"""Seconds that lie between two instants at least."""

SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression of five fields, and the zone whose clocks it is about.

    >>> nine = Cron.parse("0 9 * * MON-FRI", "Europe/Berlin")
    >>> f"{datetime.fromtimestamp(nine.after(1774605600), UTC):%A %H:%M}"  # it is Friday; clocks change on Sunday
    'Monday 07:00'
    """

    expression: str
    zone: tzinfo

    @classmethod
    def parse(cls, expression: str, zone: str) -> Self:
        """Return what the texts say; raise ``BadSchedule`` where that is nothing."""
        from cronsim import CronSim, CronSimError  # noqa: PLC0415  # only where something is scheduled

        words = expression.split()
        if len(words) != WORDS or len(expression) > LONGEST or not expression.isascii():
            raise BadSchedule(
                f"{expression!r:.{LONGEST}} is no cron expression; write five fields, {FIELDS}: {EXAMPLE}"
            )
        try:
            CronSim(expression, SOME_DAY)
        except CronSimError as error:
            what = str(error).lower()
            if "day-of-month" in what and _is_there([*words[:3], "*", words[4]]):  # of other months it is one
                raise never(expression) from None
            raise BadSchedule(
                f"{expression!r} is no cron expression: {what}; its fields are {FIELDS}: {EXAMPLE}"
            ) from None
        return cls(expression, _zone_of(zone))

    def after(self, at: float) -> int | None:
        """Return the first instant later than that many seconds since 1970; None where it is 50 years away."""
        from cronsim import CronSim  # noqa: PLC0415  # only where something is scheduled

        # It counts by what clocks show.  In an hour that comes twice it may begin with what is past already.
        for found in CronSim(self.expression, datetime.fromtimestamp(floor(at), self.zone)):
            if found.timestamp() > at:
                return int(found.timestamp())
        return None

    def last(self, first: int, upto: float) -> int:
        """Return the last of the instants from ``first`` to ``upto``, however many there are: it halves the time."""

        def is_over(at: int) -> bool:
            following = self.after(at)
            return following is None or following > upto

        places = range(first, floor(upto) + 1, STEP)
        count = bisect_left(places, 1, key=is_over)  # of places that have one behind them
        return (self.after(places[count - 1]) if count else None) or first


def never(expression: str) -> BadSchedule:
    """Return the error for an expression without instants."""
    return BadSchedule(f"{expression!r} never comes; write a day that some month has: {EXAMPLE}")


def _is_there(words: list[str]) -> bool:
    from cronsim import CronSim, CronSimError  # noqa: PLC0415  # only where something is scheduled

    try:
        CronSim(" ".join(words), SOME_DAY)
    except CronSimError:
        return False
    return True


def _zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # known everywhere
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not found; no name; the name of a folder
        raise BadSchedule(
            f"{name!r:.80} is no zone that is known here; write a name of the tz database, as 'Europe/Berlin' "
            "(a system without that database needs: pip install tzdata)"
        ) from None
