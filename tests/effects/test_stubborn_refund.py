"""The stubborn refund: a provider that keeps its first answer per key, a time-out, a kill, and another day."""

import signal
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Finish,
    NotApplied,
    Retry,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.testing import PaymentProvider

Play = Callable[..., RunState]
CALL = CallTool("refund", {"order_id": "ORD-3300", "amount": 180.0})
SCRIPT: list[Decision] = [CALL, Finish("refunded")]


class Refunds(AgentRun):
    """Refund an order."""

    @tool(effect="idempotent", key="{order_id}:refund:{amount:.2f}", retry=Retry(max_attempts=5, initial=0.01))
    def refund(self, ctx: ToolContext[Any], order_id: str, amount: Decimal) -> dict[str, str]:
        return ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)


STUBBORN = """
import os, signal, sys
from decimal import Decimal
from agent_es import AgentRun, CallTool, Finish, Retry, RunStore, ToolContext, tool
from agent_es.testing import PaymentProvider

class Refunds(AgentRun):
    @tool(effect="idempotent", key="{order_id}:refund:{amount:.2f}", retry=Retry(max_attempts=5, initial=0.01))
    def refund(self, ctx: ToolContext[PaymentProvider], order_id: str, amount: Decimal) -> dict[str, str]:
        answer = ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)
        if ctx.attempt == 1:
            raise TimeoutError("the answer was lost")
        if ctx.attempt == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

class Model:
    def decide(self, run, tools):
        print("asked", run.turns, flush=True)
        calls = CallTool("refund", {"order_id": "ORD-3300", "amount": 180.0})
        return Finish("refunded") if run.turns else calls

from agent_es import Runner
Runner(RunStore(sys.argv[1]), Model(), deps=PaymentProvider(sys.argv[2])).run(Refunds, run_id="rf-1", goal="refund")
"""


def test_a_time_out_and_a_kill_later_there_is_one_refund_and_the_model_was_asked_once(
    store: RunStore, tmp_path: Path
) -> None:
    provider = PaymentProvider(tmp_path / "provider.db")
    command = [sys.executable, "-c", STUBBORN, store.url, str(provider.path)]

    lives = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(2)]

    assert [life.returncode for life in lives] == [-signal.SIGKILL, 0], lives[1].stderr
    assert "".join(life.stdout for life in lives).splitlines() == ["asked 0", "asked 1"]
    assert (provider.ledger, provider.refunds) == ({"ORD-3300": "180.00"}, 1)
    assert provider.keystore == {"ORD-3300:refund:180.00": 3}
    marks = [entry.data["attempt"] for entry in store.journal("rf-1") if entry.type == "llm_decided"]
    assert marks == [1, 2, 3]
    assert store.load("rf-1").steps[0].result["refund_id"] == "rf-1"


class KeepsItsFailure(PaymentProvider):
    """Keeps a 500 under the first key that it sees, and answers that for ever."""

    failed: str | None = None

    def refund(self, order_id: str, amount: Decimal, *, key: str | None) -> dict[str, str]:
        self.failed = self.failed or key
        if key == self.failed:
            raise ConnectionError("500")
        return super().refund(order_id, amount, key=key)


def test_a_failure_that_is_kept_under_the_key_ends_in_doubt_and_starts_anew_under_another(
    play: Play, store: RunStore, tmp_path: Path
) -> None:
    provider = KeepsItsFailure(tmp_path / "provider.db")
    doubtful = play(Refunds, SCRIPT, provider, run_id="rf-1")

    store.settle("rf-1", 0, "did_not_happen", by="ann")
    state = play(Refunds, SCRIPT, provider, run_id="rf-1")

    assert (doubtful.waiting_for, doubtful.steps[0].attempt) == ("doubt", 5)
    assert state.status is Status.DONE
    assert provider.refunds == 1
    assert list(provider.keystore) == ["ORD-3300:refund:180.00#2"]


class TellsWhatItSaw:
    """Calls once, and finishes with what the call came to."""

    def decide(self, run: RunState, tools: list[ToolSpec], /) -> Decision:
        if not run.turns:
            return CALL
        step = run.steps[0]
        return Finish("refunded" if step.status == "done" else f"not refunded: {step.error}")


def test_another_day_the_same_refund_is_refused_loudly(play: Play, store: RunStore, tmp_path: Path) -> None:
    provider = PaymentProvider(tmp_path / "provider.db")
    play(Refunds, SCRIPT, provider, run_id="rf-1")

    state = play(Refunds, [], provider, run_id="rf-2", decider=TellsWhatItSaw())

    assert provider.ledger == {"ORD-3300": "180.00"}
    assert "step 0 of run rf-1 holds it with the same arguments" in state.answer
    assert "is done with" in state.answer


def test_another_day_a_second_broken_item_is_paid_where_the_key_says_which(play: Play, tmp_path: Path) -> None:
    class PerItem(AgentRun):
        @tool(effect="idempotent", key="{order_id}:{item}:refund")
        def refund(self, ctx: ToolContext[Any], order_id: str, amount: Decimal, item: str) -> dict[str, str]:
            return ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)

    provider = PaymentProvider(tmp_path / "provider.db")
    for run_id, item in (("rf-1", "lamp"), ("rf-2", "shade")):
        script = [CallTool("refund", {**CALL.args, "item": item}), Finish("refunded")]
        assert play(PerItem, script, provider, run_id=run_id).answer == "refunded"

    assert provider.ledger == {"ORD-3300": "360.00"}


def test_return_first_gives_a_second_call_what_the_first_one_gave(
    play: Play, store: RunStore, tmp_path: Path
) -> None:
    class Idle(AgentRun):
        @tool(effect="idempotent", key="{order_id}:refund", on_key_reuse="return_first")
        def refund(self, ctx: ToolContext[Any], order_id: str, amount: Decimal) -> dict[str, str]:
            return ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)

    provider = PaymentProvider(tmp_path / "provider.db")
    first = play(Idle, SCRIPT, provider, run_id="rf-1")
    second = play(Idle, SCRIPT, provider, run_id="rf-2")
    other = play(Idle, [CallTool("refund", {**CALL.args, "amount": 1}), Finish("x")], provider, run_id="rf-3")

    assert second.steps[0].result == first.steps[0].result
    assert (second.steps[0].attempt, provider.keystore) == (0, {"ORD-3300:refund": 1})
    assert "OTHER ARGUMENTS" in (other.steps[0].error or {})["message"]


def test_a_refusal_by_the_provider_frees_the_key_for_another_try(play: Play, tmp_path: Path) -> None:
    class Declines(PaymentProvider):
        declined = False

        def refund(self, order_id: str, amount: Decimal, *, key: str | None) -> dict[str, str]:
            if not self.declined:
                self.declined = True
                raise NotApplied("the card has expired")
            return super().refund(order_id, amount, key=key)

    provider = Declines(tmp_path / "provider.db")
    state = play(Refunds, [CALL, CALL, Finish("refunded")], provider)

    assert [step.status for step in state.steps] == ["failed", "done"]
    assert [step.key for step in state.steps] == ["ORD-3300:refund:180.00", "ORD-3300:refund:180.00#2"]
    assert provider.refunds == 1


def test_a_tool_that_makes_several_calls_gives_each_a_key_of_its_own(play: Play, tmp_path: Path) -> None:
    class Invoices(AgentRun):
        @tool(effect="idempotent", key="{invoice}:pay")
        def pay(self, ctx: ToolContext[list[str]], invoice: str) -> str:
            ctx.deps.extend([ctx.subkey("create"), ctx.subkey("pay/now")])
            if len(ctx.deps) < 4:
                raise TimeoutError
            return "paid"

    sent: list[str] = []
    play(Invoices, [CallTool("pay", {"invoice": "INV-7"}), Finish("paid")], sent)

    assert sent == ["INV-7:pay/create", "INV-7:pay/pay%2Fnow"] * 2
