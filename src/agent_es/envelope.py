"""What a run may do, and what it may spend: rules that stand in its journal.

Rule 1: an envelope is data: nothing of it is code, and it is read back as it was written.
Rule 2: what it does not allow is refused, and so is what it cannot judge.
Rule 3: it judges the arguments that a body would get: those that a call leaves out count with their defaults.
Rule 4: nothing that is nested in another envelope may do more than that one: both must allow it.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    field_validator,
)

from agent_es.errors import BadEnvelope
from agent_es.limits import Limit, Place, Rules, number_of, place_of
from agent_es.values import bounded, canonical, decode, digest, what_is_wrong

ALWAYS = frozenset({"sleep", "wait_for", "ask_person"})
"""What waits are called: they have no effect, and are outside of no envelope; how long a run may take is its budget's
affair.  A tool of such a name is judged like any other."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that the envelope does not allow: by which of its rules, and why."""

    rule: str
    why: str


class Approval(Rules):
    """A call that a person must say yes to: which, who may, how many must, and by when."""

    call: str
    """A tool, or a condition such as ``refund.amount > 100``."""
    by: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Who may answer: names, or patterns of names; anybody, where there are none."""
    people: PositiveInt = 1
    """How many different people must say yes: 2 for four eyes."""
    within: Annotated[timedelta, Field(gt=timedelta(0))] | None = None
    """How long a question stands; without it, for ever."""
    then: Literal["deny", "park"] = "deny"
    """What happens after that: the decider is told, and with ``park`` a person must see to the run as well."""

    @field_validator("call")
    @classmethod
    def _names_a_call(cls, text: str) -> str:
        _gate_of(text)
        return text


@dataclass(frozen=True, slots=True)
class Asks:
    """A call that a person must say yes to, as all the rules that ask for it want it."""

    rule: str
    by: tuple[tuple[str, ...], ...] = ()
    """A person may answer whom each of these groups names."""
    people: int = 1
    within: timedelta | None = None
    then: Literal["deny", "park"] = "deny"

    @classmethod
    def all_of(cls, rules: Iterable[Approval]) -> "Asks | None":
        """Return what several rules ask for together: what the strictest of them does; None without any."""
        each = [*rules]
        if not each:
            return None
        return cls(
            "; ".join(dict.fromkeys(f"needs_approval: {rule.call}" for rule in each)),
            by=tuple(dict.fromkeys(rule.by for rule in each if rule.by)),
            people=max(rule.people for rule in each),
            within=min((rule.within for rule in each if rule.within is not None), default=None),
            then="park" if any(rule.then == "park" for rule in each) else "deny",
        )


Verdict = Refused | Asks | None
"""What an envelope says of a call; None where it may be made."""


def _places(named: Mapping[str, Limit]) -> Mapping[str, Limit]:
    for text in named:
        if not place_of(text).path:
            raise ValueError(f"{text!r} names no argument; write it as tool.argument")
    return named


@lru_cache(maxsize=1024)
def _gate_of(text: str) -> tuple[Place, Limit | None]:
    """Return what must be approved: a tool, or a tool where one of its arguments is so."""
    name, *compared = re.split(r"\s*(?=[<>=])", text.strip(), maxsplit=1)
    place = place_of(name)
    if bool(place.path) != bool(compared):
        raise ValueError(f"{text!r} is no tool, and no condition such as 'refund.amount > 100'")
    return place, Limit.model_validate(compared[0]) if compared else None


def _gates(rules: "tuple[str | Approval, ...]") -> "tuple[str | Approval, ...]":
    for rule in rules:
        if isinstance(rule, str):
            _gate_of(rule)
    return rules


@lru_cache(maxsize=1024)
def _approval_of(text: str) -> Approval:
    return Approval(call=text)


MOST = 10**9
"""What a cost may be, and what a budget may be of it: sums are kept in whole billionths."""
Tokens = Annotated[int, Field(ge=0, le=1000 * MOST)]
Cost = Annotated[Decimal, Field(ge=0, le=MOST, allow_inf_nan=False)]
Pattern = Annotated[str, Field(max_length=64)]


class Usage(Rules):
    """What asking a decider takes."""

    tokens: Tokens = 0
    cost: Cost = Decimal(0)


class Budget(Rules):
    """What a run may spend, with all the runs that it starts."""

    steps: NonNegativeInt | None = None
    """Calls that are decided."""
    turns: NonNegativeInt | None = None
    """How often the decider is asked."""
    tokens: Tokens | None = None
    cost: Cost | None = None
    """In whatever currency the decider tells it in."""
    deadline: AwareDatetime | Annotated[timedelta, Field(ge=timedelta(0))] | None = None
    """A time, or how long after the run's start."""
    calls: Mapping[Pattern, NonNegativeInt] = Field(default_factory=dict)
    """Calls of each tool, or of all tools that a pattern names."""
    each: Usage = Usage()
    """What asking the decider once may take at most: so much is set aside before, and what it took counts after."""

    def spent(self, turns: int, steps: int, began: datetime | None, now: datetime) -> str | None:
        """Say what is spent, so that nothing more may be decided; None where something may."""
        if self.turns is not None and turns >= self.turns:
            return f"{turns} of {self.turns} turns"
        if self.steps is not None and steps >= self.steps:
            return f"{steps} of {self.steps} steps"
        deadline = self.deadline
        if isinstance(deadline, timedelta):
            deadline = None if began is None else began + deadline
        return None if deadline is None or now < deadline else f"its deadline was {deadline:%Y-%m-%dT%H:%M:%SZ}"

    def is_used_up(self, used: Usage) -> str | None:
        """Say what asking the decider again would take too much of, after so much; None where it may be asked."""
        for what in ("tokens", "cost"):
            most, before, more = getattr(self, what), getattr(used, what), getattr(self.each, what)
            if most is not None and (before + more > most or before >= most):
                return f"{before} of {most} {what}, and asking once may take {more}"
        return None

    def refuses(self, tool: str, idx: int, called: Mapping[str, int]) -> str | None:
        """Say why a call is more than may be spent: the step of that position, after so many calls of each tool."""
        if tool in ALWAYS:
            return None
        if self.steps is not None and idx >= self.steps:
            return f"it would be step {idx + 1} of at most {self.steps}"
        for name, most in self.calls.items():
            spent = sum(count for known, count in called.items() if fnmatchcase(known, name))
            if fnmatchcase(tool, name) and spent >= most:
                return f"{spent} of {most} calls of {name} were made"
        return None


class Envelope(Rules):
    """What a run may do, and what it may spend."""

    tools: tuple[str, ...] = ("*",)
    """Names, or patterns of names; what none of them names is not offered, and refused."""
    limits: Annotated[Mapping[str, Limit], AfterValidator(_places)] = Field(default_factory=dict)
    """By ``tool.argument``, or further in by ``tool.argument.field``; of a list, each item."""
    budget: Budget = Budget()
    needs_approval: Annotated[tuple[str | Approval, ...], AfterValidator(_gates)] = ()
    """Tools, conditions such as ``refund.amount > 100``, or an ``Approval``, which also says who must say yes."""
    on_refusal: Literal["tell", "fail"] = "tell"
    """Whether the decider is told of a refusal, or the run ends there."""
    owner: str | None = None
    """The run whose envelope it is; None for the one that has it."""
    within: "Envelope | None" = None
    """That of the run which started this one."""

    @classmethod
    def read(cls, text: str) -> "Envelope":
        """Return the envelope of a JSON text; raise ``BadEnvelope``."""
        try:
            return cls.model_validate(decode(text))
        except ValidationError as error:
            raise BadEnvelope(f"it is no envelope: {what_is_wrong(error)}") from None
        except ValueError as error:
            raise BadEnvelope(f"it is no envelope: {error}") from None

    @property
    def json_text(self) -> str:
        """The envelope as its run's journal holds it."""
        return canonical(self.model_dump(mode="json", exclude_defaults=True))

    @property
    def digest(self) -> str:
        """What names it: two that allow the same in the same words have the same."""
        return digest(self.json_text)

    @property
    def chain(self) -> Iterator["Envelope"]:
        """This one, and those that it lies in."""
        here: Envelope | None = self
        while here is not None:
            yield here
            here = here.within

    def spent(self, turns: int, steps: int, began: datetime | None, now: datetime) -> str | None:
        """Say what is spent, here or in an envelope above, so that nothing more may be decided."""
        spent = (envelope.budget.spent(turns, steps, began, now) for envelope in self.chain)
        return next((why for why in spent if why), None)

    @property
    def each(self) -> Usage | None:
        """What is set aside before the decider is asked; None where nothing that it takes is bounded."""
        budgets = [
            each.budget for each in self.chain if each.budget.tokens is not None or each.budget.cost is not None
        ]
        if not budgets:
            return None
        return Usage(
            tokens=max(budget.each.tokens for budget in budgets), cost=max(budget.each.cost for budget in budgets)
        )

    def overspends(self, tool: str, idx: int, called: Mapping[str, int]) -> Refused | None:
        """Refuse a call that is more than may be spent: the step of that position, after so many calls of each."""
        refused = (envelope.budget.refuses(tool, idx, called) for envelope in self.chain)
        return next((Refused("budget", why) for why in refused if why), None)

    def offers(self, *names: str) -> bool:
        """Whether a tool of one of these names may be called at all."""
        return any(
            all(any(fnmatchcase(name, known) for known in envelope.tools) for envelope in self.chain)
            for name in names
        )

    def judge_any(
        self, names: Sequence[str], idx: int, args: Mapping[str, Any], called: Mapping[str, int]
    ) -> Verdict:
        """Judge a call of a tool that has several names, today's first: a rule about any of them counts."""
        together = called
        if len(names) > 1:
            together = {**called, **dict.fromkeys(names, sum(called.get(name, 0) for name in names))}
        offered = [name for name in names if self.offers(name)] or names[:1]
        for name in offered:
            if refused := self.overspends(name, idx, together) or self.refused(name, args):
                return refused
        return Asks.all_of(rule for name in offered for rule in self.approvals(name, args))

    def judge(self, tool: str, args: Mapping[str, Any]) -> Verdict:
        """Say whether a call may be made, with these arguments as JSON reads them, defaults among them."""
        return self.refused(tool, args) or Asks.all_of(self.approvals(tool, args))

    def refused(self, tool: str, args: Mapping[str, Any]) -> Refused | None:
        """Say whether a call may not be made, whoever says yes to it."""
        return next((refused for envelope in self.chain if (refused := envelope.refuses(tool, args))), None)

    def approvals(self, tool: str, args: Mapping[str, Any]) -> Iterator[Approval]:
        """Yield the rules, of this one and of those that it lies in, that ask for a person's yes to a call."""
        for envelope in self.chain:
            yield from envelope.asks(tool, args)

    def refuses(self, tool: str, args: Mapping[str, Any]) -> Refused | None:
        """Say whether this envelope refuses a call, whatever those say that it lies in."""
        if not any(fnmatchcase(tool, name) for name in self.tools):
            return Refused("tools", f"{tool} is outside of {bounded(', '.join(self.tools) or 'no tool', 200)}")
        for named, limit in self.limits.items():
            place = place_of(named)
            if not place.is_of(tool):
                continue
            try:
                wrongs = [wrong for value in place.values(args) if (wrong := limit.wrong(value))]
            except LookupError as error:
                wrongs = [str(error)]
            if wrongs:
                return Refused(f"limits: {named}", wrongs[0])
        return None

    def asks(self, tool: str, args: Mapping[str, Any]) -> Iterator[Approval]:
        """Yield the rules of this envelope that ask for a person, whatever those say that it lies in."""
        for rule in self._approvals:
            place, condition = _gate_of(rule.call)
            if place.is_of(tool) and (condition is None or _may_hold(condition, place, args)):
                yield rule

    @property
    def _approvals(self) -> Iterator[Approval]:
        for rule in self.needs_approval:
            yield _approval_of(rule) if isinstance(rule, str) else rule

    def check(self, arguments: Mapping[str, Collection[str]]) -> None:
        """Raise ``BadEnvelope`` where it names an argument that a tool does not have; ``arguments`` are each tool's.

        A tool that is not among these may be one of a run that this one starts.
        """
        for place in [*map(place_of, self.limits), *(_gate_of(rule.call)[0] for rule in self._approvals)]:
            tools = [tool for tool in arguments if place.is_of(tool)]
            if place.path and tools and not any(place.path[0] in arguments[tool] for tool in tools):
                known = ", ".join(sorted({name for tool in tools for name in arguments[tool]})) or "none"
                raise BadEnvelope(f"{place.tools} has no argument {place.path[0]!r}; it has: {known}")


@lru_cache(maxsize=256)
def read_cached(text: str) -> Envelope:
    """Return the envelope of a text that a journal holds."""
    return Envelope.read(text)


def _may_hold(condition: Limit, place: Place, args: Mapping[str, Any]) -> bool:
    """Whether a condition holds for an argument, or cannot be told: then a person is asked too."""
    try:
        values = place.values(args)
    except LookupError:
        return True
    is_compared = condition.one_of is None
    return any(condition.wrong(value) is None or (is_compared and number_of(value) is None) for value in values)
