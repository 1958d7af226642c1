"""B42: a durable sleep starts over after a restart, fires twice, or keeps a lease while it sleeps.

Six hours are slept by a clock that tests move; where workers must wake by the clock of the database, six hours are
2.4 seconds.  Run as a program, this file is a worker.
"""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    Decision,
    Effect,
    Finish,
    Notice,
    Runner,
    RunState,
    RunStore,
    Sleep,
    Status,
    ToolContext,
    ToolSpec,
    Worker,
    tool,
)
from agent_es.testing import MovableClock

MIDNIGHT = datetime(2026, 7, 5, tzinfo=UTC)
HOUR = 3_600.0
SIX_HOURS = timedelta(hours=6)
SHORT_HOUR = 0.4
"""Seconds that an hour takes where the database's clock counts."""
SLACK = 1.5
"""Seconds that a busy machine may be late."""
LEASE = 1.0

Sql = Callable[..., list[tuple[Any, ...]]]


class Diary:
    """A world: what was done, in a file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "diary"
        self._path.touch()

    def write(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{line}\n")

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines()


class Sleeper(AgentRun):
    """Sleeps for as many seconds as the input says, then works."""

    @tool(effect=Effect.IDEMPOTENT)  # who is killed just as the hour comes may be in it
    def work(self, ctx: ToolContext[Diary]) -> str:
        ctx.deps.write(ctx.run_id)
        return "done"


class Model:
    """Sleeps, works, and ends."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        match run.turns:
            case 0:
                return Sleep(timedelta(seconds=run.input))
            case 1:
                return Sleeper.work.call()
            case _:
                return Finish("rested")


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(MIDNIGHT)


def types(store: RunStore, run_id: str) -> Counter[str]:
    return Counter(entry.type for entry in store.journal(run_id))


def woken_at(store: RunStore, run_id: str = "run-1") -> datetime:
    (entry,) = [entry for entry in store.journal(run_id) if entry.type == "wait_ended"]
    assert entry.data["reason"] == "clock"
    return entry.at


def began_at(store: RunStore, run_id: str = "run-1") -> datetime:
    (entry,) = [entry for entry in store.journal(run_id) if entry.type == "wait_began"]
    return entry.at


def wait_for(happened: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


# Six hours, by a clock that tests move.


def test_a_sleep_of_six_hours_that_is_restarted_at_three_and_at_a_minute_to_six_ends_at_six(
    url: str, clock: MovableClock, diary: Diary
) -> None:
    def restarted() -> RunState:
        with RunStore(url, clock=clock) as store:
            runner = Runner(store, Model(), deps=diary, max_wait=0)
            return runner.run(Sleeper, run_id="run-1", goal="rest", input=SIX_HOURS.total_seconds())

    states = [restarted()]
    for hours in (3, 2 + 59 / 60):
        clock.move(hours * HOUR)
        states.append(restarted())
    clock.move(60)
    last = restarted()

    assert {state.wake_at for state in states} == {MIDNIGHT + SIX_HOURS}
    assert {state.version for state in states} == {states[0].version}  # nothing was recorded meanwhile
    assert (last.status, diary.lines()) == (Status.DONE, ["run-1"])
    with RunStore(url) as store:
        assert woken_at(store) == MIDNIGHT + SIX_HOURS


def test_who_is_late_finds_it_over_and_does_the_next_step_once(url: str, clock: MovableClock, diary: Diary) -> None:
    with RunStore(url, clock=clock) as store:
        runner = Runner(store, Model(), deps=diary, max_wait=0)
        runner.run(Sleeper, run_id="run-1", goal="rest", input=SIX_HOURS.total_seconds())
        clock.move(6 * HOUR + 600)

        states = [runner.resume("run-1") for _ in range(3)]

        assert {state.status for state in states} == {Status.DONE}
        assert diary.lines() == ["run-1"]
        assert types(store, "run-1")["wait_ended"] == 1


def test_a_clock_that_steps_back_neither_wakes_a_run_twice_nor_puts_it_to_sleep_again(
    url: str, clock: MovableClock, diary: Diary
) -> None:
    with RunStore(url, clock=clock) as store:
        runner = Runner(store, Model(), deps=diary, max_wait=0)
        runner.run(Sleeper, run_id="run-1", goal="rest", input=SIX_HOURS.total_seconds())
        clock.move(6 * HOUR)
        runner.step("run-1")
        clock.move(-5 * HOUR)

        state = runner.resume("run-1")

        assert (state.status, diary.lines()) == (Status.DONE, ["run-1"])
        assert (types(store, "run-1")["wait_began"], types(store, "run-1")["wait_ended"]) == (1, 1)


def test_a_clock_that_steps_back_keeps_a_run_that_sleeps_until_its_instant(
    url: str, clock: MovableClock, diary: Diary
) -> None:
    with RunStore(url, clock=clock) as store:
        runner = Runner(store, Model(), deps=diary, max_wait=0)
        runner.run(Sleeper, run_id="run-1", goal="rest", input=SIX_HOURS.total_seconds())
        clock.move(-HOUR)

        for hours, status in ((6, Status.WAITING), (1, Status.RUNNING)):
            clock.move(hours * HOUR)
            assert runner.step("run-1").status is status

        assert woken_at(store) == MIDNIGHT + SIX_HOURS


# Two workers, by the clock of the database.


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Starts a worker on a store, and waits until it works."""
    with ExitStack() as started:

        def start(url: str) -> "subprocess.Popen[str]":
            command = [sys.executable, __file__, url, str(tmp_path)]
            process = started.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            started.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            return process

        yield start


Spawn = Callable[[str], "subprocess.Popen[str]"]


@pytest.mark.crash
def test_workers_that_are_killed_while_a_run_sleeps_leave_it_its_hour(url: str, diary: Diary, spawn: Spawn) -> None:
    with RunStore(url) as store:
        first, second = spawn(url), spawn(url)
        store.start(Sleeper, run_id="run-1", goal="rest", input=6 * SHORT_HOUR)
        wait_for(lambda: store.record("run-1").status is Status.WAITING)
        began = time.monotonic()
        assert store.record("run-1").lease_owner is None

        time.sleep(3 * SHORT_HOUR)
        first.kill()
        spawn(url)
        time.sleep(max(0.0, began + (5 + 59 / 60) * SHORT_HOUR - time.monotonic()))
        second.kill()
        second.wait()
        asleep = store.record("run-1").status is Status.WAITING  # a busy machine kills later: it may be in the work
        wait_for(lambda: store.record("run-1").status is Status.DONE)

        late = woken_at(store) - began_at(store) - timedelta(seconds=6 * SHORT_HOUR)
        assert timedelta(0) <= late < timedelta(seconds=SLACK)
        (attempts,) = (step.attempt for step in store.load("run-1").steps if step.tool == "work")
        assert attempts <= (1 if asleep else 2)
        assert diary.lines() in (["run-1"], ["run-1"] * attempts)
        assert (types(store, "run-1")["wait_ended"], types(store, "run-1")["tool_result"]) == (1, 1)


@pytest.mark.crash
@pytest.mark.postgres
def test_a_run_whose_hour_comes_while_the_database_is_down_wakes_as_soon_as_it_is_back(
    new_server: Callable[[], Any], diary: Diary, spawn: Spawn
) -> None:
    server = new_server()
    url = server.new_url()
    with RunStore(url) as store:
        workers = [spawn(url) for _ in range(2)]
        store.start(Sleeper, run_id="run-1", goal="rest", input=6 * SHORT_HOUR)
        wait_for(lambda: store.record("run-1").status is Status.WAITING)
        due_at = store.record("run-1").wake_at
        assert due_at is not None
        time.sleep(5 * SHORT_HOUR)

        server.kill()
        time.sleep(2 * SHORT_HOUR)
        server.start()
        back_at = datetime.now(UTC)
        wait_for(lambda: store.record("run-1").status is Status.DONE)

        assert due_at < back_at
        assert woken_at(store) < back_at + timedelta(seconds=2 * SLACK)
        assert diary.lines() == ["run-1"]
        assert [worker.poll() for worker in workers] == [None, None]
        for worker in workers:
            worker.terminate()
            assert worker.wait(30) == 0


@contextmanager
def working(store: RunStore, deps: Diary, **options: Any) -> Iterator[Worker]:
    """Let a worker wait for work meanwhile."""
    worker = Worker(store, agents=[Sleeper], decider=Model(), deps=deps, **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(30)
        assert not thread.is_alive()


def test_a_run_that_sleeps_is_held_by_nobody_and_has_no_thread(url: str, diary: Diary, sql: Sql) -> None:
    with RunStore(url) as store, working(store, diary, concurrency=4):
        store.start(Sleeper, run_id="first", goal="rest", input=HOUR)
        wait_for(lambda: store.record("first").status is Status.WAITING)
        threads = threading.active_count()
        for n in range(100):
            store.start(Sleeper, run_id=f"run-{n}", goal="rest", input=HOUR)

        wait_for(lambda: len(store.runs(waiting_for="clock", limit=None)) == 101)
        wait_for(lambda: threading.active_count() <= threads + 3)  # one for each slot: what the steps ran in

        held = sql("SELECT count(*) FROM agent_es_runs WHERE lease_owner IS NOT NULL OR lease_until > 0")
        assert held == [(0,)]


LONG = {
    "sixty days": timedelta(days=60),
    "four hundred years": timedelta(days=400 * 365.25),
    "for ever": timedelta(days=9 * 10**8),
}
AGES, LAST = timedelta(days=8_000 * 365.25), datetime(9999, 1, 1, tzinfo=UTC)
"""No calendar goes on for that long; then nobody sleeps beyond the last day."""


@pytest.mark.parametrize("how_long", LONG.values(), ids=LONG.keys())
def test_a_worker_rests_beside_a_run_that_sleeps_for_long(how_long: timedelta, url: str, diary: Diary) -> None:
    with RunStore(url) as store, working(store, diary):
        store.start(Sleeper, run_id="long", goal="rest", input=how_long.total_seconds())
        wait_for(lambda: store.record("long").status is Status.WAITING)
        spent = time.process_time()
        time.sleep(1.5)
        spent = time.process_time() - spent
        store.start(Sleeper, run_id="short", goal="rest", input=0.0)
        wait_for(lambda: store.record("short").status is Status.DONE)

        wake_at = store.record("long").wake_at
        assert spent < 0.5
        assert wake_at is not None
        wanted = LAST if how_long > AGES else began_at(store, "long") + how_long
        assert abs(wake_at - wanted) < timedelta(seconds=1)
        assert diary.lines() == ["short"]


def test_a_runner_that_waits_for_as_long_as_it_takes_sleeps_for_four_hundred_years(
    url: str, clock: MovableClock, diary: Diary
) -> None:
    def nap(seconds: float) -> None:
        if seconds > threading.TIMEOUT_MAX:
            time.sleep(seconds)  # it raises: so long a sleep is none
        clock.move(seconds)

    with RunStore(url, clock=clock) as store:
        runner = Runner(store, Model(), deps=diary, max_wait=float("inf"), sleep=nap)
        how_long = LONG["four hundred years"]
        state = runner.run(Sleeper, run_id="run-1", goal="rest", input=how_long.total_seconds())

        assert (state.status, diary.lines()) == (Status.DONE, ["run-1"])
        assert woken_at(store) == MIDNIGHT + how_long


@pytest.mark.crash
def test_two_hundred_runs_that_are_due_at_one_second_wake_once_each(url: str, diary: Diary, sql: Sql) -> None:
    runs = 200
    with RunStore(url) as store:
        for n in range(runs):
            store.start(Sleeper, run_id=f"run-{n}", goal="rest", input=HOUR)
        Worker(store, agents=[Sleeper], decider=Model(), deps=diary).run(until_idle=True)
        assert len(store.runs(waiting_for="clock", limit=None)) == runs

        sql("UPDATE agent_es_runs SET wake_at = 1780000000.0")  # an outage is over: all were due at that second
        with RunStore(url) as other, working(store, diary), working(other, diary):
            wait_for(lambda: len(store.runs(status="done", limit=None)) == runs, 60)

        assert sorted(diary.lines()) == sorted(f"run-{n}" for n in range(runs))
        assert {types(store, f"run-{n}")["wait_ended"] for n in range(runs)} == {1}
        assert {(record.claims, record.lease_owner) for record in store.runs(limit=None)} == {(0, None)}


def test_a_clock_that_steps_back_delays_no_takeover(url: str, clock: MovableClock, diary: Diary) -> None:
    """The clock of events steps back: who holds a run, and until when, is the database's to say."""
    with RunStore(url, clock=clock) as store:
        store.start(Sleeper, run_id="run-1", goal="rest", input=0.0)
        assert store.leases.claim(["Sleeper"], Worker(store, agents=[Sleeper]).owner, 0.4) is not None
        clock.move(-5 * HOUR)

        began = time.monotonic()
        with working(store, diary):
            wait_for(lambda: store.record("run-1").status is Status.DONE)

        assert time.monotonic() - began < 0.4 + SLACK


def work(url: str, folder: Path) -> None:
    with RunStore(url) as store:
        diary, tell = Diary(folder), say_when_ready
        Worker(store, agents=[Sleeper], decider=Model(), deps=diary, lease=LEASE, poll=0.2, on_event=tell).run()


def say_when_ready(notice: Notice) -> None:
    if notice.kind == "ready":  # it would end in good order from now on
        print("ready", flush=True)  # noqa: T201  # who started it waits for that


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]))
