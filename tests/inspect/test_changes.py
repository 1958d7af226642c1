"""What one event changed of a run: told as people read it, bounded, and nothing that every event changes."""

from dataclasses import replace

import pytest

from agent_es import RunState
from agent_es.inspector.changes import MOST, WIDE, Change, changes
from agent_es.journal import JournalEntry
from agent_es.state import Message, evolve, fold
from agent_es.testing.clock import STORY


def told(entries: list[JournalEntry], seq: int) -> list[str]:
    """What the event of that seq changed."""
    before = fold(entry.event for entry in entries[:seq]) if seq else None
    return [str(change) for change in changes(before, fold(entry.event for entry in entries[: seq + 1]))]


def test_the_first_event_sets_what_a_run_is(story: list[JournalEntry]) -> None:
    assert set(told(story, 0)) == {
        'run_id: "" → run-7f3a',
        'agent: "" → RefundRun',
        'agent_version: "" → 1',
        'goal: "" → Refund ORD-3300',
        "started_at: - → 2026-07-05T10:00:00Z",
    }


@pytest.mark.parametrize(
    ("seq", "expected"),
    [
        (1, ['steps[0]: - → search_policy {"query":"refund policy window"}, started']),
        (2, ["steps[0].status: started → done"]),
        (3, ['steps[1]: - → process_refund {"amount":180.0,"order_id":"ORD-3300"}, started']),
        (4, ["steps[1].attempt: 1 → 2", "steps[1].started_at: 2026-07-05T10:00:03Z → 2026-07-05T10:00:04Z"]),
        (5, ["steps[1].status: started → done"]),
        (6, ["status: running → done"]),
    ],
)
def test_each_event_of_the_story_changed_this(story: list[JournalEntry], seq: int, expected: list[str]) -> None:
    found = told(story, seq)

    assert set(expected) <= set(found)
    assert not [line for line in found if line.startswith(("version", "updated_at"))]


def test_the_attempt_of_the_worker_that_took_over_changed_nothing_else(story: list[JournalEntry]) -> None:
    assert len(told(story, 4)) == 2


def test_two_equal_states_differ_nowhere(story: list[JournalEntry]) -> None:
    state = fold(entry.event for entry in story)

    assert changes(state, fold(entry.event for entry in story)) == []


def test_every_event_changes_something_but_a_settlement_whose_result_comes_next(eventful: list[JournalEntry]) -> None:
    state, unchanged = RunState(), list[str]()

    for entry in eventful:
        before, state = state, evolve(state, entry.event)
        unchanged += [] if changes(before, state) else [entry.type]

    assert unchanged == ["doubt_settled"]


def test_many_changes_are_bounded_and_counted() -> None:
    said = tuple(Message(n, 0, f"word {n}", "dana", STORY) for n in range(MOST + 40))

    found = changes(RunState(), RunState(messages=said))

    assert len(found) == MOST + 1
    assert found[-1] == Change("and 40 more", "", "")


def test_long_and_hostile_values_are_cut_and_visible() -> None:
    state = RunState(goal="\x1b[2J" + "x" * 5_000_000, tags={"\u202eevil": "\0"})

    found = {change.where: change for change in changes(replace(state, goal="", tags={}), state)}

    assert found["goal"].after.startswith("\\x1b[2J")
    assert len(found["goal"].after) < 2 * WIDE
    assert found["tags.\\u202eevil"].after == "\\x00"
