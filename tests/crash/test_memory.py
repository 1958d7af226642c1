"""Memory under crashes: at every place, a run summarizes, remembers and reads on as if nothing had happened."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from agent_es import AgentRun, CallTool, ClosePhase, Finish, Memory, RunState, ToolContext, ToolSpec, tool
from agent_es.decider import Answered, Said, Unusable, Used
from agent_es.scratchpad import active
from agent_es.testing import Ending, PaymentProvider, Scenario

PAGES = 4


class ReadsAndPays(AgentRun):
    """Reads pages, pays for each, and remembers what it paid."""

    @tool(effect="read")
    def read(self, ctx: ToolContext[PaymentProvider], page: int) -> str:
        ctx.remember(f"page {page}", Decimal(page) / 4)
        return f"page {page} " + "x" * 600

    @tool(effect="idempotent", key="page {page}")
    def pay(self, ctx: ToolContext[PaymentProvider], page: int) -> dict[str, str]:
        ctx.remember("paid", page)
        return ctx.deps.refund(f"page {page}", Decimal(1), key=ctx.idempotency_key)


class Reader:
    """A model that reads and pays page after page, closes a phase, mumbles once, and tells what it remembers.

    What it says lies in its answers, so that a state in which one is missing is another one.
    """

    memory = Memory(cap=400, keep=1, longest_result=300)

    def decide(self, run: RunState, _tools: Sequence[ToolSpec], /) -> Answered:
        read = "".join(entry.text for entry in active(run, longest=self.memory.longest_result))
        said = Said("test", {"read": read})
        decision: Any = Finish(run.facts)
        if run.turns == 1 and not run.unusable:
            decision = Unusable("it was cut")
        elif run.turns == 2 and "reading" not in [one.phase for one in run.summaries]:
            decision = ClosePhase("reading", "Two pages were read.")
        elif run.turns < PAGES:
            decision = [CallTool("read", {"page": run.turns}), CallTool("pay", {"page": run.turns})]
        return Used(decision, tokens=len(read) // 4, said=said)


def each_page_was_paid_once_and_is_remembered(ending: Ending) -> None:
    assert ending.world.ledger == {f"page {page}": "1.00" for page in range(PAGES)}
    assert ending.state.answer == {
        **{f"page {page}": str(Decimal(page) / 4) for page in range(PAGES)},
        "paid": PAGES - 1,
    }
    assert {"answer_unusable", "summarized", "fact_recorded", "llm_answered"} <= {one.type for one in ending.journal}
    assert [one.phase for one in ending.state.summaries if one.phase] == ["reading"]


SCENARIO = Scenario(
    agent=ReadsAndPays,
    decider=Reader(),
    world=lambda folder: PaymentProvider(folder / "provider.db"),
    invariant=each_page_was_paid_once_and_is_remembered,
)


def test_a_run_with_a_memory_survives_a_sample_of_crashes(crash_kit: Any) -> None:
    replace(crash_kit, points="sample", size=12).survives(SCENARIO)


@pytest.mark.crash
def test_a_run_with_a_memory_survives_a_crash_anywhere(crash_kit: Any) -> None:
    crash_kit.survives(SCENARIO)
