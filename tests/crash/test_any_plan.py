"""Any plan of turns, crashed anywhere: one refund per intended refund, and the uncrashed run's state."""

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    RunState,
    ScriptedDecider,
    Status,
    ToolContext,
    tool,
)
from agent_es.state import Steps
from agent_es.testing import Ending, PaymentProvider, Scenario, essence

MAX_STEPS = 12


class Clerk(AgentRun):
    """Looks things up, and refunds; a refund is keyed by its step, or by what it is for."""

    @tool(effect=Effect.READ)
    def look_up(self, query: str) -> dict[str, str]:
        return {"query": query, "order": "of no importance"}

    @tool(effect=Effect.READ)
    def break_down(self, query: str) -> str:
        raise LookupError(query)

    @tool(effect=Effect.IDEMPOTENT)
    def refund(self, ctx: ToolContext[PaymentProvider], order_id: str) -> dict[str, str]:
        return ctx.deps.refund(order_id, Decimal("10.00"), key=ctx.idempotency_key)

    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:{nth}")
    def refund_nth(self, ctx: ToolContext[PaymentProvider], order_id: str, nth: int) -> dict[str, str]:
        return ctx.deps.refund(order_id, Decimal("10.00"), key=ctx.idempotency_key)


reads = st.builds(
    lambda tool, query: CallTool(tool, {"query": query}),
    st.sampled_from(["look_up", "break_down"]),
    st.text(max_size=3),
)
refunds = st.builds(lambda order: CallTool("refund", {"order_id": order}), st.sampled_from("AB"))


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Decision], Counter[str]]:
    """A script, and the refunds that it means."""
    script: list[Decision] = []
    intended: Counter[str] = Counter()
    left = draw(st.integers(1, MAX_STEPS))
    nth = 0
    while left:
        turn = draw(st.lists(reads | refunds | st.just(None), min_size=1, max_size=min(3, left)))
        calls = []
        for call in turn:
            nth += call is None
            calls.append(call or CallTool("refund_nth", {"order_id": "C", "nth": nth}))
        intended.update(str(call.args["order_id"]) for call in calls if call.tool.startswith("refund"))
        script.append(calls)
        left -= len(calls)
    return [*script, Finish("done")], intended


def but_for_receipts(state: RunState) -> RunState:
    """What must be as without a crash: the receipts' numbers say in which order refunds were posted."""
    same = essence(state)
    steps = [
        (*step[:8], "a receipt", *step[9:]) if step.tool.startswith("refund") else tuple(step) for step in same.steps
    ]
    return replace(same, steps=Steps(steps, len(steps), ()))  # type: ignore[arg-type]


@given(plans(), st.integers(1, 3), st.integers(0, 1 << 16))
# An example is dozens of lives: shrinking would take hours.
@pytest.mark.crash
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
def test_any_plan_crashed_anywhere_refunds_what_was_meant_once(
    crash_kit: Any, plan: tuple[list[Decision], Counter[str]], at_once: int, seed: int
) -> None:
    script, intended = plan

    def refunds_what_was_meant(ending: Ending) -> None:
        assert ending.state.status is Status.DONE
        assert Counter(order for order, _ in ending.world.effects()) == intended

    scenario = Scenario(
        agent=Clerk,
        decider=ScriptedDecider(script),
        world=lambda folder: PaymentProvider(folder / "provider.db"),
        invariant=refunds_what_was_meant,
        at_once=at_once,
        same=but_for_receipts,
    )
    replace(crash_kit, points="sample", seed=seed, size=12).survives(scenario, crashes=2)
