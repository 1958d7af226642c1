"""What a worker shows of itself and of its store: figures, a page for Prometheus, and lines for logs.

The pages are read over HTTP from real worker processes, and by the library's own parser.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families as parsed

from agent_es import AgentRun, CallTool, Effect, Finish, RunStore, ScriptedDecider, tool
from agent_es.errors import AgentError, StoreUnusable
from agent_es.metrics import PATIENCE, WorkerMetrics, figures, serving
from agent_es.owners import Owner
from agent_es.testing import MovableClock
from agent_es.worker import Worker

AGENTS = """
import os, time
from pathlib import Path
from agent_es import AgentRun, CallTool, Effect, Finish, ScriptedDecider, tool

class Shop(AgentRun):
    decider = ScriptedDecider([CallTool("look"), Finish("seen\\nand\\x1b[2J told")])

    @tool(effect=Effect.READ)
    def look(self) -> str:
        return "in stock\\n" * 1_000

class Payer(AgentRun):
    decider = ScriptedDecider([CallTool("pay"), Finish("paid")])

    @tool(effect=Effect.AT_MOST_ONCE)
    def pay(self) -> str:
        raise OSError("the line is dead\\nafter a while")

class Sleeper(AgentRun):
    decider = ScriptedDecider([CallTool("rest"), Finish("rested")])

    @tool(effect=Effect.READ)
    def rest(self) -> None:
        Path("asleep").touch()
        time.sleep(60)

class Broken(AgentRun):
    class decider:
        @staticmethod
        def decide(run, tools):
            raise ConnectionError("the model is away")
"""


class Shop(AgentRun):
    """Looks."""

    decider = ScriptedDecider([CallTool("look"), Finish("seen")])

    @tool(effect=Effect.READ)
    def look(self) -> str:
        return "in stock"


class Payer(AgentRun):
    """Pays, and hears no answer."""

    decider = ScriptedDecider([CallTool("pay"), Finish("paid")])

    @tool(effect=Effect.AT_MOST_ONCE)
    def pay(self) -> str:
        raise OSError("the line is dead")


class Sleeper(AgentRun):
    """Of the worker's process alone."""


class Broken(AgentRun):
    """Of the worker's process alone."""


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    opened = RunStore(url)
    yield opened
    opened.close()


def change_row(store: RunStore, run_id: str, change: str, *values: object) -> None:
    """Change a run's row behind the store's back."""
    dialect = store.recorder.datastore.dialect
    with store.recorder.datastore.writing() as connection:
        connection.execute(dialect.sql(f"UPDATE agent_es_runs SET {change} WHERE run_id = ?"), (*values, run_id))  # noqa: S608


# Figures.


def test_a_store_without_runs_has_nothing_due_and_shows_every_queue_as_empty(store: RunStore) -> None:
    found = figures(store)

    assert (found.oldest_due, found.in_doubt, found.waiting_for_person) == (0.0, 0, 0)
    assert found.depth == {
        ("pending", ""): 0,
        ("running", ""): 0,
        ("waiting", "approval"): 0,
        ("waiting", "clock"): 0,
        ("waiting", "signal"): 0,
        ("waiting", "doubt"): 0,
        ("waiting", "retry"): 0,
        ("waiting", "person"): 0,
        ("failed", ""): 0,
    }


def test_runs_are_counted_by_status_and_by_what_they_wait_for_until_they_are_done(store: RunStore) -> None:
    for n in range(3):
        store.start(Shop, run_id=f"shop-{n}", goal="shop")
    store.start(Payer, run_id="pay-0", goal="pay")
    Worker(store, agents=[Payer]).run(until_idle=True)
    Worker(store, agents=[Shop]).run(once=True)
    parked = store.aggregate(Shop, "shop-2")
    parked.record_parked("nobody gets anywhere with it")
    store.save(parked)

    found = figures(store)

    assert {queue: count for queue, count in found.depth.items() if count} == {
        ("pending", ""): 1,
        ("running", ""): 1,
        ("waiting", "doubt"): 1,
        ("waiting", "person"): 1,
    }
    assert (found.in_doubt, found.waiting_for_person) == (1, 1)

    Worker(store, agents=[Shop]).run(until_idle=True)
    assert sum(figures(store).depth.values()) == 2


def test_the_oldest_due_run_is_as_old_as_its_start_and_a_claim_ends_that(store: RunStore) -> None:
    store.clock = MovableClock(datetime.now(UTC) - timedelta(seconds=90))
    store.start(Shop, run_id="run-1", goal="shop")
    assert 89.9 <= figures(store).oldest_due < 100

    lease = store.leases.claim(["Shop"], Owner.here(), 60.0)
    assert lease is not None
    assert figures(store).oldest_due == 0

    store.leases.release(lease)
    assert 0 <= figures(store).oldest_due < 10


def test_a_run_whose_lease_lapsed_is_due_from_then_on(store: RunStore) -> None:
    store.clock = MovableClock(datetime.now(UTC) - timedelta(days=1))
    store.start(Shop, run_id="run-1", goal="shop")
    change_row(store, "run-1", "lease_owner = 'gone', lease_until = ?", time.time() - 40)

    assert 39.9 <= figures(store).oldest_due < 50


@pytest.mark.parametrize(("wakes_in", "due_for"), [(-20, 20), (3600, 0)], ids=["woken", "asleep"])
def test_a_run_that_waits_for_the_clock_is_due_from_its_time_on(
    store: RunStore, wakes_in: float, due_for: float
) -> None:
    store.clock = MovableClock(datetime.now(UTC) - timedelta(days=1))
    store.start(Shop, run_id="run-1", goal="shop")
    change_row(store, "run-1", "status = 'waiting', waiting_for = 'retry', wake_at = ?", time.time() + wakes_in)

    assert due_for - 0.1 <= figures(store).oldest_due < due_for + 10  # SQLite counts milliseconds


def test_what_the_figures_call_due_is_what_a_worker_claims(store: RunStore) -> None:
    store.start(Shop, run_id="run-1", goal="shop")
    rows = {
        "movable": ("status = 'running', waiting_for = NULL, wake_at = NULL, lease_until = 0", True),
        "held": ("status = 'running', waiting_for = NULL, wake_at = NULL, lease_until = 4e9", False),
        "in doubt": ("status = 'waiting', waiting_for = 'doubt', wake_at = NULL, lease_until = 0", False),
        "woken": ("status = 'waiting', waiting_for = 'retry', wake_at = 1, lease_until = 0", True),
        "woken and held": ("status = 'waiting', waiting_for = 'retry', wake_at = 1, lease_until = 4e9", False),
        "asleep": ("status = 'waiting', waiting_for = 'retry', wake_at = 4e9, lease_until = 0", False),
        "over": ("status = 'failed', waiting_for = NULL, wake_at = NULL, lease_until = 0", False),
    }

    for name, (row, is_due) in rows.items():
        change_row(store, "run-1", row)
        counted = figures(store).oldest_due > 0
        claimed = store.leases.claim(["Shop"], Owner.here(), 60.0) is not None

        assert (counted, claimed) == (is_due, is_due), name


def test_figures_of_a_store_that_cannot_be_read_are_an_error(store: RunStore) -> None:
    with hidden(store), pytest.raises(StoreUnusable, match="the runs cannot be counted: "):
        figures(store)


class hidden:  # noqa: N801  # it reads as what it does
    """Takes the table away from everybody, and brings it back."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def _rename(self, old: str, new: str) -> None:
        with self._store.recorder.datastore.writing() as connection:
            connection.execute(f"ALTER TABLE {old} RENAME TO {new}")

    def __enter__(self) -> None:
        self._rename("agent_es_runs", "elsewhere")

    def __exit__(self, *_: object) -> None:
        self._rename("elsewhere", "agent_es_runs")


# The tally.


def test_a_worker_counts_the_events_that_it_appended(store: RunStore) -> None:
    for n in range(4):
        store.start(Shop, run_id=f"run-{n}", goal="shop")

    tally = Worker(store, agents=[Shop]).run(until_idle=True)

    assert tally.events == sum(store.record(f"run-{n}").cursor - 1 for n in range(4)) == 12


# The page.


def samples(page: str) -> dict[str, float]:
    """What a page says, by name and labels; the library's own parser reads it."""
    return {
        "/".join([sample.name, *filter(None, sample.labels.values())]): sample.value
        for family in parsed(page)
        for sample in family.samples
    }


def read(url: str) -> dict[str, float]:
    with urlopen(url, timeout=30) as answer:  # noqa: S310  # our own page
        assert answer.headers["Content-Type"].startswith("text/plain")
        return samples(answer.read().decode())


class Working:
    """A worker process that serves its page."""

    def __init__(self, folder: Path, store: RunStore, *options: str) -> None:
        (folder / "shop.py").write_text(AGENTS)
        command = [sys.executable, "-m", "agent_es", "worker", "shop", "--store", store.url, "--poll", "0.05"]
        self._folder = folder
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--json", "--metrics", "0", *options],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        wait_for(lambda: any(line["kind"] == "ready" for line in self.lines()))
        self.url = next(line["text"] for line in self.lines() if line["kind"] == "metrics")

    def lines(self) -> list[dict[str, Any]]:
        whole = (self._folder / "log").read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def stop(self) -> dict[str, int]:
        self.process.send_signal(signal.SIGTERM)
        said, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == 0
        tally: dict[str, int] = json.loads(said)
        return tally


@pytest.fixture
def work(tmp_path: Path, store: RunStore) -> Iterator[Callable[..., Working]]:
    started: list[Working] = []

    def start(*options: str) -> Working:
        started.append(Working(tmp_path, store, *options))
        return started[-1]

    yield start
    for worker in started:
        worker.process.kill()
        worker.process.communicate()


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def test_the_page_shows_what_this_worker_did_and_how_the_store_stands(
    work: Callable[..., Working], store: RunStore
) -> None:
    worker = work()
    before = read(worker.url)
    for n in range(3):
        store.start(Shop, run_id=f"shop-{n}", goal="shop")
    store.start(Payer, run_id="pay-0", goal="pay")
    store.start(Broken, run_id="broken-0", goal="break")
    wait_for(lambda: read(worker.url).get("agent_es_runs/waiting/doubt") == 1)
    wait_for(lambda: len(store.runs(status="done")) == 3)
    wait_for(lambda: read(worker.url)["agent_es_worker_failed_total"] == 1)

    page = read(worker.url)
    tally = worker.stop()

    assert set(before.values()) == {0.0, 1.0}
    assert before["agent_es_store_up"] == 1
    events = sum(record.cursor - 1 for record in store.runs())
    assert {name: value for name, value in page.items() if value} == {
        "agent_es_worker_steps_total": 7,
        "agent_es_worker_events_total": events,
        "agent_es_worker_failed_total": 1,
        "agent_es_store_up": 1,
        "agent_es_worker_is_told": 1,
        "agent_es_runs/pending": 1,
        "agent_es_runs/waiting/doubt": 1,
        "agent_es_runs_in_doubt": 1,
    }
    assert (tally["steps"], tally["events"]) == (7, events)


def test_a_run_that_no_worker_has_a_class_for_is_seen_to_grow_old(
    work: Callable[..., Working], store: RunStore
) -> None:
    class Stranger(AgentRun):
        """Of another program."""

    store.clock = MovableClock(datetime.now(UTC) - timedelta(minutes=10))
    store.start(Stranger, run_id="run-1", goal="stay")

    page = read(work().url)

    assert 599.9 <= page["agent_es_oldest_due_seconds"] < 660


def test_the_page_of_a_worker_whose_store_is_broken_still_shows_its_counters(
    work: Callable[..., Working], store: RunStore
) -> None:
    store.start(Shop, run_id="run-1", goal="shop")
    worker = work("--poll", "60")  # it asks the store for nothing more, but for its page
    wait_for(lambda: read(worker.url)["agent_es_worker_steps_total"] == 2)

    with hidden(store):
        broken = read(worker.url)
    whole = read(worker.url)

    assert {name for name in broken if "worker" not in name} == {"agent_es_store_up"}
    assert (broken["agent_es_store_up"], broken["agent_es_worker_steps_total"]) == (0, 2)
    assert (whole["agent_es_store_up"], whole["agent_es_runs/running"]) == (1, 0)


@pytest.mark.postgres
def test_the_page_waits_a_bounded_time_for_a_server_that_is_gone_and_finds_it_again(
    tmp_path: Path, new_server: Callable[[], Any]
) -> None:
    server = new_server()
    store = RunStore(server.new_url())
    worker = Working(tmp_path, store)
    try:
        assert read(worker.url)["agent_es_store_up"] == 1

        server.kill()
        asked_at = time.monotonic()
        away = read(worker.url)
        took = time.monotonic() - asked_at
        server.start()
        wait_for(lambda: read(worker.url)["agent_es_store_up"] == 1)

        assert away["agent_es_store_up"] == 0
        assert took < 3 * PATIENCE
        worker.stop()
    finally:
        worker.process.kill()
        worker.process.communicate()
        store.close()


@pytest.mark.postgres
def test_a_store_that_hangs_hangs_one_question_and_no_page(tmp_path: Path, server: Any) -> None:
    import psycopg  # noqa: PLC0415  # only where PostgreSQL is asked for

    url = server.new_url()
    store = RunStore(url)
    worker = Worker(store, agents=[Shop])
    with serving(worker, "0") as page, psycopg.connect(url.replace("+psycopg", "")) as rival:
        assert read(page)["agent_es_store_up"] == 1
        rival.execute("LOCK TABLE agent_es_runs IN ACCESS EXCLUSIVE MODE")

        asked_at = time.monotonic()
        hanging = [read(page)["agent_es_store_up"] for _ in range(2)]
        took = time.monotonic() - asked_at
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE ?"
        questions = server.execute(waiting, ("%FROM agent_es_runs%",))
        rival.rollback()

        wait_for(lambda: read(page)["agent_es_store_up"] == 1)
        assert hanging == [0, 0]
        assert took < 3 * PATIENCE
        assert questions == [(1,)]
    store.close()


def test_what_a_stop_hands_back_is_counted(work: Callable[..., Working], store: RunStore, tmp_path: Path) -> None:
    worker = work("--grace", "0.2")
    store.start(Sleeper, run_id="run-1", goal="sleep")
    wait_for((tmp_path / "asleep").exists)

    tally = worker.stop()

    assert tally["handed_back"] == 1
    assert worker.lines()[-1]["kind"] == "handed_back"


def test_a_registry_of_the_programs_own_takes_the_metrics_too(store: RunStore) -> None:
    store.start(Shop, run_id="run-1", goal="shop")
    worker = Worker(store, agents=[Shop])
    registry = CollectorRegistry(auto_describe=True)

    registry.register(WorkerMetrics(worker))
    worker.run(until_idle=True)

    assert registry.get_sample_value("agent_es_worker_steps_total") == 2
    assert registry.get_sample_value("agent_es_runs", {"status": "pending", "waiting_for": ""}) == 0


# Where it is served.


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "70000", "-1"])
def test_an_address_that_is_none_is_refused(store: RunStore, address: str) -> None:
    with (
        pytest.raises(AgentError, match="write host:port, or a port on loopback"),
        serving(Worker(store, agents=[Shop]), address),
    ):
        pass


def test_a_page_is_served_on_loopback_unless_a_host_is_named(store: RunStore) -> None:
    worker = Worker(store, agents=[Shop])

    with serving(worker, "0") as alone, serving(worker, "localhost:0") as named:
        assert alone.startswith("http://127.0.0.1:")
        assert named.startswith("http://localhost:")
        assert read(alone) == read(named)


def test_a_port_that_is_taken_is_an_error_in_one_line(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(AGENTS)
    with serving(Worker(store, agents=[Shop]), "0") as page:
        address = page.split("/")[2]
        command = [sys.executable, "-m", "agent_es", "worker", "shop", "--store", store.url, "--metrics", address]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)

    assert done.returncode == 1
    assert done.stderr == f"error: metrics cannot be served at {address}: Address already in use\n"


def test_without_the_library_the_error_says_how_to_get_it(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(AGENTS)
    program = "import sys; sys.modules['prometheus_client'] = None; from agent_es.cli import main; main()"
    command = [sys.executable, "-c", program, "worker", "shop", "--store", store.url]

    with_page = subprocess.run(
        [*command, "--metrics", "0"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30
    )
    without = subprocess.run(
        [*command, "--until-idle"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30
    )

    assert with_page.returncode == 1
    assert with_page.stderr.endswith("pip install 'agent-es[metrics]'\n")
    assert without.returncode == 0


# Lines for logs.


def test_each_line_for_programs_has_its_time_and_is_short(work: Callable[..., Working], store: RunStore) -> None:
    before = datetime.now(UTC)
    worker = work()
    store.start(Shop, run_id="run-1", goal="shop")
    wait_for(lambda: len(store.runs(status="done")) == 1)
    worker.stop()

    lines = worker.lines()
    times = [datetime.fromisoformat(line["ts"]) for line in lines]

    assert [line["kind"] for line in lines] == ["metrics", "ready", "attempted", "completed", "finished"]
    assert all(line["ts"].endswith("Z") for line in lines)
    assert before <= times[0] <= times[-1] <= datetime.now(UTC)
    assert times == sorted(times)
    assert max(len(json.dumps(line)) for line in lines) < 1_500


@pytest.mark.crash
def test_each_line_for_people_is_one_line_whatever_was_said(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(AGENTS)
    store.start(Shop, run_id="run-1", goal="shop")
    store.start(Payer, run_id="run-2", goal="pay")
    command = [sys.executable, "-m", "agent_es", "worker", "shop", "--store", store.url, "--until-idle"]
    env = {**os.environ, "COLUMNS": "20"}

    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)

    lines = done.stderr.splitlines()
    assert lines[0] == "ready: Shop, Payer, Sleeper, Broken; 8 at once"
    assert sorted(line.split()[0] for line in lines[1:]) == ["run-1"] * 3 + ["run-2"] * 2
    assert max(map(len, lines)) < 600
    assert "\x1b" not in done.stderr
    assert any("the line is dead" in line and "after a while" in line for line in lines)
