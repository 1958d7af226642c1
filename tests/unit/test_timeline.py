"""What of a run took time: what begins and ends a segment, and that any legal journal has them."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_es.events import (
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
from agent_es.journal import JournalEntry
from agent_es.keys import renewed
from agent_es.legality import LEGAL, call_digest, child_id, misfit
from agent_es.state import RunState, Step, evolve
from agent_es.testing import FrozenClock
from agent_es.testing.strategies import odd_values
from agent_es.timeline import Segment, Timeline, segments
from agent_es.values import canonical
from agent_es.waits import ASKED

at = FrozenClock()
SURE = canonical({"applied": False, "message": "full", "type": "NotApplied"})
UNSURE = canonical({"applied": None, "message": "slow", "type": "Timeout"})


Told = tuple[Any, dict[str, Any]]
"""A class of events, and the fields of one."""


def journal(*events: Told) -> list[JournalEntry]:
    """A journal: its start, and events one second apart."""
    start: dict[str, Any] = {"run_id": "r", "agent": "Refund", "agent_version": "1", "goal": "g", "input": "null"}
    entries: list[tuple[int, Told]] = [*enumerate([(RunStarted, start), *events])]
    return [
        JournalEntry("r", cast(AnyEvent, kind(originator_version=seq + 1, timestamp=at(seq), **fields)))
        for seq, (kind, fields) in entries
    ]


def decided(attempt: int = 1, idx: int = 0, turn: int = 0, **more: Any) -> Told:
    return LlmDecided, {"idx": idx, "turn": turn, "tool": "pay", "args": "{}", "attempt": attempt, **more}


def of_step(kind: Any, idx: int = 0, attempt: int = 1, **more: Any) -> Told:
    return kind, {"idx": idx, "tool": "pay", "attempt": attempt, **more}


def gate(**more: Any) -> Told:
    return ApprovalRequested, {"idx": 0, "tool": "pay", "args": "{}", "digest": "d", "rule": "over 100", **more}


RESULT = of_step(ToolResult, result="1")
FINISHED: Told = (Finished, {"answer": "1"})
CANCELLED: Told = (Cancelled, {"by": "dana", "reason": "enough"})


def told(entries: Iterable[JournalEntry]) -> list[tuple[str, int, int | None, str]]:
    return [(one.kind, one.began_seq, one.ended_seq, one.end) for one in segments(entries)]


def test_a_question_an_attempt_and_the_last_question_make_a_short_run() -> None:
    model, attempt, last = segments(journal(decided(), RESULT, FINISHED))

    assert model == Segment(
        kind="model", began_seq=0, began_at=at(0), ended_seq=1, ended_at=at(1), end="done", turn=0
    )
    assert attempt == Segment(
        kind="attempt",
        began_seq=1,
        began_at=at(1),
        ended_seq=2,
        ended_at=at(2),
        end="done",
        turn=0,
        idx=0,
        tool="pay",
        attempt=1,
    )
    assert (last.kind, last.began_seq, last.ended_seq, last.turn) == ("model", 2, 3, 1)


def test_an_attempt_after_which_another_one_started_was_lost_and_ends_there() -> None:
    entries = journal(decided(1), decided(2), of_step(ToolResult, attempt=2, result="1"))

    assert told(entries)[1:] == [("attempt", 1, 2, "lost"), ("attempt", 2, 3, "done")]


def test_what_is_still_going_on_is_open_and_has_its_place() -> None:
    entries = journal(decided(1, 0), decided(1, 1), of_step(ToolResult, 1, result="1"))

    assert told(entries)[1:] == [("attempt", 1, None, "open"), ("attempt", 2, 3, "done")]


def test_a_question_begins_where_its_budget_is_set_aside_and_knows_what_it_took() -> None:
    usage = {"turn": 0, "tokens": 70, "cost": Decimal("0.01")}
    said = (LlmAnswered, {"turn": 0, "model": "m-1", "answer": "{}"})

    (model,) = segments(
        journal((Steered, {"text": "x", "by": "d"}), (BudgetReserved, usage), (UsageRecorded, usage), said)
    )

    assert (model.began_seq, model.ended_seq, model.end) == (2, 4, "done")
    assert (model.model, model.tokens, model.cost) == ("m-1", 70, Decimal("0.01"))


def test_what_was_read_from_an_answer_is_no_question_of_its_own() -> None:
    said = (LlmAnswered, {"turn": 0, "model": "m-1", "answer": "{}"})

    assert told(journal(said, decided(0), FINISHED))[:1] == [("model", 0, 1, "done")]
    assert told(journal(said, FINISHED)) == [("model", 0, 1, "done")]


def test_a_question_whose_worker_died_is_lost_and_nobody_knows_what_it_took() -> None:
    usage = {"turn": 0, "tokens": 70, "cost": Decimal("0.01")}
    entries = journal(
        (BudgetReserved, usage), (UsageRecorded, {**usage, "is_known": False}), (BudgetReserved, usage), FINISHED
    )

    assert told(entries) == [("model", 1, 2, "lost"), ("model", 3, 4, "done")]
    assert segments(entries)[0].tokens is None


def test_an_answer_that_came_after_a_person_had_spoken_ends_with_what_it_took() -> None:
    usage = {"turn": 0, "tokens": 70, "cost": Decimal("0.01")}
    steered = (Steered, {"text": "x", "by": "d"})
    entries = journal((BudgetReserved, usage), steered, (UsageRecorded, usage), (BudgetReserved, usage), FINISHED)

    assert told(entries) == [("model", 1, 3, "ended"), ("model", 4, 5, "done")]


def test_an_answer_that_could_not_be_used_says_why() -> None:
    unusable = (AnswerUnusable, {"turn": 0, "model": "m-1", "answer": "", "reason": "it is empty"})

    first, second = segments(journal(unusable, FINISHED))

    assert (first.end, first.text, first.model) == ("unusable", "it is empty", "m-1")
    assert (second.began_seq, second.ended_seq) == (1, 2)


def test_a_run_that_its_envelope_ends_asked_nobody_again() -> None:
    refused = (StepRefused, {"idx": 0, "tool": "pay", "rule": "tools", "reason": "not that"})
    ended = (RunFailed, {"reason": "refused by tools: not that"})

    assert told(journal(decided(0), refused, ended)) == [("model", 0, 1, "done")]


def test_a_failed_attempt_waits_for_the_next_one() -> None:
    failed = of_step(ToolFailed, error=UNSURE, retry_at=at(9))
    entries = journal(decided(), failed, (WaitBegan, {"wake_at": at(9)}), (WaitEnded, {"reason": "c"}), decided(2))

    assert told(entries)[1:] == [("attempt", 1, 2, "failed"), ("retry", 2, 5, "done"), ("attempt", 5, None, "open")]
    assert segments(entries)[1].text == "Timeout: slow"


def test_a_call_that_is_held_to_a_limit_waits_once_however_often_it_asks() -> None:
    delayed = of_step(CallDelayed, attempt=0, until=at(9), is_given=False)

    assert told(journal(decided(0), delayed, delayed, decided(1)))[1:2] == [("retry", 2, 4, "done")]


def test_a_doubt_lasts_until_it_is_settled() -> None:
    settled = of_step(DoubtSettled, outcome="happened", by="dana")
    entries = journal(decided(), of_step(StepInDoubt, reason="it died"), settled, RESULT)

    assert told(entries)[1:] == [("attempt", 1, 2, "in_doubt"), ("doubt", 2, 3, "settled")]
    assert segments(entries)[-1].text == "it died; happened, by dana"


def test_an_attempt_of_which_a_probe_tells_was_lost() -> None:
    settled = of_step(DoubtSettled, outcome="happened", by="probe")

    assert told(journal(decided(), settled, RESULT))[1:] == [("attempt", 1, 2, "lost")]


@pytest.mark.parametrize(
    ("began", "ended", "segment"),
    [
        ({"wake_at": at(9)}, (WaitEnded, {"idx": 0, "reason": "clock"}), ("wait", "woken")),
        ({"signal": f"{ASKED}0"}, (QuestionAnswered, {"idx": 0, "answer": "1", "by": "d"}), ("question", "answered")),
        ({"signal": f"{ASKED}0"}, (WaitEnded, {"idx": 0, "reason": "clock"}), ("question", "woken")),
    ],
)
def test_a_step_waits_for_the_clock_or_a_person(began: dict[str, Any], ended: Told, segment: tuple[str, str]) -> None:
    arrival = (SignalReceived, {"name": "x", "payload": "1", "delivery_id": "1"})
    (wait,) = segments(journal(decided(0), (WaitBegan, {"idx": 0, **began}), arrival, ended))[1:]

    assert (wait.kind, wait.end) == segment
    assert (wait.idx, wait.tool) == (0, "pay")
    assert (wait.began_seq, wait.ended_seq) == (2, 4)


def test_a_body_that_asks_to_wait_has_ended() -> None:
    entries = journal(decided(), (WaitBegan, {"idx": 0, "attempt": 1, "wake_at": at(9)}))

    assert told(entries)[1:] == [("attempt", 1, 2, "done"), ("wait", 2, None, "open")]


def test_a_yes_is_there_when_as_many_people_as_are_needed_have_said_it() -> None:
    def yes(by: str) -> Told:
        return ApprovalGranted, {"idx": 0, "tool": "pay", "digest": "d", "by": by}

    (approval,) = segments(journal(decided(0), gate(people=2), yes("dana"), yes("ann")))[1:]

    assert (approval.kind, approval.ended_seq, approval.end) == ("approval", 4, "approved")
    assert approval.text == "over 100; by dana, ann"


def test_where_nobody_answers_in_time_the_run_may_be_parked() -> None:
    no = {"idx": 0, "tool": "pay", "digest": "d", "by": "the clock", "reason": "late", "is_expired": True}
    entries = journal(decided(0), gate(then="park"), (ApprovalDenied, no), (Requeued, {"by": "d"}))

    assert told(entries)[1:] == [("approval", 2, 3, "denied"), ("parked", 3, 4, "ended")]


def test_a_run_is_parked_and_paused_as_a_whole() -> None:
    entries = journal(
        *[(Paused, {"by": "d", "reason": "wait"}), (Resumed, {"by": "d"})],
        *[(Parked, {"reason": "no such tool"}), (Requeued, {"by": "d"}), FINISHED],
    )

    assert told(entries) == [("paused", 1, 2, "ended"), ("parked", 3, 4, "ended"), ("model", 4, 5, "done")]


def test_a_run_that_is_cancelled_leaves_what_was_under_way_in_doubt_and_nothing_else() -> None:
    wait = (WaitBegan, {"idx": 1, "wake_at": at(9)})
    entries = journal(decided(1, 0), decided(0, 1), wait, CANCELLED, RESULT)

    assert told(entries)[1:] == [
        ("attempt", 1, 4, "in_doubt"),
        ("wait", 3, 4, "ended"),
        ("doubt", 4, 5, "settled"),
    ]


@pytest.mark.parametrize(("error", "left"), [(SURE, []), (UNSURE, [("doubt", 3, None, "open")])])
def test_a_failed_call_of_a_cancelled_run_is_in_doubt_where_it_may_have_happened(
    error: str, left: list[tuple[str, int, int | None, str]]
) -> None:
    entries = journal(decided(), of_step(ToolFailed, error=error, retry_at=at(9)), CANCELLED)

    assert told(entries)[3:] == left


def test_what_arrives_while_a_decider_is_asked_tells_nothing_of_when_that_began() -> None:
    arrivals = [
        (SignalReceived, {"name": "x", "payload": "1", "delivery_id": "1"}),
        (EnvelopeChanged, {"envelope": "{}", "by": "d", "reason": ""}),
        (Steered, {"text": "x", "by": "d"}),
    ]

    assert told(journal(*arrivals, FINISHED)) == [("model", 0, 4, "done")]


def test_a_later_attempt_that_surely_did_not_happen_leaves_no_doubt() -> None:
    unsure = of_step(ToolFailed, error=UNSURE, retry_at=at(9))
    sure = of_step(ToolFailed, attempt=2, error=SURE, retry_at=at(9))

    assert told(journal(decided(), unsure, decided(2), sure, CANCELLED))[-1] == ("retry", 4, 5, "ended")


def test_undoing_asks_nobody() -> None:
    began = (CompensationBegan, {"by": "d", "reason": ""})
    entries = journal(
        *[decided(key="k"), RESULT, began, decided(idx=1, turn=1, undoes=0)],
        *[of_step(ToolResult, 1, result="1"), (CompensationEnded, {})],
    )

    assert told(entries) == [("model", 0, 1, "done"), ("attempt", 1, 2, "done"), ("attempt", 4, 5, "done")]


def test_a_summary_that_is_paid_for_is_a_question() -> None:
    usage = {"turn": 1, "tokens": 70, "cost": Decimal("0.01")}
    summarized = (Summarized, {"first": 0, "up_to": 1, "text": "it paid"})
    entries = journal(decided(), RESULT, (BudgetReserved, usage), (UsageRecorded, usage), summarized, FINISHED)

    assert told(entries)[2:] == [("model", 3, 5, "done"), ("model", 5, 6, "done")]


TEXT = st.sampled_from(["", "a", "b"])


def _said(draw: st.DrawFn, state: RunState) -> list[AnyEvent]:
    """What a decider, a worker or a person may have recorded next, if that is legal."""
    now = at(state.version)
    later = draw(st.none() | st.just(now + timedelta(seconds=5)))
    text, number, value = draw(TEXT), draw(st.integers(0, 3)), canonical(draw(odd_values()))
    new, turn = len(state.steps), state.turns
    usage: dict[str, Any] = {"turn": turn, "tokens": number, "cost": Decimal(number)}
    call: dict[str, Any] = {"idx": new, "tool": "pay", "args": "{}", "attempt": draw(st.integers(0, 1))}
    keyed: dict[str, Any] = {"key": draw(st.none() | st.just(f"k{new}")), "undoes": draw(st.none() | st.just(0))}
    events: list[Any] = [
        BudgetReserved(timestamp=now, **usage),
        UsageRecorded(timestamp=now, is_known=draw(st.booleans()), **usage),
        LlmDecided(timestamp=now, turn=turn, **call, **keyed),
        LlmDecided(timestamp=now, turn=max(turn - 1, 0), **call, **keyed),
        LlmAnswered(timestamp=now, turn=turn, model=text, answer=value),
        AnswerUnusable(timestamp=now, turn=turn, model=text, answer="", reason=text),
        Summarized(timestamp=now, first=0, up_to=new, text=text),
        Steered(timestamp=now, text=text, by=text),
        Paused(timestamp=now, by=text, reason=text),
        Resumed(timestamp=now, by=text),
        SignalReceived(timestamp=now, name=text, payload=value, delivery_id=str(state.version)),
        Parked(timestamp=now, reason=text),
        Requeued(timestamp=now, by=text),
        WaitBegan(timestamp=now, wake_at=now),
        WaitEnded(timestamp=now, reason="clock"),
        CompensationBegan(timestamp=now, by=text),
        CompensationEnded(timestamp=now),
        Finished(timestamp=now, answer=value),
        RunFailed(timestamp=now, reason=text),
        Cancelled(timestamp=now, by=text, reason=text),
    ]
    for step in state.open_steps:
        events += _about(draw, state, step, now, later, text, value)
    return events


def _about(
    draw: st.DrawFn, state: RunState, step: Step, now: datetime, later: datetime | None, text: str, value: str
) -> list[Any]:
    where: dict[str, Any] = {"timestamp": now, "idx": step.idx, "tool": step.tool}
    at_attempt = {**where, "attempt": step.attempt}
    again = {name: getattr(step, name) for name in ("turn", "key", "call_id", "undoes", "keyed_as")}
    digest = step.approval.digest if step.approval else ""
    outcome: Any = draw(st.sampled_from(["happened", "did_not_happen", "skipped", "told"]))
    key = renewed(step.key) if step.key and outcome == "did_not_happen" else None
    attempt = step.attempt or None
    child = draw(st.none() | st.just(child_id(state.run_id, step.idx)))
    signal = draw(st.sampled_from([None, "a", f"{ASKED}{step.idx}"]))
    signals = [None, *(signal.seq for signal in state.signals)]
    return [
        LlmDecided(**where, **again, args=step.args_json, attempt=step.attempt + 1),
        ToolResult(**at_attempt, result=value),
        ToolFailed(**at_attempt, error=draw(st.sampled_from([SURE, UNSURE])), retry_at=later),
        StepInDoubt(**at_attempt, reason=text),
        DoubtSettled(**at_attempt, outcome=outcome, by=draw(st.sampled_from(["probe", "dana"])), key=key),
        StepRefused(**where, rule=text, reason=text),
        CallDelayed(**at_attempt, until=now, is_given=draw(st.booleans())),
        ApprovalRequested(
            **where,
            args="{}",
            key=step.key,
            digest=call_digest(step.tool, "{}", step.key),
            rule=text,
            people=draw(st.integers(1, 2)),
            then=draw(st.sampled_from(["deny", "park"])),
        ),
        ApprovalGranted(**where, digest=digest, by=text),
        ApprovalGranted(**where, digest=call_digest(step.tool, "[]", None), by=text, args="[]"),
        ApprovalDenied(**where, digest=digest, by=text, reason=text, is_expired=draw(st.booleans())),
        QuestionAnswered(timestamp=now, idx=step.idx, answer=value, by=text),
        WaitBegan(timestamp=now, idx=step.idx, attempt=attempt, wake_at=later, signal=signal, child=child),
        WaitEnded(timestamp=now, idx=step.idx, reason="x", received=draw(st.sampled_from(signals))),
    ]


@st.composite
def journals(draw: st.DrawFn) -> list[JournalEntry]:
    """Draw a legal journal: whatever happens next is one of the things that may."""
    start = RunStarted(timestamp=at(0), run_id="r", agent="A", agent_version="1", goal="g", input="null")
    events: list[AnyEvent] = [start]
    state = evolve(RunState(), start)
    for _ in range(draw(st.integers(0, 30))):
        legal = [
            event
            for event in _said(draw, state)
            if type(event) in LEGAL[state.status] and misfit(state, event, events[-1]) is None
        ]
        if not legal:
            break
        events.append(draw(st.sampled_from(legal)))
        state = evolve(state, events[-1])
    return [
        JournalEntry("r", event.model_copy(update={"originator_version": version}))
        for version, event in enumerate(events, start=1)
    ]


OF_STATUS = {
    "started": {"attempt"},
    "retrying": {"retry"},
    "in_doubt": {"doubt"},
    "gated": {"approval"},
    "waiting": {"wait", "question"},
}


def going_on(state: RunState) -> set[tuple[int | None, str]]:
    """What the fold says is going on: of each step that is open, and of the run."""
    steps = {(step.idx, step.status) for step in state.open_steps if step.status in OF_STATUS}
    held = {(None, what) for what in ("parked", "paused") if getattr(state, what) is not None}
    return {*steps, *held}


@given(journals())
@settings(max_examples=100, deadline=None)
def test_the_segments_of_any_journal_are_in_order_and_agree_with_its_fold(entries: list[JournalEntry]) -> None:
    timeline, ended = Timeline(), list[Segment]()
    state, settled = RunState(), set[int]()
    for entry in entries:
        now = timeline.take(entry)
        state = evolve(state, entry.event)

        assert all(one.ended_seq in (entry.seq, entry.seq - 1) for one in now)
        names = {kind: status for status, kinds in OF_STATUS.items() for kind in kinds}
        is_open = {(one.idx, names.get(one.kind, one.kind)) for one in timeline.open if one.kind != "model"}
        if (idx := getattr(entry.event, "idx", None)) is not None:  # what it comes to is recorded next
            (settled.add if isinstance(entry.event, DoubtSettled) else settled.discard)(idx)
        assert {one for one in is_open if one[0] not in settled} == {
            one for one in going_on(state) if one[0] not in settled
        }
        ended += now

    whole = segments(entries)
    assert sorted([*ended, *timeline.open], key=lambda one: (one.began_seq, one.idx or -1)) == sorted(
        whole, key=lambda one: (one.began_seq, one.idx or -1)
    )
    assert [one.began_seq for one in whole] == sorted(one.began_seq for one in whole)
    for one in whole:
        assert (one.end == "open") == (one.ended_seq is None) == (one.ended_at is None)
        assert one.ended_seq is None or one.began_seq <= one.ended_seq
