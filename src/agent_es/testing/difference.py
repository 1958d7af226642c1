"""Where two values differ, told by the names of what differs."""

from typing import Any

from agent_es.differences import differences

MOST = 5
"""So many differences are told."""
WIDE = 120
"""Characters that are shown of a value."""


def difference(expected: Any, found: Any) -> str:
    """Tell where a value differs from the expected one, a line for each place.

    >>> print(difference({"a": [1, 2], "b": 0}, {"a": [1, 3], "b": 0}))
        a[1]: 3, and 2 without a crash
    """
    found_at = [*differences(expected, found)]
    lines = [
        f"    {where.lstrip('.')}: {_short(here)}, and {_short(there)} without a crash"
        for where, there, here in found_at
    ]
    more = [f"    and {len(lines) - MOST} more"] if len(lines) > MOST else []
    return "\n".join([*lines[:MOST], *more])


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= WIDE else f"{text[:WIDE]}…"
