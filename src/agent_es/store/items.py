"""What waits for a person, of all runs, as a projection of their events.

Rule: what stands open is a function of a run's state; since when, of its events.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from agent_es.events import (
    AnyEvent,
    ApprovalDenied,
    ApprovalGranted,
    ApprovalRequested,
    Cancelled,
    DoubtSettled,
    Parked,
    Paused,
    StepInDoubt,
    WaitBegan,
)
from agent_es.inbox import WHOLE, ItemKind
from agent_es.state import RunState, StepStatus
from agent_es.waits import ASKED

Place = tuple[int, ItemKind]
"""Of a step, or ``WHOLE`` of the run: what is wanted of a person."""

_ASKING: frozenset[StepStatus] = frozenset({"gated", "in_doubt", "waiting"})


class Item(NamedTuple):
    """Something of a run waits for a person."""

    run_id: str
    idx: int
    kind: ItemKind
    since: float


def items_of(
    state: RunState, before: RunState, events: Iterable[AnyEvent]
) -> tuple[tuple[Item, ...], frozenset[Place]]:
    """Return what waits for a person since these events, and what does not any more."""
    there, was_there = frozenset(open_in(state)), frozenset(open_in(before))
    if not there and not was_there:
        return (), frozenset()
    since = _since(state, was_there, events)
    opened = tuple(
        [Item(state.run_id, *place, since[place].timestamp()) for place in sorted(there) if place in since]
    )
    return opened, was_there - there


def open_in(state: RunState) -> Iterator[Place]:
    """Yield what of a run waits for a person."""
    if state.parked is not None:
        yield WHOLE, "parked"
    if state.paused is not None:
        yield WHOLE, "paused"
    for step in state.steps.of_latest_turn(_ASKING):
        if step.status == "gated":
            yield step.idx, "approval"
        elif step.status == "in_doubt":
            yield step.idx, "doubt"
        elif step.asks_person:
            yield step.idx, "question"


def _since(state: RunState, was_there: Collection[Place], events: Iterable[AnyEvent]) -> Mapping[Place, datetime]:
    """Return when each began to wait that these events let wait; a doubt that was there stays as old as it is."""
    since: dict[Place, datetime] = {}
    for event in events:
        match event:
            case (
                ApprovalRequested(idx=idx) | ApprovalGranted(idx=idx, args=str())
            ):  # other arguments, another question
                since[idx, "approval"] = event.timestamp
            case StepInDoubt(idx=idx):
                since[idx, "doubt"] = event.timestamp
            case DoubtSettled(idx=idx):
                since.pop((idx, "doubt"), None)
            case WaitBegan(idx=int(idx), signal=str(signal)) if signal.startswith(ASKED):
                since[idx, "question"] = event.timestamp
            case Parked() | ApprovalDenied(is_expired=True):
                since[WHOLE, "parked"] = event.timestamp
            case Paused():
                since[WHOLE, "paused"] = event.timestamp
            case Cancelled():
                for place in [place for place in open_in(state) if place[1] == "doubt" and place not in was_there]:
                    since.setdefault(place, event.timestamp)
    return since
