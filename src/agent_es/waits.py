"""Waits: what a decider asks for, or a tool, where something must come first.

Rule 1: a time to wait for is an instant: a datetime that names none, because it has no zone, is refused.
Rule 2: whichever comes first ends a wait, the signal or the clock, and the run learns which; a signal that is there
when a wait ends has come first.
Rule 3: a wait is recorded and its process may go: what waits is one row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal

from agent_es.errors import BadSignal, BadTag, BadWait
from agent_es.values import valid_unicode

Until = timedelta | datetime

LAST = datetime(9999, 1, 1, tzinfo=UTC)
"""Nobody sleeps any longer; every calendar and every database knows it."""

FIRST = datetime.min.replace(tzinfo=UTC)

MAX_NAME = 200
"""Characters of the name of a signal, and of a delivery's id."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Go on after that time, or at that instant; one that has passed is now.  Raises ``BadWait``."""

    until: Until
    call_id: str | None = field(default=None, kw_only=True)
    """The provider's, as that of a ``CallTool``."""

    tool: ClassVar[str] = "sleep"
    """What the step is called that waits."""

    def __post_init__(self) -> None:
        _check(self.until)

    @property
    def args(self) -> Mapping[str, Any]:
        """What the step's arguments are."""
        return _told(self.until)


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Go on when a signal of that name is there, or after ``timeout``, a time or an instant.

    Raises ``BadSignal``, ``BadWait``.
    """

    signal: str
    timeout: Until | None = None
    call_id: str | None = field(default=None, kw_only=True)

    tool: ClassVar[str] = "wait_for"
    """What the step is called that waits."""

    def __post_init__(self) -> None:
        check_name("a signal", self.signal)
        if self.timeout is not None:
            _check(self.timeout)

    @property
    def args(self) -> Mapping[str, Any]:
        """What the step's arguments are."""
        return {"signal": self.signal, **({} if self.timeout is None else _told(self.timeout))}


ASKED = "answer:"
"""How the name of a signal begins that nobody sends: what a question waits for is a person's answer."""

MAX_QUESTION = 10_000
"""Characters of a question."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Go on when a person has answered, or after ``timeout``, a time or an instant.

    The answer is any JSON value, or one of the ``choices`` where there are some.  Raises ``BadWait``.
    """

    question: str
    choices: Sequence[Any] | None = None
    timeout: Until | None = None
    call_id: str | None = field(default=None, kw_only=True)

    tool: ClassVar[str] = "ask_person"
    """What the step is called that waits."""

    def __post_init__(self) -> None:
        if not isinstance(self.question, str) or not 1 <= len(self.question) <= MAX_QUESTION:
            raise BadWait(f"{self.question!r:.80} is no question: it is a text of 1 to {MAX_QUESTION:,} characters")
        if self.choices is not None and (isinstance(self.choices, str) or not self.choices):
            raise BadWait(f"choices={self.choices!r:.80}: say what may be answered, as in ['yes', 'no']")
        if self.timeout is not None:
            _check(self.timeout)

    @property
    def args(self) -> Mapping[str, Any]:
        """What the step's arguments are."""
        asked = {"question": self.question, **({} if self.choices is None else {"choices": [*self.choices]})}
        return {**asked, **({} if self.timeout is None else _told(self.timeout))}


Wait = Sleep | WaitFor | Ask


@dataclass(frozen=True, slots=True)
class Woken:
    """What ended a wait: the result of the step that waited."""

    reason: Literal["clock", "signal", "cancelled"]
    """``cancelled`` where the run was ended while the step waited, whose body had asked to."""
    signal: str | None = None
    """The name of the signal that was waited for, whether or not it came."""
    payload: Any = None
    """What the signal brought; it may well be something that counts as false."""


def instant(until: Until, now: datetime) -> datetime:
    """Return the instant that is meant, in UTC: not before now, and not after ``LAST``.

    >>> instant(timedelta(days=400 * 365), datetime(2026, 7, 5, tzinfo=UTC)).year
    2426
    """
    try:
        at = now + until if isinstance(until, timedelta) else until.astimezone(UTC)
    except OverflowError:
        is_far = until > timedelta(0) if isinstance(until, timedelta) else until.year > now.year
        at = LAST if is_far else now
    return min(max(at, now), LAST)


def check_name(what: str, name: object) -> str:
    """Return a name that can be kept; raise ``BadSignal``."""
    if isinstance(name, str) and 1 <= len(name) <= MAX_NAME and "\0" not in name and valid_unicode(name) == name:
        return name
    raise BadSignal(f"{what} cannot be called {name!r:.80}: {BadSignal.__doc__}")


def check_tag(tag: object) -> tuple[str, str]:
    """Return a tag that can be looked for; raise ``BadTag``."""
    match tag:
        case (str(name), str(value)):
            return name, value
    raise BadTag(f"{tag!r:.80}: {BadTag.__doc__}")


def _check(until: object) -> None:
    if isinstance(until, datetime):
        if until.utcoffset() is None:
            raise BadWait(
                f"{until.isoformat()} names no instant: it has no zone; "
                'write datetime(..., tzinfo=UTC), or tzinfo=ZoneInfo("Europe/Berlin")'
            )
    elif not isinstance(until, timedelta):
        raise BadWait(f"{until!r:.80} is no time to wait for; give a timedelta, or a datetime with a zone")


def _told(until: Until) -> Mapping[str, Any]:
    if isinstance(until, timedelta):
        return {"seconds": until.total_seconds()}
    try:
        at = min(until.astimezone(UTC), LAST)
    except OverflowError:
        at = LAST if until.year == LAST.year else FIRST
    return {"until": at.isoformat()}
