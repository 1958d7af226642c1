"""The run's row and the keys that it holds, as projections of its events.

Rule 1: these are functions of events alone, so that ``rebuild`` makes the same rows that the appends made.
Rule 2: a text is one that every database keeps; the events have it to the letter.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from agent_es.events import AnyEvent, LlmDecided
from agent_es.state import RunState
from agent_es.values import canonical, digest

Columns = tuple[str, ...]
Values = tuple[str | float | None, ...]


class Change(NamedTuple):
    """What becomes of a run's row with an append."""

    columns: Columns
    """The one that finds the row is the last."""
    values: Values
    also: tuple[str, ...] = ()
    """What is set beside what is projected."""
    token: int | None = None
    """What the row's lease must be; None where the append is under no lease."""
    rings: bool = False
    """Whether the run is due with this, and those who wait for work are told."""

    @property
    def lets_go(self) -> bool:
        """Whether the lease ends with the append."""
        return LET_GO[0] in self.also


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


PROGRESS, HELD_PROGRESS = "claims = 0", "claims = 1"
"""Whoever got somewhere is the first who had the run since then, where it still has it."""
LET_GO = ("lease_owner = NULL", "lease_until = 0")


def row_of(state: RunState) -> Change:
    """Return the whole row."""
    first = (plain(state.agent), plain(state.goal), canonical(dict(state.tags)), _seconds(state.started_at))
    return Change(ALL, (*first, *_status_of(state), *_cursor_of(state)), rings=state.can_move)


def change_of(state: RunState, before: RunState, events: Iterable[AnyEvent], token: int | None) -> Change:
    """Return what changes in the row of a run that was started before.

    Whatever is no further attempt is progress.  Who moves a run to where it cannot move lets it go.
    """
    is_progress = state.turns > before.turns or any(type(event) is not LlmDecided for event in events)
    is_held = token is not None and state.can_move
    progress = (HELD_PROGRESS if is_held else PROGRESS,) if is_progress else ()
    if _status_of(state) == _status_of(before):
        return Change(CURSOR, _cursor_of(state), progress, token)
    lets_go = LET_GO if token is not None and not is_held else ()
    rings = token is None and state.can_move and not before.can_move
    return Change(STATUS, (*_status_of(state), *_cursor_of(state)), (*progress, *lets_go), token, rings)


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
