"""An agent that keeps facts, closes a phase, and whose decider once says nothing of use: for the crash kit.

Try it, in the folder of the checkout: agent-es fuzz examples.remembering:remembering
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from agent_es import (
    AgentRun,
    CallTool,
    ClosePhase,
    Finish,
    Memory,
    RunState,
    Said,
    ToolContext,
    ToolSpec,
    Unusable,
    Used,
    tool,
)
from agent_es.decider import Answered
from agent_es.scratchpad import active
from agent_es.testing import Ending, PaymentProvider, Scenario

PAGES = 4


class ReadsAndPays(AgentRun):
    """Reads pages, pays for each, and remembers what it paid."""

    @tool(effect="read")
    def read(self, ctx: ToolContext[PaymentProvider], page: int) -> str:
        """Read a page, and keep its price."""
        ctx.remember(f"page {page}", Decimal(page) / 4)
        ctx.remember("latest", f"page {page} is read")
        return f"page {page} " + "x" * 600

    @tool(effect="idempotent", key="page {page}")
    def pay(self, ctx: ToolContext[PaymentProvider], page: int) -> dict[str, str]:
        """Pay for a page."""
        ctx.remember("latest", f"page {page} is paid")
        return ctx.deps.refund(f"page {page}", Decimal(1), key=ctx.idempotency_key)


class Reader:
    """Reads and pays page after page, closes a phase, mumbles once, and tells what it remembers.

    What it is shown lies in what it says, so that a run in which it was shown something else is another one.
    """

    memory = Memory(cap=400, keep=1, longest_result=300)

    def decide(self, run: RunState, _tools: Sequence[ToolSpec], /) -> Answered:
        """Return what comes next, and what it was read from."""
        read = "".join(entry.text for entry in active(run, longest=self.memory.longest_result))
        decision: Any = Finish(run.facts)
        if run.turns == 1 and not run.unusable:
            decision = Unusable("it was cut")
        elif run.turns == 2 and run.summarized < len(run.steps):  # noqa: PLR2004  # two pages are read
            decision = ClosePhase("reading", "Two pages were read.")
        elif run.turns < PAGES:
            decision = [CallTool("read", {"page": run.turns}), CallTool("pay", {"page": run.turns})]
        return Used(decision, tokens=len(read) // 4, said=Said("test", {"read": read}))


def paid_once_and_remembered(ending: Ending) -> None:
    """Hold where each page was paid once, and every fact is there at the end."""
    prices = {f"page {page}": str(Decimal(page) / 4) for page in range(PAGES)}
    assert ending.world.ledger == dict.fromkeys(prices, "1.00")  # noqa: S101
    assert ending.state.answer == {**prices, "latest": f"page {PAGES - 1} is paid"}  # noqa: S101
    assert [one.phase for one in ending.state.summaries if one.phase] == ["reading"]  # noqa: S101
    said = [answer.turn for answer in ending.state.answers]
    assert said[-2:] == [PAGES - 1, PAGES], said  # noqa: S101


remembering = Scenario(
    agent=ReadsAndPays,
    decider=Reader(),
    world=lambda folder: PaymentProvider(folder / "provider.db"),
    invariant=paid_once_and_remembered,
)
