"""The run's row and the keys that it holds, as projections of its events.

Rule 1: these are functions of events alone, so that ``rebuild`` makes the same rows that the appends made.
Rule 2: a text is one that every database keeps; the events have it to the letter.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from agent_es.events import AnyEvent, LlmDecided
from agent_es.state import RunState
from agent_es.values import canonical, digest

Columns = tuple[str, ...]
Values = tuple[str | float | None, ...]
Change = tuple[Columns, Values]
"""Columns of a row, the one that finds the row last, and their values."""

ALL: Columns = (
    "agent",
    "goal",
    "tags",
    "started_at",
    "status",
    "waiting_for",
    "wake_at",
    "cursor",
    "updated_at",
    "run_id",
)
"""Every projected column."""
STATUS: Columns = ALL[4:]
"""What an event may change that moves a run to another status."""
CURSOR: Columns = ALL[7:]
"""What every other event changes: nothing that has an index, which would be written too."""


def row_of(state: RunState) -> Change:
    """Return the whole row."""
    first = (plain(state.agent), plain(state.goal), canonical(dict(state.tags)), _seconds(state.started_at))
    return ALL, (*first, *_status_of(state), *_cursor_of(state))


def change_of(state: RunState, before: RunState) -> Change:
    """Return what changes in the row of a run that was started before."""
    if _status_of(state) == _status_of(before):
        return CURSOR, _cursor_of(state)
    return STATUS, (*_status_of(state), *_cursor_of(state))


def _status_of(state: RunState) -> Values:
    return state.status.value, state.waiting_for, None if state.wake_at is None else _seconds(state.wake_at)


def _cursor_of(state: RunState) -> Values:
    return state.version, _seconds(state.updated_at), state.run_id


@dataclass(frozen=True, slots=True)
class Claim:
    """A step holds a key: in the whole store, this intent once."""

    tool: str
    key: str
    run_id: str
    idx: int
    digest: str


def claims_of(run_id: str, events: Iterable[AnyEvent]) -> list[Claim]:
    """Return the keys that the events claim: every decision that carries one."""
    return [
        Claim(plain(event.keyed_as or event.tool), plain(event.key), run_id, event.idx, digest(event.args))
        for event in events
        if type(event) is LlmDecided and event.key is not None
    ]


def plain(text: str) -> str:
    r"""Return the text without NUL, which PostgreSQL keeps in no text.

    >>> plain("a\0b") == "a\ufffdb"
    True
    """
    return text.replace("\0", "\ufffd")


def _seconds(at: datetime | None) -> float:
    if at is None:
        raise ValueError("a run without events has no row")
    return at.timestamp()
