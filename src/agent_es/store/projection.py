"""The run's row and the keys that it holds, as projections of its events.

Rule: these are functions of events alone, so that ``rebuild`` makes the same rows that the appends made.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from agent_es.events import AnyEvent, LlmDecided
from agent_es.state import RunState
from agent_es.values import canonical, digest

ROW_COLUMNS = (
    "agent",
    "goal",
    "status",
    "waiting_for",
    "cursor",
    "wake_at",
    "tags",
    "started_at",
    "updated_at",
    "run_id",
)
"""The projected columns, the one that finds the row last."""


def row_of(state: RunState) -> tuple[str | float | None, ...]:
    """Return the values of ``ROW_COLUMNS``."""
    return (
        state.agent,
        state.goal,
        state.status.value,
        state.waiting_for,
        state.version,
        None if state.wake_at is None else state.wake_at.timestamp(),
        canonical(dict(state.tags)),
        _seconds(state.started_at),
        _seconds(state.updated_at),
        state.run_id,
    )


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
        Claim(event.tool, event.key, run_id, event.idx, digest(event.args))
        for event in events
        if type(event) is LlmDecided and event.key is not None
    ]


def _seconds(at: datetime | None) -> float:
    if at is None:
        raise ValueError("a run without events has no row")
    return at.timestamp()
