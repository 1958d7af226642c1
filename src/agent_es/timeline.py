"""What of a run took time, as segments between its events: questions to its decider, attempts, waits.

Rule 1: segments are a function of the journal: the same events give the same segments, one by one or all at once.
Rule 2: a segment begins and ends with an event, whose time it has; one that is still going on has no end.
Rule 3: an attempt after which another one started with no outcome in between was lost: its worker died, or was
overtaken.
Rule 4: nobody records that a decider is asked where nothing is set aside for that: such a question begins with what
happened last before its answer, arrivals from outside not counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Literal

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
    Finished,
    LlmAnswered,
    LlmDecided,
    Parked,
    Paused,
    QuestionAnswered,
    Requeued,
    Resumed,
    RunFailed,
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
from agent_es.journal import JournalEntry
from agent_es.notices import notice_of
from agent_es.state import BY_PROBE
from agent_es.values import decode
from agent_es.waits import ASKED

SegmentKind = Literal["model", "attempt", "retry", "wait", "approval", "question", "doubt", "parked", "paused"]
"""What went on: the decider was asked, a body ran, a failed or delayed call waits for its next attempt, a step waits
for the clock, a signal or a run that it started, a call for a person's yes, a question for an answer, a doubt for
whoever settles it; the whole run was parked or paused."""

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
"""What became of it: ``lost`` is an attempt, or a question to the decider, whose worker died; ``ended`` where the run
was ended, requeued or let go on."""


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
    model: str | None = None
    """What answered, where the decider said that it is a model."""
    tokens: int | None = None
    """What asking took, where the run has budgets or the decider tells it; None where nobody knows."""
    cost: Decimal | None = None
    text: str = ""
    """What there is to say of it: an error, a reason, what is waited for, who said so."""
    began_with: AnyEvent | None = field(default=None, compare=False, repr=False)
    ended_with: AnyEvent | None = field(default=None, compare=False, repr=False)
    """The events where it began and ended: what a call was given, and what it gave."""


Key = tuple[SegmentKind, int | None]

_ARRIVALS = (SignalReceived, EnvelopeChanged, Steered, Paused)
"""What comes from outside while a decider is asked, and tells nothing of when that began."""

_ANSWERS = (LlmAnswered, AnswerUnusable, Finished, RunFailed, Summarized)


@dataclass(slots=True)
class _Gate:
    """What a person must say yes to."""

    people: int
    then: str
    approved_by: list[str] = field(default_factory=list)


_OUTSIDE: tuple[SegmentKind, ...] = ("approval", "wait", "question")


class Timeline:
    """The segments of one run, as its events come: give it each of them once, in order, from the first on."""

    def __init__(self) -> None:
        self._going: dict[Key, Segment] = {}
        self._ended: list[Segment] = []
        self._before: JournalEntry | None = None
        self._since: JournalEntry | None = None
        """The event after which the decider may have been asked."""
        self._used: JournalEntry | None = None
        """What asking took, which is recorded just before what was said."""
        self._turns = 0
        self._tools: dict[int, str] = {}
        self._gates: dict[int, _Gate] = {}
        self._undoing: set[int] = set()
        self._unsure: set[int] = set()
        """The steps that are to be tried again, and whose effect may have happened."""
        self._is_cancelled = self._compensating = False
        self._refusal: str | None = None

    @property
    def open(self) -> tuple[Segment, ...]:
        """What is still going on, in the order in which it began."""
        return tuple(sorted(self._going.values(), key=_place))

    def take(self, entry: JournalEntry) -> tuple[Segment, ...]:
        """Take in an event; return the segments that it ended, or that it shows to have ended with the one before."""
        self._ended = []
        self._ask(entry)
        self._move(entry)
        self._stop(entry)
        self._before = entry
        if not isinstance(entry.event, _ARRIVALS):
            self._since = entry
        return tuple(self._ended)

    def _ask(self, entry: JournalEntry) -> None:  # noqa: C901  # one branch per event
        """Take in what an event tells of the questions to the decider."""
        event = entry.event
        if self._used is not None and not self._is_answer(event):
            self._end(self._used, "model", None, "ended", "nothing was done with the answer")
        match event:
            case BudgetReserved():
                self._end(entry, "model", None, "lost")
                self._begin(entry, "model", turn=event.turn)
            case UsageRecorded(is_known=False):
                self._end(entry, "model", None, "lost", "nobody knows what became of it")
            case UsageRecorded():
                self._begin(self._since or entry, "model", turn=event.turn)
                self._note(tokens=event.tokens, cost=event.cost)
                self._used = entry
            case LlmAnswered():
                self._answered(entry, "done", turn=event.turn, model=event.model)
            case AnswerUnusable():
                self._answered(entry, "unusable", event.reason, turn=event.turn, model=event.model)
            case Summarized():
                self._end(entry, "model", None, "done", "summarized")
            case LlmDecided() if self._is_answer(event):
                self._decided(entry, event)
            case Finished() if not self._is_told:
                self._answered(entry, "done")
            case RunFailed() if not self._is_told and event.reason != self._refusal:
                self._answered(entry, "failed", event.reason)
            case StepRefused() if self._refusal is None:
                self._refusal = f"refused by {event.rule}: {event.reason}"

    def _is_answer(self, event: AnyEvent) -> bool:
        """Whether an event tells what the decider said: a further attempt does not, nor does an undoing."""
        if isinstance(event, LlmDecided):
            return event.turn >= self._turns and event.undoes is None
        return isinstance(event, _ANSWERS)

    @property
    def _is_told(self) -> bool:
        """Whether what is decided was read from the answer just before it."""
        return self._before is not None and isinstance(self._before.event, LlmAnswered)

    def _decided(self, entry: JournalEntry, event: LlmDecided) -> None:
        self._turns = event.turn + 1
        self._refusal = None
        if not self._is_told:
            self._answered(entry, "done", turn=event.turn)

    def _answered(
        self, entry: JournalEntry, end: SegmentEnd, text: str = "", *, turn: int | None = None, model: str = ""
    ) -> None:
        self._begin(self._since or entry, "model", turn=self._turns if turn is None else turn)
        self._note(model=model or None)
        self._end(entry, "model", None, end, text)

    def _note(self, **what: object) -> None:
        going = self._going["model", None]
        self._going["model", None] = replace(going, **what)  # type: ignore[arg-type]  # fields of it

    def _move(self, entry: JournalEntry) -> None:  # noqa: C901, PLR0912  # one branch per event
        """Take in what an event tells of a step."""
        match entry.event:
            case LlmDecided() as event:
                self._tools[event.idx] = event.tool
                if event.undoes is not None:
                    self._undoing.add(event.idx)
                    self._end(entry, "model", None, "lost")
                if event.attempt:
                    self._end_step(entry, event.idx, attempt="lost", retry="done")
                    self._begin(entry, "attempt", event.idx, event)
            case ToolResult() as event:
                self._end_step(entry, event.idx, attempt="done")
            case ToolFailed() as event:
                self._failed(entry, event)
            case StepInDoubt() as event:
                self._doubts(entry, event.idx, event.reason, event)
            case DoubtSettled() as event:
                is_lost = event.by == BY_PROBE  # a body that says so itself has come to its end
                end: SegmentEnd = "lost" if is_lost else "settled"
                self._end_step(entry, event.idx, attempt=end, retry="settled", text=_told(entry))
            case CallDelayed() as event:
                self._begin(entry, "retry", event.idx, event, text=_told(entry))
            case WaitBegan(idx=int()) as event:
                self._waits(entry, event)
            case WaitEnded(idx=int() as idx, reason=reason):
                self._end(entry, "wait", idx, "woken", reason)
                self._end(entry, "question", idx, "woken", reason)
            case QuestionAnswered() as event:
                self._end(entry, "question", event.idx, "answered", f"by {event.by}")
            case ApprovalRequested() as event:
                self._end_step(entry, event.idx, attempt="settled")
                self._gates[event.idx] = _Gate(event.people, event.then)
                self._begin(entry, "approval", event.idx, event, text=event.rule)
            case ApprovalGranted() as event:
                self._granted(entry, event)
            case ApprovalDenied() as event:
                self._denied(entry, event)

    def _failed(self, entry: JournalEntry, event: ToolFailed) -> None:
        error = decode(event.error)
        text = f"{error.get('type')}: {error.get('message')}"
        is_sure = error.get("applied") is False
        if event.retry_at is not None and self._is_cancelled and not is_sure:
            self._doubts(entry, event.idx, text, event, attempt="failed")
            return
        self._end_step(entry, event.idx, attempt="failed", text=text)
        if event.retry_at is not None and not (is_sure and self._gives_up(event.idx)):
            self._begin(entry, "retry", event.idx, event, text=text)
            if not is_sure:
                self._unsure.add(event.idx)

    def _doubts(
        self,
        entry: JournalEntry,
        idx: int,
        text: str,
        event: AnyEvent | Segment,
        attempt: SegmentEnd = "in_doubt",
    ) -> None:
        self._end(entry, "attempt", idx, attempt, text)
        self._end(entry, "retry", idx, "in_doubt", text)
        self._begin(entry, "doubt", idx, event, text=text)

    def _waits(self, entry: JournalEntry, event: WaitBegan) -> None:
        idx = event.idx or 0
        self._end_step(entry, idx, attempt="done")
        if not self._gives_up(idx):
            is_question = event.signal is not None and event.signal.startswith(ASKED)
            self._begin(entry, "question" if is_question else "wait", idx, event, text=_told(entry))

    def _granted(self, entry: JournalEntry, event: ApprovalGranted) -> None:
        gate = self._gates.setdefault(event.idx, _Gate(1, "deny"))
        gate.approved_by = [*([] if event.args is not None else gate.approved_by), event.by]
        if len(gate.approved_by) >= gate.people:
            self._end(entry, "approval", event.idx, "approved", f"by {', '.join(gate.approved_by)}")

    def _denied(self, entry: JournalEntry, event: ApprovalDenied) -> None:
        self._end(entry, "approval", event.idx, "denied", _told(entry))
        if event.is_expired and (gate := self._gates.get(event.idx)) and gate.then == "park":
            self._begin(entry, "parked", text=f"nobody answered in time whether {event.tool} may be called")

    def _stop(self, entry: JournalEntry) -> None:  # noqa: C901  # one branch per event
        """Take in what an event tells of the whole run."""
        match entry.event:
            case Paused():
                self._begin(entry, "paused", text=_told(entry))
            case Resumed():
                self._end(entry, "paused", None, "ended", _told(entry))
            case Parked():
                self._end(entry, "model", None, "ended")
                self._begin(entry, "parked", text=_told(entry))
            case Requeued():
                self._end(entry, "parked", None, "ended", _told(entry))
            case CompensationBegan():
                self._compensating = True
                self._let_go(entry)
            case Cancelled():
                self._is_cancelled = True
                self._let_go(entry)
                self._end(entry, "model", None, "ended")
                for kind, idx in [*self._going]:
                    if kind in ("attempt", "retry") and idx is not None:
                        why = "the run was cancelled while it was under way"
                        self._doubts(entry, idx, why, self._going[kind, idx])
            case Finished() | RunFailed() | CompensationEnded() as event:
                self._compensating = self._compensating and not isinstance(event, CompensationEnded)
                for kind, idx in [*self._going]:
                    self._end(entry, kind, idx, "ended")

    def _let_go(self, entry: JournalEntry) -> None:
        """End what is surely not under way: it will not be made."""
        for kind, idx in [*self._going]:
            is_sure = kind == "retry" and idx not in self._unsure
            if kind in ("approval", "question", "wait", "parked", "paused") or is_sure:
                self._end(entry, kind, idx, "ended", _told(entry))

    def _gives_up(self, idx: int) -> bool:
        """Whether what surely did not happen is not tried again, and nobody waits for what a step waits for."""
        return self._is_cancelled or (self._compensating and idx not in self._undoing)

    def _begin(
        self,
        entry: JournalEntry,
        kind: SegmentKind,
        idx: int | None = None,
        of: AnyEvent | Segment | None = None,
        *,
        turn: int | None = None,
        text: str = "",
    ) -> None:
        """Note that something goes on from now on, where it does not already."""
        if (kind, idx) not in self._going:
            self._going[kind, idx] = Segment(
                kind=kind,
                began_seq=entry.seq,
                began_at=entry.at,
                idx=idx,
                turn=turn if turn is not None else getattr(of, "turn", None),
                tool=None if idx is None else self._tools.get(idx),
                attempt=getattr(of, "attempt", None),
                text=text,
                began_with=entry.event,
            )

    def _end(self, entry: JournalEntry, kind: SegmentKind, idx: int | None, end: SegmentEnd, text: str = "") -> None:
        """Note that something has ended, where it went on."""
        going = self._going.pop((kind, idx), None)
        if going is None:
            return
        if kind == "model":
            self._used = None
        if kind == "retry" and idx is not None:
            self._unsure.discard(idx)
        said = "; ".join(part for part in (going.text, text) if part)
        self._ended.append(
            replace(going, ended_seq=entry.seq, ended_at=entry.at, end=end, text=said, ended_with=entry.event)
        )

    def _end_step(
        self, entry: JournalEntry, idx: int, *, attempt: SegmentEnd, retry: SegmentEnd = "ended", text: str = ""
    ) -> None:
        """Note that whatever went on at a step has ended."""
        self._end(entry, "attempt", idx, attempt, text)
        self._end(entry, "retry", idx, retry, text)
        self._end(entry, "doubt", idx, "settled", text)
        for kind in _OUTSIDE:
            self._end(entry, kind, idx, "ended", text)


def segments(entries: Iterable[JournalEntry]) -> list[Segment]:
    """Return what of a run took time, in the order in which it began; n events cost n.

    The entries are those of one run, from its first on.  What is still going on has its place among the others.
    """
    timeline = Timeline()
    ended = [segment for entry in entries for segment in timeline.take(entry)]
    return sorted([*ended, *timeline.open], key=_place)


def _place(segment: Segment) -> tuple[int, int]:
    return segment.began_seq, -1 if segment.idx is None else segment.idx


def _told(entry: JournalEntry) -> str:
    return notice_of(entry.run_id, entry.event).text
