"""One step of a run, with the I/O left out: a generator of requests.

Rule 1: every ``yield`` is a place where the process may die; whoever drives the generator performs the request.
Rule 2: no body starts before its start mark is durable and known to be ours.
Rule 3: nothing goes on from a result that is not in the journal.

The idea of a flow written once and driven by a short loop, blocking or awaiting, is from httpx's ``Auth``.
"""

from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_es.decider import Fail, Finish
from agent_es.errors import BadArguments, BadDecision, KeyReused, NotRecordable, StepUnplayable
from agent_es.run import AgentRun, Planned
from agent_es.state import Step
from agent_es.tools import CallTool, Effect, Failed, Outcome, Returned, Tool, Unknown
from agent_es.values import canonical, decode


@dataclass(frozen=True, slots=True)
class Decide:
    """Ask the decider; answered with its decision."""

    run: AgentRun


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


Request = Decide | Append | Start | NextDone
Requests = Generator[Request, Any, None]


def advance(run: AgentRun, tools: Mapping[str, Tool], *, at_once: int) -> Requests:
    """Take a run one step further: a decision if none is open, then the calls that it made.

    At most ``at_once`` bodies run beside each other.  Raises ``StepUnplayable`` before anything is touched
    where this code cannot act on a step that was decided, and ``BadDecision`` where the decider erred.
    """
    if not run.state.open_steps:
        yield from _decide(run, tools, at_once)
        ready = deque(step for step in run.state.open_steps if step.status == "started")
        todo = deque(step for step in run.state.open_steps if step.status == "queued")
    else:
        _check_playable(run, tools)
        ready = deque()
        todo = deque(step for step in run.state.open_steps if step.status != "in_doubt")
    flying = 0
    while True:
        while todo and flying + len(ready) < at_once:
            ready.extend(_mark_start(run, tools, todo.popleft(), "the process died in it"))
        if run.pending_events:
            yield Append(run)
        flying += len(ready)
        while ready:
            yield Start(run, ready.popleft())
        if not flying:
            return
        idx, outcome = yield NextDone()
        flying -= 1
        ready.extend(_record_outcome(run, tools, run.state.steps[idx], outcome))


def _decide(run: AgentRun, tools: Mapping[str, Tool], at_once: int) -> Requests:
    decision = yield Decide(run)
    match decision:
        case Finish(answer):
            run.record_answer(_json(run, "the answer", answer))
            yield Append(run)
            return
        case Fail(reason):
            run.record_surrender(str(reason))
            yield Append(run)
            return
        case CallTool():
            calls = [decision]
        case [*calls] if calls and all(isinstance(call, CallTool) for call in calls):
            pass
        case _:
            raise BadDecision(
                f"run {run.state.run_id}: the decider returned {decision!r:.200}; "
                "return CallTool(...), a list of them, Finish(answer) or Fail(reason)"
            )
    first = len(run.state.steps)
    plan = [_plan(run, tools, idx, call) for idx, call in enumerate(calls, start=first)]
    while True:
        run.record_turn(plan, at_once=at_once)
        try:
            yield Append(run)
        except KeyReused as reused:  # the whole append was refused: tell the decider, and record the rest
            run.discard()
            at = reused.idx - first
            plan[at] = replace(plan[at], key=None, refusal=Failed("KeyReused", str(reused)))
        else:
            return


def _plan(run: AgentRun, tools: Mapping[str, Tool], idx: int, call: CallTool) -> Planned:
    """Check a call and key it; what is wrong with it is for the decider to see."""
    if not isinstance(call.args, Mapping):
        raise BadDecision(f"run {run.state.run_id}: the arguments of {call.tool} are {call.args!r:.200}, no mapping")
    args = _json(run, f"the arguments of {call.tool}", dict(call.args))
    tool = tools.get(call.tool)
    if tool is None:
        known = ", ".join(sorted(tools)) or "none"
        return Planned(call, args, refusal=Failed("ToolUnknown", f"no tool {call.tool!r}; there are: {known}"))
    try:
        tool.validated(decode(args))
    except BadArguments as error:
        return Planned(call, args, refusal=Failed("BadArguments", str(error)))
    return Planned(call, args, key=tool.key_for(run.state.run_id, idx, args))


def _mark_start(run: AgentRun, tools: Mapping[str, Tool], step: Step, why: str) -> list[Step]:
    """Mark that the next attempt starts, and return the step; where none is left, say how it ended."""
    tool = tools[step.tool]
    if step.attempt < tool.retry.max_attempts:
        run.record_start(step.idx)
        return [run.state.steps[step.idx]]
    last = f"attempt {step.attempt} of {tool.retry.max_attempts} was the last: {why}"
    if tool.effect is Effect.READ:
        run.record_failure(step.idx, Failed("AttemptsExhausted", last))
    else:
        run.record_doubt(step.idx, f"{last}; nobody can tell whether {tool.name} happened")
    return []


def _record_outcome(run: AgentRun, tools: Mapping[str, Tool], step: Step, outcome: Outcome) -> list[Step]:
    """Record what an attempt came to; return the step where another attempt starts."""
    match outcome:
        case Returned(value):
            run.record_result(step.idx, value)
        case Failed():
            run.record_failure(step.idx, outcome)
        case Unknown(kind, message):  # the same key again: the provider knows what happened
            return _mark_start(run, tools, step, f"{kind}: {message}")
    return []


def _check_playable(run: AgentRun, tools: Mapping[str, Tool]) -> None:
    for step in run.state.open_steps:
        where = f"run {run.state.run_id} step {step.idx}"
        if step.tool not in tools:
            raise StepUnplayable(f"{where}: this program has no tool {step.tool!r}; run it where the tool is")
        try:
            tools[step.tool].validated(step.args)
        except BadArguments as error:
            raise StepUnplayable(f"{where}: its arguments no longer fit: {error}") from None


def _json(run: AgentRun, what: str, value: Any) -> str:
    try:
        return canonical(value)
    except NotRecordable as error:
        raise BadDecision(f"run {run.state.run_id}: {what} cannot be recorded: {error}") from None
