"""Events to bytes and back, through a closed registry.

Rule 1: a topic is looked up in a dict; what was stored imports nothing, and a name that is not in it is an error.
Rule 2: an event of a newer version, or one with a field that this code does not know, is never half read.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast
from uuid import UUID

from eventsourcing.persistence import Mapper, StoredEvent
from pydantic import ValidationError

from agent_es.errors import RunUnreadable
from agent_es.events import REGISTRY, AnyEvent, Event
from agent_es.state import Draft, RunState, apply
from agent_es.values import what_is_wrong

Row = tuple[int, str, bytes]
"""Version, topic and state of a stored event, as the database gives them."""


class EventMapper(Mapper[UUID]):
    """Writes events with pydantic-core, reads them by topic; the user's cipher and compressor apply."""

    registry: Mapping[str, type[Event]] = REGISTRY

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_plain = self.cipher is None and self.compressor is None
        self._topics = {cls: topic for topic, cls in self.registry.items()}
        self._decoders: dict[str, Callable[[bytes], Event]] = {
            topic: self._decoder(cls) for topic, cls in self.registry.items()
        }
        self._as_stored: dict[str, Callable[[bytes], Event]] = {
            topic: cast(Any, cls.__pydantic_validator__.validate_json)
            for topic, cls in self.registry.items()
            if self._is_plain and cls.class_version == 1
        }
        """Reads what nothing was done to since it was written, or raises ``ValidationError``."""

    def to_stored_event(self, domain_event: Any) -> StoredEvent:
        """Return the event as it is stored."""
        cls = type(domain_event)
        state: bytes = cls.__pydantic_serializer__.to_json(domain_event, exclude_none=True)
        if cls.class_version > 1:
            state = b'{"class_version":%d,' % cls.class_version + state[1:]
        if not self._is_plain:
            state = self.sealed(state)
        return StoredEvent(domain_event.originator_id, domain_event.originator_version, self._topics[cls], state)

    def sealed(self, data: bytes) -> bytes:
        """Return data as the user's compressor and cipher store it."""
        if self.compressor:
            data = self.compressor.compress(data)
        return self.cipher.encrypt(data) if self.cipher else data

    def opened(self, data: bytes) -> bytes:
        """Return data that was sealed; raises what the user's cipher and compressor raise."""
        if self.cipher:
            data = self.cipher.decrypt(data)
        return self.compressor.decompress(data) if self.compressor else data

    def to_domain_event(self, stored_event: StoredEvent) -> AnyEvent:
        """Return the event that was stored; raise ``RunUnreadable`` where this code does not know it."""
        event = self._decode(stored_event.topic, stored_event.state)
        event.__dict__["originator_id"] = stored_event.originator_id
        event.__dict__["originator_version"] = stored_event.originator_version
        return cast(AnyEvent, event)

    def fold(self, rows: Iterable[Row], state: RunState | None = None) -> RunState:
        """Return the state after the rows, which go on where it ends; decode and fold in one pass."""
        draft = Draft(state or RunState())
        as_stored = self._as_stored.get
        for version, topic, data in rows:
            read = as_stored(topic)
            try:
                try:
                    event = read(data) if read else self._decode(topic, data)
                except ValidationError:
                    event = self._decode(topic, data)  # says what is wrong with it
                apply(draft, event)  # type: ignore[arg-type]  # the registry holds the members of AnyEvent
            except Exception as error:  # what is stored may be anything
                raise RunUnreadable(
                    f"run {draft.run_id or '?'} cannot be read at seq {version - 1}: {error}; "
                    "read it with the code that wrote it"
                ) from None
            if draft.version != version:
                raise RunUnreadable(f"run {draft.run_id} has no event of seq {draft.version - 1}")
        return draft.freeze()

    def _decode(self, topic: str, data: bytes) -> Event:
        decoder = self._decoders.get(topic)
        if decoder is None:
            raise RunUnreadable(f"it holds an event of the unknown type {topic!r}")
        try:
            data = self.opened(data)
        except Exception as error:  # whatever the user's cipher raises
            raise RunUnreadable(
                f"an event cannot be deciphered ({type(error).__name__}); is the key right?"
            ) from None
        try:
            return decoder(data)
        except RunUnreadable:
            raise
        except Exception as error:  # what is stored may be anything
            raise RunUnreadable(f"{topic} cannot be read: {type(error).__name__}: {error}") from None

    def _decoder(self, cls: type[Event]) -> Callable[[bytes], Event]:
        validate = cls.__pydantic_validator__.validate_json

        def decode(data: bytes) -> Event:
            try:
                return cast(Event, validate(data))
            except ValidationError as error:
                return upcast(cls, data, error)

        return decode if cls.class_version == 1 else lambda data: upcast(cls, data, None)


def upcast(cls: type[Event], data: bytes, error: ValidationError | None) -> Event:
    """Return an event that was stored by an older version of its class; raise ``RunUnreadable`` otherwise."""
    values = json.loads(data)
    stored = values.pop("class_version", 1) if isinstance(values, dict) else None
    if type(stored) is not int:
        raise RunUnreadable(f"{cls.__name__} has no readable class_version")
    if stored > cls.class_version:
        raise RunUnreadable(
            f"{cls.__name__} was written as version {stored}, this code reads up to {cls.class_version}"
        )
    if stored == cls.class_version and error is not None:
        raise RunUnreadable(f"{cls.__name__} does not fit: {what_is_wrong(error)}")
    for version in range(stored, cls.class_version):
        getattr(cls, f"upcast_v{version}_v{version + 1}")(values)
    return cls.model_validate_json(json.dumps(values))
