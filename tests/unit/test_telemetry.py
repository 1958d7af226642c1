"""Notices: each reads as one line."""

import pytest

from agent_es.telemetry import Notice


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
