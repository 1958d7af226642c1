"""Envelopes: what they allow, what they refuse, what they ask for; and that they say so in the journal's words."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent_es.envelope import Asks, Budget, Envelope, Refused
from agent_es.errors import BadEnvelope
from agent_es.limits import Limit, place_of

REFUND = Envelope(
    tools=("search_*", "refund"),
    limits={"refund.amount": "<= 200", "refund.currency": ["EUR", "USD"]},
    needs_approval=("refund.amount > 100", "search_secrets"),
)


def rule_of(verdict: object) -> str | None:
    return getattr(verdict, "rule", None)


@pytest.mark.parametrize(
    ("tool", "args", "rule"),
    [
        ("refund", {"amount": 80, "currency": "EUR"}, None),
        ("refund", {"amount": "80.00", "currency": "EUR"}, None),
        ("refund", {"currency": "EUR"}, None),  # there is nothing to judge: its default would stand here
        ("refund", {"amount": 201, "currency": "EUR"}, "limits: refund.amount"),
        ("refund", {"amount": "200.01", "currency": "EUR"}, "limits: refund.amount"),
        ("refund", {"amount": "2e3", "currency": "EUR"}, "limits: refund.amount"),
        ("refund", {"amount": "NaN", "currency": "EUR"}, "limits: refund.amount"),
        ("refund", {"amount": True, "currency": "EUR"}, "limits: refund.amount"),
        ("refund", {"amount": None, "currency": "EUR"}, "limits: refund.amount"),
        ("refund", {"amount": [80, 300], "currency": "EUR"}, "limits: refund.amount"),
        ("refund", {"amount": {"value": 80}, "currency": "EUR"}, "limits: refund.amount"),
        ("refund", {"amount": 80, "currency": "GBP"}, "limits: refund.currency"),
        ("refund", {"amount": 80, "currency": "eur"}, "limits: refund.currency"),
        ("search_policy", {}, None),
        ("research", {}, "tools"),
        ("Refund", {}, "tools"),
        ("refund_all", {}, "tools"),
        ("sleep", {"seconds": 1e9}, "tools"),
    ],
)
def test_what_is_outside_is_refused_by_the_rule_that_it_breaks(
    tool: str, args: dict[str, Any], rule: str | None
) -> None:
    verdict = REFUND.judge(tool, args)

    assert rule_of(verdict) == rule
    assert isinstance(verdict, Refused) == (rule is not None)


@pytest.mark.parametrize(
    ("tool", "args", "rule"),
    [
        ("refund", {"amount": 100}, None),
        ("refund", {"amount": "100.01"}, "needs_approval: refund.amount > 100"),
        ("search_secrets", {}, "needs_approval: search_secrets"),
    ],
)
def test_what_a_person_must_approve_is_asked_for(tool: str, args: dict[str, Any], rule: str | None) -> None:
    verdict = REFUND.judge(tool, args)

    assert rule_of(verdict) == rule
    assert isinstance(verdict, Asks) == (rule is not None)


def test_a_condition_that_cannot_be_told_asks_a_person() -> None:
    envelope = Envelope(needs_approval=("refund.amount > 100", "mail.to.address == ann@example.org"))

    assert isinstance(envelope.judge("refund", {"amount": "a lot"}), Asks)
    assert isinstance(envelope.judge("mail", {"to": "ann"}), Asks)
    assert envelope.judge("mail", {"to": [{"address": "bob@example.org"}]}) is None
    assert isinstance(envelope.judge("mail", {"to": [{"address": "ann@example.org"}]}), Asks)


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://api.example.org/v1", True),
        ("http://API.example.org:8080/", True),
        ("https://shop.test", True),
        ("https://example.org/", False),
        ("https://evilexample.org/", False),
        ("https://api.example.org.evil.test/", False),
        ("https://api.example.org@evil.test/", False),
        ("https://evil.test\\@shop.test/", False),
        ("https://evil.test/?shop.test", False),
        ("https://evil.test#@shop.test", False),
        ("https://shop.test:port/", False),
        ("//shop.test/", False),
        ("file://shop.test/etc", False),
        ("https://shop.test\t.evil.test/", False),
        ("https://sh\u043ep.test/", False),
        ("https://[::1/", False),
        ("https://.example.org/", False),
        (" https://shop.test/", False),
        (None, False),
    ],
)
def test_an_address_leads_to_a_host_that_is_named_or_is_refused(url: object, *, is_allowed: bool) -> None:
    limit = Limit(hosts=("*.example.org", "shop.test"))

    assert (limit.wrong(url) is None) == is_allowed


@pytest.mark.parametrize(
    ("path", "is_allowed"),
    [
        ("/data/in/a.csv", True),
        ("/data/in", True),
        ("/data/in//b", True),
        ("/data/in/../secret", False),
        ("/data/inner/a", False),
        ("/data", False),
        ("data/in/a", False),
        ("/data/in/..", False),
        ("/data/in\\..\\x", False),
        ("/data/in/a\0.csv", False),
        (["/data/in/a"], False),
    ],
)
def test_a_path_lies_in_its_folder_or_is_refused(path: object, *, is_allowed: bool) -> None:
    assert (Limit(under="/data/in").wrong(path) is None) == is_allowed
    assert Limit(under="").wrong("~/.ssh/id") is not None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("<= 200", {"at_most": "200"}),
        (" >=0.5 ", {"at_least": "0.5"}),
        ("< 3", {"less_than": "3"}),
        (">-1", {"more_than": "-1"}),
        ("== EUR", {"one_of": ["EUR"]}),
        ("== 5", {"one_of": [5]}),
        ("== true", {"one_of": [True]}),
        ([1, "a"], {"one_of": [1, "a"]}),
    ],
)
def test_a_limit_that_is_written_short_is_one_that_is_written_long(written: Any, meant: dict[str, Any]) -> None:
    limit = Limit.model_validate(written)

    assert limit == Limit.model_validate(meant)
    assert limit.model_dump(mode="json", exclude_unset=True) == meant


@pytest.mark.parametrize(
    "wrong", ["200", "<= a lot", "<= NaN", "", {}, {"atmost": 3}, {"pattern": "("}, {"longest": 0}, 5, "=> 3"]
)
def test_a_limit_that_says_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        Limit.model_validate(wrong)


def test_a_number_is_the_same_however_it_is_written_and_true_is_no_number() -> None:
    limit = Limit(one_of=(1, "a"))

    assert [limit.wrong(value) is None for value in (1, 1.0, "1", "1.0", "a", True, "b", None)] == [
        *(True, True, True, True, True),
        *(False, False, False),
    ]


def test_every_part_of_a_limit_must_hold() -> None:
    limit = Limit(pattern="[a-z]+", longest=3)

    assert limit.wrong("abc") is None
    assert [bool(limit.wrong(text)) for text in ("abcd", "ab1", "abc\n", 3)] == [True] * 4


def test_a_child_may_do_what_it_and_every_run_above_it_may() -> None:
    child = Envelope(tools=("refund", "mail"), limits={"refund.amount": "<= 50"}, within=REFUND)

    assert [child.offers(tool) for tool in ("refund", "mail", "search_policy", "wait_for")] == [
        *(True, False, False, False)
    ]
    assert rule_of(child.judge("refund", {"amount": 60})) == "limits: refund.amount"
    assert rule_of(child.judge("refund", {"amount": 40, "currency": "GBP"})) == "limits: refund.currency"
    assert isinstance(Envelope(within=REFUND).judge("refund", {"amount": 150}), Asks)


@pytest.mark.parametrize(
    ("envelope", "says"),
    [
        (Envelope(limits={"refund.amout": "<= 5"}), "refund has no argument 'amout'; it has: amount, order"),
        (Envelope(tools=("refund", "*"), limits={"*.order": {"longest": 9}}), None),
        (Envelope(limits={"pay.amount": "<= 3"}), None),
        (Envelope(needs_approval=("refund.amout > 3",)), "refund has no argument 'amout'"),
        (Envelope(limits={"*.amout": "<= 3"}), "has no argument 'amout'; it has: amount, order, query"),
    ],
)
def test_a_name_that_nothing_has_is_a_mistake_and_no_rule(envelope: Envelope, says: str | None) -> None:
    arguments = {"refund": ["amount", "order"], "search": ["query"]}

    if says is None:
        envelope.check(arguments)
    else:
        with pytest.raises(BadEnvelope, match=says):
            envelope.check(arguments)


@pytest.mark.parametrize(
    "text", ['{"tools": 3}', '{"limits": {"refund": "<= 3"}}', '{"needs_approval": ["a.b"]}', "[", '{"rate": 1}']
)
def test_what_is_no_envelope_is_told(text: str) -> None:
    with pytest.raises(BadEnvelope, match="it is no envelope: "):
        Envelope.read(text)


NAMES = st.sampled_from(["refund", "mail", "search", "*", "s*", "re?und"])
LIMITS = st.one_of(
    st.integers(-5, 300).map(lambda n: f"<= {n}"),
    st.lists(st.integers(0, 3) | st.sampled_from("abc"), min_size=1, max_size=3),
    st.builds(lambda text: {"under": text}, st.sampled_from(["/a", "b/c"])),
)
BUDGETS = st.builds(
    Budget,
    steps=st.none() | st.integers(0, 9),
    cost=st.none() | st.decimals(0, 100, places=2),
    deadline=st.none()
    | st.timedeltas(timedelta(0), timedelta(days=30))
    | st.just(datetime(2030, 1, 1, 12, 30, tzinfo=UTC)),
    calls=st.dictionaries(NAMES, st.integers(0, 5), max_size=2),
)
ENVELOPES = st.recursive(
    st.builds(
        Envelope,
        tools=st.lists(NAMES, max_size=3).map(tuple),
        limits=st.dictionaries(NAMES.map("{}.amount".format), LIMITS, max_size=2),
        budget=BUDGETS,
        needs_approval=st.lists(NAMES | NAMES.map("{}.amount > 3".format), max_size=2).map(tuple),
        on_refusal=st.sampled_from(["tell", "fail"]),
    ),
    lambda outer: st.builds(lambda child, above: child.model_copy(update={"within": above}), outer, outer),
    max_leaves=3,
)


@given(ENVELOPES)
def test_an_envelope_is_read_back_as_it_was_written(envelope: Envelope) -> None:
    read = Envelope.read(envelope.json_text)

    assert read == envelope
    assert (read.json_text, read.digest) == (envelope.json_text, envelope.digest)


@given(
    ENVELOPES, ENVELOPES, st.sampled_from(["refund", "mail", "search"]), st.integers(-9, 400) | st.text(max_size=3)
)
def test_no_child_may_do_what_its_parent_may_not(parent: Envelope, child: Envelope, tool: str, amount: Any) -> None:
    inner = Envelope.model_validate({**child.model_dump(exclude={"within"}), "within": parent})
    call = tool, {"amount": amount}

    if isinstance(parent.judge(*call), Refused):
        assert isinstance(inner.judge(*call), Refused)
    if parent.judge(*call) is not None:
        assert inner.judge(*call) is not None
    assert parent.offers(tool) or not inner.offers(tool)


def test_a_place_without_an_argument_names_tools() -> None:
    assert place_of("search_*").is_of("search_policy")
    assert place_of("refund.order.lines.price").values(
        {"order": {"lines": [{"price": 1}, {}, {"price": [2, 3]}]}}
    ) == [*(1, 2, 3)]
    with pytest.raises(LookupError, match="there is no lines in 'ORD-1'"):
        place_of("refund.order.lines").values({"order": "ORD-1"})
    with pytest.raises(ValueError, match="no tool"):
        place_of("refund..amount")


def test_a_budget_is_no_less_than_nothing() -> None:
    assert Budget(cost=Decimal("2.50")).cost == Decimal("2.50")
    for wrong in ({"steps": -1}, {"cost": "NaN"}, {"cost": -1}, {"deadline": timedelta(-1)}, {"calls": {"a": -1}}):
        with pytest.raises(ValidationError):
            Budget.model_validate(wrong)
