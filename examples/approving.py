"""The story with a limit of 200: a refund above it waits for a person, who says yes, no, another sum, or nothing.

Try one, in the folder of the checkout: agent-es fuzz examples.approving:approved --crashes 2

Rule 1: without a yes there is no refund, wherever a worker dies; with one there is exactly one.
Rule 2: what a person says counts once, and whoever says it again is told so.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from agent_es import (
    AnswerConflict,
    Approval,
    Ask,
    CallTool,
    Decision,
    Envelope,
    Finish,
    RunState,
    RunStore,
    Status,
    Step,
    ToolSpec,
)
from agent_es.demo import PROVIDER_DB, RefundRun
from agent_es.testing import Ending, MovableClock, PaymentProvider, Scenario
from agent_es.testing.scenario import Person

ORDER, ABOVE, WITHIN = "ORD-3300", "480.00", "150.00"

LIMIT = Envelope(
    needs_approval=(
        Approval(call="process_refund.amount > 200", by=("dana", "ann"), within=timedelta(hours=1)),
        Approval(call="process_refund.amount > 400", people=2),
    )
)
"""Two people must say yes to 480."""


class Refunds:
    """Refunds an order, and says what became of it."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:  # noqa: ARG002  # it knows what to do
        """Look up the policy, refund, and tell how that ended."""
        match run.turns:
            case 0:
                return CallTool("search_policy", {"query": "refund policy window"})
            case 1:
                return CallTool("process_refund", {"order_id": ORDER, "amount": ABOVE})
            case _:
                return Finish(came_to(run.steps[-1]))


class Asks:
    """Asks a person how much to refund, and refunds that; nothing is an answer too."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:  # noqa: ARG002  # it knows what to do
        """Ask, refund unless it is nothing, and tell how that ended."""
        match run.turns:
            case 0:
                return Ask("How much shall be refunded?", choices=[0, 150], timeout=timedelta(hours=1))
            case 1 if said := run.steps[0].result["answer"]:
                return CallTool("process_refund", {"order_id": ORDER, "amount": said})
            case _:
                return Finish(came_to(run.steps[-1]))


def came_to(step: Step) -> str:
    """Return what became of a step."""
    if step.answered is not None:
        return f"answered: {step.answered.answer}"
    return "refunded" if step.status == "done" else f"{(step.error or {}).get('type')}"


def said_twice(say: Callable[[RunStore, int, str], object], *people: str) -> Person:
    """Return a person who says something about each step that waits, and says it again, as by a double click."""

    def act(store: RunStore, state: RunState, _: Any) -> None:
        for step in (*state.gated, *state.questions):
            for by in people:
                with suppress(AnswerConflict):  # it was said before a worker died
                    say(store, step.idx, by)
                try:
                    say(store, step.idx, by)
                except AnswerConflict:
                    continue
                raise AssertionError(f"{by} said it twice")

    return act


def given(step: Step) -> Mapping[str, Any]:
    """Return the arguments with a sum that needs nobody's yes."""
    return {**step.args, "amount": WITHIN}


def gives_another(store: RunStore, idx: int, by: str) -> None:
    """Say yes to a smaller refund."""
    args = {"order_id": ORDER, "amount": WITHIN}
    store.approve("run-1", idx, by=by, args=args, agent=RefundRun)


def refunded(*sums: str) -> Callable[[Ending], object]:
    """Return what holds where exactly these sums were refunded, and the run is done."""

    def holds(ending: Ending) -> None:
        made = [(order, str(Decimal(amount))) for order, amount in ending.world.effects()]
        if made != [(ORDER, each) for each in sums] or ending.state.status is not Status.DONE:
            raise AssertionError(f"{made} was refunded, and the run is {ending.state.status}")

    return holds


def only_with_a_yes(ending: Ending) -> None:
    """Hold where nothing was refunded but what enough people said yes to, and that once, whatever they said else."""
    step = next((step for step in ending.state.steps if step.tool == "process_refund"), None)
    gate = step and step.approval
    allowed = {gate.args["amount"]} if gate is not None and len(gate.approved_by) >= gate.people else set()
    made = [amount for _, amount in ending.world.effects()]
    if len(made) > 1 or not {*made} <= allowed:
        raise AssertionError(f"{made} was refunded, and {allowed} was allowed")
    if ending.state.status is Status.DONE and ending.state.answer == "refunded" and not made:
        raise AssertionError("it says so, and nothing was refunded")


def provider(folder: Path) -> PaymentProvider:
    """Open the payment provider of a folder."""
    return PaymentProvider(folder / PROVIDER_DB)


clock = MovableClock()
"""Where time goes by: it moves on from run to run, and a process that is killed takes its own along."""

approved = Scenario(
    agent=RefundRun,
    decider=Refunds(),
    world=provider,
    envelope=LIMIT,
    person=said_twice(lambda store, idx, by: store.approve("run-1", idx, by=by), "dana", "ann"),
    invariant=refunded(ABOVE),
)
"""Two people say yes."""

denied = replace(
    approved,
    person=said_twice(lambda store, idx, by: store.deny("run-1", idx, by=by, reason="not today"), "dana"),
    invariant=refunded(),
)
"""One of them says no."""


def gives_and_agrees(store: RunStore, state: RunState, _: Any) -> None:
    """Let ann say yes, dana give another sum, and ann say yes to that too: her first yes was to something else."""
    for step in state.gated:
        if step.approval is not None and step.approval.edited_by is None:
            with suppress(AnswerConflict):
                store.approve("run-1", step.idx, by="ann")
            gives_another(store, step.idx, "dana")
        store.approve("run-1", step.idx, by="ann")


def comes_too_late(store: RunStore, state: RunState, _: Any) -> None:
    """Let the time go by, and two people say yes then."""
    for step in state.gated:
        if step.approval is not None and not step.approval.is_expired(clock.now()):
            clock.move(timedelta(hours=1).total_seconds())
        for by in ("dana", "ann"):
            with suppress(AnswerConflict):
                store.approve("run-1", step.idx, by=by)


edited = replace(approved, person=gives_and_agrees, invariant=refunded(WITHIN))
"""One of them gives another sum, and the other says yes to that one."""

expired = replace(approved, person=None, clock=clock, invariant=refunded())
"""Nobody answers in time."""

late = replace(approved, person=comes_too_late, clock=clock, invariant=refunded())
"""Both say yes, and too late."""

asked = replace(
    approved,
    decider=Asks(),
    person=said_twice(lambda store, idx, by: store.answer("run-1", idx, 150, by=by), "dana"),
    invariant=refunded("150.00"),
)
"""A person says how much, within the limit."""

nothing = replace(
    asked,
    person=said_twice(lambda store, idx, by: store.answer("run-1", idx, 0, by=by), "dana"),
    invariant=refunded(),
)
"""A person says 0."""
