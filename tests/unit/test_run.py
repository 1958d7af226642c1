"""The aggregate: commands refuse what may not happen, and a class that cannot work is refused where it is made."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, ClassVar

import pytest

from agent_es.envelope import Asks, Envelope, Refused, Usage
from agent_es.errors import BadAgent, IllegalEvent
from agent_es.events import (
    REGISTRY,
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
from agent_es.legality import LEGAL, call_digest, check_legal
from agent_es.run import AgentRun, Planned
from agent_es.state import BY_PROBE, RunState, Status, fold
from agent_es.testing import FrozenClock
from agent_es.tools import CallTool, Effect, Failed, Returned, Unknown, tool
from agent_es.waits import Ask

READ = tool(effect=Effect.READ)
at = FrozenClock()


class Refund(AgentRun):
    agent_version: ClassVar[str] = "3"

    @tool(effect=Effect.READ)
    def search(self, query: str) -> str:
        return f"{self.state.goal}: {query}"


def begun() -> Refund:
    return Refund.begin("run-7f3a", "Refund ORD-3300", '{"order_id":"ORD-3300"}', {"team": "support"}, at)


def planned(tool: str = "search", **changes: Any) -> Planned:
    return Planned(CallTool(tool, call_id="call_1"), '{"query":"refunds"}', **changes)


def running(*, attempt: int = 1) -> Refund:
    """Return a run with one open step, which is started, or queued at attempt 0."""
    run = begun()
    run.record_turn([planned(key="k")], at_once=attempt)
    return run


def events_of(run: AgentRun) -> list[AnyEvent]:
    return list(run.pending_events)  # type: ignore[arg-type]


# What may happen, by status.

DETAILS: dict[type[Event], dict[str, Any]] = {
    RunStarted: {"run_id": "r", "agent": "Refund", "agent_version": "1", "goal": "g", "input": "null"},
    LlmDecided: {"idx": 0, "turn": 0, "tool": "search", "args": "{}", "attempt": 1},
    ToolResult: {"idx": 0, "tool": "search", "attempt": 1, "result": "1"},
    ToolFailed: {"idx": 0, "tool": "search", "attempt": 1, "error": "{}"},
    StepInDoubt: {"idx": 0, "tool": "search", "attempt": 1, "reason": "time-out"},
    DoubtSettled: {"idx": 0, "tool": "search", "attempt": 1, "outcome": "happened", "by": "ann"},
    WaitBegan: {"wake_at": at(60)},
    WaitEnded: {"reason": "clock"},
    Parked: {"reason": "no such tool"},
    Requeued: {"by": "ann"},
    CompensationBegan: {"by": "ann"},
    CompensationEnded: {},
    Finished: {"answer": "1"},
    RunFailed: {"reason": "no"},
    SignalReceived: {"name": "paid", "payload": "1", "delivery_id": "d-1"},
    Cancelled: {"by": "ann", "reason": "no longer needed"},
    BudgetReserved: {"turn": 0, "tokens": 400, "cost": Decimal("0.02")},
    UsageRecorded: {"turn": 0, "tokens": 312, "cost": Decimal("0.0156")},
    StepRefused: {"idx": 0, "tool": "search", "rule": "tools", "reason": "it is outside"},
    CallDelayed: {"idx": 0, "tool": "search", "attempt": 1, "until": at(60), "is_given": True},
    ApprovalRequested: {"idx": 0, "tool": "search", "args": "{}", "rule": "needs_approval: search", "digest": "5e1d"},
    ApprovalGranted: {"idx": 0, "tool": "search", "digest": "5e1d", "by": "dana"},
    ApprovalDenied: {"idx": 0, "tool": "search", "digest": "5e1d", "by": "dana", "reason": "not now"},
    QuestionAnswered: {"idx": 0, "answer": "false", "by": "dana"},
    Steered: {"text": "the parcel is back", "by": "dana"},
    Paused: {"by": "dana", "reason": ""},
    Resumed: {"by": "dana"},
    EnvelopeChanged: {"envelope": "{}", "by": "ann", "reason": "it may take longer"},
    LlmAnswered: {"turn": 0, "model": "test", "answer": "{}"},
    AnswerUnusable: {"turn": 0, "model": "test", "answer": "", "reason": "it is empty"},
    FactRecorded: {"idx": 0, "name": "total", "value": "1"},
    Summarized: {"first": 0, "up_to": 1, "text": "It was looked for."},
}
OPEN_STEP = LlmDecided(timestamp=at(1), **DETAILS[LlmDecided])
STATES = {
    Status.PENDING: RunState(run_id="r", version=1),
    Status.RUNNING: fold([OPEN_STEP], RunState(run_id="r", version=1)),
    Status.WAITING: fold(
        [OPEN_STEP, StepInDoubt(timestamp=at(2), **DETAILS[StepInDoubt])], RunState(run_id="r", version=1)
    ),
    Status.DONE: RunState(run_id="r", status=Status.DONE),
    Status.FAILED: RunState(run_id="r", status=Status.FAILED),
    Status.CANCELLED: fold(
        [OPEN_STEP, Cancelled(timestamp=at(2), **DETAILS[Cancelled])], RunState(run_id="r", version=1)
    ),
}
SAID = {LlmAnswered, AnswerUnusable}
MAY_HAPPEN = {
    Status.PENDING: {
        *SAID,
        *(LlmDecided, Parked, Finished, RunFailed, SignalReceived, Cancelled),
        *(BudgetReserved, UsageRecorded, EnvelopeChanged, Steered, Paused, CompensationBegan),
    },
    Status.RUNNING: {
        *SAID,
        *(FactRecorded, Summarized),
        *(BudgetReserved, UsageRecorded, EnvelopeChanged, StepRefused, CallDelayed, ApprovalRequested),
        *(ApprovalGranted, ApprovalDenied, QuestionAnswered, Steered, Paused),
        SignalReceived,
        Cancelled,
        LlmDecided,
        ToolResult,
        ToolFailed,
        StepInDoubt,
        DoubtSettled,
        WaitBegan,
        WaitEnded,
        Parked,
        CompensationBegan,
        CompensationEnded,
        Finished,
        RunFailed,
    },
    Status.WAITING: {
        *(ApprovalGranted, ApprovalDenied, QuestionAnswered, Steered, Paused, Resumed),
        *(CompensationBegan, UsageRecorded, FactRecorded),
        EnvelopeChanged,
        SignalReceived,
        Cancelled,
        ToolResult,
        ToolFailed,
        StepInDoubt,
        DoubtSettled,
        WaitBegan,
        WaitEnded,
        Parked,
        Requeued,
    },
    Status.DONE: {CompensationBegan},
    Status.FAILED: {CompensationBegan, Requeued, EnvelopeChanged, Steered},
    Status.CANCELLED: {FactRecorded, WaitBegan, ToolResult, ToolFailed, StepInDoubt, DoubtSettled},
}


def test_the_table_of_what_may_happen_is_this_one() -> None:
    assert {status: set(events) for status, events in LEGAL.items()} == MAY_HAPPEN
    assert set(DETAILS) == set(REGISTRY.values())


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("event_class", DETAILS, ids=lambda cls: cls.__name__)
def test_an_event_happens_where_it_may_and_is_refused_where_it_may_not(
    status: Status, event_class: type[Event]
) -> None:
    run = Refund.of(STATES[status], at)
    assert run.state.status is status

    if event_class in MAY_HAPPEN[status]:
        run.trigger_event(event_class, **DETAILS[event_class])
        assert [type(event) for event in run.pending_events] == [event_class]
    else:
        with pytest.raises(IllegalEvent, match=f"run r is {status}: {event_class.__name__} cannot happen to it"):
            run.trigger_event(event_class, **DETAILS[event_class])
        assert run.pending_events == []
        assert run.state == STATES[status]


# Commands.


def test_an_event_that_is_triggered_and_one_by_which_the_library_mutates_a_run_come_to_the_same() -> None:
    run, same = running(), running()
    run.record_result(0, '"found"')

    (event,) = run.pending_events[-1:]
    event.mutate(same)

    assert (same.state, same.version, same.modified_on) == (run.state, run.version, run.modified_on)


def test_a_run_begins_with_who_set_which_goal() -> None:
    run = begun()

    (event,) = events_of(run)
    assert event == RunStarted(
        originator_id=stream_id("run-7f3a"),
        originator_version=1,
        timestamp=at(0),
        run_id="run-7f3a",
        agent="Refund",
        agent_version="3",
        goal="Refund ORD-3300",
        input='{"order_id":"ORD-3300"}',
        tags={"team": "support"},
    )
    assert run.state == fold([event])


def test_the_first_calls_of_a_turn_start_the_others_wait_and_refused_ones_fail() -> None:
    run = begun()
    refusal = Failed("ToolUnknown", "no such tool")

    run.record_turn([planned(refusal=refusal, key="never"), planned(key="a"), planned(key="b")], at_once=1)

    assert [(s.idx, s.attempt, s.status, s.key) for s in run.state.steps] == [
        (0, 0, "failed", None),
        (1, 1, "started", "a"),
        (2, 0, "queued", "b"),
    ]
    assert run.state.steps[0].error == {"type": "ToolUnknown", "message": "no such tool", "applied": False}
    assert {step.turn for step in run.state.steps} == {0}


def test_a_call_that_is_answered_by_an_earlier_one_never_starts_and_holds_no_key() -> None:
    run = begun()

    run.record_turn([planned(answer='"rf-9"', key="taken"), planned(key="b")], at_once=1)

    assert [(s.idx, s.attempt, s.status, s.key, s.result) for s in run.state.steps] == [
        (0, 0, "done", None, "rf-9"),
        (1, 1, "started", "b", None),
    ]


def test_a_step_that_starts_again_repeats_its_decision_at_the_next_attempt() -> None:
    run = running()

    run.record_start(0)

    first, again = events_of(run)[1:]
    assert isinstance(first, LlmDecided)
    assert again == first.model_copy(update={"attempt": 2, "originator_version": 3, "timestamp": at(2)})


def test_a_step_that_failed_for_now_is_tried_again_at_the_time_that_is_recorded() -> None:
    run = running()

    run.record_retry(0, Unknown("TimeoutError", "late"), at(60))
    run.record_rest(at(60))
    waiting = run.state
    run.record_rest_ended()
    run.record_start(0)

    assert (waiting.status, waiting.waiting_for, waiting.wake_at) == (Status.WAITING, "retry", at(60))
    assert waiting.steps[0].error == {"type": "TimeoutError", "message": "late", "applied": None}
    assert [type(event) for event in events_of(run)[2:]] == [ToolFailed, WaitBegan, WaitEnded, LlmDecided]
    assert (run.state.status, run.state.steps[0].attempt) == (Status.RUNNING, 2)


def test_a_step_that_did_not_happen_gets_a_new_key_and_its_next_attempt_repeats_the_decision_with_it() -> None:
    run = running()
    run.record_doubt(0, "time-out")

    run.record_settlement(0, "did_not_happen", "ann")
    run.record_start(0)

    first, _, settled, again = events_of(run)[1:]
    assert isinstance(settled, DoubtSettled)
    assert (settled.outcome, settled.by, settled.attempt, settled.key) == ("did_not_happen", "ann", 1, "k#2")
    assert again == first.model_copy(update={"attempt": 2, "key": "k#2", "originator_version": 5, "timestamp": at(4)})


def test_a_step_that_did_not_happen_twice_gets_a_third_key() -> None:
    run = running()
    for _ in range(2):
        run.record_settlement(0, "did_not_happen", BY_PROBE)
        run.record_start(0)

    assert (run.state.steps[0].key, run.state.steps[0].attempts_spent) == ("k#3", 3)


@pytest.mark.parametrize("outcome", ["happened", "skipped", "told"])
def test_a_doubt_that_is_settled_otherwise_keeps_its_key(outcome: Any) -> None:
    run = running()
    run.record_doubt(0, "time-out")

    run.record_settlement(0, outcome, "ann")

    assert run.state.steps[0].key == "k"
    assert run.state.doubts


def test_a_late_result_names_its_attempt_and_counts_while_that_one_is_open_and_unsettled() -> None:
    run = running()
    run.record_doubt(0, "time-out")

    with pytest.raises(IllegalEvent, match="attempt 2 is not under way"):
        run.record_result(0, '"late"', attempt=2)
    run.record_result(0, '"late"', attempt=1)

    assert run.state.steps[0].result == "late"


def test_a_late_result_of_a_step_that_was_said_not_to_have_happened_counts_no_more() -> None:
    run = running()
    run.record_doubt(0, "time-out")
    run.record_settlement(0, "did_not_happen", "ann")

    with pytest.raises(IllegalEvent, match="step 0 is queued"):
        run.record_result(0, '"late"', attempt=1)


@pytest.mark.parametrize("ended", ["parked", "failed"])
def test_a_person_may_send_back_a_run_that_was_parked_or_that_failed(ended: str) -> None:
    run = begun()
    if ended == "parked":
        run.record_parked("no such tool")
    else:
        run.record_surrender("no such order")

    run.record_requeued("ann")

    assert (run.state.status, run.state.waiting_for, run.state.failure) == (Status.PENDING, None, None)


def test_why_a_run_was_parked_is_kept_within_bounds() -> None:
    run = begun()

    run.record_parked("x" * 3_000)

    assert run.state.parked == "x" * 2_000 + "… (3,000 characters)"


def test_a_run_whose_effects_were_undone_is_over() -> None:
    run = running()
    run.record_result(0, "1")
    run.record_answer("1")

    run.record_compensation("ann")
    run.record_turn([planned(key="u", undoes=0)], at_once=1)
    run.record_start(1)
    run.record_result(1, "1")
    run.record_compensated()

    assert (run.state.status, run.state.compensating) == (Status.CANCELLED, False)
    assert [step.undoes for step in run.state.steps] == [None, 0]
    assert {event.undoes for event in events_of(run) if isinstance(event, LlmDecided) and event.idx == 1} == {0}


def test_every_event_has_the_next_version_and_the_time_of_its_seq() -> None:
    run = running()
    run.record_result(0, '"14 days"')
    run.record_answer('"done"')

    stamps = [(event.originator_version, event.timestamp) for event in events_of(run)]

    assert stamps == [(1, at(0)), (2, at(1)), (3, at(2)), (4, at(3))]
    assert run.version == 4


def test_the_state_is_the_fold_of_what_was_triggered() -> None:
    run = running()
    run.record_failure(0, Failed("ValueError", "no"))
    run.record_turn([planned(), planned()], at_once=2)
    run.record_doubt(1, "time-out")
    run.record_result(2, "1")

    assert run.state == fold(events_of(run))
    assert (run.state.status, run.state.waiting_for) == (Status.WAITING, "doubt")


Command = Callable[[AgentRun], None]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (lambda run: run.record_turn([planned()], at_once=1), "turn 0 still has open steps"),
        (lambda run: run.record_answer("1"), "Finished cannot happen while steps are open"),
        (lambda run: run.record_surrender("no"), "RunFailed cannot happen while steps are open"),
        (lambda run: run.record_compensation("ann"), "CompensationBegan cannot happen while steps are open"),
        (lambda run: run.record_compensated(), "CompensationEnded cannot happen while steps are open"),
        (lambda run: run.record_result(0, "1"), "step 0 is queued at attempt 0, .* is not under way"),
        (
            lambda run: run.record_result(0, "1", attempt=1),
            "step 0 is queued at attempt 0, attempt 1 is not under way",
        ),
        (lambda run: run.record_doubt(0, "time-out"), "step 0 is queued at attempt 0, .* is not under way"),
        (lambda run: run.record_retry(0, Failed("E", "no"), at(60)), "step 0 is queued at attempt 0"),
        (lambda run: run.record_settlement(0, "happened", "ann"), "step 0 is queued at attempt 0"),
        (lambda run: run.record_settlement(1, "happened", "ann"), "step 1 is not open"),
        (lambda run: run.record_rest_ended(), "it does not wait for the clock"),
        (lambda run: run.record_requeued("ann"), "Requeued cannot happen to it"),
        (lambda run: run.record_result(1, "1"), "step 1 is not open"),
        (lambda run: run.record_start(1), "step 1 is not open"),
        (lambda run: run.record_failure(-1, Failed("E", "no")), "step -1 is not open"),
    ],
)
def test_a_command_at_the_wrong_time_is_refused_and_nothing_is_pending(command: Command, says: str) -> None:
    run = running(attempt=0)
    run.collect_events()

    with pytest.raises(IllegalEvent, match=f"run run-7f3a.*: {says}"):
        command(run)

    assert run.pending_events == []


def test_a_run_that_waits_for_anything_but_a_person_is_not_sent_back_by_one() -> None:
    run = running()
    run.record_doubt(0, "time-out")

    with pytest.raises(IllegalEvent, match="run run-7f3a waits for doubt, it is not parked"):
        run.record_requeued("ann")


def test_a_run_that_undoes_nothing_has_nothing_undone() -> None:
    run = running()
    run.record_result(0, "1")

    with pytest.raises(IllegalEvent):
        run.record_compensated()


@pytest.mark.parametrize(
    "command",
    [
        lambda run: run.record_result(0, "2"),
        lambda run: run.record_failure(0, Failed("E", "late")),
        lambda run: run.record_doubt(0, "late"),
        lambda run: run.record_retry(0, Failed("E", "late"), at(60)),
        lambda run: run.record_settlement(0, "did_not_happen", "ann"),
        lambda run: run.record_result(0, "2", attempt=1),
        lambda run: run.record_start(0),
    ],
)
def test_the_first_outcome_of_a_step_stands(command: Command) -> None:
    run = running()
    run.record_result(0, "1")

    with pytest.raises(IllegalEvent, match="step 0 is not open"):
        command(run)

    assert run.state.steps[0].result == 1


# A journal from elsewhere.

STARTED = RunStarted(timestamp=at(0), **{**DETAILS[RunStarted], "run_id": "run-7f3a"})
ANSWERED = Finished(timestamp=at(9), answer="1")


def decided(idx: int = 0, **changes: Any) -> LlmDecided:
    return LlmDecided(timestamp=at(1), **{**DETAILS[LlmDecided], "idx": idx, **changes})


def gave(idx: int = 0, **changes: Any) -> ToolResult:
    return ToolResult(timestamp=at(2), **{**DETAILS[ToolResult], "idx": idx, **changes})


def doubted(**changes: Any) -> StepInDoubt:
    return StepInDoubt(timestamp=at(3), **{**DETAILS[StepInDoubt], **changes})


def settled(**changes: Any) -> DoubtSettled:
    return DoubtSettled(timestamp=at(4), **{**DETAILS[DoubtSettled], **changes})


def retried() -> ToolFailed:
    return ToolFailed(timestamp=at(3), **DETAILS[ToolFailed], retry_at=at(60))


def begins(idx: int = 0, **changes: Any) -> WaitBegan:
    return WaitBegan(timestamp=at(3), **{"idx": idx, "wake_at": at(60), "signal": "paid", **changes})


def ends(idx: int = 0, received: int | None = None) -> WaitEnded:
    return WaitEnded(timestamp=at(60), reason="clock" if received is None else "signal", idx=idx, received=received)


def came(name: str = "paid") -> SignalReceived:
    return SignalReceived(timestamp=at(4), **{**DETAILS[SignalReceived], "name": name})


def requests(**changes: Any) -> ApprovalRequested:
    values = {**DETAILS[ApprovalRequested], "digest": call_digest("search", "{}", None)}
    return ApprovalRequested(timestamp=at(3), **{**values, **changes})


def grants(**changes: Any) -> ApprovalGranted:
    values = {**DETAILS[ApprovalGranted], "digest": call_digest("search", "{}", None)}
    return ApprovalGranted(timestamp=at(4), **{**values, **changes})


def grants_other(args: str = '{"query":"b"}') -> ApprovalGranted:
    return grants(args=args, digest=call_digest("search", args, None))


def denies(**changes: Any) -> ApprovalDenied:
    values = {**DETAILS[ApprovalDenied], "digest": call_digest("search", "{}", None)}
    return ApprovalDenied(timestamp=at(4), **{**values, **changes})


ANSWERS = QuestionAnswered(timestamp=at(4), **DETAILS[QuestionAnswered])
STEERS = Steered(timestamp=at(4), **DETAILS[Steered])
STOPS = Paused(timestamp=at(4), **DETAILS[Paused])
GOES_ON = Resumed(timestamp=at(5), **DETAILS[Resumed])
CANCELLED = Cancelled(timestamp=at(9), by="ann", reason="")
WAITS = WaitBegan(timestamp=at(5), wake_at=at(60))
WOKE = WaitEnded(timestamp=at(60), reason="clock")
PUT_ASIDE = Parked(timestamp=at(6), reason="no such tool")
SENT_BACK = Requeued(timestamp=at(7), by="ann")
UNDOES = CompensationBegan(timestamp=at(8), by="ann")
UNDID = CompensationEnded(timestamp=at(9))


def test_a_journal_that_a_run_of_ours_recorded_is_legal() -> None:
    run = running()
    run.record_start(0)
    run.record_result(0, "1")
    run.record_turn([planned(), planned(refusal=Failed("E", "no")), planned()], at_once=1)
    run.record_failure(1, Failed("E", "no"))
    run.record_start(3)
    run.record_result(3, "1")
    run.record_answer("1")

    check_legal("run-7f3a", events_of(run))


def test_a_journal_with_every_kind_of_event_is_legal() -> None:
    run = begun()
    run.record_parked("no such tool")
    run.record_requeued("ann")
    run.record_envelope(Envelope(), "ann", "")
    run.record_reserved(Usage(tokens=9))
    run.record_usage(Usage(tokens=3))
    run.record_unusable("test", "", "it is empty", "length")
    run.record_said("test", "{}", "stop", 12, None)
    refused = planned(refused=Refused("tools", "it is outside"))
    run.record_turn([planned(key="a"), planned(answer="1"), planned(key="b"), planned(key="c"), refused], at_once=2)
    run.record_delay(3, at(30), is_given=True)
    run.record_retry(0, Unknown("TimeoutError", "late"), at(60))
    run.record_doubt(2, "time-out")
    run.record_settlement(2, "did_not_happen", "ann")
    run.record_start(2)
    run.record_settlement(2, "did_not_happen", BY_PROBE)
    run.record_start(2)
    run.record_doubt(2, "time-out")
    run.record_start(3)
    run.record_outcome(3, Returned("1", facts=(("total", "1"),)))
    run.record_rest(at(60))
    run.record_settlement(2, "happened", "ann")
    run.record_result(2, "1")
    run.record_rest_ended()
    run.record_parked("no such tool")
    run.record_requeued("ann")
    run.record_start(0)
    run.record_doubt(0, "time-out")
    run.record_settlement(0, "told", "on_doubt")
    run.record_failure(0, Failed("OutcomeUnknown", "time-out", applied=None))
    run.record_summary(0, 5, "It was looked for.", "search")
    run.record_surrender("no")
    run.record_requeued("ann")
    run.record_answer("1")
    run.record_compensation("ann")
    run.record_turn([planned(key="u", undoes=2)], at_once=1)
    run.record_retry(5, Unknown("TimeoutError", "late"), at(90))
    run.record_rest(at(90))
    run.record_rest_ended()
    run.record_start(5)
    run.record_signal("paid", "1", "d-1")
    run.record_cancelled("ann", "")
    run.record_result(5, "1")
    assert {type(event) for event in events_of(run)} == set(DETAILS) - {CompensationEnded, *BY_PEOPLE}

    check_legal("run-7f3a", events_of(run))


BY_PEOPLE = {
    *(ApprovalRequested, ApprovalGranted, ApprovalDenied),
    *(QuestionAnswered, Steered, Paused, Resumed),
}


def test_a_journal_of_what_people_said_is_legal() -> None:
    run = begun()
    run.record_steered("look twice", "dana")
    asks = Asks("needs_approval: search", people=2)
    ask = Planned(CallTool("ask_person"), '{"question":"How?"}', wait=Ask("How?"))
    run.record_turn([planned(asks=asks, key="a"), planned(asks=asks), ask], at_once=3)
    run.record_paused("dana", "wait")
    run.record_granted(0, "dana")
    run.record_granted(0, "ann", edited=('{"query":"b"}', "b", None))
    run.record_denied(1, "the clock", "nobody answered in time", is_expired=True)
    run.record_resumed("dana")
    run.record_answered(2, "false", "dana")
    run.record_granted(0, "dana")
    run.record_start(0)
    run.record_undoing("dana", "a mistake")
    run.record_result(0, "1")
    assert set(BY_PEOPLE) <= {type(event) for event in events_of(run)}

    check_legal("run-7f3a", events_of(run))


def gated(**asks: Any) -> Refund:
    """Return a run with one step that waits for a yes."""
    run = begun()
    run.record_turn([planned(key="k", asks=Asks("needs_approval: search", **asks))], at_once=1)
    return run


def test_a_call_that_needs_a_yes_never_starts_without_one_and_starts_with_what_was_shown() -> None:
    run = begun()
    shown = '{"limit":10,"query":"refunds"}'
    run.record_turn([planned(key="k", asks=Asks("needs_approval: search"), shown=shown)], at_once=1)
    with pytest.raises(IllegalEvent, match="step 0 waits until a person says yes to it"):
        run.record_start(0)

    run.record_granted(0, "dana")
    run.record_start(0)

    step = run.state.steps[0]
    assert (step.status, step.attempt, step.args_json, step.said_json) == ("started", 1, shown, '{"query":"refunds"}')
    assert (run.state.called, step.key) == ({}, "k")


def test_a_yes_with_other_arguments_takes_back_what_others_said() -> None:
    run = gated(people=2)
    run.record_granted(0, "dana")

    run.record_granted(0, "ann", edited=('{"query":"b"}', "b", "find"))
    gate = run.state.steps[0].approval
    assert gate is not None
    assert (run.state.steps[0].status, gate.approved_by, gate.edited_by) == ("gated", ("ann",), "ann")
    run.record_granted(0, "dana")

    step = run.state.steps[0]
    assert (step.status, step.args_json, step.key, step.keyed_as) == ("queued", '{"query":"b"}', "b", "find")


@pytest.mark.parametrize(
    "command",
    [
        lambda run: run.record_granted(0, "ann"),
        lambda run: run.record_denied(0, "ann", "no"),
        lambda run: run.record_answered(0, "1", "ann"),
        lambda run: run.record_resumed("ann"),
    ],
)
def test_what_nobody_asked_for_is_refused_and_nothing_is_pending(command: Callable[[AgentRun], None]) -> None:
    run = gated()
    run.record_granted(0, "dana")
    run.collect_events()

    with pytest.raises(IllegalEvent, match="run run-7f3a"):
        command(run)

    assert run.pending_events == []


def test_a_paused_run_begins_nothing_and_goes_on_where_it_was() -> None:
    run = running()
    run.record_paused("dana", "the bank is down")
    assert (run.state.status, run.state.waiting_for, run.state.is_held) == (Status.WAITING, "person", True)
    with pytest.raises(IllegalEvent, match="LlmDecided cannot happen"):
        run.record_start(0)
    with pytest.raises(IllegalEvent, match="is paused already, by dana: the bank is down"):
        run.record_paused("ann", "")

    run.record_result(0, "1")
    run.record_resumed("ann")

    assert (run.state.status, run.state.paused, run.state.steps[0].result) == (Status.RUNNING, None, 1)


HEARD: list[AnyEvent] = [
    Steered(timestamp=at(4), **DETAILS[Steered]),
    Paused(timestamp=at(4), **DETAILS[Paused]),
    CompensationBegan(timestamp=at(4), by="dana"),
]


@pytest.mark.parametrize("said", HEARD, ids=lambda event: type(event).__name__)
def test_a_decision_that_a_person_was_before_is_dropped_and_what_it_took_counts(said: AnyEvent) -> None:
    run = begun()
    run.collect_events()
    run.record_usage(Usage(tokens=3))
    run.record_said("test", "{}", "stop", 12, None)
    run.record_turn([planned(key="a"), planned(asks=Asks("needs_approval: search"))], at_once=1)

    run.catch_up([said])

    assert [type(event) for event in events_of(run)] == [UsageRecorded]
    assert len(run.state.steps) == 0


@pytest.mark.parametrize(
    "command",
    [
        lambda run: run.record_unusable("test", "", "it is empty", "length"),
        lambda run: run.record_summary(0, 1, "It was looked for.", ""),
    ],
    ids=["an answer that cannot be used", "a summary"],
)
def test_what_was_about_to_be_recorded_of_a_question_is_dropped_where_a_person_paused_the_run(
    command: Callable[[AgentRun], None],
) -> None:
    run = running()
    run.record_result(0, "1")
    run.collect_events()
    run.record_usage(Usage(tokens=3))
    command(run)

    run.catch_up([Paused(timestamp=at(4), **DETAILS[Paused])])

    assert [type(event) for event in events_of(run)] == [UsageRecorded]
    assert (run.state.unusable, run.state.summaries, run.state.is_held) == ((), (), True)


@pytest.mark.parametrize("said", HEARD, ids=lambda event: type(event).__name__)
def test_a_result_is_recorded_whatever_a_person_said_before_it(said: AnyEvent) -> None:
    run = running()
    run.collect_events()
    run.record_result(0, "1")
    run.record_answer("1")

    run.catch_up([said])

    assert [type(event) for event in events_of(run)] == [ToolResult]


def test_a_signal_that_came_before_a_decision_drops_nothing() -> None:
    run = begun()
    run.collect_events()
    run.record_turn([planned(key="a")], at_once=1)

    run.catch_up([SignalReceived(timestamp=at(4), **DETAILS[SignalReceived])])

    assert [type(event) for event in events_of(run)] == [LlmDecided]


def test_a_yes_that_came_before_the_clock_said_no_counts() -> None:
    run = gated()
    run.collect_events()
    digest = run.state.steps[0].approval and run.state.steps[0].approval.digest
    run.record_denied(0, "the clock", "nobody answered in time", is_expired=True)

    run.catch_up([grants(digest=digest)])

    assert (events_of(run), run.state.steps[0].status) == ([], "queued")


@pytest.mark.parametrize(
    "events",
    [
        [],
        [decided()],
        [STARTED, STARTED],
        [STARTED.model_copy(update={"run_id": "another"})],
        [STARTED, gave()],
        [STARTED, decided(), gave(), gave()],
        [STARTED, decided(), gave(1)],
        [STARTED, ANSWERED, decided()],
        [STARTED, decided(attempt=0, key="a"), gave(attempt=0)],
        [STARTED, decided(attempt=0), doubted(attempt=0)],
        [STARTED, decided(attempt=0), settled(attempt=0)],
        [STARTED, decided(), doubted(attempt=2)],
        [STARTED, decided(), doubted(), settled(attempt=2)],
        [STARTED, decided(), gave(), settled()],
        [STARTED, decided(attempt=0), begins(), gave()],
        [STARTED, decided(attempt=0), begins(), begins()],
        [STARTED, decided(attempt=0), begins(), decided()],
        [STARTED, decided(attempt=0), begins(attempt=1)],
        [STARTED, decided(attempt=0), begins(child="another.0")],
        [STARTED, decided(), begins()],
        [STARTED, decided(), begins(attempt=2)],
        [STARTED, begins()],
        [STARTED, decided(attempt=0), ends()],
        [STARTED, decided(attempt=0), begins(), ends(idx=1)],
        [STARTED, decided(attempt=0), begins(), ends(received=4)],
        [STARTED, decided(attempt=0), begins(), came("other"), ends(received=3)],
        [STARTED, came(), decided(attempt=0), begins(), ends(received=1), ends(received=1)],
        [STARTED, decided(attempt=0), begins(wake_at=None), ends()],
        [STARTED, ANSWERED, came()],
        [STARTED, ANSWERED, CANCELLED],
        [STARTED, decided(), CANCELLED, came()],
        [STARTED, decided(), CANCELLED, decided(attempt=2)],
        [STARTED, decided(), doubted(), decided(1, turn=1)],
        [STARTED, WOKE],
        [STARTED, decided(), WOKE],
        [STARTED, decided(), doubted(), WOKE],
        [STARTED, decided(), retried(), WAITS, WAITS],
        [STARTED, decided(), WAITS],
        [STARTED, decided(), gave(), WAITS],
        [STARTED, SENT_BACK],
        [STARTED, decided(), doubted(), SENT_BACK],
        [STARTED, decided(), retried(), WAITS, SENT_BACK],
        [STARTED, ANSWERED, SENT_BACK],
        [STARTED, PUT_ASIDE, decided()],
        [STARTED, PUT_ASIDE, ANSWERED],
        [STARTED, decided(), UNDOES, UNDOES],
        [STARTED, decided(), UNDOES, UNDID],
        [STARTED, decided(), gave(), UNDID],
        [STARTED, decided(), requests()],
        [STARTED, decided(attempt=0), gave(attempt=0), requests()],
        [STARTED, decided(attempt=0), requests(tool="another")],
        [STARTED, decided(attempt=0), requests(), requests()],
        [STARTED, decided(attempt=0), grants()],
        [STARTED, decided(attempt=0), denies()],
        [STARTED, decided(attempt=0), requests(), decided(attempt=1)],
        [STARTED, decided(attempt=0), requests(), gave(attempt=0)],
        [STARTED, decided(attempt=0), requests(), grants(digest="another")],
        [STARTED, decided(attempt=0), requests(), grants(args='{"query":"b"}')],
        [STARTED, decided(attempt=0), requests(), grants(tool="another")],
        [STARTED, decided(attempt=0), requests(), denies(digest="another")],
        [STARTED, decided(attempt=0), requests(), grants(), grants()],
        [STARTED, decided(attempt=0), requests(), grants(), denies()],
        [STARTED, decided(attempt=0), requests(), denies(), grants()],
        [STARTED, decided(attempt=0), requests(people=2), grants(), decided(attempt=1)],
        [STARTED, decided(attempt=0), requests(), grants_other(), decided(attempt=1)],
        [STARTED, decided(attempt=0), requests(), CANCELLED, grants()],
        [STARTED, decided(attempt=0), begins(), ANSWERS],
        [STARTED, decided(attempt=0), begins(signal="answer:1")],
        [STARTED, decided(attempt=0), begins(signal="answer:0"), ANSWERS, ANSWERS],
        [STARTED, decided(attempt=0), begins(signal="answer:0"), ends(), ANSWERS],
        [STARTED, decided(attempt=0), ANSWERS],
        [STARTED, GOES_ON],
        [STARTED, STOPS, STOPS],
        [STARTED, STOPS, decided()],
        [STARTED, STOPS, GOES_ON, GOES_ON],
        [STARTED, ANSWERED, STEERS],
        [STARTED, ANSWERED, STOPS],
        [STARTED, ANSWERED, UNDID],
        [STARTED, ANSWERED, UNDOES, UNDID, UNDOES],
        [
            STARTED,
            decided(key="a"),
            doubted(),
            settled(outcome="did_not_happen", key="b"),
            decided(attempt=2, key="b"),
        ],
        [
            STARTED,
            decided(key="a"),
            doubted(),
            settled(outcome="did_not_happen", key="a#2"),
            decided(attempt=2, key="a"),
        ],
        [STARTED, decided(), decided(attempt=2, undoes=0)],
        [STARTED, decided(), gave(attempt=2)],
        [STARTED, decided(), gave(tool="another")],
        [STARTED, decided(), ANSWERED],
        [STARTED, decided(), decided(1, turn=1)],
        [STARTED, decided(1)],
        [STARTED, decided(turn=1)],
        [STARTED, decided(attempt=2)],
        [STARTED, decided(), decided(attempt=1)],
        [STARTED, decided(), decided(attempt=2, args="[]")],
        [STARTED, decided(key="a"), decided(attempt=2, key="b")],
    ],
    ids=lambda events: " ".join(type(event).__name__ for event in events) or "nothing",
)
def test_a_journal_that_no_run_of_ours_could_have_recorded_is_refused(events: list[AnyEvent]) -> None:
    with pytest.raises(IllegalEvent, match="run run-7f3a"):
        check_legal("run-7f3a", events)


# Pending and recorded.


def test_what_is_discarded_never_happened() -> None:
    run = running()
    run.collect_events()
    recorded = run.state

    run.record_result(0, "1")
    run.record_answer("1")
    run.discard()

    assert (run.state, run.version, run.pending_events) == (recorded, 2, [])
    assert run.modified_on == recorded.updated_at


def test_a_run_goes_on_after_a_discard_where_it_was() -> None:
    run = running()
    run.collect_events()
    run.record_failure(0, Failed("E", "no"))
    run.discard()

    run.record_result(0, "1")

    (event,) = events_of(run)
    assert (type(event), event.originator_version, event.timestamp) == (ToolResult, 3, at(2))


def test_collecting_takes_what_is_pending_once() -> None:
    run = running()

    assert len(run.collect_events()) == 2
    assert list(run.collect_events()) == []


# In a tool.


@pytest.mark.parametrize(
    "command",
    [
        lambda run: run.record_turn([planned()], at_once=1),
        lambda run: run.record_result(0, "1"),
        lambda run: run.record_start(0),
        lambda run: run.record_failure(0, Failed("E", "no")),
        lambda run: run.record_doubt(0, "why"),
        lambda run: run.record_settlement(0, "happened", "me"),
        lambda run: run.record_parked("why"),
        lambda run: run.record_rest(at(60)),
        lambda run: run.trigger_event(Finished, answer="1"),
    ],
)
def test_in_a_tool_a_run_takes_no_command(command: Command) -> None:
    view = Refund.of(running().state)

    with pytest.raises(IllegalEvent):
        command(view)

    assert view.pending_events == []
    assert view.state == running().state


@pytest.mark.parametrize("name", ["cache", "_state", "_clock", "agent_version"])
def test_in_a_tool_a_run_keeps_no_attribute(name: str) -> None:
    view = Refund.of(begun().state)

    with pytest.raises(AttributeError, match=f"{name}: in a tool, the run is a frozen view; return what you want"):
        setattr(view, name, "kept")


def test_in_a_tool_a_run_can_be_read_and_its_other_tools_called_as_functions() -> None:
    view = Refund.of(begun().state)

    assert view.search("window") == "Refund ORD-3300: window"
    assert view.id == stream_id("run-7f3a")


def test_in_a_tool_a_run_has_no_clock() -> None:
    assert begun().now == at(1)
    with pytest.raises(AttributeError, match="the run is a frozen view and has no clock"):
        _ = Refund.of(begun().state).now


# Declaring an agent.


@pytest.mark.parametrize("given", [(), ("run-7f3a",)])
def test_calling_an_agent_makes_no_run_and_says_what_does(given: tuple[str, ...]) -> None:
    with pytest.raises(BadAgent, match=r"Refund\(\.\.\.\) makes no run; start one: .*\.run\(Refund, "):
        Refund(*given)


def test_an_agent_may_be_defined_again_as_a_notebook_does() -> None:
    first, second = (type("Cell", (AgentRun,), {"__module__": "__main__", "__qualname__": "Cell"}) for _ in range(2))

    assert first is not second
    assert first.agent_name == second.agent_name == "Cell"


def declare(**body: Any) -> type[AgentRun]:
    return type("Bad", (AgentRun,), {"__module__": __name__, **body})


@pytest.mark.parametrize(
    ("annotations", "named"),
    [
        ({"gateway": object}, "gateway"),
        ({"gateway": "Gateway", "limit": int}, "gateway, limit"),
        ({"limits": list[int]}, "limits"),
    ],
)
def test_an_agent_declares_no_fields(annotations: dict[str, Any], named: str) -> None:
    with pytest.raises(
        BadAgent, match=rf"Bad declares {named}: .* pass what tools need as Runner\(\.\.\., deps=\.\.\.\)"
    ):
        declare(__annotations__=annotations)


def test_an_agent_has_no_init() -> None:
    def __init__(self: AgentRun) -> None: ...  # noqa: N807

    with pytest.raises(BadAgent, match="Bad declares __init__: an agent is its journal"):
        declare(__init__=__init__)


@pytest.mark.parametrize("annotation", [ClassVar[int], ClassVar, "ClassVar[int]", "typing.ClassVar[int]"])
def test_an_agent_may_declare_class_variables(annotation: Any) -> None:
    made = declare(__annotations__={"limit": annotation}, limit=3)

    assert made.of(begun().state).limit == 3  # type: ignore[attr-defined]


def nothing() -> None: ...


@pytest.mark.parametrize("name", ["state", "id", "version", "discard", "record_turn", "of", "pending_events"])
def test_a_tool_may_not_take_the_name_of_an_attribute_of_every_run(name: str) -> None:
    with pytest.raises(BadAgent, match=f"Bad.{name}: a tool cannot be called '{name}', an attribute of AgentRun"):
        declare(**{name: tool(effect=Effect.READ, name=name)(nothing)})
    with pytest.raises(BadAgent, match=f"Bad.mine: a tool cannot be called '{name}', an attribute of AgentRun"):
        declare(mine=tool(effect=Effect.READ, name=name)(nothing))


def test_two_tools_of_one_agent_have_two_names() -> None:
    one, other = (tool(effect=Effect.READ, name="search")(nothing) for _ in range(2))

    with pytest.raises(BadAgent, match="Bad: first and second are both 'search'"):
        declare(first=one, second=other)


def test_an_agent_is_called_after_its_class_unless_it_says_otherwise() -> None:
    class Named(Refund):
        agent_name = "refunds"

    class Heir(Named):
        pass

    assert [cls.agent_name for cls in (AgentRun, Refund, Named, Heir)] == ["AgentRun", "Refund", "refunds", "Heir"]


def names(made: type[AgentRun]) -> set[str]:
    return set(made.agent_tools)


def test_an_agent_has_the_tools_of_the_agent_that_it_extends_and_may_replace_them() -> None:
    class Better(Refund):
        @tool(effect=Effect.READ)
        def search(self, query: str, limit: int) -> str: ...  # type: ignore[empty-body]

        @tool(effect=Effect.IDEMPOTENT)
        def pay(self, order_id: str) -> str: ...  # type: ignore[empty-body]

    assert names(Better) == {"search", "pay"}
    assert set(Better.agent_tools["search"].spec.parameters["properties"]) == {"query", "limit"}
    assert names(Refund) == {"search"}


def test_an_agent_that_extends_two_has_the_tools_of_both() -> None:
    class Paying(AgentRun):
        @tool(effect=Effect.IDEMPOTENT)
        def pay(self, order_id: str) -> str: ...  # type: ignore[empty-body]

    class Both(Refund, Paying):
        pass

    assert names(Both) == {"search", "pay"}


def test_an_agent_has_the_tools_of_a_mixin() -> None:
    class Searching:
        @tool(effect=Effect.READ)
        def look_up(self, query: str) -> str: ...  # type: ignore[empty-body]

    class Mixed(Searching, AgentRun):
        pass

    assert names(Mixed) == {"look_up"}


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 201, 7, None])
def test_an_agent_whose_name_no_table_keeps_is_an_error_where_it_is_defined(name: Any) -> None:
    with pytest.raises(BadAgent, match=r"agent_name=.*1 to 200 printable characters"):
        type("Odd", (AgentRun,), {"agent_name": name})
