"""The feed: every event of all runs once, in the order in which they were stored.

Rule 1: a position is read when nothing before it can still appear: who is appending is waited for, never held up.
Rule 2: a position is never given out twice, whatever was deleted; what was rolled back leaves a gap that delays
nobody.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from eventsourcing.persistence import StoredEvent

from agent_es.errors import RunUnreadable
from agent_es.events import RunStarted
from agent_es.journal import JournalEntry
from agent_es.store.mapper import EventMapper
from agent_es.store.recorder import RunRecorder

PAGE = 500
"""How many events are read at once."""
KNOWN = 10_000
"""Of how many runs the ids are kept at hand."""


@dataclass(frozen=True, slots=True)
class FeedEntry(JournalEntry):
    """An event of some run, and its position among the events of all, from 1, with gaps."""

    position: int


class Feed:
    """Reads the events of all runs."""

    def __init__(self, recorder: RunRecorder, mapper: EventMapper) -> None:
        self._recorder = recorder
        self._mapper = mapper
        self._run_ids: dict[UUID, str] = {}

    def read(self, after: int, limit: int | None) -> Iterator[FeedEntry]:
        """Yield what was stored when the first one was asked for, at most ``limit``."""
        upto = self._recorder.settled()
        left = upto if limit is None else limit
        while left > 0 and (page := self._recorder.page(after, upto, min(PAGE, left))):
            self._learn({stored.originator_id for _, stored in page if isinstance(stored.originator_id, UUID)})
            for position, stored in page:
                yield self._entry(position, stored)
            after, left = page[-1][0], left - len(page)

    def _entry(self, position: int, stored: StoredEvent) -> FeedEntry:
        try:
            return FeedEntry(self._run_id_of(stored), self._mapper.to_domain_event(stored), position)
        except RunUnreadable as error:
            raise RunUnreadable(
                f"position {position} of the feed: {error}; read it with the code that wrote it, "
                f"or go on with feed(after={position})"
            ) from None

    def _run_id_of(self, stored: StoredEvent) -> str:
        try:
            return self._run_ids[UUID(str(stored.originator_id))]
        except KeyError:
            raise RunUnreadable("the first event of its run, which names it, cannot be read") from None

    def _learn(self, streams: set[UUID]) -> None:
        """Find out which runs these are, by their first events."""
        if len(self._run_ids) > KNOWN:
            self._run_ids.clear()
        for stored in self._recorder.firsts(streams.difference(self._run_ids)):
            try:
                first = self._mapper.to_domain_event(stored)
            except RunUnreadable:
                continue  # whoever asks for an event of it is told
            if isinstance(first, RunStarted):
                self._run_ids[UUID(str(stored.originator_id))] = first.run_id
