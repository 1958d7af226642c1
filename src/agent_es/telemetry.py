"""What happened, told to whoever wants to know: one small frozen value per thing.

Rule: a notice is told after its event is durable, and nobody acts on one.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal[
    "started",
    "resumed",
    "already_over",
    "reserved",
    "used",
    "model_answered",
    "unusable",
    "remembered",
    "summarized",
    "decided",
    "attempted",
    "attempted_again",
    "memoized",
    "completed",
    "failed",
    "refused",
    "delayed",
    "approval_requested",
    "approved",
    "denied",
    "answered",
    "steered",
    "paused",
    "let_go_on",
    "in_doubt",
    "settled",
    "waiting",
    "woken",
    "signalled",
    "envelope_changed",
    "parked",
    "requeued",
    "compensating",
    "compensated",
    "finished",
    "run_failed",
    "cancelled",
    "ready",
    "lease_lost",
    "handed_back",
    "skipped",
    "step_failed",
    "store_failed",
]


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that happened to a run, or to a worker (no ``run_id``); ``seq`` is -1 outside of the journal."""

    kind: Kind
    run_id: str
    seq: int
    idx: int | None = None
    tool: str | None = None
    attempt: int | None = None
    key: str | None = None
    text: str = ""

    def __str__(self) -> str:
        step = "" if self.idx is None else f" step {self.idx}" + (f" {self.tool}" if self.tool else "")
        attempt = "" if not self.attempt else f" attempt {self.attempt}"
        key = "" if self.key is None else f" key {self.key}"
        text = f": {self.text}" if self.text else ""
        where = f"{self.run_id} seq {self.seq} " if self.seq >= 0 else f"{self.run_id} ".lstrip()
        return f"{where}{self.kind.replace('_', ' ')}{step}{attempt}{key}{text}"


class OnEvent(Protocol):
    """A callable that is told every notice."""

    def __call__(self, notice: Notice, /) -> object:
        """Take note."""
        ...


def ignore(_: Notice, /) -> None:
    """Take no note."""
