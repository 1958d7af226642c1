"""A step is a list of requests: these tests answer them by hand, and no process, thread or database takes part."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_es.decider import Fail, Finish
from agent_es.errors import BadDecision, KeyReused, ResultDoesNotFit, RunMoved
from agent_es.events import AnyEvent, DoubtSettled, LlmDecided, StepInDoubt, ToolFailed, ToolResult, WaitBegan
from agent_es.journal import JournalEntry
from agent_es.legality import check_legal
from agent_es.run import AgentRun
from agent_es.state import Status, fold
from agent_es.step import Append, Decide, NextDone, Probe, Request, Requests, Start, Transact, advance
from agent_es.testing import FrozenClock
from agent_es.tools import (
    CallTool,
    DidNotHappen,
    Effect,
    Failed,
    Outcome,
    Probed,
    Retry,
    Returned,
    Tool,
    Unknown,
    tool,
)

at = FrozenClock()
AT_ONCE = Retry(max_attempts=3, initial=0)


class Refund(AgentRun):
    @tool(effect=Effect.READ, retry=Retry(max_attempts=2, initial=0))
    def search(self, query: str) -> str: ...  # type: ignore[empty-body]

    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:refund", retry=AT_ONCE)
    def refund(self, order_id: str) -> str: ...  # type: ignore[empty-body]


SEARCH = CallTool("search", {"query": "refund policy window"})
CUT_OFF = Unknown("TimeoutError", "cut off")


def refund(order_id: str) -> CallTool:
    return CallTool("refund", {"order_id": order_id})


def pay(order_id: str) -> str: ...  # type: ignore[empty-body]


def paying(**options: Any) -> Mapping[str, Tool]:
    """Return the tools of an agent that has one, which pays."""
    return {"pay": tool(**options)(pay)}


PAY = CallTool("pay", {"order_id": "A"})


class Journal(list[AnyEvent]):
    """The events of a run, as they became durable."""


def begun() -> Refund:
    run = Refund.begin("run-7f3a", "Refund ORD-3300", "null", {}, at)
    append(run)
    return run


def append(run: AgentRun) -> list[AnyEvent]:
    """Make what is pending durable, as a store does."""
    events: list[AnyEvent] = list(run.collect_events())  # type: ignore[arg-type]
    run.__dict__.setdefault("journal", Journal()).extend(events)
    return events


def play(
    run: AgentRun,
    *,
    decision: Any = None,
    ends: Iterable[tuple[int, Outcome]] = (),
    transacted: Iterable[Outcome] = (),
    probed: Iterable[Probed] = (),
    at_once: int = 1,
    tools: Mapping[str, Tool] = Refund.agent_tools,
    drawn: float = 0.0,
) -> list[str]:
    """Drive a step to its end: every append succeeds, bodies end and probes answer as given.

    Return what it asked for, in order.  What it recorded is what a run of ours may record.
    """
    requests = advance(run, tools, at_once=at_once, draw=lambda: drawn)
    outcomes, committed, answers = iter(ends), iter(transacted), iter(probed)
    asked: list[str] = []
    answer: Any = None
    while True:
        try:
            request: Request = requests.send(answer)
        except StopIteration:
            break
        answer = None
        match request:
            case Decide():
                asked.append("decide")
                answer = decision
            case Append():
                asked.append("append " + ", ".join(map(brief, append(run))))
            case Start(step=step):
                asked.append(f"start {step.idx} attempt {step.attempt}")
            case NextDone():
                asked.append("next done")
                answer = next(outcomes)
            case Transact(step=step):
                assert run.pending_events == []
                asked.append(f"transact {step.idx} attempt {step.attempt}")
                answer = next(committed)
                if isinstance(answer, Returned):
                    run.record_result(step.idx, answer.value)
                    append(run)
            case Probe(step=step):
                assert run.pending_events == []
                asked.append(f"probe {step.idx} key {step.key}")
                answer = next(answers)
    check_legal("run-7f3a", run.__dict__["journal"])
    return asked


def brief(event: Any) -> str:
    entry = JournalEntry("run-7f3a", event)
    return " ".join(
        str(it) for it in (entry.type, entry.data.get("idx"), entry.data.get("attempt")) if it is not None
    )


def crashed(*told: AnyEvent | list[AnyEvent]) -> Refund:
    """Return a run whose process died after these events."""
    events = [event for it in told for event in (it if isinstance(it, list) else [it])]
    run = begun()
    journal = Journal([*run.__dict__["journal"], *events])
    run = Refund.of(fold(journal), at)
    run.__dict__["journal"] = journal
    return run


def decided(
    idx: int,
    *,
    tool: str = "refund",
    attempt: int = 1,
    key: str | None = None,
    seq: int = 1,
    undoes: int | None = None,
) -> LlmDecided:
    args = '{"query":"refund policy window"}' if tool == "search" else f'{{"order_id":"ORD-{idx}"}}'
    return LlmDecided(
        timestamp=at(seq), idx=idx, turn=0, tool=tool, args=args, attempt=attempt, key=key, undoes=undoes
    )


def tried(idx: int, *, attempts: int, tool: str = "refund", key: str | None = None) -> list[AnyEvent]:
    """Return the decision of a step, and its start marks up to that attempt."""
    return [decided(idx, tool=tool, attempt=n, key=key) for n in range(1, attempts + 1)]


def opened(run: AgentRun, tools: Mapping[str, Tool] = Refund.agent_tools, *, at_once: int = 1) -> Requests:
    return advance(run, tools, at_once=at_once, draw=lambda: 0.0)


# One call.


def test_a_call_is_decided_recorded_started_and_its_result_recorded() -> None:
    run = begun()

    asked = play(run, decision=SEARCH, ends=[(0, Returned('"14 days"'))])

    assert asked == [
        "decide",
        "append llm_decided 0 1",
        "start 0 attempt 1",
        "next done",
        "append tool_result 0 1",
    ]
    assert run.state.steps[0].result == "14 days"
    assert run.state.status is Status.RUNNING


def test_a_decision_is_recorded_as_the_decider_gave_it_with_the_key_of_its_intent() -> None:
    run = begun()
    requests = opened(run)
    next(requests)

    request = requests.send(CallTool("refund", {"order_id": "ORD/3300"}, call_id="call_9"))

    assert request == Append(run)
    (event,) = run.pending_events
    assert isinstance(event, LlmDecided)
    assert (event.args, event.key, event.call_id) == ('{"order_id":"ORD/3300"}', "ORD%2F3300:refund", "call_9")


def test_a_failure_is_recorded_and_the_run_goes_on() -> None:
    run = begun()

    asked = play(run, decision=refund("ORD-3300"), ends=[(0, Failed("NotApplied", "card refused"))])

    assert asked[-1] == "append tool_failed 0 1"
    assert run.state.steps[0].error == {"type": "NotApplied", "message": "card refused", "applied": False}
    assert run.state.status is Status.RUNNING


def test_a_step_takes_one_turn_only() -> None:
    run = begun()
    play(run, decision=SEARCH, ends=[(0, Returned("1"))])

    asked = play(run, decision=SEARCH, ends=[(1, Returned("2"))])

    assert asked[:2] == ["decide", "append llm_decided 1 1"]
    assert run.state.turns == 2


# Several calls.


def test_of_three_calls_two_run_at_once_and_the_third_starts_when_one_ends() -> None:
    run = begun()
    ends = [(1, Returned('"b"')), (0, Returned('"a"')), (2, Returned('"c"'))]

    asked = play(run, decision=[refund("A"), refund("B"), refund("C")], ends=ends, at_once=2)

    assert asked == [
        "decide",
        "append llm_decided 0 1, llm_decided 1 1, llm_decided 2 0",
        "start 0 attempt 1",
        "start 1 attempt 1",
        "next done",
        "append tool_result 1 1",
        "append llm_decided 2 1",
        "start 2 attempt 1",
        "next done",
        "append tool_result 0 1",
        "next done",
        "append tool_result 2 1",
    ]
    assert [step.result for step in run.state.steps] == ["a", "b", "c"]


@pytest.mark.parametrize("at_once", [1, 2, 3, 8])
def test_never_more_bodies_run_than_may(at_once: int) -> None:
    run = begun()
    ends: list[tuple[int, Outcome]] = [(0, CUT_OFF), (0, Returned("1")), (1, Returned("1")), (2, Returned("1"))]

    asked = play(run, decision=[refund("A"), refund("B"), refund("C")], ends=ends, at_once=at_once)

    flying, most = 0, 0
    for request in asked:
        flying += request.startswith("start") - request.startswith("next")
        most = max(most, flying)
    assert most == min(at_once, 3)
    assert flying == 0


def test_calls_in_a_tuple_are_calls_of_one_turn_too() -> None:
    run = begun()

    play(run, decision=(SEARCH, SEARCH), ends=[(0, Returned("1")), (1, Returned("2"))], at_once=2)

    assert [(step.turn, step.result) for step in run.state.steps] == [(0, 1), (0, 2)]


# The end, and what is no decision.


def test_an_answer_ends_the_run() -> None:
    run = begun()

    asked = play(run, decision=Finish({"refunded": ("180.00",)}))

    assert asked == ["decide", "append finished"]
    assert (run.state.status, run.state.answer) == (Status.DONE, {"refunded": ["180.00"]})


def test_giving_up_ends_the_run() -> None:
    run = begun()

    asked = play(run, decision=Fail("no such order"))

    assert asked == ["decide", "append run_failed"]
    assert (run.state.status, run.state.failure) == (Status.FAILED, "no such order")


def test_a_reason_with_a_lone_surrogate_can_be_recorded_as_any_other_text() -> None:
    run = begun()

    play(run, decision=Fail("cut \ud83d"))

    assert run.state.failure == "cut \ufffd"


@pytest.mark.parametrize("call", [CallTool("sea\ud83d", {}), CallTool("search", SEARCH.args, call_id="\ud83d")])
def test_a_call_with_a_lone_surrogate_can_be_recorded_as_any_other_text(call: CallTool) -> None:
    run = begun()
    requests = opened(run)
    next(requests)

    requests.send(call)

    assert all(event.model_dump_json() for event in run.pending_events)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("decision", "says"),
    [
        (None, "the decider returned None"),
        ("search", "the decider returned 'search'; return CallTool"),
        ([], r"the decider returned \[\]"),
        ([SEARCH, "search"], "the decider returned"),
        ({"tool": "search"}, "the decider returned"),
        (Finish, "the decider returned <class"),
        (Finish({1, 2}), "the answer cannot be recorded: set is not JSON"),
        (Finish(float("nan")), "the answer cannot be recorded"),
        (CallTool("search", {"query": b"raw"}), "the arguments of search cannot be recorded: bytes is not JSON"),
        (CallTool("search", ["refunds"]), r"the arguments of search are \['refunds'\], no mapping"),  # type: ignore[arg-type]
        (CallTool(None, {}), ""),  # type: ignore[arg-type]
        (CallTool(["search"], {}), ""),  # type: ignore[arg-type]
        (CallTool("search", SEARCH.args, call_id=7), ""),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_what_is_no_decision_is_refused_and_nothing_is_pending(decision: Any, says: str) -> None:
    run = begun()
    before = run.state

    with pytest.raises(BadDecision, match=f"run run-7f3a: {says}"):
        play(run, decision=decision)

    assert (run.pending_events, run.state) == ([], before)


# What is wrong with a call is for the decider to see.


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (CallTool("pay", {}), "ToolUnknown", "no tool 'pay'; there are: refund, search"),
        (CallTool("refund", {}), "BadArguments", "refund: order_id: Field required"),
        (CallTool("refund", {"order_id": 1}), "BadArguments", "refund: order_id: Input should be a valid string"),
    ],
)
def test_a_call_that_cannot_be_made_is_a_failure_and_no_body_starts(call: CallTool, kind: str, says: str) -> None:
    run = begun()

    asked = play(run, decision=call)

    assert asked == ["decide", "append llm_decided 0 0, tool_failed 0 0"]
    assert run.state.steps[0].error == {"type": kind, "message": says, "applied": False}
    assert run.state.steps[0].key is None
    assert run.state.status is Status.RUNNING


def test_the_siblings_of_a_call_that_cannot_be_made_run() -> None:
    run = begun()

    asked = play(run, decision=[CallTool("pay", {}), refund("A")], ends=[(1, Returned("1"))])

    assert asked == [
        "decide",
        "append llm_decided 0 0, llm_decided 1 1, tool_failed 0 0",
        "start 1 attempt 1",
        "next done",
        "append tool_result 1 1",
    ]


def test_without_tools_a_call_is_told_that_there_are_none() -> None:
    run = begun()

    play(run, decision=SEARCH, tools={})

    error = run.state.steps[0].error
    assert error == {"type": "ToolUnknown", "message": "no tool 'search'; there are: none", "applied": False}


def test_a_key_that_another_step_holds_is_a_failure_and_the_siblings_run() -> None:
    run = begun()
    requests = opened(run, at_once=2)
    next(requests)
    requests.send([refund("A"), refund("B"), refund("C")])

    again = requests.throw(KeyReused("step 4 of run other holds it", idx=1))

    assert again == Append(run)
    assert [brief(event) for event in run.collect_events()] == [
        "llm_decided 0 1",
        "llm_decided 1 0",
        "llm_decided 2 1",
        "tool_failed 1 0",
    ]
    error = run.state.steps[1].error
    assert error == {"type": "KeyReused", "message": "step 4 of run other holds it", "applied": False}
    assert [step.key for step in run.state.steps] == ["A:refund", None, "C:refund"]
    started = [requests.send(None), requests.send(None)]
    assert [request.step.idx for request in started if isinstance(request, Start)] == [0, 2]


def test_every_key_that_is_held_is_found_out_one_after_the_other_in_a_later_turn_too() -> None:
    run = begun()
    play(run, decision=SEARCH, ends=[(0, Returned("1"))])
    requests = opened(run, at_once=2)
    next(requests)
    requests.send([refund("A"), refund("B")])

    requests.throw(KeyReused("taken", idx=2))
    requests.throw(KeyReused("taken", idx=1))

    run.collect_events()
    with pytest.raises(StopIteration):
        requests.send(None)
    assert [(step.idx, step.status, step.turn) for step in run.state.steps] == [
        (0, "done", 0),
        (1, "failed", 1),
        (2, "failed", 1),
    ]


def test_an_append_that_is_lost_ends_the_step() -> None:
    run = begun()
    requests = opened(run)
    next(requests)
    requests.send(refund("A"))

    with pytest.raises(RunMoved):
        requests.throw(RunMoved("another worker was faster"))

    with pytest.raises(StopIteration):
        next(requests)


# Outcomes that nobody knows.


def test_an_unknown_outcome_is_tried_again_with_the_same_key_and_arguments() -> None:
    run = begun()

    asked = play(run, decision=refund("A"), ends=[(0, CUT_OFF), (0, Returned('"refunded"'))])

    assert asked == [
        "decide",
        "append llm_decided 0 1",
        "start 0 attempt 1",
        "next done",
        "append llm_decided 0 2",
        "start 0 attempt 2",
        "next done",
        "append tool_result 0 2",
    ]
    assert (run.state.steps[0].key, run.state.steps[0].args) == ("A:refund", {"order_id": "A"})


def test_attempts_that_are_used_up_leave_the_step_in_doubt_and_never_failed() -> None:
    run = begun()

    asked = play(run, decision=refund("A"), ends=[(0, CUT_OFF)] * 3)

    assert asked[-3:] == ["start 0 attempt 3", "next done", "append step_in_doubt 0 3"]
    assert (run.state.status, run.state.waiting_for) == (Status.WAITING, "doubt")
    assert run.state.steps[0].doubt == (
        "attempt 3 of 3: TimeoutError: cut off; nobody can tell whether refund happened"
    )


def test_the_siblings_of_a_step_in_doubt_go_on_and_then_the_run_waits() -> None:
    run = begun()
    ends: list[tuple[int, Outcome]] = [(0, CUT_OFF), (0, CUT_OFF), (0, CUT_OFF), (1, Returned("1"))]

    asked = play(run, decision=[refund("A"), refund("B")], ends=ends, at_once=1)

    assert asked[-5:] == [
        "append step_in_doubt 0 3",
        "append llm_decided 1 1",
        "start 1 attempt 1",
        "next done",
        "append tool_result 1 1",
    ]
    assert run.state.status is Status.WAITING


# After a crash.


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_step_that_was_started_is_started_again_and_the_decider_is_not_asked(attempt: int) -> None:
    run = crashed(tried(0, attempts=attempt, key="ORD-0:refund"))

    asked = play(run, ends=[(0, Returned("1"))])

    assert asked == [
        f"append llm_decided 0 {attempt + 1}",
        f"start 0 attempt {attempt + 1}",
        "next done",
        f"append tool_result 0 {attempt + 1}",
    ]


def test_a_step_that_was_queued_makes_its_first_attempt() -> None:
    run = crashed(decided(0, attempt=0))

    asked = play(run, ends=[(0, Returned("1"))])

    assert asked[:2] == ["append llm_decided 0 1", "start 0 attempt 1"]


def test_the_key_of_a_step_in_flight_is_the_one_in_the_journal_whatever_the_template_says_today() -> None:
    run = crashed(decided(0, key="old:key"))
    requests = opened(run)

    next(requests)
    append(run)
    request = requests.send(None)

    assert isinstance(request, Start)
    assert (request.step.key, request.step.attempt) == ("old:key", 2)


def test_a_crash_resets_no_counter_and_an_effect_that_is_used_up_is_in_doubt() -> None:
    run = crashed(tried(0, attempts=3))

    asked = play(run)

    assert asked == ["append step_in_doubt 0 3"]
    assert run.state.steps[0].doubt == (
        "attempt 3 of 3: the process died in it; nobody can tell whether refund happened"
    )


def test_a_read_that_is_used_up_is_a_failure_that_the_decider_sees() -> None:
    run = crashed(tried(0, attempts=2, tool="search"))

    asked = play(run)

    assert asked == ["append tool_failed 0 2"]
    assert run.state.steps[0].error == {
        "type": "AttemptsExhausted",
        "message": "attempt 2 of 2 was the last: the process died in it",
        "applied": False,
    }
    assert run.state.status is Status.RUNNING


def test_what_was_open_is_taken_up_in_order_and_never_more_at_once_than_may() -> None:
    run = crashed(decided(0), decided(1), decided(2, attempt=0), tried(1, attempts=3)[1:])
    ends = [(0, Returned("1")), (2, Returned("1"))]

    asked = play(run, ends=ends, at_once=1)

    assert asked == [
        "append llm_decided 0 2",
        "start 0 attempt 2",
        "next done",
        "append tool_result 0 2",
        "append step_in_doubt 1 3, llm_decided 2 1",
        "start 2 attempt 1",
        "next done",
        "append tool_result 2 1",
    ]


def test_a_step_in_doubt_is_not_started_again_with_its_siblings() -> None:
    doubted = StepInDoubt(timestamp=at(2), idx=0, tool="refund", attempt=1, reason="cut off")
    run = crashed(decided(0), decided(1), doubted)

    asked = play(run, ends=[(1, Returned("1"))], at_once=2)

    assert asked == ["append llm_decided 1 2", "start 1 attempt 2", "next done", "append tool_result 1 2"]
    assert run.state.status is Status.WAITING


# Waiting for another attempt.

SLOWLY = Retry(max_attempts=3, initial=10, factor=2, jitter=0.5)
DOWN = Failed("OSError", "down", may_retry=True)


def test_an_attempt_that_failed_is_followed_by_a_wait_that_is_a_row_and_no_process() -> None:
    run = begun()

    asked = play(run, decision=PAY, ends=[(0, DOWN)], tools=paying(effect="read", retry=SLOWLY), drawn=1.0)

    assert asked[-2:] == ["next done", "append tool_failed 0 1, wait_began"]
    failed, waits = run.__dict__["journal"][-2:]
    assert isinstance(failed, ToolFailed)
    assert isinstance(waits, WaitBegan)
    assert failed.retry_at == waits.wake_at == run.state.wake_at == failed.timestamp + timedelta(seconds=15)
    assert (run.state.status, run.state.waiting_for) == (Status.WAITING, "retry")


def test_when_the_wait_is_over_the_next_attempt_starts_and_waits_grow() -> None:
    run, tools = begun(), paying(effect="read", retry=SLOWLY)
    play(run, decision=PAY, ends=[(0, DOWN)], tools=tools)

    second = play(run, ends=[(0, DOWN)], tools=tools)
    third = play(run, ends=[(0, DOWN)], tools=tools)

    assert second == [
        "append wait_ended",
        "append llm_decided 0 2",
        "start 0 attempt 2",
        "next done",
        "append tool_failed 0 2, wait_began",
    ]
    assert third[-1] == "append tool_failed 0 3"
    assert (run.state.steps[0].status, run.state.status) == ("failed", Status.RUNNING)
    waits = [event for event in run.__dict__["journal"] if isinstance(event, ToolFailed) and event.retry_at]
    assert [event.retry_at - event.timestamp for event in waits] == [timedelta(seconds=10), timedelta(seconds=20)]


@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_an_attempt_that_nobody_is_to_wait_for_follows_at_once(effect: Any) -> None:
    run, failed = begun(), DOWN if effect == "read" else CUT_OFF

    asked = play(
        run, decision=PAY, ends=[(0, failed), (0, Returned("1"))], tools=paying(effect=effect, retry=AT_ONCE)
    )

    assert asked[3:6] == ["next done", "append llm_decided 0 2", "start 0 attempt 2"]
    assert run.state.wake_at is None


def test_an_unknown_outcome_waits_too_and_goes_on_under_the_same_key() -> None:
    run, tools = begun(), paying(effect="idempotent", retry=SLOWLY)
    play(run, decision=PAY, ends=[(0, CUT_OFF)], tools=tools)
    waiting = run.state.steps[0]

    play(run, ends=[(0, Returned("1"))], tools=tools)

    assert waiting.error == {"type": "TimeoutError", "message": "cut off", "applied": None}
    assert (run.state.steps[0].attempt, run.state.steps[0].key) == (2, waiting.key)


@pytest.mark.parametrize(
    "failed", [Failed("ValueError", "no use"), Failed("NotApplied", "no"), Failed("NotRecordable", "", applied=True)]
)
def test_a_failure_that_no_attempt_can_help_is_final(failed: Failed) -> None:
    run = begun()

    asked = play(run, decision=PAY, ends=[(0, failed)], tools=paying(effect="idempotent", retry=SLOWLY))

    assert asked[-1] == "append tool_failed 0 1"
    assert run.state.steps[0].error == {"type": failed.type, "message": failed.message, "applied": failed.applied}


def test_an_unknown_outcome_that_no_attempt_can_help_is_in_doubt() -> None:
    run = begun()
    mismatch = Unknown("KeyMismatch", "other parameters", may_retry=False)

    asked = play(run, decision=PAY, ends=[(0, mismatch)], tools=paying(effect="idempotent", retry=SLOWLY))

    assert asked[-1] == "append step_in_doubt 0 1"


def test_a_step_that_waits_holds_up_none_of_its_siblings_and_the_run_waits_when_they_are_done() -> None:
    run, tools = begun(), {**Refund.agent_tools, **paying(effect="read", retry=SLOWLY)}

    asked = play(run, decision=[PAY, SEARCH], ends=[(0, DOWN), (1, Returned("1"))], tools=tools)

    assert asked[3:] == [
        "next done",
        "append tool_failed 0 1",
        "append llm_decided 1 1",
        "start 1 attempt 1",
        "next done",
        "append tool_result 1 1, wait_began",
    ]


def test_of_several_steps_that_wait_each_goes_on_when_it_is_due() -> None:
    run, tools = begun(), paying(effect="read", retry=SLOWLY)
    play(run, decision=[PAY, PAY], ends=[(0, DOWN), (1, DOWN)], tools=tools, at_once=2)
    due = [step.retry_at for step in run.state.steps]
    assert run.state.wake_at == due[0] < due[1]  # type: ignore[operator]

    first = play(run, ends=[(0, Returned("1"))], tools=tools, at_once=2)
    second = play(run, ends=[(1, Returned("1"))], tools=tools, at_once=2)

    assert first[1:] == [
        "append llm_decided 0 2",
        "start 0 attempt 2",
        "next done",
        "append tool_result 0 2, wait_began",
    ]
    assert second[1:] == ["append llm_decided 1 2", "start 1 attempt 2", "next done", "append tool_result 1 2"]


def test_a_worker_that_died_before_the_wait_was_recorded_leaves_it_to_the_next_one() -> None:
    failed = ToolFailed(timestamp=at(2), idx=0, tool="pay", attempt=1, error=DOWN.error_json, retry_at=at(60))
    run = crashed(decided(0, tool="pay"), failed)

    asked = play(run, tools=paying(effect="read", retry=SLOWLY))

    assert asked == ["append wait_began"]
    assert run.state.wake_at == at(60)


# Keys that the provider keeps for a while.


def died_with_a_key_of(seconds: float, ttl: float) -> tuple[Refund, list[str]]:
    """Return a run whose key was first sent so many seconds ago, and what its next worker asks for."""
    told = crashed(decided(0, tool="pay", key="k", seq=1 - int(seconds) + 1))
    return told, play(told, ends=[(0, Returned("1"))], tools=paying(effect="idempotent", key_ttl=ttl, retry=AT_ONCE))


def test_a_key_that_the_provider_still_keeps_is_sent_again() -> None:
    run, asked = died_with_a_key_of(59, ttl=60)

    assert asked[1] == "start 0 attempt 2"
    assert run.state.steps[0].key == "k"


def test_a_key_that_the_provider_may_have_forgotten_is_not_sent_again() -> None:
    run, asked = died_with_a_key_of(60, ttl=60)

    assert asked == ["append step_in_doubt 0 1"]
    assert "the provider keeps a key for 60 s only, so it is not sent again" in (run.state.steps[0].doubt or "")


def test_the_life_of_a_key_counts_from_its_first_attempt_and_not_from_the_latest() -> None:
    run = crashed(decided(0, tool="pay", key="k", seq=-60), decided(0, tool="pay", key="k", seq=1, attempt=2))

    asked = play(run, tools=paying(effect="idempotent", key_ttl=60, retry=AT_ONCE))

    assert asked == ["append step_in_doubt 0 2"]


def test_a_key_that_was_forgotten_while_the_body_ran_is_not_sent_again_at_once_either() -> None:
    run = begun()
    ends = [(0, CUT_OFF), (0, Returned('"paid twice"'))]

    asked = play(run, decision=PAY, ends=ends, tools=paying(effect="idempotent", key_ttl=1, retry=AT_ONCE))

    assert asked[-1] == "append step_in_doubt 0 1"


def test_an_idempotent_tool_that_can_be_asked_is_asked_when_its_key_is_forgotten() -> None:
    run = crashed(decided(0, tool="pay", key="k", seq=-60))
    tools = paying(effect="idempotent", key_ttl=60, probe=lambda: None, retry=AT_ONCE)

    asked = play(run, probed=[Returned('"found"')], tools=tools)

    assert asked == ["probe 0 key k", "append doubt_settled 0 1, tool_result 0 1"]


# An effect that nothing protects.


def test_an_effect_that_nothing_protects_is_in_doubt_when_its_outcome_is_unknown() -> None:
    run = begun()

    asked = play(run, decision=PAY, ends=[(0, CUT_OFF)], tools=paying(effect="at_most_once"))

    assert asked[-1] == "append step_in_doubt 0 1"
    assert run.state.steps[0].doubt == "attempt 1 of 1: TimeoutError: cut off; nobody can tell whether pay happened"
    assert (run.state.status, run.state.waiting_for) == (Status.WAITING, "doubt")


def test_an_effect_that_nothing_protects_is_not_started_again_after_a_crash() -> None:
    run = crashed(decided(0, tool="pay", key="k"))

    asked = play(run, tools=paying(effect="at_most_once"))

    assert asked == ["append step_in_doubt 0 1"]
    assert run.state.steps[0].doubt == (
        "attempt 1 of 1: the process died in it; nobody can tell whether pay happened"
    )


def test_an_effect_that_nothing_protects_makes_its_first_attempt_where_it_was_only_queued() -> None:
    run = crashed(decided(0, tool="pay", key="k", attempt=0))

    asked = play(run, ends=[(0, Returned("1"))], tools=paying(effect="at_most_once"))

    assert asked[:2] == ["append llm_decided 0 1", "start 0 attempt 1"]


def test_a_person_who_says_that_it_did_not_happen_gives_it_as_many_attempts_anew_under_another_key() -> None:
    run, tools = begun(), paying(effect="at_most_once", key="{order_id}:pay")
    play(run, decision=PAY, ends=[(0, CUT_OFF)], tools=tools)
    run.record_settlement(0, "did_not_happen", "ann")
    append(run)

    asked = play(run, ends=[(0, CUT_OFF)], tools=tools)

    assert asked == ["append llm_decided 0 2", "start 0 attempt 2", "next done", "append step_in_doubt 0 2"]
    assert run.state.steps[0].key == "A:pay#2"


def test_a_person_who_says_that_it_happened_ends_the_step() -> None:
    run, tools = begun(), paying(effect="at_most_once")
    play(run, decision=PAY, ends=[(0, CUT_OFF)], tools=tools)
    run.record_settlement(0, "happened", "ann")
    run.record_result(0, '"receipt"')
    append(run)

    assert play(run, decision=Finish("paid"), tools=tools) == ["decide", "append finished"]


# What a tool says to do about a doubt.

DOUBTFUL: dict[str, dict[str, Any]] = {
    "at most once": {"effect": "at_most_once"},
    "idempotent": {"effect": "idempotent", "retry": Retry(max_attempts=1)},
}


def in_doubt_by(how: str, tools: Mapping[str, Tool], *, ends: Iterable[tuple[int, Outcome]] = ()) -> Refund:
    """Return a run whose only attempt at paying ended in an exception, or in a crash."""
    if how == "an exception":
        run = begun()
        play(run, decision=PAY, ends=[(0, CUT_OFF), *ends], tools=tools)
    else:
        run = crashed(decided(0, tool="pay", key="k"))
        play(run, ends=ends, tools=tools)
    return run


@pytest.mark.parametrize("how", ["an exception", "a crash"])
@pytest.mark.parametrize("options", DOUBTFUL.values(), ids=DOUBTFUL.keys())
def test_a_doubt_waits_for_a_person_unless_the_tool_says_otherwise(options: dict[str, Any], how: str) -> None:
    run = in_doubt_by(how, paying(**options))

    assert (run.state.status, run.state.steps[0].status) == (Status.WAITING, "in_doubt")


@pytest.mark.parametrize("how", ["an exception", "a crash"])
@pytest.mark.parametrize("options", DOUBTFUL.values(), ids=DOUBTFUL.keys())
def test_a_doubt_that_is_skipped_goes_on_without_a_result(options: dict[str, Any], how: str) -> None:
    run = in_doubt_by(how, paying(**options, on_doubt="skip"))

    assert [type(event) for event in run.__dict__["journal"][-3:]] == [StepInDoubt, DoubtSettled, ToolResult]
    assert (run.state.status, run.state.steps[0].status, run.state.steps[0].value_json) == (
        Status.RUNNING,
        "done",
        "null",
    )


@pytest.mark.parametrize("how", ["an exception", "a crash"])
@pytest.mark.parametrize("options", DOUBTFUL.values(), ids=DOUBTFUL.keys())
def test_a_doubt_that_is_told_is_a_failure_that_does_not_say_that_it_did_not_happen(
    options: dict[str, Any], how: str
) -> None:
    run = in_doubt_by(how, paying(**options, on_doubt="tell"))

    assert [type(event) for event in run.__dict__["journal"][-3:]] == [StepInDoubt, DoubtSettled, ToolFailed]
    error = run.state.steps[0].error or {}
    assert (error["type"], error["applied"]) == ("OutcomeUnknown", None)
    assert "nobody can tell whether pay happened" in error["message"]


@pytest.mark.parametrize("how", ["an exception", "a crash"])
def test_a_doubt_that_may_be_resent_is_until_the_attempts_are_used_up(how: str) -> None:
    tools = paying(effect="at_most_once", on_doubt="resend", retry=Retry(max_attempts=2))

    again = in_doubt_by(how, tools, ends=[(0, Returned("1"))])
    used_up = in_doubt_by(how, tools, ends=[(0, CUT_OFF)])

    assert (again.state.steps[0].status, again.state.steps[0].attempt) == ("done", 2)
    assert (used_up.state.steps[0].status, used_up.state.steps[0].attempt) == ("in_doubt", 2)


# An effect that can be asked about.

ASKED: dict[str, Any] = {"effect": "probed", "probe": lambda: None, "retry": AT_ONCE}


def test_an_effect_that_can_be_asked_about_is_asked_about_before_it_is_started_again() -> None:
    run = crashed(decided(0, tool="pay", key="k"))

    asked = play(run, probed=[Returned('"receipt"')], tools=paying(**ASKED))

    assert asked == ["probe 0 key k", "append doubt_settled 0 1, tool_result 0 1"]
    assert run.state.steps[0].result == "receipt"


def test_an_effect_that_surely_did_not_happen_is_started_again_under_another_key() -> None:
    run = crashed(decided(0, tool="pay", key="k"))

    asked = play(run, probed=[DidNotHappen()], ends=[(0, Returned("1"))], tools=paying(**ASKED))

    assert asked == [
        "probe 0 key k",
        "append doubt_settled 0 1, llm_decided 0 2",
        "start 0 attempt 2",
        "next done",
        "append tool_result 0 2",
    ]
    assert run.state.steps[0].key == "k#2"


def test_an_effect_that_never_happens_is_a_failure_when_its_attempts_are_used_up() -> None:
    run = crashed(tried(0, attempts=3, tool="pay", key="k"))

    asked = play(run, probed=[DidNotHappen()], tools=paying(**ASKED))

    assert asked == ["probe 0 key k", "append doubt_settled 0 3, tool_failed 0 3"]
    error = run.state.steps[0].error or {}
    assert (error["type"], error["applied"]) == ("AttemptsExhausted", False)


def test_a_probe_that_cannot_tell_leaves_a_doubt_and_is_asked_again_later() -> None:
    run = crashed(decided(0, tool="pay", key="k"))
    cannot_tell = Unknown("Probe", "who knows")

    first = play(run, probed=[cannot_tell], tools=paying(**ASKED))
    second = play(run, probed=[cannot_tell], tools=paying(**ASKED))
    third = play(run, probed=[Returned("1")], tools=paying(**ASKED))

    assert first == ["probe 0 key k", "append step_in_doubt 0 1"]
    assert second == ["probe 0 key k"]
    assert third == ["probe 0 key k", "append doubt_settled 0 1, tool_result 0 1"]
    assert run.state.status is Status.RUNNING


def test_a_probe_is_not_asked_before_it_can_be_believed() -> None:
    run, tools = crashed(decided(0, tool="pay", key="k", seq=1)), paying(**ASKED, settle_after=30)

    first = play(run, tools=tools)
    second = play(run, probed=[Returned("1")], tools=tools)

    assert first == ["append tool_failed 0 1, wait_began"]
    assert second == ["append wait_ended", "probe 0 key k", "append doubt_settled 0 1, tool_result 0 1"]
    waits = [event for event in run.__dict__["journal"] if isinstance(event, WaitBegan)]
    assert [event.wake_at for event in waits] == [at(31)]


def test_an_unknown_outcome_is_asked_about_after_a_while_though_no_attempt_is_left() -> None:
    run, tools = begun(), paying(effect="probed", probe=lambda: None, settle_after=30, retry=Retry(max_attempts=1))

    first = play(run, decision=PAY, ends=[(0, CUT_OFF)], tools=tools)
    second = play(run, probed=[Returned("1")], tools=tools)

    assert first[-1] == "append tool_failed 0 1, wait_began"
    assert second == ["append wait_ended", "probe 0 key run-7f3a:0:pay", "append doubt_settled 0 1, tool_result 0 1"]


def test_a_probe_is_asked_when_every_result_that_came_in_is_durable() -> None:
    run = crashed(decided(0), decided(1, tool="pay", key="k"))
    tools = {**Refund.agent_tools, **paying(**ASKED)}

    asked = play(run, ends=[(0, Returned("1"))], probed=[Returned("1")], tools=tools)

    assert asked[-3:] == ["append tool_result 0 2", "probe 1 key k", "append doubt_settled 1 1, tool_result 1 1"]


# An effect that commits with its result.

BOOKING = paying(effect="transactional", retry=Retry(max_attempts=2, initial=0))


def test_an_effect_that_commits_with_its_result_is_decided_marked_and_transacted() -> None:
    run = begun()

    asked = play(run, decision=PAY, transacted=[Returned('"booked"')], tools=BOOKING)

    assert asked == ["decide", "append llm_decided 0 1", "transact 0 attempt 1"]
    assert run.state.steps[0].result == "booked"


def test_a_transaction_that_was_rolled_back_is_tried_again_where_the_tool_says_so_and_then_failed() -> None:
    run = begun()

    asked = play(run, decision=PAY, transacted=[DOWN, DOWN], tools=BOOKING)

    assert asked[2:] == [
        "transact 0 attempt 1",
        "append llm_decided 0 2",
        "transact 0 attempt 2",
        "append tool_failed 0 2",
    ]
    assert (run.state.steps[0].error or {})["applied"] is False


def test_a_transaction_that_a_crash_cut_off_left_nothing_and_is_begun_again() -> None:
    run = crashed(decided(0, tool="pay", key="k"))

    asked = play(run, transacted=[Returned("1")], tools=BOOKING)

    assert asked == ["append llm_decided 0 2", "transact 0 attempt 2"]
    assert run.state.steps[0].key == "k"


def test_a_transaction_that_every_crash_cut_off_is_a_failure() -> None:
    run = crashed(tried(0, attempts=2, tool="pay", key="k"))

    play(run, tools=BOOKING)

    assert (run.state.steps[0].error or {})["type"] == "AttemptsExhausted"


def test_the_siblings_of_a_transaction_run_and_nothing_of_theirs_goes_down_with_it() -> None:
    run, tools = begun(), {**Refund.agent_tools, **BOOKING}
    decision = [PAY, refund("B"), PAY]

    asked = play(
        run,
        decision=decision,
        transacted=[Failed("E", "no"), Returned("1")],
        ends=[(1, Returned("2"))],
        tools=tools,
        at_once=3,
    )

    assert [step.status for step in run.state.steps] == ["failed", "done", "done"]
    assert asked.index("append tool_failed 0 1") < asked.index("transact 2 attempt 1")


# Keys that stand for one intent.


def refused(run: Refund, reused: KeyReused, tools: Mapping[str, Tool], decision: Any = PAY) -> list[AnyEvent]:
    """Return what is recorded of a decision whose append was refused for its key."""
    requests = opened(run, tools, at_once=8)
    next(requests)
    requests.send(decision)
    requests.throw(reused)
    events = append(run)
    check_legal("run-7f3a", run.__dict__["journal"])
    return events


INTENT: dict[str, Any] = {"effect": "at_most_once", "key": "{order_id}:pay"}


def test_an_intent_that_surely_did_not_happen_elsewhere_is_started_under_a_renewed_key() -> None:
    run = begun()

    (event,) = refused(run, KeyReused("taken", idx=0, is_free=True), paying(**INTENT))

    assert isinstance(event, LlmDecided)
    assert (event.attempt, event.key) == (1, "A:pay#2")


def test_a_renewed_key_that_is_taken_too_is_renewed_again_or_refused() -> None:
    run = begun()
    requests = opened(run, paying(**INTENT))
    next(requests)
    requests.send(PAY)

    requests.throw(KeyReused("taken", idx=0, is_free=True))
    requests.throw(KeyReused("taken too", idx=0, is_free=True))
    assert [event.key for event in run.pending_events if isinstance(event, LlmDecided)] == ["A:pay#3"]
    requests.throw(KeyReused("and done", idx=0))

    append(run)
    assert run.state.steps[0].error == {"type": "KeyReused", "message": "and done", "applied": False}


def test_a_call_whose_intent_was_met_is_given_what_the_first_one_gave_where_the_tool_says_so() -> None:
    run = begun()

    refused(run, KeyReused("taken", idx=0, first='"receipt"'), paying(**INTENT, on_key_reuse="return_first"))

    assert (run.state.steps[0].status, run.state.steps[0].result, run.state.steps[0].attempt) == (
        "done",
        "receipt",
        0,
    )


@pytest.mark.parametrize(
    ("options", "first"), [({"on_key_reuse": "return_first"}, None), ({}, '"receipt"')], ids=["no result", "no say"]
)
def test_a_call_whose_key_is_taken_is_refused_otherwise(options: dict[str, Any], first: str | None) -> None:
    run = begun()

    refused(run, KeyReused("taken", idx=0, first=first), paying(**INTENT, **options))

    assert (run.state.steps[0].error or {})["type"] == "KeyReused"


# What this code cannot act on.


@pytest.mark.parametrize("at_once", [1, 8])
def test_a_run_with_a_step_whose_tool_is_gone_is_parked_and_nothing_of_it_starts(at_once: int) -> None:
    run = crashed(decided(0, tool="search"), decided(1))
    tools = {"search": Refund.agent_tools["search"]}

    asked = play(run, tools=tools, at_once=at_once)

    assert asked == ["append parked"]
    assert (run.state.status, run.state.waiting_for) == (Status.WAITING, "person")
    assert run.state.parked == (
        "run run-7f3a step 1: this program has no tool 'refund'; requeue it where the tool is"
    )
    assert [step.status for step in run.state.steps] == ["started", "started"]


def test_a_run_with_a_step_whose_arguments_no_longer_fit_is_parked_and_nothing_of_it_starts() -> None:
    @tool(effect=Effect.IDEMPOTENT)
    def refund(order_id: str, reason: str) -> None: ...

    run = crashed(decided(0))

    asked = play(run, tools={"refund": refund})

    assert asked == ["append parked"]
    assert run.state.parked == ("run run-7f3a step 0: its arguments no longer fit: refund: reason: Field required")


def test_a_run_that_waits_is_parked_too_where_its_tool_is_gone_when_it_wakes() -> None:
    run = begun()
    play(run, decision=PAY, ends=[(0, DOWN)], tools=paying(effect="read", retry=SLOWLY))

    assert play(run, tools={}) == ["append parked"]
    assert run.state.waiting_for == "person"


def test_a_run_whose_recorded_result_does_not_fit_is_parked_when_its_decider_looks_at_it() -> None:
    run = begun()
    requests = opened(run)
    assert requests.send(None) == Decide(run)

    request = requests.throw(ResultDoesNotFit("step 0: the recorded result of quote does not fit Line: no price"))

    assert request == Append(run)
    assert [brief(event) for event in append(run)] == ["parked"]
    assert run.state.parked == "step 0: the recorded result of quote does not fit Line: no price"


def test_a_parked_run_that_was_sent_back_goes_on_where_its_tool_is() -> None:
    run = crashed(decided(0))
    play(run, tools={})
    run.record_requeued("ann")
    append(run)

    asked = play(run, ends=[(0, Returned("1"))])

    assert asked[:2] == ["append llm_decided 0 2", "start 0 attempt 2"]


def test_a_step_is_found_under_the_name_that_its_tool_had_when_it_was_decided() -> None:
    run = crashed(decided(0, tool="lookup_v1"))
    lookup_v2 = tool(effect="read", name="lookup_v2", aliases=["lookup_v1"])(pay)

    asked = play(run, ends=[(0, Returned("1"))], tools=dict.fromkeys(("lookup_v2", "lookup_v1"), lookup_v2))

    assert asked[1] == "start 0 attempt 2"
    assert run.state.steps[0].tool == "lookup_v1"


# Undoing.


def book(order_id: str) -> str: ...  # type: ignore[empty-body]


def cancel(order_id: str) -> str: ...  # type: ignore[empty-body]


UNDOABLE: Mapping[str, Tool] = {
    "book": tool(effect="idempotent", compensate="cancel")(book),
    "cancel": tool(effect="idempotent", key="{order_id}:cancel")(cancel),
    "search": Refund.agent_tools["search"],
}


def booked(*order_ids: str) -> Refund:
    """Return a run that booked these, looked something up, ended, and is to be undone."""
    run = begun()
    calls = [CallTool("book", {"order_id": order_id}) for order_id in order_ids]
    ends: list[tuple[int, Outcome]] = [(n, Returned("1")) for n in range(len(calls))]
    if calls:
        play(run, decision=calls, ends=ends, at_once=8, tools=UNDOABLE)
    play(run, decision=SEARCH, ends=[(len(calls), Returned("1"))], tools=UNDOABLE)
    play(run, decision=Finish("booked"), tools=UNDOABLE)
    run.record_compensation("ann")
    append(run)
    return run


def test_what_was_done_is_undone_the_last_one_first_and_nobody_is_asked_what_to_do() -> None:
    run = booked("A", "B")

    first = play(run, ends=[(3, Returned("1"))], tools=UNDOABLE)
    second = play(run, ends=[(4, Returned("1"))], tools=UNDOABLE)
    last = play(run, tools=UNDOABLE)

    assert first == ["append llm_decided 3 1", "start 3 attempt 1", "next done", "append tool_result 3 1"]
    assert second[0] == "append llm_decided 4 1"
    assert last == ["append compensation_ended"]
    undoing = run.state.steps[3:]
    assert [(step.tool, step.args, step.undoes) for step in undoing] == [
        ("cancel", {"order_id": "B"}, 1),
        ("cancel", {"order_id": "A"}, 0),
    ]
    assert [step.key for step in undoing] == ["B:cancel", "A:cancel"]
    assert run.state.status is Status.CANCELLED


def test_a_run_that_did_nothing_has_nothing_undone() -> None:
    run = booked()

    assert play(run, tools=UNDOABLE) == ["append compensation_ended"]


def test_a_crash_in_the_middle_of_undoing_undoes_nothing_twice() -> None:
    run = booked("A")
    requests = opened(run, UNDOABLE)
    next(requests)
    append(run)
    requests.close()

    asked = play(run, ends=[(2, Returned("1"))], tools=UNDOABLE)

    assert asked == ["append llm_decided 2 2", "start 2 attempt 2", "next done", "append tool_result 2 2"]
    assert play(run, tools=UNDOABLE) == ["append compensation_ended"]


def test_a_run_is_parked_where_an_effect_cannot_be_undone() -> None:
    run = booked("A")
    play(run, ends=[(2, Failed("NotApplied", "closed today"))], tools=UNDOABLE)

    assert play(run, tools=UNDOABLE) == ["append parked"]
    assert (run.state.parked or "").startswith("step 2 could not undo step 0: ")


def test_a_person_who_sends_back_what_could_not_be_undone_has_it_tried_again() -> None:
    run = booked("A")
    play(run, ends=[(2, Failed("NotApplied", "closed today"))], tools=UNDOABLE)
    play(run, tools=UNDOABLE)
    run.record_requeued("ann")
    append(run)

    asked = play(run, ends=[(3, Returned("1"))], tools=UNDOABLE)

    assert asked[:2] == ["append llm_decided 3 1", "start 3 attempt 1"]
    assert run.state.steps[3].undoes == 0


def test_a_run_is_parked_where_the_key_of_what_undoes_an_effect_is_taken() -> None:
    run = booked("A")
    requests = opened(run, UNDOABLE)
    next(requests)

    requests.throw(KeyReused("A:cancel is held by step 9", idx=2))

    append(run)
    for _ in requests:
        append(run)
    play(run, tools=UNDOABLE)
    assert run.state.waiting_for == "person"


# Whatever comes.

SOME_TOOLS: dict[str, Tool] = {
    "read": tool(effect="read", retry=Retry(max_attempts=2, initial=0), name="read")(pay),
    "slow": tool(effect="read", retry=Retry(max_attempts=2, initial=9), name="slow")(pay),
    "keyed": tool(effect="idempotent", retry=Retry(max_attempts=2), name="keyed", key_ttl=9)(pay),
    "booked": tool(effect="transactional", retry=Retry(max_attempts=2), name="booked")(pay),
    "asked": tool(effect="probed", probe=lambda: None, settle_after=2, retry=Retry(max_attempts=2), name="asked")(
        pay
    ),
    "once": tool(effect="at_most_once", name="once")(pay),
    "mail": tool(effect="at_most_once", on_doubt="resend", retry=Retry(max_attempts=2), name="mail")(pay),
    "told": tool(effect="at_most_once", on_doubt="tell", name="told")(pay),
}
OUTCOMES = st.sampled_from([Returned("1"), Failed("NotApplied", "no"), CUT_OFF, Unknown("E", "no", may_retry=False)])
ANSWERS = st.sampled_from([Returned("1"), DidNotHappen(), Unknown("Probe", "who knows")])


class World:
    """What is true of every run of these tools, whoever drives it and wherever it dies."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.run = begun()
        self._draw = draw
        self._calls = draw(st.lists(st.sampled_from([*SOME_TOOLS]), min_size=1, max_size=3))
        self._started: list[tuple[int, int]] = []

    def live(self, at_once: int) -> None:
        """Drive the run one step, or until the process dies."""
        flying: list[int] = []
        requests = opened(self.run, SOME_TOOLS, at_once=at_once)
        answer: Any = None
        while self._draw(st.integers(0, 20)):
            try:
                request = requests.send(answer)
            except StopIteration:
                return
            answer = self._answer(request, flying)
            assert len(flying) <= at_once
        self.run = Refund.of(fold(journal := self.run.__dict__["journal"]), at)
        self.run.__dict__["journal"] = journal

    def _answer(self, request: Request, flying: list[int]) -> Any:
        match request:
            case Decide():
                return [CallTool(name, {"order_id": "A"}) for name in self._calls]
            case Append():
                append(self.run)
            case Start(step=step):
                self._starts(step.idx, step.attempt)
                flying.append(step.idx)
            case NextDone():
                return flying.pop(self._draw(st.integers(0, len(flying) - 1))), self._outcome()
            case Transact(step=step):
                self._starts(step.idx, step.attempt)
                return self._transact(step.idx)
            case Probe(step=step):
                assert self.run.pending_events == []
                return self._draw(ANSWERS)
        return None

    def _outcome(self) -> Outcome:
        outcome: Outcome = self._draw(OUTCOMES)
        return outcome

    def _transact(self, idx: int) -> Outcome:
        outcome: Outcome = self._draw(st.sampled_from([Returned("1"), DOWN]))
        if isinstance(outcome, Returned):
            self.run.record_result(idx, outcome.value)
            append(self.run)
        return outcome

    def _starts(self, idx: int, attempt: int) -> None:
        """Rule 2: no body starts before its start mark is durable; and no attempt starts twice."""
        durable = [event for event in self.run.__dict__["journal"] if getattr(event, "idx", None) == idx]
        assert isinstance(durable[-1], LlmDecided)
        assert durable[-1].attempt == attempt >= 1
        assert (idx, attempt) not in self._started
        self._started.append((idx, attempt))

    def check(self) -> None:
        check_legal("run-7f3a", self.run.__dict__["journal"])
        for step in self.run.state.steps:
            starts = [attempt for idx, attempt in self._started if idx == step.idx]
            assert step.attempt <= (1 if step.tool in ("once", "told") else 2)
            assert len(starts) <= step.attempt
            error = step.error or {}
            if step.status == "failed" and step.tool in ("keyed", "once", "mail"):
                assert error["type"] == "NotApplied"  # an unknown outcome is never shown as a failure
            if error.get("type") == "OutcomeUnknown":
                assert error["applied"] is None


@given(st.data())
def test_wherever_a_worker_dies_no_body_starts_without_its_mark_and_no_unknown_outcome_is_a_failure(
    data: st.DataObject,
) -> None:
    world = World(data.draw)

    for _ in range(4):
        if world.run.state.turns == 0 or world.run.state.open_steps:
            world.live(data.draw(st.integers(1, 3)))
            world.check()
