"""Snapshots: what runs were folded to, so that a long one is read back without folding all of it again.

Rule 1: a snapshot is a shortcut and never the truth.  One that another fold made, that cannot be read, or whose last
event is not in the journal to the byte, is passed over.
Rule 2: it is written beside the run, by a thread of its own, after the append; nobody waits for it, and where it
fails, nothing is lost.
Rule 3: a run keeps its last two.  It gets a new one whenever it has grown by about a quarter: what all of them cost
grows as the journal does, and a quarter of the journal is folded at most.
"""

import hashlib
import threading
import zlib
from contextlib import suppress
from typing import Any

from agent_es.events import stream_id
from agent_es.images import fold_name, image_of, state_of
from agent_es.state import RunState
from agent_es.store.mapper import EventMapper, Row
from agent_es.store.recorder import RunRecorder
from agent_es.store.tables import snapshots

FROM = 2_048
"""Events from which a run is worth a snapshot: fewer are folded in some hundredths of a second."""
KEPT = 2
LONGEST_WRITE = 5.0
"""Seconds for which a store that is closed waits for a snapshot under way."""


def is_milestone(before: int, after: int) -> bool:
    """Whether a run that grew from so many events to so many has come to where the next snapshot is due.

    >>> [version for version in range(1, 8_000) if is_milestone(version - 1, version)]
    [2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168]
    """
    if after < FROM:
        return False
    quarter = 1 << (after.bit_length() - 3)
    return before // quarter != after // quarter


class Snapshots:
    """Keeps and finds the snapshots of runs."""

    def __init__(self, recorder: RunRecorder, mapper: EventMapper, *, is_on: bool = True) -> None:
        self._recorder, self._datastore, self._mapper = recorder, recorder.datastore, mapper
        self._fold = fold_name() if is_on else None
        self._writer: threading.Thread | None = None
        sql, table = self._datastore.dialect.sql, snapshots.name
        self._select = sql(
            f"SELECT version, image, last_event FROM {table} "
            "WHERE run_id = ? AND fold = ? AND version <= ? ORDER BY version DESC LIMIT 1"
        )
        self._insert = sql(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?) ON CONFLICT (run_id, version) DO NOTHING")
        newest = f"SELECT version FROM {table} WHERE run_id = ? ORDER BY version DESC LIMIT {KEPT}"
        self._delete_stale = sql(f"DELETE FROM {table} WHERE run_id = ? AND (fold <> ? OR version >= ?)")
        self._prune = sql(f"DELETE FROM {table} WHERE run_id = ? AND version NOT IN ({newest})")

    def state(self, run_id: str, upto: int | None = None) -> RunState | None:
        """Return the newest state of a run, of no more than so many events, that a snapshot can be believed for."""
        if self._fold is None:
            return None
        found = self._recorder.select(self._select, (run_id, self._fold, 2**31 - 1 if upto is None else upto))
        for version, image, last_event in found:
            rows = self._recorder.rows(stream_id(run_id), after=version - 1, upto=version)
            if len(rows) == 1 and digest(rows[0]) == last_event:
                with suppress(Exception):  # what is stored may be anything: the journal says it all
                    state = state_of(zlib.decompress(self._mapper.opened(bytes(image))))
                    return state if (state.run_id, state.version) == (run_id, version) else None
        return None

    def offer(self, state: RunState, before: int) -> None:
        """Take a snapshot beside what goes on, where a run came to a milestone since it had ``before`` events."""
        if self._fold is None or not is_milestone(before, state.version):
            return
        if self._writer is None or not self._writer.is_alive():  # else the next one will do
            self._writer = threading.Thread(target=self._try, args=[state], name="agent_es snapshot", daemon=True)
            self._writer.start()

    def take(self, state: RunState) -> bool:
        """Take a snapshot of a run in that state, and let go of those before the last; say whether that was done.

        It is not, where the code of the fold cannot be named.  Raises ``StoreBusy``, ``StoreUnusable``.
        """
        if self._fold is None:
            return False
        rows = self._recorder.rows(stream_id(state.run_id), after=state.version - 1, upto=state.version)
        if not rows:
            return False  # it is not in the journal
        image = self._mapper.sealed(zlib.compress(image_of(state), 1))
        values = (state.run_id, state.version, self._fold, image, digest(rows[0]))

        def write(connection: Any) -> None:
            connection.execute(self._delete_stale, (state.run_id, self._fold, state.version))
            connection.execute(self._insert, values)
            connection.execute(self._prune, (state.run_id, state.run_id))

        self._datastore.repeatable(write, "a snapshot could not be written")
        return True

    def close(self) -> None:
        """Wait for what is under way."""
        if self._writer is not None and self._writer is not threading.current_thread():
            self._writer.join(LONGEST_WRITE)

    def _try(self, state: RunState) -> None:
        with suppress(Exception):  # whatever the user's cipher raises: nothing depends on it
            self.take(state)


def digest(row: Row) -> str:
    """Return the digest of an event as it is stored."""
    version, topic, data = row
    return hashlib.sha256(b"%d\0%b\0%b" % (version, topic.encode(), data)).hexdigest()
