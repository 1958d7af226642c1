"""The journal as people and programs read it: one JSON line per event."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from agent_es.events import AnyEvent, Event, JsonText
from agent_es.values import decode


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One event of a run; ``str`` gives its line, with sorted keys."""

    run_id: str
    event: AnyEvent

    @property
    def seq(self) -> int:
        """The event's position in its run, from 0."""
        return self.event.originator_version - 1

    @property
    def at(self) -> datetime:
        """When it happened, in UTC."""
        return self.event.timestamp

    @property
    def type(self) -> str:
        """The event's name in snake case.

        >>> _snake("LlmDecided")
        'llm_decided'
        """
        return _snake(type(self.event).__name__)

    @property
    def data(self) -> dict[str, Any]:
        """What the event says, its JSON texts as the values they stand for."""
        texts = _json_fields(type(self.event))
        plain = self.event.model_dump(mode="json", exclude_none=True, exclude={"timestamp"})
        return {name: decode(value) if name in texts else value for name, value in plain.items()}

    def __str__(self) -> str:
        line = {
            "data": self.data,
            "run_id": self.run_id,
            "seq": self.seq,
            "ts": timestamp(self.at),
            "type": self.type,
        }
        return json.dumps(line, sort_keys=True, ensure_ascii=False)


def timestamp(at: datetime) -> str:
    """Return a time as the journal writes it: UTC, no fraction where it is zero.

    >>> timestamp(datetime(2026, 7, 5, 10, tzinfo=UTC))
    '2026-07-05T10:00:00Z'
    """
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


@cache
def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


@cache
def _json_fields(cls: type[Event]) -> frozenset[str]:
    mark = JsonText.__metadata__[0]  # type: ignore[attr-defined]
    return frozenset(name for name, field in cls.model_fields.items() if mark in field.metadata)
