"""Idempotency keys: the same text for every attempt at one intent, another text for another intent.

Rule: a key is derived once, when its step is decided, and read back from the journal ever after.
"""

from collections.abc import Collection, Mapping
from decimal import Decimal
from string import Formatter, ascii_letters, digits
from typing import Any
from urllib.parse import quote

from agent_es.errors import BadTool
from agent_es.values import digest

MAX_LENGTH = 255
DEFAULT = "{run_id}:{idx}:{tool}"
"""One key per step: the position of a step in its run is what makes it this intent and no other."""

MARKS = "#!"
"""What no template may hold: they mark renewed keys, and long ones."""

NOTHING = "%~"
"""What stands for None, which is not the text ``None``."""

_IN_VALUES = frozenset(ascii_letters + digits + "_.-~%")
"""What an escaped value is made of: none of it separates two blanks."""

POSITION = frozenset({"run_id", "idx", "tool"})


def renewed(key: str) -> str:
    """Return the key of the next try at an intent whose key is spent; a template can make no such key.

    >>> renewed("ORD-3300:refund:180.00"), renewed("ORD-3300:refund:180.00#2")
    ('ORD-3300:refund:180.00#2', 'ORD-3300:refund:180.00#3')
    """
    stem, _, count = key.partition("#")
    return fitted(f"{stem}#{int(count or 1) + 1}")


def sub_key(key: str, name: str) -> str:
    """Return the key of one of several provider calls of a step.

    >>> sub_key("inv-7", "create"), sub_key("inv-7", "a/b")
    ('inv-7/create', 'inv-7/a%2Fb')
    """
    return fitted(f"{key}/{quote(name, safe='')}")


def fitted(key: str) -> str:
    """Return the key, or one of ``MAX_LENGTH`` characters that ends in its digest."""
    return key if len(key) <= MAX_LENGTH else f"{key[: MAX_LENGTH - 65]}!{digest(key)}"


class KeyTemplate:
    """A key with blanks for the validated arguments of a call, and for its position.

    >>> KeyTemplate("{order}:refund:{amount:.2f}").fill({"order": "ORD-3300", "amount": 180.0})
    'ORD-3300:refund:180.00'
    >>> KeyTemplate("{order}:refund").fill({"order": "A:refund"})
    'A%3Arefund:refund'
    """

    def __init__(self, template: str) -> None:
        self.template = template
        self._parts = list(Formatter().parse(template))
        self.names = [name for _, name, _, _ in self._parts if name is not None]

    @property
    def is_default(self) -> bool:
        """Whether this is the key of a step's position alone."""
        return self.template == DEFAULT

    def check(self, tool: str, arguments: Collection[str]) -> None:
        """Raise ``BadTool`` for a template that names what is not there, or that two intents could share."""
        wrong = [why for name in self.names if (why := _misnamed(name, arguments))]
        for literal, _, spec, conversion in self._parts:
            if any(mark in literal for mark in MARKS):
                wrong.append(f"{literal!r} holds one of {MARKS!r}, which mark keys of ours")
            if "{" in (spec or ""):
                wrong.append("it formats one argument by another; write the format out")
            if conversion:
                wrong.append(f"it converts with !{conversion}; use a format, as in {{amount:.2f}}")
        if not self.names:
            wrong.append("it names no argument: one key for all")
        between = [literal for literal, name, _, _ in self._parts if name is not None][1:]
        if any(set(literal) <= _IN_VALUES for literal in between):
            wrong.append("two of its blanks could run into each other; put a ':' between them")
        if wrong:
            raise BadTool(f"tool {tool}: the key template {self.template!r} cannot work: {'; '.join(wrong)}")

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the key; a value's separators are escaped, and a long key ends in its digest.

        Raises ``TypeError``, ``ValueError`` and ``OverflowError`` for a value that the template's format cannot take.
        """
        return fitted(
            "".join(
                literal + ("" if name is None else _escaped(values[name], spec or ""))
                for literal, name, spec, _ in self._parts
            )
        )


def _misnamed(name: str, arguments: Collection[str]) -> str | None:
    if name in POSITION:
        return f"{name!r} is both an argument and the step's own; rename the argument" if name in arguments else None
    known = ", ".join(sorted({*arguments, *POSITION}))
    return None if name in arguments else f"it names {name!r}, which is no argument; use {known}"


def _escaped(value: Any, spec: str) -> str:
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) > MAX_LENGTH:
        raise ValueError(f"{value.adjusted():+d} decimal places are too many to write out")  # it would take gigabytes
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)  # its own order means nothing
    return NOTHING if value is None and not spec else quote(format(value, spec), safe="")
