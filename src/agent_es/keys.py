"""Idempotency keys: the same text for every attempt at one intent, another text for another intent.

Rule: a key is derived once, when its step is decided, and read back from the journal ever after.
"""

from collections.abc import Collection, Mapping
from string import Formatter
from typing import Any
from urllib.parse import quote

from agent_es.errors import BadTool
from agent_es.values import digest

MAX_LENGTH = 255
DEFAULT = "{run_id}:{idx}:{tool}"
"""One key per step: the position of a step in its run is what makes it this intent and no other."""

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
    return key if len(key) <= MAX_LENGTH else f"{key[: MAX_LENGTH - 65]}~{digest(key)}"


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
        self.names = frozenset(name for _, name, _, _ in self._parts if name is not None)

    def check(self, tool: str, arguments: Collection[str]) -> None:
        """Raise ``BadTool`` where a blank names no argument, or where there is no blank at all."""
        known = {*arguments, *POSITION}
        for name in sorted(self.names - known):
            raise BadTool(
                f"tool {tool}: the key template {self.template!r} names {name!r}, which is no argument; "
                f"use {', '.join(sorted(known))}"
            )
        if any("#" in literal for literal, *_ in self._parts):
            raise BadTool(f"tool {tool}: the key template {self.template!r} holds a '#', which marks renewed keys")
        if not self.names:
            raise BadTool(f"tool {tool}: the key template {self.template!r} names no argument: one key for all")

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the key; a value's separators are escaped, and a long key ends in its digest."""
        return fitted(
            "".join(
                literal + ("" if name is None else quote(format(values[name], spec or ""), safe=""))
                for literal, name, spec, _ in self._parts
            )
        )
