"""What runs spend of the budgets that they share, as a projection of their events.

Rule 1: what a run spends counts for its own budget, and for that of every run above it.
Rule 2: only what a budget bounds is counted; what has happened, and what undoes it, counts whatever the bound is.
"""

from collections.abc import Iterable, Iterator
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import NamedTuple

from agent_es.envelope import ALWAYS, Budget, read_cached
from agent_es.events import (
    AnyEvent,
    BudgetReserved,
    LlmDecided,
    StepRefused,
    UsageRecorded,
)
from agent_es.state import RunState, evolve

USED = ("tokens", "cost")
"""What asking the decider takes."""
NANOS = 10**9
"""In one unit of a currency: what is added up are whole numbers."""
MOST = 2**63 - 1
"""What a column holds."""


class Spend(NamedTuple):
    """So much more of something is spent."""

    run_id: str
    """Whose budget it is."""
    what: str
    amount: int
    limit: int | None
    """What all of it may come to; None where it is too late to ask."""

    def is_over(self, amount: int) -> bool:
        """Whether that is too much: more than may be, or for one who sets nothing aside, all of it."""
        return self.limit is not None and (amount > self.limit or (not self.amount and amount == self.limit))


def nanos(cost: Decimal) -> int:
    """Return a cost in whole billionths, rounded up.

    >>> nanos(Decimal("0.0000000011"))
    2
    """
    scaled = cost * NANOS
    return int(scaled) + (scaled != int(scaled))


def spends_of(before: RunState, events: Iterable[AnyEvent]) -> tuple[Spend, ...]:
    """Return what the events spend that follow a state."""
    if before.envelope_json is None and before.version:
        return ()
    spent: dict[tuple[str, str], Spend] = {}
    for spend in _each(before, events):
        known = spent.get((spend.run_id, spend.what), spend._replace(amount=0))
        limits = [limit for limit in (known.limit, spend.limit) if limit is not None]
        amount = known.amount + spend.amount
        spent[spend.run_id, spend.what] = spend._replace(amount=amount, limit=min(limits, default=None))
    return tuple(
        spend for spend in spent.values() if spend.amount or (spend.what in USED and spend.limit is not None)
    )


def _each(state: RunState, events: Iterable[AnyEvent]) -> Iterator[Spend]:
    for event in events:
        before, state = state, evolve(state, event)
        if state.envelope_json is not None:
            for envelope in read_cached(state.envelope_json).chain:
                yield from _spent_by(event, before, envelope.owner or state.run_id, envelope.budget)


def _spent_by(event: AnyEvent, before: RunState, owner: str, budget: Budget) -> Iterator[Spend]:
    match event:
        case LlmDecided(idx=idx, turn=turn, tool=tool, undoes=undoes) if idx >= len(before.steps):
            spent = _decided(owner, budget, tool, is_new_turn=turn >= before.turns)
            yield from spent if undoes is None else (spend._replace(limit=None) for spend in spent)
        case StepRefused(tool=tool):
            yield from (spend._replace(amount=-1, limit=None) for spend in _called(owner, budget, tool))
        case BudgetReserved(tokens=tokens, cost=cost):
            yield from _used(owner, budget, tokens, nanos(cost), is_bounded=True)
        case UsageRecorded(tokens=tokens, cost=cost):
            held, held_cost = before.reserved or (0, Decimal(0))
            yield from _used(owner, budget, tokens - held, nanos(cost) - nanos(held_cost), is_bounded=False)


def _decided(owner: str, budget: Budget, tool: str, *, is_new_turn: bool) -> Iterator[Spend]:
    if budget.steps is not None:
        yield Spend(owner, "steps", 1, budget.steps)
    if budget.turns is not None and is_new_turn:
        yield Spend(owner, "turns", 1, budget.turns)
    yield from _called(owner, budget, tool)


def _called(owner: str, budget: Budget, tool: str) -> Iterator[Spend]:
    for name, most in budget.calls.items():
        if tool not in ALWAYS and fnmatchcase(tool, name):
            yield Spend(owner, f"calls of {name}", 1, most)


def _used(owner: str, budget: Budget, tokens: int, cost: int, *, is_bounded: bool) -> Iterator[Spend]:
    if budget.tokens is not None:
        yield Spend(owner, "tokens", tokens, budget.tokens if is_bounded else None)
    if budget.cost is not None:
        yield Spend(owner, "cost", cost, nanos(budget.cost) if is_bounded else None)
