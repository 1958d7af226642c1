"""The model that is strict about its history: what it is sent, what it refuses, and that runs never send that."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Fail,
    Finish,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    tool,
)
from agent_es.errors import BadDecision
from agent_es.testing import PaymentProvider, Scenario, survives_every_crash
from agent_es.testing.model import HistoryRule, MalformedHistory, StrictModel, check_messages, messages_of

Play = Callable[..., RunState]


class Clerk(AgentRun):
    """Has a tool for each way that a call can end."""

    @tool(effect=Effect.READ)
    def look_up(self, query: str) -> dict[str, str]:
        """Look something up."""
        return {"query": query}

    @tool(effect=Effect.READ)
    def fail(self) -> str:
        raise LookupError("nothing there")

    @tool(effect=Effect.AT_MOST_ONCE)
    def vanish(self) -> str:
        raise TimeoutError("no answer")

    @tool(effect=Effect.AT_MOST_ONCE, on_doubt="tell")
    def vanish_and_say_so(self) -> str:
        raise TimeoutError("no answer")

    @tool(effect=Effect.AT_MOST_ONCE, on_doubt="skip")
    def vanish_unnoticed(self) -> str | None:
        raise TimeoutError("no answer")

    @tool(effect=Effect.IDEMPOTENT, compensate="take_back")
    def refund(self, ctx: ToolContext[PaymentProvider], order_id: str) -> dict[str, str]:
        return ctx.deps.refund(order_id, Decimal(10), key=ctx.idempotency_key)

    @tool(effect=Effect.IDEMPOTENT)
    def take_back(self, order_id: str) -> str:
        return f"{order_id} has no refund any more"


TOOLS = [each.spec for each in Clerk.agent_tools.values()]
A = CallTool("look_up", {"query": "a"})
B = CallTool("look_up", {"query": "b"})
REFUND = CallTool("refund", {"order_id": "ORD-3300"})

GOAL = {"role": "user", "content": "refund"}


def asked(*ids: str, name: str = "look_up", arguments: str = "{}") -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": id_, "name": name, "arguments": arguments} for id_ in ids]}


def answer(id_: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": id_, "content": "null"}


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run the clerk by a model, as run-1, on one file."""

    def run(model: StrictModel, **options: Any) -> RunState:
        with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store:
            runner = Runner(store, model, deps=PaymentProvider(tmp_path / "provider.db"), **options)
            return runner.run(Clerk, run_id="run-1", goal="refund")

    return run


def test_a_run_becomes_its_goal_and_for_each_turn_the_calls_and_then_their_answers(play: Play) -> None:
    state = play(StrictModel([[A, B], CallTool("fail"), Finish("done")]))

    assert messages_of(state) == [
        {"role": "user", "content": "refund"},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "call-0", "name": "look_up", "arguments": '{"query":"a"}'},
                {"id": "call-1", "name": "look_up", "arguments": '{"query":"b"}'},
            ],
        },
        {"role": "tool", "tool_call_id": "call-0", "content": '{"query":"a"}'},
        {"role": "tool", "tool_call_id": "call-1", "content": '{"query":"b"}'},
        {"role": "assistant", "tool_calls": [{"id": "call-2", "name": "fail", "arguments": "{}"}]},
        {
            "role": "tool",
            "tool_call_id": "call-2",
            "content": '{"applied":false,"message":"nothing there","type":"LookupError"}',
        },
    ]


def test_each_request_holds_the_messages_and_the_tools_as_canonical_json(play: Play) -> None:
    model = StrictModel([A, Finish("done")])

    state = play(model)

    first, second = map(json.loads, model.requests)
    assert first["messages"] == [GOAL]
    assert second["messages"] == messages_of(state)
    assert first["tools"] == second["tools"]
    offered = {"name": "look_up", "description": "Look something up.", "parameters": TOOLS[0].parameters}
    assert first["tools"][0] == offered
    assert model.requests == [
        json.dumps(request, sort_keys=True, separators=(",", ":")) for request in (first, second)
    ]


@pytest.mark.parametrize(
    ("called", "told"),
    [
        ("fail", '"type":"LookupError"'),
        ("vanish_and_say_so", '"type":"OutcomeUnknown"'),
        ("vanish_unnoticed", "null"),
    ],
)
def test_a_failure_an_unknown_outcome_and_a_result_that_was_skipped_are_answers(
    called: str, told: str, play: Play
) -> None:
    model = StrictModel([CallTool(called), A, Finish("done")])

    state = play(model)

    assert state.answer == "done"
    assert told in json.loads(model.requests[1])["messages"][-1]["content"]


def test_a_doubt_is_the_answer_to_its_call(play: Play) -> None:
    state = play(StrictModel([CallTool("vanish")]))

    check_messages(messages_of(state), TOOLS)

    assert state.waiting_for == "doubt"
    assert "nobody can tell whether vanish happened" in messages_of(state)[-1]["content"]


def test_a_call_that_is_still_open_has_no_answer_and_nothing_can_be_asked_yet(tmp_path: Path) -> None:
    seen: list[RunState] = []

    class Curious(AgentRun):
        @tool(effect=Effect.READ)
        def look(self) -> None:
            seen.append(self.state)

    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        Runner(store, StrictModel([CallTool("look"), Finish("done")])).run(Curious, goal="refund")

    with pytest.raises(MalformedHistory, match="the request ends, and call-0 has no answer"):
        check_messages(messages_of(seen[0]), [each.spec for each in Curious.agent_tools.values()])


def test_the_ids_that_a_model_gives_its_calls_may_repeat_or_be_empty(play: Play) -> None:
    odd = [CallTool("look_up", {"query": "a"}, call_id=call_id) for call_id in ("", "", "call_1", "call_1")]
    model = StrictModel([odd[:2], odd[2], odd[3], Finish("done")])

    state = play(model)

    assert state.answer == "done"
    assert len(model.requests) == 4


def test_arguments_count_as_what_the_model_said_however_python_spells_them(play: Play) -> None:
    class Carrier(str):
        __slots__ = ()

    model = StrictModel([CallTool("look_up", {Carrier("query"): Carrier("cut \ud83d")}), Finish("done")])

    assert play(model).answer == "done"


@pytest.mark.parametrize(
    ("messages", "rule", "where"),
    [
        ([], HistoryRule.OPENING, "message 0"),
        ([asked("c1"), answer("c1")], HistoryRule.OPENING, "message 0"),
        ([GOAL, {"role": "system", "content": "be good"}], HistoryRule.SHAPE, "message 1"),
        ([GOAL, {"role": "assistant", "tool_calls": []}], HistoryRule.SHAPE, "message 1"),
        ([GOAL, {"role": "assistant", "content": "hello", "tool_calls": []}], HistoryRule.SHAPE, "message 1"),
        ([GOAL, {"role": "assistant", "tool_calls": ["look_up"]}], HistoryRule.SHAPE, "message 1"),
        ([{"role": "user", "content": None}], HistoryRule.SHAPE, "message 0"),
        ([GOAL, asked("c1"), {"role": "tool", "tool_call_id": "c1"}], HistoryRule.SHAPE, "message 2"),
        ([GOAL, asked(""), answer("")], HistoryRule.IDS, "message 1"),
        ([GOAL, asked("c1", "c1"), answer("c1"), answer("c1")], HistoryRule.IDS, "message 1"),
        ([GOAL, asked("c1"), answer("c1"), asked("c1"), answer("c1")], HistoryRule.IDS, "message 3"),
        ([GOAL, asked("c1", arguments='{"command": "ls'), answer("c1")], HistoryRule.ARGUMENTS, "message 1"),
        ([GOAL, asked("c1", arguments="[1]"), answer("c1")], HistoryRule.ARGUMENTS, "message 1"),
        ([GOAL, asked("c1", name="look_down"), answer("c1")], HistoryRule.OFFERED, "message 1"),
        ([GOAL, asked("c1")], HistoryRule.ANSWERED, "message 1"),
        ([GOAL, asked("c1", "c2"), answer("c1")], HistoryRule.ANSWERED, "message 2"),
        ([GOAL, asked("c1", "c2"), answer("c2"), answer("c1")], HistoryRule.ANSWERED, "message 2"),
        ([GOAL, asked("c1", "c2"), answer("c1"), answer("c1")], HistoryRule.ANSWERED, "message 3"),
        ([GOAL, asked("c1", "c2"), answer("c1"), GOAL, answer("c2")], HistoryRule.ANSWERED, "message 3"),
        ([GOAL, asked("c1"), asked("c2"), answer("c1"), answer("c2")], HistoryRule.ANSWERED, "message 2"),
        ([GOAL, answer("c1")], HistoryRule.CALLED, "message 1"),
        ([GOAL, asked("c1"), answer("c2")], HistoryRule.CALLED, "message 2"),
        ([GOAL, {"role": "assistant", "content": "hello"}], HistoryRule.ENDING, "message 1"),
    ],
)
def test_a_history_that_a_chat_api_would_refuse_is_refused_and_says_which_rule_broke_and_where(
    messages: list[dict[str, Any]], rule: HistoryRule, where: str
) -> None:
    with pytest.raises(MalformedHistory) as refused:
        check_messages(messages, TOOLS)

    assert (refused.value.rule, refused.value.where) == (rule, where)
    assert str(refused.value).startswith(f"{where}: ")
    assert str(refused.value).endswith(str(rule))


def test_what_was_said_in_between_is_no_fault_of_a_history() -> None:
    check_messages([GOAL, asked("c1"), answer("c1"), {"role": "assistant", "content": "and?"}, GOAL], TOOLS)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A well-formed history, in which something is called."""
    messages: list[dict[str, Any]] = [GOAL]
    made = 0
    for calls in draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)):
        ids = [f"call-{n}" for n in range(made, made + calls)]
        messages += [asked(*ids), *map(answer, ids)]
        made += calls
    return messages


@given(histories())
def test_a_well_formed_history_is_taken(messages: list[dict[str, Any]]) -> None:
    check_messages(messages, TOOLS)


@given(histories(), st.data())
def test_a_history_with_a_message_too_few_or_too_many_or_out_of_place_is_refused(
    messages: list[dict[str, Any]], data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(messages) - 1))
    message = messages.pop(at)
    broken = [
        messages,
        [*messages[:at], message, message, *messages[at:]],
        *([*messages[:to], message, *messages[to:]] for to in range(len(messages) + 1) if to != at),
    ]

    for history in broken:
        with pytest.raises(MalformedHistory):
            check_messages(history, TOOLS)


@pytest.mark.parametrize(
    ("other", "where"),
    [
        ([B, Finish("done")], "turn 0"),
        ([CallTool("fail"), Finish("done")], "turn 0"),
        ([[A, A], Finish("done")], "turn 0"),
        ([Finish("done")], "turn 0"),
        ([], "turn 0"),
    ],
)
def test_a_history_that_this_model_did_not_say_is_refused(other: list[Decision], where: str, play: Play) -> None:
    state = play(StrictModel([A, Finish("done")]))

    with pytest.raises(MalformedHistory, match="this model made") as refused:
        StrictModel(other).decide(state, TOOLS)

    assert (refused.value.rule, refused.value.where) == (HistoryRule.SAID, where)


def test_a_run_that_goes_on_under_another_script_stops_before_anything_is_recorded(
    play: Play, tmp_path: Path
) -> None:
    with pytest.raises(BadDecision):
        play(StrictModel([A, B]))

    with pytest.raises(MalformedHistory) as refused:
        play(StrictModel([A, A, Finish("done")]))

    assert refused.value.where == "turn 1"
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        assert (store.load("run-1").turns, store.load("run-1").status) == (2, Status.RUNNING)


def test_a_call_of_a_tool_that_nobody_offers_is_refused_when_it_comes_back(play: Play) -> None:
    model = StrictModel([CallTool("look_down"), Finish("done")])

    with pytest.raises(MalformedHistory) as refused:
        play(model)

    assert (refused.value.rule, len(model.requests)) == (HistoryRule.OFFERED, 2)


def test_what_the_runner_undid_is_in_the_history_and_the_model_need_not_have_said_it(
    play: Play, tmp_path: Path
) -> None:
    play(StrictModel([REFUND, Finish("refunded")]))
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        state = Runner(store, deps=PaymentProvider(tmp_path / "provider.db"), agents=[Clerk]).compensate("run-1")

    said = StrictModel([REFUND, Fail("nobody asks"), Finish("refunded")]).decide(state, TOOLS)

    assert said == Finish("refunded")
    assert [message["tool_calls"][0]["name"] for message in messages_of(state)[1::2]] == ["refund", "take_back"]


@pytest.mark.crash
def test_every_life_of_a_run_sends_the_same_requests_to_the_letter() -> None:
    model = StrictModel([[A, REFUND, B], [CallTool("fail"), REFUND], REFUND, Finish("refunded")])
    scenario = Scenario(
        agent=Clerk, decider=lambda: model, world=lambda folder: PaymentProvider(folder / "provider.db")
    )

    report = survives_every_crash(scenario)

    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)
    assert len(model.requests) > report.runs * 4  # a decision that died before it was durable is asked for again
    assert len({*model.requests}) == 4
