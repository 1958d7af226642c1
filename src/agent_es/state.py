"""The state of a run, and the fold that builds it.

Rule 1: no I/O, no clock, no randomness.  The same events give the same state.
Rule 2: ``evolve`` never refuses what happened; commands refuse what may not.
Rule 3: folding n events costs n: ``fold`` thaws a state into a draft, applies, and freezes once.  Finished
steps are tuples of atoms, which the garbage collector does not track, in a list that states share: a state
sees only its own length of it.  ``Step`` objects are made when somebody looks.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from operator import attrgetter
from typing import Any, Literal, NamedTuple, assert_never, cast, overload

from agent_es.errors import RunHasFailed, RunUnfinished
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
from agent_es.values import Shape, canonical, decode
from agent_es.waits import ASKED, Woken


class Status(StrEnum):
    """Where a run is in its life."""

    PENDING = "pending"
    """Nothing is decided yet."""
    RUNNING = "running"
    """It can go on now."""
    WAITING = "waiting"
    """Something must come first: ``waiting_for`` says what."""
    DONE = "done"
    """It came to an answer."""
    FAILED = "failed"
    """The decider gave up; a person may requeue it."""
    CANCELLED = "cancelled"
    """It was ended from outside, or its effects were undone."""


OVER = frozenset({Status.DONE, Status.FAILED, Status.CANCELLED})

WaitingFor = Literal["clock", "signal", "approval", "doubt", "retry", "person"]

StepStatus = Literal["queued", "started", "retrying", "waiting", "gated", "done", "failed", "in_doubt"]

Awaited = tuple[datetime | None, str | None, str | None]
"""When a waiting step goes on at the latest, on which signal before that, and which run's end that is."""


class Signal(NamedTuple):
    """A named event that came for a run, and that nothing has waited for yet."""

    seq: int
    name: str
    payload_json: str
    delivery_id: str
    received_at: datetime

    @property
    def payload(self) -> Any:
        """What it brought."""
        return decode(self.payload_json)


class Message(NamedTuple):
    """What a person had to say while a run was under way."""

    seq: int
    turn: int
    """The turn that was decided next: its decider is the first to see it."""
    text: str
    by: str
    at: datetime


class ModelAnswer(NamedTuple):
    """What a model said for a turn."""

    turn: int
    first: int
    """The first step of that turn."""
    model: str
    answer_json: str
    """The whole message, in the form of whoever asked."""
    finish_reason: str | None
    tokens: int | None
    """How long the conversation was then, this answer with it, as the model counted."""
    request_json: str | None
    """What it was asked, where that was kept."""


class Summary(NamedTuple):
    """What stands for a phase that was closed."""

    first: int
    up_to: int
    """The steps from ``first`` on and before this one."""
    text: str
    phase: str


class Fact(NamedTuple):
    """Something that is to be remembered."""

    value_json: str
    idx: int
    """The step that found it."""


class Gate(NamedTuple):
    """What a person must say yes to, or has: one call, and who may answer."""

    rule: str
    digest: str
    """Of the tool, the arguments and the key: what is approved is this, and nothing else."""
    args_json: str
    """What the body would get, as a person is shown it."""
    said_json: str
    """The arguments as the decider gave them."""
    by: tuple[tuple[str, ...], ...]
    people: int
    expires_at: datetime | None
    then: Literal["deny", "park"]
    approved_by: tuple[str, ...] = ()
    """Who has said yes to it by now."""
    edited_by: str | None = None
    """Who gave these arguments, where that was no decider."""

    def is_expired(self, now: datetime) -> bool:
        """Whether it is too late to answer."""
        return self.expires_at is not None and self.expires_at <= now

    @property
    def args(self) -> Mapping[str, Any]:
        """What the body would get."""
        args: dict[str, Any] = decode(self.args_json)
        return args


class Answer(NamedTuple):
    """What became of a question: the result of the step that asked it."""

    reason: Literal["answered", "clock"]
    answer: Any
    """It may well be something that counts as false."""
    by: str | None


ENDED = "ended:"
"""How the name of a signal begins that the store alone sends."""


def ended(child: str) -> str:
    """Return the name of the signal that tells a run of the end of one that it started.

    >>> ended("run-7f3a.2")
    'ended:run-7f3a.2'
    """
    return f"{ENDED}{child}"


class Step(NamedTuple):
    """One tool call of a run: its decision, and what became of it."""

    idx: int
    turn: int
    tool: str
    args_json: str
    key: str | None
    attempt: int
    call_id: str | None
    status: StepStatus
    value_json: str | None
    """The result, the error, or the reason of the doubt, as the journal holds it."""
    started_at: datetime | None = None
    """When the latest attempt started."""
    keyed_at: datetime | None = None
    """When the first attempt under the present key started."""
    settled: int = 0
    """The attempt after which a person said that it did not happen: the attempts count anew from there."""
    retry_at: datetime | None = None
    """When the next attempt is due, where the step is retrying."""
    undoes: int | None = None
    """The step whose effect this one undoes."""
    keyed_as: str | None = None
    """The name under which the key is held, where the tool has had another."""
    awaited: Awaited | None = None
    """What the step waits for, or waited for."""
    approval: Gate | None = None
    """What a person must say yes to before it runs, or has."""

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments of its body: as the decider gave them, or as a person said yes to them."""
        args: dict[str, Any] = decode(self.args_json)
        return args

    @property
    def is_open(self) -> bool:
        """Whether the step has no outcome yet."""
        return self.status in _OPEN

    @property
    def has_its_time(self) -> bool:
        """Whether a limit that is shared has given the step the time at which it is to start."""
        return self.status == "retrying" and self.awaited is not None

    @property
    def wake_at(self) -> datetime | None:
        """When a waiting step goes on at the latest."""
        return self.awaited[0] if self.awaited else None

    @property
    def awaits(self) -> str | None:
        """The name of the signal on which a waiting step goes on."""
        return self.awaited[1] if self.awaited else None

    @property
    def child(self) -> str | None:
        """The run that this step started, and waits for."""
        return self.awaited[2] if self.awaited else None

    @property
    def asks_person(self) -> bool:
        """Whether the step is a question to a person."""
        return self.awaits is not None and self.awaits.startswith(ASKED)

    @property
    def woken(self) -> Woken | None:
        """What ended the wait of a step that waited and is done; None for any other, and for a question."""
        if self.awaited is None or self.awaited[2] is not None or self.status != "done" or self.asks_person:
            return None
        return Woken(**self.result)

    @property
    def answered(self) -> Answer | None:
        """What became of a question that is done; None for any other step."""
        return Answer(**self.result) if self.asks_person and self.status == "done" else None

    @property
    def said_json(self) -> str:
        """The arguments as the decider gave them, whatever a person said yes to."""
        return self.approval.said_json if self.approval else self.args_json

    @property
    def attempts_spent(self) -> int:
        """How many attempts count against the bound."""
        return self.attempt - self.settled

    @property
    def result(self) -> Any:
        """What a done step gave, as JSON reads it: the same on the first run and after every resume."""
        return decode(self.value_json) if self.status == "done" and self.value_json else None

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The ``type`` and ``message`` of a failed step or attempt, and whether its effect was ``applied``."""
        return decode(self.value_json) if self.status in ("failed", "retrying") and self.value_json else None

    @property
    def gate(self) -> str | None:
        """Which rules of the envelope ask for a person's yes to a gated step."""
        return self.value_json if self.status == "gated" else None

    @property
    def doubt(self) -> str | None:
        """Why nobody knows whether a step in doubt happened."""
        return self.value_json if self.status == "in_doubt" else None


_Atoms = tuple[
    int, int, str, str, str | None, int, str | None, StepStatus, str | None,
    datetime | None, datetime | None, int, datetime | None, int | None, str | None, Awaited | None, Gate | None,
]  # fmt: skip


BY_PROBE = "probe"
"""Who settled a doubt where no person did: the attempts before it still count."""

_ACTIVE: AbstractSet[StepStatus] = frozenset({"queued", "started", "retrying"})
_WAITING: AbstractSet[StepStatus] = frozenset({"waiting"})
_IN_DOUBT: AbstractSet[StepStatus] = frozenset({"in_doubt"})
_GATED: AbstractSet[StepStatus] = frozenset({"gated"})
_OPEN = _ACTIVE | _WAITING | _IN_DOUBT | _GATED


class Past(list["_Atoms"]):
    """The steps of earlier turns; how many characters they have is added up where somebody asks, and once."""

    __slots__ = ("_sums",)

    def __init__(self, steps: Iterable["_Atoms"] = ()) -> None:
        super().__init__(steps)
        self._sums = [0]

    def weight(self, first: int, size: int) -> int:
        """Return the characters of the steps from the first on, of so many."""
        sums = self._sums
        while len(sums) <= size:
            sums.append(sums[-1] + _weight(self[len(sums) - 1]))
        return sums[size] - sums[min(first, size)]


class Steps(Sequence[Step]):
    """The steps of a run in decision order, whatever order they ended in: a frozen view."""

    __slots__ = ("_current", "_past", "_size")

    def __init__(self, past: list[_Atoms], size: int, current: tuple[_Atoms, ...]) -> None:
        self._past = past if type(past) is Past else Past(past)
        self._size = size
        self._current = current

    def __len__(self) -> int:
        return self._size + len(self._current)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, index: int | slice) -> Step | tuple[Step, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"step {index} of {len(self)}")
        if position < self._size:
            return Step._make(self._past[position])
        return Step._make(self._current[position - self._size])

    def of_latest_turn(self, statuses: AbstractSet[StepStatus]) -> tuple[Step, ...]:
        """Return the steps of the turn that was decided last which have one of these statuses."""
        return tuple([Step._make(atoms) for atoms in self._current if atoms[7] in statuses])

    def weight(self, first: int) -> int:
        """Return the characters of the calls from that step on, and of what became of them."""
        return self._past.weight(first, self._size) + sum(
            _weight(atoms) for atoms in self._current if atoms[0] >= first
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Steps) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Steps({[*self]!r})"


def parts_of(steps: Steps) -> tuple[list[_Atoms], tuple[_Atoms, ...]]:
    """Return the steps of earlier turns and those of the latest, taken apart: ``Steps(past, len(past), current)``."""
    return steps._past[: steps._size], steps._current  # noqa: SLF001  # halves of one thing


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run as folded so far: a value."""

    run_id: str = ""
    agent: str = ""
    agent_version: str = ""
    goal: str = ""
    input_json: str = "null"
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int = 0
    """How many events the journal holds; the last one's ``seq`` is one less."""
    status: Status = Status.PENDING
    waiting_for: WaitingFor | None = None
    wake_at: datetime | None = None
    """When a run that waits goes on at the latest; None where the clock alone does not wake it."""
    rests_until: datetime | None = None
    """When the first of the steps that are retrying is due: until then none of them goes on."""
    signals: tuple[Signal, ...] = ()
    """What came for the run and was not waited for yet, in the order in which it came."""
    parent: str | None = None
    """The run that started this one, and waits for its end."""
    envelope_json: str | None = None
    """What the run may do and spend, as the journal holds it; None where it may do anything."""
    called: Mapping[str, int] = field(default_factory=dict, hash=False)
    """How many calls of each tool were decided and not refused, where the run has an envelope."""
    tokens: int = 0
    """What asking its decider took, all in all."""
    cost: Decimal = Decimal(0)
    reserved: tuple[int, Decimal] | None = None
    """The tokens and the cost that are set aside for the question that is being asked."""
    messages: tuple[Message, ...] = ()
    """What people had to say, in the order in which it came."""
    remembered: Mapping[str, Fact] = field(default_factory=dict, hash=False)
    """What is remembered, in the order of the names: calls of one turn end in any order.  See ``fact``, ``facts``."""
    summaries: tuple[Summary, ...] = ()
    """What stands for the phases that were closed, in order."""
    answers: tuple[ModelAnswer, ...] = ()
    """What a model said for each turn that no summary stands for."""
    misheard: tuple[tuple[int, str], ...] = ()
    """Why answers to the question that was asked last could not be used, and of which turn that was."""
    paused: str | None = None
    """Who stopped the run, and why, until somebody lets it go on."""
    parked: str | None = None
    """Why a person must see to the run."""
    sent_back_at: int = 0
    """How many steps the run had when a person last sent it back to work."""
    compensating: bool = False
    """Whether the run undoes its finished effects."""
    turns: int = 0
    steps: Steps = field(default_factory=lambda: Steps([], 0, ()))
    answer_json: str | None = None
    failure: str | None = None
    started_at: datetime | None = None
    updated_at: datetime | None = None
    resumed: bool = field(default=False, compare=False)
    """Whether the call that returned this state found the run already there; no event says it."""

    @property
    def input(self) -> Any:
        """What the run was started with."""
        return decode(self.input_json)

    @property
    def answer(self) -> Any:
        """What a done run came to; None for any other."""
        return None if self.answer_json is None else decode(self.answer_json)

    @property
    def facts_json(self) -> Mapping[str, str]:
        """What is remembered, as canonical JSON."""
        return {name: fact.value_json for name, fact in self.remembered.items()}

    @property
    def facts(self) -> Mapping[str, Any]:
        """What is remembered, as JSON reads it."""
        return {name: decode(value) for name, value in self.facts_json.items()}

    def fact(self, name: str, as_type: Any = Any) -> Any:
        """Return what is remembered by that name, as that type; raise ``KeyError`` where nothing is.

        >>> RunState(remembered={"total": Fact('"180.00"', 1)}).fact("total", Decimal)
        Decimal('180.00')
        """
        return Shape(as_type).decode(self.remembered[name].value_json)

    @property
    def unusable(self) -> tuple[str, ...]:
        """Why the answers to the question that is being asked could not be used, each in turn."""
        return tuple([why for turn, why in self.misheard if turn == self.turns])

    @property
    def summarized(self) -> int:
        """How many steps, from the first on, summaries stand for."""
        return self.summaries[-1].up_to if self.summaries else 0

    @property
    def weight(self) -> int:
        """The characters of the calls that no summary stands for, and of what became of them."""
        return self.steps.weight(self.summarized)

    @property
    def is_over(self) -> bool:
        """Whether nothing can happen to the run any more."""
        return self.status in OVER

    @property
    def can_move(self) -> bool:
        """Whether the run can go on now: it is neither over nor waits."""
        return self.status in (Status.PENDING, Status.RUNNING)

    @property
    def is_held(self) -> bool:
        """Whether nothing may begin before a person says so."""
        return self.parked is not None or self.paused is not None

    @property
    def questions(self) -> tuple[Step, ...]:
        """The steps that wait for a person's answer."""
        return tuple([step for step in self.waits if step.asks_person])

    @property
    def open_steps(self) -> tuple[Step, ...]:
        """The steps that were decided and have no outcome yet; they belong to the latest turn."""
        return self.steps.of_latest_turn(_OPEN)

    @property
    def doubts(self) -> tuple[Step, ...]:
        """The steps of which nobody knows whether they happened."""
        return self.steps.of_latest_turn(_IN_DOUBT)

    @property
    def gated(self) -> tuple[Step, ...]:
        """The steps that wait until a person says yes to them."""
        return self.steps.of_latest_turn(_GATED)

    @property
    def waits(self) -> tuple[Step, ...]:
        """The steps that wait for the clock, a signal or another run."""
        return self.steps.of_latest_turn(_WAITING)

    @property
    def came_to_json(self) -> str:
        """What a run tells the one that started it of its end, as canonical JSON; made of text: any answer fits."""
        failure, run_id = canonical(self.failure), canonical(self.run_id)
        answer, status = self.answer_json or "null", self.status.value
        return f'{{"answer":{answer},"failure":{failure},"run_id":{run_id},"status":"{status}"}}'

    def signal_for(self, step: Step) -> Signal | None:
        """Return what a waiting step waits for, where it is there: of several, what came first."""
        return next((signal for signal in self.signals if signal.name == step.awaits), None)

    def result(self) -> Any:
        """Return the answer; raise an error that names the next command where there is none."""
        match self.status:
            case Status.DONE:
                return self.answer
            case Status.FAILED | Status.CANCELLED:
                raise RunHasFailed(
                    f"run {self.run_id} {self.status}: {self.failure}; see: agent-es journal {self.run_id}"
                )
            case Status.WAITING:
                until = f" until {self.wake_at:%Y-%m-%dT%H:%M:%SZ}" if self.wake_at else ""
                raise RunUnfinished(
                    f"run {self.run_id} waits for {self.waiting_for}{until}; see: agent-es show {self.run_id}"
                )
            case Status.PENDING | Status.RUNNING:
                raise RunUnfinished(f"run {self.run_id} is {self.status}; go on with: agent-es resume {self.run_id}")


class Draft:
    """A state while events are folded into it: its fields, and its steps taken apart."""

    __slots__ = (
        *(f.name for f in fields(RunState)),
        "active",
        "current",
        "gates",
        "in_doubt",
        "is_stale",
        "kept",
        "past",
        "received",
        "said",
        "size",
        "waiting",
    )

    run_id: str
    agent: str
    agent_version: str
    goal: str
    input_json: str
    tags: Mapping[str, str]
    version: int
    status: Status
    waiting_for: WaitingFor | None
    wake_at: datetime | None
    rests_until: datetime | None
    parent: str | None
    envelope_json: str | None
    called: Mapping[str, int]
    tokens: int
    cost: Decimal
    reserved: tuple[int, Decimal] | None
    messages: tuple[Message, ...]
    remembered: Mapping[str, Fact]
    summaries: tuple[Summary, ...]
    answers: tuple[ModelAnswer, ...]
    misheard: tuple[tuple[int, str], ...]
    paused: str | None
    parked: str | None
    sent_back_at: int
    compensating: bool
    turns: int
    answer_json: str | None
    failure: str | None
    started_at: datetime | None
    updated_at: datetime | None

    def __init__(self, state: RunState) -> None:
        for put, value in zip(_PUT_IN_DRAFT, _copied(state), strict=True):
            put(self, value)
        steps = state.steps
        self.past, self.size, current = steps._past, steps._size, steps._current  # noqa: SLF001  # halves of one thing
        self.current = {atoms[0]: atoms for atoms in current}
        self.in_doubt = self.active = self.waiting = self.gates = 0
        for atoms in current:
            status = atoms[7]
            self.in_doubt += status == "in_doubt"
            self.active += status in _ACTIVE
            self.waiting += status == "waiting"
            self.gates += status == "gated"
        self.received = {signal.seq: signal for signal in state.signals}
        self.said: list[ModelAnswer] = []
        self.kept: dict[str, Fact] = {}
        self.is_stale = False

    def freeze(self) -> RunState:
        """Return the state as it stands."""
        self._settle()
        self._gather()
        steps = Steps(self.past, self.size, tuple(self.current.values()))
        signals = tuple(self.received.values())
        state = object.__new__(RunState)  # what ``RunState(...)`` does, in a third of the time
        for put, value in zip(_PUT_IN_STATE, (*_copied(self), steps, signals), strict=True):
            put(state, value)
        return state

    def started(self, event: RunStarted) -> None:
        """Take in who set which goal."""
        self.run_id = event.run_id
        self.agent = event.agent
        self.agent_version = event.agent_version
        self.goal = event.goal
        self.input_json = event.input
        self.tags = event.tags
        self.parent = event.parent
        self.envelope_json = event.envelope
        self.started_at = event.timestamp

    def decided(self, event: LlmDecided) -> None:
        """Take in a decision, or the start of a further attempt at one."""
        idx, turn, attempt = event.idx, event.turn, event.attempt
        if turn >= self.turns:
            self._close_turn()
            self.turns = turn + 1
        keyed_at = at = event.timestamp if attempt else None
        settled, gate = 0, None
        before = self.current.get(idx)
        if before is None:
            self.active += 1
            if self.envelope_json is not None:
                self.called = {**self.called, event.tool: self.called.get(event.tool, 0) + 1}
        else:
            settled, gate = before[11], before[16]
            if before[10] is not None and before[4] == event.key:
                keyed_at = before[10]
            if before[7] == "in_doubt":
                self.in_doubt -= 1
                self.active += 1
            elif before[7] == "gated":
                self.gates -= 1
                self.active += 1
        self.current[idx] = (
            idx,
            turn,
            event.tool,
            event.args,
            event.key,
            attempt,
            event.call_id,
            "started" if attempt else "queued",
            None,
            at,
            keyed_at,
            settled,
            None,
            event.undoes,
            event.keyed_as,
            None,
            gate,
        )
        self.is_stale = True

    def ended(self, event: ToolResult | ToolFailed | StepInDoubt, status: StepStatus, value: str) -> None:
        """Take in what became of a step, or of an attempt at it."""
        before = self.current[event.idx]
        if before[7] == "in_doubt":
            self.in_doubt -= 1
        else:
            self.active -= 1
        self.in_doubt += status == "in_doubt"
        self.active += status == "retrying"
        if not self.active:
            self.rests_until = None
        retry_at = event.retry_at if status == "retrying" and isinstance(event, ToolFailed) else None
        (
            idx, turn, tool, args, key, attempt, call_id, _, _,
            at, keyed_at, settled, _, undoes, keyed_as, awaited, gate,
        ) = before  # fmt: skip
        self.current[idx] = (
            idx, turn, tool, args, key, attempt, call_id, status, value,
            at, keyed_at, settled, retry_at, undoes, keyed_as, awaited, gate,
        )  # fmt: skip
        self.is_stale = True

    def missed(self, event: ToolFailed) -> None:
        """Take in a failure; one after which the step was to be tried again leaves a doubt where it is not."""
        if event.retry_at is None:
            self.ended(event, "failed", event.error)
            return
        if _is_sure(event.error) and self._gives_up(event.idx):
            self.ended(event, "failed", event.error)
        elif self.status is Status.CANCELLED:
            self.ended(event, "in_doubt", _left(event.error))
        else:
            self.ended(event, "retrying", event.error)

    def reserves(self, event: BudgetReserved) -> None:
        """Take in what is set aside for a question."""
        self.reserved = event.tokens, event.cost
        if self.status is Status.PENDING:
            self.is_stale = True

    def used(self, event: UsageRecorded) -> None:
        """Take in what a question took."""
        self.reserved = None
        self.tokens += event.tokens
        self.cost += event.cost

    def refused(self, event: StepRefused) -> None:
        """Take in that a step may not be taken."""
        before = self.current[event.idx]
        error = canonical({"applied": False, "message": event.reason, "rule": event.rule, "type": "Refused"})
        self.active -= 1
        self.current[event.idx] = (*before[:7], "failed", error, *before[9:])
        if event.tool in self.called:
            self.called = {**self.called, event.tool: self.called[event.tool] - 1}
        self.is_stale = True

    def delayed(self, event: CallDelayed) -> None:
        """Take in that a step starts no earlier than then."""
        before = self.current[event.idx]
        given: Awaited | None = (event.until, None, None) if event.is_given else None
        self.current[event.idx] = (
            *before[:7],
            "retrying",
            *before[8:12],
            event.until,
            *before[13:15],
            given,
            before[16],
        )
        self.is_stale = True

    def gated(self, event: ApprovalRequested) -> None:
        """Take in that a step waits for a person's yes."""
        before = self.current[event.idx]
        self.active -= 1
        self.gates += 1
        gate = Gate(
            event.rule, event.digest, event.args, before[3], event.by, event.people, event.expires_at, event.then
        )
        self.current[event.idx] = (*before[:7], "gated", event.rule, *before[9:16], gate)
        self.is_stale = True

    def granted(self, event: ApprovalGranted) -> None:
        """Take in a person's yes: with the last one that is needed, the step may start, with these arguments."""
        before = self.current[event.idx]
        gate = before[16] or _NO_GATE
        key, keyed_as = before[4], before[14]
        if event.args is None:
            gate = gate._replace(approved_by=(*gate.approved_by, event.by))
        else:
            gate = gate._replace(
                args_json=event.args, digest=event.digest, edited_by=event.by, approved_by=(event.by,)
            )
            key, keyed_as = event.key, event.keyed_as
        args, status, value = before[3], before[7], before[8]
        if len(gate.approved_by) >= gate.people:
            self.gates -= 1
            self.active += 1
            args, status, value = gate.args_json, "queued", None
        self.current[event.idx] = (
            *before[:3], args, key, *before[5:7], status, value, *before[9:14], keyed_as, before[15], gate,
        )  # fmt: skip
        self.is_stale = True

    def denied(self, event: ApprovalDenied) -> None:
        """Take in a person's no, or that nobody answered."""
        before = self.current[event.idx]
        self.gates -= 1
        error = canonical({"applied": False, "by": event.by, "message": event.reason, "type": "Denied"})
        self.current[event.idx] = (*before[:7], "failed", error, *before[9:])
        if event.is_expired and before[16] is not None and before[16].then == "park":
            self.parked = f"nobody answered in time whether step {event.idx}, {event.tool}, may be taken"
        self.is_stale = True

    def answered(self, event: QuestionAnswered) -> None:
        """Take in what a person answered."""
        before = self.current[event.idx]
        self.waiting -= 1
        value = f'{{"answer":{event.answer},"by":{canonical(event.by)},"reason":"answered"}}'
        self.current[event.idx] = (*before[:7], "done", value, *before[9:])
        self.is_stale = True

    def steered(self, event: Steered) -> None:
        """Take in what a person has to say."""
        message = Message(self.version, self.turns, event.text, event.by, event.timestamp)
        self.messages = (*self.messages, message)

    def heard(self, event: LlmAnswered) -> None:
        """Take in what a model said."""
        at = self.size + len(self.current)
        self.said.append(
            ModelAnswer(event.turn, at, event.model, event.answer, event.finish_reason, event.tokens, event.request)
        )

    def asks_again(self, event: AnswerUnusable) -> None:
        """Take in that nothing could be done with what a model said."""
        before = [(turn, why) for turn, why in self.misheard if turn == event.turn]
        self.misheard = (*before, (event.turn, event.reason))

    def summed_up(self, event: Summarized) -> None:
        """Take in what stands for a phase from now on."""
        self._gather()
        summary = Summary(event.first, event.up_to, event.text, event.phase)
        self.summaries = (*(one for one in self.summaries if one.up_to <= event.first), summary)
        self.answers = tuple(
            [
                answer._replace(tokens=None)  # it was as long as that before
                for answer in self.answers
                if answer.first >= event.up_to
            ]
        )

    def remember(self, event: FactRecorded) -> None:
        """Take in a fact; of two steps, the later one counts, whichever ended first."""
        before = self.kept.get(event.name) or self.remembered.get(event.name)
        if before is None or event.idx >= before.idx:
            self.kept[event.name] = Fact(event.value, event.idx)

    def _gather(self) -> None:
        """Put what was said and what is remembered since the draft was made behind what was before, at once."""
        if self.said:
            self.answers = (*self.answers, *self.said)
            self.said = []
        if self.kept:
            self.remembered = dict(sorted({**self.remembered, **self.kept}.items()))
            self.kept = {}

    def is_paused(self, why: str | None) -> None:
        """Take in that a person stopped the run, or lets it go on."""
        self.paused = why
        self.is_stale = True

    def settled(self, event: DoubtSettled) -> None:
        """Take in what became of a doubt; a result or a failure that goes with it is an event of its own."""
        if event.outcome == "did_not_happen" and self._gives_up(event.idx):
            self._stop_step(event.idx)
            self.is_stale = True
        elif event.outcome == "did_not_happen" and event.key is not None:
            before = self.current[event.idx]
            if before[7] == "in_doubt":
                self.in_doubt -= 1
                self.active += 1
            settled = before[11] if event.by == BY_PROBE else before[5]
            renewed = (
                *before[:4],
                event.key,
                *before[5:7],
                "queued",
                None,
                before[9],
                None,
                settled,
                None,
                *before[13:],
            )
            self.current[event.idx] = cast(_Atoms, renewed)
            self.is_stale = True

    def waits(self, event: WaitBegan) -> None:
        """Take in that a step waits, or that those which are retrying do."""
        if event.idx is None:
            self.rests_until = event.wake_at
        else:
            before = self.current[event.idx]
            if before[7] == "in_doubt":
                self.in_doubt -= 1
            else:
                self.active -= 1
            if not self.active:
                self.rests_until = None
            signal = event.signal if event.child is None else ended(event.child)
            awaited = (event.wake_at, signal, event.child)
            if self._gives_up(event.idx):  # nobody waits any more
                self.current[event.idx] = _waited(before, awaited)
                self.is_stale = True
                return
            self.waiting += 1
            kept = *before[:7], "waiting", None, *before[9:12], None, *before[13:15]
            self.current[event.idx] = cast(_Atoms, (*kept, awaited, before[16]))
        self.is_stale = True

    def goes_on(self, event: WaitEnded) -> None:
        """Take in what ended a wait."""
        if event.idx is None:
            self.rests_until = None
        else:
            before = self.current[event.idx]
            self.waiting -= 1
            signal = None if event.received is None else self.received.pop(event.received)
            value = _told(before[15], signal)
            self.current[event.idx] = (*before[:7], "done", value, *before[9:])
        self.is_stale = True

    def was_signalled(self, event: SignalReceived) -> None:
        """Take in a signal; it is kept until a step waits for it."""
        seq = self.version  # what is stored beside an event is not read for a fold
        self.received[seq] = Signal(seq, event.name, event.payload, event.delivery_id, event.timestamp)
        if self.waiting:
            self.is_stale = True

    def was_cancelled(self, event: Cancelled) -> None:
        """Take in that somebody ended the run: no call is left without something that is known of it."""
        self._stop()
        for idx, atoms in [*self.current.items()]:
            if atoms[7] in ("started", "retrying"):
                self.in_doubt += 1
                self.active -= 1
                self.current[idx] = (*atoms[:7], "in_doubt", _left(atoms[8]), *atoms[9:12], None, *atoms[13:])
        self.paused = self.parked = None
        self.status, self.waiting_for = Status.CANCELLED, None
        self.wake_at = self.rests_until = None
        self.failure = f"cancelled {_by(event.by, event.reason)}"

    def allowed(self, event: EnvelopeChanged) -> None:
        """Take in another envelope; what was parked because the last one was spent goes on."""
        self.envelope_json = event.envelope

    def is_parked(self, reason: str | None) -> None:
        """Take in that a person must see to the run, or has."""
        self.parked = reason
        self.failure = self.rests_until = None
        self.misheard = ()
        if reason is None:
            self.sent_back_at = self.size + len(self.current)
        self.is_stale = True

    def undoing(self) -> None:
        """Take in that the finished effects are to be undone, once what is under way has come to its end."""
        self._stop()
        self.compensating = True
        self.paused = self.parked = None
        self.is_stale = True

    def undone(self) -> None:
        """Take in that they were."""
        self._settle()
        self.compensating = False
        self.status, self.waiting_for = Status.CANCELLED, None
        self.failure = "compensated: its finished effects were undone"

    def finished(self, event: Finished) -> None:
        """Take in the answer."""
        self._settle()
        self.status = Status.DONE
        self.answer_json = event.answer

    def failed(self, event: RunFailed) -> None:
        """Take in why the decider gave up."""
        self._settle()
        self.status = Status.FAILED
        self.failure = event.reason

    def _gives_up(self, idx: int) -> bool:
        """Say whether a step is not made any more where it surely did not happen: the run ends without it."""
        return self.status is Status.CANCELLED or (self.compensating and self.current[idx][13] is None)

    def _stop(self) -> None:
        """Answer every call of which it is sure that it is not under way: it was not made, and will not be."""
        for idx, atoms in [*self.current.items()]:
            is_idle = atoms[7] in ("queued", "gated", "waiting")
            if atoms[7] == "waiting" and atoms[5]:  # its body has done what it does
                self.waiting -= 1
                self.current[idx] = _waited(atoms, atoms[15])
            elif is_idle or (atoms[7] == "retrying" and _is_sure(atoms[8])):
                self._stop_step(idx)
        if not self.active:
            self.rests_until = None

    def _stop_step(self, idx: int) -> None:
        atoms = self.current[idx]
        self.active -= atoms[7] in _ACTIVE
        self.in_doubt -= atoms[7] == "in_doubt"
        self.gates -= atoms[7] == "gated"
        self.waiting -= atoms[7] == "waiting"
        stopped = (*atoms[:7], "failed", _NOT_MADE, *atoms[9:12], None, *atoms[13:])
        self.current[idx] = cast(_Atoms, stopped)

    def _settle(self) -> None:
        """Say what the steps make of the run's status, once for all the events since that was asked last."""
        if not self.is_stale:
            return
        self.is_stale = False
        if self.status is Status.CANCELLED:
            return  # what was under way is still recorded, and brings nothing back
        self.wake_at = None
        waits = (
            [atoms[15] or _NOTHING for atoms in self.current.values() if atoms[7] == "waiting"]
            if self.waiting
            else []
        )
        expires = (
            [gate.expires_at for atoms in self.current.values() if atoms[7] == "gated" and (gate := atoms[16])]
            if self.gates
            else []
        )
        if self.parked is not None or self.paused is not None:
            self.status, self.waiting_for = Status.WAITING, "person"
        elif (self.active and self.rests_until is None) or (waits and self._is_there(waits)):
            self.status, self.waiting_for = Status.RUNNING, None
        elif self.rests_until is not None or waits:
            times = self.rests_until, *(wait[0] for wait in waits), *expires
            self.wake_at = min((at for at in times if at), default=None)
            self.status, self.waiting_for = Status.WAITING, self._foremost(waits)
        elif self.in_doubt or self.gates:
            self.wake_at = min((at for at in expires if at), default=None)
            self.status, self.waiting_for = Status.WAITING, "doubt" if self.in_doubt else "approval"
        else:
            is_begun = self.turns or self.reserved is not None or self.tokens or self.compensating
            self.status, self.waiting_for = Status.RUNNING if is_begun else Status.PENDING, None

    def _is_there(self, waits: Iterable[Awaited]) -> bool:
        """Say whether something came that a step waits for."""
        names = {wait[1] for wait in waits}
        return any(signal.name in names for signal in self.received.values())

    def _foremost(self, waits: Sequence[Awaited]) -> WaitingFor:
        """Say of all that a run waits for what people should know first."""
        if self.rests_until is not None:
            return "retry"
        if self.in_doubt or self.gates:
            return "doubt" if self.in_doubt else "approval"
        if any(wait[1] and wait[1].startswith(ASKED) for wait in waits):
            return "person"
        return "signal" if any(wait[1] for wait in waits) else "clock"

    def _close_turn(self) -> None:
        """Move the turn's steps behind those of earlier turns, in a list that other states may share."""
        past, size = self.past, self.size
        for atoms in self.current.values():
            if len(past) == size:
                past.append(atoms)
            elif past[size] is not atoms:  # another state went on from here before us
                past = Past([*past[:size], atoms])
            size += 1
        self.past, self.size = past, size
        self.current = {}
        self.active = self.in_doubt = self.waiting = self.gates = 0


_COPIED = tuple(f.name for f in fields(RunState) if f.name not in ("steps", "signals"))
_copied = attrgetter(*_COPIED)
_PUT_IN_STATE = [getattr(RunState, name).__set__ for name in (*_COPIED, "steps", "signals")]
_PUT_IN_DRAFT = [getattr(Draft, name).__set__ for name in _COPIED]
"""A slot's own setter is the way past what freezes a dataclass, and past looking the slot up by its name."""
_NOTHING: Awaited = (None, None, None)
_NO_GATE = Gate("", "", "{}", "{}", (), 1, None, "deny")
_NOT_MADE = '{"applied":false,"message":"the run was cancelled before it was made","type":"Cancelled"}'
"""The error of a call that a cancelled run does not make any more."""


def _weight(atoms: _Atoms) -> int:
    return len(atoms[2]) + len(atoms[3]) + len(atoms[8] or "")


def _told(awaited: Awaited | None, signal: Signal | None) -> str:
    """Return the result of a step that waited: what came, or that nothing did."""
    _, name, child = awaited or _NOTHING
    if signal is not None and child is not None:
        return signal.payload_json
    if name is not None and name.startswith(ASKED):
        return '{"answer":null,"by":null,"reason":"clock"}'
    reason, payload = ("clock", "null") if signal is None else ("signal", signal.payload_json)
    return f'{{"payload":{payload},"reason":"{reason}","signal":{canonical(name)}}}'


def _waited(atoms: _Atoms, awaited: Awaited | None) -> _Atoms:
    """Return a step whose body has asked to wait, and whose run waits no more: it is done, and nothing came."""
    _, name, _ = awaited or _NOTHING
    value = f'{{"payload":null,"reason":"cancelled","signal":{canonical(name)}}}'
    kept = *atoms[:7], "done", value, *atoms[9:12], None, *atoms[13:15]
    return cast(_Atoms, (*kept, awaited, atoms[16]))


def _is_sure(error_json: str | None) -> bool:
    """Say whether a step that is to be tried again surely did not happen; without an error, it was only delayed."""
    return error_json is None or decode(error_json).get("applied") is False


def _left(error_json: str | None) -> str:
    """Return why nobody knows what became of a call that a cancelled run leaves; its last attempt may tell."""
    error = decode(error_json or "{}")
    last = f", after {error['type']}: {error['message']}" if error else ""
    return f"the run was cancelled while it was under way{last}"


def _by(person: str, reason: str) -> str:
    return f"by {person}" + (f": {reason}" if reason else "")


def apply(draft: Draft, event: AnyEvent) -> None:  # noqa: C901, PLR0912, PLR0915  # one branch per event
    """Take one event into a draft; the events of a long run come first."""
    if type(event) is LlmDecided:
        draft.decided(event)
    elif type(event) is ToolResult:
        draft.ended(event, "done", event.result)
    elif type(event) is RunStarted:
        draft.started(event)
    elif type(event) is ToolFailed:
        draft.missed(event)
    elif type(event) is LlmAnswered:
        draft.heard(event)
    elif type(event) is StepInDoubt:
        draft.ended(event, "in_doubt", event.reason)
    elif type(event) is DoubtSettled:
        draft.settled(event)
    elif type(event) is BudgetReserved:
        draft.reserves(event)
    elif type(event) is UsageRecorded:
        draft.used(event)
    elif type(event) is StepRefused:
        draft.refused(event)
    elif type(event) is FactRecorded:
        draft.remember(event)
    elif type(event) is Summarized:
        draft.summed_up(event)
    elif type(event) is AnswerUnusable:
        draft.asks_again(event)
    elif type(event) is CallDelayed:
        draft.delayed(event)
    elif type(event) is ApprovalRequested:
        draft.gated(event)
    elif type(event) is ApprovalGranted:
        draft.granted(event)
    elif type(event) is ApprovalDenied:
        draft.denied(event)
    elif type(event) is QuestionAnswered:
        draft.answered(event)
    elif type(event) is Steered:
        draft.steered(event)
    elif type(event) is Paused:
        draft.is_paused(_by(event.by, event.reason))
    elif type(event) is Resumed:
        draft.is_paused(None)
    elif type(event) is EnvelopeChanged:
        draft.allowed(event)
    elif type(event) is WaitBegan:
        draft.waits(event)
    elif type(event) is WaitEnded:
        draft.goes_on(event)
    elif type(event) is SignalReceived:
        draft.was_signalled(event)
    elif type(event) is Finished:
        draft.finished(event)
    elif type(event) is RunFailed:
        draft.failed(event)
    elif type(event) is Parked:
        draft.is_parked(event.reason)
    elif type(event) is Requeued:
        draft.is_parked(None)
    elif type(event) is CompensationBegan:
        draft.undoing()
    elif type(event) is CompensationEnded:
        draft.undone()
    elif type(event) is Cancelled:
        draft.was_cancelled(event)
    else:
        assert_never(event)
    draft.version += 1
    draft.updated_at = event.timestamp


def fold(events: Iterable[AnyEvent], state: RunState | None = None) -> RunState:
    """Return the state after the events, from an earlier state or from nothing."""
    draft = Draft(state or RunState())
    for event in events:
        apply(draft, event)
    return draft.freeze()


def evolve(state: RunState, event: AnyEvent) -> RunState:
    """Return the state after one event."""
    return fold((event,), state)
