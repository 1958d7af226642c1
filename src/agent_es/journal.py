"""The journal as people and programs read it: one JSON line per event."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from agent_es.errors import BadJournal
from agent_es.events import REGISTRY, AnyEvent, Event, JsonText, stream_id
from agent_es.values import bounded, canonical, decode, what_is_wrong


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

    @classmethod
    def parse(cls, line: str) -> "JournalEntry":
        """Return the entry that a line stands for; raise ``BadJournal``."""
        try:
            told = json.loads(line)
            run_id, seq, kind = told["run_id"], told["seq"], _classes()[told["type"]]
            texts = _json_fields(kind)
            data = {name: canonical(value) if name in texts else value for name, value in told["data"].items()}
            event = kind.model_validate_json(json.dumps({**data, "timestamp": told["ts"]}))
        except (KeyError, TypeError, AttributeError) as error:
            raise BadJournal(f"it is no journal line: {type(error).__name__} {error}") from None
        except ValidationError as error:
            raise BadJournal(f"it cannot be read: {bounded(what_is_wrong(error), 300)}") from None
        except (ValueError, RecursionError) as error:
            raise BadJournal(f"it cannot be read: {bounded(' '.join(str(error).split()), 300)}") from None
        is_plain = isinstance(run_id, str) and type(seq) is int and seq >= 0
        if (
            not is_plain
            or set(told) != {"data", "run_id", "seq", "ts", "type"}
            or data.keys() & set(Event.model_fields)
        ):
            raise BadJournal("it needs exactly data, run_id (text), seq (a number from 0), ts and type")
        header = {"originator_id": stream_id(run_id), "originator_version": seq + 1}
        return cls(run_id, cast(AnyEvent, event.model_copy(update=header)))

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
def _classes() -> Mapping[str, type[Event]]:
    return {_snake(cls.__name__): cls for cls in REGISTRY.values()}


@cache
def _json_fields(cls: type[Event]) -> frozenset[str]:
    mark = JsonText.__metadata__[0]  # type: ignore[attr-defined]

    def is_marked(field: FieldInfo) -> bool:
        inner = [getattr(part, "__metadata__", ()) for part in get_args(field.annotation)]  # of one that may be None
        return any(mark in marks for marks in (field.metadata, *inner))

    return frozenset(name for name, field in cls.model_fields.items() if is_marked(field))
