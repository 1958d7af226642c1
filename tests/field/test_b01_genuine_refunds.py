"""B01: two genuine refunds with the same arguments are two refunds, also when the second is cut short.

Run as a program, this file is the worker that dies when the provider has posted the second refund.
"""

import os
import signal
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

from agent_es import AgentRun, CallTool, Effect, Finish, Runner, RunStore, ScriptedDecider, Status, ToolContext, tool
from agent_es.testing import FrozenClock, PaymentProvider

REFUND = {"order": "A1", "amount": "10.00"}


class Support(AgentRun):
    """Answers a customer, and pays back what is broken."""

    @tool(effect=Effect.IDEMPOTENT)
    def refund(self, ctx: ToolContext[PaymentProvider], order: str, amount: Decimal) -> dict[str, str]:
        return ctx.deps.refund(order, amount, key=ctx.idempotency_key)

    @tool(effect=Effect.READ)
    def read_mail(self) -> str:
        return "a second item came broken"


class Warranty(AgentRun):
    """Another agent, with a tool of the same name."""

    @tool(effect=Effect.IDEMPOTENT)
    def refund(self, ctx: ToolContext[PaymentProvider], order: str, amount: Decimal) -> dict[str, str]:
        return ctx.deps.refund(order, amount, key=ctx.idempotency_key)


class Till(AgentRun):
    """Keys a refund by what it refunds: one intent, once in the whole store."""

    @tool(effect=Effect.IDEMPOTENT, key="{order}:refund:{amount:.2f}")
    def refund(self, ctx: ToolContext[PaymentProvider], order: str, amount: Decimal) -> dict[str, str]:
        return ctx.deps.refund(order, amount, key=ctx.idempotency_key)


TWO_REFUNDS = ScriptedDecider(
    [
        CallTool("refund", REFUND, call_id="c1"),
        CallTool("read_mail"),
        CallTool("read_mail"),
        CallTool("refund", REFUND, call_id="c9"),
        Finish("both are paid back"),
    ]
)
ONE_REFUND = ScriptedDecider([CallTool("refund", REFUND, call_id="c1"), Finish("paid back")])


def test_a_second_refund_with_the_same_arguments_is_paid_once_though_its_worker_is_killed(
    run_worker: Callable[..., int], store: RunStore, provider: PaymentProvider
) -> None:
    exit_status = run_worker()
    assert exit_status == -signal.SIGKILL
    assert provider.keystore == {"run-1:0:refund": 1, "run-1:3:refund": 1}

    state = Runner(store, TWO_REFUNDS, deps=provider).run(Support, run_id="run-1")

    assert state.status is Status.DONE
    assert provider.keystore == {"run-1:0:refund": 1, "run-1:3:refund": 2}
    assert (provider.refunds, provider.ledger) == (2, {"A1": "20.00"})
    answered = {step.call_id: step.result["refund_id"] for step in state.steps if step.tool == "refund"}
    assert answered == {"c1": "rf-1", "c9": "rf-2"}


def test_the_same_refund_in_another_run_or_of_another_agent_has_a_key_of_its_own(
    store: RunStore, provider: PaymentProvider
) -> None:
    Runner(store, TWO_REFUNDS, deps=provider).run(Support, run_id="run-1", goal="refund")

    Runner(store, ONE_REFUND, deps=provider).run(Support, run_id="run-2", goal="refund")
    Runner(store, ONE_REFUND, deps=provider).run(Warranty, run_id="run-3", goal="refund")

    assert provider.keystore == {
        "run-1:0:refund": 1,
        "run-1:3:refund": 1,
        "run-2:0:refund": 1,
        "run-3:0:refund": 1,
    }
    assert (provider.refunds, provider.ledger) == (4, {"A1": "40.00"})


def test_a_key_made_of_the_arguments_refuses_the_second_refund_loudly_and_swallows_nothing(
    store: RunStore, provider: PaymentProvider
) -> None:
    script = ScriptedDecider([CallTool("refund", REFUND, "c1"), CallTool("refund", REFUND, "c9"), Finish("tried")])

    state = Runner(store, script, deps=provider).run(Till, run_id="run-1", goal="refund")

    first, second = state.steps
    assert (first.status, first.result["refund_id"]) == ("done", "rf-1")
    assert (second.status, second.result) == ("failed", None)
    assert second.error is not None
    assert second.error["type"] == "KeyReused"
    assert "step 0 of run run-1" in second.error["message"]
    assert (provider.refunds, provider.keystore) == (1, {"A1:refund:10.00": 1})


def die_at_the_second_refund(folder: Path) -> None:
    def die(_: str) -> None:
        if provider.refunds == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    provider = PaymentProvider(folder / "provider.db", after_commit=die)
    store = RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock())
    Runner(store, TWO_REFUNDS, deps=provider).run(Support, run_id="run-1", goal="refund")


if __name__ == "__main__":
    die_at_the_second_refund(Path(sys.argv[1]))
