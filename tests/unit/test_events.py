"""Events: the schema, which is closed, and which never changes under a stored journal."""

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from agent_es import events
from agent_es.events import (
    REGISTRY,
    TOPICS,
    AnswerUnusable,
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
    stream_id,
)
from agent_es.testing import FrozenClock

AT = FrozenClock()(0)

EVERY_EVENT: list[Event] = [
    RunStarted(
        timestamp=AT, run_id="r", agent="Refund", agent_version="1", goal="g", input="null", tags={"team": "a"}
    ),
    LlmDecided(timestamp=AT, idx=0, turn=0, tool="search", args='{"q":1}', attempt=1, key="k", call_id="call_1"),
    ToolResult(timestamp=AT, idx=0, tool="search", attempt=1, result='"14 days"'),
    ToolFailed(timestamp=AT, idx=0, tool="search", attempt=1, error='{"type":"ValueError"}'),
    ToolFailed(timestamp=AT, idx=0, tool="search", attempt=1, error='{"type":"ValueError"}', retry_at=AT),
    StepInDoubt(timestamp=AT, idx=0, tool="search", attempt=5, reason="time-out"),
    DoubtSettled(timestamp=AT, idx=0, tool="search", attempt=5, outcome="happened", by="ann"),
    DoubtSettled(timestamp=AT, idx=0, tool="search", attempt=5, outcome="did_not_happen", by="probe", key="k#2"),
    WaitBegan(timestamp=AT, wake_at=AT),
    WaitBegan(timestamp=AT, wake_at=AT, idx=0, attempt=1, signal="paid"),
    WaitBegan(timestamp=AT, idx=0, child="r.0"),
    WaitEnded(timestamp=AT, reason="clock"),
    WaitEnded(timestamp=AT, reason="signal", idx=0, received=3),
    SignalReceived(timestamp=AT, name="paid", payload="0", delivery_id="evt-1"),
    RunStarted(timestamp=AT, run_id="r.0", agent="A", agent_version="1", goal="g", input="null", parent="r"),
    RunStarted(timestamp=AT, run_id="r", agent="A", agent_version="1", goal="g", input="null", envelope="{}"),
    BudgetReserved(timestamp=AT, turn=0, tokens=400, cost=Decimal("0.02")),
    UsageRecorded(timestamp=AT, turn=0, tokens=312, cost=Decimal("0.0156")),
    UsageRecorded(timestamp=AT, turn=0, tokens=400, cost=Decimal("0.02"), is_known=False),
    StepRefused(timestamp=AT, idx=0, tool="search", rule="tools", reason="search is outside of mail"),
    CallDelayed(timestamp=AT, idx=0, tool="search", attempt=0, until=AT, is_given=True),
    ApprovalRequested(
        timestamp=AT, idx=0, tool="search", args="{}", key=None, rule="needs_approval: search", digest="5e1d"
    ),
    ApprovalRequested(
        timestamp=AT,
        idx=0,
        tool="search",
        args='{"q":1}',
        key="k",
        rule="needs_approval: search",
        digest="5e1d",
        by=(("dana", "ann-*"), ("dana",)),
        people=2,
        expires_at=AT,
        then="park",
    ),
    ApprovalGranted(timestamp=AT, idx=0, tool="search", digest="5e1d", by="dana"),
    ApprovalGranted(
        timestamp=AT,
        idx=0,
        tool="search",
        digest="7a0c",
        by="dana",
        args='{"q":2}',
        key="k2",
        keyed_as="find",
        reason="less",
    ),
    ApprovalDenied(timestamp=AT, idx=0, tool="search", digest="5e1d", by="dana", reason="not now"),
    ApprovalDenied(timestamp=AT, idx=0, tool="search", digest="5e1d", by="the clock", reason="late", is_expired=True),
    QuestionAnswered(timestamp=AT, idx=0, answer="false", by="dana"),
    Steered(timestamp=AT, text="the parcel is back", by="dana"),
    Paused(timestamp=AT, by="dana", reason=""),
    Resumed(timestamp=AT, by="dana"),
    EnvelopeChanged(timestamp=AT, envelope="{}", by="ann", reason="it may take longer"),
    Cancelled(timestamp=AT, by="ann", reason="the order is gone"),
    Parked(timestamp=AT, reason="this program has no tool 'search'"),
    Requeued(timestamp=AT, by="ann"),
    LlmAnswered(timestamp=AT, turn=0, model="test", answer="{}"),
    LlmAnswered(
        timestamp=AT,
        turn=0,
        model="test",
        answer='{"kind":"response"}',
        finish_reason="stop",
        tokens=612,
        request='["7a0c"]',
    ),
    AnswerUnusable(timestamp=AT, turn=0, model="test", answer="", reason="it is empty"),
    AnswerUnusable(timestamp=AT, turn=0, model="test", answer="The", reason="it was cut", finish_reason="length"),
    FactRecorded(timestamp=AT, name="total", value='"180.00"', idx=0),
    Summarized(timestamp=AT, first=0, up_to=4, text="Four archives were asked."),
    Summarized(timestamp=AT, first=0, up_to=4, text="Four archives were asked.", phase="research"),
    LlmDecided(timestamp=AT, idx=1, turn=1, tool="undo", args="{}", attempt=1, key="k", undoes=0),
    CompensationBegan(timestamp=AT, by="ann"),
    CompensationBegan(timestamp=AT, by="ann", reason="the order was a mistake"),
    CompensationEnded(timestamp=AT),
    Finished(timestamp=AT, answer='"done"'),
    RunFailed(timestamp=AT, reason="no such order"),
]


def test_the_topics_are_these_for_ever() -> None:
    assert set(REGISTRY) == {
        "agent_es:RunStarted",
        "agent_es:LlmDecided",
        "agent_es:ToolResult",
        "agent_es:ToolFailed",
        "agent_es:StepInDoubt",
        "agent_es:DoubtSettled",
        "agent_es:WaitBegan",
        "agent_es:WaitEnded",
        "agent_es:Parked",
        "agent_es:Requeued",
        "agent_es:CompensationBegan",
        "agent_es:CompensationEnded",
        "agent_es:Finished",
        "agent_es:RunFailed",
        "agent_es:SignalReceived",
        "agent_es:Cancelled",
        "agent_es:BudgetReserved",
        "agent_es:UsageRecorded",
        "agent_es:StepRefused",
        "agent_es:CallDelayed",
        "agent_es:ApprovalRequested",
        "agent_es:ApprovalGranted",
        "agent_es:ApprovalDenied",
        "agent_es:QuestionAnswered",
        "agent_es:Steered",
        "agent_es:Paused",
        "agent_es:Resumed",
        "agent_es:EnvelopeChanged",
        "agent_es:LlmAnswered",
        "agent_es:AnswerUnusable",
        "agent_es:FactRecorded",
        "agent_es:Summarized",
    }


def test_every_event_that_the_schema_defines_can_be_read_back_and_nothing_else() -> None:
    defined = {it for it in vars(events).values() if isinstance(it, type) and issubclass(it, Event)} - {Event}

    assert set(REGISTRY.values()) == defined
    assert {REGISTRY[topic] for topic in TOPICS.values()} == defined
    assert {type(event) for event in EVERY_EVENT} == defined


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: type(event).__name__)
def test_an_event_is_read_back_as_it_was_written(event: Event) -> None:
    text = event.model_dump_json(exclude_none=True)

    assert type(event).model_validate_json(text) == event


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: type(event).__name__)
def test_an_event_is_frozen(event: Event) -> None:
    for name in type(event).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(event, name, getattr(event, name))


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: type(event).__name__)
def test_an_event_with_a_field_too_many_is_refused(event: Event) -> None:
    values = {name: getattr(event, name) for name in type(event).model_fields} | {"colour": "red"}

    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        type(event)(**values)


@pytest.mark.parametrize("wrong", [{"idx": "0"}, {"attempt": 1.0}, {"tool": None}, {"args": {"q": 1}}], ids=str)
def test_a_field_of_another_type_is_refused_and_not_converted(wrong: dict[str, Any]) -> None:
    values: dict[str, Any] = {"timestamp": AT, "idx": 0, "turn": 0, "tool": "search", "args": "{}", "attempt": 1}

    with pytest.raises(ValidationError):
        LlmDecided(**{**values, **wrong})


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (Finished, "timestamp"),
        (WaitBegan, "wake_at"),
        (ToolFailed, "retry_at"),
        (CallDelayed, "until"),
        (ApprovalRequested, "expires_at"),
    ],
    ids=str,
)
def test_a_time_without_a_zone_is_refused_for_nobody_knows_when_it_is(cls: type[Event], name: str) -> None:
    (event, *_) = (it for it in reversed(EVERY_EVENT) if type(it) is cls)
    values = {field: getattr(event, field) for field in cls.model_fields}

    with pytest.raises(ValidationError, match=name):
        cls(**{**values, name: datetime(2026, 7, 5, 10)})  # noqa: DTZ001


def test_a_doubt_comes_to_one_of_four_outcomes_and_to_no_other() -> None:
    values: dict[str, Any] = {"timestamp": AT, "idx": 0, "tool": "search", "attempt": 1, "by": "ann"}

    for outcome in ("happened", "did_not_happen", "skipped", "told"):
        assert DoubtSettled(**values, outcome=outcome).outcome == outcome
    with pytest.raises(ValidationError, match="outcome"):
        DoubtSettled(**values, outcome="perhaps")


def test_a_question_that_expires_is_denied_or_parks_and_nothing_turns_it_into_a_yes() -> None:
    values: dict[str, Any] = {
        "idx": 0,
        "tool": "search",
        "args": "{}",
        "key": None,
        "rule": "search",
        "digest": "5e1d",
    }

    for then in ("deny", "park"):
        assert ApprovalRequested(timestamp=AT, **values, then=then).then == then
    with pytest.raises(ValidationError, match="then"):
        ApprovalRequested(timestamp=AT, **values, then="approve")


def test_an_event_that_was_stored_before_it_had_a_reason_is_read_back() -> None:
    stored = '{"timestamp":"2026-07-05T10:00:00Z","by":"ann"}'

    assert CompensationBegan.model_validate_json(stored).reason == ""


def test_the_columns_of_the_store_are_not_stored_twice() -> None:
    event = Finished(timestamp=AT, originator_id=UUID(int=7), originator_version=7, answer="1")

    assert event.model_dump_json() == '{"timestamp":"2026-07-05T10:00:00Z","answer":"1"}'


def test_the_stream_of_a_run_is_this_one_for_ever() -> None:
    assert stream_id("run-7f3a") == UUID("4fe7e26b-a102-52ae-997a-91bf2aceb042")
