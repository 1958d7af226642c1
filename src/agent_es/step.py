"""One step of a run, with the I/O left out: a generator of requests.

Rule 1: every ``yield`` is a place where the process may die; whoever drives the generator performs the request.
Rule 2: no body starts before its start mark is durable and known to be ours.
Rule 3: nothing goes on from a result that is not in the journal.
Rule 4: attempts that end with the outcome unknown end in doubt, never in a failure that the decider sees: it would
call again, under another key.

The idea of a flow written once and driven by a short loop, blocking or awaiting, is from httpx's ``Auth``.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from agent_es.decider import Call, ClosePhase, Decider, Fail, Finish, OnlySaid, Said, StartChild, Unusable, Used
from agent_es.envelope import Asks, Envelope, Refused, Usage, Verdict
from agent_es.errors import BadArguments, BadDecision, BudgetSpent, KeyReused, NotRecordable, RunMoved, StepUnplayable
from agent_es.keys import renewed
from agent_es.run import AgentRun, Planned
from agent_es.scratchpad import DEFAULT, Memory, Phase, Summarizer, Written, cut_summary, read_result
from agent_es.state import BY_PROBE, Status, Step
from agent_es.tools import (
    DEFAULT_RETRY,
    MAX_ARGS_BYTES,
    CallTool,
    DidNotHappen,
    Effect,
    Failed,
    Outcome,
    Probed,
    Retry,
    Returned,
    Tool,
    Unknown,
    Waits,
)
from agent_es.values import bounded, canonical, decode, parsed
from agent_es.waits import Ask, Sleep, Wait, WaitFor


@dataclass(frozen=True, slots=True)
class Decide:
    """Ask the decider; answered with its decision."""

    run: AgentRun
    decider: Decider | None = None
    """Who is asked; None for the run's own."""


@dataclass(frozen=True, slots=True)
class Summarize:
    """Ask for what is to stand for a phase; answered with a summary, as text or as ``Written``."""

    run: AgentRun
    phase: Phase
    summarizer: Summarizer


@dataclass(frozen=True, slots=True)
class Append:
    """Make the run's pending events durable; answered when they are."""

    run: AgentRun


@dataclass(frozen=True, slots=True)
class Start:
    """Start a body; answered at once, the body runs beside the generator."""

    run: AgentRun
    step: Step


@dataclass(frozen=True, slots=True)
class NextDone:
    """Wait for a body; answered with the ``(idx, outcome)`` of the one that ended first."""


@dataclass(frozen=True, slots=True)
class Transact:
    """Run a body inside the store's own transaction; answered with its outcome.

    Where that is ``Returned`` or ``Waits``, it is recorded already: in the same transaction.
    """

    run: AgentRun
    step: Step


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask a tool's probe whether the effect of a step happened; answered with what it says."""

    run: AgentRun
    step: Step


@dataclass(frozen=True, slots=True)
class Enter:
    """Ask the limits that all workers share about a call.

    Answered with the time at which it may start, None where it may now, and whether it has that time for its own.
    """

    run: AgentRun
    step: Step


Request = Decide | Summarize | Append | Start | NextDone | Transact | Probe | Enter
Requests = Generator[Request, Any, None]
Record = Callable[[Sequence[Planned]], object]
"""Records the calls of a turn, and starts those that may start at once."""
Asking = Generator[Request, Any, list[Step]]
"""Asks what it must know, and returns the steps whose next attempt was marked to start."""


def advance(
    run: AgentRun,
    tools: Mapping[str, Tool],
    *,
    at_once: int,
    draw: Callable[[], float],
    limited: Collection[str] = (),
    memory: Memory | None = None,
) -> Requests:
    """Take a run one step further: a decision if none is open, then the calls that it made.

    ``memory`` says how much of the run its decider reads: what is too much is summarized before it is asked.  At most
    ``at_once`` bodies run beside each other; ``draw`` gives numbers between 0 and 1 for the jitter of waits;
    ``limited`` are the tools whose calls are held to a limit that all workers share.
    Parks the run where this code cannot act on a step that was decided, and raises ``BadDecision`` where the
    decider erred.
    """
    yield from _moved(run, tools, Turn(run, tools, at_once, draw, limited, memory=memory).take())


def decide(
    run: AgentRun, tools: Mapping[str, Tool], decider: Decider | None = None, memory: Memory | None = None
) -> Requests:
    """Ask what comes next and record it, its calls queued: nothing starts.  Where steps are open, nobody is asked.

    In a run that undoes its effects that is the next undoing, and nobody is asked either.  Where a person said
    something meanwhile nothing is recorded: ask again.  Parks the run as ``advance`` does; raises ``BadDecision``.
    """
    if not run.state.is_over and not run.state.open_steps:
        record = partial(run.record_turn, at_once=0)
        undoes = run.state.compensating
        asks = _undo(run, tools, record) if undoes else _decide(run, tools, record, memory, decider)
        yield from _moved(run, tools, asks)


def act(
    run: AgentRun,
    tools: Mapping[str, Tool],
    *,
    at_once: int,
    draw: Callable[[], float],
    limited: Collection[str] = (),
    only: Collection[int] | None = None,
) -> Requests:
    """See the open steps through as far as they can go on now, as ``advance`` does; nobody is asked what comes next.

    As there, whoever calls it for a run that waits for the clock says that its time is up.
    ``only`` holds the indexes of the steps that it may touch.  Several such generators may move one run, each its own
    steps, taking turns where they wait at ``NextDone`` and nowhere else.  The run rests once none of its steps can go
    on; until then a step whose retry is not due is left as it is, to be acted on from its ``retry_at`` on.
    """
    if not run.state.is_over:
        yield from _moved(run, tools, Turn(run, tools, at_once, draw, limited, only).act(), only)


def _moved(
    run: AgentRun, tools: Mapping[str, Tool], requests: Requests, only: Collection[int] | None = None
) -> Requests:
    """Go on with a run that nobody holds; park it where a step does not fit this code."""
    if run.state.is_held:
        return
    try:
        _check_playable(run, tools, only)
        yield from requests
    except StepUnplayable as misfit:
        run.discard()
        run.record_parked(str(misfit))
        yield Append(run)
    except RunMoved:
        if run.state.status is not Status.CANCELLED:
            raise
    except Ended:
        pass


class Ended(Exception):  # never leaves this module
    """The run is over: with what was appended, or because somebody ended it meanwhile."""


def appended(run: AgentRun) -> Requests:
    """Make what is pending durable; go no further where the run is over then."""
    yield Append(run)
    if run.state.is_over:
        raise Ended


class Turn:
    """The steps of one turn on their way."""

    def __init__(
        self,
        run: AgentRun,
        tools: Mapping[str, Tool],
        at_once: int,
        draw: Callable[[], float],
        limited: Collection[str],
        only: Collection[int] | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._run = run
        self._tools = tools
        self._at_once = at_once
        self._draw = draw
        self._limited = limited
        self._only = only
        self._memory = memory
        self._todo: deque[Step] = deque()
        """What needs a start mark, or to be looked into first."""
        self._ready: deque[Step] = deque()
        """What has its start mark, durable with the next append."""
        self._flying = 0

    def take(self) -> Requests:
        """Decide if nothing is open, then see the open steps through, or wait until they can go on."""
        yield from self._begin()
        yield from self._see_through()

    def act(self) -> Requests:
        """See the open steps through, or wait until they can go on."""
        now = self._end_what_is_due()
        self._todo.extend(step for step in _within(self._only, self._run.state.open_steps) if self._is_due(step, now))
        yield from self._see_through()

    def _see_through(self) -> Requests:
        """Start what is to do and what becomes ready, until nothing can go on."""
        run = self._run
        while True:
            if self._todo and run.pending_events:  # what came in is recorded apart from what starts next
                yield from appended(run)
            yield from self._fill_up()
            idle = not (self._flying or self._ready)
            if idle:
                self._rest()
            if run.pending_events:
                yield from appended(run)
            if idle:
                return
            for step in self._take_ready():
                yield from self._start(step)
            if self._flying:
                idx, outcome = yield NextDone()
                self._flying -= 1
                if run.state.is_over and not isinstance(outcome, Returned | Waits):
                    raise Ended  # who moved another step has seen it: nothing is tried again
                self._ready.extend(self._end(run.state.steps[idx], outcome))

    def _fill_up(self) -> Requests:
        """Take up what is to do, for as many bodies as may run beside each other."""
        run = self._run
        while self._todo and self._flying + len(self._ready) < self._at_once:
            step = run.state.steps[self._todo.popleft().idx]  # a person may have ended it meanwhile
            if not run.state.is_held and self._is_due(step):
                self._ready.extend((yield from self._take_up(step)))

    def _begin(self) -> Requests:
        """See what there is to do: what the decider says, or what was left open."""
        run = self._run
        now = self._end_what_is_due() if run.state.open_steps else None
        if now is None or not run.state.open_steps:
            if run.pending_events:
                yield from appended(run)
            if run.state.is_held:
                return
            record = partial(run.record_turn, at_once=self._at_once, limited=self._limited)
            if run.state.compensating:
                yield from _undo(run, self._tools, partial(run.record_turn, at_once=1))
            else:
                yield from _decide(run, self._tools, record, self._memory)
            self._ready.extend(step for step in run.state.open_steps if step.status == "started")
            self._todo.extend(step for step in run.state.open_steps if step.status == "queued")
        else:
            self._todo.extend(step for step in run.state.open_steps if self._is_due(step, now))

    def _end_what_is_due(self) -> datetime:
        """Record what the run waits for no longer; return the time that counts for what is open."""
        run = self._run
        # Who comes to a run that waits comes because its time is up, whatever the clock says here; or to ask a probe.
        is_due = run.state.status is Status.WAITING and run.state.waiting_for != "doubt"
        now = (run.state.wake_at if is_due else None) or run.now
        open_steps = run.state.open_steps
        is_ours = self._only is None or any(self._is_due(step, now) for step in _within(self._only, open_steps))
        if is_ours and run.state.rests_until is not None and run.state.rests_until <= now:
            run.record_rest_ended()
        for step in _within(self._only, run.state.gated):
            if step.approval is not None and step.approval.is_expired(now):
                run.record_denied(step.idx, CLOCK, "nobody answered in time", is_expired=True)
        _end_waits(run, now, self._only)
        return now

    def _take_ready(self) -> list[Step]:
        """Return what may start: not what becomes ready meanwhile, whose start mark is not durable yet.

        Nor what was not marked after all, because a person stopped the run.
        """
        ready = [(step, self._run.state.steps[step.idx]) for step in self._ready]
        self._ready.clear()
        return [now for step, now in ready if (now.status, now.attempt) == ("started", step.attempt)]

    def _start(self, step: Step) -> Requests:
        if self._tools[step.tool].effect is not Effect.TRANSACTIONAL:
            self._flying += 1
            yield Start(self._run, step)
            return
        if self._run.pending_events:  # they must not go down with a transaction that is rolled back
            yield from appended(self._run)
        outcome = yield Transact(self._run, step)
        if not isinstance(outcome, Returned | Waits):
            self._ready.extend(self._end(step, outcome))

    def _rest(self) -> None:
        """Record that the run sleeps until the first of its retrying steps is due, where no other can go on."""
        if self._run.state.is_held:
            return
        steps = self._run.state.open_steps
        due = [step.retry_at for step in steps if step.retry_at is not None]
        if any(step.status in ("queued", "started") for step in steps):  # they are somebody else's
            return
        if due and self._run.state.rests_until is None:
            self._run.record_rest(min(due))

    def _is_due(self, step: Step, now: datetime | None = None) -> bool:
        """Whether a step that was found open is to be taken up now."""
        if step.status in ("waiting", "gated") or not step.is_open:
            return False
        if step.status == "in_doubt":
            tool = self._tools[step.tool]
            return tool.probe is not None and tool.on_doubt == "park"
        return step.retry_at is None or now is None or step.retry_at <= now

    def _take_up(self, step: Step) -> Asking:
        """Go on with a step that has no body running: where it was started before, its outcome may be unknown."""
        tool = self._tools[step.tool]
        if step.tool in self._limited and step.status in ("queued", "retrying"):
            until, is_given = yield Enter(self._run, step)
            if until is not None:
                self._run.record_delay(step.idx, until, is_given=is_given)
                return []
        if step.status == "queued" or step.attempt == 0 or tool.effect in (Effect.READ, Effect.TRANSACTIONAL):
            return self._try_again(step, "the process died in it")
        why = step.doubt or (
            f"{step.error['type']}: {step.error['message']}" if step.error else "the process died in it"
        )
        return (yield from self._look_into(step, why))

    def _end(self, step: Step, outcome: Outcome) -> list[Step]:
        """Record what an attempt came to."""
        run = self._run
        match outcome:
            case Returned() | Waits():
                run.record_outcome(step.idx, outcome)
                _end_waits(run, only=self._only)
            case Failed(may_retry=True) if self._has_attempts(step) and not self._gives_up(step):
                return self._later(step, outcome)
            case Failed():
                run.record_failure(step.idx, outcome)
            case Unknown(may_retry=True) if self._can_find_out(step):
                return self._later(step, outcome)
            case Unknown():
                return self._doubt(step, f"{outcome.type}: {outcome.message}")
        return []

    def _later(self, step: Step, outcome: Failed | Unknown) -> list[Step]:
        """Try again: at once where the tool says so, else when its wait is over."""
        tool = self._tools[step.tool]
        delay = self._retry(tool).delay(step.attempts_spent, self._draw())
        if tool.effect is Effect.PROBED:
            delay = max(delay, tool.settle_after)
        elif delay == 0 and not self._key_is_spent(step) and not self._run.state.is_held:
            return self._try_again(step, f"{outcome.type}: {outcome.message}")
        self._run.record_retry(step.idx, outcome, self._run.now + timedelta(seconds=delay))
        return []

    def _look_into(self, step: Step, why: str) -> Asking:
        """Find out, before any further attempt, what the last one came to: by the effect of the tool."""
        tool = self._tools[step.tool]
        if tool.effect is Effect.IDEMPOTENT and step.status != "in_doubt":
            if not self._key_is_spent(step):
                return self._try_again(step, why)
            why = f"{why}; the provider keeps a key for {tool.key_ttl:g} s only, so it is not sent again"
        if tool.probe is None:
            return self._doubt(step, why)
        settled_at = step.started_at and step.started_at + timedelta(seconds=tool.settle_after)
        if step.status == "started" and settled_at and settled_at > self._run.now:
            self._run.record_retry(step.idx, Unknown("Unknown", why), settled_at)
            return []
        if self._run.pending_events:
            yield from appended(self._run)
        return self._believe(step, why, (yield Probe(self._run, step)))

    def _believe(self, step: Step, why: str, answer: Probed) -> list[Step]:
        """Record what a probe says."""
        match answer:
            case Returned() | Waits():
                self._run.record_settlement(step.idx, "happened", BY_PROBE)
                return self._end(step, answer)
            case DidNotHappen():
                self._run.record_settlement(step.idx, "did_not_happen", BY_PROBE)
                if not self._gives_up(step):
                    now = self._run.state.steps[step.idx]
                    return self._try_again(now, f"{why}; the probe says it did not happen")
            case Unknown(kind, message):
                if step.status != "in_doubt":
                    return self._doubt(step, f"{why}; the probe cannot tell: {kind}: {message}")
        return []

    def _doubt(self, step: Step, why: str) -> list[Step]:
        """Record that nobody knows, and do what the tool says about it."""
        run, tool = self._run, self._tools[step.tool]
        if tool.on_doubt == "resend" and self._has_attempts(step):
            return self._try_again(step, why)
        which = f"attempt {step.attempts_spent} of {self._retry(tool).max_attempts}"
        last = f"{which}: {why}; nobody can tell whether {tool.name} happened"
        run.record_doubt(step.idx, last)
        if tool.on_doubt == "skip":
            run.record_settlement(step.idx, "skipped", "on_doubt")
            run.record_result(step.idx, "null")
        elif tool.on_doubt == "tell":
            run.record_settlement(step.idx, "told", "on_doubt")
            run.record_failure(step.idx, Failed("OutcomeUnknown", last, applied=None))
        return []

    def _try_again(self, step: Step, why: str) -> list[Step]:
        """Mark that the next attempt starts, and return the step; where none is left, say how it ended."""
        run, tool = self._run, self._tools[step.tool]
        if run.state.is_held:
            return []  # whoever goes on with it looks into it again
        if self._has_attempts(step):
            run.record_start(step.idx)
            return [run.state.steps[step.idx]]
        if tool.effect is Effect.IDEMPOTENT:
            return self._doubt(step, why)
        which = f"attempt {step.attempts_spent} of {self._retry(tool).max_attempts}"
        run.record_failure(step.idx, Failed("AttemptsExhausted", f"{which} was the last: {why}"))
        return []

    def _gives_up(self, step: Step) -> bool:
        """Whether a step that surely did not happen is not made any more: its run undoes what happened."""
        return self._run.state.compensating and step.undoes is None

    def _retry(self, tool: Tool) -> Retry:
        return retry_of(self._run, tool)

    def _has_attempts(self, step: Step) -> bool:
        return step.attempts_spent < self._retry(self._tools[step.tool]).max_attempts

    def _can_find_out(self, step: Step) -> bool:
        """Whether somebody can still say what an attempt came to: a probe, or the provider that keeps the key."""
        tool = self._tools[step.tool]
        if tool.effect is Effect.IDEMPOTENT and not self._key_is_spent(step):
            return self._has_attempts(step)
        return tool.probe is not None

    def _key_is_spent(self, step: Step) -> bool:
        ttl = self._tools[step.tool].key_ttl
        if ttl is None or step.keyed_at is None:
            return False
        return self._run.now - step.keyed_at >= timedelta(seconds=ttl)


CLOCK = "the clock"
"""Who says no where nobody answers in time."""


def retry_of(run: AgentRun, tool: Tool) -> Retry:
    """Return how a tool is retried: as it says, as its agent says, or as its effect asks for."""
    resends = tool.effect is Effect.AT_MOST_ONCE and tool.on_doubt == "resend"
    return tool.retry or run.retry or DEFAULT_RETRY[Effect.IDEMPOTENT if resends else tool.effect]


def _within(only: Collection[int] | None, steps: Sequence[Step]) -> Sequence[Step]:
    return steps if only is None else [step for step in steps if step.idx in only]


@dataclass(slots=True)
class _Asked:
    """How a decider is asked, what that took, and what was said, as far as that is known."""

    memory: Memory | None
    each: Usage | None
    """What is set aside before anybody is asked; None where nothing is."""
    usage: Usage | None = None
    said: Said | None = None


def _decide(
    run: AgentRun,
    tools: Mapping[str, Tool],
    record: Record,
    memory: Memory | None,
    decider: Decider | None = None,
) -> Requests:
    """Ask the decider, and record what it says with what asking took; park the run where its budget is spent."""
    if (why := _spent(run)) is not None:
        yield from _park(run, why)
        return
    asked = _Asked(memory, None if run.envelope is None else run.envelope.each)
    try:
        if not (yield from _may_ask(run, asked)):
            return  # a person stopped the run
        answered = yield Decide(run, decider)
        if isinstance(answered, Used):
            asked.usage, asked.said, answered = answered.usage, answered.said, answered.decision
        elif asked.each is not None:
            asked.usage = Usage()
        yield from _follow(run, tools, answered, asked, record)
    except BudgetSpent as spent:  # by other runs that share it
        run.discard()
        _use(run, asked.usage)
        yield from _park(run, str(spent))
    except BadDecision:
        run.discard()
        if asked.usage is not None:
            _use(run, asked.usage)
            yield from appended(run)
        raise


def _may_ask(run: AgentRun, asked: _Asked) -> Generator[Request, Any, bool]:
    """Summarize what is too long to read, and set aside what asking may take; say whether the run may go on."""
    memory = asked.memory
    while memory is not None and (phase := memory.due(run.state)) is not None:
        yield from _close(run, phase, asked)
        if run.state.is_held or run.state.compensating:
            return False
    if asked.each is None:
        return True
    yield from _reserve(run, asked.each)
    return run.state.reserved is not None


def _close(run: AgentRun, phase: Phase, asked: _Asked) -> Requests:
    """Let a phase be summarized, and record what stands for it: that is paid for as any question is."""
    if asked.each is not None:
        yield from _reserve(run, asked.each)
        if run.state.reserved is None:
            return
    written = yield Summarize(run, phase, (asked.memory or DEFAULT).summarizer)
    usage = None if asked.each is None else Usage()
    if isinstance(written, Written):
        text, usage = written.text, written.usage
    else:
        text = written
    if not isinstance(text, str):
        raise BadDecision(
            f"run {run.state.run_id}: the summarizer returned {written!r:.200}; return a text or Written"
        )
    _use(run, usage)
    yield from _sum_up(run, phase, text)


def _close_as_said(run: AgentRun, closing: ClosePhase, asked: _Asked) -> Requests:
    """Close a phase as the decider says."""
    if len(run.state.steps) == run.state.summarized:
        raise BadDecision(f"run {run.state.run_id}: there is nothing in the phase {closing.phase!r} to close")
    _use(run, asked.usage)
    phase = (asked.memory or DEFAULT).phase(run.state, str(closing.phase))
    if closing.summary is not None:
        yield from _sum_up(run, phase, str(closing.summary))
        return
    asked.usage = None
    if run.pending_events:
        yield from appended(run)
    yield from _close(run, phase, asked)


def _sum_up(run: AgentRun, phase: Phase, text: str) -> Requests:
    run.record_summary(phase.first, phase.up_to, cut_summary(text, phase.longest), phase.name)
    yield from appended(run)


def _reserve(run: AgentRun, each: Usage) -> Requests:
    """Set aside what asking the decider may take; what was set aside before a crash counts as spent."""
    if run.state.reserved is not None:
        run.record_usage(None)
    run.record_reserved(each)
    yield from appended(run)


def _use(run: AgentRun, usage: Usage | None) -> None:
    if usage is not None:
        run.record_usage(usage)


def _park(run: AgentRun, spent: str) -> Requests:
    run.record_parked(f"its budget is spent: {spent}; give it another envelope, then requeue it")
    yield from appended(run)


def _hear(run: AgentRun, asked: _Asked) -> None:
    """Record what asking took, and what was said."""
    _use(run, asked.usage)
    if (said := asked.said) is not None:
        answer = _json(run, "what the model said", said.answer)
        request = None if said.request is None else _json(run, "what the model was asked", said.request)
        run.record_said(said.model, answer, said.finish_reason, said.tokens, request)


def _ask_again(run: AgentRun, unusable: Unusable, asked: _Asked) -> Requests:
    """Record that nothing can be done with what was said; park the run where that has gone on for too long."""
    _use(run, asked.usage)
    said = asked.said or Said("", None)
    answer = _json(run, "what the model said", said.answer)
    run.record_unusable(said.model, answer, unusable.reason, said.finish_reason)
    if (count := len(run.state.unusable)) >= unusable.asks:
        run.record_parked(f"{count} answers to one question could not be used, the last one since {unusable.reason}")
    yield from appended(run)


def _follow(run: AgentRun, tools: Mapping[str, Tool], decision: Any, asked: _Asked, record: Record) -> Requests:
    """Record what the decider said."""
    match decision:
        case Finish(answer):
            _hear(run, asked)
            run.record_answer(_json(run, "the answer", answer))
            yield from appended(run)
        case Fail(reason):
            _hear(run, asked)
            run.record_surrender(str(reason))
            yield from appended(run)
        case Unusable():
            yield from _ask_again(run, decision, asked)
        case OnlySaid() if asked.said is not None:
            _hear(run, asked)
            yield from appended(run)
        case ClosePhase():
            yield from _close_as_said(run, decision, asked)
        case CallTool() | Sleep() | WaitFor() | Ask() | StartChild():
            yield from _take_turn(run, tools, [decision], asked, record)
        case [*calls] if calls and all(isinstance(call, Call) for call in calls):
            yield from _take_turn(run, tools, calls, asked, record)
        case _:
            raise BadDecision(
                f"run {run.state.run_id}: the decider returned {decision!r:.200}; return CallTool(...), Sleep(...), "
                "WaitFor(...), Ask(...) or StartChild(...), a list of them, Finish(answer) or Fail(reason)"
            )


def _take_turn(
    run: AgentRun, tools: Mapping[str, Tool], calls: Sequence[Call], asked: _Asked, record: Record
) -> Requests:
    """Record the calls of a turn: those that may be made, and why the others may not."""
    first = len(run.state.steps)
    plan = [_plan(run, tools, idx, call) for idx, call in enumerate(calls, start=first)]
    if run.envelope is not None:
        plan = _judged(run, run.envelope, tools, plan)
    heard = _heard(run)
    while True:
        if _heard(run) != heard:  # a person said something meanwhile: the decider is asked again
            _use(run, asked.usage)
            if run.pending_events:
                yield from appended(run)
            return
        _hear(run, asked)
        record(plan)
        _end_where_refused(run, plan)
        _end_waits(run)
        try:
            yield from appended(run)
        except KeyReused as reused:  # the whole append was refused: tell the decider, and record the rest
            run.discard()
            at = reused.idx - first
            if reused.is_free:  # it surely did not happen there; the provider may have stored that under the key
                plan[at] = replace(plan[at], key=renewed(plan[at].key or ""))
            elif tools[calls[at].tool].on_key_reuse == "return_first" and reused.first is not None:
                plan[at] = replace(plan[at], answer=reused.first)
            else:
                plan[at] = replace(plan[at], refusal=Failed("KeyReused", str(reused)))
        else:
            return


def _heard(run: AgentRun) -> tuple[int, bool, bool]:
    """Return what of a run says whether a person has had something to say since."""
    return len(run.state.messages), run.state.is_held, run.state.compensating


def _spent(run: AgentRun) -> str | None:
    """Say what of the run's budget is spent, so that nothing may be decided any more; None where it may."""
    if run.envelope is None:
        return None
    state = run.state
    return run.envelope.spent(state.turns, len(state.steps), state.started_at, run.now)


def _end_where_refused(run: AgentRun, plan: Sequence[Planned]) -> None:
    """End the run where its envelope says so; then nothing of that turn is called."""
    refused = next((planned.refused for planned in plan if planned.refused), None)
    if refused is not None and run.envelope is not None and run.envelope.on_refusal == "fail":
        run.record_surrender(f"refused by {refused.rule}: {refused.why}")


def _judged(run: AgentRun, envelope: Envelope, tools: Mapping[str, Tool], plan: Sequence[Planned]) -> list[Planned]:
    """Return the calls of a turn as the run's envelope judges them: one after the other, as their budget goes."""
    called, judged = Counter(run.state.called), list[Planned]()
    for idx, planned in enumerate(plan, start=len(run.state.steps)):
        verdict: Verdict = None
        if planned.refusal is None:
            verdict = _verdict(envelope, tools, planned, idx, called)
        if isinstance(verdict, Asks) and planned.is_child:  # it has no body that could wait for a yes
            verdict = Refused(
                verdict.rule, "nobody can say yes to the start of another run; ask it of that run's calls"
            )
        match verdict:
            case Refused():
                judged.append(replace(planned, refused=verdict))
            case Asks():
                judged.append(replace(planned, asks=verdict, shown=_shown(tools, planned)))
            case None:
                judged.append(planned)
        called[planned.call.tool] += not (planned.refusal or isinstance(verdict, Refused))
    first = next((planned.refused for planned in judged if planned.refused), None)
    if first is not None and envelope.on_refusal == "fail":
        return [
            planned if planned.refusal or planned.refused else replace(planned, refused=first) for planned in judged
        ]
    return judged


def _shown(tools: Mapping[str, Tool], planned: Planned) -> str:
    """Return the arguments that a person is asked about: what the body would get."""
    tool = tools.get(planned.call.tool)
    return planned.args if tool is None or not planned.is_made else canonical(dict(tool.as_called(planned.args)))


def _verdict(
    envelope: Envelope, tools: Mapping[str, Tool], planned: Planned, idx: int, called: Mapping[str, int]
) -> Verdict:
    if planned.wait is not None or tools.get(planned.call.tool) is read_result:
        return None  # what a run has in its own journal it may read
    tool = None if planned.is_child else tools.get(planned.call.tool)
    try:
        if tool is None:
            return envelope.judge_any([planned.call.tool], idx, decode(planned.args), called)
        return envelope.judge_any(tool.names, idx, tool.as_called(planned.args), called)
    except BadArguments as error:
        return Refused("arguments", str(error))


def _end_waits(run: AgentRun, now: datetime | None = None, only: Collection[int] | None = None) -> None:
    """Record which waits are over: for each step the first signal that came for it, or else the clock."""
    for step in _within(only, run.state.waits):
        if signal := run.state.signal_for(step):
            run.record_wait_ended(step.idx, signal.seq)
        elif step.wake_at is not None and step.wake_at <= (now or run.now):
            run.record_wait_ended(step.idx)


def _plan(run: AgentRun, tools: Mapping[str, Tool], idx: int, call: Call) -> Planned:
    """Check a call and key it; what is wrong with it is for the decider to see."""
    if isinstance(call, Wait | StartChild):
        args = _json(run, f"the arguments of {call.tool}", call.args)
        if isinstance(call, StartChild):
            return Planned(CallTool(call.tool, call.args), args, is_child=True)
        return Planned(CallTool(call.tool, call.args, call.call_id), args, wait=call)
    if not isinstance(call.tool, str) or not isinstance(call.call_id, str | None):
        raise BadDecision(f"run {run.state.run_id}: {call!r:.200} needs the name of a tool, and a text as call_id")
    try:
        args = _args_of(run, call)
    except BadArguments as error:  # the journal has what can be kept of them
        unusable = canonical({"unusable": bounded(call.args if isinstance(call.args, str) else repr(call.args), 500)})
        return Planned(call, unusable, refusal=Failed("BadArguments", str(error)))
    tool = tools.get(call.tool)
    if tool is None:
        known = ", ".join(sorted(tools)) or "none"
        return Planned(call, args, refusal=Failed("ToolUnknown", f"no tool {call.tool!r}; there are: {known}"))
    try:
        tool.validated(args)
        key = tool.key_for(run.state.run_id, idx, args)
        return Planned(
            call, args, key=key, keyed_as=tool.first_name if key and tool.first_name != call.tool else None
        )
    except BadArguments as error:
        return Planned(call, args, refusal=Failed("BadArguments", str(error)))


def _args_of(run: AgentRun, call: CallTool) -> str:
    """Return the arguments of a call as the journal has them; raise ``BadArguments`` for what a model cannot mean."""
    try:
        given = parsed(call.args.strip() or "{}") if isinstance(call.args, str) else call.args
    except NotRecordable as error:
        raise BadArguments(f"{call.tool}: the arguments cannot be read: {error}") from None
    if not isinstance(given, Mapping):
        if isinstance(call.args, str):
            raise BadArguments(f"{call.tool}: the arguments are {call.args:.200}, no object")
        raise BadDecision(f"run {run.state.run_id}: the arguments of {call.tool} are {call.args!r:.200}, no mapping")
    try:
        args = canonical(dict(given))
    except NotRecordable as error:
        if run.envelope is None and not isinstance(call.args, str):
            raise BadDecision(
                f"run {run.state.run_id}: the arguments of {call.tool} cannot be recorded: {error}"
            ) from None
        raise BadArguments(f"{call.tool}: the arguments cannot be recorded: {error}") from None
    if (size := len(args.encode())) > MAX_ARGS_BYTES:
        raise BadArguments(f"{call.tool}: the arguments have {size:,} bytes, and may have {MAX_ARGS_BYTES:,}")
    return args


def _undo(run: AgentRun, tools: Mapping[str, Tool], record: Record) -> Requests:
    """Decide to undo the effect that was finished last, or end the run where none is left."""
    steps = run.state.steps
    last = steps[-1] if steps else None
    if last and last.undoes is not None and last.status == "failed" and last.idx >= run.state.sent_back_at:
        run.record_parked(f"step {last.idx} could not undo step {last.undoes}: {last.value_json}")
        yield from appended(run)
        return
    undone = {step.undoes for step in steps if step.undoes is not None and step.status == "done"}
    for step in reversed(steps):
        tool = tools.get(step.tool)
        is_effect = step.status == "done" and step.key is not None and step.undoes is None
        if is_effect and step.idx not in undone and tool and tool.compensate:
            planned = _plan(run, tools, len(steps), tools[tool.compensate].undoing(step))
            record([replace(planned, undoes=step.idx)])
            try:
                yield from appended(run)
            except KeyReused as reused:
                raise StepUnplayable(f"step {step.idx} cannot be undone: {reused}") from None
            return
    run.record_compensated()
    yield from appended(run)


def _check_playable(run: AgentRun, tools: Mapping[str, Tool], only: Collection[int] | None = None) -> None:
    for step in _within(only, run.state.open_steps):
        if step.status == "waiting":
            continue  # nothing of it is called any more
        where = f"run {run.state.run_id} step {step.idx}"
        if step.tool not in tools:
            raise StepUnplayable(f"{where}: this program has no tool {step.tool!r}; requeue it where the tool is")
        try:
            tools[step.tool].validated(step.args_json)
        except BadArguments as error:
            raise StepUnplayable(f"{where}: its arguments no longer fit: {error}") from None


def _json(run: AgentRun, what: str, value: Any) -> str:
    try:
        return canonical(value)
    except NotRecordable as error:
        raise BadDecision(f"run {run.state.run_id}: {what} cannot be recorded: {error}") from None
