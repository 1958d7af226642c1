"""What comes to a run from outside, beside whoever moves it: a signal, a cancellation, the end of a run it started.

Rule 1: it is appended under no lease, with the run's row held in the transaction of whoever brings it: so it is never
refused for being late, and whoever moves the run takes it in with its own next append.
Rule 2: a delivery is recorded once, however often it is brought.
Rule 3: rows are held from the parent to the child, so that no two wait for each other in a circle.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from eventsourcing.persistence import StoredEvent

from agent_es.errors import IllegalEvent, RunNotFound, SignalConflict
from agent_es.events import AnyEvent, WaitBegan, stream_id
from agent_es.run import AgentRun, Clock
from agent_es.state import RunState, Status, ended
from agent_es.store.mapper import EventMapper
from agent_es.store.projection import change_of, claims_of, delivery_of, row_of, tag_of
from agent_es.store.recorder import Append, RunRecorder


@dataclass(frozen=True, slots=True)
class Delivered:
    """A signal is in the journal of this run."""

    run_id: str
    seq: int
    is_new: bool
    """Whether it was recorded now: a delivery that came before is left as it is."""


@dataclass(frozen=True, slots=True)
class Arriving:
    """A signal on its way."""

    name: str
    payload_json: str
    delivery_id: str


Command = Callable[[AgentRun], object]
"""Records what somebody does to a run."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run is ended from outside."""

    by: str
    reason: str
    compensates: bool
    """Whether its finished effects are undone."""
    check: Callable[[RunState], object]
    """Raises where that may not be."""

    def may_end(self, state: RunState) -> bool:
        """Whether there is anything to end: a run whose effects are to be undone may be done, or have failed."""
        if self.compensates and not state.compensating and state.status in (Status.DONE, Status.FAILED):
            return True
        return not state.is_over and not (self.compensates and state.compensating)


class Arrivals:
    """Appends what comes from outside, on a connection whose transaction somebody else commits."""

    def __init__(self, recorder: RunRecorder, mapper: EventMapper, clock: Clock) -> None:
        self._recorder = recorder
        self._mapper = mapper
        self._clock = clock

    def deliver(self, connection: Any, run_id: str, signal: Arriving) -> Delivered:
        """Record a signal, unless that delivery is recorded already.

        Raises ``RunNotFound``, ``SignalConflict`` where it brought something else then, ``IllegalEvent`` where the
        run is over, ``RunUnreadable``.
        """
        if self._recorder.hold(connection, run_id) is None:
            raise RunNotFound(f"no run {run_id!r}: nothing waits for {signal.name!r} there")
        if (there := self._there(connection, run_id, signal)) is not None:
            return there
        run = self._run(connection, run_id)
        run.record_signal(signal.name, signal.payload_json, signal.delivery_id)
        self._append(connection, run)
        return Delivered(run_id, run.version - 1, is_new=True)

    def deliver_to_tagged(self, connection: Any, tag: tuple[str, str], signal: Arriving) -> list[Delivered]:
        """Record a signal for every run that has a tag and is not over, and return where it is now.

        Raises ``RunNotFound`` where no run has the tag, ``IllegalEvent`` where all that have are over, and of any of
        them, with nothing written, ``RunUnreadable`` and ``SignalConflict``.
        """
        delivered = []
        tagged = self._recorder.tagged_in(connection, tag_of(*tag))
        for run_id in tagged:  # before anything is written: the transaction may be somebody's who commits the rest
            self._recorder.hold(connection, run_id)
            self._there(connection, run_id, signal)
            self._run(connection, run_id)
        for run_id in tagged:
            try:
                delivered.append(self.deliver(connection, run_id, signal))
            except IllegalEvent:
                continue  # it is over
        if not delivered:
            named = f"{tag[0]}={tag[1]}"
            if tagged:
                raise IllegalEvent(f"{', '.join(tagged[:5])}: every run with the tag {named} is over")
            raise RunNotFound(f"no run has the tag {named}: nothing waits for {signal.name!r}")
        return delivered

    def act(self, connection: Any, run_id: str, command: Command, tried: list[StoredEvent]) -> RunState:
        """Let somebody act on a run, and return it as it is then; a command that records nothing changes nothing.

        ``tried`` is what was appended before, in a transaction whose answer was lost: where it is there, that was it.
        Raises ``RunNotFound``, ``RunUnreadable``, ``KeyHeld``, and what the command does.
        """
        if self._recorder.hold(connection, run_id) is None:
            raise RunNotFound(f"no run {run_id!r}")
        run = self._run(connection, run_id)
        if not (tried and self._is_there(connection, run_id, tried)):
            command(run)
            if run.pending_events:
                self._recorder.claim_in(connection, claims_of(run_id, run.pending))  # before anything is written
                tried[:] = self._append(connection, run)
        return run.state

    def _is_there(self, connection: Any, run_id: str, tried: Sequence[StoredEvent]) -> bool:
        rows = self._recorder.rows_in(connection, stream_id(run_id), after=tried[0].originator_version - 1)
        return rows[: len(tried)] == [(event.originator_version, event.topic, event.state) for event in tried]

    def cancel(self, connection: Any, run_id: str, how: Ending) -> RunState:
        """End a run and the runs that it started; return it as it is then, also where it was over before.

        Raises ``RunUnreadable`` where this code cannot read one of them, and what the check does, with nothing
        written: the transaction may be somebody's who commits the rest of it.
        """

        def check(state: RunState) -> None:
            how.check(state)
            self._read_below(connection, state)

        return self._cancel(connection, run_id, replace(how, check=check))

    def _read_below(self, connection: Any, state: RunState) -> None:
        for child in [step.child for step in state.waits if step.child is not None]:
            self._read_below(connection, self._run(connection, child).state)

    def _cancel(self, connection: Any, run_id: str, how: Ending) -> RunState:
        parent = self._run(connection, run_id).state.parent
        if parent is not None:
            self._recorder.hold(connection, parent)
        self._recorder.hold(connection, run_id)
        run = self._run(connection, run_id)
        children = [step.child for step in run.state.waits if step.child is not None]
        if not how.may_end(run.state):
            return run.state
        how.check(run.state)
        (run.record_undoing if how.compensates else run.record_cancelled)(how.by, how.reason)
        if parent is not None and run.state.is_over:
            self.tell_parent(connection, run.state)
        self._append(connection, run)
        for child in children:
            reason = f"run {run_id} was cancelled"
            self._cancel(connection, child, replace(how, reason=reason, check=lambda _: None))
        return run.state

    def tell_parent(self, connection: Any, child: RunState) -> None:
        """Tell the run that started one, and that is not over itself, of its end."""
        signal = Arriving(ended(child.run_id), child.came_to_json, f"{child.run_id}@{child.version - 1}")
        with suppress(IllegalEvent, RunNotFound):  # nobody waits any more
            self.deliver(connection, child.parent or "", signal)

    def children_of(self, run: AgentRun, events: Sequence[AnyEvent]) -> list[Append]:
        """Return the appends of the runs that these events of a run start."""
        appends: list[Append] = []
        for event in events:
            if isinstance(event, WaitBegan) and event.child is not None and event.idx is not None:
                args = run.state.steps[event.idx].args_json
                child = AgentRun.begin_child(run.state, event.child, args, self._clock)
                stored = [self._mapper.to_stored_event(started) for started in child.pending_events]
                appends.append((stored, row_of(child.state), ()))
        return appends

    def _there(self, connection: Any, run_id: str, signal: Arriving) -> Delivered | None:
        known = self._recorder.delivery_in(connection, run_id, signal.delivery_id)
        if known is None:
            return None
        if known != delivery_of(run_id, signal.delivery_id, known.seq, signal.name, signal.payload_json):
            raise SignalConflict(
                f"run {run_id}: the delivery {signal.delivery_id!r} brought something else before, at seq "
                f"{known.seq}; nothing was recorded. If this is another signal, it needs a delivery id of its own."
            )
        return Delivered(run_id, known.seq, is_new=False)

    def _run(self, connection: Any, run_id: str) -> AgentRun:
        state = self._mapper.fold(self._recorder.rows_in(connection, stream_id(run_id)))
        if not state.version:
            raise RunNotFound(f"no run {run_id!r}")
        return AgentRun.of(state, self._clock)

    def _append(self, connection: Any, run: AgentRun) -> list[StoredEvent]:
        events = run.pending
        stored = [self._mapper.to_stored_event(event) for event in events]
        self._recorder.append_in(connection, stored, change_of(run.state, run.recorded, events, None), ())
        run.mark_recorded()
        return stored
