"""The aggregate: what may happen to a run, as commands that guard and trigger events.

Rule 1: a command refuses what may not happen (``LEGAL`` says what may, by status); the fold refuses nothing.
Rule 2: a run changes by events only; every event's ``apply`` is the fold of ``state.py``.
Rule 3: pending events stay pending until the store says that they are durable.
Rule 4: in a tool, ``self`` is a frozen view: no command, no new attribute, safe between threads.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from inspect import getattr_static
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Never, Self, cast, get_origin
from uuid import UUID

from eventsourcing.domain import BaseAggregate, CanMutateAggregate, MetaAggregate
from pydantic_core import TzInfo

from agent_es.envelope import Asks, Envelope, Refused, Usage, read_cached
from agent_es.errors import BadAgent, IllegalEvent
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
    Event,
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
    Settlement,
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
    stream_id,
)
from agent_es.keys import renewed
from agent_es.legality import LEGAL, call_digest, child_id, is_past, misfit
from agent_es.owners import Lease
from agent_es.state import RunState, Status, Step, evolve, fold
from agent_es.tools import CallTool, Failed, Retry, Returned, Tool, Unknown, Waits
from agent_es.values import bounded, canonical, decode, valid_unicode
from agent_es.waits import ASKED, Ask, Sleep, Wait, WaitFor, check_tag, instant

Clock = Callable[[int], datetime]
"""Gives the time of the event with that ``seq``, in UTC; tests freeze it."""

_HEARD: frozenset[type[Event]] = frozenset((Steered, Paused, CompensationBegan))
"""What a decider must know before it decides."""

AS_READ = TzInfo(0)
"""UTC as a journal is read back: a state is the same before and after, to the letter."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A call as it will be recorded: checked and keyed, or refused with the error that the decider sees."""

    call: CallTool
    args: str
    key: str | None = None
    refusal: Failed | None = None
    answer: str | None = None
    """What the call gives without being made: the result that another step recorded under its key."""
    undoes: int | None = None
    keyed_as: str | None = None
    wait: Wait | None = None
    """What the call is: a wait, which has no body."""
    is_child: bool = False
    """Whether the call is the start of another run, which has none either."""
    refused: Refused | None = None
    """Why the run's envelope does not allow the call."""
    asks: Asks | None = None
    """What the envelope asks a person for first."""
    shown: str = ""
    """The arguments that a person is asked about: what the body would get."""

    @property
    def is_made(self) -> bool:
        """Whether the body is to be called, now or once a person has said yes."""
        is_done = self.refusal or self.refused or self.answer is not None
        return not is_done and self.wait is None and not self.is_child


class AgentClass(MetaAggregate["AgentRun"]):
    """The class of agents: calling one makes no run."""

    def __call__(cls, *_: Any, **__: Any) -> Never:  # noqa: N805  # the class of a class
        """Refuse: a run is started by a store, and taken out of it."""
        raise BadAgent(
            f"{cls.__name__}(...) makes no run; start one: Runner(store, decider).run({cls.__name__}, ...)"
        )


MAX_NAME = 200
"""Characters of an agent's name."""


class AgentRun(BaseAggregate[UUID], metaclass=AgentClass):
    """One durable execution of one agent.  Subclass it, and declare tools on it with ``@tool``."""

    if TYPE_CHECKING:  # an annotation at run time would make the base class turn it into a field
        agent_name: ClassVar[str]
        """What the journal calls this agent; the class's name by default."""
        agent_version: ClassVar[str]
        """Recorded when a run starts, for people."""
        decider: ClassVar[Any]
        """The decider of runs that are started without one, as by ``agent-es run``."""
        retry: ClassVar[Retry | None]
        """How tools that do not say so themselves are retried."""
        at_once: ClassVar[int]
        """How many bodies of one turn run beside each other; 1 is one after the other."""
        agent_tools: ClassVar[Mapping[str, Tool]]
        """The tools declared on this class and on those it extends, by name."""
        _state: RunState
        _recorded: RunState
        _appended: tuple[Any, ...]
        _clock: Clock | None
        lease: Lease | None
        """What its appends are made under, while a worker moves it."""

    agent_name = "AgentRun"
    agent_version = "1"
    decider = None
    retry = None
    at_once = 8
    agent_tools = MappingProxyType({})
    lease = None

    def __init_subclass__(cls) -> None:
        """Collect the tools; raise ``BadAgent`` for what would turn into arguments of an event."""
        _refuse_fields(cls)
        if "agent_name" not in cls.__dict__:
            cls.agent_name = cls.__name__
        name: object = cls.agent_name
        if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= MAX_NAME:
            raise BadAgent(f"{cls.__name__}.agent_name={name!r:.80}: a name is 1 to {MAX_NAME} printable characters")
        tools: dict[str, Tool] = {}
        declared: dict[str, str] = {}
        for attribute in dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base)):
            value = getattr_static(cls, attribute)
            if not isinstance(value, Tool):
                continue
            if hasattr(AgentRun, attribute) or hasattr(AgentRun, value.name):
                raise BadAgent(
                    f"{cls.__name__}.{attribute}: a tool cannot be called {value.name!r}, an attribute of "
                    "AgentRun; give it another name"
                )
            if value.name in tools:
                raise BadAgent(f"{cls.__name__}: {declared[value.name]} and {attribute} are both {value.name!r}")
            declared[value.name] = attribute
            tools[value.name] = value
        cls.agent_tools = tools
        # Not the base class's own: it looks for event classes on the aggregate, of which there are none here, and
        # refuses a class that is defined a second time, as a notebook does.
        super(BaseAggregate, cls).__init_subclass__()

    @classmethod
    def begin(
        cls,
        run_id: str,
        goal: str,
        input_json: str,
        tags: Mapping[str, str],
        clock: Clock,
        envelope: Envelope | None = None,
    ) -> Self:
        """Return a new run, its first event pending; raise ``BadTag``, and ``BadEnvelope``."""
        if envelope is not None:
            envelope.check({name: tool.parameters for name, tool in cls.agent_tools.items()})
        for tag in tags.items():
            check_tag(tag)
        return cls._began(
            clock,
            run_id=run_id,
            agent=cls.agent_name,
            agent_version=cls.agent_version,
            goal=valid_unicode(goal),
            input=input_json,
            tags=decode(canonical(dict(tags))),
            envelope=None if envelope is None else envelope.json_text,
        )

    @classmethod
    def begin_child(cls, parent: RunState, run_id: str, args_json: str, clock: Clock) -> Self:
        """Return a new run that another one starts, as the arguments of that one's step say; its event pending.

        It may do no more than that one may.
        """
        args = decode(args_json)
        args["input"] = canonical(args["input"])
        own = args.pop("envelope", None)
        above = None if parent.envelope_json is None else read_cached(parent.envelope_json)
        if own is not None or above is not None:
            within = above and above.model_copy(update={"owner": parent.run_id})
            bounds = Envelope.model_validate(own or {}).model_copy(update={"within": within, "owner": None})
            args["envelope"] = bounds.json_text
        return cls._began(clock, run_id=run_id, parent=parent.run_id, **args)

    @classmethod
    def _began(cls, clock: Clock, *, run_id: str, **fields: Any) -> Self:
        event = RunStarted(
            originator_id=stream_id(run_id),
            originator_version=1,
            timestamp=clock(0).astimezone(AS_READ),
            run_id=run_id,
            **fields,
        )
        run = cls.of(fold([event]), clock)
        run.pending_events.append(event)
        return run

    @classmethod
    def of(cls, state: RunState, clock: Clock | None = None) -> Self:
        """Return the run in that state; without a clock, a frozen view that takes no command."""
        run = object.__new__(cls)
        values = {
            "_id": stream_id(state.run_id),
            "_version": state.version,
            "_created_on": state.started_at,
            "_modified_on": state.updated_at,
            "_pending_events": [],
            "_state": state,
            "_recorded": state,
            "_appended": (),
            "_clock": clock,
        }
        run.__dict__.update(values)
        return run

    @property
    def state(self) -> RunState:
        """The run as folded so far."""
        return self._state

    @property
    def envelope(self) -> Envelope | None:
        """What the run may do, and what it may spend; None where it may do anything."""
        text = self._state.envelope_json
        return None if text is None else read_cached(text)

    @property
    def recorded(self) -> RunState:
        """The run as the store has it."""
        return self._recorded

    @property
    def pending(self) -> list[AnyEvent]:
        """The events that are triggered and not recorded."""
        return cast(list[AnyEvent], [*self.pending_events])

    @property
    def appended(self) -> Sequence[AnyEvent]:
        """The events of its last append."""
        return self._appended

    def __setattr__(self, name: str, value: Any) -> None:
        if self._clock is None:
            raise AttributeError(
                f"{name}: in a tool, the run is a frozen view; return what you want to keep as the result"
            )
        super().__setattr__(name, value)

    # Commands.

    def record_turn(self, plan: Sequence[Planned], *, at_once: int, limited: Collection[str] = ()) -> None:
        """Record a turn's calls: the first ``at_once`` start now, the others are queued, refused ones fail.

        Those of tools that are ``limited`` are queued too: whether they may start is to be asked.
        """
        turn, first = self._state.turns, len(self._state.steps)
        if self._state.open_steps:
            raise IllegalEvent(f"run {self._state.run_id}: turn {turn - 1} still has open steps")
        room = at_once
        for idx, planned in enumerate(plan, start=first):
            starts = planned.is_made and planned.asks is None and room > 0 and planned.call.tool not in limited
            room -= starts
            self.trigger_event(
                LlmDecided,
                idx=idx,
                turn=turn,
                tool=planned.call.tool,
                args=planned.args,
                attempt=int(starts),
                key=planned.key if planned.is_made else None,
                call_id=planned.call.call_id,
                undoes=planned.undoes,
                keyed_as=planned.keyed_as if planned.is_made else None,
            )
        for idx, planned in enumerate(plan, start=first):
            if planned.refused:
                rule, why = planned.refused.rule, planned.refused.why
                self.trigger_event(StepRefused, idx=idx, tool=planned.call.tool, rule=rule, reason=bounded(why))
            elif planned.refusal:
                self.record_failure(idx, planned.refusal)
            elif planned.asks and planned.is_made:
                self.record_asked(idx, planned.asks, planned.shown or planned.args)
            elif planned.answer is not None:
                self.trigger_event(ToolResult, idx=idx, tool=planned.call.tool, attempt=0, result=planned.answer)
            elif planned.wait is not None:
                self.record_wait_of(idx, planned.wait)
            elif planned.is_child:
                self.trigger_event(WaitBegan, idx=idx, child=child_id(self._state.run_id, idx))

    def record_asked(self, idx: int, asks: Asks, shown: str) -> None:
        """Record that a person must say yes to a step before its body is called, and the arguments that it would get.

        So it may also be where an attempt has said, before it did anything, that somebody must.
        """
        step = self._open(idx)
        try:
            expires_at = None if asks.within is None else self.now + asks.within
        except OverflowError:  # nobody waits that long
            expires_at = None
        self._trigger_fitting(
            ApprovalRequested,
            idx=idx,
            tool=step.tool,
            args=shown,
            key=step.key,
            digest=call_digest(step.tool, shown, step.key),
            rule=asks.rule,
            by=asks.by,
            people=asks.people,
            expires_at=expires_at,
            then=asks.then,
        )

    def record_said(
        self, model: str, answer_json: str, finish_reason: str | None, tokens: int | None, request_json: str | None
    ) -> None:
        """Record what a model said, from which the decision is read that is recorded next."""
        self._nothing_open(LlmAnswered)
        self.trigger_event(
            LlmAnswered,
            turn=self._state.turns,
            model=model,
            answer=answer_json,
            finish_reason=finish_reason,
            tokens=tokens,
            request=request_json,
        )

    def record_unusable(self, model: str, answer: str, reason: str, finish_reason: str | None) -> None:
        """Record that nothing can be done with what a model said."""
        self._nothing_open(AnswerUnusable)
        turn, said, why = self._state.turns, bounded(answer), bounded(reason)
        self.trigger_event(
            AnswerUnusable, turn=turn, model=model, answer=said, reason=why, finish_reason=finish_reason
        )

    def record_summary(self, first: int, up_to: int, text: str, phase: str) -> None:
        """Record what stands for the steps from the first on, up to a turn that is kept as it is."""
        self._nothing_open(Summarized)
        self._trigger_fitting(Summarized, first=first, up_to=up_to, text=text, phase=phase)

    def record_reserved(self, usage: Usage) -> None:
        """Record what is set aside before the decider is asked."""
        if self._state.reserved is not None:
            raise IllegalEvent(f"run {self._state.run_id}: something is set aside already")
        self.trigger_event(BudgetReserved, turn=self._state.turns, tokens=usage.tokens, cost=usage.cost)

    def record_usage(self, usage: Usage | None) -> None:
        """Record what asking the decider took; None where nobody knows, and it counts as all that was set aside."""
        if usage is None and self._state.reserved is None:
            raise IllegalEvent(f"run {self._state.run_id}: nothing is set aside")
        tokens, cost = self._state.reserved or (0, Decimal(0)) if usage is None else (usage.tokens, usage.cost)
        is_known = usage is not None
        self.trigger_event(UsageRecorded, turn=self._state.turns, tokens=tokens, cost=cost, is_known=is_known)

    def record_start(self, idx: int) -> None:
        """Record the decision of a step again, as the mark that its next attempt starts."""
        step = self._open(idx)
        if step.status == "gated":
            raise IllegalEvent(f"run {self._state.run_id}: step {idx} waits until a person says yes to it")
        self.trigger_event(
            LlmDecided,
            idx=idx,
            turn=step.turn,
            tool=step.tool,
            args=step.args_json,
            attempt=step.attempt + 1,
            key=step.key,
            call_id=step.call_id,
            undoes=step.undoes,
            keyed_as=step.keyed_as,
        )

    def record_outcome(self, idx: int, outcome: Returned | Waits, *, attempt: int | None = None) -> None:
        """Record what a body came to, and what it wants to be remembered."""
        for name, value in outcome.facts:
            self._started(idx, attempt)
            self.trigger_event(FactRecorded, idx=idx, name=name, value=value)
        if isinstance(outcome, Returned):
            self.record_result(idx, outcome.value, attempt=attempt)
        else:
            self.record_wait_of(idx, outcome.wait, attempt=attempt)

    def record_result(self, idx: int, value_json: str, *, attempt: int | None = None) -> None:
        """Record what a step gave; a late result names its attempt, and is legal while that one is unsettled."""
        step = self._started(idx, attempt)
        self.trigger_event(ToolResult, idx=idx, tool=step.tool, attempt=step.attempt, result=value_json)

    def record_retry(self, idx: int, error: Failed | Unknown, retry_at: datetime) -> None:
        """Record that an attempt failed, and when the next one is due."""
        step = self._started(idx)
        self.trigger_event(
            ToolFailed, idx=idx, tool=step.tool, attempt=step.attempt, error=error.error_json, retry_at=retry_at
        )

    def record_delay(self, idx: int, until: datetime, *, is_given: bool) -> None:
        """Record that a step starts no earlier than then."""
        step = self._open(idx)
        if step.status not in ("queued", "retrying"):
            raise IllegalEvent(f"run {self._state.run_id}: step {idx} is {step.status}, and is not to start")
        values = {"attempt": step.attempt, "until": until.astimezone(AS_READ), "is_given": is_given}
        self.trigger_event(CallDelayed, idx=idx, tool=step.tool, **values)

    def record_rest(self, wake_at: datetime) -> None:
        """Record that no step goes on before then: those that could are to be retried."""
        statuses = {step.status for step in self._state.open_steps}
        if "retrying" not in statuses or statuses & {"queued", "started"}:
            raise IllegalEvent(
                f"run {self._state.run_id}: it waits for no clock while steps can go on, or without any"
            )
        self.trigger_event(WaitBegan, wake_at=wake_at)

    def record_rest_ended(self) -> None:
        """Record that the first of the steps that are retrying is due."""
        if self._state.rests_until is None:
            raise IllegalEvent(f"run {self._state.run_id}: it does not wait for the clock")
        self.trigger_event(WaitEnded, reason="clock")

    def record_wait_of(self, idx: int, wait: Wait, *, attempt: int | None = None) -> None:
        """Record that a step waits from now on: as the decider says, or as its body asks, which has returned."""
        step = self._open(idx)
        is_asked = step.attempt > 0
        if is_asked:
            self._started(idx, attempt)
        elif step.status != "queued" or step.key is not None:
            raise IllegalEvent(f"run {self._state.run_id}: step {idx} is {step.status}, and does not begin to wait")
        until = wait.until if isinstance(wait, Sleep) else wait.timeout
        self.trigger_event(
            WaitBegan,
            idx=idx,
            attempt=step.attempt if is_asked else None,
            wake_at=None if until is None else instant(until, self.now).astimezone(AS_READ),
            signal=_awaited(wait, idx),
        )

    def record_wait_ended(self, idx: int, received: int | None = None) -> None:
        """Record that a step waits no longer: its signal came, that of seq ``received``, or its time has."""
        step = self._open(idx)
        signals = {signal.seq: signal.name for signal in self._state.signals}
        is_right = step.status == "waiting" and (
            step.wake_at is not None if received is None else signals.get(received) == step.awaits
        )
        if not is_right:
            raise IllegalEvent(f"run {self._state.run_id}: step {idx} is {step.status}, and does not wait for that")
        self.trigger_event(WaitEnded, idx=idx, reason="clock" if received is None else "signal", received=received)

    def record_signal(self, name: str, payload_json: str, delivery_id: str) -> None:
        """Record that something came for the run: it is kept until a step waits for it."""
        self.trigger_event(SignalReceived, name=name, payload=payload_json, delivery_id=delivery_id)

    def record_cancelled(self, by: str, reason: str) -> None:
        """End the run from outside."""
        self.trigger_event(Cancelled, by=by, reason=bounded(reason))

    def record_undoing(self, by: str, reason: str) -> None:
        """Let the run end by undoing its finished effects, once what is under way has come to its end."""
        if self._state.compensating:
            raise IllegalEvent(f"run {self._state.run_id} undoes its effects already")
        self.trigger_event(CompensationBegan, by=by, reason=bounded(reason))

    def record_granted(
        self, idx: int, by: str, *, edited: tuple[str, str | None, str | None] | None = None, reason: str = ""
    ) -> None:
        """Record a person's yes to a gated step, as it was shown or with other arguments, their key and its name."""
        step = self._gated(idx)
        gate = step.approval
        fields: dict[str, Any] = {"digest": gate and gate.digest}
        if edited is not None:
            args, key, keyed_as = edited
            digest = call_digest(step.tool, args, key)
            fields = {"digest": digest, "args": args, "key": key, "keyed_as": keyed_as}
        self.trigger_event(ApprovalGranted, idx=idx, tool=step.tool, by=by, reason=bounded(reason), **fields)

    def record_denied(self, idx: int, by: str, reason: str, *, is_expired: bool = False) -> None:
        """Record a person's no to a gated step, or that nobody answered in time."""
        step = self._gated(idx)
        values = {"digest": step.approval and step.approval.digest, "reason": bounded(reason)}
        self.trigger_event(ApprovalDenied, idx=idx, tool=step.tool, by=by, is_expired=is_expired, **values)

    def _gated(self, idx: int) -> Step:
        step = self._open(idx)
        if step.status != "gated":
            raise IllegalEvent(f"run {self._state.run_id}: step {idx} is {step.status}, and waits for nobody's yes")
        return step

    def record_answered(self, idx: int, answer_json: str, by: str) -> None:
        """Record what a person answers to a question."""
        if idx not in [step.idx for step in self._state.questions]:
            raise IllegalEvent(f"run {self._state.run_id}: step {idx} asks nobody anything")
        self.trigger_event(QuestionAnswered, idx=idx, answer=answer_json, by=by)

    def record_steered(self, text: str, by: str) -> None:
        """Record what a person has to say: the decider sees it before it decides again."""
        self.trigger_event(Steered, text=text, by=by)

    def record_paused(self, by: str, reason: str) -> None:
        """Stop the run, until somebody lets it go on."""
        if self._state.paused is not None:
            raise IllegalEvent(f"run {self._state.run_id} is paused already, {self._state.paused}")
        self.trigger_event(Paused, by=by, reason=bounded(reason))

    def record_resumed(self, by: str) -> None:
        """Let a paused run go on."""
        if self._state.paused is None:
            raise IllegalEvent(f"run {self._state.run_id} is not paused")
        self.trigger_event(Resumed, by=by)

    def record_envelope(self, envelope: Envelope, by: str, reason: str) -> None:
        """Record that a person gave the run another envelope."""
        self.trigger_event(EnvelopeChanged, envelope=envelope.json_text, by=by, reason=bounded(reason))

    def record_failure(self, idx: int, error: Failed) -> None:
        """Record why a step failed: the decider will see it."""
        step = self._open(idx)
        self.trigger_event(ToolFailed, idx=idx, tool=step.tool, attempt=step.attempt, error=error.error_json)

    def record_doubt(self, idx: int, reason: str) -> None:
        """Record that nobody knows whether a step's effect happened."""
        step = self._started(idx)
        self.trigger_event(StepInDoubt, idx=idx, tool=step.tool, attempt=step.attempt, reason=reason)

    def record_settlement(self, idx: int, outcome: Settlement, by: str) -> None:
        """Record what became of a doubt; a step that did not happen gets a new key."""
        step = self._started(idx)
        key = None
        if outcome == "did_not_happen" and step.key is not None:
            key = renewed(step.key)
        self.trigger_event(
            DoubtSettled, idx=idx, tool=step.tool, attempt=step.attempt, outcome=outcome, by=by, key=key
        )

    def record_parked(self, reason: str) -> None:
        """Record that this code cannot act on the run."""
        self.trigger_event(Parked, reason=bounded(reason))

    def record_requeued(self, by: str) -> None:
        """Record that a person sent the run back to work."""
        if self._state.status is Status.WAITING and self._state.parked is None:
            raise IllegalEvent(f"run {self._state.run_id} waits for {self._state.waiting_for}, it is not parked")
        self.trigger_event(Requeued, by=by)

    def record_compensation(self, by: str) -> None:
        """Begin to undo the finished effects."""
        self._nothing_open(CompensationBegan)
        self.trigger_event(CompensationBegan, by=by)

    def record_compensated(self) -> None:
        """End the run: what could be undone was undone."""
        self._nothing_open(CompensationEnded)
        if self._state.status is Status.RUNNING and not self._state.compensating:
            raise IllegalEvent(f"run {self._state.run_id}: it undoes nothing")
        self.trigger_event(CompensationEnded)

    def record_answer(self, answer_json: str) -> None:
        """End the run with an answer."""
        self._nothing_open(Finished)
        self.trigger_event(Finished, answer=answer_json)

    def record_surrender(self, reason: str) -> None:
        """End the run without an answer."""
        self._nothing_open(RunFailed)
        self.trigger_event(RunFailed, reason=reason)

    # What the event store's base class asks for.

    def trigger_event(self, event_class: type[CanMutateAggregate[UUID]], **kwargs: Any) -> None:
        """Trigger an event where it is legal; raise ``IllegalEvent`` where it is not."""
        if self._clock is None:
            raise IllegalEvent(f"run {self._state.run_id}: in a tool, the run is a frozen view")
        if event_class not in LEGAL[self._state.status]:
            raise IllegalEvent(
                f"run {self._state.run_id} is {self._state.status}: {event_class.__name__} cannot happen to it"
            )
        values = {name: valid_unicode(value) if isinstance(value, str) else value for name, value in kwargs.items()}
        version = self._version + 1
        event = cast(
            AnyEvent,
            event_class(originator_id=self._id, originator_version=version, timestamp=self.now, **values),
        )
        # What ``event.mutate(self)`` does, less its check that the event is the next: it was made so.
        self._went_to(evolve(self._state, event), version, event.timestamp)
        self._pending_events.append(event)

    def _trigger_fitting(self, event_class: type[Event], **fields: Any) -> None:
        """Trigger an event that fits what happened before; raise ``IllegalEvent`` where it does not."""
        draft = cast(AnyEvent, event_class(timestamp=self.now, **fields))
        if why := misfit(self._state, draft, None):
            raise IllegalEvent(f"run {self._state.run_id}: {event_class.__name__}: {why}")
        self.trigger_event(event_class, **fields)

    def _went_to(self, state: RunState, version: int, at: datetime) -> None:
        """Set what an event changes, past ``__setattr__``, which is for views: those trigger nothing."""
        vars(self).update(_state=state, _version=version, _modified_on=at)

    def take_in(self, event: AnyEvent) -> None:
        """Fold an event into the state: what every event's ``apply`` does, where the library mutates a run by it."""
        self._state = evolve(self._state, event)

    def collect_events(self) -> Sequence[CanMutateAggregate[UUID]]:
        """Return what was pending; from now on it counts as recorded."""
        pending = tuple(self.pending_events)
        self.mark_recorded()
        return pending

    def mark_recorded(self) -> None:
        """Count what was pending as recorded: the store made it durable."""
        vars(self).update(_recorded=self._state, _appended=(*self._pending_events,))
        self._pending_events.clear()

    def catch_up(self, events: Sequence[AnyEvent]) -> None:
        """Take in what others recorded meanwhile; what is pending comes after it.

        What a decider said before a person had said something is not recorded: it is asked again.  Nor is what a
        person's answer came before, a start once the run is paused, or what was about to be done and fits no more:
        whoever moves the run looks again.  Raises ``IllegalEvent`` where something else cannot happen any more.
        """
        pending = self.pending
        self.discard()
        self._state = self._recorded = fold(events, self._recorded)
        self._version = self._state.version
        before: AnyEvent | None = None
        heard = {type(event) for event in events} & _HEARD
        dropped: set[int] = set()
        for event in pending:
            if self._is_overtaken(event, dropped, heard):
                continue
            if why := misfit(self._state, event, before):
                raise IllegalEvent(f"run {self._state.run_id}: {type(event).__name__}: {why}")
            self.trigger_event(type(event), **self._as_of_now(event))
            before = event

    def _is_overtaken(self, event: AnyEvent, dropped: set[int], heard: Collection[type[Event]]) -> bool:
        """Say whether an event that is pending is not to be recorded any more; note the step that goes with it.

        ``heard`` is what a person has said since that a decider must know before it decides.
        """
        idx = getattr(event, "idx", None)
        if idx in dropped:
            return True
        state, is_heard = self._state, bool(heard)
        match event:
            case LlmDecided() if event.idx >= len(state.steps) or state.is_held:
                is_overtaken = is_heard
            case LlmAnswered() | Finished() | RunFailed():
                is_overtaken = is_heard
            case BudgetReserved():
                is_overtaken = is_heard and (state.is_held or state.compensating)
            case Parked():
                is_overtaken = CompensationBegan in heard
            case CompensationEnded():
                is_overtaken = state.is_held
            case _:
                is_overtaken = is_past(state, event)
        if is_overtaken and isinstance(event, LlmDecided | DoubtSettled):
            dropped.add(event.idx)  # what it came to goes with it
        return is_overtaken

    def _as_of_now(self, event: AnyEvent) -> dict[str, Any]:
        """Return what an event says that is triggered again: a signal that is there by now ends its wait."""
        fields = {name: getattr(event, name) for name in type(event).model_fields if name not in Event.model_fields}
        if isinstance(event, WaitEnded) and event.idx is not None and event.received is None:
            signal = self._state.signal_for(self._state.steps[event.idx])
            if signal is not None:
                fields |= {"reason": "signal", "received": signal.seq}
        return fields

    def discard(self) -> None:
        """Forget what is pending: the store refused it."""
        self.pending_events.clear()
        self._state = self._recorded
        self._version = self._recorded.version
        if self._recorded.updated_at is not None:
            self._modified_on = self._recorded.updated_at

    def _open(self, idx: int) -> Step:
        for step in self._state.open_steps:
            if step.idx == idx:
                return step
        raise IllegalEvent(f"run {self._state.run_id}: step {idx} is not open")

    def _started(self, idx: int, attempt: int | None = None) -> Step:
        step = self._open(idx)
        if step.status not in ("started", "in_doubt", "retrying") or attempt not in (None, step.attempt):
            raise IllegalEvent(
                f"run {self._state.run_id}: step {idx} is {step.status} at attempt {step.attempt}, "
                f"attempt {attempt or 'of now'} is not under way"
            )
        return step

    @property
    def now(self) -> datetime:
        """The time of the next event, by the store's clock."""
        if self._clock is None:
            raise AttributeError("now: in a tool, the run is a frozen view and has no clock")
        return self._clock(self.version).astimezone(AS_READ)

    def _nothing_open(self, event_class: type[Event]) -> None:
        if self._state.open_steps:
            raise IllegalEvent(f"run {self._state.run_id}: {event_class.__name__} cannot happen while steps are open")


def agents_called(name: str, among: Iterable[type[AgentRun]] | None = None) -> set[type[AgentRun]]:
    """Return the classes of agents of that name: all that the program defines, or some of ``among``."""
    return {agent for agent in (_agents() if among is None else among) if agent.agent_name == name}


def _agents() -> Iterator[type[AgentRun]]:
    found: list[type[AgentRun]] = [AgentRun]
    while found:
        yield (agent := found.pop())
        found += agent.__subclasses__()


def _awaited(wait: Wait, idx: int) -> str | None:
    """Return the name of the signal that ends a wait; an answer to a question is of its step alone."""
    match wait:
        case WaitFor(signal=signal):
            return signal
        case Ask():
            return f"{ASKED}{idx}"
        case Sleep():
            return None


def wait_of(event: WaitBegan) -> Wait:
    """Return the wait that an event of a step tells of."""
    if event.signal is not None:
        return WaitFor(event.signal, event.wake_at)
    if event.wake_at is None:
        raise IllegalEvent(f"step {event.idx} waits for the end of run {event.child}: nothing asked for that")
    return Sleep(event.wake_at)


def _refuse_fields(cls: type[AgentRun]) -> None:
    named = [
        name
        for name, annotation in vars(cls).get("__annotations__", {}).items()
        if get_origin(annotation) is not ClassVar and not str(annotation).startswith(("ClassVar", "typing.ClassVar"))
    ]
    if "__init__" in vars(cls):
        named.append("__init__")
    if named:
        raise BadAgent(
            f"{cls.__name__} declares {', '.join(named)}: an agent is its journal and holds nothing else; "
            "pass what tools need as Runner(..., deps=...) and read it as ctx.deps"
        )
