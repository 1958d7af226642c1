"""Scenarios that wait, for the crash kit to live through: for signals that come early, late or twice, and for time.

Rule 1: a wait ends once, by what came first for it; what came early is kept, and what comes twice counts once.
Rule 2: what stands before a wait is not done again after it, however often a worker dies in between.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import text

from agent_es import (
    Decision,
    Effect,
    Finish,
    RunState,
    ScriptedDecider,
    Sleep,
    Status,
    ToolContext,
    ToolSpec,
    WaitFor,
    tool,
)
from agent_es.testing import Ending, MovableClock, Scenario
from examples.every_effect import ANNOUNCE, BOOK, Errands, World, answer, look_and_settle

A_DAY, A_WEEK = timedelta(days=1), timedelta(days=7)


class Clerk(Errands):
    """Reminds people, waits for what they do, and books it."""

    @tool(effect=Effect.AT_MOST_ONCE, on_doubt="skip")
    def mail(self, ctx: ToolContext[World], to: str) -> str:
        """Send a mail; where nobody knows whether it went out, do without it."""
        return ctx.deps.act(f"mail {to}", ctx.idempotency_key)

    @tool(effect=Effect.IDEMPOTENT)
    def refund_and_wait(self, ctx: ToolContext[World], order: str) -> WaitFor:
        """Refund an order, and wait until the bank says that it has arrived."""
        ctx.deps.provider.refund(order, Decimal(10), key=ctx.idempotency_key)
        return ctx.wait_for("arrived")

    @tool(effect=Effect.TRANSACTIONAL)
    def hold_seat(self, ctx: ToolContext[World], seat: str) -> WaitFor:
        """Book a seat, and wait for its confirmation: the row and the wait are one commit."""
        ctx.session.execute(text("INSERT INTO bookings VALUES (:seat)"), {"seat": seat})
        return ctx.wait_for("confirmed", timeout=A_WEEK)


class Reminds:
    """Mails, waits a week for the payment, rests a day, and books until it is booked."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:  # noqa: ARG002  # it knows what to do
        """Return what comes next."""
        plan = (Clerk.mail.call(to="ann"), WaitFor("paid", timeout=A_WEEK), Sleep(A_DAY))
        return plan[run.turns] if run.turns < len(plan) else booked_or(run, "booked")


class Collects:
    """Takes two instalments of a payment beside a parcel and a booking, and adds up what came."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:  # noqa: ARG002  # it knows what to do
        """Wait for all of it in two turns, then say how much it was."""
        match run.turns:
            case 0:
                return [WaitFor("paid"), BOOK, WaitFor("packed")]
            case 1:
                return WaitFor("paid")
            case _:
                paid = [step.result["payload"] for step in run.steps if step.args.get("signal") == "paid"]
                return booked_or(run, sum(paid))


def booked_or(run: RunState, came_to: Any) -> Decision:
    """Return the answer, once the seat is booked; where the store failed then, it is booked again."""
    is_booked = any(step.tool == BOOK.tool and step.status == "done" for step in run.steps)
    return Finish(came_to) if is_booked else BOOK


def one_booking(ending: Ending) -> None:
    """Hold where the run is done, and booked once; a mail may be missing, where nobody knew of it."""
    happened = Counter(effect.split()[0] for effect in ending.world.effects())
    assert happened["book"] == 1, f"{dict(happened)} happened"  # noqa: S101
    assert ending.state.status is Status.DONE, f"the run is {ending.state.status}"  # noqa: S101


def in_its_time(ending: Ending) -> None:
    """Hold where there is one booking, and the clock ended no wait before its time."""
    one_booking(ending)
    due: dict[int, datetime] = {}
    for entry in ending.journal:
        event: Any = entry.event
        if entry.type == "wait_began" and event.idx is not None:
            due[event.idx] = event.wake_at
        elif entry.type == "wait_ended" and event.reason == "clock":
            early = due[event.idx] - event.timestamp
            assert early <= timedelta(), f"the wait of step {event.idx} ended {early} early"  # noqa: S101


def all_that_came(ending: Ending) -> None:
    """Hold where each of the instalments was used once, and there is nothing left."""
    one_booking(ending)
    assert ending.state.answer == 180, f"{ending.state.answer} came, instead of 180"  # noqa: PLR2004, S101
    assert ending.state.signals == (), f"{ending.state.signals} are left"  # noqa: S101


def all_in_all(ending: Ending) -> None:
    """Hold where a seat was booked, two refunds were made, and the news was told once."""
    happened = Counter(effect.split()[0] for effect in ending.world.effects())
    assert happened == {"book": 1, "refund": 2, "announce": 1}, f"{dict(happened)} happened"  # noqa: S101
    assert ending.state.status is Status.DONE, f"the run is {ending.state.status}"  # noqa: S101


reminder = Scenario(
    agent=Clerk,
    decider=Reminds(),
    world=World,
    invariant=in_its_time,
    clock=MovableClock(),
    same=answer,
    signals=[("paid", {"amount": 180}, "evt-1")],
)
"""A mail, a payment within a week or not, a day's rest, and a booking."""

instalments = Scenario(
    agent=Clerk,
    decider=Collects(),
    world=World,
    invariant=all_that_came,
    same=answer,
    signals=[("paid", 100, "evt-1"), ("packed", "P", "evt-2"), ("paid", 80, "evt-3")],
)
"""Two waits beside a body that runs, and a third for the same signal as the first; nothing limits them."""

asking = Scenario(
    agent=Clerk,
    decider=ScriptedDecider(
        [
            [Clerk.hold_seat.call(seat="S"), Clerk.refund_and_wait.call(order="A"), ANNOUNCE],
            [Clerk.refund_and_wait.call(order="A")],
            Finish("both arrived"),
        ]
    ),
    world=World,
    invariant=all_in_all,
    person=look_and_settle,
    same=answer,
    signals=[("arrived", None, "evt-1"), ("confirmed", None, "evt-2"), ("arrived", False, "evt-3")],
)
"""Bodies that do what they do and then wait: each is called once, however long its step goes on."""
