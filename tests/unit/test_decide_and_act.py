"""The two halves of a step, driven apart: what comes next is decided, and what was decided is acted on."""

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from agent_es.decider import Finish, Used
from agent_es.envelope import Approval, Budget, Envelope, Usage
from agent_es.errors import BadDecision, KeyReused
from agent_es.events import AnyEvent
from agent_es.journal import JournalEntry
from agent_es.legality import check_legal
from agent_es.run import AgentRun
from agent_es.state import RunState, Status
from agent_es.step import Append, Decide, NextDone, Request, Requests, Start, act, decide
from agent_es.testing import MovableClock
from agent_es.tools import CallTool, Effect, Failed, Outcome, Retry, Returned, Tool, ToolSpec, tool
from agent_es.waits import Sleep

RECEIPT = Returned('"r-1"')
BROKE_OFF = Failed("TimeoutError", "cut off", may_retry=True)


class Refund(AgentRun):
    @tool(effect=Effect.READ, retry=Retry(max_attempts=3, initial=10, jitter=False))
    def search(self, query: str) -> str: ...  # type: ignore[empty-body]

    @tool(effect=Effect.AT_MOST_ONCE)
    def pay(self, order_id: str) -> str: ...  # type: ignore[empty-body]


SEARCH = CallTool("search", {"query": "policy"})
PAY = CallTool("pay", {"order_id": "A"})


class Loop:
    """A run in memory, whose appends succeed, and what was asked for on its behalf."""

    def __init__(self, envelope: Envelope | None = None, tools: Mapping[str, Tool] = Refund.agent_tools) -> None:
        self.clock = MovableClock()
        self.run = Refund.begin("run-7f3a", "Refund ORD-3300", "null", {}, self.clock, envelope)
        self.tools = tools
        self.journal: list[AnyEvent] = []
        self.asked: list[str] = []
        self.refused: list[Exception] = []
        """What the next appends raise."""
        self._append()

    @property
    def state(self) -> RunState:
        return self.run.recorded

    def decide(self, decision: Any) -> list[str]:
        return self._drive(decide(self.run, self.tools), decision)

    def act(self, *ends: tuple[int, Outcome], only: Collection[int] | None = None, at_once: int = 8) -> list[str]:
        return self._drive(self.acting(only, at_once), ends=ends)

    def acting(self, only: Collection[int] | None = None, at_once: int = 8) -> Requests:
        return act(self.run, self.tools, at_once=at_once, draw=lambda: 0.0, only=only)

    def until_done(self, requests: Requests, answer: Any = None) -> Request | None:
        """Drive a generator until it waits for a body, or ends."""
        while True:
            try:
                request: Request = requests.send(answer)
            except StopIteration:
                return None
            if isinstance(request, NextDone):
                return request
            answer = self._perform(request, None)

    def _drive(self, requests: Requests, decision: Any = None, ends: Iterable[tuple[int, Outcome]] = ()) -> list[str]:
        outcomes, before, answer = iter(ends), len(self.asked), None
        error: Exception | None = None
        while True:
            try:
                request: Request = requests.send(answer) if error is None else requests.throw(error)
            except StopIteration:
                break
            answer, error = None, None
            try:
                answer = next(outcomes) if isinstance(request, NextDone) else self._perform(request, decision)
            except KeyReused as reused:
                error = reused
        check_legal("run-7f3a", self.journal)
        return self.asked[before:]

    def _perform(self, request: Request, decision: Any) -> Any:
        match request:
            case Decide():
                self.asked.append("decide")
                return decision
            case Append():
                if self.refused:
                    raise self.refused.pop()
                self.asked.append("append " + ", ".join(map(brief, self._append())))
            case Start(step=step):
                self.asked.append(f"start {step.idx} attempt {step.attempt}")
        return None

    def _append(self) -> list[AnyEvent]:
        events: list[AnyEvent] = list(self.run.collect_events())  # type: ignore[arg-type]
        self.journal += events
        return events


def brief(event: Any) -> str:
    entry = JournalEntry("run-7f3a", event)
    return " ".join(
        str(it) for it in (entry.type, entry.data.get("idx"), entry.data.get("attempt")) if it is not None
    )


def test_a_decision_is_recorded_and_starts_nothing() -> None:
    loop = Loop()

    asked = loop.decide([SEARCH, PAY])

    assert asked == ["decide", "append llm_decided 0 0, llm_decided 1 0"]
    assert [step.status for step in loop.state.open_steps] == ["queued", "queued"]


def test_what_was_decided_is_marked_and_started_and_nobody_is_asked() -> None:
    loop = Loop()
    loop.decide([SEARCH, PAY])

    asked = loop.act((1, RECEIPT), (0, Returned('"30 days"')))

    assert asked == [
        "append llm_decided 0 1, llm_decided 1 1",
        "start 0 attempt 1",
        "start 1 attempt 1",
        "append tool_result 1 1",
        "append tool_result 0 1",
    ]
    assert loop.state.turns == 1


def test_no_more_bodies_than_allowed_are_started_at_once() -> None:
    loop = Loop()
    loop.decide([SEARCH, PAY])

    asked = loop.act((0, Returned('"30 days"')), (1, RECEIPT), at_once=1)

    assert asked.index("start 1 attempt 1") > asked.index("append tool_result 0 1")


def test_where_steps_are_open_nobody_is_asked() -> None:
    loop = Loop()
    loop.decide(SEARCH)

    assert loop.decide(PAY) == []


def test_where_nothing_is_open_there_is_nothing_to_act_on() -> None:
    assert Loop().act() == []


def test_a_run_that_is_over_is_neither_asked_about_nor_acted_on() -> None:
    loop = Loop()
    loop.decide(Finish("done"))

    assert (loop.decide(SEARCH), loop.act()) == ([], [])
    assert loop.state.answer == "done"


def test_a_run_that_a_person_paused_is_neither_asked_about_nor_acted_on() -> None:
    loop = Loop()
    loop.run.record_paused("ann", "wait")

    assert (loop.decide(SEARCH), loop.act()) == ([], [])


def test_an_at_most_once_step_that_was_decided_and_not_started_is_in_no_doubt() -> None:
    loop = Loop()
    loop.decide(PAY)
    loop.run = Refund.of(loop.state, loop.clock)  # another process finds it

    asked = loop.act((0, RECEIPT))

    assert asked == ["append llm_decided 0 1", "start 0 attempt 1", "append tool_result 0 1"]


def test_an_at_most_once_step_that_was_started_is_in_doubt() -> None:
    loop = Loop()
    loop.decide(PAY)
    loop.until_done(loop.acting())
    loop.run = Refund.of(loop.state, loop.clock)  # the process died in the body

    asked = loop.act()

    assert asked == ["append step_in_doubt 0 1"]


def test_a_bad_decision_is_raised_and_leaves_nothing() -> None:
    loop = Loop()

    with pytest.raises(BadDecision, match="the decider returned 'nonsense'"):
        loop.decide("nonsense")

    assert (loop.state.version, loop.run.pending_events) == (1, [])


def test_what_asking_takes_is_set_aside_before_and_settled_with_the_decision() -> None:
    loop = Loop(Envelope(budget=Budget(tokens=1000, each=Usage(tokens=100))))

    asked = loop.decide(Used(SEARCH, tokens=40))

    assert asked == ["append budget_reserved", "decide", "append usage_recorded, llm_decided 0 0"]
    assert loop.state.tokens == 40


def test_a_run_whose_budget_is_spent_is_parked_and_nobody_is_asked() -> None:
    loop = Loop(Envelope(budget=Budget(turns=1)))
    loop.decide(SEARCH)
    loop.act((0, Returned('"30 days"')))

    asked = loop.decide(PAY)

    assert asked == ["append parked"]


def test_a_call_that_the_envelope_refuses_is_over_when_it_is_decided() -> None:
    loop = Loop(Envelope(tools=("search",)))

    asked = loop.decide([SEARCH, PAY])

    assert asked == ["decide", "append llm_decided 0 0, llm_decided 1 0, step_refused 1"]
    assert loop.act((0, Returned('"30 days"')))[1:] == ["start 0 attempt 1", "append tool_result 0 1"]


def test_a_call_that_a_person_must_say_yes_to_is_left_alone_until_then() -> None:
    loop = Loop(Envelope(needs_approval=(Approval(call="pay", by=("dana",)),)))

    decided = loop.decide([SEARCH, PAY])
    acted = loop.act((0, Returned('"30 days"')))
    loop.run.record_granted(1, "dana")
    approved = loop.act((1, RECEIPT))

    assert decided == ["decide", "append llm_decided 0 0, llm_decided 1 0, approval_requested 1"]
    assert "start 0 attempt 1" in acted
    assert "start 1 attempt 1" not in acted
    assert approved[-2:] == ["start 1 attempt 1", "append tool_result 1 1"]


def test_a_key_that_another_step_holds_fails_its_call_when_it_is_decided() -> None:
    loop = Loop()
    loop.refused = [KeyReused("run-1 has it", idx=0)]

    loop.decide([PAY, SEARCH])

    (step,) = loop.state.open_steps
    assert (step.tool, loop.state.steps[0].error) == (
        "search",
        {"type": "KeyReused", "message": "run-1 has it", "applied": False},
    )


def test_a_wait_that_was_decided_ends_when_it_is_acted_on_in_time() -> None:
    loop = Loop()

    decided = loop.decide(Sleep(timedelta(minutes=5)))
    acted = loop.act()

    assert decided == ["decide", "append llm_decided 0 0, wait_began 0"]
    assert acted == ["append wait_ended 0"]


def test_in_a_run_that_undoes_its_effects_the_undoing_is_decided_and_nobody_is_asked() -> None:
    def release(order_id: str) -> str: ...  # type: ignore[empty-body]
    def reserve(order_id: str) -> str: ...  # type: ignore[empty-body]

    undo = tool(effect=Effect.IDEMPOTENT)(release)
    loop = Loop(tools={"release": undo, "reserve": tool(effect=Effect.IDEMPOTENT, compensate="release")(reserve)})
    loop.decide(CallTool("reserve", {"order_id": "A"}))
    loop.act((0, RECEIPT))
    loop.run.record_undoing("ann", "a mistake")

    decided = loop.decide(SEARCH)
    acted = loop.act((1, RECEIPT))
    ended = loop.decide(SEARCH)

    assert decided == ["append compensation_began, llm_decided 1 0"]
    assert acted == ["append llm_decided 1 1", "start 1 attempt 1", "append tool_result 1 1"]
    assert (ended, loop.state.status) == (["append compensation_ended"], Status.CANCELLED)


def test_who_is_asked_may_be_somebody_else_than_the_runs_decider() -> None:
    class Another:
        def decide(self, run: RunState, tools: Iterable[ToolSpec], /) -> Finish: ...  # type: ignore[empty-body]

    loop, another = Loop(), Another()

    request = next(decide(loop.run, loop.tools, another))

    assert isinstance(request, Decide)
    assert request.decider is another


# One step at a time: several generators move one run.


def test_a_generator_touches_no_step_but_its_own() -> None:
    loop = Loop()
    loop.decide([SEARCH, PAY])

    asked = loop.act((1, RECEIPT), only={1})

    assert asked == ["append llm_decided 1 1", "start 1 attempt 1", "append tool_result 1 1"]
    assert [step.status for step in loop.state.steps] == ["queued", "done"]


def test_two_generators_take_turns_where_they_wait_for_a_body() -> None:
    loop = Loop()
    loop.decide([SEARCH, PAY])
    first, second = loop.acting({0}), loop.acting({1})

    loop.until_done(first)
    loop.until_done(second)
    loop.until_done(second, (1, RECEIPT))
    loop.until_done(first, (0, Returned('"30 days"')))

    assert loop.asked[2:] == [
        "append llm_decided 0 1",
        "start 0 attempt 1",
        "append llm_decided 1 1",
        "start 1 attempt 1",
        "append tool_result 1 1",
        "append tool_result 0 1",
    ]
    check_legal("run-7f3a", loop.journal)


@pytest.mark.parametrize("started", [False, True], ids=["queued", "started"])
def test_the_run_does_not_rest_while_a_step_of_another_generator_can_go_on(started: bool) -> None:  # noqa: FBT001
    loop = Loop()
    loop.decide([SEARCH, PAY])
    other = loop.acting({1})
    if started:
        loop.until_done(other)

    asked = loop.act((0, BROKE_OFF), only={0})

    assert asked[-1] == "append tool_failed 0 1"
    assert (loop.state.rests_until, loop.state.status) == (None, Status.RUNNING)


def test_the_run_rests_once_the_last_generator_has_nothing_to_go_on_with() -> None:
    loop = Loop()
    loop.decide([SEARCH, PAY])
    loop.act((0, BROKE_OFF), only={0})

    asked = loop.act((1, RECEIPT), only={1})

    assert asked[-1] == "append wait_began" or asked[-1].endswith(", wait_began")
    assert loop.state.rests_until == loop.state.steps[0].retry_at


def test_a_retry_that_is_not_due_waits_though_another_step_goes_on() -> None:
    loop = Loop()
    loop.decide([SEARCH, PAY])
    loop.act((0, BROKE_OFF), only={0})
    loop.until_done(loop.acting({1}))

    early = loop.act(only={0})
    loop.clock.sleep(10)
    in_time = loop.act((0, Returned('"30 days"')), only={0})

    assert early == []
    assert in_time == ["append llm_decided 0 2", "start 0 attempt 2", "append tool_result 0 2"]


def test_the_rest_of_a_run_ends_for_the_step_that_is_due() -> None:
    loop = Loop()
    loop.decide([SEARCH, PAY])
    loop.act((0, BROKE_OFF), only={0})
    loop.act((1, RECEIPT), only={1})

    other = loop.act(only={1})
    due = loop.act((0, Returned('"30 days"')), only={0})

    assert other == []
    assert due[0] == "append wait_ended"
    assert due[-1] == "append tool_result 0 2"


def test_waits_and_yeses_of_other_steps_are_left_alone() -> None:
    loop = Loop(Envelope(needs_approval=(Approval(call="pay", by=("dana",), within=timedelta(minutes=1)),)))
    loop.decide([SEARCH, Sleep(timedelta(minutes=1)), PAY])
    loop.clock.sleep(120)

    loop.act((0, Returned('"30 days"')), only={0})

    assert [step.status for step in loop.state.steps] == ["done", "waiting", "gated"]


def test_a_step_of_another_generator_that_fits_no_tool_parks_nothing() -> None:
    loop = Loop()
    loop.decide([SEARCH, PAY])
    loop.tools = {"search": Refund.agent_tools["search"]}

    asked = loop.act((0, Returned('"30 days"')), only={0})
    parked = loop.act(only={1})

    assert asked[-1] == "append tool_result 0 1"
    assert parked == ["append parked"]


def test_what_was_under_way_when_the_run_was_cancelled_is_recorded_and_not_tried_again() -> None:
    loop = Loop()
    loop.decide([SEARCH, PAY])
    first, second = loop.acting({0}), loop.acting({1})
    loop.until_done(first)
    loop.until_done(second)
    loop.run.record_cancelled("ann", "no need")

    loop.until_done(second, (1, RECEIPT))
    loop.until_done(first, (0, BROKE_OFF))

    assert loop.asked[-1] == "append cancelled, tool_result 1 1"
    check_legal("run-7f3a", loop.journal)
