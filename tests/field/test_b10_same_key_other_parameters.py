"""B10: a key goes out with the parameters that it went out with first, and to one endpoint; a mismatch is no loop.

The provider answers a key that it knows with its first answer, and refuses it with other parameters.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    Retry,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.errors import KeyMismatch
from agent_es.testing import Crash, CrashingRunner, CrashPoint, PaymentProvider

RUN_ID = "run-1"
KEY = "run-1:0:charge"
AT_ONCE = Retry(max_attempts=5, initial=0)
AFTER_THE_BODY = CrashPoint(4, "after")  # decide, append, start, next done


class BadRequest(Exception):
    """Status 400: the key is known with other parameters."""


@dataclass
class Provider:
    """Moves money once per key; ``drops`` connections after that many commits."""

    drops: int = 0
    sent: list[tuple[str, str]] = field(default_factory=list)
    answers: dict[str, tuple[str, str]] = field(default_factory=dict)

    def post(self, endpoint: str, key: str | None, **parameters: Any) -> str:
        body = json.dumps([endpoint, parameters], sort_keys=True)
        self.sent.append((key or "", body))
        if key in self.answers and self.answers[key][0] != body:
            raise BadRequest(f"{key} came with {self.answers[key][0]} before")
        answer = self.answers.setdefault(key or f"no key {len(self.sent)}", (body, f"{endpoint}-{len(self.answers)}"))
        if self.drops:
            self.drops -= 1
            raise ConnectionResetError("the connection was dropped")
        return answer[1]


class Shop(AgentRun):
    """Charges; says of a mismatch what it is."""

    retry = AT_ONCE

    @tool(effect=Effect.IDEMPOTENT)
    def charge(self, ctx: ToolContext[Provider], amount: int, metadata: dict[str, Any]) -> str:
        return ctx.deps.post("charges", ctx.idempotency_key, amount=amount, metadata=metadata)

    @tool(effect=Effect.IDEMPOTENT)
    def charge_with_the_attempt(self, ctx: ToolContext[Provider], amount: int) -> str:
        """Build another request at each attempt, which no key covers."""
        try:
            return ctx.deps.post("charges", ctx.idempotency_key, amount=amount, attempt=ctx.attempt)
        except BadRequest as refused:
            raise KeyMismatch(str(refused)) from refused

    @tool(effect=Effect.IDEMPOTENT, key="{order}")
    def charge_an_order(self, ctx: ToolContext[Provider], order: str, amount: int) -> str:
        try:
            return ctx.deps.post("charges", ctx.idempotency_key, amount=amount)
        except BadRequest as refused:
            raise KeyMismatch(str(refused)) from refused

    @tool(effect=Effect.IDEMPOTENT)
    def invoice(self, ctx: ToolContext[Provider], amount: int) -> list[str]:
        """Create an invoice and pay it: two calls, two keys."""
        created = ctx.deps.post("invoices", ctx.subkey("create"), amount=amount)
        return [created, ctx.deps.post("payments", ctx.subkey("pay"), invoice=created)]


class Till(AgentRun):
    """Charges through the provider of the crash kit, another amount at each attempt."""

    @tool(effect=Effect.IDEMPOTENT, retry=AT_ONCE)
    def charge(self, ctx: ToolContext[PaymentProvider]) -> str:
        ctx.deps.refund("A1", Decimal(ctx.attempt), key=ctx.idempotency_key)
        raise ConnectionResetError("the connection was dropped")


class ForgetfulModel:
    """Builds its arguments anew each time that it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        if run.turns:
            return Finish("charged")
        self.asked += 1
        return CallTool(
            "charge", {"amount": 1212, "metadata": {"attempt": self.asked, "at": f"12:00:0{self.asked}Z"}}
        )


def dropped(store: RunStore, model: ForgetfulModel, provider: Provider) -> None:
    """The connection drops after the provider's commit, and the runner tries again."""
    provider.drops = 1
    Runner(store, model, deps=provider).run(Shop, run_id=RUN_ID, goal="charge")


def killed(store: RunStore, model: ForgetfulModel, provider: Provider) -> None:
    """The worker dies after the provider's commit, and another one goes on."""
    with pytest.raises(Crash):
        CrashingRunner(store, model, deps=provider, at=AFTER_THE_BODY).run(Shop, run_id=RUN_ID, goal="charge")
    Runner(store, model, deps=provider).run(Shop, run_id=RUN_ID)


@pytest.mark.parametrize("cut_short", [dropped, killed])
def test_a_second_attempt_sends_byte_for_byte_what_the_first_one_sent(
    cut_short: Callable[[RunStore, ForgetfulModel, Provider], None], store: RunStore
) -> None:
    model, provider = ForgetfulModel(), Provider()

    cut_short(store, model, provider)

    state = store.load(RUN_ID)
    assert (state.status, state.steps[0].result, state.steps[0].attempt) == (Status.DONE, "charges-0", 2)
    first, second = provider.sent
    assert first == second
    assert first[0] == KEY
    assert '"at": "12:00:01Z"' in first[1]
    assert (len(provider.answers), model.asked) == (1, 1)
    decisions = [entry.data["args"] for entry in store.journal(RUN_ID) if entry.type == "llm_decided"]
    assert decisions[0] == decisions[1]


@pytest.mark.parametrize("drops", [0, 1, 2, 3])
def test_two_calls_of_one_step_have_two_keys_that_are_the_same_on_a_retry(drops: int, store: RunStore) -> None:
    provider = Provider(drops)
    script = ScriptedDecider([CallTool("invoice", {"amount": 5}), Finish("paid")])

    state = Runner(store, script, deps=provider).run(Shop, run_id=RUN_ID, goal="invoice")

    assert state.steps[0].result == ["invoices-0", "payments-1"]
    assert set(provider.answers) == {"run-1:0:invoice/create", "run-1:0:invoice/pay"}
    assert len(set(provider.sent)) == 2


def test_a_mismatch_after_an_attempt_is_in_doubt_and_is_not_sent_again(store: RunStore) -> None:
    provider = Provider(drops=1)
    script = ScriptedDecider([CallTool("charge_with_the_attempt", {"amount": 5})])

    state = Runner(store, script, deps=provider).run(Shop, run_id=RUN_ID, goal="charge")

    assert (state.waiting_for, len(provider.sent), len(provider.answers)) == ("doubt", 2, 1)
    (doubt,) = state.doubts
    assert "KeyMismatch" in (doubt.doubt or "")


def test_a_mismatch_that_the_provider_of_the_crash_kit_tells_is_not_sent_again_either(
    store: RunStore, provider: PaymentProvider
) -> None:
    state = Runner(store, ScriptedDecider([CallTool("charge")]), deps=provider).run(
        Till, run_id=RUN_ID, goal="charge"
    )

    assert (state.waiting_for, state.steps[0].attempt, provider.refunds) == ("doubt", 2, 1)


def test_a_mismatch_at_the_first_attempt_is_a_failure_that_the_model_sees_and_is_not_sent_again(
    store: RunStore,
) -> None:
    provider = Provider()
    provider.post("charges", "A1", amount=7)  # by somebody else
    script = ScriptedDecider([CallTool("charge_an_order", {"order": "A1", "amount": 5}), Finish("told")])

    state = Runner(store, script, deps=provider).run(Shop, run_id=RUN_ID, goal="charge")

    assert (state.status, len(provider.sent)) == (Status.DONE, 2)
    error = state.steps[0].error or {}
    assert (error["type"], error["applied"]) == ("KeyMismatch", False)
