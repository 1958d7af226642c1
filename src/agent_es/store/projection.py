"""The run's row, its tags, what was delivered to it and the keys that it holds, as projections of its events.

Rule 1: these are functions of events alone, so that ``rebuild`` makes the same rows that the appends made.
Rule 2: a text is one that every database keeps; the events have it to the letter.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from agent_es.events import AnyEvent, ApprovalGranted, EnvelopeChanged, LlmDecided, Paused, SignalReceived, Steered
from agent_es.state import RunState
from agent_es.store.items import Item, Place, items_of
from agent_es.store.spending import MOST, USED, Spend, nanos, spends_of
from agent_es.values import canonical, digest, valid_unicode

Columns = tuple[str, ...]
Values = tuple[str | float | None, ...]


class Tag(NamedTuple):
    """A run has this tag."""

    name: str
    value: str
    run_id: str


class Delivery(NamedTuple):
    """A signal was recorded under this id."""

    run_id: str
    delivery_id: str
    seq: int
    digest: str


class Change(NamedTuple):
    """What becomes of a run's row with an append, and of what stands beside it."""

    columns: Columns
    """The one that finds the row is the last."""
    values: Values
    also: tuple[str, ...] = ()
    """What is set beside what is projected."""
    token: int | None = None
    """What the row's lease must be; None where the append is under no lease."""
    rings: bool = False
    """Whether the run is due with this, and those who wait for work are told."""
    tags: tuple[Tag, ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    spends: tuple[Spend, ...] = ()
    opens: tuple[Item, ...] = ()
    """What waits for a person from now on."""
    closes: frozenset[Place] = frozenset()
    """What does not any more."""


ALL: Columns = (
    "agent",
    "goal",
    "tags",
    "envelope_id",
    "started_at",
    *USED,
    "status",
    "waiting_for",
    "wake_at",
    "cursor",
    "updated_at",
    "run_id",
)
"""Every projected column."""
STATUS: Columns = ALL[7:]
"""What an event may change that moves a run to another status."""
CURSOR: Columns = ALL[10:]
"""What every other event changes: nothing that has an index, which would be written too."""


MAX_INDEXED = 200
"""Characters of what an index of every database holds."""

PROGRESS, HELD_PROGRESS = "claims = 0", "claims = 1"
"""Whoever got somewhere is the first who had the run since then, where it still has it."""
NOBODY_LAPSED = "lapsed_owners = NULL"
"""With a turn, what was called in it is over."""
LET_GO = ("lease_owner = NULL", "lease_until = 0")


_STANDS_STILL = frozenset({LlmDecided, SignalReceived, EnvelopeChanged, Steered, Paused})
"""What gets a run nowhere: a further attempt, and what comes from outside."""


def row_of(state: RunState, events: Iterable[AnyEvent] = ()) -> Change:
    """Return the whole row of a run with these events."""
    first = (
        *(plain(state.agent), plain(state.goal), canonical(dict(state.tags))),
        *(_envelope_of(state), _seconds(state.started_at)),
    )
    return Change(
        ALL,
        (*first, *_used_of(state), *_status_of(state), *_cursor_of(state)),
        rings=state.can_move,
        tags=tuple(sorted({tag_of(name, value, state.run_id) for name, value in state.tags.items()})),
        deliveries=_deliveries_of(state.run_id, events),
        opens=items_of(state, RunState(), events)[0],
        spends=tuple([spend._replace(limit=None) for spend in spends_of(RunState(), events)]),  # it has happened
    )


def change_of(state: RunState, before: RunState, events: Sequence[AnyEvent], token: int | None) -> Change:
    """Return what changes in the row of a run that was started before.

    Whatever is no further attempt, and comes from whoever moves the run, is progress.  Who moves a run to where it
    cannot move lets it go.
    """
    is_progress = state.turns > before.turns or any(type(event) not in _STANDS_STILL for event in events)
    is_held = token is not None and state.can_move
    progress = (HELD_PROGRESS if is_held else PROGRESS,) if is_progress else ()
    if state.turns > before.turns:
        progress = (*progress, NOBODY_LAPSED)
    opens, closes = items_of(state, before, events)
    beside: dict[str, Any] = {
        "deliveries": _deliveries_of(state.run_id, events),
        "spends": spends_of(before, events),
        "opens": opens,
        "closes": closes,
    }
    columns: Columns = ()
    values: Values = ()
    if (state.tokens, state.cost) != (before.tokens, before.cost):
        columns, values = USED, _used_of(state)
    if state.envelope_json != before.envelope_json:
        values = (*values, _envelope_of(state), *_status_of(state), *_cursor_of(state))
        return Change((*columns, "envelope_id", *STATUS), values, progress, token, **beside)
    if _status_of(state) == _status_of(before):
        return Change(columns + CURSOR, values + _cursor_of(state), progress, token, **beside)
    lets_go = LET_GO if token is not None and ends_lease(state, before) else ()
    rings = token is None and state.can_move and not before.can_move
    values = (*values, *_status_of(state), *_cursor_of(state))
    return Change(columns + STATUS, values, (*progress, *lets_go), token, rings, **beside)


def ends_lease(state: RunState, before: RunState) -> bool:
    """Say whether who moved a run from one state to another under a lease lets it go with that append."""
    return not state.can_move and _status_of(state) != _status_of(before)


def tag_of(name: str, value: str, run_id: str = "") -> Tag:
    """Return a tag as its table has it."""
    return Tag(_indexed(name), _indexed(value), run_id)


def _indexed(text: str) -> str:
    """Return what stands for a text in an index: its digest, where it is too long."""
    whole = plain(valid_unicode(text))
    return whole if len(whole) <= MAX_INDEXED else digest(whole)


def delivery_of(run_id: str, delivery_id: str, seq: int, name: str, payload_json: str) -> Delivery:
    """Return the delivery of a signal."""
    return Delivery(run_id, delivery_id, seq, digest(canonical([name, payload_json])))


def _deliveries_of(run_id: str, events: Iterable[AnyEvent]) -> tuple[Delivery, ...]:
    return tuple(
        delivery_of(run_id, event.delivery_id, event.originator_version - 1, event.name, event.payload)
        for event in events
        if type(event) is SignalReceived
    )


def _envelope_of(state: RunState) -> str | None:
    return None if state.envelope_json is None else digest(state.envelope_json)


def _used_of(state: RunState) -> Values:
    return min(state.tokens, MOST), min(nanos(state.cost), MOST)


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
    """Return the keys that the events claim: every decision that carries one, a person's among them."""
    return [
        Claim(plain(event.keyed_as or event.tool), plain(event.key), run_id, event.idx, digest(event.args))
        for event in events
        if (type(event) is LlmDecided or type(event) is ApprovalGranted) and event.key is not None and event.args
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
