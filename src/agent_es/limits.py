"""What an argument of a call may be, and where in the arguments it stands.

Rule 1: what cannot be judged is wrong: a text that is no number has no bound that it keeps.
Rule 2: a text that two readers could read in two ways is wrong in each of them.
"""

import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, PositiveInt, model_validator

from agent_es.values import bounded, decode

_COMPARED = re.compile(r"\s*(<=|>=|==|<|>)\s*(.+?)\s*", re.DOTALL)
_BOUNDS = {"<=": "at_most", ">=": "at_least", "<": "less_than", ">": "more_than"}
_STRANGE = re.compile(r"[\x00-\x20\x7f\\]")
"""What makes readers of a URL disagree about where it leads."""


def number_of(value: Any) -> Decimal | None:
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
    number = number_of(value)
    if number is None:
        raise ValueError(f"{value!r} is no number")
    return number


Number = Annotated[Decimal, AfterValidator(_a_number)]


class Rules(BaseModel):
    """Data that says what is allowed: frozen, and closed to words that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limit(Rules):
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
        bounds = (self.at_least, self.at_most, self.more_than, self.less_than)
        if any(bound is not None for bound in bounds):
            yield from self._out_of_bounds(value)
        if self.one_of is not None and not any(_is_alike(value, known) for known in self.one_of):
            yield f"{_said(value)} is none of {bounded(', '.join(map(repr, self.one_of)), 200)}"
        text = value if isinstance(value, str) else None
        for part, holds in (
            (self.pattern, text is not None and re.fullmatch(self.pattern or "", text) is not None),
            (self.hosts, text is not None and self._leads_to_a_host(text)),
            (self.under, text is not None and self._lies_under(text)),
            (self.longest, text is not None and len(text) <= (self.longest or 0)),
        ):
            if part is not None and not holds:
                yield f"{_said(value)} is outside of {bounded(str(part), 200)}"

    def _out_of_bounds(self, value: Any) -> Iterator[str]:
        number = number_of(value)
        if number is None:
            yield f"{_said(value)} is no number"
            return
        for sign, bound, holds in (
            (">=", self.at_least, operator.ge),
            ("<=", self.at_most, operator.le),
            (">", self.more_than, operator.gt),
            ("<", self.less_than, operator.lt),
        ):
            if bound is not None and not holds(number, bound):
                yield f"{_said(value)} is not {sign} {bound}"

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


def _said(value: Any) -> str:
    """Return a value as a refusal tells it."""
    return bounded(repr(value), 100)


def _is_alike(value: Any, known: Any) -> bool:
    """Whether two JSON values are the same: of one type, and a number however it is written."""
    if isinstance(value, bool) or isinstance(known, bool):
        return value is known
    if isinstance(value, int | float) or isinstance(known, int | float):
        number = number_of(value)
        return number is not None and number == number_of(known)
    return type(value) is type(known) and bool(value == known)


@dataclass(frozen=True, slots=True)
class Place:
    """An argument of some tools, as ``tool.argument.field`` names it; without an argument, the tools themselves."""

    tools: str
    path: tuple[str, ...]

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


@lru_cache(maxsize=1024)
def place_of(text: str) -> Place:
    """Return the place that a text names; raise ``ValueError``."""
    tools, *path = text.split(".")
    if not tools or not all(path):
        raise ValueError(f"{text!r} is no tool, and no tool.argument")
    return Place(tools, tuple(path))
