"""The store of runs: an application of the event store library.

Rule 1: an append whose answer was lost is read back, and made again only where it is not there.
Rule 2: nothing goes on from what is not in the journal: a refused append leaves its events pending.
Rule 3: what came from outside meanwhile refuses nobody's append: it is taken in, and the append comes after it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, TypeVar, get_args
from uuid import UUID, uuid4

import eventsourcing.persistence as es
from eventsourcing.application import AggregateNotFoundError, Application, Repository
from eventsourcing.persistence import InfrastructureFactory, StoredEvent
from eventsourcing.utils import Environment
from sqlalchemy.orm import Session

from agent_es import people
from agent_es.envelope import Envelope
from agent_es.errors import (
    AgentError,
    AppendUnknown,
    BadAnswer,
    BadJournal,
    BadSettlement,
    BadSignal,
    BudgetSpent,
    IllegalEvent,
    KeyReused,
    LeaseLost,
    NotAllowed,
    NotApplied,
    RunConflict,
    RunMoved,
    RunNotFound,
    RunUnreadable,
    StillHeld,
    StoreBusy,
    StoreUnusable,
)
from agent_es.events import AnyEvent, SignalReceived, WaitBegan, stream_id
from agent_es.inbox import InboxItem, ItemKind
from agent_es.journal import JournalEntry, timestamp
from agent_es.people import Action, Authorize
from agent_es.run import AgentRun, Clock, agents_called
from agent_es.state import ENDED, RunState, Status, evolve, fold
from agent_es.store.arrivals import Arrivals, Arriving, Delivered, Ending
from agent_es.store.backlog import Backlog
from agent_es.store.bell import Bell
from agent_es.store.clocks import DatabaseClock
from agent_es.store.datastore import PATIENCE
from agent_es.store.dialects import dialect_of, parsed, shown
from agent_es.store.feed import Feed, FeedEntry
from agent_es.store.inbox import Inbox, Tell
from agent_es.store.leases import Leases
from agent_es.store.mapper import EventMapper, Row
from agent_es.store.projection import Change, Claim, change_of, claims_of, ends_lease, row_of
from agent_es.store.rates import Rates, ToolLimit
from agent_es.store.recorder import Append, Factory, KeyHeld, Overspent, RunRecorder
from agent_es.store.records import Place, Records, RunCounts, RunRecord, Wanted
from agent_es.store.schedules import CatchUp, Schedule, Timetable
from agent_es.store.snapshots import Snapshots
from agent_es.store.spending import NANOS
from agent_es.store.tracking import Tracking
from agent_es.tools import Returned, Tool, Waits
from agent_es.values import canonical, digest
from agent_es.waits import ASKED, check_name, check_tag

T = TypeVar("T")
Run = TypeVar("Run", bound=AgentRun)

APPEND_TRIES = 5
"""How often an append is made again whose answer was lost and which was not there."""


class RunStore(Application[UUID]):
    """Starts runs, appends to them, reads them back.  ``url`` is SQLAlchemy's, of SQLite or PostgreSQL.

    ``clock`` gives the times of events; left out, it is the database's.  ``env`` holds settings of the event store
    library (a cipher, a compressor).  Without ``create``, what is not there yet is refused.  With ``migrate``,
    tables of an older schema are brought up to this one.  ``patience`` bounds the seconds that a writer waits for
    the write lock.  Without ``snapshots``, long runs are folded from their first event, and none is taken.
    ``authorize`` says whether a person may do something to a run: ``authorize("dana", "approve", state)``.
    Raises ``StoreUnusable`` and ``SchemaMismatch``.
    """

    name = "agent_es"

    recorder: RunRecorder
    mapper: EventMapper

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep the name, which the tables are called after."""
        super().__init_subclass__(**kwargs)
        cls.name = RunStore.name

    def __init__(
        self,
        url: str = "sqlite:///agent_es.db",
        *,
        clock: Clock | None = None,
        env: Mapping[str, str] | None = None,
        create: bool = True,
        migrate: bool = False,
        patience: float = PATIENCE,
        snapshots: bool = True,
        authorize: Authorize | None = None,
    ) -> None:
        database = parsed(url)
        dialect_of(database).check(database, create=create, migrate=migrate)
        self.url = url
        # The library prefers the prefixed name, from the environment too, over one without.
        text = database.render_as_string(hide_password=False)
        settings = {"SQLALCHEMY_URL": text, "AGENT_ES_SQLALCHEMY_URL": text}
        try:
            super().__init__(env={**(env or {}), **settings})
            self.recorder.datastore.patience = patience
            self.leases = Leases(self.recorder.datastore)
            self.clock = clock or DatabaseClock(self.recorder.datastore)
            self.arrivals = Arrivals(self.recorder, self.mapper, self.clock)
            self._inbox = Inbox(self.recorder.datastore)
            self._authorize = authorize
            self.rates = Rates(self.recorder.datastore)
            self.backlog = Backlog(self.recorder.datastore)
            self.bell = Bell(self.recorder.datastore)
            self.tracking = Tracking(self.recorder.datastore)
            self.timetable = Timetable(self.recorder, self.mapper, self.clock)
            self._snapshots = Snapshots(self.recorder, self.mapper, is_on=snapshots)
            self._feed = Feed(self.recorder, self.mapper)
            self._records = Records(self.recorder)
            self.recorder.open(create=create, migrate=migrate)
        except AgentError:
            raise
        except Exception as error:  # drivers, ciphers and settings raise what they like
            raise StoreUnusable(f"{shown(url)} cannot be opened: {error}") from error

    # Starting and reading.

    def start(
        self,
        agent: type[AgentRun],
        *,
        run_id: str,
        goal: str,
        input: Any = None,  # noqa: A002  # the word of the design
        tags: Mapping[str, str] | None = None,
        envelope: Envelope | None = None,
        session: Session | None = None,
    ) -> RunState:
        """Record a new run, or return the one of that id; ``resumed`` says which.

        An ``envelope`` says what it may do, and what it may spend; without one it may do anything.
        With a ``session`` of SQLAlchemy, on the same database, the run is part of the caller's transaction: it is
        there when the caller commits, and what the session raises is the caller's.  An asynchronous session joins by
        ``await session.run_sync(lambda session: store.start(..., session=session))``.
        Raises ``RunConflict`` where that id was started with another agent, goal or input, ``BadEnvelope`` where the
        envelope names an argument that no tool has, and ``StoreUnusable`` where the session is of another database,
        as far as its URL says.
        """
        run = agent.begin(run_id, goal, canonical(input), tags or {}, self.clock, envelope)
        there = self._start(run) if session is None else self._start_in(session, run)
        if there is None:
            return run.state
        check_same(there, run.state.agent, run.state.goal, run.state.input_json)
        return replace(there, resumed=True)

    def _start(self, run: AgentRun) -> RunState | None:
        """Append a new run; return the one that is there instead."""
        try:
            self.save(run)
        except RunMoved:
            return self.load(run.state.run_id)
        return None

    def _start_in(self, session: Session, run: AgentRun) -> RunState | None:
        stored = [self.mapper.to_stored_event(event) for event in run.pending_events]
        there = self.recorder.begin_in(self.recorder.datastore.joined(session), stored, row_of(run.state))
        run.mark_recorded()
        return self.mapper.fold(there) if there else None

    def schedule(
        self,
        name: str,
        cron: str,
        agent: type[AgentRun],
        *,
        goal: str,
        input: Any = None,  # noqa: A002  # the word of the design
        tags: Mapping[str, str] | None = None,
        zone: str = "UTC",
        catch_up: CatchUp = "latest",
        session: Session | None = None,
    ) -> Schedule:
        """Start a run at each instant that ``cron`` names by the clocks of ``zone``; return the schedule.

        Workers that know the agent start them, each instant once; its run is called ``name@2026-03-29T07:00:00Z``,
        and has the tags ``schedule`` and ``scheduled_at`` beside these.  Of the instants that were missed because no
        worker was there, ``catch_up`` starts the ``latest``, ``all`` of them in order, or ``none``: those that are
        more than 60 seconds past.  What was before the schedule never counts.  The same name with the same content
        changes nothing; with other content it is replaced, and counts from now.  A ``session`` is as for ``start``.
        Raises ``BadSchedule``, with nothing stored.
        """
        return self.timetable.add(
            name, cron, agent, goal=goal, input=input, tags=tags, zone=zone, catch_up=catch_up, session=session
        )

    def unschedule(self, name: str) -> bool:
        """Start no further runs by a schedule; say whether there was one.  The runs that it started stay."""
        return self.timetable.remove(name)

    def schedules(self) -> list[Schedule]:
        """Return all schedules, the one that starts a run next first."""
        return self.timetable.listed()

    def load(self, run_id: str, version: int | None = None, *, known: RunState | None = None) -> RunState:
        """Return the run's state, or the one it had after ``version`` events; raise ``RunNotFound``.

        With a ``known`` state of the run, which this store gave before, only what came since is read; what it says of
        the call that gave it is forgotten.
        """
        if version is not None and version < 1:
            raise RunNotFound(f"run {run_id} has no version {version}: versions count from 1")
        stream = stream_id(run_id)
        if known is not None and (version is None or known.version <= version):
            taken: RunState | None = replace(known, resumed=False)
        else:
            taken = self._snapshots.state(run_id, version)
        after = 0 if taken is None else taken.version
        state = self.recorder.read(stream, lambda rows: self.mapper.fold(rows, taken), after=after, upto=version)
        if not state.version:
            raise self._not_found(run_id)
        if version is None:
            self._snapshots.offer(state, after)
        elif state.version < version:
            raise RunNotFound(f"run {run_id} has no version {version}: its last is {state.version}")
        return state

    def snapshot(self, run_id: str) -> bool:
        """Take a snapshot of a run now, for whoever reads it next; say whether that was done.

        Snapshots are taken by themselves as a run grows, and nothing but time depends on them.
        Raises ``RunNotFound``, ``RunUnreadable``, ``StoreBusy``, ``StoreUnusable``.
        """
        return self._snapshots.take(self.load(run_id))

    def aggregate(self, agent: type[Run], run_id: str) -> Run:
        """Return the run, ready to take commands."""
        return agent.of(self.load(run_id), self.clock)

    def journal(self, run_id: str, *, after: int = -1) -> list[JournalEntry]:
        """Return the run's events with a ``seq`` beyond ``after``, in order; each prints as a JSON line."""
        stream = stream_id(run_id)
        rows = self._rows(run_id) if after < 0 else self.recorder.rows(stream, after=after + 1)
        return [JournalEntry(run_id, self.mapper.to_domain_event(StoredEvent(stream, *row))) for row in rows]

    def feed(self, *, after: int = 0, limit: int | None = None) -> Iterator[FeedEntry]:
        """Yield the events of all runs beyond a position, each once, in the order in which they were stored.

        It ends where the store ended when it was begun; keep the last entry's ``position`` to go on from there.
        ``agent_es.projections.Projection`` does that for a read model in the same database.
        Raises ``RunUnreadable`` at an event that this code does not know, ``StoreBusy``, ``StoreUnusable``.
        """
        return self._feed.read(after, limit)

    def runs(
        self,
        *,
        status: Status | str | None = None,
        waiting_for: str | None = None,
        agent: str | None = None,
        tag: tuple[str, str] | None = None,
        search: str | None = None,
        after: Place | None = None,
        before: Place | None = None,
        limit: int | None = 100,
    ) -> list[RunRecord]:
        """Return the runs' records, the one that changed last first; ``limit=None`` returns all.

        ``tag`` is a name and its value: ``runs(tag=("invoice", "INV-1042"))``.  ``search`` is a text that occurs in
        the run's id or goal, in capitals of ASCII or not.  ``after=found[-1].place`` returns what follows a page,
        ``before=found[0].place`` the page before it, and ``before=OLDEST`` the last one.
        Raises ``ValueError`` for what cannot be asked, ``StoreUnusable``.
        """
        return self._records.page(Wanted(status, waiting_for, agent, tag, search), after, before, limit)

    def count(
        self,
        *,
        status: Status | str | None = None,
        waiting_for: str | None = None,
        agent: str | None = None,
        tag: tuple[str, str] | None = None,
        search: str | None = None,
    ) -> int:
        """Return how many runs there are, or how many ``runs`` would find."""
        return self._records.count(Wanted(status, waiting_for, agent, tag, search))

    def counts(self) -> RunCounts:
        """Return how many runs there are of each status, and how many wait for what."""
        return self._records.counts()

    def moment(self) -> str:
        """Return a text that is another one after each append to any run: then whoever shows runs looks again.

        It costs one short statement.  On PostgreSQL it changes with whatever else is committed there, too.
        """
        return self._records.moment()

    def record(self, run_id: str) -> RunRecord:
        """Return a run's record; raise ``RunNotFound``."""
        stream_id(run_id)  # what no run is called is asked of no database
        found = self._records.one(run_id)
        if found is None:
            raise self._not_found(run_id)
        return found

    # From outside.

    def signal(
        self,
        run_id: str | None = None,
        name: str = "",
        payload: Any = None,
        *,
        tag: tuple[str, str] | None = None,
        delivery_id: str | None = None,
        session: Session | None = None,
    ) -> list[Delivered]:
        """Tell a run, or every run with a tag that is not over, that something came; return where that is recorded.

        What came is kept until a step waits for a signal of that ``name``; ``payload`` is any JSON value.  A
        ``delivery_id`` is recorded once for each run, however often it is brought: give the sender's own, such as the
        id of its event.  Whoever waits goes on at once.  ``session`` is as for ``start``.

        Raises ``RunNotFound``, ``IllegalEvent`` where the run is over, ``SignalConflict`` where that delivery brought
        something else before, ``BadSignal``, ``BadTag``, ``RunUnreadable``, ``StoreBusy``, ``StoreUnusable``.
        """
        if check_name("a signal", name).startswith(ENDED):
            raise BadSignal(f"signal {name!r}: {ENDED} begins what a child tells its parent of its end")
        if name.startswith(ASKED):
            raise BadSignal(f"signal {name!r}: {ASKED} begins what a question waits for; use store.answer(...)")
        if (run_id is None) == (tag is None):
            raise BadSignal(f"signal {name!r}: say for which run: by its id, or by tag=(name, value)")
        if run_id is not None:
            stream_id(run_id)  # what no run is called is asked of no database
        elif tag is not None:
            check_tag(tag)
        given = uuid4().hex if delivery_id is None else check_name("a delivery", delivery_id)
        signal = Arriving(name, canonical(payload), given)

        def deliver(connection: Any) -> list[Delivered]:
            if tag is not None:
                return self.arrivals.deliver_to_tagged(connection, tag, signal)
            return [self.arrivals.deliver(connection, run_id or "", signal)]

        return self._beside(deliver, session, "a signal could not be recorded")

    # What people do.  All of it is recorded with who says so, counts from the commit on, and is refused by
    # ``NotAllowed`` where ``authorize`` says no.  ``session`` is as for ``start``.  All of it raises ``RunNotFound``,
    # ``IllegalEvent`` where it cannot happen to the run any more, ``BadAnswer`` where ``by`` names nobody,
    # ``RunUnreadable``, ``StoreBusy`` and ``StoreUnusable``.

    def approve(
        self,
        run_id: str,
        idx: int,
        *,
        by: str,
        args: Mapping[str, Any] | None = None,
        digest: str | None = None,
        reason: str = "",
        agent: type[AgentRun] | None = None,
        tools: Iterable[Tool] = (),
        session: Session | None = None,
    ) -> RunState:
        """Say yes to a call that waits for it, as it was shown or with other ``args``; return the run as it is then.

        With a ``digest``, the yes is to exactly what has it.  Other arguments are recorded as the person's; they
        must fit the tool, which is one of ``agent``, of the class of that name where there is one, or of ``tools``.
        Raises ``AnswerConflict`` for who comes late, ``NotAllowed``, ``BadAnswer`` where nothing is asked or the
        envelope does not allow it, ``BadArguments``, ``KeyReused`` where another step holds the key of those.
        """
        edits, renewals = args is not None, 0

        def approve(run: AgentRun, _: Any) -> None:
            agents = [agent] if agent is not None else agents_called(run.state.agent)
            known = people.tools_of(agents if len(agents) == 1 else (), tools) if edits else {}
            people.approve(run, idx, by, args=args, tools=known, digest=digest, reason=reason, renewals=renewals)

        while True:
            try:
                return self._act(run_id, by, "edit" if edits else "approve", approve, session)
            except KeyReused as reused:
                if not reused.is_free:
                    raise
                renewals += 1  # a step that was never taken holds it: this is another intent

    def deny(
        self,
        run_id: str,
        idx: int,
        *,
        by: str,
        reason: str = "",
        digest: str | None = None,
        session: Session | None = None,
    ) -> RunState:
        """Say no to a call that waits for a yes: it is not made, and the decider sees the reason.

        Raises what ``approve`` does.
        """
        return self._act(run_id, by, "deny", lambda run, _: people.deny(run, idx, by, reason, digest=digest), session)

    def answer(self, run_id: str, idx: int, value: Any, *, by: str, session: Session | None = None) -> RunState:
        """Answer a question, with any JSON value or one of its choices; return the run as it is then.

        Raises ``AnswerConflict`` for who comes late, ``BadAnswer`` where nothing is asked, or that is no choice.
        """
        return self._act(run_id, by, "answer", lambda run, _: people.answer(run, idx, value, by), session)

    def steer(self, run_id: str, text: str, *, by: str, session: Session | None = None) -> RunState:
        """Tell a run's decider something before it decides again; what is under way is brought to its end first.

        A decision that was made without it, and is not recorded yet, is made again.
        """
        return self._act(run_id, by, "steer", lambda run, _: people.steer(run, text, by), session)

    def pause(self, run_id: str, *, by: str, reason: str = "", session: Session | None = None) -> RunState:
        """Stop a run: what is under way is recorded, and nothing else begins until somebody resumes it.

        One that is paused already stays as it is.
        """

        def pause(run: AgentRun, _: Any) -> None:
            if run.state.paused is None:
                run.record_paused(by, reason)

        return self._act(run_id, by, "pause", pause, session)

    def resume(self, run_id: str, *, by: str, session: Session | None = None) -> RunState:
        """Let a paused run go on; raise ``IllegalEvent`` where it is not paused."""
        return self._act(run_id, by, "resume", lambda run, _: run.record_resumed(by), session)

    def cancel(
        self, run_id: str, *, by: str, reason: str = "", compensate: bool = False, session: Session | None = None
    ) -> RunState:
        """End a run from outside, and with it the runs that it started; return it as it is then.

        Where it was over before, it stays as it is, and that is what is returned.  A call that is under way cannot be
        taken back: what it comes to is still recorded.  With ``compensate``, whoever moves the run next brings that
        to its end, undoes the finished effects, the last one first, and the run ends cancelled; a run that is done,
        or has failed, is undone too.
        """
        stream_id(run_id)  # what no run is called is asked of no database
        people.check_person(by)
        action: Action = "compensate" if compensate else "cancel"
        ending = Ending(by, reason, compensate, lambda state: self._check_allowed(by, action, state))
        return self._beside(
            lambda connection: self.arrivals.cancel(connection, run_id, ending),
            session,
            f"run {run_id} could not be cancelled",
        )

    def inbox(
        self, *, kind: ItemKind | None = None, since: datetime | None = None, limit: int | None = 100
    ) -> list[InboxItem]:
        """Return what waits for a person, over all runs, the oldest first; ``limit=None`` returns all.

        ``kind`` is ``approval``, ``doubt``, ``question``, ``parked`` or ``paused``; with ``since``, only what began
        to wait then or later.
        """
        if kind is not None and kind not in get_args(ItemKind):
            raise BadAnswer(f"kind={kind!r:.80} is none of {', '.join(get_args(ItemKind))}")
        if limit is not None and limit < 0:
            raise ValueError(f"limit={limit}: write how many, or None for all")
        return self._inbox.items(self.load, kind, since, limit)

    def notify_people(self, tell: Tell) -> int:
        """Tell of each thing that waits for a person, and that nobody was told of; return how many those were.

        Many may do so at once, over many machines: each thing is told once, and once more only where ``tell`` raised,
        or its process died in it.  A ``Worker(notify=tell)`` does so by itself.
        """
        return self._inbox.tell(self.load, tell)

    def _act(
        self,
        run_id: str,
        by: str,
        action: Action,
        command: Callable[[AgentRun, Any], object],
        session: Session | None,
    ) -> RunState:
        """Let a person act on a run, beside whoever moves it; a command gets the transaction's connection, too."""
        stream_id(run_id)  # what no run is called is asked of no database
        people.check_person(by)
        tried: list[StoredEvent] = []

        def act(connection: Any) -> RunState:
            def checked(run: AgentRun) -> None:
                self._check_allowed(by, action, run.state)
                command(run, connection)

            return self.arrivals.act(connection, run_id, checked, tried)

        try:
            return self._beside(
                act,
                session,
                f"run {run_id}: what {by} says could not be recorded",
            )
        except KeyHeld as held:
            raise self._key_reused(held) from None

    def _check_allowed(self, by: str, action: Action, state: RunState) -> None:
        if self._authorize is not None and not self._authorize(by, action, state):
            raise NotAllowed(f"run {state.run_id}: {by} may not {action.replace('_', ' ')}; nothing was recorded")

    def limit(
        self, tool: str, *, per_second: float | None = None, at_once: int | None = None, tag: str | None = None
    ) -> None:
        """Hold the calls of a tool to a rate, or to so many at once, over all workers; without numbers, to neither.

        With a ``tag``, each value of it is held to that apart: ``limit("mail", per_second=5, tag="tenant")``.  A call
        that must wait makes its run wait as a row.  Workers heed a change within a second.  Raises ``BadLimit``,
        ``StoreBusy``, ``StoreUnusable``.
        """
        self.rates.put(ToolLimit(tool, tag or "", per_second, at_once))

    def limits(self) -> list[ToolLimit]:
        """Return the limits of all tools."""
        return self.rates.listed()

    def change_envelope(
        self, run_id: str, envelope: Envelope, *, by: str, reason: str = "", session: Session | None = None
    ) -> RunState:
        """Give a run another envelope, in the name of a person; return the run as it is then.

        It counts for what is decided from then on.  A run that was parked because its budget was spent goes on when
        it is requeued.  Raises ``RunNotFound``, ``IllegalEvent`` where the run is over, ``RunUnreadable``,
        ``StoreBusy``, ``StoreUnusable``.
        """

        def change(run: AgentRun, _: Any) -> None:
            if run.state.envelope_json != envelope.json_text:
                run.record_envelope(envelope, by, reason)

        return self._act(run_id, by, "change_envelope", change, session)

    def _beside(self, act: Callable[[Any], T], session: Session | None, what: str) -> T:
        """Append beside whoever moves the run, in the caller's transaction or in one of its own."""
        if session is not None:
            return act(self.recorder.datastore.joined(session))
        return self.recorder.datastore.repeatable(act, what)

    # Appending.

    def save(self, *objs: Any, **kwargs: Any) -> list[es.Recording[UUID]]:
        """Make the pending events of runs durable, each run in one transaction.

        Raises ``RunMoved`` where another worker was faster, ``KeyReused`` where another step holds a key,
        ``StoreBusy`` where nothing was recorded, ``AppendUnknown`` where nobody can tell.
        """
        if kwargs or not all(isinstance(run, AgentRun) for run in objs):
            raise TypeError("a RunStore saves runs: save(run)")
        for run in objs:
            if run.pending_events:
                self._append(run)
        return []

    def transact(self, run: AgentRun, act: Callable[[Any], object]) -> None:
        """Let ``act`` write through a session and trigger events of the run; commit both, or neither.

        ``act`` gets the SQLAlchemy session.  Where it raises, everything is rolled back, and the run is as it was.
        Raises ``NotApplied`` where the database did not commit what was written.
        """
        stored: list[StoredEvent] = []
        try:
            with self.recorder.datastore.lending() as (session, connection):
                act(session)
                session.commit()
                recorded_by(run)  # where there are none, what was written is rolled back
                self._catch_up_in(connection, run)
                events = run.pending
                stored = self._stored(events)
                change = change_of(run.state, run.recorded, events, token_of(run))
                self.recorder.append_in(connection, stored, change, claims_of(run.state.run_id, events))
        except (es.IntegrityError, es.InternalError) as error:
            run.discard()
            if stored and self._rows_after(stored):
                raise self._moved(run) from None
            raise NotApplied(f"the database refused the transaction: {error}") from None
        except es.OperationalError as error:
            if not (stored and self._was_committed(run, stored)):
                run.discard()
                raise NotApplied(f"the database did not commit the transaction: {error}") from None
        except BaseException:
            run.discard()
            raise
        self._recorded(run)

    def _stored(self, events: Sequence[AnyEvent]) -> list[StoredEvent]:
        return [self.mapper.to_stored_event(event) for event in events]

    def _was_committed(self, run: AgentRun, stored: Sequence[StoredEvent]) -> bool:
        """Read back what a commit came to whose answer was lost; raise ``RunMoved``, or ``AppendUnknown``."""
        try:
            return self._is_there(stored)
        except es.IntegrityError:
            run.discard()
            raise self._moved(run) from None
        except (StoreBusy, StoreUnusable) as error:
            run.discard()
            raise AppendUnknown(f"run {run.state.run_id}: {error}; resume it to find out") from None

    def _rows_after(self, stored: Sequence[StoredEvent]) -> bool:
        first = stored[0]
        return bool(self.recorder.rows(UUID(str(first.originator_id)), after=first.originator_version - 1))

    def settle(
        self,
        run_id: str,
        idx: int,
        outcome: Literal["happened", "did_not_happen"],
        *,
        by: str,
        result: Any = None,
        force: bool = False,
        session: Session | None = None,
    ) -> RunState:
        """Say what became of a step in doubt; the run goes on at its next ``run`` or ``resume``.

        ``happened`` records ``result`` as what the step gave.  ``did_not_happen`` gives the step a new key and anew
        as many attempts as it may have; it is refused with ``StillHeld``, unless ``force``, while the worker that
        started it may still be alive: one that holds the run, or that lost it in this turn without giving it back and
        is not surely dead.  Raises ``BadSettlement``.
        """
        if outcome not in ("happened", "did_not_happen"):
            raise BadSettlement(f"outcome={outcome!r}: a doubt is settled as 'happened' or 'did_not_happen'")
        is_free = outcome == "happened" or force

        def settle(run: AgentRun, connection: Any) -> None:
            people.settle(run, idx, outcome, by, result)
            if is_free:
                return
            if held := self.leases.holder_in(connection, run_id):
                raise StillHeld(
                    f"run {run_id} is held by {held.by} until {timestamp(held.until)}: a call under way could still "
                    "happen; wait until then, or settle with force"
                )
            if lapsed := self.leases.lapsed_in(connection, run_id):
                raise StillHeld(
                    f"run {run_id}: {', '.join(lapsed)} lost it in a call and may still be alive, frozen or out of "
                    "reach: the call could still happen; make sure that it is gone, and settle with force"
                )

        return self._act(run_id, by, "settle", settle, session)

    def requeue(self, run_id: str, *, by: str, session: Session | None = None) -> RunState:
        """Send a parked or failed run back to work; raise ``IllegalEvent`` where it is neither."""
        return self._act(run_id, by, "requeue", lambda run, _: run.record_requeued(by), session)

    def record_late(self, run_id: str, idx: int, attempt: int, outcome: Returned | Waits) -> bool:
        """Record what a body came to after its worker had lost the run; say whether it was still wanted.

        It is, while that attempt is open and nobody has settled it.  It is recorded beside whoever moves the run.
        """
        tried: list[StoredEvent] = []

        def record(run: AgentRun) -> None:
            run.record_outcome(idx, outcome, attempt=attempt)

        try:
            self._beside(
                lambda connection: self.arrivals.act(connection, run_id, record, tried),
                None,
                f"run {run_id}: a late result of step {idx} could not be recorded",
            )
        except (IllegalEvent, RunUnreadable):
            return False
        return True

    def put_journals(self, journals: Mapping[str, Sequence[AnyEvent]]) -> None:
        """Store whole journals, all or none; raise ``RunConflict`` where a run is there already, ``BadJournal``."""
        empty = [run_id for run_id, events in journals.items() if not events]
        if empty:
            raise BadJournal(f"{', '.join(empty)}: a journal without events is no run; nothing was imported")
        batch = [
            (
                [self.mapper.to_stored_event(event) for event in events],
                row_of(fold(events), events),
                claims_of(run_id, events),
            )
            for run_id, events in journals.items()
        ]
        try:
            self.recorder.append_all(batch)
        except KeyHeld as held:
            raise self._key_reused(held) from None
        except es.IntegrityError as error:
            there = [run_id for run_id in journals if self.recorder.rows(stream_id(run_id), upto=1)]
            raise RunConflict(
                f"{', '.join(there) or error}: already in {shown(self.url)}, and nothing was imported; "
                "use another store"
            ) from None

    def _append(self, run: AgentRun) -> None:
        try:
            self._append_in_turn(run)
        except KeyHeld as held:
            raise self._key_reused(held) from None
        except Overspent as over:
            raise self._budget_spent(run, over) from None
        except es.IntegrityError:
            self._check_children(run)
            raise self._moved(run) from None

    def _check_children(self, run: AgentRun) -> None:
        """Raise ``RunConflict`` where the id of a run that is to be started is somebody else's."""
        for event in run.pending_events:
            child = event.child if isinstance(event, WaitBegan) else None
            if child and (rows := self.recorder.rows(stream_id(child), upto=1)):
                if self.mapper.fold(rows).parent == run.state.run_id:
                    continue
                raise RunConflict(f"run {child} is there already, and is no child of run {run.state.run_id}")

    def _append_in_turn(self, run: AgentRun) -> None:
        """Append at once; where others were first, after them, and once more where that answer was lost to others."""
        for append in (self._append_here, self._append_after):
            try:
                return self._surely(run, append)
            except es.IntegrityError:
                if run.pending_events[0].originator_version == 1:
                    raise  # the run is there already
        return self._surely(run, self._append_after)

    def _append_here(self, run: AgentRun) -> None:
        """Append where the run is, as far as it knows."""
        own, others = self._appends_of(run)
        if self._ends_child(run):
            self.recorder.append_all([own], lambda connection: self.arrivals.tell_parent(connection, run.state))
        elif others:
            self.recorder.append_all([own, *others])
        else:
            self.recorder.append(*own)

    def _append_after(self, run: AgentRun) -> None:
        """Append after what came from outside, holding the run's row, so that nothing comes first again."""
        with self.recorder.datastore.translated(), self.recorder.datastore.writing() as connection:
            if run.state.parent is not None:
                self.recorder.hold(connection, run.state.parent)
            self._catch_up_in(connection, run)
            if not run.pending_events:
                return
            if self._ends_child(run):
                self.arrivals.tell_parent(connection, run.state)
            own, others = self._appends_of(run)
            for append in (own, *others):
                self.recorder.append_in(connection, *append)

    def _appends_of(self, run: AgentRun) -> tuple[Append, Sequence[Append]]:
        """Return the append of what is pending, and those of the runs that are started with it."""
        events = run.pending
        is_new = events[0].originator_version == 1
        row = row_of(run.state, events) if is_new else change_of(run.state, run.recorded, events, token_of(run))
        own = self._stored(events), row, claims_of(run.state.run_id, events)
        return own, self.arrivals.children_of(run, events)

    @staticmethod
    def _ends_child(run: AgentRun) -> bool:
        return run.state.parent is not None and run.state.is_over and not run.recorded.is_over

    def _catch_up_in(self, connection: Any, run: AgentRun) -> None:
        """Take in what others appended, holding the run's row; raise ``RunMoved`` where nothing can follow that.

        Under a lease all of it came from outside: whoever appends under it is alone.
        """
        held = self.recorder.hold(connection, run.state.run_id)
        token, seq = token_of(run), run.recorded.version
        if token is not None and (held is None or held.token != token):
            raise LeaseLost(f"run {run.state.run_id}: the lease {token} was taken over; this execution stopped")
        if held is None or held.cursor <= run.recorded.version:
            return
        stream = stream_id(run.state.run_id)
        rows = self.recorder.rows_in(connection, stream, after=run.recorded.version)
        with suppress(IllegalEvent, RunUnreadable):
            news = [self.mapper.to_domain_event(StoredEvent(stream, *row)) for row in rows]
            if token is not None or all(isinstance(event, SignalReceived) for event in news):
                run.catch_up(news)
                return
        raise self._moved(run, seq)

    def _recorded(self, run: AgentRun) -> None:
        self._snapshots.offer(run.state, run.recorded.version)
        lets_go = run.lease is not None and ends_lease(run.state, run.recorded)
        run.mark_recorded()
        if lets_go and run.lease is not None:
            run.lease.is_lost = True  # given back, with the append
            run.lease = None

    @staticmethod
    def _moved(run: AgentRun, seq: int | None = None) -> RunMoved:
        seq = run.recorded.version if seq is None else seq
        who = (
            "it was cancelled" if run.state.status is Status.CANCELLED else f"another worker appended seq {seq} first"
        )
        return RunMoved(f"run {run.state.run_id}: {who}; this execution stopped and recorded nothing more")

    def _surely(self, run: AgentRun, append: Callable[[AgentRun], object]) -> None:
        """Append, where an error may have hidden a success: read back, and append only what is not there."""
        unknown: Exception | None = None
        until = 0.0
        for tries in range(APPEND_TRIES + 1):
            if tries:
                time.sleep(0.01 * 2**tries)
            try:
                if unknown is not None and self._is_pending_there(run):
                    return self._recorded(run)
                if tries < APPEND_TRIES:
                    append(run)
                    return self._recorded(run)
            except es.IntegrityError:
                if unknown is None or not self._is_pending_there(run):
                    raise
                return self._recorded(run)  # an earlier append has come through since
            except (es.OperationalError, StoreBusy, StoreUnusable) as error:
                if unknown is None and not isinstance(error, es.OperationalError):
                    raise  # nothing was tried before: nothing was recorded
                until = until or time.monotonic() + self.recorder.datastore.reconnect
                unknown = error
                if time.monotonic() > until:
                    break
        raise AppendUnknown(
            f"run {run.state.run_id}: nobody could tell what its append came to: {unknown}; resume it to find out"
        ) from unknown

    def _is_pending_there(self, run: AgentRun) -> bool:
        """Say whether what is pending is in the journal after all; raise where others took its place.

        Nothing is pending any more where what came meanwhile was said before it.
        """
        return not run.pending_events or self._is_there(self._stored(recorded_by(run)))

    def _is_there(self, stored: Sequence[StoredEvent]) -> bool:
        """Say whether exactly these events are in the journal; raise where others took their place."""
        first, last = stored[0], stored[-1]
        found = self.recorder.rows(
            UUID(str(first.originator_id)),
            after=first.originator_version - 1,
            upto=last.originator_version,
        )
        if not found:
            return False
        if found == [(event.originator_version, event.topic, event.state) for event in stored]:
            return True
        raise es.IntegrityError("other events are there")

    @staticmethod
    def _budget_spent(run: AgentRun, over: Overspent) -> BudgetSpent:
        spend = over.spend
        unit = NANOS if spend.what == "cost" else 1
        before, limit, more = (
            Decimal(n) / unit for n in (over.amount - spend.amount, spend.limit or 0, spend.amount)
        )
        whose = "" if spend.run_id == run.state.run_id else f" of run {spend.run_id} and those that it started"
        asked = "" if spend.amount in (0, 1) else f", and {more:f} more were to be set aside"
        return BudgetSpent(f"{before:f} of {limit:f} {spend.what}{whose}{asked}")

    def _key_reused(self, held: KeyHeld) -> KeyReused:
        claim, holder = held.claim, held.holder
        where = f"step {holder.idx} of run {holder.run_id}"
        is_same = holder.digest == claim.digest
        what = "the same arguments" if is_same else "OTHER ARGUMENTS"
        first, is_free = None, False
        try:
            step = self.load(holder.run_id).steps[holder.idx]
            is_free = step.status == "failed" and (step.error or {}).get("applied") is False
            is_free |= step.approval is not None and holder.digest != digest(step.args_json) and step.key != claim.key
            first = step.value_json if is_same and step.status == "done" else None
            came_to = f"which is {step.status}" + (f" with {step.value_json}" if step.value_json else "")
        except RunUnreadable:
            came_to = "which this code cannot read"
        except (RunNotFound, IndexError):
            came_to = "which is decided in the same turn"
        return KeyReused(
            f"{claim.tool} was not called: its key {claim.key!r} stands for one intent, and {where} holds it "
            f"with {what}, {came_to}. If this is another intent, its arguments must make another key.",
            idx=claim.idx,
            first=first,
            is_free=is_free,
        )

    # Projections.

    def rebuild(self, on_run: Callable[[str], object] = lambda _: None) -> int:
        """Make the runs table and the keys again from the events; return how many runs there are.

        Leases are left alone.  A run that this code cannot read keeps the row that it has.
        """

        def project(rows: list[Row]) -> tuple[Change, Sequence[Claim]] | None:
            try:
                state = self.mapper.fold(rows)
                stream = stream_id(state.run_id)
                events = [self.mapper.to_domain_event(StoredEvent(stream, *row)) for row in rows]
            except RunUnreadable:
                return None
            on_run(state.run_id)
            return row_of(state, events), claims_of(state.run_id, events)

        return self.recorder.rebuild(project)

    # What the event store library asks for.

    def close(self) -> None:
        """Close the connections; a store that is used again opens new ones."""
        self._snapshots.close()
        super().close()
        self.recorder.datastore.close()

    def construct_factory(self, env: Environment) -> InfrastructureFactory[Any]:
        """Return the factory of our datastore and recorder."""
        factory: InfrastructureFactory[Any] = Factory(env)
        return factory

    def construct_mapper(self) -> EventMapper:
        """Return the mapper with the closed registry, and with the user's cipher and compressor."""
        mapper = self.factory.mapper(transcoder=es.JSONTranscoder(), mapper_class=EventMapper)
        assert isinstance(mapper, EventMapper)  # noqa: S101  # for the type checker
        return mapper

    def construct_repository(self) -> Repository[UUID]:
        """Return a repository that folds with our projector."""
        return RunRepository(event_store=self.events)

    def _rows(self, run_id: str) -> list[Row]:
        rows = self.recorder.rows(stream_id(run_id))
        if not rows:
            raise self._not_found(run_id)
        return rows

    def _not_found(self, run_id: str) -> RunNotFound:
        return RunNotFound(f"no run {run_id!r} in {shown(self.url)}; see: agent-es runs")


class RunRepository(Repository[UUID]):
    """The library's repository: whatever projector is asked for, a run is folded by ours."""

    def get(self, aggregate_id: UUID, *, version: int | None = None, **_: Any) -> Any:
        """Return the run of that stream as a plain ``AgentRun``."""
        run: AgentRun | None = None
        for event in self.event_store.get(aggregate_id, lte=version):
            state = run.state if run else RunState()
            run = AgentRun.of(evolve(state, event))  # type: ignore[arg-type]  # our mapper made it
        if run is None:
            raise AggregateNotFoundError(f"no run has the stream {aggregate_id}")
        return run


def recorded_by(run: AgentRun) -> list[AnyEvent]:
    """Return the events that a run's transaction records; raise ``IllegalEvent`` where there are none."""
    events = run.pending
    if not events:
        raise IllegalEvent(
            f"run {run.state.run_id}: a transaction of a run must record an event of it; nothing was kept"
        )
    return events


def token_of(run: AgentRun) -> int | None:
    """Return what a run's appends are fenced with."""
    return None if run.lease is None else run.lease.token


def check_same(there: RunState, agent: str, goal: str | None, input_json: str | None) -> None:
    """Raise ``RunConflict`` where a run was started with something else; None asks for nothing."""
    wanted = {"agent": (there.agent, agent), "goal": (there.goal, goal), "input": (there.input_json, input_json)}
    for name, (old, new) in wanted.items():
        if new not in (None, old):
            raise RunConflict(
                f"run {there.run_id} was started with {name} {old!r:.200}, not {new!r:.200}; "
                "resume it as it is, or start another run id"
            )
