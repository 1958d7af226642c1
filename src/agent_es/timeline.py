"""What of a run took time, as segments between its events: questions to its decider, attempts, waits, what people were asked.

Rule 1: segments are a function of the journal: the same events give the same segments, one by one or all at once.
Rule 2: a segment begins and ends with an event, whose time it has; one that is still going on has no end.
Rule 3: an attempt after which another one started with no outcome in between was lost: its worker died or was overtaken.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

SegmentKind = Literal["model", "attempt", "retry", "wait", "approval", "question", "doubt", "parked", "paused"]
"""What went on: the decider was asked, a body ran, a failed attempt waits for the next one, a step waits for the clock or a signal,
a call for a person's yes, a question for an answer, a doubt for whoever settles it; the whole run was parked or paused."""

SegmentEnd = Literal[
    "open",
    "done",
    "failed",
    "lost",
    "in_doubt",
    "refused",
    "unusable",
    "approved",
    "denied",
    "answered",
    "woken",
    "settled",
    "ended",
]
"""What became of it: ``lost`` is an attempt whose worker died; ``ended`` where the run was ended, requeued or let go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Something that went on between two events of a run."""

    kind: SegmentKind
    began_seq: int
    began_at: datetime
    ended_seq: int | None = None
    ended_at: datetime | None = None
    end: SegmentEnd = "open"
    turn: int | None = None
    idx: int | None = None
    """The step that it is about; None for the whole run, and for a question to its decider."""
    tool: str | None = None
    attempt: int | None = None
    text: str = ""
    """What there is to say of it: an error, a reason, what is waited for, who said so."""
