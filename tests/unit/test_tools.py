"""Tools: what may be declared, what is shown to a decider, and what a call says happened."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from agent_es.errors import BadArguments, BadTool, NotApplied, OutcomeUnknown
from agent_es.run import AgentRun
from agent_es.state import RunState
from agent_es.tools import CallTool, Effect, Failed, Retry, Returned, Tool, ToolContext, Unknown, tool

READ = tool(effect=Effect.READ)
IDEMPOTENT = tool(effect=Effect.IDEMPOTENT)


@dataclass(frozen=True)
class Gateway:
    """What the tools below depend on."""

    name: str


def search(query: str, limit: int = 3) -> str:
    """Search the policies.

    Newest first.
    """
    return f"{limit} policies on {query}"


def refund(ctx: ToolContext[Gateway], order_id: str, amount: Decimal) -> tuple[str, Decimal, str | None]:
    return f"{ctx.deps.name} refunds {order_id}", amount, ctx.idempotency_key


CONTEXT = ToolContext(Gateway("acme"), run_id="run-7f3a", idx=1, attempt=2, idempotency_key="ORD-3300:refund:180.00")


# Declaring one.


def test_a_tool_without_an_effect_is_told_the_five_there_are() -> None:
    declare = tool()

    with pytest.raises(
        BadTool, match=r"tool refund: .*READ, .*IDEMPOTENT, .*TRANSACTIONAL, .*PROBED, .*AT_MOST_ONCE"
    ):
        declare(refund)


def test_an_effect_may_be_named_by_its_word() -> None:
    made = tool(effect="idempotent")(refund)

    assert made.effect is Effect.IDEMPOTENT


def test_an_effect_that_is_none_of_the_five_is_refused() -> None:
    declare = tool(effect="harmless")  # type: ignore[arg-type]

    with pytest.raises(BadTool, match="tool refund: effect='harmless' is none of"):
        declare(refund)


@pytest.mark.parametrize("effect", [Effect.TRANSACTIONAL, Effect.PROBED, Effect.AT_MOST_ONCE])
def test_an_effect_that_this_version_cannot_keep_is_refused(effect: Any) -> None:
    declare = tool(effect=effect)

    with pytest.raises(BadTool, match="tool refund: this version keeps the effects read, idempotent only"):
        declare(refund)


def test_a_read_tool_has_no_key() -> None:
    declare = tool(effect=Effect.READ, key="{query}")

    with pytest.raises(BadTool, match="tool search: a READ tool has no effect to key"):
        declare(search)


@pytest.mark.parametrize("key", ["{order}:refund", "{ctx}:refund"])
def test_a_key_names_arguments_only(key: str) -> None:
    declare = tool(effect=Effect.IDEMPOTENT, key=key)

    with pytest.raises(BadTool, match=r"tool refund: .* which is no argument; use amount, idx, order_id"):
        declare(refund)


@pytest.mark.parametrize("key", ["refund", ""])
def test_a_key_that_names_no_argument_would_be_one_key_for_all(key: str) -> None:
    declare = tool(effect=Effect.IDEMPOTENT, key=key)

    with pytest.raises(BadTool, match=r"tool refund: .*names no argument: one key for all"):
        declare(refund)


def test_a_key_template_that_cannot_be_read_is_an_error_of_the_declaration() -> None:
    declare = tool(effect=Effect.IDEMPOTENT, key="{order_id")

    with pytest.raises(BadTool, match="refund"):
        declare(refund)


def takes_any_number(*order_ids: str) -> None: ...


def takes_any_name(**options: str) -> None: ...


def takes_a_position(order_id: str, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "parameter"),
    [
        (takes_any_number, r"\*order_ids: str"),
        (takes_any_name, r"\*\*options: str"),
        (takes_a_position, "order_id: str"),
    ],
)
def test_every_argument_has_a_name_of_its_own(function: Callable[..., None], parameter: str) -> None:
    with pytest.raises(BadTool, match=f"tool {function.__name__}: {parameter} must be an argument with a name"):
        READ(function)


def test_an_annotation_that_names_nothing_is_an_error_of_the_declaration() -> None:
    def find(order: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(BadTool, match="tool find: an annotation cannot be resolved: name 'Nowhere' is not defined"):
        READ(find)


def takes_a_thread(thread: threading.Thread) -> None: ...


def gives_a_thread() -> threading.Thread: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("function", [takes_a_thread, gives_a_thread])
def test_an_annotation_without_a_json_form_is_an_error_of_the_declaration(function: Callable[..., Any]) -> None:
    with pytest.raises(BadTool, match=f"tool {function.__name__}: an annotation has no JSON form"):
        READ(function)


@pytest.mark.parametrize("name", ["look up", "1st", "a-b", "x" * 65])
def test_a_name_is_an_identifier_of_at_most_64_characters(name: str) -> None:
    declare = tool(effect=Effect.READ, name=name)

    with pytest.raises(BadTool, match=f"tool '{name}': a name is an identifier of at most 64 characters"):
        declare(search)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(BadTool, match="tool '<lambda>': a name is an identifier"):
        READ(lambda: None)

    assert tool(effect=Effect.READ, name="nothing")(lambda: None).spec.name == "nothing"


@pytest.mark.parametrize("attempts", [0, -1])
def test_a_body_must_be_allowed_to_start_once(attempts: int) -> None:
    with pytest.raises(BadTool, match=rf"Retry\(max_attempts={attempts}\)"):
        Retry(max_attempts=attempts)


def test_an_annotation_may_name_what_stands_around_the_declaration() -> None:
    class Parcel(BaseModel):
        order_id: str

    @tool(effect=Effect.READ)
    def find(order_id: str) -> "Parcel": ...  # type: ignore[empty-body]

    assert find.result_of('{"order_id":"ORD-3300"}') == Parcel(order_id="ORD-3300")


# What a decider sees.


def test_a_decider_sees_name_docstring_schema_and_effect() -> None:
    spec = READ(search).spec

    assert (spec.name, spec.effect) == ("search", Effect.READ)
    assert spec.description == "Search the policies.\n\nNewest first."
    assert spec.parameters["properties"] == {
        "query": {"title": "Query", "type": "string"},
        "limit": {"title": "Limit", "type": "integer"},
    }
    assert spec.parameters["required"] == ["query"]
    assert spec.parameters["additionalProperties"] is False


def plain(ctx: ToolContext, query: str) -> None: ...


def by_another_name(query: str, *, injected: ToolContext[Gateway]) -> None: ...


def maybe(query: str, ctx: ToolContext[Gateway] | None = None) -> None: ...


class Searching(AgentRun):
    @tool(effect=Effect.READ)
    def method(self, ctx: ToolContext[Gateway], query: str) -> tuple[str, str]:
        return self.state.run_id, f"{ctx.deps.name} looks for {query}"


@pytest.mark.parametrize("made", [READ(plain), READ(by_another_name), READ(maybe), Searching.method], ids=str)
def test_the_context_and_self_are_injected_and_no_decider_sees_them(made: Tool) -> None:
    assert set(made.spec.parameters["properties"]) == {"query"}
    with pytest.raises(BadArguments, match="Extra inputs are not permitted"):
        made.call(query="refunds", ctx={"deps": None, "run_id": "forged", "idx": 0, "attempt": 1})


# Deciding to call one.


def test_a_decision_to_call_is_checked_and_holds_json() -> None:
    made = IDEMPOTENT(refund)

    decision = made.call(order_id="ORD-3300", amount=Decimal("180.00"))

    assert decision == CallTool("refund", {"order_id": "ORD-3300", "amount": "180.00"}, call_id=None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"order_id": "ORD-3300"}, "refund: amount: Field required"),
        ({"order_id": "ORD-3300", "amount": "much"}, "refund: amount: Input should be a valid decimal"),
        ({"order_id": 3300, "amount": 1}, "refund: order_id: Input should be a valid string"),
        ({"order_id": "ORD-3300", "amount": 1, "to": "me"}, "refund: to: Extra inputs are not permitted"),
        ({}, "order_id: Field required; amount: Field required"),
    ],
)
def test_a_decision_with_arguments_that_do_not_fit_says_what_is_wrong_with_each(
    arguments: dict[str, Any], says: str
) -> None:
    made = IDEMPOTENT(refund)

    with pytest.raises(BadArguments, match=says):
        made.call(**arguments)


class Size(Enum):
    SMALL = 1


class Order(BaseModel):
    order_id: str
    placed_on: date


class Wired(BaseModel):
    order_id: str = Field(alias="orderId")


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    placed_on: date


@dataclass(frozen=True)
class Line:
    price: Decimal


@pytest.mark.parametrize(
    "value",
    [
        Decimal("180.00"),
        datetime(2026, 7, 5, 10, tzinfo=UTC),
        Size.SMALL,
        Line(Decimal("1.50")),
        b"receipt",
        b"\xff",
        Order(order_id="ORD-3300", placed_on=date(2026, 7, 5)),
        Wired(orderId="ORD-3300"),
        Strict(placed_on=date(2026, 7, 5)),
    ],
    ids=repr,
)
def test_what_a_decision_was_checked_with_is_what_the_body_gets(value: Any) -> None:
    def take(it: Any) -> None: ...

    take.__annotations__["it"] = type(value)
    made = READ(take)

    args = made.call(it=value).args

    assert made.validated(args) == {"it": value}


# Calling one.


def test_the_body_gets_its_arguments_as_annotated_and_its_context() -> None:
    made = IDEMPOTENT(refund)

    body = made.bind(None, CONTEXT, '{"amount":"180.00","order_id":"ORD-3300"}')

    assert body() == ("acme refunds ORD-3300", Decimal("180.00"), "ORD-3300:refund:180.00")


def test_an_argument_that_was_left_out_has_its_default() -> None:
    made = READ(search)

    body = made.bind(None, CONTEXT, '{"query":"refunds"}')

    assert body() == "3 policies on refunds"


def test_a_method_gets_its_run() -> None:
    run = Searching.of(RunState(run_id="run-7f3a"))

    body = Searching.method.bind(run, CONTEXT, '{"query":"refunds"}')

    assert body() == ("run-7f3a", "acme looks for refunds")


def test_a_tool_called_by_hand_is_the_plain_function() -> None:
    run = Searching.of(RunState(run_id="run-7f3a"))

    assert READ(search)("refunds", limit=1) == "1 policies on refunds"
    assert run.method(CONTEXT, "refunds") == ("run-7f3a", "acme looks for refunds")


# Keying one.


def test_a_read_step_has_no_key() -> None:
    assert READ(search).key_for("run-7f3a", 0, '{"query":"refunds"}') is None


def test_without_a_template_the_position_is_the_key() -> None:
    args = '{"amount":"180.00","order_id":"ORD-3300"}'

    assert IDEMPOTENT(refund).key_for("run-7f3a", 1, args) == "run-7f3a:1:refund"


def test_without_a_template_each_step_has_a_key_of_its_own_whatever_its_arguments_are_called() -> None:
    def ship(run_id: str, idx: int, tool: str) -> None: ...

    made = IDEMPOTENT(ship)

    keys = {made.key_for("run-7f3a", idx, '{"idx":7,"run_id":"r","tool":"t"}') for idx in (0, 1)}

    assert len(keys) == 2


@pytest.mark.parametrize("amount", ["180", '"180.0"', "180.00"])
def test_arguments_that_mean_the_same_make_the_same_key(amount: str) -> None:
    made = tool(effect=Effect.IDEMPOTENT, key="{order_id}:refund:{amount:.2f}")(refund)

    key = made.key_for("run-7f3a", 1, f'{{"amount":{amount},"order_id":"ORD-3300"}}')

    assert key == "ORD-3300:refund:180.00"


def test_a_default_stands_in_the_key_as_if_it_had_been_given() -> None:
    def remind(order_id: str, day: int = 3) -> None: ...

    made = tool(effect=Effect.IDEMPOTENT, key="{order_id}:{day}")(remind)

    assert made.key_for("run-7f3a", 1, '{"order_id":"A"}') == "A:3"
    assert made.key_for("run-7f3a", 1, '{"day":3,"order_id":"A"}') == "A:3"


def test_arguments_that_the_template_cannot_write_are_bad_arguments() -> None:
    def pay(amount: float | None = None) -> None: ...

    made = tool(effect=Effect.IDEMPOTENT, key="{amount:.2f}")(pay)

    with pytest.raises(BadArguments, match="pay"):
        made.key_for("run-7f3a", 0, "{}")


# What came of it.


def test_what_a_body_returns_is_recorded_as_annotated() -> None:
    def quote() -> Line: ...  # type: ignore[empty-body]

    made = READ(quote)

    outcome = made.returned(Line(Decimal("1.50")))

    assert outcome == Returned('{"price":"1.50"}')
    assert made.result_of(outcome.value) == Line(Decimal("1.50"))


def test_a_result_that_cannot_be_recorded_is_a_failure_that_names_tool_and_type() -> None:
    def wander() -> Any: ...

    outcome = IDEMPOTENT(wander).returned(threading.Lock())

    assert outcome == Failed("NotRecordable", "wander ran, but its result cannot be recorded: lock is not JSON")


def test_a_result_that_is_not_as_annotated_is_a_failure() -> None:
    outcome = READ(search).returned(5)

    assert isinstance(outcome, Failed)
    assert outcome.message.startswith("search ran, but its result cannot be recorded: int does not fit str")


@pytest.mark.parametrize(
    ("declare", "error", "outcome"),
    [
        (READ, ValueError("no"), Failed("ValueError", "no")),
        (READ, TimeoutError("late"), Failed("TimeoutError", "late")),
        (READ, NotApplied("no"), Failed("NotApplied", "no")),
        (IDEMPOTENT, NotApplied("card refused"), Failed("NotApplied", "card refused")),
        (IDEMPOTENT, OutcomeUnknown("cut off"), Unknown("OutcomeUnknown", "cut off")),
        (IDEMPOTENT, TimeoutError("late"), Unknown("TimeoutError", "late")),
        (IDEMPOTENT, ValueError("no"), Unknown("ValueError", "no")),
        (IDEMPOTENT, BadArguments("no"), Unknown("BadArguments", "no")),
    ],
)
def test_what_an_exception_means_depends_on_the_effect(
    declare: Callable[..., Tool], error: Exception, outcome: Failed | Unknown
) -> None:
    made = declare(search)

    assert made.raised(error) == outcome


class Declined(NotApplied):
    """The card was declined."""


def test_a_kind_of_not_applied_of_the_users_own_is_a_failure_under_its_own_name() -> None:
    assert IDEMPOTENT(refund).raised(Declined()) == Failed("Declined", "The card was declined.")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no word")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Mute(), "(its message cannot be read)"),
        (ValueError("x" * 3_000), "x" * 2_000 + "… (3,000 characters)"),
        (ValueError("cut \ud83d"), "cut \ufffd"),
    ],
    ids=["raises", "long", "surrogate"],
)
def test_the_message_of_an_exception_is_made_fit_to_record(error: Exception, message: str) -> None:
    outcome = READ(search).raised(error)

    assert outcome == Failed(type(error).__name__, message)
