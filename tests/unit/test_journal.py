"""The journal as people read it: the format of a line is a promise."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_es.errors import AgentError, BadJournal
from agent_es.events import (
    AnyEvent,
    CompensationEnded,
    DoubtSettled,
    Finished,
    LlmDecided,
    Parked,
    RunStarted,
    StepInDoubt,
    ToolFailed,
    ToolResult,
    WaitBegan,
    stream_id,
)
from agent_es.journal import JournalEntry, timestamp
from agent_es.testing import FrozenClock
from agent_es.values import canonical

at = FrozenClock()


def test_a_line_is_json_with_sorted_keys_and_its_values_are_objects() -> None:
    event = LlmDecided(
        originator_version=4,
        timestamp=at(3),
        turn=1,
        idx=1,
        tool="process_refund",
        args='{"amount":180.0,"order_id":"ORD-3300"}',
        attempt=1,
        key="ORD-3300:refund:180.00",
    )

    line = str(JournalEntry("run-7f3a", event))

    assert line == (
        '{"data": {"args": {"amount": 180.0, "order_id": "ORD-3300"}, "attempt": 1, "idx": 1, '
        '"key": "ORD-3300:refund:180.00", "tool": "process_refund", "turn": 1}, "run_id": "run-7f3a", "seq": 3, '
        '"ts": "2026-07-05T10:00:03Z", "type": "llm_decided"}'
    )


STARTED = RunStarted(
    timestamp=at(0), originator_version=1, run_id="r", agent="Refund", agent_version="1", goal="g", input='{"id":1}'
)


@pytest.mark.parametrize(
    ("event", "name", "data"),
    [
        (
            STARTED,
            "run_started",
            {"run_id": "r", "agent": "Refund", "agent_version": "1", "goal": "g", "input": {"id": 1}, "tags": {}},
        ),
        (
            ToolResult(timestamp=at(0), idx=0, tool="search", attempt=1, result='["14 days",null]'),
            "tool_result",
            {"idx": 0, "tool": "search", "attempt": 1, "result": ["14 days", None]},
        ),
        (
            ToolResult(timestamp=at(0), idx=0, tool="search", attempt=1, result="null"),
            "tool_result",
            {"idx": 0, "tool": "search", "attempt": 1, "result": None},
        ),
        (
            ToolFailed(
                timestamp=at(0), idx=0, tool="search", attempt=1, error='{"message":"no","type":"ValueError"}'
            ),
            "tool_failed",
            {"idx": 0, "tool": "search", "attempt": 1, "error": {"type": "ValueError", "message": "no"}},
        ),
        (
            StepInDoubt(timestamp=at(0), idx=0, tool="search", attempt=5, reason='"quoted"'),
            "step_in_doubt",
            {"idx": 0, "tool": "search", "attempt": 5, "reason": '"quoted"'},
        ),
        (
            ToolFailed(timestamp=at(0), idx=0, tool="search", attempt=1, error="{}", retry_at=at(60)),
            "tool_failed",
            {"idx": 0, "tool": "search", "attempt": 1, "error": {}, "retry_at": "2026-07-05T10:01:00Z"},
        ),
        (
            DoubtSettled(
                timestamp=at(0), idx=0, tool="pay", attempt=1, outcome="did_not_happen", by="probe", key="k#2"
            ),
            "doubt_settled",
            {"idx": 0, "tool": "pay", "attempt": 1, "outcome": "did_not_happen", "by": "probe", "key": "k#2"},
        ),
        (WaitBegan(timestamp=at(0), wake_at=at(60)), "wait_began", {"wake_at": "2026-07-05T10:01:00Z"}),
        (Parked(timestamp=at(0), reason="no such tool"), "parked", {"reason": "no such tool"}),
        (CompensationEnded(timestamp=at(0)), "compensation_ended", {}),
    ],
    ids=["started", "result", "null", "failed", "doubt", "retry", "settled", "wait", "parked", "compensated"],
)
def test_an_entry_tells_what_its_event_says_and_its_line_can_be_read_back(
    event: AnyEvent, name: str, data: dict[str, object]
) -> None:
    entry = JournalEntry("r", event.model_copy(update={"originator_id": stream_id("r"), "originator_version": 1}))

    assert (entry.type, entry.data) == (name, data)
    assert JournalEntry.parse(str(entry)) == entry


def test_a_line_stays_one_line_and_keeps_its_characters() -> None:
    event = StepInDoubt(timestamp=at(0), idx=0, tool="search", attempt=1, reason="first\nsecond € \N{GRINNING FACE}")

    line = str(JournalEntry("run-7f3a", event))

    assert "\n" not in line
    assert "€ \N{GRINNING FACE}" in line
    assert json.loads(line)["data"]["reason"] == "first\nsecond € \N{GRINNING FACE}"


def test_seq_counts_from_0_where_versions_count_from_1() -> None:
    entry = JournalEntry("r", STARTED)

    assert (entry.seq, entry.at) == (0, at(0))


@pytest.mark.parametrize(
    ("moment", "written"),
    [
        (at(0), "2026-07-05T10:00:00Z"),
        (at(0) + timedelta(milliseconds=500), "2026-07-05T10:00:00.500000Z"),
        (at(0) + timedelta(microseconds=1), "2026-07-05T10:00:00.000001Z"),
        (datetime(2026, 7, 5, 12, tzinfo=timezone(timedelta(hours=2))), "2026-07-05T10:00:00Z"),
    ],
)
def test_a_time_is_utc_and_has_no_fraction_where_it_is_zero(moment: datetime, written: str) -> None:
    assert timestamp(moment) == written


# And back.

ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(ATOMS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@given(value=VALUES, seq=st.integers(0, 10_000), moment=st.datetimes(timezones=st.just(UTC)))
def test_a_line_can_be_read_back(value: Any, seq: int, moment: datetime) -> None:
    event = Finished(
        originator_id=stream_id("run-7f3a"), originator_version=seq + 1, timestamp=moment, answer=canonical(value)
    )
    entry = JournalEntry("run-7f3a", event)

    back = JournalEntry.parse(str(entry))

    assert back == entry
    assert str(back) == str(entry)


def line(**changes: Any) -> str:
    told = {"data": {"answer": 1}, "run_id": "r", "seq": 0, "ts": "2026-07-05T10:00:00Z", "type": "finished"}
    return json.dumps({**told, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not JSON",
        "[]",
        "1",
        "null",
        "[" * 100_000,
        line(type="Finished"),
        line(type="paid"),
        line(type=None),
        line(seq=-1),
        line(seq="0"),
        line(seq=True),
        line(ts="yesterday"),
        line(ts=0),
        line(ts="2026-07-05T10:00:00"),
        line(data=None),
        line(data={}),
        line(data={"answer": 1, "colour": "red"}),
        line(data={"answer": 1, "timestamp": "2026-07-05T10:00:00Z"}),
        line(data={"answer": 1, "originator_version": 7}),
        line(data={"answer": float("nan")}),
        line(run_id=None),
        line(colour="red"),
        line(type="wait_began", data={"wake_at": "2026-07-05T10:01:00"}),
        line(type="wait_began", data={"wake_at": "soon"}),
        line(type="doubt_settled", data={"idx": 0, "tool": "t", "attempt": 1, "outcome": "perhaps", "by": "ann"}),
    ],
    ids=lambda text: text[:90],
)
def test_what_is_no_journal_line_is_refused(text: str) -> None:
    with pytest.raises(BadJournal):
        JournalEntry.parse(text)


@pytest.mark.parametrize("run_id", ["", "a\0b", "x" * 201])
def test_a_line_of_what_is_no_run_id_is_refused(run_id: str) -> None:
    with pytest.raises(AgentError, match="1 to 200 characters"):
        JournalEntry.parse(line(run_id=run_id))
