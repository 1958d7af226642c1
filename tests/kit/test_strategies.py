"""What the strategies draw: values, calls, plans and schedules that an agent must live with, and that it does."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, Self

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from pydantic import BaseModel, Field, model_validator

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    Status,
    ToolContext,
    tool,
)
from agent_es.errors import BadScenario
from agent_es.testing import Crash, CrashingRunner, PaymentProvider, Scenario, essence, survives_every_crash
from agent_es.testing.model import StrictModel
from agent_es.testing.strategies import DEEP, calls, odd_values, plans, schedules
from agent_es.values import canonical, decode, valid_unicode

FIND = settings(max_examples=2_000, database=None)


class Size(StrEnum):
    SMALL = "S"
    LARGE = "L"


class Line(BaseModel):
    sku: str = Field(min_length=2)
    number: Annotated[int, Field(ge=1, le=9)]


class Clerk(AgentRun):
    """Takes arguments of many kinds."""

    @tool(effect=Effect.READ)
    def give_back(self, value: Any) -> Any:
        return value

    @tool(effect=Effect.READ)
    def order(self, lines: list[Line], size: Size, note: str | None = None) -> int:
        return sum(line.number for line in lines)

    @tool(effect=Effect.READ)
    def search(self, how: Literal["exact", "near"], where: Mapping[str, Any], at: tuple[float, ...]) -> str:
        return how

    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:{amount:.2f}")
    def refund(
        self,
        ctx: ToolContext[PaymentProvider],
        order_id: Annotated[str, Field(pattern="^[A-Z]{3}-[0-9]{4}$")],
        amount: Annotated[Decimal, Field(gt=0, le=500, decimal_places=2)],
    ) -> dict[str, str]:
        return ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)


class Span(BaseModel):
    first: int
    last: int

    @model_validator(mode="after")
    def ends_behind_its_start(self) -> Self:
        if self.last < self.first:
            raise ValueError("it ends before it starts")
        return self


class Librarian(AgentRun):
    """Takes arguments that leave types open, and some that demand more than their types say."""

    @tool(effect=Effect.READ)
    def shelve(
        self,
        thing: object,
        bag: dict,  # type: ignore[type-arg]
        box: list,  # type: ignore[type-arg]
        row: Sequence[Any] | None,
        pair: tuple[Any, int],
        few: Annotated[list[Any], Field(max_length=2)],
        named: Annotated[Any, "a note to the reader"],
    ) -> None:
        pass

    @tool(effect=Effect.READ)
    def weigh(
        self, grams: tuple[float, float, float, float], prices: tuple[Decimal, Decimal, Decimal, Decimal]
    ) -> int:
        return len(grams)

    @tool(effect=Effect.READ)
    def borrow(self, span: Span) -> int:
        return span.last - span.first

    @tool(effect=Effect.IDEMPOTENT, key="{fee:.2f}")
    def fine(self, fee: float | str) -> None:
        pass


class Teller(AgentRun):
    """Gives back what it is given, and pays; a receipt has no number, which would say who of two paid first."""

    @tool(effect=Effect.READ)
    def give_back(self, value: Any) -> Any:
        return value

    @tool(effect=Effect.IDEMPOTENT)
    def pay(self, ctx: ToolContext[PaymentProvider], order_id: str) -> str:
        return ctx.deps.refund(order_id, Decimal(10), key=ctx.idempotency_key)["amount"]


def smallest(strategy: st.SearchStrategy[Any], condition: Callable[[Any], bool] = lambda _: True) -> Any:
    """What a failure shrinks to that happens under a condition."""
    return find(strategy, condition, random=Random(0), settings=FIND)  # noqa: S311  # to reproduce


def drawn(strategy: st.SearchStrategy[Any], condition: Callable[[Any], bool]) -> Any:
    """Something that is drawn and meets a condition; an error where nothing does."""
    return find(strategy, condition, random=Random(0), settings=settings(FIND, phases=[Phase.generate]))  # noqa: S311


def depth(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)
    return 0


def worlds(folder: Path) -> PaymentProvider:
    return PaymentProvider(folder / "provider.db")


@given(odd_values())
def test_an_odd_value_is_json_that_the_journal_holds_and_gives_back(value: Any) -> None:
    text = canonical(value)

    assert canonical(decode(text)) == text
    assert text.encode()
    assert depth(value) <= DEEP + 1  # a leaf may be a tagged mapping


@pytest.mark.parametrize(
    "kind",
    [
        lambda value: value == 0 and str(value) == "-0.0",
        lambda value: isinstance(value, int) and value > 10**308,
        lambda value: isinstance(value, float) and 0 < value < 1e-300,
        lambda value: isinstance(value, str) and valid_unicode(value) != value,
        lambda value: isinstance(value, str) and "\u2028" in value,
        lambda value: isinstance(value, str) and "\0" in value,
        lambda value: isinstance(value, str) and "\u200d" in value,
        lambda value: isinstance(value, str) and value.startswith("2026-"),
        lambda value: isinstance(value, dict) and {"_type_", "_data_"} <= value.keys(),
        lambda value: isinstance(value, dict) and "__class__" in value and len(value) > 1,
        lambda value: isinstance(value, list) and {} in value,
        lambda value: depth(value) == DEEP,
    ],
)
def test_each_kind_that_broke_something_is_drawn(kind: Callable[[Any], bool]) -> None:
    assert kind(drawn(odd_values(), kind))


def test_odd_values_shrink_to_plain_ones() -> None:
    assert smallest(odd_values()) is None
    assert smallest(odd_values(), lambda value: isinstance(value, str)) == ""
    assert smallest(odd_values(), lambda value: isinstance(value, list) and len(value) == 1) == [None]


@pytest.mark.crash
@pytest.mark.parametrize("agent", [Clerk, Librarian])
@given(st.data())
def test_a_call_is_one_that_its_tool_takes_in_the_form_that_a_decider_gives(
    agent: type[AgentRun], data: st.DataObject
) -> None:
    call = data.draw(calls(agent))
    called = agent.agent_tools[call.tool]

    assert called.validated(canonical(call.args)).keys() == call.args.keys()
    assert (called.key_for("run-1", 0, canonical(call.args)) is None) == (called.effect is Effect.READ)
    assert decode(canonical(call.args)) == call.args


def test_each_tool_is_called_and_an_argument_with_a_default_is_given_or_left_out() -> None:
    for name in Clerk.agent_tools:
        assert drawn(calls(Clerk), lambda call, name=name: call.tool == name)
    for given_ in (True, False):
        assert drawn(calls(Clerk), lambda call, is_=given_: call.tool == "order" and ("note" in call.args) is is_)


@pytest.mark.parametrize(
    "name",
    [
        *("thing", "bag", "box", "row", "pair"),
        *(pytest.param(name, marks=pytest.mark.crash) for name in ("few", "named")),
    ],
)
def test_an_argument_whose_type_is_left_open_gets_odd_values(name: str) -> None:
    assert drawn(calls(Librarian), lambda call: depth(call.args.get(name)) > 9)


def test_a_text_is_an_odd_one_too() -> None:
    assert drawn(calls(Teller), lambda call: call.args.get("order_id") == '{"a":1,"a":2}')


@pytest.mark.parametrize("called", Librarian.agent_tools)
def test_what_a_tool_would_refuse_is_seldom_drawn(called: str) -> None:
    class Only(AgentRun):
        pass

    Only.agent_tools = {called: Librarian.agent_tools[called]}

    @given(calls(Only))
    @settings(max_examples=50, database=None)
    def draws(call: CallTool) -> None:
        assert call.tool == called

    draws()  # it fails where too much is filtered out


def test_the_ids_of_calls_are_as_useless_as_those_of_models() -> None:
    for call_id in (None, "", "call_1"):
        assert drawn(calls(Clerk), lambda call, id_=call_id: call.call_id == id_)


def test_annotations_that_only_the_declaration_could_see_are_known() -> None:
    class Local(BaseModel):
        number: int

    class Hidden(AgentRun):
        @tool(effect=Effect.READ)
        def look(self, at: "Local") -> int:
            return at.number

    assert smallest(calls(Hidden)).args == {"at": {"number": 0}}


def test_an_agent_without_tools_cannot_be_called() -> None:
    class Idle(AgentRun):
        pass

    with pytest.raises(BadScenario, match="Idle has no tools to call"):
        calls(Idle)


@given(plans(calls(Clerk), max_turns=2, max_calls=3))
def test_a_plan_is_so_many_turns_of_one_call_or_several_and_an_end(plan: list[Decision]) -> None:
    *turns, end = plan

    assert isinstance(end, Finish)
    assert len(turns) <= 2
    for turn in turns:
        made = [turn] if isinstance(turn, CallTool) else turn
        assert isinstance(made, list)
        assert 1 <= len(made) <= 3
        assert all(isinstance(call, CallTool) for call in made)


def test_plans_have_as_many_turns_and_calls_as_they_may() -> None:
    any_plan = plans(st.just(CallTool("look")), max_turns=4, max_calls=3)

    assert len(drawn(any_plan, lambda plan: len(plan) == 5)) == 5
    assert drawn(any_plan, lambda plan: any(isinstance(turn, list) and len(turn) == 3 for turn in plan))


@pytest.mark.crash
def test_a_plan_shrinks_to_few_turns_of_one_plain_call() -> None:
    assert smallest(plans(calls(Teller))) == [Finish(None)]
    assert smallest(plans(calls(Teller)), lambda plan: len(plan) > 1) == [
        CallTool("give_back", {"value": None}),
        Finish(None),
    ]


@given(schedules(places=9, crashes=2))
def test_a_schedule_is_so_many_places_counted_from_1(schedule: tuple[int, ...]) -> None:
    assert isinstance(schedule, tuple)
    assert len(schedule) <= 2
    assert all(1 <= place <= 9 for place in schedule)


@pytest.mark.parametrize(
    ("fails", "shrunk"),
    [
        (lambda _: True, ()),
        (lambda schedule: len(schedule) > 0, (1,)),
        (lambda schedule: len(schedule) > 1, (1, 1)),
        (lambda schedule: any(place >= 7 for place in schedule), (7,)),
        (lambda schedule: sum(schedule) >= 61, (1, 60)),
        (lambda schedule: 60 in schedule, (60,)),
    ],
)
def test_a_schedule_shrinks_to_few_crashes_and_early_places(
    fails: Callable[[tuple[int, ...]], bool], shrunk: tuple[int, ...]
) -> None:
    assert smallest(schedules(), fails) == shrunk


@pytest.mark.parametrize(
    "beyond", [lambda schedule: max(schedule, default=1) > 60, lambda schedule: len(schedule) > 3]
)
@pytest.mark.crash
def test_by_itself_a_schedule_is_of_three_crashes_in_sixty_places(beyond: Callable[[Any], bool]) -> None:
    with pytest.raises(NoSuchExample):
        drawn(schedules(), beyond)


def live(folder: Path, plan: list[Decision], schedule: tuple[int, ...]) -> RunState:
    """Live through a schedule, each life a new worker."""
    for at in (*schedule, None):
        with RunStore(f"sqlite:///{folder / 'runs.db'}") as store:
            worker = CrashingRunner(store, StrictModel(plan), deps=worlds(folder), at=at)
            try:
                return worker.run(Teller, run_id="run-1", goal="any")
            except Crash:
                continue
    raise AssertionError("the last life ended")


@pytest.mark.crash
@given(plans(calls(Teller)), schedules())
@settings(max_examples=25, deadline=None)
def test_any_plan_comes_to_the_same_under_any_schedule(plan: list[Decision], schedule: tuple[int, ...]) -> None:
    with tempfile.TemporaryDirectory() as calm, tempfile.TemporaryDirectory() as stormy:
        expected = live(Path(calm), plan, ())

        state = live(Path(stormy), plan, schedule)

        assert expected.status is Status.DONE
        assert essence(state) == essence(expected)
        assert sorted(worlds(Path(stormy)).effects()) == sorted(worlds(Path(calm)).effects())


@given(plans(calls(Teller)))
@settings(max_examples=25, deadline=None)
def test_a_run_gives_back_whatever_odd_value_it_is_given(plan: list[Decision]) -> None:
    with tempfile.TemporaryDirectory() as folder, RunStore(f"sqlite:///{folder}/runs.db") as store:
        told = Runner(store, StrictModel(plan), deps=worlds(Path(folder))).run(Teller, run_id="run-1", goal="any")

        state = store.load("run-1")

    assert repr(state) == repr(told)
    assert state.answer_json == canonical(plan[-1].answer)  # type: ignore[union-attr]
    for step in state.steps:
        assert step.status == "done"
        if step.tool == "give_back":
            assert step.value_json == canonical(step.args["value"])


@given(plans(calls(Teller), max_turns=2, max_calls=2))
@settings(max_examples=4, deadline=None)
@pytest.mark.crash
def test_any_plan_survives_every_crash(plan: list[Decision]) -> None:
    scenario = Scenario(agent=Teller, decider=ScriptedDecider(plan), world=worlds)

    report = survives_every_crash(scenario, sample=15)

    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


def test_the_crash_kit_itself_does_not_need_hypothesis() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; import agent_es.testing, agent_es.testing.model"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
