"""What starts by the clock: one row per schedule, with the instant whose run it starts next.

Rule 1: the run of an instant starts in the transaction that moves its row on, and only from where the row stood.  So
an instant starts once, over any number of workers; one that dies in between has done neither.
Rule 2: what is due is judged by the database's clock, the only one that all workers share.
Rule 3: a row moves forward only: a clock that is set back starts nothing again.
Rule 4: a run is called after its schedule and its instant; one that is there already is left alone.
Rule 5: a transaction starts one run, however many instants were missed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Any, Literal, NamedTuple, TypeVar, get_args
from uuid import UUID

from eventsourcing.persistence import StoredEvent
from sqlalchemy.orm import Session

from agent_es.cron import Cron, never
from agent_es.errors import BadAgent, BadSchedule, BadTag, StoreError
from agent_es.events import MAX_RUN_ID
from agent_es.journal import timestamp
from agent_es.run import AgentRun, Clock
from agent_es.store.mapper import EventMapper
from agent_es.store.projection import plain, row_of
from agent_es.store.recorder import RunRecorder
from agent_es.store.tables import schedules
from agent_es.values import canonical, decode, valid_unicode

T = TypeVar("T")

CatchUp = Literal["latest", "all", "none"]
"""What becomes of instants that nobody was there for."""

TOLERANCE = 60.0
"""Seconds after which an instant counts as missed where nothing is caught up."""

AT_ONCE = 50
"""How many instants one call starts at most."""

PAGE = 50
"""How many rows are looked at together."""

OURS = ("schedule", "scheduled_at")
"""The tags by which a run knows why it started."""

MAX_NAME = MAX_RUN_ID - len("@2026-03-29T07:00:00Z")

CONTENT = ("agent", "cron", "zone", "goal", "input", "tags", "catch_up")
"""What a user says of a schedule."""
ALL = ("name", *CONTENT, "made_at", "next_at", "last_at")


@dataclass(frozen=True, slots=True)
class Schedule:
    """When runs of an agent start by themselves, and with what.  Times are in UTC."""

    name: str
    agent: str
    cron: str
    zone: str
    goal: str
    input_json: str
    tags: Mapping[str, str]
    catch_up: CatchUp
    made_at: datetime
    """Since when it counts."""
    next_at: datetime | None
    """The instant whose run it starts next; None where none comes within 50 years."""
    last_at: datetime | None
    """The last instant whose run it started."""

    @property
    def input(self) -> Any:
        """What its runs get as their input."""
        return decode(self.input_json)


@dataclass(frozen=True, slots=True)
class Started:
    """A run that a schedule started."""

    schedule: str
    run_id: str
    scheduled_at: datetime
    """The instant that it was started for, in UTC."""
    goal: str


class Due(NamedTuple):
    """A row whose instant has come."""

    schedule: Schedule
    next_at: float
    """As the row has it."""
    now: float


class Move(NamedTuple):
    """What becomes of a row that is due."""

    instant: int | None
    """The one whose run starts."""
    next_at: int | None


class Overtaken(Exception):  # never leaves this module
    """The row is not any more as it was read."""


class Timetable:
    """Keeps schedules, and starts the runs of those that are due.  A ``now`` is in seconds since 1970."""

    def __init__(self, recorder: RunRecorder, mapper: EventMapper, clock: Clock) -> None:
        self._recorder = recorder
        self._mapper = mapper
        self._clock = clock
        self._datastore = recorder.datastore
        self._dialect = dialect = recorder.datastore.dialect
        self._table = table = schedules.name
        new = [f"excluded.{name}" for name in CONTENT]
        marks = ", ".join("?" * len(ALL[:-1]))
        self._columns = ", ".join(ALL)
        self._now = f"(SELECT COALESCE(?, {dialect.now}))"  # asked for once, not for each row
        self._select = f"SELECT {self._columns} FROM {table}"
        self._ask = dialect.sql(f"SELECT {self._now}")
        self._find = dialect.sql(f"{self._select} WHERE name = ?")
        self._put = dialect.sql(
            f"INSERT INTO {table} ({', '.join(ALL[:-1])}) VALUES ({marks}) ON CONFLICT (name) DO UPDATE SET "
            + ", ".join(f"{name} = excluded.{name}" for name in ALL[1:-1])
            + f" WHERE ({', '.join(f'{table}.{name}' for name in CONTENT)}) <> ({', '.join(new)})"
        )
        self._drop = dialect.sql(f"DELETE FROM {table} WHERE name = ?")
        as_read = " AND ".join(f"{name} = ?" for name in ("name", "next_at", *CONTENT))
        free = f"SELECT name FROM {table} WHERE {as_read}{dialect.skip_locked}"  # who is too late need not wait
        self._move = dialect.sql(
            f"UPDATE {table} SET next_at = ?, last_at = COALESCE(?, last_at) WHERE name = ({free})"
        )

    # What a user calls, through the store.

    def add(
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
        now: float | None = None,
    ) -> Schedule:
        """Put a schedule in, or in the place of the one of that name; one with the same content stays as it is.

        Raises ``BadSchedule``, and what ``RunStore.start`` raises.
        """
        tags = dict(tags or {})
        _check(name, agent, tags, catch_up)
        when = Cron.parse(cron, zone)
        said = (agent.agent_name, cron, zone, plain(valid_unicode(goal)), canonical(input), canonical(tags), catch_up)

        def put(connection: Any) -> Schedule:
            ((made_at,),) = connection.execute(self._ask, (now,)).fetchall()
            next_at = when.after(made_at)
            if next_at is None:
                raise never(cron)
            new = (name, *said, made_at, float(next_at))
            self._begin(agent, _schedule((*new, None)), next_at)  # what could not start is refused now
            connection.execute(self._put, new)
            (row,) = connection.execute(self._find, (name,)).fetchall()
            return _schedule(row)

        return self._written(put) if session is None else put(self._datastore.joined(session))

    def remove(self, name: str) -> bool:
        """Take a schedule out; say whether it was there.  Its runs stay."""
        was_there = False

        def drop(connection: Any) -> None:
            nonlocal was_there
            was_there |= connection.execute(self._drop, (name,)).rowcount == 1  # also where the answer was lost

        self._written(drop)
        return was_there

    def listed(self) -> list[Schedule]:
        """Return all schedules, the one that comes next first."""
        rows = self._rows(f"{self._select} ORDER BY next_at IS NULL, next_at, name", ())
        return [_schedule(row) for row in rows]

    # What a worker calls.

    def due_in(self, agents: Iterable[type[AgentRun]]) -> float | None:
        """Return the seconds until a schedule of these agents is due, 0 or less where one is; None without any."""
        names = [agent.agent_name for agent in agents]
        if not names:
            return None
        first = f"SELECT next_at - {self._dialect.now} FROM {self._table} WHERE next_at IS NOT NULL AND {_of(names)}"
        found = self._rows(f"{first} ORDER BY next_at LIMIT 1", names)
        return found[0][0] if found else None

    def fire(
        self, agents: Iterable[type[AgentRun]], *, now: float | None = None, limit: int = AT_ONCE
    ) -> list[Started]:
        """Start what is due of the schedules of these agents, up to ``limit`` instants; return the runs that are new.

        ``now`` stands in for the database's clock, for tests and for who lives through an outage again.  A schedule
        that cannot be read here is left to others.  Raises ``BadSchedule`` for it, ``StoreUnusable`` and
        ``StoreBusy`` where nothing was started; else the next call does.
        """
        started: list[Started] = []
        try:
            for run in self._firing({agent.agent_name: agent for agent in agents}, now, limit):
                started.append(run)  # noqa: PERF402  # what was started until an error is kept
        except (BadSchedule, StoreError):
            if not started:
                raise
        return started

    def _firing(self, agents: Mapping[str, type[AgentRun]], now: float | None, limit: int) -> Iterator[Started]:
        """Yield each run once it is durable; raise ``BadSchedule`` at the end, where one could not be read."""
        found, behind = self._due([*agents], now), deque[Due]()
        unreadable: list[BadSchedule] = []
        moved = 0
        while moved < limit and (due := next(found, None) or (behind.popleft() if behind else None)):
            try:
                move = _move_of(due)
                run = self._start(agents[due.schedule.agent], due, move)
            except Overtaken:
                continue
            except BadSchedule as error:
                unreadable.append(error)
                continue
            moved += 1
            if run is not None:
                yield run
            if move.next_at is not None and move.next_at <= due.now:
                behind.append(due._replace(next_at=move.next_at))
        if unreadable:
            raise unreadable[0]

    def _due(self, agents: list[str], now: float | None) -> Iterator[Due]:
        """Yield the rows that are due, the longest due first, and none again that has moved on meanwhile."""
        come = f"next_at <= {self._now} AND (next_at, name) > (?, ?) AND {_of(agents)}"
        select = f"SELECT {self._columns}, {self._now} FROM {self._table} WHERE {come} ORDER BY next_at, name LIMIT ?"
        place, met, is_more = (0.0, ""), set[str](), bool(agents)
        while is_more:
            rows = self._rows(select, (now, now, *place, *agents, PAGE))
            for *row, asked_at in rows:
                due = Due(_schedule(row), row[ALL.index("next_at")], asked_at)
                place = (due.next_at, due.schedule.name)
                if due.schedule.name not in met:
                    met.add(due.schedule.name)
                    yield due
            is_more = len(rows) == PAGE

    def _start(self, agent: type[AgentRun], due: Due, move: Move) -> Started | None:
        """Move a row on and start the run of its instant, both or neither; return the run where it is new.

        Raises ``Overtaken`` where the row is not any more as it was read, or somebody is about to change it.
        """
        schedule, instant = due.schedule, move.instant
        run = None if instant is None else self._begin(agent, schedule, instant)
        stored = [self._mapper.to_stored_event(event) for event in run.pending_events] if run else []
        as_read = (schedule.name, due.next_at, *_content(schedule))
        values = (_seconds(move.next_at), _seconds(instant), *as_read)
        is_again = False

        def start(connection: Any) -> bool:
            nonlocal is_again
            was_tried, is_again = is_again, True
            self._dialect.lock_feed(connection)  # before any row, as whoever appends does
            if connection.execute(self._move, values).rowcount == 1:
                return run is not None and not self._recorder.begin_in(connection, stored, row_of(run.state))
            if was_tried and run is not None and self._is_there(stored[0]):
                return True
            raise Overtaken

        is_new = self._written(start)
        if not is_new or run is None or instant is None:
            return None
        return Started(schedule.name, run.state.run_id, _time(instant), schedule.goal)

    def _is_there(self, stored: StoredEvent) -> bool:
        """Say whether a run begins with this very event, and no other that somebody else made of the instant."""
        found = self._recorder.rows(UUID(str(stored.originator_id)), upto=1)
        return found == [(stored.originator_version, stored.topic, stored.state)]

    def _begin(self, agent: type[AgentRun], schedule: Schedule, instant: int) -> AgentRun:
        """Return the run of an instant, which is not recorded yet."""
        at = timestamp(_time(instant))
        tags = {**schedule.tags, **dict(zip(OURS, (schedule.name, at), strict=True))}
        try:
            return agent.begin(f"{schedule.name}@{at}", schedule.goal, schedule.input_json, tags, self._clock)
        except BadTag as error:
            raise BadSchedule(f"schedule {schedule.name}: no run can start like that: {error}") from None

    def _rows(self, sql: str, values: Iterable[Any]) -> list[tuple[Any, ...]]:
        dialect = self._dialect
        with self._datastore.usable("the schedules cannot be read"):
            return self._datastore.reading(
                lambda connection: list(dialect.select(connection, dialect.sql(sql), tuple(values)))
            )

    def _written(self, act: Callable[[Any], T]) -> T:
        return self._datastore.repeatable(act, "a schedule could not be written")


def _check(name: str, agent: type[AgentRun], tags: Mapping[str, str], catch_up: str) -> None:
    if not (1 <= len(name) <= MAX_NAME and name.isprintable()):
        raise BadSchedule(f"{name!r:.80}: the name of a schedule is 1 to {MAX_NAME} printable characters")
    if not (isinstance(agent, type) and issubclass(agent, AgentRun)):
        raise BadAgent(f"schedule {name}: {agent!r:.80} is no subclass of AgentRun")
    if taken := [tag for tag in OURS if tag in tags]:
        raise BadSchedule(
            f"schedule {name}: the tag {taken[0]!r} is set by the schedule itself; call yours otherwise"
        )
    if catch_up not in get_args(CatchUp):
        raise BadSchedule(f"schedule {name}: catch_up={catch_up!r:.80} is none of {', '.join(get_args(CatchUp))}")


def _move_of(due: Due) -> Move:
    """Return what becomes of a row that is due; raise ``BadSchedule`` where it cannot be read here."""
    schedule, now = due.schedule, due.now
    try:
        cron = Cron.parse(schedule.cron, schedule.zone)
    except BadSchedule as bad:
        raise BadSchedule(f"schedule {schedule.name} is left to other workers: {bad}") from None
    first = int(due.next_at)
    if schedule.catch_up == "all":
        return Move(first, cron.after(first))
    if schedule.catch_up == "latest":
        return Move(cron.last(first, now), cron.after(now))
    since = ceil(now - TOLERANCE)
    instant = first if first >= since else cron.after(since - 1)
    if instant is None or instant > now:
        return Move(None, instant)
    return Move(instant, cron.after(instant))


def _of(agents: list[str]) -> str:
    return f"agent IN ({', '.join('?' * len(agents))})"


def _schedule(row: Iterable[Any]) -> Schedule:
    values = dict(zip(ALL, row, strict=True))
    values["input_json"], values["tags"] = values.pop("input"), decode(values["tags"])
    for name in ("made_at", "next_at", "last_at"):
        values[name] = None if values[name] is None else _time(values[name])
    return Schedule(**values)


def _content(schedule: Schedule) -> tuple[str, ...]:
    """Return what a user said of it, as its row has it."""
    tags, catch_up = canonical(dict(schedule.tags)), schedule.catch_up
    return schedule.agent, schedule.cron, schedule.zone, schedule.goal, schedule.input_json, tags, catch_up


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _seconds(instant: int | None) -> float | None:
    return None if instant is None else float(instant)
