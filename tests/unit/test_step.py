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
from agent_es.run import AgentRun, check_legal
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
    assert run.state.steps[0].doubt == ("attempt 3: TimeoutError: cut off; nobody can tell whether refund happened")


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
        "attempt 3 of 3 was the last: the process died in it; nobody can tell whether refund happened"
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
        "append step_in_doubt 1 3",
        "append llm_decided 2 1",
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
