"""What one event changed: where two states of a run differ, told in short texts.

Rule: what every event changes is left out: how many there are, and the time of the last one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from agent_es.differences import NOTHING, differences
from agent_es.journal import timestamp
from agent_es.state import RunState, Signal, Step
from agent_es.values import bounded
from agent_es.visible import in_a_line

MOST = 60
"""So many changes are told."""
WIDE = 200
"""Characters that are shown of a value."""
ALWAYS = frozenset({".version", ".updated_at"})
"""What every event changes."""
NONE = "-"
"""What stands where there is nothing."""


@dataclass(frozen=True, slots=True)
class Change:
    """One place of a state that has another value now."""

    where: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.where}: {self.before} → {self.after}"


def changes(before: RunState | None, after: RunState) -> list[Change]:
    """Return where two states of a run differ, at most ``MOST`` places and one that says how many more there are.

    Without a state before, it is what a run begins with.

    >>> [str(change) for change in changes(RunState(turns=1), RunState(turns=2, failure="no use"))]
    ['turns: 1 → 2', 'failure: - → no use']
    """
    found = (it for it in differences(before or RunState(), after) if it[0] not in ALWAYS)
    told = [_change(*it) for it in islice(found, MOST)]
    more = sum(1 for _ in found)
    return [*told, Change(f"and {more} more", "", "")] if more else told


def _change(where: str, before: Any, after: Any) -> Change:
    named = in_a_line(bounded(where.removeprefix(".").removesuffix("_json"), WIDE))
    return Change(named, short(before), short(after))


def short(value: Any) -> str:
    """Return a value of a state as a reader wants to see it: in one line, bounded."""
    return bounded(in_a_line(_text(value)), WIDE)


def _text(value: Any) -> str:
    match value:
        case str():
            text = value[: 2 * WIDE] or '""'
        case bool():
            text = "yes" if value else "no"
        case datetime():
            text = timestamp(value)
        case Step():
            text = f"{value.tool} {value.args_json[:WIDE]}, {value.status}"
        case Signal():
            text = f"{value.name} {value.payload_json[:WIDE]}"
        case tuple() if hasattr(value, "_asdict"):
            text = ", ".join(_named(value._asdict()))
        case Mapping():
            text = ", ".join(_named(value)) or NONE
        case tuple():
            text = ", ".join(_text(part) for part in value[:WIDE]) or NONE
        case _:
            text = NONE if value is None or value is NOTHING else str(value)
    return text


def _named(parts: Mapping[str, Any]) -> Iterator[str]:
    for name, part in islice(parts.items(), WIDE):
        yield f"{name.removesuffix('_json')} {_text(part)}"
