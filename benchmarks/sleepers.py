"""Runs that sleep: what a ``Runner`` recorded of one of them, again and again under other names, at other times.

Rule 1: nothing is made up: the events are those of a run that fell asleep, moved in time as a whole.
Rule 2: their rows are made by the library's own projection; a test compares both with what the library writes.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from agent_es import AgentRun, CallTool, Decision, Effect, Finish, Runner, RunState, RunStore, ToolSpec, WaitFor, tool
from agent_es.events import AnyEvent, RunStarted, WaitBegan, stream_id
from agent_es.state import fold
from agent_es.store.projection import ALL, row_of
from agent_es.store.tables import runs

WEEK = timedelta(days=7)
MODEL = "run-model"
SIGNAL = "go"
"""What wakes a sleeper before its time."""

INSERT_ROW = f"INSERT INTO {runs.name} ({', '.join(ALL)}) VALUES ({', '.join('?' * len(ALL))})"  # noqa: S608  # our own
INSERT_EVENT = "INSERT INTO agent_es_events (originator_id, originator_version, topic, state) VALUES (?, ?, ?, ?)"


class Dreamer:
    """Sleeps for a week, or until it is woken; notes when it goes on, and says so."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:  # noqa: ARG002  # it knows them
        """Return what its turn is."""
        turns: Sequence[Decision] = (WaitFor(SIGNAL, timeout=WEEK), CallTool("note"), Finish("awake"))
        return turns[run.turns]


class IdleRun(AgentRun):
    """Sleeps, and notes when it goes on."""

    decider = Dreamer()

    @tool(effect=Effect.READ)
    def note(self) -> float:
        """Return the time at which the body started, in seconds since 1970."""
        return time.time()


class Sleepers:
    """Puts runs to sleep in a store."""

    def __init__(self, store: RunStore) -> None:
        asleep = Runner(store).run(IdleRun, run_id=MODEL, goal="Sleep for a week")
        assert asleep.wake_at is not None
        self.store = store
        self._model = [entry.event for entry in store.journal(MODEL)]
        self._wakes_at = asleep.wake_at.timestamp()

    def put(self, wakes: Mapping[str, float]) -> None:
        """Let each of these runs sleep until its time, in seconds since 1970; in one transaction."""
        recorder, dialect = self.store.recorder, self.store.recorder.datastore.dialect
        rows: list[tuple[Any, ...]] = []
        events: list[tuple[Any, ...]] = []
        for run_id, wake_at in wakes.items():
            copied = self.copied(run_id, wake_at)
            rows.append(row_of(fold(copied), copied).values)
            stored = map(self.store.mapper.to_stored_event, copied)
            stream = dialect.stream(stream_id(run_id))
            events += [(stream, event.originator_version, event.topic, event.state) for event in stored]
        with recorder.datastore.writing() as connection:
            dialect.lock_feed(connection)
            connection.cursor().executemany(dialect.sql(INSERT_ROW), rows)
            connection.cursor().executemany(dialect.sql(INSERT_EVENT), events)

    def copied(self, run_id: str, wake_at: float) -> list[AnyEvent]:
        """Return the model's journal as another run's, which wakes at that time."""
        shift = timedelta(seconds=wake_at - self._wakes_at)
        events: list[AnyEvent] = []
        for event in self._model:
            changed: dict[str, Any] = {"originator_id": stream_id(run_id), "timestamp": event.timestamp + shift}
            if isinstance(event, RunStarted):
                changed["run_id"] = run_id
            if isinstance(event, WaitBegan) and event.wake_at is not None:
                changed["wake_at"] = event.wake_at + shift
            events.append(event.model_copy(update=changed))
        return events
