"""Journals out of a store and into another, as JSON lines.

Rule 1: what was written out and read in again has the same lines, and so the same digest.
Rule 2: an import is all or nothing: every line is checked before the first event is stored, in one transaction.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent_es.errors import BadJournal
from agent_es.events import AnyEvent
from agent_es.journal import JournalEntry
from agent_es.legality import check_legal
from agent_es.store import RunStore


@dataclass(frozen=True, slots=True)
class Transferred:
    """What went over: the digest is the SHA-256 of the lines, each with its line end."""

    runs: int
    events: int
    digest: str


class Tally:
    """Counts and digests the lines that go by."""

    def __init__(self) -> None:
        self._runs: set[str] = set()
        self._events = 0
        self._digest = hashlib.sha256()

    def add(self, entry: JournalEntry) -> str:
        """Take note of an entry and return its line."""
        line = str(entry)
        self._runs.add(entry.run_id)
        self._events += 1
        self._digest.update(f"{line}\n".encode())
        return line

    @property
    def result(self) -> Transferred:
        """What went by so far."""
        return Transferred(len(self._runs), self._events, self._digest.hexdigest())


def export_lines(store: RunStore, run_ids: Iterable[str], tally: Tally) -> Iterator[str]:
    """Yield the journal lines of these runs, run by run; raise ``RunNotFound``."""
    for run_id in run_ids:
        for entry in store.journal(run_id):
            yield tally.add(entry)


def read_journals(lines: Iterable[str], tally: Tally) -> Mapping[str, Sequence[AnyEvent]]:
    """Return the journals that the lines tell of, by run id; no store is touched.

    Raises ``BadJournal`` with the number of the line that is wrong, ``IllegalEvent`` for what cannot have happened.
    """
    journals: dict[str, list[AnyEvent]] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                entry = JournalEntry.parse(line)
            except BadJournal as error:
                raise BadJournal(f"line {number}: {error}; nothing was imported") from None
            events = journals.setdefault(entry.run_id, [])
            if entry.seq != len(events):
                raise BadJournal(
                    f"line {number}: run {entry.run_id} has seq {entry.seq} where {len(events)} comes next; "
                    "nothing was imported"
                )
            events.append(entry.event)
            tally.add(entry)
    for run_id, events in journals.items():
        check_legal(run_id, events)
    return journals
