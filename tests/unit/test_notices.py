"""Notices: each reads as one line."""

from datetime import UTC, datetime

import pytest

from agent_es.events import (
    AnyEvent,
    ApprovalDenied,
    ApprovalGranted,
    ApprovalRequested,
    CompensationBegan,
    Paused,
    QuestionAnswered,
    Resumed,
    Steered,
    WaitBegan,
)
from agent_es.notices import Notice, notice_of

NOON = datetime(2026, 7, 5, 12, tzinfo=UTC)
STEP = {"timestamp": NOON, "idx": 0, "tool": "refund", "digest": "5e1d"}


@pytest.mark.parametrize(
    ("notice", "line"),
    [
        (
            Notice("attempted_again", "run-7f3a", 4, 1, "process_refund", 2, "ORD-3300:refund", '{"amount":180}'),
            'run-7f3a seq 4 attempted again step 1 process_refund attempt 2 key ORD-3300:refund: {"amount":180}',
        ),
        (Notice("decided", "run-7f3a", 1, 0, "search", 0), "run-7f3a seq 1 decided step 0 search"),
        (Notice("started", "run-7f3a", 0, text="Refund ORD-3300"), "run-7f3a seq 0 started: Refund ORD-3300"),
        (Notice("resumed", "run-7f3a", 3), "run-7f3a seq 3 resumed"),
    ],
)
def test_a_notice_reads_as_one_line(notice: Notice, line: str) -> None:
    assert str(notice) == line


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            ApprovalRequested(**STEP, args="{}", key="k", rule="needs_approval: refund"),
            "approval requested step 0 refund key k: needs_approval: refund",
        ),
        (ApprovalGranted(**STEP, by="dana"), "approved step 0 refund: by dana"),
        (
            ApprovalGranted(**STEP, by="dana", args='{"amount":9}', key="k9"),
            'approved step 0 refund key k9: by dana with {"amount":9}',
        ),
        (ApprovalDenied(**STEP, by="dana", reason="not now"), "denied step 0 refund: by dana: not now"),
        (QuestionAnswered(timestamp=NOON, idx=1, answer="false", by="dana"), "answered step 1: false by dana"),
        (Steered(timestamp=NOON, text="it is back", by="dana"), "steered: by dana: it is back"),
        (Paused(timestamp=NOON, by="dana", reason=""), "paused: by dana"),
        (Paused(timestamp=NOON, by="dana", reason="the bank is down"), "paused: by dana: the bank is down"),
        (Resumed(timestamp=NOON, by="dana"), "let go on: by dana"),
        (CompensationBegan(timestamp=NOON, by="dana", reason="a mistake"), "compensating: by dana: a mistake"),
        (
            WaitBegan(timestamp=NOON, idx=1, signal="answer:1", wake_at=NOON),
            "waiting step 1: for a person's answer until 2026-07-05T12:00:00Z",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_people_do_reads_as_one_line(event: AnyEvent, line: str) -> None:
    told = event.model_copy(update={"originator_version": 5})

    assert str(notice_of("run-7f3a", told)) == f"run-7f3a seq 4 {line}"
