"""The spans of a journal: names, attributes and ids as the conventions and OpenTelemetry's library have them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import SpanKind, StatusCode

from agent_es.errors import AgentError
from agent_es.events import (
    AnswerUnusable,
    AnyEvent,
    BudgetReserved,
    Cancelled,
    CompensationBegan,
    CompensationEnded,
    Finished,
    LlmAnswered,
    LlmDecided,
    RunFailed,
    RunStarted,
    StepInDoubt,
    ToolFailed,
    ToolResult,
    UsageRecorded,
    WaitBegan,
    WaitEnded,
)
from agent_es.journal import JournalEntry
from agent_es.spans import Span, spans, trace_of
from agent_es.telemetry import otlp, readable, send
from agent_es.testing import FrozenClock
from agent_es.values import canonical

at = FrozenClock()
CARD = "4111-1111"
ANSWER = {
    "kind": "response",
    "model_name": "m-1-2026",
    "provider_name": "openai",
    "usage": {"input_tokens": 60, "output_tokens": 10},
    "parts": [
        {"part_kind": "text", "content": CARD},
        {"part_kind": "tool-call", "tool_name": "pay", "args": "{}", "tool_call_id": "call_1"},
        {"part_kind": "file", "content": "…"},
    ],
}
USAGE = {"turn": 0, "tokens": 70, "cost": Decimal("0.25")}
DECIDED = {"idx": 0, "turn": 0, "tool": "pay", "args": canonical({"card": CARD}), "key": "k-1", "call_id": "call_1"}

Told = tuple[Any, dict[str, Any]]


def journal(*events: Told, run_id: str = "run-7f3a", **start: Any) -> list[JournalEntry]:
    first: dict[str, Any] = {
        "run_id": run_id,
        "agent": "Refund",
        "agent_version": "3",
        "goal": CARD,
        "input": "null",
    }
    told: list[Told] = [(RunStarted, {**first, **start}), *events]
    return [
        JournalEntry(run_id, cast(AnyEvent, kind(originator_version=seq + 1, timestamp=at(seq), **fields)))
        for seq, (kind, fields) in enumerate(told)
    ]


def answered(answer: Any = ANSWER, **more: Any) -> Told:
    return LlmAnswered, {"turn": 0, "model": "m-1", "answer": canonical(answer), "finish_reason": "stop", **more}


def decided(attempt: int = 1) -> Told:
    return LlmDecided, {**DECIDED, "attempt": attempt}


RESULT: Told = (ToolResult, {"idx": 0, "tool": "pay", "attempt": 1, "result": canonical(CARD)})
FINISHED: Told = (Finished, {"answer": canonical(CARD)})
STORY = journal((BudgetReserved, USAGE), (UsageRecorded, USAGE), answered(), decided(), RESULT, FINISHED)


def exported(entries: list[JournalEntry], *, contents: bool = False) -> Sequence[ReadableSpan]:
    exporter = InMemorySpanExporter()
    send(spans(entries, contents=contents), exporter)
    return exporter.get_finished_spans()


def by_name(entries: list[JournalEntry], *, contents: bool = False) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exported(entries, contents=contents)}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_run_its_questions_and_its_attempts_are_called_as_the_conventions_say() -> None:
    names = [(span.name, span.kind, span.status.status_code) for span in exported(STORY)]

    assert names == [
        ("chat m-1", SpanKind.CLIENT, StatusCode.UNSET),
        ("execute_tool pay", SpanKind.INTERNAL, StatusCode.UNSET),
        ("agent_es.decide", SpanKind.INTERNAL, StatusCode.UNSET),
        ("invoke_agent Refund", SpanKind.INTERNAL, StatusCode.UNSET),
    ]


def test_a_run_has_the_attributes_of_an_agent_and_the_librarys_own_totals() -> None:
    run = by_name(journal(*[(e.event.__class__, _fields(e)) for e in STORY[1:]], tags={"team": "payments"}))

    assert attributes(run["invoke_agent Refund"]) == {
        gen_ai.GEN_AI_OPERATION_NAME: gen_ai.GenAiOperationNameValues.INVOKE_AGENT.value,
        gen_ai.GEN_AI_AGENT_NAME: "Refund",
        gen_ai.GEN_AI_AGENT_VERSION: "3",
        gen_ai.GEN_AI_CONVERSATION_ID: "run-7f3a",
        "agent_es.run_id": "run-7f3a",
        "agent_es.seq": 0,
        "agent_es.ended_seq": 6,
        "agent_es.status": "done",
        "agent_es.steps": 1,
        "agent_es.turns": 1,
        "agent_es.tokens": 70,
        "agent_es.cost": 0.25,
        "agent_es.tag.team": "payments",
    }


def _fields(entry: JournalEntry) -> dict[str, Any]:
    return entry.event.model_dump(exclude={"timestamp"})


def test_a_question_to_a_model_has_what_it_took() -> None:
    assert attributes(by_name(STORY)["chat m-1"]) == {
        gen_ai.GEN_AI_OPERATION_NAME: gen_ai.GenAiOperationNameValues.CHAT.value,
        gen_ai.GEN_AI_PROVIDER_NAME: gen_ai.GenAiProviderNameValues.OPENAI.value,
        gen_ai.GEN_AI_REQUEST_MODEL: "m-1",
        gen_ai.GEN_AI_RESPONSE_MODEL: "m-1-2026",
        gen_ai.GEN_AI_RESPONSE_FINISH_REASONS: ("stop",),
        gen_ai.GEN_AI_CONVERSATION_ID: "run-7f3a",
        gen_ai.GEN_AI_USAGE_INPUT_TOKENS: 60,
        gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: 10,
        "agent_es.run_id": "run-7f3a",
        "agent_es.seq": 1,
        "agent_es.ended_seq": 3,
        "agent_es.end": "done",
        "agent_es.turn": 0,
        "agent_es.tokens": 70,
        "agent_es.cost": 0.25,
    }


def test_an_attempt_has_the_attributes_of_a_tool_that_is_executed() -> None:
    assert attributes(by_name(STORY)["execute_tool pay"]) == {
        gen_ai.GEN_AI_OPERATION_NAME: gen_ai.GenAiOperationNameValues.EXECUTE_TOOL.value,
        gen_ai.GEN_AI_TOOL_NAME: "pay",
        gen_ai.GEN_AI_TOOL_TYPE: "function",
        gen_ai.GEN_AI_TOOL_CALL_ID: "call_1",
        "agent_es.run_id": "run-7f3a",
        "agent_es.seq": 4,
        "agent_es.ended_seq": 5,
        "agent_es.end": "done",
        "agent_es.turn": 0,
        "agent_es.idx": 0,
        "agent_es.attempt": 1,
        "agent_es.key": "k-1",
    }


def test_contents_are_left_out_unless_they_are_asked_for() -> None:
    assert CARD not in str([span.to_json() for span in exported(STORY)])

    told = by_name(STORY, contents=True)
    call = attributes(told["execute_tool pay"])
    assert call[gen_ai.GEN_AI_TOOL_CALL_ARGUMENTS] == canonical({"card": CARD})
    assert call[gen_ai.GEN_AI_TOOL_CALL_RESULT] == canonical(CARD)
    run = attributes(told["invoke_agent Refund"])
    assert (run["agent_es.goal"], run["agent_es.answer"]) == (CARD, canonical(CARD))
    (message,) = json.loads(attributes(told["chat m-1"])[gen_ai.GEN_AI_OUTPUT_MESSAGES])
    assert message == {
        "role": "assistant",
        "finish_reason": "stop",
        "parts": [
            {"type": "text", "content": CARD},
            {"type": "tool_call", "id": "call_1", "name": "pay", "arguments": "{}"},
        ],
    }


@pytest.mark.parametrize("answer", ["said", ["said"], {"parts": 1}, {"parts": [1], "usage": [], "provider_name": 7}])
def test_an_answer_of_a_form_that_nobody_knows_is_one_text(answer: Any) -> None:
    chat = attributes(by_name(journal(answered(answer)), contents=True)["chat m-1"])

    (message,) = json.loads(chat[gen_ai.GEN_AI_OUTPUT_MESSAGES])
    assert message["parts"] == [{"type": "text", "content": canonical(answer)}]
    assert chat[gen_ai.GEN_AI_PROVIDER_NAME] == "unknown"
    assert gen_ai.GEN_AI_USAGE_INPUT_TOKENS not in chat


def test_spans_have_the_times_of_their_events() -> None:
    chat = by_name(STORY)["chat m-1"]

    assert chat.start_time == int(at(1).timestamp()) * 10**9
    assert chat.end_time == int(at(3).timestamp()) * 10**9


def test_a_time_of_microseconds_is_exact() -> None:
    (start, *rest) = STORY
    odd = datetime(2026, 7, 5, 9, 59, 59, 999_999, tzinfo=UTC)
    entries = [JournalEntry("run-7f3a", start.event.model_copy(update={"timestamp": odd})), *rest]

    assert by_name(entries)["invoke_agent Refund"].start_time == (int(at(0).timestamp()) * 10**6 - 1) * 1_000


def test_exported_twice_the_ids_are_the_same_and_all_are_of_one_trace() -> None:
    first, second = exported(STORY), exported(STORY)

    ids = [(span.context.trace_id, span.context.span_id) for span in first]
    assert ids == [(span.context.trace_id, span.context.span_id) for span in second]
    assert len({span for _, span in ids}) == len(ids)
    assert len({trace for trace, _ in ids}) == 1
    assert all(0 < trace < 2**128 and 0 < span < 2**64 for trace, span in ids)


def test_the_ids_of_a_run_are_those_that_were_exported_before() -> None:
    """Whoever changes how they are made splits the traces that are there in two."""
    assert trace_of("run-7f3a").trace_hex == "1104efadff563b9eba7bd7b88f6e1b05"
    assert trace_of("run-7f3a").span_hex == "5bc359dc3a35b813"
    assert spans(STORY)[0].id.span_hex == "acebede9510b3d08"


def test_every_span_is_below_that_of_the_run() -> None:
    *others, run = exported(STORY)

    assert run.parent is None
    assert run.context.span_id == trace_of("run-7f3a").span
    assert {span.parent and span.parent.span_id for span in others} == {run.context.span_id}


def test_two_runs_are_two_traces() -> None:
    assert trace_of("a").trace != trace_of("b").trace


@pytest.mark.parametrize(
    ("became", "error"),
    [
        ((ToolFailed, {"attempt": 1, "error": canonical({"type": "Timeout", "message": CARD})}), "Timeout"),
        ((StepInDoubt, {"attempt": 1, "reason": CARD}), "in_doubt"),
        ((LlmDecided, {**DECIDED, "attempt": 2}), "lost"),
    ],
)
def test_an_attempt_that_did_not_succeed_is_an_error_of_its_kind(became: Told, error: str) -> None:
    kind, fields = became
    entries = journal(decided(), (kind, {"idx": 0, "tool": "pay", **fields}))

    span = by_name(entries)["execute_tool pay"]
    assert (span.status.status_code, attributes(span)[ERROR_TYPE]) == (StatusCode.ERROR, error)
    assert span.status.description is None
    assert CARD not in span.to_json()
    said = by_name(entries, contents=True)["execute_tool pay"].status.description
    assert said is None if error == "lost" else CARD in str(said)


def test_an_answer_that_could_not_be_used_is_an_error() -> None:
    unusable = {"turn": 0, "model": "m-1", "answer": CARD, "reason": CARD, "finish_reason": "length"}

    chat = by_name(journal((AnswerUnusable, unusable)))["chat m-1"]

    assert (chat.status.status_code, attributes(chat)[ERROR_TYPE]) == (StatusCode.ERROR, "unusable")
    assert attributes(chat)[gen_ai.GEN_AI_RESPONSE_FINISH_REASONS] == ("length",)
    assert CARD not in chat.to_json()


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        ((RunFailed, {"reason": CARD}), "failed", "RunFailed"),
        ((Cancelled, {"by": "dana", "reason": CARD}), "cancelled", None),
    ],
)
def test_a_run_that_failed_is_an_error_and_one_that_was_cancelled_is_not(
    end: Told, status: str, error: str | None
) -> None:
    *others, run = exported(journal(end))

    assert attributes(run)["agent_es.status"] == status
    assert attributes(run).get(ERROR_TYPE) == error
    assert (run.status.status_code is StatusCode.ERROR) == (error is not None)
    assert CARD not in run.to_json()
    assert all(span.status.status_code is StatusCode.UNSET for span in others)


def test_a_wait_is_a_span_of_its_own_and_links_to_the_run_that_it_waits_for() -> None:
    waits = (WaitBegan, {"idx": 0, "child": "run-7f3a.0"})
    entries = journal(decided(0), waits, (WaitEnded, {"idx": 0, "reason": "signal"}))

    wait = by_name(entries)["agent_es.wait"]
    assert (attributes(wait)["agent_es.end"], attributes(wait)["agent_es.tool"]) == ("woken", "pay")
    assert [link.context.trace_id for link in wait.links] == [trace_of("run-7f3a.0").trace]


def test_a_run_that_another_one_started_links_to_it() -> None:
    run = by_name(journal(FINISHED, run_id="run-7f3a.0", parent="run-7f3a"))["invoke_agent Refund"]

    assert run.parent is None
    assert [(link.context.trace_id, link.context.span_id) for link in run.links] == [
        (trace_of("run-7f3a").trace, trace_of("run-7f3a").span)
    ]
    assert attributes(run)["agent_es.parent"] == "run-7f3a"


def test_a_run_that_is_not_over_has_no_span_of_its_own_yet() -> None:
    assert [span.name for span in exported(STORY[:-1])] == ["chat m-1", "execute_tool pay"]


def test_a_run_that_went_on_after_its_end_is_one_span_up_to_the_last() -> None:
    entries = journal(FINISHED, (CompensationBegan, {"by": "dana"}), (CompensationEnded, {}))

    runs = [span for span in spans(entries) if span.parent is None]
    assert [(span.ended_seq, span.attributes["agent_es.status"]) for span in runs] == [(3, "cancelled")]


def test_a_clock_that_went_back_makes_no_span_of_less_than_no_time() -> None:
    entries = journal(decided(), RESULT, FINISHED)
    back = [JournalEntry("run-7f3a", one.event.model_copy(update={"timestamp": at(10 - one.seq)})) for one in entries]

    assert all(span.began_at <= span.ended_at for span in spans(back))


def test_a_number_that_the_protocol_cannot_carry_is_told_as_text() -> None:
    usage = {**USAGE, "tokens": 2**63}

    run = attributes(by_name(journal((UsageRecorded, usage), FINISHED))["invoke_agent Refund"])

    assert run["agent_es.tokens"] == str(2**63)


def test_a_span_as_json_has_its_ids_in_hexadecimal_digits() -> None:
    span = spans(STORY)[0]

    told = span.as_json
    assert (told["trace_id"], told["span_id"]) == (f"{span.id.trace:032x}", f"{span.id.span:016x}")
    assert told["parent_span_id"] == trace_of("run-7f3a").span_hex


def test_the_library_is_called_agent_es_where_nobody_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    assert readable(spans(STORY))[0].resource.attributes["service.name"] == "agent_es"

    monkeypatch.setenv("OTEL_SERVICE_NAME", "payments")
    assert readable(spans(STORY))[0].resource.attributes["service.name"] == "payments"


class Refusing(SpanExporter):
    """An exporter that takes nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE


def test_who_sends_to_an_exporter_that_takes_nothing_is_told() -> None:
    with pytest.raises(AgentError, match="4 spans were not sent"):
        send(spans(STORY), Refusing())


@pytest.mark.parametrize("url", ["", "collector:4318", "ftp://collector", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(AgentError, match="http://host:4318"):
        otlp(url)


def test_a_span_is_a_value() -> None:
    assert spans(STORY) == spans(STORY)
    assert isinstance(hash(spans(STORY)[0]), int)
    assert all(isinstance(span, Span) for span in spans(STORY))
