"""Hypothesis strategies for agents: odd values, calls, plans and schedules of crashes.

Rule 1: this module needs Hypothesis, so ``agent_es.testing`` does not import it: the crash kit works without.
Rule 2: what is drawn is what a decider would say: JSON data that the tool takes and the journal can hold.
Rule 3: what fails shrinks to what people understand: few turns, few crashes, early places, plain values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from types import UnionType
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen, MultipleOf
from hypothesis import reject
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from agent_es.decider import Decision, Finish
from agent_es.errors import BadArguments, BadScenario
from agent_es.run import AgentRun
from agent_es.tools import CallTool, Tool
from agent_es.values import canonical

__all__ = ["calls", "odd_values", "plans", "schedules"]

ODD_TEXTS = (
    "",
    " ",
    "\0",
    "cut\0here",
    "two\r\nlines",
    "a line\u2028a paragraph\u2029a next line\x85",  # the three that JSON takes and line readers split at
    "\ufeffwith a mark",
    "ok \ud83d",  # a pair that was cut in the middle, as a text of so many characters is
    "\ude00 cut",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",  # one family to see, five characters
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "e\u0301",
    "\u202eright to left",
    "null",
    "NaN",
    "-0",
    "0123",
    "1e400",
    "1_000",
    "180.00",
    "2026-07-05",
    "2026-02-30T25:61:00Z",
    "2026-11-01T01:30:00-04:00[America/New_York]",
    "[1]",
    '{"a":1,"a":2}',
    '{"command": "ls',
    "'; DROP TABLE runs; --",
    "%s {0} ${x} {run_id}",
    "\\ud800",
)
ODD_NUMBERS: tuple[int | float, ...] = (
    -1,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63) - 1,
    2**64,
    10**400,
    -0.0,
    1.0,
    0.1 + 0.2,
    1e-7,
    1e16,
    1e21,
    5e-324,
    2.2250738585072014e-308,
    1.7976931348623157e308,
)
ODD_KEYS = (
    "",
    "0",
    "_type_",
    "_data_",
    "__type__",
    "__class__",
    "__proto__",
    "$ref",
    "py/object",
    "self",
    "ctx",
    "\0",
)
TAGGED: tuple[Mapping[str, Any], ...] = (
    {"_type_": "decimal_str", "_data_": "1.5"},
    {"_type_": "invoice", "_data_": 1},
    {"__type__": "bytes", "data": "aGVsbG8="},
    {"__class__": "builtins.object"},
    {"py/object": "builtins.object"},
)
CALL_IDS = (None, "", "call_1")
DEEP = 20
"""At most so many containers stand around a leaf of an odd value."""

FEW = 3
"""How many members a container has at most."""


@st.composite
def odd_values(draw: st.DrawFn) -> Any:
    """Draw JSON values of the kinds that broke agents in the wild; the journal can hold each of them.

    Halves of characters are among them, which the library replaces: compare with ``decode(canonical(value))``.
    """
    return draw(_ODD)


def calls(agent: type[AgentRun]) -> st.SearchStrategy[CallTool]:
    """Draw calls that the tools of an agent take, their arguments in JSON form; some have a model's useless ids."""
    tools = [*agent.agent_tools.values()]
    if not tools:
        raise BadScenario(f"{agent.__name__} has no tools to call")
    return st.one_of(*map(_calls_of, tools))


def plans(
    calls: st.SearchStrategy[CallTool], *, max_turns: int = 4, max_calls: int = 3
) -> st.SearchStrategy[list[Decision]]:
    """Draw scripts of at most so many turns, each of one call or several, that end in a ``Finish``."""
    turns: st.SearchStrategy[Decision] = calls | st.lists(calls, min_size=1, max_size=max_calls)
    return st.builds(
        lambda script, answer: [*script, Finish(answer)], st.lists(turns, max_size=max_turns), odd_values()
    )


def schedules(places: int = 60, crashes: int = 3) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw the places, counted from 1, where one worker after the other dies; no crash at all is one of them."""
    return st.lists(st.integers(1, places), max_size=crashes).map(tuple)


@st.composite
def _texts(draw: st.DrawFn) -> str:
    return draw(st.text() | st.sampled_from(ODD_TEXTS))


def _objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(ODD_KEYS) | _texts(), values, max_size=FEW)


def _in_containers(value: Any, depth: int, in_lists: bool) -> Any:  # noqa: FBT001  # drawn
    for _ in range(depth):
        value = [value] if in_lists else {"": value}
    return value


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts()
    | st.sampled_from(ODD_NUMBERS)
    | st.sampled_from(TAGGED).map(dict)
)
_ODD = (
    _LEAVES
    | st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=FEW) | _objects(inner), max_leaves=10)
    | st.builds(_in_containers, _LEAVES, st.integers(1, DEEP), st.booleans())
)
"""What ``odd_values`` draws; apart from it, so that what shows a strategy shows its name."""


def _calls_of(tool: Tool) -> st.SearchStrategy[CallTool]:
    needed, optional = {}, {}
    for name, annotation in _parameters(tool).items():
        if get_origin(annotation) is NotRequired:
            optional[name] = _fitting(*get_args(annotation))
        else:
            needed[name] = _fitting(annotation)
    return _taken(tool, st.fixed_dictionaries(needed, optional=optional))


@st.composite
def _taken(draw: st.DrawFn, tool: Tool, arguments: st.SearchStrategy[dict[str, Any]]) -> CallTool:
    """Draw a call that the tool takes, and can make a key of."""
    try:
        call = tool.call(**draw(arguments))
        tool.key_for("run-1", 0, canonical(call.args))
    except (BadArguments, ValueError):  # a type may demand more than those of its fields do
        reject()
    return replace(call, call_id=draw(st.sampled_from(CALL_IDS)))


def _parameters(tool: Tool) -> Mapping[str, Any]:
    """Return the arguments of a tool, as it resolved their annotations where it was declared."""
    (arguments,) = get_args(tool._arguments.annotation)  # noqa: SLF001  # the names cannot be resolved a second time
    return get_type_hints(arguments, include_extras=True)


def _fitting(annotation: Any) -> st.SearchStrategy[Any]:
    """Draw what fits an annotation, and odd values where it leaves the type open."""
    kind, parts = get_origin(annotation) or annotation, get_args(annotation)
    if parts and kind in _OF:
        return _OF[kind](*parts)
    return _ALONE[annotation]() if not parts and kind in _ALONE else st.from_type(annotation)


def _one_of(*kinds: Any) -> st.SearchStrategy[Any]:
    return st.one_of(*map(_fitting, kinds))


def _lists(kind: Any) -> st.SearchStrategy[Any]:
    return st.lists(_fitting(kind), max_size=FEW)


def _tuples(*kinds: Any) -> st.SearchStrategy[Any]:
    return _lists(kinds[0]) if kinds[1:] == (...,) else st.tuples(*map(_fitting, kinds))


def _mappings(*kinds: Any) -> st.SearchStrategy[Any]:
    return st.dictionaries(*map(_fitting, kinds), max_size=FEW)


def _within(kind: Any, *metadata: Any) -> st.SearchStrategy[Any]:
    """Draw what fits a type and its constraints, as far as they are known; a tool refuses what breaks the others."""
    constraints = [one for item in metadata for one in (item.metadata if isinstance(item, FieldInfo) else [item])]

    def bound(*names: str) -> Any:
        return next((getattr(one, name) for name in names for one in constraints if hasattr(one, name)), None)

    if (pattern := bound("pattern")) is not None:
        return st.from_regex(pattern)
    if kind is Decimal:
        least, most, places = bound("ge", "gt"), bound("le", "lt"), bound("decimal_places")
        return st.decimals(least, most, places=places, allow_nan=False, allow_infinity=False)
    known = [one for one in constraints if isinstance(one, _BOUNDS)]
    if known and not get_args(kind):
        bounded: Any = Annotated[(kind, *known)]
        return st.from_type(bounded)
    return _fitting(kind)


_BOUNDS = (Gt, Ge, Lt, Le, MultipleOf, MinLen, MaxLen, GroupedMetadata)

_OF: Mapping[Any, Callable[..., st.SearchStrategy[Any]]] = {
    Annotated: _within,
    Union: _one_of,
    UnionType: _one_of,
    list: _lists,
    Sequence: _lists,
    tuple: _tuples,
    dict: _mappings,
    Mapping: _mappings,
}
"""What is drawn for a type of other types."""

_ALONE: Mapping[Any, Callable[[], st.SearchStrategy[Any]]] = {
    Any: odd_values,
    object: odd_values,
    list: lambda: st.lists(odd_values(), max_size=FEW),
    dict: lambda: _objects(odd_values()),
    str: _texts,
    Decimal: lambda: st.decimals(allow_nan=False, allow_infinity=False),
}
"""What is drawn for a type by itself: Hypothesis would draw what JSON cannot say, or nothing odd."""
