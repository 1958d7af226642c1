"""Schedules: each instant starts one run, whoever looks, dies or is not answered; what was missed is caught up.

Time is given to them as ``now``: no test waits for it.
"""

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import count, takewhile
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from agent_es import AgentRun, RunStore
from agent_es.crashpoints import AFTER_COMMIT, BEFORE_COMMIT, watching
from agent_es.errors import BadAgent, BadSchedule, NotRecordable, StoreUnusable
from agent_es.store.schedules import AT_ONCE, PAGE
from agent_es.testing import FrozenClock

Sql = Callable[..., list[tuple[Any, ...]]]
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

BERLIN = "Europe/Berlin"
FRIDAY = "2026-03-27T12:00Z"
"""Two days before the clocks of Berlin go forward."""


class Dunning(AgentRun):
    agent_version = "7"


class Stranger(AgentRun):
    """Of another program."""


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def seen(when: datetime | None) -> str:
    return "never" if when is None else f"{when:%m-%d %H:%M}"


def add(store: RunStore, cron: str = "0 9 * * *", *, now: str = FRIDAY, **said: Any) -> None:
    values = {"goal": "Remind who is overdue", **said}
    store.timetable.add(values.pop("name", "dunning"), cron, Dunning, now=at(now), **values)


def fire(store: RunStore, now: str, **options: Any) -> list[str]:
    return [seen(run.scheduled_at) for run in store.timetable.fire([Dunning], now=at(now), **options)]


def started(store: RunStore) -> list[str]:
    """The instants that have a run, by its id, in order."""
    return sorted(record.run_id.partition("@")[2] for record in store.runs(limit=None))


# What is said of a schedule, and what becomes of it.


def test_a_schedule_says_when_it_starts_its_next_run(store: RunStore) -> None:
    made = store.schedule(
        "dunning",
        "0 9 * * MON-FRI",
        Dunning,
        goal="Remind who is overdue",
        input={"days": 14},
        tags={"team": "billing"},
        zone=BERLIN,
        catch_up="all",
    )

    assert store.schedules() == [made]
    assert (made.name, made.agent, made.cron, made.zone) == ("dunning", "Dunning", "0 9 * * MON-FRI", BERLIN)
    assert (made.goal, made.input, made.tags) == ("Remind who is overdue", {"days": 14}, {"team": "billing"})
    assert (made.catch_up, made.last_at) == ("all", None)
    assert made.next_at is not None
    local = made.next_at.astimezone(ZoneInfo(BERLIN))
    assert (local.hour, local.minute, local.weekday() < 5) == (9, 0, True)
    assert 0 < (made.next_at - made.made_at).total_seconds() <= 4 * 86_400


def test_the_run_of_an_instant_is_called_after_it_and_knows_it(store: RunStore) -> None:
    add(store, "0 9 * * *", input={"days": 14}, tags={"team": "billing"}, zone=BERLIN)

    (run,) = store.timetable.fire([Dunning], now=at("2026-03-29T07:00:00.2Z"))

    assert (run.schedule, run.run_id, run.goal) == (
        "dunning",
        "dunning@2026-03-29T07:00:00Z",
        "Remind who is overdue",
    )
    state = store.load(run.run_id)
    assert (state.agent, state.agent_version, state.goal, state.input) == ("Dunning", "7", run.goal, {"days": 14})
    tags = {"team": "billing", "schedule": "dunning", "scheduled_at": "2026-03-29T07:00:00Z"}
    assert state.tags == store.record(run.run_id).tags == tags
    (schedule,) = store.schedules()
    assert (seen(schedule.last_at), seen(schedule.next_at)) == ("03-29 07:00", "03-30 07:00")


def test_nine_in_the_morning_is_nine_in_the_morning_over_a_change_of_clocks(store: RunStore) -> None:
    add(store, "0 9 * * *", zone=BERLIN)

    assert fire(store, "2026-03-28T07:59:59Z") == []
    assert fire(store, "2026-03-28T08:00:00Z") == ["03-28 08:00"]
    assert fire(store, "2026-03-29T06:59:59Z") == []
    assert fire(store, "2026-03-29T07:00:00Z") == ["03-29 07:00"]
    assert fire(store, "2026-03-29T08:00:00Z") == []


def test_the_same_content_again_changes_nothing(store: RunStore) -> None:
    add(store, input={"a": 1, "b": 2}, tags={"x": "1", "y": "2"})
    before = store.schedules()

    add(store, input={"b": 2, "a": 1}, tags={"y": "2", "x": "1"}, now="2026-03-29T12:00Z")

    assert store.schedules() == before
    assert fire(store, "2026-03-28T12:00Z") == ["03-28 09:00"]


@pytest.mark.parametrize(
    "change",
    [
        {"goal": "Remind all"},
        {"input": 1},
        {"tags": {"x": "1"}},
        {"zone": BERLIN},
        {"catch_up": "all"},
        {"cron": "0 */3 * * *"},
    ],
)
def test_other_content_replaces_it_and_counts_from_now(store: RunStore, change: dict[str, Any]) -> None:
    add(store)
    fire(store, "2026-03-28T12:00Z")

    add(store, **change, now="2026-03-30T12:00Z")  # what was due since is not started any more

    (schedule,) = store.schedules()
    assert seen(schedule.last_at) == "03-28 09:00"
    assert seen(schedule.next_at) == {"zone": "03-31 07:00", "cron": "03-30 15:00"}.get(*change, "03-31 09:00")
    assert fire(store, "2026-03-30T12:00Z") == []


def test_what_was_before_the_schedule_does_not_count(store: RunStore) -> None:
    add(store, "* * * * *", catch_up="all", now="2026-03-27T12:00:00Z")

    assert fire(store, "2026-03-27T12:00:59Z") == []
    assert fire(store, "2026-03-27T12:01:00Z") == ["03-27 12:01"]


def test_a_schedule_that_is_taken_out_starts_nothing_and_its_runs_stay(store: RunStore) -> None:
    add(store)
    fire(store, "2026-03-28T12:00Z")

    assert store.unschedule("dunning") is True
    assert store.unschedule("dunning") is False

    assert store.schedules() == []
    assert fire(store, "2026-03-29T12:00Z") == []
    assert started(store) == ["2026-03-28T09:00:00Z"]


def test_schedules_are_listed_with_the_next_one_first(store: RunStore) -> None:
    add(store, "0 9 * * *", name="b")
    add(store, "0 8 * * *", name="c")
    add(store, "0 9 * * *", name="a")

    assert [schedule.name for schedule in store.schedules()] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("said", "error", "says"),
    [
        ({"cron": "0 25 * * *"}, BadSchedule, "bad hour"),
        ({"cron": "0 9 30 2 *"}, BadSchedule, "never comes"),
        ({"cron": "0 9 LW * */7"}, BadSchedule, "never comes"),
        ({"zone": "Europe/Berln"}, BadSchedule, "'Europe/Berln' is no zone that is known here"),
        ({"catch_up": "some"}, BadSchedule, "catch_up='some' is none of latest, all, none"),
        ({"tags": {"schedule": "x"}}, BadSchedule, "the tag 'schedule' is set by the schedule itself"),
        ({"tags": {"scheduled_at": "x"}}, BadSchedule, "the tag 'scheduled_at' is set by the schedule itself"),
        ({"tags": {"n": 1}}, BadSchedule, "schedule dunning: no run can start like that: ('n', 1)"),
        ({"name": ""}, BadSchedule, "1 to 179 printable characters"),
        ({"name": "x" * 180}, BadSchedule, "1 to 179 printable characters"),
        ({"name": "a\nb"}, BadSchedule, "1 to 179 printable characters"),
        ({"input": {1, 2}}, NotRecordable, "set is not JSON"),
    ],
)
def test_what_cannot_start_is_refused_before_anything_is_stored(
    store: RunStore, said: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as caught:
        add(store, **said)

    assert says in str(caught.value)
    assert store.schedules() == []


def test_what_is_no_agent_is_refused(store: RunStore) -> None:
    with pytest.raises(BadAgent, match="schedule dunning: <class 'str'> is no subclass of AgentRun"):
        store.schedule("dunning", "0 9 * * *", str, goal="Remind")  # type: ignore[type-var]

    assert store.schedules() == []


def test_the_longest_name_and_the_oddest_goal_start_a_run(store: RunStore) -> None:
    add(store, name="\N{GRINNING FACE}" * 179, goal="a\0b\ud800")

    (run,) = store.timetable.fire([Dunning], now=at("2026-03-28T12:00Z"))

    assert len(run.run_id) == 200
    assert store.load(run.run_id).goal == "a\ufffdb\ufffd"


def test_a_rebuild_leaves_schedules_alone(store: RunStore) -> None:
    add(store)
    fire(store, "2026-03-28T12:00Z")
    before = store.schedules()

    store.rebuild()

    assert store.schedules() == before


# In a transaction of the caller's.


@pytest.fixture
def engine(url: str, store: RunStore) -> Iterator[Engine]:
    """The caller's own engine, with a table of customers."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE customers (id VARCHAR(20) PRIMARY KEY)"))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("commits", [True, False])
def test_a_customer_and_its_schedule_are_one_commit(store: RunStore, engine: Engine, commits: bool) -> None:  # noqa: FBT001
    with Session(engine) as session:
        session.execute(text("INSERT INTO customers VALUES ('A')"))
        made = store.schedule("dunning-A", "0 9 * * *", Dunning, goal="Remind A", session=session)
        with pytest.raises(BadSchedule):
            store.schedule("dunning-B", "0 9 * * MOO", Dunning, goal="Remind B", session=session)
        (session.commit if commits else session.rollback)()

    assert store.schedules() == ([made] if commits else [])
    with Session(engine) as session:
        assert session.execute(text("SELECT count(*) FROM customers")).scalar() == commits


# What is caught up.

DAYS = ["03-28 09:00", "03-29 09:00", "03-30 09:00"]
AFTER_THREE_DAYS = "2026-03-30T12:00Z"


@pytest.mark.parametrize(("catch_up", "caught_up"), [("latest", DAYS[-1:]), ("all", DAYS), ("none", [])])
def test_after_an_outage_what_is_started_is_what_was_said(
    store: RunStore, catch_up: str, caught_up: list[str]
) -> None:
    add(store, catch_up=catch_up)

    assert fire(store, AFTER_THREE_DAYS) == caught_up

    (schedule,) = store.schedules()
    assert seen(schedule.next_at) == "03-31 09:00"
    assert seen(schedule.last_at) == (caught_up[-1] if caught_up else "never")
    assert fire(store, AFTER_THREE_DAYS) == []
    assert fire(store, "2026-03-31T09:00Z") == ["03-31 09:00"]


@pytest.mark.parametrize(
    ("now", "fired"),
    [
        ("2026-03-28T09:00:00Z", ["03-28 09:00"]),
        ("2026-03-28T09:01:00Z", ["03-28 09:00"]),
        ("2026-03-28T09:01:00.1Z", []),
        ("2026-03-30T09:01:00Z", ["03-30 09:00"]),
        ("2026-03-30T09:01:00.1Z", []),
    ],
)
def test_where_nothing_is_caught_up_a_minute_late_is_not_missed(store: RunStore, now: str, fired: list[str]) -> None:
    add(store, catch_up="none")

    assert fire(store, now) == fired


def test_what_was_not_started_is_not_the_last_that_was(store: RunStore) -> None:
    add(store, catch_up="none")
    fire(store, "2026-03-28T09:00Z")

    assert fire(store, AFTER_THREE_DAYS) == []

    (schedule,) = store.schedules()
    assert (seen(schedule.last_at), seen(schedule.next_at)) == ("03-28 09:00", "03-31 09:00")


@pytest.mark.parametrize(("catch_up", "fired"), [("latest", DAYS[:1]), ("all", DAYS[:1]), ("none", [])])
def test_a_schedule_that_comes_never_again_stays_and_starts_nothing(
    store: RunStore, sql: Sql, catch_up: str, fired: list[str]
) -> None:
    add(store, name="a", catch_up=catch_up)
    add(store, name="b", now=AFTER_THREE_DAYS)
    sql("UPDATE agent_es_schedules SET cron = '0 9 LW * */7' WHERE name = 'a'")  # as after a change of the rules

    assert fire(store, "2026-03-29T12:00Z") == fired
    assert fire(store, AFTER_THREE_DAYS) == []

    assert [(one.name, seen(one.next_at)) for one in store.schedules()] == [("b", "03-31 09:00"), ("a", "never")]
    store.unschedule("b")
    assert store.timetable.due_in([Dunning]) is None


def commits_of(act: Callable[[], object]) -> int:
    """How many transactions something commits."""
    reached: list[str] = []
    with watching(lambda place, _: reached.append(place)):
        act()
    return reached.count(AFTER_COMMIT)


def test_a_long_outage_is_caught_up_in_order_a_run_per_transaction_and_a_bound_per_call(store: RunStore) -> None:
    add(store, "*/5 * * * *", catch_up="all", now="2026-03-27T00:02Z")
    fired: list[list[str]] = []

    assert commits_of(lambda: fired.append(fire(store, "2026-03-28T01:03Z"))) == AT_ONCE
    while fired[-1]:
        fired.append(fire(store, "2026-03-28T01:03Z"))

    assert [len(some) for some in fired] == [*[AT_ONCE] * 6, 0]
    instants = [at("2026-03-27T00:05Z") + 300 * n for n in range(300)]
    assert [instant for some in fired for instant in some] == [seen(moment(instant)) for instant in instants]
    assert started(store) == [f"{moment(instant):%Y-%m-%dT%H:%M:%SZ}" for instant in instants]


def test_of_ten_years_of_minutes_the_latest_is_one_transaction(store: RunStore) -> None:
    add(store, "* * * * *", now="2016-03-27T12:00Z")

    assert commits_of(lambda: fire(store, FRIDAY)) == 1

    assert started(store) == ["2026-03-27T12:00:00Z"]


def test_several_schedules_that_catch_up_take_turns(store: RunStore) -> None:
    add(store, "0 9 * * *", name="a", catch_up="all")
    add(store, "0 10 * * *", name="b", catch_up="all")

    runs = store.timetable.fire([Dunning], now=at(AFTER_THREE_DAYS), limit=4)

    assert [run.run_id for run in runs] == [
        "a@2026-03-28T09:00:00Z",
        "b@2026-03-28T10:00:00Z",
        "a@2026-03-29T09:00:00Z",
        "b@2026-03-29T10:00:00Z",
    ]


def test_a_clock_that_is_set_back_starts_nothing_again(store: RunStore) -> None:
    add(store, "0 * * * *", catch_up="all")
    fire(store, "2026-03-27T15:30Z")

    assert fire(store, "2026-03-27T13:00Z") == []
    assert fire(store, "2026-03-27T15:59Z") == []
    assert fire(store, "2026-03-27T16:00Z") == ["03-27 16:00"]
    assert len(started(store)) == 4


def test_the_run_of_an_instant_that_is_there_already_is_left_alone(store: RunStore) -> None:
    store.start(Dunning, run_id="dunning@2026-03-28T09:00:00Z", goal="by hand")
    add(store, catch_up="all")

    assert fire(store, AFTER_THREE_DAYS) == DAYS[1:]

    assert store.load("dunning@2026-03-28T09:00:00Z").goal == "by hand"


def test_a_schedule_that_was_taken_out_and_put_in_again_does_not_start_an_instant_again(store: RunStore) -> None:
    add(store)
    fire(store, "2026-03-28T12:00Z")
    store.unschedule("dunning")

    add(store, now="2026-03-28T08:00Z")  # by a clock that was set back

    assert fire(store, "2026-03-28T12:00Z") == []
    assert started(store) == ["2026-03-28T09:00:00Z"]


# Whose it is, and when.


def test_what_there_is_no_class_for_is_left_to_others(store: RunStore) -> None:
    add(store)

    assert store.timetable.fire([Stranger], now=at(AFTER_THREE_DAYS)) == []
    assert store.timetable.fire([], now=at(AFTER_THREE_DAYS)) == []
    assert store.timetable.due_in([Stranger]) is None
    assert store.timetable.due_in([]) is None

    assert fire(store, AFTER_THREE_DAYS) == DAYS[-1:]


def test_when_something_is_due_is_told_in_seconds_by_the_databases_clock(store: RunStore) -> None:
    assert store.timetable.due_in([Dunning]) is None

    store.schedule("yearly", "0 0 1 1 *", Dunning, goal="Remind")
    store.schedule("minutely", "* * * * *", Dunning, goal="Remind")
    soon = store.timetable.due_in([Dunning])
    add(store)
    overdue = store.timetable.due_in([Stranger, Dunning])

    assert soon is not None
    assert -1 < soon <= 60
    assert overdue is not None
    assert overdue == pytest.approx(at("2026-03-28T09:00Z") - datetime.now(UTC).timestamp(), abs=60)


def test_what_is_due_is_judged_by_the_databases_clock(store: RunStore) -> None:
    store.schedule("yearly", "0 0 1 1 *", Dunning, goal="Remind")
    add(store, now="2016-03-27T12:00Z")

    runs = store.timetable.fire([Dunning])

    assert [run.schedule for run in runs] == ["dunning"]
    (after,) = [schedule.next_at for schedule in store.schedules() if schedule.name == "dunning"]
    assert after is not None
    assert 0 < (after - datetime.now(UTC)).total_seconds() <= 86_400


@on_sqlite
def test_where_nothing_is_due_nothing_is_written(
    store: RunStore, open_store: Callable[..., RunStore], tmp_path: Path
) -> None:
    add(store)
    patient = open_store(patience=0.0)
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        assert fire(patient, FRIDAY) == []
        assert patient.timetable.due_in([Dunning]) is not None


@on_sqlite
def test_what_is_due_is_found_by_an_index(store: RunStore, sql: Sql) -> None:
    asked: list[str] = []
    with store.recorder.datastore.raw() as connection:
        connection.set_trace_callback(asked.append)
    store.timetable.due_in([Dunning])
    fire(store, FRIDAY)
    with store.recorder.datastore.raw() as connection:
        connection.set_trace_callback(None)

    plans = [str(sql(f"EXPLAIN QUERY PLAN {statement}")) for statement in asked]

    assert len(plans) == 2
    for plan in plans:
        assert "USING INDEX agent_es_schedules_due" in plan
        assert "TEMP B-TREE" not in plan


def test_a_schedule_that_cannot_be_read_here_is_told_of_and_keeps_no_other_from_starting(
    store: RunStore, sql: Sql
) -> None:
    add(store, name="a")
    add(store, name="b")
    sql("UPDATE agent_es_schedules SET zone = 'Mars/Olympus' WHERE name = 'a'")  # a machine with other zones

    assert fire(store, "2026-03-28T12:00Z") == ["03-28 09:00"]
    with pytest.raises(BadSchedule, match="schedule a is left to other workers: 'Mars/Olympus' is no zone"):
        fire(store, "2026-03-28T12:00Z")

    sql("UPDATE agent_es_schedules SET zone = 'UTC'")
    assert fire(store, "2026-03-28T12:00Z") == ["03-28 09:00"]


def test_however_many_cannot_be_read_here_the_others_start(store: RunStore, sql: Sql) -> None:
    for n in range(2 * PAGE):
        add(store, "0 8 * * *", name=f"s{n}")
    sql("UPDATE agent_es_schedules SET zone = 'Mars/Olympus'")
    add(store)

    assert fire(store, "2026-03-28T12:00Z") == ["03-28 09:00"]


def test_of_more_schedules_than_are_looked_at_together_each_catches_up_in_order(store: RunStore) -> None:
    for n in range(PAGE + 9):
        add(store, name=f"s{n}", catch_up="all")

    runs = store.timetable.fire([Dunning], now=at(AFTER_THREE_DAYS), limit=10 * PAGE)

    assert len(runs) == 3 * (PAGE + 9)
    for n in range(PAGE + 9):
        assert [seen(run.scheduled_at) for run in runs if run.schedule == f"s{n}"] == DAYS


# Crashes, and answers that are lost.


@contextmanager
def failing(place: str, *, times: int = 1) -> Iterator[None]:
    """Let the driver fail at a commit, before it or after it, so often."""
    left = times

    def fail(reached: str, _: object) -> None:
        nonlocal left
        if reached == place and left:
            left -= 1
            raise sqlite3.OperationalError("disk I/O error")

    with watching(fail):
        yield
    assert left == 0


@pytest.mark.parametrize("place", [BEFORE_COMMIT, AFTER_COMMIT])
def test_a_start_whose_answer_is_lost_is_told_once_and_happens_once(store: RunStore, place: str) -> None:
    add(store, catch_up="all")

    with failing(place):
        assert fire(store, AFTER_THREE_DAYS) == DAYS

    assert len(started(store)) == 3
    assert fire(store, AFTER_THREE_DAYS) == []


@pytest.mark.parametrize("place", [BEFORE_COMMIT, AFTER_COMMIT])
def test_what_is_put_in_and_taken_out_is_so_where_the_answer_is_lost(store: RunStore, place: str) -> None:
    with failing(place):
        made = store.schedule("dunning", "0 9 * * *", Dunning, goal="Remind")
    assert store.schedules() == [made]

    with failing(place):
        assert store.unschedule("dunning") is True
    assert store.schedules() == []


def test_where_the_store_fails_what_was_started_is_told_and_the_rest_is_there_for_the_next_call(
    store: RunStore,
) -> None:
    add(store, catch_up="all")
    calls = count()

    def fail_from_the_second_on(reached: str, _: object) -> None:
        if reached == BEFORE_COMMIT and next(calls):
            raise sqlite3.OperationalError("disk I/O error")

    with watching(fail_from_the_second_on):
        assert fire(store, AFTER_THREE_DAYS) == DAYS[:1]
        with pytest.raises(StoreUnusable, match="a schedule could not be written: disk I/O error"):
            fire(store, AFTER_THREE_DAYS)

    assert fire(store, AFTER_THREE_DAYS) == DAYS[1:]


FIRE = """
import os, signal, sys
from agent_es import AgentRun
from agent_es.crashpoints import watching
from agent_es.store import RunStore

class Dunning(AgentRun):
    agent_version = "7"

url, now, place, nth, limit = sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
reached = 0

def die(at, _):
    global reached
    reached += at == place
    if at == place and reached == nth:
        os.kill(os.getpid(), signal.SIGKILL)

store = RunStore(url)
print("ready", flush=True)
sys.stdin.readline()
with watching(die):
    while started := store.timetable.fire([Dunning], now=now, limit=limit):
        print(*(run.run_id for run in started), sep="\\n", flush=True)
"""


class Firing(subprocess.Popen[str]):
    """A process that fires until nothing is due, once it is told to; it may be killed at its nth commit."""

    def __init__(self, url: str, now: str, place: str = "", nth: int = 0, limit: int = AT_ONCE) -> None:
        words = [url, at(now), place, nth, limit]
        super().__init__(
            [sys.executable, "-c", FIRE, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.stdout is not None
        assert self.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.stdin is not None
        self.stdin.write("go\n")
        self.stdin.flush()

    def end(self) -> list[str]:
        """Wait for its end; return the ids of the runs that it told of."""
        said, _ = self.communicate(timeout=60)
        return said.splitlines()


@pytest.mark.parametrize(("place", "before"), [(BEFORE_COMMIT, DAYS[:1]), (AFTER_COMMIT, DAYS[:2])])
def test_one_that_is_killed_around_a_commit_has_started_an_instant_and_moved_on_or_neither(
    store: RunStore, url: str, place: str, before: list[str]
) -> None:
    add(store, catch_up="all")

    with Firing(url, AFTER_THREE_DAYS, place, 2) as killed:
        killed.go()
        killed.end()
    assert killed.returncode == -signal.SIGKILL
    assert [f"{at[5:10]} {at[11:16]}" for at in started(store)] == before

    assert before + fire(store, AFTER_THREE_DAYS) == DAYS
    assert len(started(store)) == 3


@pytest.mark.crash
@pytest.mark.parametrize("catch_up", ["all", "latest", "none"])
def test_four_processes_that_look_at_once_start_each_instant_once(store: RunStore, url: str, catch_up: str) -> None:
    for n in range(8):
        add(store, "*/30 * * * *", name=f"s{n}", catch_up=catch_up)
    now = "2026-03-27T15:00:30Z"
    expected = {"all": 6, "latest": 1, "none": 1}[catch_up]

    processes = [Firing(url, now, limit=3) for _ in range(4)]
    for process in processes:
        process.go()
    told = [run_id for process in processes for run_id in process.end()]
    told += [
        run.run_id for run in store.timetable.fire([Dunning], now=at(now), limit=99)
    ]  # whom all were in the way of

    assert [process.returncode for process in processes] == [0] * 4
    hours = [f"{12 + half // 2}:{half % 2 * 30:02}" for half in range(1, 7)][-expected:]
    ids = sorted(f"s{n}@2026-03-27T{hour}:00Z" for n in range(8) for hour in hours)
    assert sorted(told) == ids
    assert sorted(record.run_id for record in store.runs(limit=None)) == ids
    assert fire(store, now) == []


def test_threads_of_one_process_start_each_instant_once_too(store: RunStore) -> None:
    add(store, "*/10 * * * *", catch_up="all")
    told: list[str] = []
    together = threading.Barrier(4)

    def look() -> None:
        together.wait()
        while fired := fire(store, "2026-03-27T15:00Z", limit=2):
            told.extend(fired)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    told += fire(store, "2026-03-27T15:00Z")

    assert len(told) == len(set(told)) == len(started(store)) == 18


def test_a_schedule_that_is_changed_after_it_was_looked_at_starts_nothing_of_what_it_was(
    url: str, store: RunStore
) -> None:
    add(store, "0 9 * * *")

    def change(_: int) -> datetime:
        """Be the clock that the run's start is asked of, which is after the look and before the transaction."""
        add(store, "0 9 1 * *", goal="Remind all", now=FRIDAY)
        sql_next = "UPDATE agent_es_schedules SET next_at = ?"
        with store.recorder.datastore.writing() as connection:
            connection.execute(store.recorder.datastore.dialect.sql(sql_next), (at("2026-03-28T09:00Z"),))
        return datetime.now(UTC)

    with RunStore(url, clock=change) as other:
        assert fire(other, "2026-03-28T09:00Z") == []

    assert started(store) == []
    assert [(schedule.goal, seen(schedule.next_at)) for schedule in store.schedules()] == [
        ("Remind all", "03-28 09:00")
    ]


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_on_postgresql_who_finds_a_schedule_in_anothers_hands_does_not_wait(store: RunStore, engine: Engine) -> None:
    add(store, name="a")
    add(store, name="b")

    with Session(engine) as session, session.begin():
        session.execute(text("UPDATE agent_es_schedules SET goal = 'Remind all' WHERE name = 'a'"))

        assert [run.schedule for run in store.timetable.fire([Dunning], now=at(AFTER_THREE_DAYS))] == ["b"]

    assert [run.goal for run in store.timetable.fire([Dunning], now=at(AFTER_THREE_DAYS))] == ["Remind all"]


# Any schedule at any time.


def listed_by_cronsim(cron: str, zone: str, first: float, upto: float) -> list[float]:
    found = CronSim(cron, datetime.fromtimestamp(first, ZoneInfo(zone)))
    instants = takewhile(lambda instant: instant <= upto, (one.timestamp() for one in found))
    return [instant for instant in instants if instant > first]


@given(
    cron=st.sampled_from(["*/30 * * * *", "30 2 * * *", "15 1,2,3 * * *", "0 */3 * * *", "0 9 * * MON-FRI"]),
    zone=st.sampled_from([BERLIN, "America/New_York", "Asia/Kolkata"]),
    begins=st.sampled_from(["2026-03-28T20:00Z", "2026-10-24T20:00Z", "2026-03-07T20:00Z", "2026-10-31T20:00Z"]),
    catch_up=st.sampled_from(["latest", "all", "none"]),
    advances=st.lists(st.integers(-1_800, 40_000) | st.integers(0, 120), min_size=1, max_size=8),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_over_any_advances_of_the_clock_what_is_started_is_what_cronsim_lists(
    store: RunStore, cron: str, zone: str, begins: str, catch_up: str, advances: list[int]
) -> None:
    before = {record.run_id for record in store.runs(limit=None)}
    name = f"any-{len(before)}"
    store.timetable.add(name, cron, Dunning, goal="Remind", zone=zone, catch_up=catch_up, now=at(begins))  # type: ignore[arg-type]
    now = seen_upto = at(begins)
    fired: list[float] = []
    expected: list[float] = []

    for advance in advances:
        now += advance
        while runs := store.timetable.fire([Dunning], now=now):
            fired += [run.scheduled_at.timestamp() for run in runs]
        missed = listed_by_cronsim(cron, zone, seen_upto, now)
        seen_upto = max(seen_upto, now)
        match catch_up:
            case "all":
                expected += missed
            case "latest":
                expected += missed[-1:]
            case "none":
                expected += [instant for instant in missed if instant >= now - 60]

    store.unschedule(name)
    assert fired == expected
    made = {record.run_id for record in store.runs(limit=None)} - before
    assert made == {f"{name}@{moment(instant):%Y-%m-%dT%H:%M:%SZ}" for instant in expected}


def test_an_event_of_a_scheduled_run_has_the_time_of_its_start(url: str) -> None:
    with RunStore(url, clock=FrozenClock()) as store:
        add(store)
        fire(store, AFTER_THREE_DAYS)

        (record,) = store.runs()

    assert record.started_at == FrozenClock()(0)
