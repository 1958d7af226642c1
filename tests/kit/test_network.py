"""The network between a tool and its provider: what it loses, what is seen of it, and what it costs."""

from collections.abc import Callable
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from agent_es import AgentRun, CallTool, Effect, Finish, Retry, Runner, RunStore, ScriptedDecider, ToolContext, tool
from agent_es.errors import BadScenario, KeyMismatch
from agent_es.testing import DidNotSurvive, PaymentProvider, Scenario, survives_every_crash
from agent_es.testing.network import Fault, FlakyNetwork

PATIENT = Retry(max_attempts=20, initial=0, jitter=0)
REFUND = {"order_id": "ORD-3300"}


class Shop:
    """A provider, and the network in front of it."""

    def __init__(self, folder: Path, *faults: Fault) -> None:
        self.provider = PaymentProvider(folder / "provider.db")
        self.network = FlakyNetwork(faults)

    def refund(self, order_id: str, key: str | None) -> dict[str, str]:
        return self.network.send(lambda: self.provider.refund(order_id, Decimal(10), key=key))

    def effects(self) -> list[tuple[str, str]]:
        return self.provider.effects()


class Clerk(AgentRun):
    """Refunds: under its key, without one, and where nobody may ask twice."""

    decider = ScriptedDecider([CallTool("refund", REFUND), Finish("refunded")])

    @tool(effect=Effect.IDEMPOTENT, retry=PATIENT)
    def refund(self, ctx: ToolContext[Shop], order_id: str) -> dict[str, str]:
        return ctx.deps.refund(order_id, ctx.idempotency_key)

    @tool(effect=Effect.IDEMPOTENT, retry=PATIENT)
    def refund_and_forget_the_key(self, ctx: ToolContext[Shop], order_id: str) -> dict[str, str]:
        return ctx.deps.refund(order_id, None)

    @tool(effect=Effect.AT_MOST_ONCE)
    def refund_once(self, ctx: ToolContext[Shop], order_id: str) -> dict[str, str]:
        return ctx.deps.refund(order_id, None)


def outcomes(network: FlakyNetwork, calls: int) -> list[Fault]:
    """What the network did to so many calls."""
    seen: list[Fault] = []
    for _ in range(calls):
        arrived = network.arrived
        try:
            network.send(lambda: "answer")
        except TimeoutError:
            seen.append("after" if network.arrived > arrived else "before")
        else:
            seen.append("fine")
    return seen


def lost(network: FlakyNetwork, call: Callable[[], Any]) -> TimeoutError:
    """The error of a call that has no answer."""
    with pytest.raises(TimeoutError) as raised:
        network.send(call)
    return raised.value


def test_a_call_that_is_lost_before_it_arrives_is_never_made() -> None:
    network, made = FlakyNetwork(["before"]), []

    lost(network, lambda: made.append("call"))

    assert (made, network.sent, network.arrived) == ([], 1, 0)


def test_a_call_whose_answer_is_lost_was_made() -> None:
    network, made = FlakyNetwork(["after"]), []

    lost(network, lambda: made.append("call"))

    assert (made, network.sent, network.arrived) == (["call"], 1, 1)


def test_the_caller_sees_the_same_whether_the_call_or_its_answer_was_lost() -> None:
    network = FlakyNetwork(["before", "after"])

    before, after = (lost(network, lambda: "answer") for _ in range(2))

    assert (type(before), str(before), before.__cause__) == (type(after), str(after), after.__cause__)


def test_faults_come_in_order_and_after_the_last_of_them_everything_is_fine() -> None:
    network = FlakyNetwork(["after", "fine", "before"])

    seen = outcomes(network, 5)

    assert seen == ["after", "fine", "before", "fine", "fine"]
    assert (network.sent, network.arrived) == (5, 4)


def test_faults_may_have_no_end() -> None:
    assert outcomes(FlakyNetwork(cycle(["before", "fine"])), 5) == ["before", "fine", "before", "fine", "before"]


def test_an_error_of_the_provider_is_an_answer_which_comes_or_is_lost() -> None:
    def refuse() -> None:
        raise KeyMismatch("key K came with 10.00 before")

    network = FlakyNetwork(["fine", "after"])

    with pytest.raises(KeyMismatch):
        network.send(refuse)
    error = lost(network, refuse)

    assert str(error) == str(lost(FlakyNetwork(["before"]), refuse))
    assert network.arrived == 2


def test_the_same_seed_draws_the_same_faults_and_another_seed_draws_others() -> None:
    drawn = [outcomes(FlakyNetwork.drawn(seed), 100) for seed in (1, 1, 2)]

    assert drawn[0] == drawn[1] != drawn[2]
    assert {*drawn[0]} == {"fine", "before", "after"}


def test_faults_are_drawn_by_their_shares_and_for_so_many_calls() -> None:
    network = FlakyNetwork.drawn(7, before=0.0, after=1.0, calls=3)

    assert outcomes(network, 5) == ["after", "after", "after", "fine", "fine"]


@pytest.mark.parametrize("shares", [{"before": -0.1}, {"after": -0.1}, {"before": 0.6, "after": 0.6}])
def test_shares_that_are_no_shares_of_one_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(BadScenario, match="shares"):
        FlakyNetwork.drawn(0, **shares)


def test_a_fault_that_is_none_is_refused_and_the_call_is_not_made() -> None:
    faults: Any = ["befor"]
    network = FlakyNetwork(faults)

    with pytest.raises(BadScenario, match="'befor' is no fault of a network; there are fine, before, after"):
        network.send(lambda: "answer")

    assert network.arrived == 0


def test_an_idempotent_tool_sends_its_key_until_an_answer_comes_and_pays_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "before", "after", "after")
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        state = Runner(store, deps=shop).run(Clerk, run_id="run-1", goal="refund")

    assert (state.answer, state.steps[0].attempt) == ("refunded", 4)
    assert (shop.network.sent, shop.network.arrived, shop.provider.refunds) == (4, 3, 1)
    assert shop.provider.keystore == {"run-1:0:refund": 3}


def test_an_at_most_once_tool_is_in_doubt_with_the_same_words_whether_it_paid_or_not(tmp_path: Path) -> None:
    script = ScriptedDecider([CallTool("refund_once", REFUND), Finish("refunded")])
    doubts, paid = [], []
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        for fault in ("before", "after"):
            shop = Shop(tmp_path, fault)
            state = Runner(store, script, deps=shop).run(Clerk, run_id=fault, goal="refund")
            doubts.append((state.waiting_for, state.steps[0].doubt))
            paid.append(shop.provider.refunds)

    assert doubts[0] == doubts[1]
    assert doubts[0][0] == "doubt"
    assert paid == [0, 1]


@pytest.mark.crash
def test_an_idempotent_tool_behind_a_flaky_network_survives_every_two_crashes() -> None:
    scenario = Scenario(agent=Clerk, world=lambda folder: Shop(folder, "before", "after"))

    report = survives_every_crash(scenario, crashes=2, sample=60)

    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)
    # Three calls are on their way, two of them arrive and pass both marks of the provider and that of the answer.
    assert report.kinds["mark"] == 3 + 2 * 3


def test_a_tool_that_forgets_its_key_does_not_survive_a_crash_while_the_answer_is_on_its_way() -> None:
    script = [CallTool("refund_and_forget_the_key", REFUND), Finish("refunded")]
    scenario = Scenario(agent=Clerk, decider=ScriptedDecider(script), world=Shop)

    with pytest.raises(DidNotSurvive) as raised:
        survives_every_crash(scenario)

    report = raised.value.report
    assert report.double > 0
    assert report.lost == 0
    assert report.smallest is not None
    assert "the money has moved" in str(report.smallest)
