"""B04: killed before the body, after the provider's commit, or after the append of the result: one charge.

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

RUN_ID = "run-1"
KEY = "run-1:0:charge"

BEFORE_THE_BODY = CrashPoint(4, "before")  # decide, append, start, next done
AFTER_THE_APPEND = CrashPoint(5, "after")  # append of the result


class Shop(AgentRun):
    """Charges for an order."""

    @tool(effect=Effect.IDEMPOTENT)
    def charge(self, ctx: ToolContext[PaymentProvider], order: str, amount: Decimal) -> dict[str, str]:
        return ctx.deps.refund(order, amount, key=ctx.idempotency_key)  # money moves, whichever way


SCRIPT = ScriptedDecider([Shop.charge.call(order="A1", amount=Decimal("49.90")), Finish("charged")])


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


def die_there(folder: Path, where: str) -> None:
    points = {"before the body": BEFORE_THE_BODY, "after the append": AFTER_THE_APPEND}
    hooks = {"after_commit": lambda _: os.kill(os.getpid(), signal.SIGKILL)} if where == "after the commit" else {}
    CrashingRunner(
        RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock()),
        SCRIPT,
        deps=PaymentProvider(folder / "provider.db", **hooks),
        at=points.get(where),
        die=sigkill,
    ).run(Shop, run_id=RUN_ID, goal="charge")


if __name__ == "__main__":
    die_there(Path(sys.argv[1]), sys.argv[2])
