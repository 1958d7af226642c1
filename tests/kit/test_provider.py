"""The provider's keys have a lifetime: what it forgets, and what that costs a tool that does not know."""

import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from agent_es import AgentRun, CallTool, Effect, Finish, Retry, Runner, RunStore, ScriptedDecider, ToolContext, tool
from agent_es.errors import KeyMismatch
from agent_es.testing import DidNotSurvive, Ending, MovableClock, PaymentProvider, Scenario, survives_every_crash
from agent_es.testing.network import Fault, FlakyNetwork

TTL = 60.0
WAIT = 90.0
TEN = Decimal("10.00")
SLOW = Retry(initial=WAIT, max_delay=WAIT, jitter=0)

Open = Callable[..., PaymentProvider]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def reopen(tmp_path: Path, clock: MovableClock) -> Open:
    """The provider that lies in the test's folder, opened anew."""

    def opened(key_ttl: float | None = TTL) -> PaymentProvider:
        return PaymentProvider(tmp_path / "provider.db", key_ttl=key_ttl, now=clock.now)

    return opened


class Till:
    """Reaches a provider through a network, and refunds ten."""

    def __init__(self, provider: PaymentProvider, *faults: Fault) -> None:
        self.provider = provider
        self._network = FlakyNetwork(faults)

    def refund(self, order_id: str, key: str | None) -> dict[str, str]:
        return self._network.send(lambda: self.provider.refund(order_id, TEN, key=key))

    def effects(self) -> list[tuple[str, str]]:
        return self.provider.effects()


class Clerk(AgentRun):
    """Refunds through a provider that forgets: one tool knows when, one does not."""

    @tool(effect=Effect.IDEMPOTENT, retry=SLOW)
    def trusting(self, ctx: ToolContext[Till], order_id: str) -> dict[str, str]:
        return ctx.deps.refund(order_id, key=ctx.idempotency_key)

    @tool(effect=Effect.IDEMPOTENT, retry=SLOW, key_ttl=TTL)
    def careful(self, ctx: ToolContext[Till], order_id: str) -> dict[str, str]:
        return ctx.deps.refund(order_id, key=ctx.idempotency_key)


def script(called: str) -> ScriptedDecider:
    return ScriptedDecider([CallTool(called, {"order_id": "ORD-3300"}), Finish("refunded")])


def test_a_key_within_its_lifetime_gives_the_first_answer_and_moves_no_money(
    reopen: Open, clock: MovableClock
) -> None:
    first = reopen().refund("ORD-3300", TEN, key="K")

    clock.move(TTL - 0.001)
    again = reopen().refund("ORD-3300", TEN, key="K")

    assert again == first
    assert (reopen().refunds, reopen().keystore) == (1, {"K": 2})


def test_a_key_that_outlived_its_lifetime_pays_again_and_gives_a_receipt_of_its_own(
    reopen: Open, clock: MovableClock
) -> None:
    first = reopen().refund("ORD-3300", TEN, key="K")

    clock.move(TTL)
    again = reopen().refund("ORD-3300", TEN, key="K")

    assert (first["refund_id"], again["refund_id"]) == ("rf-1", "rf-2")
    assert reopen().ledger == {"ORD-3300": "20.00"}
    assert reopen().keystore == {"K": 2}


def test_a_lifetime_is_measured_from_when_the_key_was_first_honoured_not_from_when_it_was_sent_last(
    reopen: Open, clock: MovableClock
) -> None:
    for _ in range(3):
        reopen().refund("ORD-3300", TEN, key="K")
        clock.move(TTL / 2)

    assert reopen().refunds == 2


def test_a_key_that_was_forgotten_and_honoured_anew_lives_as_long_again(reopen: Open, clock: MovableClock) -> None:
    reopen().refund("ORD-3300", TEN, key="K")
    clock.move(TTL)
    second = reopen().refund("ORD-3300", TEN, key="K")

    clock.move(TTL - 1)
    third = reopen().refund("ORD-3300", TEN, key="K")

    assert third == second
    assert reopen().keystore == {"K": 3}


def test_other_parameters_are_refused_until_the_key_is_forgotten(reopen: Open, clock: MovableClock) -> None:
    reopen().refund("ORD-3300", TEN, key="K")

    with pytest.raises(KeyMismatch):
        reopen().refund("ORD-3300", Decimal(11), key="K")
    clock.move(TTL)
    for _ in range(2):
        reopen().refund("ORD-3300", Decimal(11), key="K")

    assert reopen().ledger == {"ORD-3300": "21.00"}


def test_a_key_without_a_lifetime_is_kept_for_ever(reopen: Open, clock: MovableClock) -> None:
    reopen(None).refund("ORD-3300", TEN, key="K")

    clock.move(10 * 365 * 86_400.0)
    reopen(None).refund("ORD-3300", TEN, key="K")

    assert reopen(None).refunds == 1


def test_by_itself_a_provider_goes_by_the_time_of_the_computer(tmp_path: Path) -> None:
    kept, forgotten = (PaymentProvider(tmp_path / f"{ttl}.db", key_ttl=ttl) for ttl in (3_600.0, 0.05))
    for provider in (kept, forgotten):
        provider.refund("ORD-3300", TEN, key="K")

    time.sleep(0.06)
    for provider in (kept, forgotten):
        provider.refund("ORD-3300", TEN, key="K")

    assert (kept.refunds, forgotten.refunds) == (1, 2)


@pytest.mark.parametrize(
    ("called", "comes_to", "refunds"),
    [("trusting", ("done", None, 2), 2), ("careful", ("waiting", "doubt", 1), 1)],
)
def test_a_lifetime_shorter_than_the_wait_pays_twice_unless_the_tool_knows_it_and_is_in_doubt(
    called: str,
    comes_to: tuple[str, str | None, int],
    refunds: int,
    reopen: Open,
    clock: MovableClock,
    tmp_path: Path,
) -> None:
    till = Till(reopen(), "after")
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}", clock=clock) as store:
        runner = Runner(store, script(called), deps=till, max_wait=WAIT, sleep=clock.sleep)

        state = runner.run(Clerk, run_id="run-1", goal="refund")

    assert (state.status, state.waiting_for, state.steps[0].attempt) == comes_to
    assert reopen().refunds == refunds
    assert reopen().keystore == {f"run-1:0:{called}": refunds}


def an_hour_later(clock: MovableClock) -> Callable[[Path], Till]:
    """The world of a worker that takes over long after the keys of the last one were forgotten."""

    def world(folder: Path) -> Till:
        clock.move(3_600)
        return Till(PaymentProvider(folder / "provider.db", key_ttl=TTL, now=clock.now))

    return world


def paid_once_at_most(ending: Ending) -> bool:
    return bool(ending.world.provider.refunds <= 1)


def test_a_tool_that_knows_the_lifetime_survives_recoveries_that_come_after_it(clock: MovableClock) -> None:
    scenario = Scenario(agent=Clerk, decider=script("careful"), world=an_hour_later(clock), clock=clock)

    report = survives_every_crash(scenario, paid_once_at_most)

    assert (report.double, report.lost) == (0, 0)
    assert report.in_doubt > 0


def test_a_tool_that_ignores_the_lifetime_pays_twice_after_a_late_recovery(clock: MovableClock) -> None:
    scenario = Scenario(agent=Clerk, decider=script("trusting"), world=an_hour_later(clock), clock=clock)

    with pytest.raises(DidNotSurvive) as raised:
        survives_every_crash(scenario, paid_once_at_most)

    report = raised.value.report
    assert (report.double > 0, report.in_doubt) == (True, 0)
    assert "the invariant paid_once_at_most does not hold" in str(report.smallest)
