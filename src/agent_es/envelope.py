"""What a run may do, and what it may spend: rules that stand in its journal.

Rule 1: an envelope is data: nothing of it is code, and it is read back as it was written.
Rule 2: what it does not allow is refused, and so is what it cannot judge.
Rule 3: it judges the arguments that a body would get: those that a call leaves out count with their defaults.
Rule 4: nothing that is nested in another envelope may do more than that one: both must allow it.
"""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from agent_es.errors import BadEnvelope
from agent_es.values import bounded, canonical, decode, digest, what_is_wrong

ALWAYS = frozenset({"sleep", "wait_for"})
"""What has no effect, and is outside of no envelope: how long a run may take is its budget's affair."""

_COMPARED = re.compile(r"\s*(<=|>=|==|<|>)\s*(.+?)\s*", re.DOTALL)
_BOUNDS = {"<=": "at_most", ">=": "at_least", "<": "less_than", ">": "more_than"}
_STRANGE = re.compile(r"[\x00-\x20\x7f\\]")
"""What makes readers of a URL disagree about where it leads."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that the envelope does not allow: by which of its rules, and why."""

    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class Asks:
    """A call that a person must approve: by which of the envelope's rules."""

    rule: str


Verdict = Refused | Asks | None
"""What an envelope says of a call; None where it may be made."""


def _number(value: Any) -> Decimal | None:
    """Return the number that a JSON value says, as a number or as a text; None for what says none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _meant(text: str) -> Any:
    """Return what a text says as JSON, or the text."""
    try:
        return decode(text)
    except ValueError:
        return text


def _regular(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no pattern: {error}") from None
    return pattern


def _a_number(value: Any) -> Decimal:
    number = _number(value)
    if number is None:
        raise ValueError(f"{value!r} is no number")
    return number


Number = Annotated[Decimal, AfterValidator(_a_number)]


class _Rules(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limit(_Rules):
    """What one argument may be; every part that is there must hold.

    Written short, ``"<= 200"`` and ``"== EUR"`` compare, and a list names all that is allowed.

    >>> Limit.model_validate("<= 200").wrong("180.00"), Limit.model_validate(["EUR", "USD"]).wrong("GBP")
    (None, "'GBP' is none of 'EUR', 'USD'")
    """

    at_least: Number | None = None
    at_most: Number | None = None
    more_than: Number | None = None
    less_than: Number | None = None
    one_of: tuple[Any, ...] | None = None
    pattern: Annotated[str, AfterValidator(_regular)] | None = None
    """A regular expression for the whole text."""
    hosts: tuple[str, ...] | None = None
    """Of a web address; ``*.example.org`` stands for every host below that one."""
    under: str | None = None
    """The folder that a path must lie in.  Links are not followed: what one leads to is the tool's affair."""
    longest: PositiveInt | None = None
    """How many characters a text may have."""

    @model_validator(mode="before")
    @classmethod
    def _written_short(cls, given: Any) -> Any:
        if isinstance(given, list | tuple):
            return {"one_of": given}
        if not isinstance(given, str):
            return given
        compared = _COMPARED.fullmatch(given)
        if compared is None:
            raise ValueError(f"{given!r} is no comparison, such as '<= 200'; a list names what is allowed")
        sign, value = compared.groups()
        return {"one_of": [_meant(value)]} if sign == "==" else {_BOUNDS[sign]: value}

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("a limit must say something")
        return self

    def wrong(self, value: Any) -> str | None:
        """Say why a JSON value is not allowed; None where it is."""
        return next(self._wrongs(value), None)

    def _wrongs(self, value: Any) -> Iterator[str]:
        said = bounded(repr(value), 100)
        bounds = (self.at_least, self.at_most, self.more_than, self.less_than)
        if any(bound is not None for bound in bounds):
            yield from self._out_of_bounds(_number(value), said)
        if self.one_of is not None and not any(_is_alike(value, known) for known in self.one_of):
            yield f"{said} is none of {bounded(', '.join(map(repr, self.one_of)), 200)}"
        text = value if isinstance(value, str) else None
        for part, holds in (
            (self.pattern, text is not None and re.fullmatch(self.pattern or "", text) is not None),
            (self.hosts, text is not None and self._leads_to_a_host(text)),
            (self.under, text is not None and self._lies_under(text)),
            (self.longest, text is not None and len(text) <= (self.longest or 0)),
        ):
            if part is not None and not holds:
                yield f"{said} is outside of {bounded(str(part), 200)}"

    def _out_of_bounds(self, number: Decimal | None, said: str) -> Iterator[str]:
        if number is None:
            yield f"{said} is no number"
            return
        for sign, bound, holds in (
            (">=", self.at_least, operator.ge),
            ("<=", self.at_most, operator.le),
            (">", self.more_than, operator.gt),
            ("<", self.less_than, operator.lt),
        ):
            if bound is not None and not holds(number, bound):
                yield f"{said} is not {sign} {bound}"

    def _leads_to_a_host(self, url: str) -> bool:
        if _STRANGE.search(url):
            return False
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname or "", parts.port
        except ValueError:
            return False
        if parts.scheme.lower() not in ("http", "https") or "@" in parts.netloc or not host.isascii():
            return False
        above = {f"*{host[at:]}" for at, letter in enumerate(host) if letter == "." and at > 0}
        return any(known.lower() in {host, *above} for known in self.hosts or ())

    def _lies_under(self, path: str) -> bool:
        parts = PurePosixPath(path).parts
        if ".." in parts or "\\" in path or "\0" in path or path.startswith("~"):
            return False
        return PurePosixPath(path).is_relative_to(self.under or "")


def _is_alike(value: Any, known: Any) -> bool:
    """Whether two JSON values are the same: of one type, and a number however it is written."""
    if isinstance(value, bool) or isinstance(known, bool):
        return value is known
    if isinstance(value, int | float) or isinstance(known, int | float):
        number = _number(value)
        return number is not None and number == _number(known)
    return type(value) is type(known) and bool(value == known)


@dataclass(frozen=True, slots=True)
class Place:
    """An argument of some tools, as ``tool.argument.field`` names it; without an argument, the tools themselves."""

    tools: str
    path: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the place that a text names; raise ``ValueError``."""
        tools, *path = text.split(".")
        if not tools or not all(path):
            raise ValueError(f"{text!r} is no tool, and no tool.argument")
        return cls(tools, tuple(path))

    def is_of(self, tool: str) -> bool:
        """Whether a tool is one of these."""
        return fnmatchcase(tool, self.tools)

    def values(self, args: Any) -> list[Any]:
        """Return what stands there, in each item of a list; raise ``LookupError`` where that cannot be told."""
        found = [args]
        for name in self.path:
            inner: list[Any] = []
            for value in found:
                for item in value if isinstance(value, list) else [value]:
                    if not isinstance(item, Mapping):
                        raise LookupError(  # noqa: TRY004  # a value of JSON has no wrong type
                            f"there is no {name} in {bounded(repr(item), 100)}"
                        )
                    if name in item:
                        inner.append(item[name])
            found = inner
        return [item for value in found for item in (value if isinstance(value, list) else [value])]


def _places(named: Mapping[str, Limit]) -> Mapping[str, Limit]:
    for text in named:
        if not Place.of(text).path:
            raise ValueError(f"{text!r} names no argument; write it as tool.argument")
    return named


def _gate_of(text: str) -> tuple[Place, Limit | None]:
    """Return what must be approved: a tool, or a tool where one of its arguments is so."""
    name, *compared = re.split(r"\s*(?=[<>=])", text.strip(), maxsplit=1)
    place = Place.of(name)
    if bool(place.path) != bool(compared):
        raise ValueError(f"{text!r} is no tool, and no condition such as 'refund.amount > 100'")
    return place, Limit.model_validate(compared[0]) if compared else None


def _gates(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        _gate_of(text)
    return texts


class Budget(_Rules):
    """What a run may spend, with all the runs that it starts."""

    steps: NonNegativeInt | None = None
    """Calls that are decided."""
    turns: NonNegativeInt | None = None
    """How often the decider is asked."""
    tokens: NonNegativeInt | None = None
    cost: Annotated[Decimal, Field(ge=0, allow_inf_nan=False)] | None = None
    """In whatever currency the decider tells it in."""
    deadline: AwareDatetime | Annotated[timedelta, Field(ge=timedelta(0))] | None = None
    """A time, or how long after the run's start."""
    calls: Mapping[str, NonNegativeInt] = Field(default_factory=dict)
    """Calls of each tool, or of all tools that a pattern names."""


class Envelope(_Rules):
    """What a run may do, and what it may spend."""

    tools: tuple[str, ...] = ("*",)
    """Names, or patterns of names; what none of them names is not offered, and refused."""
    limits: Annotated[Mapping[str, Limit], AfterValidator(_places)] = Field(default_factory=dict)
    """By ``tool.argument``, or further in by ``tool.argument.field``; of a list, each item."""
    budget: Budget = Budget()
    needs_approval: Annotated[tuple[str, ...], AfterValidator(_gates)] = ()
    """Tools, or conditions such as ``refund.amount > 100``."""
    on_refusal: Literal["tell", "fail"] = "tell"
    """Whether the decider is told of a refusal, or the run ends there."""
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

    @cached_property
    def json_text(self) -> str:
        """The envelope as its run's journal holds it."""
        return canonical(self.model_dump(mode="json", exclude_defaults=True))

    @cached_property
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

    def offers(self, tool: str) -> bool:
        """Whether a tool may be called at all."""
        return tool in ALWAYS or all(
            any(fnmatchcase(tool, name) for name in envelope.tools) for envelope in self.chain
        )

    def judge(self, tool: str, args: Mapping[str, Any]) -> Verdict:
        """Say whether a call may be made, with these arguments as JSON reads them, defaults among them."""
        if tool in ALWAYS:
            return None
        for envelope in self.chain:
            if refused := envelope.refuses(tool, args):
                return refused
        return next((asks for envelope in self.chain if (asks := envelope.asks(tool, args))), None)

    def refuses(self, tool: str, args: Mapping[str, Any]) -> Refused | None:
        """Say whether this envelope refuses a call, whatever those say that it lies in."""
        if not any(fnmatchcase(tool, name) for name in self.tools):
            return Refused("tools", f"{tool} is outside of {bounded(', '.join(self.tools) or 'no tool', 200)}")
        for named, limit in self.limits.items():
            place = Place.of(named)
            if not place.is_of(tool):
                continue
            try:
                wrongs = [wrong for value in place.values(args) if (wrong := limit.wrong(value))]
            except LookupError as error:
                wrongs = [str(error)]
            if wrongs:
                return Refused(f"limits: {named}", wrongs[0])
        return None

    def asks(self, tool: str, args: Mapping[str, Any]) -> Asks | None:
        """Say whether this envelope asks for a person, whatever those say that it lies in."""
        for text in self.needs_approval:
            place, condition = _gate_of(text)
            if place.is_of(tool) and (condition is None or _may_hold(condition, place, args)):
                return Asks(f"needs_approval: {text}")
        return None

    def check(self, arguments: Mapping[str, Sequence[str]]) -> None:
        """Raise ``BadEnvelope`` where it names what no tool has; ``arguments`` are those of each tool."""
        for envelope in self.chain:
            named = [*map(Place.of, envelope.limits), *(_gate_of(text)[0] for text in envelope.needs_approval)]
            named += [Place(tools, ()) for tools in (*envelope.tools, *envelope.budget.calls)]
            for place in named:
                tools = [tool for tool in arguments if place.is_of(tool)]
                if not tools and not any(sign in place.tools for sign in "*?["):
                    raise BadEnvelope(f"there is no tool {place.tools!r}; there are: {', '.join(sorted(arguments))}")
                if place.path and tools and not any(place.path[0] in arguments[tool] for tool in tools):
                    known = ", ".join(sorted({name for tool in tools for name in arguments[tool]})) or "none"
                    raise BadEnvelope(f"{place.tools} has no argument {place.path[0]!r}; it has: {known}")


def _may_hold(condition: Limit, place: Place, args: Mapping[str, Any]) -> bool:
    """Whether a condition holds for an argument, or cannot be told: then a person is asked too."""
    try:
        values = place.values(args)
    except LookupError:
        return True
    is_compared = condition.one_of is None
    return any(condition.wrong(value) is None or (is_compared and _number(value) is None) for value in values)
