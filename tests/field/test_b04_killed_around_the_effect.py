"""B04: killed before the body, after the provider's commit, or after the append of the result: one charge.

A charge that takes no key is neither made again nor skipped: a person, or a look at the ledger, says what happened.

Run as a program, this file is the worker that dies at the point that it is told.
"""

import os
import signal
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agent_es import AgentRun, Effect, Finish, Runner, RunStore, ScriptedDecider, Status, ToolContext, tool
from agent_es.testing import CrashingRunner, CrashPoint, FrozenClock, PaymentProvider, sigkill
from agent_es.tools import DidNotHappen, Happened

RUN_ID = "run-1"
KEY = "run-1:0:charge"

BEFORE_THE_BODY = CrashPoint(4, "before")  # decide, append, start, next done
AFTER_THE_APPEND = CrashPoint(5, "after")  # append of the result


class Shop(AgentRun):
    """Charges for an order."""

    @tool(effect=Effect.IDEMPOTENT)
    def charge(self, ctx: ToolContext[PaymentProvider], order: str, amount: Decimal) -> dict[str, str]:
        return ctx.deps.refund(order, amount, key=ctx.idempotency_key)  # money moves, whichever way

    @tool(effect=Effect.AT_MOST_ONCE)
    def charge_without_a_key(self, ctx: ToolContext[PaymentProvider], order: str, amount: Decimal) -> dict[str, str]:
        return ctx.deps.refund(order, amount, key=None)

    def look_up(self, ctx: ToolContext[PaymentProvider], args: dict[str, Any]) -> Happened | DidNotHappen:
        paid = ctx.deps.ledger.get(args["order"])
        return Happened({"order_id": args["order"], "amount": paid}) if paid else DidNotHappen()

    @tool(effect=Effect.PROBED, probe=look_up)
    def charge_and_look_up(self, ctx: ToolContext[PaymentProvider], order: str, amount: Decimal) -> dict[str, str]:
        return ctx.deps.refund(order, amount, key=None)


SCRIPT = ScriptedDecider([Shop.charge.call(order="A1", amount=Decimal("49.90")), Finish("charged")])
UNSAFE = ScriptedDecider([Shop.charge_without_a_key.call(order="A1", amount=Decimal("49.90")), Finish("charged")])
PROBED = ScriptedDecider([Shop.charge_and_look_up.call(order="A1", amount=Decimal("49.90")), Finish("charged")])
SCRIPTS = {"safe": SCRIPT, "unsafe": UNSAFE, "probed": PROBED}


@pytest.mark.parametrize(
    ("where", "calls_before", "calls_in_all", "attempts"),
    [
        ("before the body", 0, 1, [1, 2]),
        ("after the commit", 1, 2, [1, 2]),
        ("after the append", 1, 1, [1]),
    ],
)
def test_a_charge_cut_short_by_a_kill_is_made_once_under_one_key(
    where: str,
    calls_before: int,
    calls_in_all: int,
    attempts: list[int],
    run_worker: Callable[..., int],
    store: RunStore,
    provider: PaymentProvider,
) -> None:
    exit_status = run_worker(where)
    assert exit_status == -signal.SIGKILL
    assert sum(provider.keystore.values()) == calls_before

    state = Runner(store, SCRIPT, deps=provider).run(Shop, run_id=RUN_ID)

    assert state.status is Status.DONE
    assert (provider.refunds, provider.ledger) == (1, {"A1": "49.90"})
    assert provider.keystore == {KEY: calls_in_all}
    decisions = [entry.data for entry in store.journal(RUN_ID) if entry.type == "llm_decided"]
    assert [decision["attempt"] for decision in decisions] == attempts
    assert {decision["key"] for decision in decisions} == {KEY}
    assert {decision["args"]["amount"] for decision in decisions} == {"49.90"}


# A tool that is unsafe to repeat.


@pytest.mark.parametrize(
    ("where", "charged", "outcome"),
    [("before the body", 0, "did_not_happen"), ("after the commit", 1, "happened")],
)
def test_a_charge_that_nothing_protects_is_in_doubt_until_a_person_says_what_happened(
    where: str,
    charged: int,
    outcome: Any,
    run_worker: Callable[..., int],
    store: RunStore,
    provider: PaymentProvider,
) -> None:
    assert run_worker(where, "unsafe") == -signal.SIGKILL
    assert provider.refunds == charged
    runner = Runner(store, UNSAFE, deps=provider)

    first, again = runner.run(Shop, run_id=RUN_ID), runner.run(Shop, run_id=RUN_ID)

    assert (first.status, first.waiting_for) == (Status.WAITING, "doubt")
    assert "nobody can tell whether charge_without_a_key happened" in (first.doubts[0].doubt or "")
    assert again == first
    assert provider.refunds == charged
    store.settle(RUN_ID, 0, outcome, by="ann", result={"refund_id": "rf-1"} if charged else None)
    state = runner.run(Shop, run_id=RUN_ID)
    assert (state.status, state.steps[0].result["refund_id"]) == (Status.DONE, "rf-1")
    assert (provider.refunds, provider.ledger) == (1, {"A1": "49.90"})


def test_a_charge_that_nothing_protects_and_that_is_recorded_is_in_no_doubt(
    run_worker: Callable[..., int], store: RunStore, provider: PaymentProvider
) -> None:
    assert run_worker("after the append", "unsafe") == -signal.SIGKILL

    state = Runner(store, UNSAFE, deps=provider).run(Shop, run_id=RUN_ID)

    assert (state.status, provider.refunds) == (Status.DONE, 1)


@pytest.mark.parametrize(
    ("where", "attempts"), [("before the body", 2), ("after the commit", 1), ("after the append", 1)]
)
def test_a_charge_that_can_be_looked_up_is_looked_up_and_made_once(
    where: str, attempts: int, run_worker: Callable[..., int], store: RunStore, provider: PaymentProvider
) -> None:
    assert run_worker(where, "probed") == -signal.SIGKILL

    state = Runner(store, PROBED, deps=provider).run(Shop, run_id=RUN_ID)

    assert (state.status, state.steps[0].result["amount"]) == (Status.DONE, "49.90")
    assert (state.steps[0].attempt, provider.refunds, provider.ledger) == (attempts, 1, {"A1": "49.90"})


def test_the_intent_and_its_key_are_in_the_journal_before_the_provider_moves_money(
    open_store: Callable[[], RunStore], tmp_path: Path
) -> None:
    on_disk: list[tuple[str, Any, Any]] = []

    def look(_: str) -> None:
        last = open_store().journal(RUN_ID)[-1]
        on_disk.append((last.type, last.data.get("key"), last.data.get("attempt")))

    provider = PaymentProvider(tmp_path / "provider.db", before_commit=look)

    Runner(open_store(), SCRIPT, deps=provider).run(Shop, run_id=RUN_ID, goal="charge")

    assert on_disk == [("llm_decided", KEY, 1)]
    assert provider.keystore == {KEY: 1}


def die_there(folder: Path, where: str, which: str = "safe") -> None:
    points = {"before the body": BEFORE_THE_BODY, "after the append": AFTER_THE_APPEND}
    hooks = {"after_commit": lambda _: os.kill(os.getpid(), signal.SIGKILL)} if where == "after the commit" else {}
    CrashingRunner(
        RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock()),
        SCRIPTS[which],
        deps=PaymentProvider(folder / "provider.db", **hooks),
        at=points.get(where),
        die=sigkill,
    ).run(Shop, run_id=RUN_ID, goal="charge")


if __name__ == "__main__":
    die_there(Path(sys.argv[1]), *sys.argv[2:])
