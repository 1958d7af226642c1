"""Four agents with a bug that no happy path shows, and what mends them: scenarios for the crash kit.

Try one, in the folder of the checkout: agent-es fuzz examples.broken_agents:no_key
"""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    RunState,
    ScriptedDecider,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.testing import Ending, PaymentProvider, Scenario

PLAN = (CallTool("refund", {"order_id": "ORD-3300", "amount": 180.0}), Finish("refunded"))


def open_provider(folder: Path) -> PaymentProvider:
    """Open the provider: its ledger outlives every worker."""
    return PaymentProvider(folder / "provider.db")


def paid_once(ending: Ending) -> None:
    """Hold where the order was refunded once."""
    assert ending.world.ledger == {"ORD-3300": "180.00"}, ending.world.ledger  # noqa: S101  # an invariant


class Clerk(AgentRun):
    """Refund an order, as it should be done."""

    decider = ScriptedDecider(PLAN)

    @tool(effect=Effect.IDEMPOTENT)
    def refund(self, ctx: ToolContext[PaymentProvider], order_id: str, amount: Decimal) -> dict[str, str]:
        """Refund an order through the payment provider."""
        return ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)


mended = Scenario(agent=Clerk, world=open_provider, invariant=paid_once)


# The tool says that its provider honours keys, and sends none.


class NoKey(AgentRun):
    """Refund an order under no key."""

    decider = ScriptedDecider(PLAN)

    @tool(effect=Effect.IDEMPOTENT)
    def refund(self, ctx: ToolContext[PaymentProvider], order_id: str, amount: Decimal) -> dict[str, str]:
        """Refund an order through the payment provider."""
        return ctx.deps.refund(order_id, amount, key=None)


no_key = Scenario(agent=NoKey, world=open_provider, invariant=paid_once)


# The tool makes a key of its own, in which two returns of the same price are one.


class KeyByArguments(AgentRun):
    """Refund two returns of one order, each 20.00."""

    decider = ScriptedDecider(
        [
            CallTool("refund", {"order_id": "ORD-3301", "return_id": "RET-1", "amount": 20}),
            CallTool("refund", {"order_id": "ORD-3301", "return_id": "RET-2", "amount": 20}),
            Finish("refunded"),
        ]
    )

    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:{return_id}:refund")
    def refund(
        self,
        ctx: ToolContext[PaymentProvider],
        order_id: str,
        return_id: str,  # noqa: ARG002  # it is for the key
        amount: Decimal,
    ) -> dict[str, str]:
        """Refund a return through the payment provider."""
        return ctx.deps.refund(order_id, amount, key=f"{order_id}:refund:{amount:.2f}")


class KeyOfTheStep(KeyByArguments):
    """Refund two returns of one order, each under the key of its step."""

    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:{return_id}:refund")
    def refund(
        self,
        ctx: ToolContext[PaymentProvider],
        order_id: str,
        return_id: str,  # noqa: ARG002  # it is for the key
        amount: Decimal,
    ) -> dict[str, str]:
        """Refund a return through the payment provider."""
        return ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)


def both_paid(ending: Ending) -> None:
    """Hold where both returns were refunded."""
    assert ending.world.ledger == {"ORD-3301": "40.00"}, ending.world.ledger  # noqa: S101  # an invariant


key_by_arguments = Scenario(agent=KeyByArguments, world=open_provider, invariant=both_paid)
key_by_arguments_mended = Scenario(agent=KeyOfTheStep, world=open_provider, invariant=both_paid)


# The decider acts, and only then says what it decided.


class ActsItself:
    """Refunds the order while it decides, as a model client does that calls tools by itself."""

    provider: ClassVar[PaymentProvider]

    def decide(self, _run: RunState, _tools: Sequence[ToolSpec], /) -> Decision:
        """Refund the order, and answer with the receipt."""
        return Finish(self.provider.refund("ORD-3300", Decimal(180), key=None))


def open_where_the_decider_sees_it(folder: Path) -> PaymentProvider:
    """Open the provider for tools, and for the decider."""
    ActsItself.provider = open_provider(folder)
    return ActsItself.provider


effect_while_deciding = Scenario(
    agent=Clerk, decider=ActsItself(), world=open_where_the_decider_sees_it, invariant=paid_once
)


# The decider counts its turns in a variable, which dies with its worker.


class CountsItself:
    """Follows the plan, from its top wherever it is made anew."""

    def __init__(self) -> None:
        self.turns = 0

    def decide(self, _run: RunState, _tools: Sequence[ToolSpec], /) -> Decision:
        """Return the next line of the plan."""
        self.turns += 1
        return PLAN[self.turns - 1]


class LooksAtTheRun:
    """Follows the plan from where the run is."""

    def decide(self, run: RunState, _tools: Sequence[ToolSpec], /) -> Decision:
        """Return the line of the turn that the run is at."""
        return PLAN[run.turns]


state_in_a_variable = Scenario(agent=Clerk, decider=CountsItself(), world=open_provider, invariant=paid_once)
state_in_a_variable_mended = Scenario(agent=Clerk, decider=LooksAtTheRun(), world=open_provider, invariant=paid_once)
