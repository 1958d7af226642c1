"""What of a run took time, as spans: its trace, named as OpenTelemetry's conventions for generative AI have it.

Rule 1: spans are a function of the journal: ids are made of the run's id, so whoever exports them, and however often,
exports the same spans; all processes that a run had are one trace.
Rule 2: what a model, a tool or a person said, and what they were given, is left out, unless it is asked for.
Rule 3: it needs no library: ``agent_es.telemetry`` gives them to OpenTelemetry.

A run is ``invoke_agent``, a question to a model ``chat``, an attempt ``execute_tool``.  What the conventions have no
name for is called ``agent_es.…``, names and attributes alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, Literal

from agent_es.events import (
    AnswerUnusable,
    Cancelled,
    CompensationEnded,
    Finished,
    LlmAnswered,
    LlmDecided,
    RunFailed,
    RunStarted,
    ToolFailed,
    ToolResult,
    UsageRecorded,
    WaitBegan,
)
from agent_es.journal import JournalEntry
from agent_es.timeline import Segment, Timeline
from agent_es.values import canonical, decode

AttributeValue = str | int | float | bool | tuple[str, ...]

_ERRORS = ("failed", "lost", "in_doubt", "unusable")
"""The ends of a question or an attempt that count as errors."""

MOST = 2**63
"""The first number that is too great for an attribute."""

UNKNOWN_PROVIDER = "unknown"
"""The provider's name where an answer does not say who gave it: the conventions ask for one."""


@dataclass(frozen=True, slots=True)
class SpanId:
    """Where a span is: its trace, of 16 bytes, and the span, of 8, each as a number that is not 0."""

    trace: int
    span: int

    @property
    def trace_hex(self) -> str:
        """The trace's id as it is written: 32 digits."""
        return f"{self.trace:032x}"

    @property
    def span_hex(self) -> str:
        """The span's id as it is written: 16 digits."""
        return f"{self.span:016x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took time, and has ended."""

    name: str
    id: SpanId
    parent: SpanId | None
    """The span of the run; None for that span itself."""
    kind: Literal["client", "internal"] = "internal"
    began_at: datetime
    ended_at: datetime
    ended_seq: int
    attributes: Mapping[str, AttributeValue] = field(hash=False)
    error: str | None = None
    """What kind of error it ended in."""
    said: str | None = None
    """What there is to say of that error, where contents are asked for."""
    links: tuple[SpanId, ...] = ()
    """The runs that it belongs to: the one that started this run, or that it started."""

    @property
    def as_json(self) -> dict[str, Any]:
        """The span as JSON says it, ids in hexadecimal digits, times in UTC."""
        return {
            "name": self.name,
            "trace_id": self.id.trace_hex,
            "span_id": self.id.span_hex,
            "parent_span_id": None if self.parent is None else self.parent.span_hex,
            "kind": self.kind,
            "began_at": self.began_at,
            "ended_at": self.ended_at,
            "error": self.error,
            "attributes": {name: self.attributes[name] for name in sorted(self.attributes)},
            "links": [{"trace_id": link.trace_hex, "span_id": link.span_hex} for link in self.links],
        }


def trace_of(run_id: str) -> SpanId:
    """Return where a run's own span is.

    >>> trace_of("run-7f3a") == trace_of("run-7f3a")
    True
    """
    return SpanId(_number(f"agent_es/traces/{run_id}", 16), _span_number(run_id, 0, "run", None))


class Trace:
    """The spans of one run, as its events come: give it each of them once, in order, from the first on."""

    def __init__(self, *, contents: bool = False) -> None:
        self._contents = contents
        self._timeline = Timeline()
        self._started: RunStarted | None = None
        self._steps = self._turns = self._tokens = 0
        self._cost = Decimal(0)
        self.read = -1
        """The ``seq`` of the last event."""

    def take(self, entry: JournalEntry) -> tuple[Span, ...]:
        """Take in an event; return the spans that it ended: at the end of a run, the run's own is the last."""
        event, self.read = entry.event, entry.seq
        match event:
            case RunStarted():
                self._started = event
            case LlmDecided():
                self._steps = max(self._steps, event.idx + 1)
                self._turns = max(self._turns, event.turn + 1)
            case UsageRecorded():
                self._tokens += event.tokens
                self._cost += event.cost
        ended = [self._of(entry.run_id, segment) for segment in self._timeline.take(entry)]
        if self._started is not None and isinstance(event, Finished | RunFailed | Cancelled | CompensationEnded):
            ended.append(self._of_run(entry, self._started, event))
        return tuple(ended)

    def _of_run(
        self, entry: JournalEntry, start: RunStarted, end: Finished | RunFailed | Cancelled | CompensationEnded
    ) -> Span:
        is_failed = isinstance(end, RunFailed)
        status = "done" if isinstance(end, Finished) else "failed" if is_failed else "cancelled"
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": start.agent,
            "gen_ai.agent.version": start.agent_version,
            "gen_ai.conversation.id": entry.run_id,
            **self._where(entry.run_id, 0, entry.seq),
            "agent_es.status": status,
            "agent_es.steps": self._steps,
            "agent_es.turns": self._turns,
            "agent_es.tokens": self._tokens,
            "agent_es.cost": float(self._cost),
            "agent_es.parent": start.parent,
            **{f"agent_es.tag.{name}": value for name, value in start.tags.items()},
        }
        said = end.reason if isinstance(end, RunFailed | Cancelled) else None
        if self._contents:
            attributes |= {"agent_es.goal": start.goal, "agent_es.input": start.input, "agent_es.reason": said}
            attributes["agent_es.answer"] = end.answer if isinstance(end, Finished) else None
        error = "RunFailed" if is_failed else None
        return Span(
            name=f"invoke_agent {start.agent}",
            id=trace_of(entry.run_id),
            parent=None,
            began_at=start.timestamp,
            ended_at=max(entry.at, start.timestamp),
            ended_seq=entry.seq,
            attributes=_told(attributes | {"error.type": error}),
            error=error,
            said=said if self._contents and error else None,
            links=() if start.parent is None else (trace_of(start.parent),),
        )

    def _of(self, run_id: str, segment: Segment) -> Span:
        ended_at, ended_seq = segment.ended_at or segment.began_at, segment.ended_seq or segment.began_seq
        is_error = segment.kind in ("model", "attempt") and segment.end in _ERRORS
        # A decider that gives up was asked, and has answered.
        error = _error(segment) if is_error and not isinstance(segment.ended_with, RunFailed) else None
        began = segment.began_with
        child = began.child if isinstance(began, WaitBegan) else None
        run = trace_of(run_id)
        attributes = {
            **_names(run_id, segment),
            **self._where(run_id, segment.began_seq, ended_seq),
            "agent_es.end": segment.end,
            "agent_es.turn": segment.turn,
            "agent_es.idx": segment.idx,
            "agent_es.attempt": segment.attempt,
            "error.type": error,
            **(_contents(segment) if self._contents else {}),
        }
        return Span(
            name=name_of(segment),
            id=SpanId(run.trace, _span_number(run_id, segment.began_seq, segment.kind, segment.idx)),
            parent=run,
            kind="client" if segment.model is not None else "internal",
            began_at=segment.began_at,
            ended_at=max(ended_at, segment.began_at),
            ended_seq=ended_seq,
            attributes=_told(attributes),
            error=error,
            said=segment.text if self._contents and error and segment.text else None,
            links=() if child is None else (trace_of(child),),
        )

    def _where(self, run_id: str, seq: int, ended_seq: int) -> dict[str, AttributeValue]:
        return {"agent_es.run_id": run_id, "agent_es.seq": seq, "agent_es.ended_seq": ended_seq}


def spans(entries: Iterable[JournalEntry], *, contents: bool = False) -> list[Span]:
    """Return the spans of a run, in the order in which they ended; what is still going on has none.

    The entries are those of one run, from its first on.  The run's own span is there once it is over; of a run that
    went on after its end, because it was requeued or its effects were undone, it is the whole.  With ``contents``,
    arguments, results, answers and reasons are among the attributes.
    """
    trace = Trace(contents=contents)
    found = [span for entry in entries for span in trace.take(entry)]
    last = max((at for at, span in enumerate(found) if span.parent is None), default=None)
    return [span for at, span in enumerate(found) if span.parent is not None or at == last]


def name_of(segment: Segment) -> str:
    """Return what the span of a segment is called.

    >>> from datetime import UTC
    >>> noon = datetime(2026, 7, 5, 12, tzinfo=UTC)
    >>> name_of(Segment(kind="attempt", began_seq=3, began_at=noon, tool="process_refund"))
    'execute_tool process_refund'
    """
    match segment.kind:
        case "model":
            return "agent_es.decide" if segment.model is None else f"chat {segment.model}"
        case "attempt":
            return f"execute_tool {segment.tool}"
        case kind:
            return f"agent_es.{kind}"


def _names(run_id: str, segment: Segment) -> dict[str, Any]:
    """Return the attributes by which the conventions know a span, and what stands for them where they do not."""
    match segment.kind:
        case "model":
            return _of_question(run_id, segment)
        case "attempt":
            names = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": segment.tool,
                "gen_ai.tool.type": "function",
            }
            if not isinstance(began := segment.began_with, LlmDecided):
                return names
            call = {"gen_ai.tool.call.id": began.call_id or None}
            return {**names, **call, "agent_es.key": began.key, "agent_es.undoes": began.undoes}
        case _:
            return {"agent_es.tool": segment.tool}


def _of_question(run_id: str, segment: Segment) -> dict[str, Any]:
    took = {
        "agent_es.tokens": segment.tokens,
        "agent_es.cost": None if segment.cost is None else float(segment.cost),
    }
    if segment.model is None:
        return took
    said = segment.ended_with
    answer = _object(decode(said.answer)) if isinstance(said, LlmAnswered) else {}
    reason = said.finish_reason if isinstance(said, LlmAnswered | AnswerUnusable) else None
    usage = _object(answer.get("usage"))
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _text(answer.get("provider_name")) or UNKNOWN_PROVIDER,
        "gen_ai.request.model": segment.model,
        "gen_ai.response.model": _text(answer.get("model_name")),
        "gen_ai.response.finish_reasons": None if reason is None else (reason,),
        "gen_ai.conversation.id": run_id,
        "gen_ai.usage.input_tokens": _count(usage.get("input_tokens")),
        "gen_ai.usage.output_tokens": _count(usage.get("output_tokens")),
        **took,
    }


def _contents(segment: Segment) -> dict[str, Any]:
    """Return what was given and said, as the conventions and as the journal have it."""
    found: dict[str, Any] = {"agent_es.text": segment.text or None}
    if segment.kind == "attempt" and isinstance(segment.began_with, LlmDecided):
        found["gen_ai.tool.call.arguments"] = segment.began_with.args
    match segment.ended_with:
        case ToolResult() as event if segment.kind == "attempt":
            found["gen_ai.tool.call.result"] = event.result
        case LlmAnswered() as event if segment.kind == "model":
            found["gen_ai.output.messages"] = canonical([_message(event)])
    return found


def _message(said: LlmAnswered) -> dict[str, Any]:
    """Return an answer as the conventions have a message; whole, as text, where it is of a form that nobody knows."""
    told = [_part(_object(part)) for part in _items(_object(decode(said.answer)).get("parts"))]
    parts = [part for part in told if part is not None] or [{"type": "text", "content": said.answer}]
    reason = {} if said.finish_reason is None else {"finish_reason": said.finish_reason}
    return {"role": "assistant", "parts": parts, **reason}


def _part(part: Mapping[str, Any]) -> dict[str, Any] | None:
    match part.get("part_kind"):
        case "text":
            return {"type": "text", "content": part.get("content")}
        case "thinking":
            return {"type": "reasoning", "content": part.get("content")}
        case "tool-call":
            called = {"id": part.get("tool_call_id"), "name": part.get("tool_name"), "arguments": part.get("args")}
            return {"type": "tool_call", **called}
        case _:
            return None


def _error(segment: Segment) -> str:
    """Return the kind of error: the type of what a tool raised, or what became of the attempt."""
    if isinstance(segment.ended_with, ToolFailed):
        return _text(_object(decode(segment.ended_with.error)).get("type")) or "failed"
    return segment.end


def _told(attributes: Mapping[str, Any]) -> dict[str, AttributeValue]:
    """Return what is known; a number that the protocol cannot carry as text."""
    return {
        name: str(value) if type(value) is int and abs(value) >= MOST else value
        for name, value in attributes.items()
        if value is not None
    }


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _span_number(run_id: str, seq: int, kind: str, idx: int | None) -> int:
    return _number(f"agent_es/spans/{run_id}/{seq}/{kind}/{'' if idx is None else idx}", 8)


def _number(name: str, size: int) -> int:
    """Return a number of so many bytes that stands for a name, and is not 0: that would be no id."""
    return int.from_bytes(sha256(name.encode()).digest()[:size], "big") or 1
