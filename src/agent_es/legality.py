"""What may happen to a run: by its status, and by what has happened before.

Rule 1: it is a table and a check for each kind of event; commands are guarded by it, and journals are judged by it.
Rule 2: it knows nothing of clocks, workers or stores: the same journal is legal everywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_es.errors import IllegalEvent
from agent_es.events import (
    MAX_RUN_ID,
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
from agent_es.keys import renewed
from agent_es.state import RunState, Status, Step, evolve
from agent_es.values import canonical, digest
from agent_es.waits import ASKED

StepEvent = ToolResult | ToolFailed | StepInDoubt | DoubtSettled

_OUTCOMES: frozenset[type[Event]] = frozenset((ToolResult, ToolFailed, StepInDoubt, DoubtSettled, FactRecorded))
_MOVES: frozenset[type[Event]] = frozenset(
    (
        *(LlmDecided, LlmAnswered, AnswerUnusable, Finished, RunFailed),
        *(Parked, CompensationBegan, BudgetReserved, UsageRecorded),
    )
)
_GATES: frozenset[type[Event]] = frozenset((StepRefused, ApprovalRequested, CallDelayed))
_ARRIVALS: frozenset[type[Event]] = frozenset(
    (SignalReceived, Cancelled, EnvelopeChanged, Steered, Paused, CompensationBegan)
)
_ANSWERS: frozenset[type[Event]] = frozenset((ApprovalGranted, ApprovalDenied, QuestionAnswered))

LEGAL: Mapping[Status, frozenset[type[Event]]] = {
    Status.PENDING: _MOVES | _ARRIVALS,
    Status.RUNNING: _MOVES
    | _OUTCOMES
    | _GATES
    | _ARRIVALS
    | _ANSWERS
    | {Summarized, WaitBegan, WaitEnded, CompensationEnded},
    Status.WAITING: _OUTCOMES
    | _ARRIVALS
    | _ANSWERS
    | {WaitBegan, WaitEnded, Parked, Requeued, Resumed, UsageRecorded},
    Status.DONE: frozenset((CompensationBegan,)),
    Status.FAILED: frozenset((CompensationBegan, Requeued, EnvelopeChanged, Steered)),
    Status.CANCELLED: _OUTCOMES | {WaitBegan},
}
"""What may happen next, by status.  What was under way when a run was cancelled is still recorded."""


def call_digest(tool: str, args_json: str, key: str | None) -> str:
    """Return what names exactly this call: what a person says yes to."""
    return digest(canonical([tool, args_json, key]))


def child_id(parent: str, idx: int) -> str:
    """Return the id of the run that a step starts: the same at every attempt.

    >>> child_id("run-7f3a", 2)
    'run-7f3a.2'
    """
    plain = f"{parent}.{idx}"
    return plain if len(plain) <= MAX_RUN_ID else f"{parent[:100]}.{digest(plain)}"


def check_legal(run_id: str, events: Sequence[AnyEvent]) -> None:
    """Raise ``IllegalEvent`` where a journal tells what no run of ours could have recorded."""
    state = RunState()
    before: AnyEvent | None = None
    for seq, event in enumerate(events):
        legal = frozenset({RunStarted}) if before is None else LEGAL[state.status]
        why = "it cannot happen then" if type(event) not in legal else misfit(state, event, before)
        if why:
            raise IllegalEvent(f"run {run_id} seq {seq}: {type(event).__name__}: {why}")
        state, before = evolve(state, event), event
    if state.run_id != run_id:
        raise IllegalEvent(f"run {run_id} seq 0: it started as run {state.run_id!r}")


def misfit(state: RunState, event: AnyEvent, before: AnyEvent | None) -> str | None:
    """Say what is wrong with an event that is legal by the status."""
    if isinstance(event, LlmDecided):
        step = next((step for step in state.open_steps if step.idx == event.idx), None)
        return _misfit_decision(state, event, before) if step is None else _misfit_attempt(step, event)
    check = _MISFITS.get(type(event))
    return None if check is None else check(state, event)


def is_past(state: RunState, event: AnyEvent) -> bool:
    """Say whether what was about to be done fits no more: whoever moves the run looks again."""
    match event:
        case (
            LlmDecided()
            | AnswerUnusable()
            | Summarized()
            | CallDelayed()
            | ApprovalDenied()
            | DoubtSettled()
            | WaitEnded()
            | WaitBegan(idx=None)
        ):
            return type(event) not in LEGAL[state.status] or misfit(state, event, None) is not None
        case _:
            return False


def _misfit_end(state: RunState, event: Finished | RunFailed | CompensationEnded) -> str | None:
    is_idle = isinstance(event, CompensationEnded) and not state.compensating
    return "steps are open" if state.open_steps else "it undoes nothing" if is_idle else None


def _misfit_said(state: RunState, event: LlmAnswered | AnswerUnusable) -> str | None:
    if state.open_steps:
        return "steps are open"
    return None if event.turn == state.turns else f"turn {state.turns} comes next"


def _misfit_fact(state: RunState, event: FactRecorded) -> str | None:
    step = next((step for step in state.open_steps if step.idx == event.idx), None)
    is_under_way = step is not None and step.status in ("started", "in_doubt", "retrying")
    return None if is_under_way else f"no attempt at step {event.idx} is under way"


def _misfit_summary(state: RunState, event: Summarized) -> str | None:
    """Say what is wrong with a summary: it stands for whole turns that are over, and no step is left out."""
    before = {0, *(summary.up_to for summary in state.summaries)}
    if event.first not in before or not state.summarized < event.up_to <= len(state.steps):
        return f"the steps from {state.summarized} to {len(state.steps)} are not summarized yet"
    step = state.steps[event.up_to - 1]
    if step.is_open or any(one.idx < event.up_to for one in state.open_steps):
        return "steps of it are open"
    is_cut = event.up_to < len(state.steps) and state.steps[event.up_to].turn == step.turn
    return f"turn {step.turn} would be cut in two" if is_cut else None


def _misfit_delay(state: RunState, event: CallDelayed) -> str | None:
    step = next((step for step in state.open_steps if step.idx == event.idx), None)
    is_there = step is not None and step.status in ("queued", "retrying") and step.tool == event.tool
    return None if is_there else f"step {event.idx} is not to start"


def _misfit_wait(state: RunState, event: WaitBegan | WaitEnded | Requeued) -> str | None:
    if not isinstance(event, Requeued) and event.idx is not None:
        return _misfit_step(state, event)
    statuses = {step.status for step in state.open_steps}
    match event:
        case WaitBegan():
            is_right = "retrying" in statuses and not statuses & {"queued", "started"} and state.rests_until is None
        case WaitEnded():
            is_right = state.rests_until is not None
        case Requeued():
            is_right = state.parked is not None or state.status is Status.FAILED
    return None if is_right else "it does not wait for that"


def _misfit_step(state: RunState, event: WaitBegan | WaitEnded) -> str | None:
    """Say what is wrong with the beginning or the end of a step's own wait."""
    step = next((step for step in state.open_steps if step.idx == event.idx), None)
    if step is None:
        return f"step {event.idx} is not open"
    if isinstance(event, WaitBegan):
        decided = step.status == "queued" and step.attempt == 0 and step.key is None and event.attempt is None
        asked = step.status in ("started", "in_doubt", "retrying") and event.attempt == step.attempt
        is_child = event.child in (None, child_id(state.run_id, step.idx))
        if event.signal is not None and event.signal.startswith(ASKED) and event.signal != f"{ASKED}{step.idx}":
            return f"the answer to step {step.idx} has another name"
        return None if (decided or asked) and is_child else f"step {step.idx} is {step.status}"
    if step.status != "waiting":
        return f"step {step.idx} is {step.status}"
    signals = {signal.seq: signal.name for signal in state.signals}
    came = step.wake_at is not None if event.received is None else signals.get(event.received) == step.awaits
    return None if came else f"step {step.idx} does not wait for that"


def _misfit_gate(state: RunState, event: StepRefused | ApprovalRequested) -> str | None:
    """Say what is wrong with what the envelope says of a step: it says so before anything of it is called.

    A body may ask for a yes too, before it does anything: that attempt is settled then.
    """
    step = next((step for step in state.open_steps if step.idx == event.idx), None)
    if step is None or event.tool != step.tool or not _is_untouched(step, event):
        return f"step {event.idx} is not one that was just decided"
    return f"step {event.idx} has a key" if isinstance(event, StepRefused) and step.key is not None else None


def _is_untouched(step: Step, event: StepRefused | ApprovalRequested) -> bool:
    attempts = step.attempts_spent if isinstance(event, ApprovalRequested) else step.attempt
    return (step.status, attempts) == ("queued", 0)


def _misfit_order(state: RunState, event: Paused | Resumed | CompensationBegan) -> str | None:
    match event:
        case Paused():
            return None if state.paused is None else "it is paused already"
        case Resumed():
            return "it is not paused" if state.paused is None else None
        case CompensationBegan():
            return "it undoes its effects already" if state.compensating else None


def _misfit_answer(state: RunState, event: ApprovalGranted | ApprovalDenied | QuestionAnswered) -> str | None:
    """Say what is wrong with what a person says about a step."""
    step = next((step for step in state.open_steps if step.idx == event.idx), None)
    if isinstance(event, QuestionAnswered):
        return None if step is not None and step.asks_person else f"step {event.idx} asks nobody anything"
    gate = step and step.approval
    if step is None or gate is None or (step.status, step.tool) != ("gated", event.tool):
        return f"step {event.idx} waits for nobody's yes"
    if isinstance(event, ApprovalDenied) or event.args is None:
        return None if event.digest == gate.digest else f"step {event.idx} waits for a yes to {gate.digest}"
    is_named = event.digest == call_digest(event.tool, event.args, event.key)
    return None if is_named else f"the digest of step {event.idx} is of something else"


def _misfit_outcome(state: RunState, event: StepEvent) -> str | None:
    step = next((step for step in state.open_steps if step.idx == event.idx), None)
    if step is None:
        return f"step {event.idx} is not open"
    if (event.tool, event.attempt) != (step.tool, step.attempt) or step.status in ("waiting", "gated"):
        return f"step {event.idx} is {step.tool} at attempt {step.attempt}, {step.status}"
    if step.status == "queued" and not isinstance(event, ToolFailed):
        is_given = isinstance(event, ToolResult) and step.attempt == 0 and step.key is None
        return None if is_given else f"no attempt at step {event.idx} is under way"
    if step.status == "queued" and step.attempt == 0 and step.key:
        return f"step {event.idx} never started"
    if isinstance(event, DoubtSettled) and event.outcome == "did_not_happen" and step.key:
        return None if event.key == renewed(step.key) else f"the new key of step {event.idx} is {renewed(step.key)}"
    return None


def _misfit_decision(state: RunState, event: LlmDecided, before: AnyEvent | None) -> str | None:
    goes_on = isinstance(before, LlmDecided) and before.turn == event.turn and before.idx + 1 == event.idx
    if event.idx != len(state.steps) or event.turn != (state.turns - 1 if goes_on else state.turns):
        return f"step {len(state.steps)} of turn {state.turns} comes next"
    if state.open_steps and not goes_on:
        return "steps of an earlier turn are open"
    return None if event.attempt in (0, 1) else "its first attempt is 1"


def _misfit_attempt(step: Step, event: LlmDecided) -> str | None:
    if step.status in ("waiting", "gated"):
        return f"step {event.idx} waits"
    same = (
        step.turn,
        step.tool,
        step.args_json,
        step.key,
        step.call_id,
        step.undoes,
        step.keyed_as,
        step.attempt + 1,
    )
    told = (event.turn, event.tool, event.args, event.key, event.call_id, event.undoes, event.keyed_as, event.attempt)
    return None if same == told else f"it is not attempt {step.attempt + 1} at what was decided"


_MISFITS: Mapping[type[Event], Callable[[RunState, Any], str | None]] = {
    **dict.fromkeys((Finished, RunFailed, CompensationEnded), _misfit_end),
    **dict.fromkeys((WaitBegan, WaitEnded, Requeued), _misfit_wait),
    **dict.fromkeys((StepRefused, ApprovalRequested), _misfit_gate),
    **dict.fromkeys((ApprovalGranted, ApprovalDenied, QuestionAnswered), _misfit_answer),
    **dict.fromkeys((Paused, Resumed, CompensationBegan), _misfit_order),
    **dict.fromkeys((ToolResult, ToolFailed, StepInDoubt, DoubtSettled), _misfit_outcome),
    **dict.fromkeys((LlmAnswered, AnswerUnusable), _misfit_said),
    FactRecorded: _misfit_fact,
    Summarized: _misfit_summary,
    CallDelayed: _misfit_delay,
}
