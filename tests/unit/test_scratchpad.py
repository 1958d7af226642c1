"""What a decider is told: messages stand before the turn that was the first to see them."""

from datetime import UTC, datetime

from agent_es.events import AnyEvent, ApprovalRequested, LlmDecided, RunStarted, Steered, ToolResult
from agent_es.scratchpad import Entry, entries
from agent_es.state import fold

NOON = datetime(2026, 7, 5, 12, tzinfo=UTC)


def said(text: str) -> Steered:
    return Steered(timestamp=NOON, text=text, by="dana")


def looks(turn: int) -> LlmDecided:
    return LlmDecided(timestamp=NOON, idx=turn, turn=turn, tool="look", args="{}", attempt=1)


def saw(turn: int) -> ToolResult:
    return ToolResult(timestamp=NOON, idx=turn, tool="look", attempt=1, result=str(turn))


STARTED = RunStarted(timestamp=NOON, run_id="r", agent="A", agent_version="1", goal="Look", input="null")


def test_a_message_stands_before_the_turn_that_was_decided_after_it_and_the_last_ones_at_the_end() -> None:
    journal: list[AnyEvent] = [
        STARTED,
        said("a"),
        looks(0),
        said("b"),
        saw(0),
        said("c"),
        looks(1),
        saw(1),
        said("d"),
    ]

    told = [*entries(fold(journal))]

    assert told == [
        Entry("goal", "Look"),
        Entry("message", "dana: a"),
        Entry("call", "look {}", 0),
        Entry("result", "0", 0),
        Entry("message", "dana: b"),
        Entry("message", "dana: c"),
        Entry("call", "look {}", 1),
        Entry("result", "1", 1),
        Entry("message", "dana: d"),
    ]


def test_a_call_that_waits_for_a_yes_is_told_with_the_rule_that_asks() -> None:
    queued = LlmDecided(timestamp=NOON, idx=0, turn=0, tool="look", args="{}", attempt=0)
    asks = ApprovalRequested(
        timestamp=NOON, idx=0, tool="look", args="{}", digest="5e1d", rule="needs_approval: look"
    )

    assert [*entries(fold([STARTED, queued, asks]))][-1] == Entry("gate", "needs_approval: look", 0)
