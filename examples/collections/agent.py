"""An agent that collects an overdue invoice: it reminds by mail, waits a week for the money, and books it.

Rule 1: the decider looks at the run and at nothing else, so it is right after every resume; a model can replace it.
Rule 2: nobody is reminded twice for one reminder, and no payment is booked twice.
"""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Fail,
    Finish,
    NotApplied,
    RunState,
    RunStore,
    ToolContext,
    ToolSpec,
    WaitFor,
    crash_point,
    tool,
)
from examples.collections.host import Booking, Host, Invoice, Paid

REMINDERS = 3
PATIENCE = timedelta(days=7)


class Collector:
    """Looks the invoice up, then reminds and waits in turn, until it is paid or a person must see to it."""

    def decide(self, run: RunState, _: Sequence[ToolSpec], /) -> Decision:  # noqa: PLR0911  # one line each
        """Return what comes after the last step."""
        number = run.input["invoice"]
        last = run.steps[-1] if run.steps else None
        if last is None or (last.error and last.idx < run.sent_back_at):  # a person sent the run back: look again
            return CallTool("find_overdue", {"number": number})
        if last.error and last.tool != "remind":
            return Fail(f"{last.tool} failed, a person must see to {number}: {last.error['message']}")
        if last.tool == "find_overdue" and last.result is None:
            return Finish(f"{number} is not overdue.")
        if last.tool == "remind":
            return WaitFor("paid", timeout=PATIENCE)
        if last.woken and last.woken.reason == "signal":
            return CallTool("book_payment", {"number": number, "paid": last.woken.payload})
        reminders = sum(step.tool == "remind" for step in run.steps[run.sent_back_at :])
        if last.tool == "book_payment":
            return Finish(f"{number} is paid, after {reminders} reminders.")
        if reminders == REMINDERS:
            return Fail(f"{number} is not paid after {REMINDERS} reminders; a person must see to it.")
        found = next(step.result for step in reversed(run.steps) if step.tool == "find_overdue")
        text = f"Reminder {reminders + 1}: please pay {found['amount']} for {number}."
        return CallTool("remind", {"address": found["address"], "text": text})


class CollectRun(AgentRun):
    """Collect one invoice."""

    decider = Collector()

    @tool(effect=Effect.READ)
    def find_overdue(self, ctx: ToolContext[Host], number: str) -> dict[str, str] | None:
        """Look up an invoice: to whom it went and what is owed, or nothing where it is not overdue."""
        found = ctx.deps.overdue(number)
        return None if found is None else {"address": found.address, "amount": found.amount}

    @tool(effect=Effect.AT_MOST_ONCE, on_doubt="skip")
    def remind(self, ctx: ToolContext[Host], address: str, text: str) -> None:
        """Send a mail.  Where a worker died near it, it is left out rather than sent twice: there will be another."""
        ctx.deps.send(address, text)

    @tool(effect=Effect.TRANSACTIONAL)
    def book_payment(self, ctx: ToolContext[Host], number: str, paid: Paid) -> None:
        """Book a payment: the row and the result of this step are one commit."""
        invoice = ctx.session.get(Invoice, number)
        if paid.amount != Decimal(invoice.amount):
            raise NotApplied(f"{paid.amount} came, and {invoice.amount} is owed")
        ctx.session.add(Booking(event_id=paid.event_id, invoice=number, amount=str(paid.amount)))
        ctx.session.flush()
        crash_point("the booking is written")


def collect(store: RunStore, number: str) -> RunState:
    """Start the run of an invoice, or return the one that is there; its tag is how the webhook finds it."""
    named = {"invoice": number}
    return store.start(CollectRun, run_id=f"collect-{number}", goal=f"Collect {number}", input=named, tags=named)
