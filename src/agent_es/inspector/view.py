"""What a page shows of one run: small frozen values made of its state and its journal, ready for a template.

Rule 1: a text that others wrote is visible (nothing in it acts or hides), and cut; a cut text says how long it is.
Rule 2: what is shown is bounded, however long the run is; what is left out is counted.
Rule 3: a mark is how something is drawn; what it says by its colour, the words beside it say too.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Literal

from agent_es.envelope import Approval, Envelope
from agent_es.errors import BadEnvelope
from agent_es.inspector.layout import lasting
from agent_es.journal import JournalEntry, timestamp
from agent_es.limits import Limit
from agent_es.notices import notice_of
from agent_es.scratchpad import active
from agent_es.state import RunState, Status, Step, StepStatus
from agent_es.values import canonical, decode
from agent_es.visible import in_a_line, visible

Mark = Literal["good", "bad", "warn", "wait", "doubt", "idle", "busy", ""]

LONG = 4_000
"""Characters that are shown of a text, unless there are very many of them."""
SHORT = 400
"""Characters that are shown of each text where there are very many, and of what is told in a line."""
IN_ALL = 1_000_000
"""Characters that all data of a journal may have."""
MOST = 1_000
"""Events that are shown from the beginning of a journal, and from its end."""
MOST_STEPS = 300
"""Steps that are shown, the last ones, and entries of a scratchpad."""

OF_RUN: Mapping[Status, Mark] = {
    Status.PENDING: "idle",
    Status.RUNNING: "busy",
    Status.WAITING: "wait",
    Status.DONE: "good",
    Status.FAILED: "bad",
    Status.CANCELLED: "idle",
}
OF_STEP: Mapping[StepStatus, Mark] = {
    "queued": "idle",
    "started": "busy",
    "retrying": "warn",
    "waiting": "wait",
    "gated": "wait",
    "done": "good",
    "failed": "bad",
    "in_doubt": "doubt",
}
OF_EVENT: Mapping[str, Mark] = {
    "tool_result": "good",
    "finished": "good",
    "approval_granted": "good",
    "question_answered": "good",
    "tool_failed": "bad",
    "step_refused": "bad",
    "approval_denied": "bad",
    "run_failed": "bad",
    "answer_unusable": "warn",
    "parked": "warn",
    "paused": "warn",
    "cancelled": "idle",
    "step_in_doubt": "doubt",
    "doubt_settled": "doubt",
    "wait_began": "wait",
    "approval_requested": "wait",
    "call_delayed": "wait",
}
OUTCOMES: Mapping[StepStatus, str] = {
    "done": "result",
    "failed": "error",
    "retrying": "error",
    "in_doubt": "doubt",
    "gated": "rules",
}


@dataclass(frozen=True, slots=True)
class Text:
    """What others wrote, as it can be shown."""

    text: str
    length: int
    """How many characters it has in all."""
    is_cut: bool


@dataclass(frozen=True, slots=True)
class EntryView:
    """One event of a journal."""

    seq: int
    at: str
    since: str
    """How long after the first event."""
    type: str
    mark: Mark
    idx: int | None
    told: str
    """Who or what, in one line."""
    data: Text
    """As JSON, indented."""


@dataclass(frozen=True, slots=True)
class JournalView:
    """The events of a journal, or its first and its last."""

    first: Sequence[EntryView]
    last: Sequence[EntryView] = ()
    left_out: int = 0
    """Events between them."""


@dataclass(frozen=True, slots=True)
class StepView:
    """One step."""

    idx: int
    turn: int
    tool: str
    status: str
    mark: Mark
    attempts: int
    key: str | None
    args: Text
    outcome: str
    """What ``value`` is: a result, an error, a doubt, the rules that ask for a yes."""
    value: Text | None
    notes: Sequence[tuple[str, str]] = ()
    """What else there is to say, each with its name."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing of a list: what it is, what it is about, and what it says."""

    name: str
    about: str
    said: Text


@dataclass(frozen=True, slots=True)
class StateView:
    """A run at one moment."""

    run_id: str
    status: str
    mark: Mark
    fields: Sequence[tuple[str, Text]]
    steps: Sequence[StepView]
    steps_left_out: int
    scratchpad: Sequence[Line]
    """What its decider reads."""
    scratchpad_left_out: int
    summarized: int
    """How many steps, from the first on, summaries stand for."""
    facts: Sequence[Line]
    summaries: Sequence[Line]
    messages: Sequence[Line]
    signals: Sequence[Line]


@dataclass(frozen=True, slots=True)
class Meter:
    """How much of something is used."""

    name: str
    used: str
    most: str
    share: float
    """Of all that may be used, at most 1."""
    mark: Mark


@dataclass(frozen=True, slots=True)
class AllowedView:
    """One envelope: what it allows, and how much of its budget this run has used."""

    owner: str
    tools: str
    limits: Sequence[tuple[str, str]]
    approvals: Sequence[str]
    on_refusal: str
    each: str
    """What is set aside before the decider is asked; empty where nothing is."""
    meters: Sequence[Meter]


@dataclass(frozen=True, slots=True)
class EnvelopeView:
    """What a run may do: its envelope, those that it lies in, and what was used."""

    levels: Sequence[AllowedView] = ()
    used: Sequence[tuple[str, str]] = ()
    problem: str = ""
    """Why it cannot be read."""


def text_of(text: str, longest: int = LONG) -> Text:
    """Return a text as it can be shown, cut to so many characters of its own."""
    return Text(visible(text[:longest]), len(text), is_cut=len(text) > longest)


def line_of(text: str, longest: int = SHORT) -> str:
    """Return a text in one line, cut."""
    return in_a_line(text[:longest]) + ("…" if len(text) > longest else "")


def journal_view(entries: Sequence[JournalEntry], *, most: int = MOST) -> JournalView:
    """Return the events of a run, ``most`` from the beginning and ``most`` from the end; their data is cut."""
    if not entries:
        return JournalView(())
    shown = min(len(entries), 2 * most)
    longest = max(SHORT, min(LONG, IN_ALL // shown))
    began = entries[0].at
    if len(entries) <= 2 * most:
        return JournalView(tuple(entry_view(entry, began, longest) for entry in entries))
    first = tuple(entry_view(entry, began, longest) for entry in entries[:most])
    last = tuple(entry_view(entry, began, longest) for entry in entries[-most:])
    return JournalView(first, last, len(entries) - 2 * most)


def entry_view(entry: JournalEntry, began: datetime | None = None, longest: int = LONG) -> EntryView:
    """Return one event of a journal whose first one was at ``began``."""
    notice = notice_of(entry.run_id, entry.event)
    step = "" if notice.idx is None else f"step {notice.idx}"
    attempt = f"attempt {notice.attempt}" if notice.attempt else ""
    who = ", ".join(part for part in (step, notice.tool or "", attempt) if part)
    text = notice.text[: SHORT + 1]
    return EntryView(
        entry.seq,
        timestamp(entry.at),
        "" if began is None else lasting(max(timedelta(), entry.at - began)),
        entry.type,
        "warn" if notice.kind == "attempted_again" else OF_EVENT.get(entry.type, ""),
        notice.idx,
        line_of(": ".join(part for part in (who, text) if part)),
        text_of(json.dumps(entry.data, indent=2, sort_keys=True, ensure_ascii=False), longest),
    )


def state_view(state: RunState) -> StateView:
    """Return a run as it stands."""
    steps = state.steps[max(0, len(state.steps) - MOST_STEPS) :]
    told = [*active(state)]
    longest = max(SHORT, min(LONG, IN_ALL // 4 // max(1, len(steps))))
    return StateView(
        run_id=line_of(state.run_id),
        status=state.status.value + (f" ({state.waiting_for})" if state.waiting_for else ""),
        mark=OF_RUN[state.status],
        fields=tuple((name, text_of(value)) for name, value in _fields(state) if value),
        steps=tuple(step_view(step, longest) for step in steps),
        steps_left_out=len(state.steps) - len(steps),
        scratchpad=tuple(
            Line(it.kind, "" if it.idx is None else f"step {it.idx}", text_of(it.text, longest // 4))
            for it in told[-MOST_STEPS:]
        ),
        scratchpad_left_out=max(0, len(told) - MOST_STEPS),
        summarized=state.summarized,
        facts=_lines((name, f"step {fact.idx}", fact.value_json) for name, fact in state.remembered.items()),
        summaries=_lines(
            (summary.phase or "summary", f"steps {summary.first} to {summary.up_to - 1}", summary.text)
            for summary in state.summaries
        ),
        messages=_lines(
            (message.by, f"seq {message.seq}, {timestamp(message.at)}", message.text) for message in state.messages
        ),
        signals=_lines(
            (signal.name, f"seq {signal.seq}, {timestamp(signal.received_at)}", signal.payload_json)
            for signal in state.signals
        ),
    )


def still(state: RunState, now: datetime) -> datetime:
    """Return until when something of a run may be going on: nothing is, once it is over."""
    return state.updated_at if state.is_over and state.updated_at is not None else now


def step_view(step: Step, longest: int = LONG) -> StepView:
    """Return one step."""
    value = None if step.value_json is None else text_of(_pretty(step), longest)
    return StepView(
        step.idx,
        step.turn,
        line_of(step.tool),
        step.status.replace("_", " "),
        OF_STEP[step.status],
        step.attempt,
        None if step.key is None else line_of(step.key),
        text_of(step.args_json, longest),
        OUTCOMES.get(step.status, "value"),
        value,
        tuple((name, line_of(said)) for name, said in _notes(step)),
    )


def _pretty(step: Step) -> str:
    """Return what became of a step: a text as it is, an error as its type and message, anything else as JSON."""
    if step.error is not None:
        return ": ".join(str(step.error[name]) for name in ("type", "message") if step.error.get(name))
    if step.status != "done" or step.value_json is None:
        return step.value_json or ""
    return str(decode(step.value_json)) if step.value_json.startswith('"') else step.value_json


def _notes(step: Step) -> Iterator[tuple[str, str]]:
    if step.child is not None:
        yield "waits for the end of", f"run {step.child}"
    elif step.awaits is not None:
        yield "waits for", "a person's answer" if step.asks_person else f"the signal {step.awaits}"
    if step.wake_at is not None:
        yield "until", timestamp(step.wake_at)
    if step.retry_at is not None:
        yield "again at", timestamp(step.retry_at)
    if step.undoes is not None:
        yield "undoes", f"step {step.undoes}"
    gate = step.approval
    if gate is not None:
        yield "needs a yes to", gate.args_json
        yield "yes by", f"{', '.join(gate.approved_by) or 'nobody yet'} ({len(gate.approved_by)} of {gate.people})"
        if gate.edited_by is not None:
            yield "its arguments by", gate.edited_by


def _fields(state: RunState) -> Iterator[tuple[str, str]]:
    yield "agent", f"{state.agent} (version {state.agent_version})"
    yield "goal", state.goal
    yield "input", "" if state.input_json == "null" else state.input_json
    yield "answer", state.answer_json or ""
    yield "failure", state.failure or ""
    yield "parked", state.parked or ""
    yield "paused", state.paused or ""
    yield "undoes its effects", "yes" if state.compensating else ""
    yield "wakes", timestamp(state.wake_at) if state.wake_at else ""
    yield "tags", ", ".join(f"{name}={value}" for name, value in state.tags.items())
    yield "parent", state.parent or ""
    yield "turns", str(state.turns)
    yield "events", str(state.version)
    yield "tokens", f"{state.tokens:,}" if state.tokens else ""
    yield "cost", str(state.cost) if state.cost else ""
    yield "started", timestamp(state.started_at) if state.started_at else ""
    yield "changed", timestamp(state.updated_at) if state.updated_at else ""


def _lines(told: Iterable[tuple[str, str, str]]) -> tuple[Line, ...]:
    shown = deque(told, maxlen=MOST_STEPS)
    return tuple(Line(line_of(name), about, text_of(said)) for name, about, said in shown)


def envelope_view(state: RunState, now: datetime) -> EnvelopeView:
    """Return what a run may do, and what of it is used by then; what others took of its budgets is unknown."""
    used = [("steps", str(len(state.steps))), ("turns", str(state.turns))]
    used += [("tokens", f"{state.tokens:,}"), ("cost", str(state.cost))]
    if state.reserved is not None:
        used.append(("set aside", f"{state.reserved[0]:,} tokens, {state.reserved[1]}"))
    if state.envelope_json is None:
        return EnvelopeView(used=tuple(used))
    try:
        envelope = Envelope.read(state.envelope_json)
    except BadEnvelope as error:
        return EnvelopeView(used=tuple(used), problem=line_of(str(error)))
    return EnvelopeView(tuple(_allowed(each, state, now) for each in envelope.chain), tuple(used))


def _allowed(envelope: Envelope, state: RunState, now: datetime) -> AllowedView:
    each = envelope.budget.each
    aside = [f"{each.tokens:,} tokens"] if each.tokens else []
    aside += [f"a cost of {each.cost}"] if each.cost else []
    return AllowedView(
        "this run" if envelope.owner is None else f"run {line_of(envelope.owner)}",
        line_of(", ".join(envelope.tools) or "none"),
        tuple((line_of(place), line_of(_limit(limit))) for place, limit in envelope.limits.items()),
        tuple(line_of(_approval(rule)) for rule in envelope.needs_approval),
        "the decider is told" if envelope.on_refusal == "tell" else "the run fails",
        ", ".join(aside),
        tuple(_meters(envelope, state, now)),
    )


def _limit(limit: Limit) -> str:
    signs = {"at_least": ">=", "at_most": "<=", "more_than": ">", "less_than": "<"}
    said = limit.model_dump(mode="json", exclude_none=True)
    return ", ".join(
        f"{signs[name]} {value}" if name in signs else f"{name.replace('_', ' ')} {canonical(value)}"
        for name, value in said.items()
    )


def _approval(rule: str | Approval) -> str:
    if isinstance(rule, str):
        return rule
    parts = [rule.call]
    parts += [f"by {' or '.join(rule.by)}"] if rule.by else []
    parts += [f"{rule.people} people"] if rule.people > 1 else []
    parts += [f"within {lasting(rule.within)}, then {rule.then}"] if rule.within else []
    return "; ".join(parts)


def _meters(envelope: Envelope, state: RunState, now: datetime) -> Iterator[Meter]:
    budget = envelope.budget
    for name, used, most in (
        ("steps", len(state.steps), budget.steps),
        ("turns", state.turns, budget.turns),
        ("tokens", state.tokens, budget.tokens),
        ("cost", state.cost, budget.cost),
    ):
        if most is not None:
            yield _meter(name, f"{used:,}", f"{most:,}", float(used), float(most))
    for pattern, most in budget.calls.items():
        used = sum(count for tool, count in state.called.items() if fnmatchcase(tool, pattern))
        yield _meter(f"calls of {line_of(pattern)}", str(used), str(most), used, most)
    if budget.deadline is not None and state.started_at is not None:
        allowed = budget.deadline if isinstance(budget.deadline, timedelta) else budget.deadline - state.started_at
        until = state.updated_at if state.is_over and state.updated_at else now
        passed = max(timedelta(), until - state.started_at)
        yield _meter("time", lasting(passed), lasting(allowed), passed.total_seconds(), allowed.total_seconds())


def _meter(name: str, used: str, most: str, done: float, whole: float) -> Meter:
    share = min(1.0, done / whole) if whole > 0 else 1.0
    mark: Mark = "bad" if share >= 1 else "warn" if share >= 0.8 else "good"  # noqa: PLR2004  # most of it is gone
    return Meter(name, used, most, round(share, 4), mark)
