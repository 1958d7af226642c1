"""Where two values differ, told by the names of what differs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

MOST = 5
"""So many differences are told."""
WIDE = 120
"""Characters that are shown of a value."""


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()


def difference(expected: Any, found: Any) -> str:
    """Tell where a value differs from the expected one, a line for each place.

    >>> print(difference({"a": [1, 2], "b": 0}, {"a": [1, 3], "b": 0}))
        a[1]: 3, and 2 without a crash
    """
    found_at = [*_differences("", expected, found)]
    lines = [
        f"    {where.lstrip('.')}: {_short(here)}, and {_short(there)} without a crash"
        for where, there, here in found_at
    ]
    more = [f"    and {len(lines) - MOST} more"] if len(lines) > MOST else []
    return "\n".join([*lines[:MOST], *more])


def _differences(where: str, expected: Any, found: Any) -> Iterator[tuple[str, Any, Any]]:
    parts, others = _parts(expected), _parts(found)
    if type(expected) is not type(found) or parts is None or others is None:
        if repr(expected) != repr(found):
            yield where, expected, found
        return
    for name in dict.fromkeys([*parts, *others]):
        if name not in parts or name not in others:
            yield where + name, parts.get(name, NOTHING), others.get(name, NOTHING)
        else:
            yield from _differences(where + name, parts[name], others[name])


def _parts(value: Any) -> Mapping[str, Any] | None:
    """Return what a value is made of, by the names under which a reader finds it."""
    if is_dataclass(value):
        return {f".{field.name}": getattr(value, field.name) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {f".{name}": part for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {f".{name}": part for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return {f"[{n}]": part for n, part in enumerate(value)}
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= WIDE else f"{text[:WIDE]}…"
