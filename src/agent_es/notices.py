"""What happened, told to whoever wants to know: one small frozen value per thing.

Rule: a notice is told after its event is durable, and nobody acts on one.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, assert_never

from agent_es.events import (
    AnswerUnusable,
    AnyEvent,
    ApprovalDenied,
    ApprovalGranted,
    ApprovalRequested,
    BudgetReserved,
    CallDelayed,
    Cancelled,
    CompensationBegan,
    CompensationEnded,
    DoubtSettled,
    EnvelopeChanged,
    FactRecorded,
    Finished,
    LlmAnswered,
    LlmDecided,
    Parked,
    Paused,
    QuestionAnswered,
    Requeued,
    Resumed,
    RunFailed,
    RunStarted,
    SignalReceived,
    Steered,
    StepInDoubt,
    StepRefused,
    Summarized,
    ToolFailed,
    ToolResult,
    UsageRecorded,
    WaitBegan,
    WaitEnded,
)
from agent_es.waits import ASKED

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


def notice_of(run_id: str, event: AnyEvent) -> Notice:  # noqa: C901, PLR0912, PLR0915  # one branch per event
    """Return what the event tells."""
    kind: Kind
    match event:
        case LlmDecided(attempt=attempt):
            kind, text = "decided" if attempt == 0 else "attempted" if attempt == 1 else "attempted_again", event.args
        case BudgetReserved():
            kind, text = "reserved", f"{event.tokens} tokens, {event.cost}"
        case UsageRecorded():
            kind, text = "used", f"{event.tokens} tokens, {event.cost}" + ("" if event.is_known else ", at most")
        case LlmAnswered():
            kind, text = "model_answered", event.model + (f", {event.tokens} tokens" if event.tokens else "")
        case AnswerUnusable():
            kind, text = "unusable", event.reason
        case FactRecorded():
            kind, text = "remembered", f"{event.name} = {event.value}"
        case Summarized():
            named = f"{event.phase}, " if event.phase else ""
            kind, text = "summarized", f"{named}steps {event.first} to {event.up_to - 1}: {event.text}"
        case StepRefused():
            kind, text = "refused", f"{event.rule}: {event.reason}"
        case CallDelayed():
            kind, text = "delayed", f"until {event.until:%Y-%m-%dT%H:%M:%SZ}"
        case ApprovalRequested():
            kind, text = "approval_requested", event.rule
        case ApprovalGranted():
            kind, text = "approved", f"by {event.by}" + (f" with {event.args}" if event.args is not None else "")
        case ApprovalDenied():
            kind, text = "denied", f"by {event.by}: {event.reason}"
        case QuestionAnswered():
            kind, text = "answered", f"{event.answer} by {event.by}"
        case Steered():
            kind, text = "steered", f"by {event.by}: {event.text}"
        case Paused():
            kind, text = "paused", f"by {event.by}" + (f": {event.reason}" if event.reason else "")
        case Resumed():
            kind, text = "let_go_on", f"by {event.by}"
        case ToolResult():
            kind, text = "completed", event.result
        case ToolFailed():
            kind, text = "failed", event.error
        case StepInDoubt():
            kind, text = "in_doubt", event.reason
        case DoubtSettled():
            kind, text = "settled", f"{event.outcome}, by {event.by}"
        case WaitBegan():
            is_question = event.signal is not None and event.signal.startswith(ASKED)
            signal = "for a person's answer" if is_question else event.signal and f"for {event.signal!r}"
            on = signal, event.child and f"for the end of run {event.child}"
            until = event.wake_at and f"until {event.wake_at:%Y-%m-%dT%H:%M:%SZ}"
            kind, text = "waiting", " ".join(part for part in (*on, until) if part)
        case WaitEnded():
            kind, text = "woken", event.reason
        case SignalReceived():
            kind, text = "signalled", f"{event.name} {event.payload}"
        case EnvelopeChanged():
            kind, text = "envelope_changed", f"by {event.by}" + (f": {event.reason}" if event.reason else "")
        case Parked():
            kind, text = "parked", event.reason
        case Requeued():
            kind, text = "requeued", f"by {event.by}"
        case CompensationBegan():
            kind, text = "compensating", f"by {event.by}" + (f": {event.reason}" if event.reason else "")
        case CompensationEnded():
            kind, text = "compensated", ""
        case Finished():
            kind, text = "finished", event.answer
        case RunFailed():
            kind, text = "run_failed", event.reason
        case Cancelled():
            kind, text = "cancelled", f"by {event.by}" + (f": {event.reason}" if event.reason else "")
        case RunStarted():
            kind, text = "started", event.goal
        case _:
            assert_never(event)
    step = {name: getattr(event, name, None) for name in ("idx", "tool", "attempt", "key")}
    return Notice(kind, run_id, event.originator_version - 1, text=text, **step)
