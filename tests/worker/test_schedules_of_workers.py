"""Workers and schedules: who moves runs starts them too, at their time, each instant once, whoever is killed."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agent_es import AgentRun, CallTool, Effect, Finish, Notice, RunStore, ScriptedDecider, Status, Worker, tool
from agent_es.errors import BadSchedule
from agent_es.store.schedules import AT_ONCE

Sql = Callable[..., list[tuple[Any, ...]]]

MIDNIGHT = datetime.fromisoformat("2026-03-27T00:00Z").timestamp()


class Dunning(AgentRun):
    """Reminds who is overdue."""

    decider = ScriptedDecider([CallTool("look"), Finish("reminded")])

    @tool(effect=Effect.READ)
    def look(self) -> int:
        return 0


class Stranger(AgentRun):
    """Of another program."""


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    with RunStore(url) as store:
        yield store


@pytest.fixture
def was_missed(store: RunStore) -> Callable[..., None]:
    """Puts a schedule in as if that had been long ago, and its last instants, so many, had been missed."""

    def put(name: str = "dunning", *, missed: int, catch_up: Any = "all", agent: type[AgentRun] = Dunning) -> None:
        hours = int((time.time() - MIDNIGHT) // 3600)
        made_at = MIDNIGHT + 3600 * (hours - missed) + 1
        store.timetable.add(name, "0 * * * *", agent, goal="Remind", catch_up=catch_up, now=made_at)

    return put


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def test_a_worker_starts_what_is_due_tells_of_it_and_moves_it_to_its_end(
    store: RunStore, was_missed: Callable[..., None]
) -> None:
    was_missed(missed=3, catch_up="latest")
    told: list[Notice] = []

    tally = Worker(store, agents=[Dunning], on_event=told.append).run(until_idle=True)

    (record,) = store.runs()
    assert (record.status, record.tags["schedule"]) == (Status.DONE, "dunning")
    assert record.run_id == f"dunning@{record.tags['scheduled_at']}"
    assert told[1] == Notice("started", record.run_id, 0, text="Remind")
    assert [notice.kind for notice in told].count("started") == 1
    assert (tally.steps, tally.events) == (2, store.load(record.run_id).version)


def test_what_was_missed_for_longer_than_one_call_takes_is_done_before_a_worker_is_idle(
    store: RunStore, was_missed: Callable[..., None]
) -> None:
    was_missed(missed=2 * AT_ONCE + 3)

    Worker(store, agents=[Dunning]).run(until_idle=True)

    assert [record.status for record in store.runs(limit=None)] == [Status.DONE] * (2 * AT_ONCE + 3)


def test_a_worker_starts_nothing_that_it_has_no_class_for(store: RunStore, was_missed: Callable[..., None]) -> None:
    was_missed(missed=1, agent=Stranger)
    before = store.schedules()

    Worker(store, agents=[Dunning]).run(until_idle=True)

    assert (store.runs(), store.schedules()) == ([], before)


def test_a_worker_that_waits_starts_what_comes_at_its_time(store: RunStore, sql: Sql) -> None:
    workers = [Worker(store, agents=[Dunning], poll=0.05) for _ in range(3)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()

    store.schedule("dunning", "0 0 1 1 *", Dunning, goal="Remind")
    comes = float(int(time.time()) + 2)
    sql("UPDATE agent_es_schedules SET next_at = ?", (comes,))
    wait_for(lambda: [record.status for record in store.runs()] == [Status.DONE])

    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join(30)
    (record,) = store.runs()
    assert -0.1 < record.started_at.timestamp() - comes < 20  # by the clock of the database, which is ours
    assert store.load(record.run_id).version == 4


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_store_that_refuses_is_told_of_and_what_is_due_is_started_once_it_does_not(
    store: RunStore, was_missed: Callable[..., None], sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_es.worker.MAX_WAIT", 0.05)
    was_missed(missed=2)
    sql("CREATE TRIGGER refuse BEFORE UPDATE ON agent_es_schedules BEGIN SELECT RAISE(ABORT, 'read only'); END")
    told: list[str] = []
    worker = Worker(store, agents=[Dunning], poll=0.05, on_event=lambda notice: told.append(str(notice)))

    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_for(lambda: len(told) >= 3)
    sql("DROP TRIGGER refuse")
    wait_for(lambda: [record.status for record in store.runs()] == [Status.DONE] * 2)
    worker.stop()
    thread.join(30)

    assert told[1:3] == ["store failed: a schedule could not be written: read only"] * 2


def test_a_schedule_that_cannot_be_read_here_keeps_no_run_waiting(
    store: RunStore, was_missed: Callable[..., None], sql: Sql
) -> None:
    was_missed(missed=1)
    sql("UPDATE agent_es_schedules SET zone = 'Mars/Olympus'")
    store.start(Dunning, run_id="run-1", goal="Remind")
    told: list[str] = []

    Worker(store, agents=[Dunning], on_event=lambda notice: told.append(str(notice))).run(until_idle=True)

    assert [(record.run_id, record.status) for record in store.runs()] == [("run-1", Status.DONE)]
    (failed,) = [line for line in told if "store failed" in line]
    assert "schedule dunning is left to other workers: 'Mars/Olympus' is no zone" in failed
    with pytest.raises(BadSchedule):
        store.timetable.fire([Dunning])


# Processes.

AGENTS = """
from agent_es import AgentRun, CallTool, Effect, Finish, ScriptedDecider, tool

class Dunning(AgentRun):
    decider = ScriptedDecider([CallTool("look"), Finish("reminded")])

    @tool(effect=Effect.READ)
    def look(self) -> int:
        return 0
"""


@pytest.fixture
def spawn(tmp_path: Path, store: RunStore) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a process that works, by the command."""
    (tmp_path / "shop.py").write_text(AGENTS)
    options = ["--store", store.url, "--poll", "0.02", "--lease", "1", "--json", "--metrics", "0"]
    with ExitStack() as spawned, (tmp_path / "log").open("ab") as log:

        def start() -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "agent_es", "worker", "shop:Dunning", *options]
            process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
            spawned.enter_context(process)
            spawned.callback(process.kill)
            return process

        yield start


def instants(store: RunStore) -> list[str]:
    return sorted(record.tags["scheduled_at"] for record in store.runs(limit=None))


@pytest.mark.crash
def test_workers_in_several_processes_start_each_instant_once(
    store: RunStore, was_missed: Callable[..., None], spawn: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    workers = [spawn() for _ in range(3)]
    wait_for(lambda: (tmp_path / "log").read_text().count('"kind": "ready"') == 3)

    was_missed(missed=30)
    wait_for(lambda: [record.status for record in store.runs(limit=None)] == [Status.DONE] * 30)
    for worker in workers:
        worker.terminate()
        assert worker.wait(30) == 0

    assert len(set(instants(store))) == 30
    assert {store.load(record.run_id).version for record in store.runs(limit=None)} == {4}
    assert (tmp_path / "log").read_text().count('"kind": "started"') == 30


@pytest.mark.crash
def test_workers_that_are_killed_again_and_again_start_each_instant_once(
    store: RunStore, was_missed: Callable[..., None], spawn: Callable[[], subprocess.Popen[bytes]]
) -> None:
    was_missed(missed=120)
    workers = [spawn() for _ in range(3)]
    killed = 0

    while len(store.runs(limit=None)) < 120:
        before = len(store.runs(limit=None))
        wait_for(lambda before=before: len(store.runs(limit=None)) > min(before + 20, 119))  # type: ignore[misc]
        workers[killed % 3].kill()
        workers[killed % 3] = spawn()
        killed += 1
    for worker in workers:
        worker.kill()

    assert killed >= 3
    found = instants(store)
    assert len(set(found)) == len(found) == 120
    (schedule,) = store.schedules()
    assert schedule.next_at is not None
    assert schedule.next_at.timestamp() > time.time()
    assert schedule.last_at is not None
    assert found[-1] == f"{schedule.last_at:%Y-%m-%dT%H:%M:%SZ}"
