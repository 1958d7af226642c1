"""Tools: what may be declared, what is shown to a decider, and what a call says happened."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Optional
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from agent_es.errors import (
    AgentError,
    BadArguments,
    BadTool,
    EffectError,
    KeyMismatch,
    NotApplied,
    OutcomeUnknown,
    ResultDoesNotFit,
)
from agent_es.run import AgentRun
from agent_es.state import RunState, Step
from agent_es.tools import (
    DEFAULT_RETRY,
    CallTool,
    DidNotHappen,
    Effect,
    Failed,
    Happened,
    Retry,
    Returned,
    Tool,
    ToolContext,
    Unknown,
    tool,
)
from agent_es.values import canonical

READ = tool(effect=Effect.READ)
IDEMPOTENT = tool(effect=Effect.IDEMPOTENT)
TRANSACTIONAL = tool(effect=Effect.TRANSACTIONAL)
PROBED = tool(effect=Effect.PROBED, probe=lambda: None)
AT_MOST_ONCE = tool(effect=Effect.AT_MOST_ONCE)


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


def done(tool_name: str, value_json: str) -> Step:
    return Step(4, 4, tool_name, "{}", None, 1, None, "done", value_json)


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


@pytest.mark.parametrize("declare", [READ, IDEMPOTENT, TRANSACTIONAL, PROBED, AT_MOST_ONCE])
def test_every_effect_may_be_declared_and_a_decider_sees_it(declare: Callable[..., Tool]) -> None:
    made = declare(refund)

    assert made.spec.effect is made.effect


async def awaiting(order_id: str) -> None: ...


@pytest.mark.parametrize(
    ("options", "function", "says"),
    [
        ({"effect": "probed"}, search, "a PROBED tool needs `probe=`"),
        (
            {"effect": "read", "probe": lambda: None},
            search,
            "only a PROBED tool, or an IDEMPOTENT one with a `key_ttl`",
        ),
        ({"effect": "at_most_once", "probe": lambda: None}, search, "only a PROBED tool"),
        ({"effect": "transactional", "probe": lambda: None}, search, "only a PROBED tool"),
        ({"effect": "idempotent", "probe": lambda: None}, search, "only a PROBED tool"),
        ({"effect": "at_most_once", "key_ttl": 60}, search, "only an IDEMPOTENT tool has a `key_ttl`"),
        ({"effect": "read", "on_doubt": "resend"}, search, "a READ tool leaves no doubt and nothing to undo"),
        ({"effect": "read", "compensate": "undo"}, search, "a READ tool leaves no doubt and nothing to undo"),
        ({"effect": "idempotent", "on_doubt": "ask"}, search, "on_doubt='ask' is none of park, resend, skip, tell"),
        (
            {"effect": "idempotent", "on_key_reuse": "last"},
            search,
            "on_key_reuse='last' is none of refuse, return_first",
        ),
        ({"effect": "transactional"}, awaiting, "holds a transaction and cannot wait in it; make it synchronous"),
        ({"effect": "read", "aliases": ["look up"]}, search, "a name is an identifier of at most 64 characters"),
    ],
    ids=lambda it: it if isinstance(it, str) else None,
)
def test_an_option_that_cannot_work_with_the_effect_is_an_error_of_the_declaration(
    options: dict[str, Any], function: Callable[..., Any], says: str
) -> None:
    declare = tool(**options)

    with pytest.raises(BadTool) as caught:
        declare(function)

    assert says in str(caught.value)


def test_an_idempotent_tool_whose_keys_end_may_be_probed_too() -> None:
    made = tool(effect="idempotent", key_ttl=60, probe=lambda key: None)(search)

    assert (made.key_ttl, made.on_doubt, made.on_key_reuse) == (60, "park", "refuse")


@pytest.mark.parametrize("asked", [lambda order_id: None, lambda key, args, more: None, lambda self, it: None])
def test_a_probe_is_asked_with_key_and_args_and_nothing_else(asked: Callable[..., object]) -> None:
    declare = tool(effect=Effect.PROBED, probe=asked)

    with pytest.raises(BadTool, match="tool search: its probe takes key and args"):
        declare(search)


def test_two_contexts_are_one_too_many() -> None:
    def find(ctx: ToolContext, also: ToolContext[Gateway]) -> None: ...

    with pytest.raises(BadTool, match="tool find: ctx and also are both a ToolContext"):
        READ(find)


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

    assert find.result_of(done("find", '{"order_id":"ORD-3300"}')) == Parcel(order_id="ORD-3300")


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


def maybe_in_old_words(query: str, ctx: Optional[ToolContext[Gateway]] = None) -> None: ...  # noqa: UP045


def maybe_unparametrized(query: str, ctx: None | ToolContext = None) -> None: ...  # noqa: RUF036


class Searching(AgentRun):
    @tool(effect=Effect.READ)
    def method(self, ctx: ToolContext[Gateway], query: str) -> tuple[str, str]:
        return self.state.run_id, f"{ctx.deps.name} looks for {query}"


INJECTED = [plain, by_another_name, maybe, maybe_in_old_words, maybe_unparametrized]


@pytest.mark.parametrize("made", [*map(READ, INJECTED), Searching.method], ids=str)
def test_the_context_and_self_are_injected_and_no_decider_sees_them(made: Tool) -> None:
    assert set(made.spec.parameters["properties"]) == {"query"}
    with pytest.raises(BadArguments, match="Extra inputs are not permitted"):
        made.call(query="refunds", ctx={"deps": None, "run_id": "forged", "idx": 0, "attempt": 1})


@pytest.mark.parametrize(
    ("annotation", "needs"),
    [
        (ToolContext[Gateway], True),
        (ToolContext[Gateway] | None, True),
        (ToolContext[Gateway | None], True),
        (ToolContext, False),
        (ToolContext[Any], False),
        (ToolContext[None], False),
        (ToolContext[Any] | None, False),
        (str, False),
    ],
    ids=str,
)
def test_a_tool_says_whether_it_can_be_called_without_deps(annotation: Any, needs: bool) -> None:  # noqa: FBT001
    def look(ctx: Any) -> None: ...

    look.__annotations__["ctx"] = annotation

    assert READ(look).needs_deps is needs


def test_a_probe_that_needs_deps_says_so_too() -> None:
    def find(ctx: ToolContext[Gateway]) -> None: ...

    assert tool(effect=Effect.PROBED, probe=find)(search).needs_deps


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

    assert made.validated(canonical(args)) == {"it": value}


def test_a_secret_reaches_the_body_as_it_is_or_is_refused_and_is_never_altered() -> None:
    def log_in(password: SecretStr) -> str:
        return password.get_secret_value()

    try:
        args = READ(log_in).call(password=SecretStr("hush")).args
    except AgentError:
        return

    assert READ(log_in).bind(None, CONTEXT, canonical(args))() == "hush"


def wake(at: datetime) -> datetime:
    return at + timedelta(days=1)


NEW_YORK = ZoneInfo("America/New_York")
BEFORE_THE_CLOCKS_CHANGE = datetime(2026, 3, 7, 9, tzinfo=NEW_YORK)
THE_NEXT_DAY = datetime(2026, 3, 8, 13, tzinfo=UTC)


def test_a_time_that_a_decision_was_checked_with_keeps_its_zone_on_its_way_to_the_body() -> None:
    decision = READ(wake).call(at=BEFORE_THE_CLOCKS_CHANGE)

    body = READ(wake).bind(None, CONTEXT, canonical(decision.args))

    assert body().astimezone(UTC) == THE_NEXT_DAY


def test_a_decider_may_hand_on_a_time_in_a_zone_as_it_was_shown_it() -> None:
    shown = READ(wake).returned(BEFORE_THE_CLOCKS_CHANGE)
    assert isinstance(shown, Returned)

    body = READ(wake).bind(None, CONTEXT, f'{{"at":{shown.value}}}')

    assert body().astimezone(UTC) == THE_NEXT_DAY


@pytest.mark.parametrize(
    "args", ["", "{", "[]", "null", "1", '{"query":1}', '{"query":"a","query":2}', '{"query":"a","more":1}', "{}"]
)
def test_journaled_arguments_that_do_not_fit_today_are_bad_arguments(args: str) -> None:
    with pytest.raises(BadArguments, match="search: "):
        READ(search).validated(args)


def test_what_is_wrong_is_told_with_the_numbers_and_names_that_it_is_about() -> None:
    def pay(amount: Annotated[float, Field(ge=10.5)], lines: list[Line]) -> None: ...

    with pytest.raises(BadArguments) as caught:
        READ(pay).validated('{"amount":1,"lines":[{"price":"0.10"},{"price":"much"}]}')

    assert str(caught.value) == (
        "pay: amount: Input should be greater than or equal to 10.5; lines.1.price: Input should be a valid decimal"
    )


def test_what_is_wrong_with_many_arguments_is_told_within_bounds() -> None:
    extras = canonical({f"extra_{n}": n for n in range(1_000)})

    with pytest.raises(BadArguments) as caught:
        READ(search).validated(extras)

    assert len(str(caught.value)) < 2_100


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


def test_a_context_that_may_be_missing_is_given_all_the_same() -> None:
    def look(query: str, ctx: ToolContext[Gateway] | None = None) -> str:
        return f"{ctx.deps.name if ctx else 'nobody'} looks for {query}"

    assert READ(look).bind(None, CONTEXT, '{"query":"refunds"}')() == "acme looks for refunds"
    assert look("refunds") == "nobody looks for refunds"


def test_a_context_gives_each_provider_call_of_a_step_a_key_of_its_own() -> None:
    again = ToolContext(Gateway("acme"), "run-7f3a", 1, 3, CONTEXT.idempotency_key)

    assert CONTEXT.subkey("create") == again.subkey("create") == "ORD-3300:refund:180.00/create"
    assert CONTEXT.subkey("pay") != CONTEXT.subkey("create")


@pytest.mark.parametrize(
    ("key", "name"), [(None, "create"), ("k", "")], ids=["a tool without a key", "a call without a name"]
)
def test_a_key_is_made_of_a_key_and_a_name(key: str | None, name: str) -> None:
    context = ToolContext(None, "run-7f3a", 0, 1, key)

    with pytest.raises(EffectError, match=r"ctx\.subkey\(name\) needs a name, and a tool with a key"):
        context.subkey(name)


def test_a_session_is_there_where_one_was_lent() -> None:
    session = object()

    assert ToolContext(None, "run-7f3a", 0, 1, "k", session).session is session
    with pytest.raises(EffectError, match="for a TRANSACTIONAL tool only: declare the effect"):
        _ = CONTEXT.session


# Asking whether one happened.


class Asked(AgentRun):
    def find(self, ctx: ToolContext[Gateway], args: dict[str, Any], key: str) -> tuple[Any, ...]:
        return self.state.run_id, ctx.deps.name, args, key

    @tool(effect=Effect.PROBED, probe=find)
    def pay(self, order_id: str, amount: Decimal) -> str: ...  # type: ignore[empty-body]


def test_a_probe_gets_the_key_the_arguments_as_annotated_its_run_and_its_context() -> None:
    run = Asked.of(RunState(run_id="run-7f3a"))

    ask = Asked.pay.bind_probe(run, CONTEXT, '{"amount":"180.00","order_id":"A"}')

    assert ask() == ("run-7f3a", "acme", {"amount": Decimal("180.00"), "order_id": "A"}, "ORD-3300:refund:180.00")


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (lambda: "nothing", "nothing"),
        (lambda key: key, "ORD-3300:refund:180.00"),
        (lambda args: args, {"query": "x"}),
    ],
)
def test_a_probe_gets_what_it_asks_for_only(asked: Callable[..., Any], answer: Any) -> None:
    made = tool(effect=Effect.PROBED, probe=asked)(search)

    assert made.bind_probe(None, CONTEXT, '{"query":"x"}')() == answer


def test_a_tool_without_a_probe_is_not_asked() -> None:
    with pytest.raises(BadTool, match="tool search has no probe"):
        READ(search).bind_probe(None, CONTEXT, "{}")


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (Happened("refunded"), Returned('"refunded"')),
        (DidNotHappen(), DidNotHappen()),
        (None, Unknown("Probe", "the probe of search answered None")),
        (True, Unknown("Probe", "the probe of search answered True")),
        ("refunded", Unknown("Probe", "the probe of search answered 'refunded'")),
        (Happened, Unknown("Probe", "the probe of search answered <class 'agent_es.tools.Happened'>")),
        (DidNotHappen, Unknown("Probe", "the probe of search answered <class 'agent_es.tools.DidNotHappen'>")),
    ],
    ids=str,
)
def test_a_probe_says_happened_or_did_not_happen_and_anything_else_cannot_tell(answer: Any, means: object) -> None:
    assert PROBED(search).probed(answer) == means


def test_a_probe_that_found_what_cannot_be_recorded_cannot_tell() -> None:
    outcome = PROBED(search).probed(Happened(5))

    assert isinstance(outcome, Unknown)
    assert outcome.type == "NotRecordable"


# Undoing one.


def test_a_tool_that_undoes_another_takes_of_its_arguments_and_result_what_it_has_names_for() -> None:
    def cancel(order_id: str, result: str) -> None: ...

    step = Step(4, 4, "book", '{"note":"x","order_id":"A"}', "k", 1, None, "done", '"booking 5"')

    assert IDEMPOTENT(cancel).undoing(step) == CallTool("cancel", {"order_id": "A", "result": "booking 5"})


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


@pytest.mark.parametrize(
    ("kind", "amount"),
    [
        (int, "1" + "0" * 309),
        (Decimal, '"1E+999999999"'),
        (Decimal, '"1E-999999999"'),
        (Decimal, '"1E+99999999999999"'),
    ],
    ids=["an int that no float holds", "a text of gigabytes", "a tiny one", "more than memory"],
)
def test_a_number_that_its_format_cannot_write_out_is_refused_like_any_bad_argument(kind: type, amount: str) -> None:
    def pay(amount: Any) -> None: ...

    pay.__annotations__["amount"] = kind
    made = tool(effect=Effect.IDEMPOTENT, key="{amount:.2f}")(pay)

    with pytest.raises(BadArguments, match="pay: no key can be made of these arguments"):
        made.key_for("run-1", 0, f'{{"amount":{amount}}}')


def test_arguments_whose_order_means_nothing_make_the_same_key_or_none() -> None:
    def label(tags: set[int]) -> None: ...

    made = tool(effect=Effect.IDEMPOTENT, key="{tags}")(label)
    try:
        keys = {made.key_for("run-7f3a", 1, args) for args in ('{"tags":[0,8]}', '{"tags":[8,0]}')}
    except BadArguments:
        return

    assert len(keys) == 1


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


@pytest.mark.parametrize("declare", [IDEMPOTENT, TRANSACTIONAL, PROBED, AT_MOST_ONCE])
def test_every_effect_but_a_read_has_a_key(declare: Callable[..., Tool]) -> None:
    assert declare(search).key_for("run-7f3a", 0, '{"query":"refunds"}') == "run-7f3a:0:search"


# What came of it.


def test_what_a_body_returns_is_recorded_as_annotated() -> None:
    def quote() -> Line: ...  # type: ignore[empty-body]

    made = READ(quote)

    outcome = made.returned(Line(Decimal("1.50")))

    assert outcome == Returned('{"price":"1.50"}')
    assert made.result_of(done("quote", outcome.value)) == Line(Decimal("1.50"))


@pytest.mark.parametrize("recorded", ['{"cost":"1.50"}', '"1.50"', "null", '{"price":"much"}', "cut {"])
def test_a_result_that_does_not_fit_todays_annotation_names_step_tool_and_type(recorded: str) -> None:
    def quote() -> Line: ...  # type: ignore[empty-body]

    with pytest.raises(ResultDoesNotFit, match="step 4: the recorded result of quote does not fit Line: "):
        READ(quote).result_of(done("quote", recorded))


@pytest.mark.parametrize(
    ("annotation", "written", "means"),
    [
        (Decimal, "180", Decimal(180)),
        (Decimal, "1.5", Decimal("1.5")),
        (float, "180", 180.0),
        (datetime, '"2026-07-05T10:00:00+00:00"', datetime(2026, 7, 5, 10, tzinfo=UTC)),
        (set[int], "[2,1]", {1, 2}),
        (Line, '{"price":1.5}', Line(Decimal("1.5"))),
    ],
    ids=str,
)
def test_a_result_that_a_person_settled_or_older_code_recorded_in_another_form_is_read_as_annotated(
    annotation: Any, written: str, means: Any
) -> None:
    def quote() -> Any: ...

    quote.__annotations__["return"] = annotation

    assert READ(quote).result_of(done("quote", written)) == means


APPLIED = "ran and its effect has happened, so do not call it again for this"


@pytest.mark.parametrize(
    ("declare", "ran", "applied"),
    [
        (READ, "ran", False),
        (TRANSACTIONAL, "ran", False),  # its rows go with the transaction
        (IDEMPOTENT, APPLIED, True),
        (PROBED, APPLIED, True),
        (AT_MOST_ONCE, APPLIED, True),
    ],
)
def test_a_result_that_cannot_be_recorded_is_a_failure_that_names_tool_and_type_and_what_became_of_the_effect(
    declare: Callable[..., Tool],
    ran: str,
    applied: bool,  # noqa: FBT001
) -> None:
    def wander() -> Any: ...

    outcome = declare(wander).returned(threading.Lock())

    assert outcome == Failed(
        "NotRecordable", f"wander {ran}; its result cannot be recorded: lock is not JSON", applied=applied
    )


@pytest.mark.parametrize("text", ["x" * 99, "é" * 49 + "x"], ids=["ASCII", "two bytes each"])
def test_a_result_has_so_many_bytes_and_no_more(text: str) -> None:
    def write() -> str: ...  # type: ignore[empty-body]

    enough, too_few = (tool(effect="idempotent", max_result_bytes=n)(write) for n in (101, 100))

    assert enough.returned(text) == Returned(f'"{text}"')
    assert too_few.returned(text) == Failed(
        "ResultTooLarge",
        f"write {APPLIED}; its result has 101 bytes and max_result_bytes is 100: store it elsewhere and return "
        "a reference",
        applied=True,
    )


def test_a_result_that_is_not_as_annotated_is_a_failure() -> None:
    outcome = READ(search).returned(5)

    assert isinstance(outcome, Failed)
    assert outcome.message.startswith("search ran; its result cannot be recorded: int does not fit str")


RETRY = Retry(non_retryable=(PermissionError,))
LEAVES_NOTHING = [READ, TRANSACTIONAL]
LEAVES_A_DOUBT = [IDEMPOTENT, PROBED, AT_MOST_ONCE]


@pytest.mark.parametrize("declare", LEAVES_NOTHING)
@pytest.mark.parametrize(
    ("error", "may_retry"),
    [
        (ValueError("no"), True),
        (TimeoutError("no"), True),
        (OutcomeUnknown("no"), True),
        (PermissionError("no"), False),
        (NotApplied("no"), False),
    ],
    ids=repr,
)
def test_what_a_read_or_a_transaction_raises_is_a_failure(
    declare: Callable[..., Tool],
    error: Exception,
    may_retry: bool,  # noqa: FBT001
) -> None:
    outcome = declare(search).raised(error, RETRY, first=True)

    assert outcome == Failed(type(error).__name__, "no", may_retry=may_retry, applied=False)


@pytest.mark.parametrize("declare", LEAVES_A_DOUBT)
@pytest.mark.parametrize(
    ("error", "may_retry"),
    [
        (ValueError("no"), True),
        (TimeoutError("no"), True),
        (BadArguments("no"), True),
        (OutcomeUnknown("no"), True),
        (PermissionError("no"), False),
    ],
    ids=repr,
)
def test_what_the_body_of_an_effect_raises_leaves_unknown_whether_it_happened(
    declare: Callable[..., Tool],
    error: Exception,
    may_retry: bool,  # noqa: FBT001
) -> None:
    outcome = declare(search).raised(error, RETRY, first=True)

    assert outcome == Unknown(type(error).__name__, "no", may_retry=may_retry)


@pytest.mark.parametrize("declare", [*LEAVES_NOTHING, *LEAVES_A_DOUBT])
@pytest.mark.parametrize("first", [True, False])
def test_what_surely_was_not_applied_is_a_failure_whatever_the_effect(
    declare: Callable[..., Tool],
    first: bool,  # noqa: FBT001
) -> None:
    outcome = declare(search).raised(NotApplied("card refused"), RETRY, first=first)

    assert outcome == Failed("NotApplied", "card refused", may_retry=False, applied=False)


@pytest.mark.parametrize("declare", LEAVES_A_DOUBT)
def test_a_key_that_the_provider_holds_with_other_parameters_was_not_applied_unless_it_was_sent_before(
    declare: Callable[..., Tool],
) -> None:
    first, later = (declare(search).raised(KeyMismatch("taken"), RETRY, first=it) for it in (True, False))

    assert first == Failed("KeyMismatch", "taken", may_retry=False, applied=False)
    assert later == Unknown("KeyMismatch", "taken", may_retry=False)


@pytest.mark.parametrize("declare", LEAVES_NOTHING)
def test_a_read_that_took_too_long_failed(declare: Callable[..., Tool]) -> None:
    outcome = declare(search).timed_out(1.5)

    assert isinstance(outcome, Failed)
    assert (outcome.type, outcome.applied, outcome.may_retry) == ("TimeoutError", False, False)
    assert outcome.message == (
        "search took longer than 1.5 s and cannot be stopped; a second attempt beside it is not started"
    )


@pytest.mark.parametrize("declare", LEAVES_A_DOUBT)
def test_an_effect_that_took_too_long_may_have_happened_and_may_still(declare: Callable[..., Tool]) -> None:
    outcome = declare(search).timed_out(1.5)

    assert isinstance(outcome, Unknown)
    assert not outcome.may_retry
    assert "cannot be stopped" in outcome.message


@pytest.mark.parametrize(("declare", "kind"), [(READ, Failed), (IDEMPOTENT, Unknown)])
def test_what_was_cancelled_when_it_took_too_long_may_be_tried_again(
    declare: Callable[..., Tool], kind: type[Failed | Unknown]
) -> None:
    assert declare(awaiting).timed_out(1.5) == kind("TimeoutError", "awaiting took longer than 1.5 s", may_retry=True)


@pytest.mark.parametrize(
    ("outcome", "applied"),
    [(Failed("E", "no"), "false"), (Failed("E", "no", applied=True), "true"), (Unknown("E", "no"), "null")],
)
def test_what_is_recorded_of_a_failure_says_whether_it_was_applied(outcome: Failed | Unknown, applied: str) -> None:
    assert outcome.error_json == f'{{"applied":{applied},"message":"no","type":"E"}}'


class Declined(NotApplied):
    """The card was declined."""


def test_a_kind_of_not_applied_of_the_users_own_is_a_failure_under_its_own_name() -> None:
    outcome = IDEMPOTENT(refund).raised(Declined(), RETRY, first=True)

    assert outcome == Failed("Declined", "The card was declined.")


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
    outcome = READ(search).raised(error, RETRY, first=True)

    assert outcome == Failed(type(error).__name__, message, may_retry=True)


# How often it is tried.


def test_an_effect_asks_for_so_many_attempts_where_nobody_says_otherwise() -> None:
    attempts = {effect: DEFAULT_RETRY[effect].max_attempts for effect in Effect}

    assert attempts == {
        Effect.READ: 5,
        Effect.IDEMPOTENT: 5,
        Effect.TRANSACTIONAL: 5,
        Effect.PROBED: 5,
        Effect.AT_MOST_ONCE: 1,
    }


@pytest.mark.parametrize(
    ("declare", "may_retry"),
    [(READ, False), (TRANSACTIONAL, False), (IDEMPOTENT, True), (PROBED, True)],
)
def test_where_nobody_says_otherwise_what_a_read_or_a_transaction_raises_is_final(
    declare: Callable[..., Tool],
    may_retry: bool,  # noqa: FBT001
) -> None:
    made = declare(search)

    outcome = made.raised(OSError("down"), DEFAULT_RETRY[made.effect], first=True)

    assert not isinstance(outcome, Returned)
    assert outcome.may_retry is may_retry


@pytest.mark.parametrize("effect", [Effect.IDEMPOTENT, Effect.PROBED])
def test_where_nobody_says_otherwise_an_effect_waits_between_its_attempts(effect: Effect) -> None:
    waits = [DEFAULT_RETRY[effect].delay(n, 0.0) for n in (1, 2, 3, 4)]

    assert waits == [0.2, 0.4, 0.8, 1.6]


def test_waits_grow_up_to_a_bound_and_are_spread_beyond_it() -> None:
    retry = Retry(initial=1, factor=3, max_delay=5, jitter=0.5)

    assert [retry.delay(n, 0.0) for n in (1, 2, 3)] == [1, 3, 5]
    assert [retry.delay(n, 1.0) for n in (1, 2, 3)] == [1.5, 4.5, 7.5]
    assert retry.delay(1_000_000, 0.0) == 5
    assert Retry(initial=0).delay(3, 1.0) == 0


@pytest.mark.parametrize(
    "wrong",
    [{"initial": -1}, {"max_delay": -1}, {"jitter": -0.1}, {"factor": 0.5}, {"timeout": 0}, {"timeout": -1}],
    ids=str,
)
def test_a_wait_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadTool, match="Retry"):
        Retry(**wrong)
