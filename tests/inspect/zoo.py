"""A store with runs of every kind: done, asleep, asking, in doubt, and some that others wrote in bad faith."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from agent_es import (
    AgentRun,
    Approval,
    Ask,
    Budget,
    CallTool,
    Decision,
    Effect,
    Envelope,
    Fail,
    Finish,
    OutcomeUnknown,
    Retry,
    Runner,
    RunStore,
    ScriptedDecider,
    Sleep,
    ToolContext,
    Used,
    WaitFor,
    tool,
)
from agent_es.demo import PROVIDER_DB, RefundRun
from agent_es.testing import PaymentProvider
from agent_es.testing.crash import Crash, CrashingRunner

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "</pre></details><style>*{display:none}</style>"
    "\x1b[2J\x1b[31mred\x1b]8;;http://example.invalid\x07link \u202etxet desrever\u202c {{ 7 * 7 }} \x00 ]]> '\"&amp;"
)
"""What a model, a tool or a person may have written."""


class ShopRun(AgentRun):
    """Everything that a small shop's agent does."""

    @tool(effect=Effect.READ)
    def look_up(self, ctx: ToolContext, order_id: str) -> dict[str, Any]:
        """Look up an order, and remember what it came to."""
        ctx.remember("total", "180.00")
        return {"order_id": order_id, "total": "180.00", "paid": True}

    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:pay:{amount:.2f}")
    def pay(self, order_id: str, amount: Decimal) -> str:
        """Pay an order."""
        return f"paid {amount} for {order_id}"

    @tool(effect=Effect.AT_MOST_ONCE)
    def mail(self, to: str, text: str) -> str:
        """Send a mail; nobody knows whether it went out."""
        raise OutcomeUnknown(f"the connection was lost while mailing {to}: {text[:20]}")

    @tool(effect=Effect.READ, retry=Retry(max_attempts=3, initial=0.01, jitter=0.0))
    def flaky(self, ctx: ToolContext) -> str:
        """Fail twice."""
        if ctx.attempt < 3:
            raise ConnectionError(f"no route to the warehouse, attempt {ctx.attempt}")
        return "in stock"

    @tool(effect=Effect.READ)
    def echo(self, text: str) -> str:
        """Give a text back."""
        return text

    @tool(effect=Effect.READ)
    def large(self, size: int) -> str:
        """Give a text of so many characters."""
        return "0123456789abcdef" * (size // 16)


ORDER = "ORD-3300"
LIMITED = Envelope(
    needs_approval=(Approval(call="pay.amount > 200", by=("dana", "ann"), within=timedelta(hours=1)),),
    budget=Budget(tokens=5_000, cost=Decimal("0.50"), calls={"pay": 3}),
)


def used(decision: Decision | Sequence[CallTool]) -> Used:
    """Return a decision with what it took."""
    return Used(decision, tokens=420, cost=Decimal("0.0125"))


STORIES: dict[str, tuple[list[Any], Envelope | None]] = {
    "done-1": ([CallTool("look_up", {"order_id": ORDER}), Finish("It came to 180.00.")], None),
    "parallel-1": (
        [[CallTool("look_up", {"order_id": f"ORD-{n}"}) for n in range(3)], CallTool("flaky", {}), Finish("looked")],
        None,
    ),
    "asleep-1": ([CallTool("look_up", {"order_id": ORDER}), Sleep(timedelta(days=7)), Finish("awake")], None),
    "awaits-1": ([WaitFor("paid", timeout=timedelta(days=14)), Finish("paid")], None),
    "asking-1": ([Ask("To which card?", choices=["the old one", "the new one"]), Finish("asked")], None),
    "approval-1": (
        [used(CallTool("look_up", {"order_id": ORDER})),
         used(CallTool("pay", {"order_id": ORDER, "amount": "480.00"})), used(Finish("paid"))],
        LIMITED,
    ),
    "doubt-1": ([CallTool("mail", {"to": "ann@example.com", "text": "It is on its way."}), Finish("mailed")], None),
    "failed-1": ([CallTool("look_up", {"order_id": ORDER}), Fail("the order is older than the shop")], None),
    "hostile-1": (
        [CallTool("echo", {"text": HOSTILE}), CallTool("large", {"size": 5_000_000}), Finish(HOSTILE)],
        None,
    ),
}  # fmt: skip


def tell(store: RunStore, run_id: str, goal: str = "Help a customer") -> None:
    """Let a run of the zoo go as far as it goes by itself."""
    script, envelope = STORIES[run_id]
    goal = HOSTILE if run_id == "hostile-1" else goal
    runner = Runner(store, ScriptedDecider(script), max_wait=0.2, agents=[ShopRun])
    runner.run(ShopRun, run_id=run_id, goal=goal, tags={"order": ORDER}, envelope=envelope)


def crashed_and_resumed(store: RunStore, folder: Path) -> None:
    """Let a refund's worker die at the hard spot, and another one bring the run to its end."""
    provider = PaymentProvider(folder / PROVIDER_DB)
    options: dict[str, Any] = {"run_id": "run-7f3a", "goal": "Refund ORD-3300"}
    with RunStore(f"sqlite:///{folder / 'calm-runs.db'}") as elsewhere:
        calm = CrashingRunner(elsewhere, deps=PaymentProvider(folder / "calm.db"), agents=[RefundRun])
        calm.run(RefundRun, **options)
    spot = next(place.n for place in calm.life.places if place.what == "the money has moved")
    with suppress(Crash):
        CrashingRunner(store, deps=provider, at=spot, agents=[RefundRun]).run(RefundRun, **options)
    Runner(store, deps=provider, agents=[RefundRun]).resume("run-7f3a")


def fill(store: RunStore, folder: Path) -> None:
    """Put all of them there."""
    for run_id in STORIES:
        tell(store, run_id)
    crashed_and_resumed(store, folder)
    store.start(ShopRun, run_id="parked-1", goal="Help a customer")
    parked = store.aggregate(ShopRun, "parked-1")
    parked.record_parked("the tool look_up is gone; deploy it again")
    store.save(parked)
    store.pause("asleep-1", by="dana", reason="we look into it")
    store.start(ShopRun, run_id="pending-1", goal="Help a customer", tags={"order": "ORD-1"})
