"""Where two values differ, by the names under which a reader finds what differs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()
"""What stands where one of the values has nothing at all."""


def differences(before: Any, after: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each place where two values differ, with what each of them has there.

    >>> [*differences({"a": [1, 2], "b": 0}, {"a": [1, 3], "b": 0})]
    [('.a[1]', 2, 3)]
    """
    if before is after:
        return
    parts, others = _parts(before), _parts(after)
    if type(before) is not type(after) or parts is None or others is None:
        if repr(before) != repr(after):
            yield where, before, after
        return
    for name in dict.fromkeys([*parts, *others]):
        if name not in parts or name not in others:
            yield where + name, parts.get(name, NOTHING), others.get(name, NOTHING)
        else:
            yield from differences(parts[name], others[name], where + name)


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
