"""A PostgreSQL server that is killed in mid-append, again and again: what was acknowledged is there, and there once.

Rule 1: writers and the test tell the time by one clock, the kernel's: so that an append can be set against a kill.
Rule 2: no key is claimed: what keeps an append from being made twice is the journal alone.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent_es import AgentRun, RunStore, Status
from agent_es.testing import PaymentProvider

pytestmark = [
    pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True),
    pytest.mark.crash,
]

Spawn = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Starts a program under a name, after which the files are called that it writes; leaves none behind."""
    with ExitStack() as started:

        def start(name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-W", "error", "-c", program, *arguments]
            with (tmp_path / name).open("w") as out, (tmp_path / f"{name}.log").open("w") as log:
                process = started.enter_context(subprocess.Popen(command, stdout=out, stderr=log))
            started.callback(process.kill)
            return process

        yield start


def said(process: subprocess.Popen[bytes], path: Path) -> str:
    """Return what a program said, once it has ended well."""
    assert process.wait(60) == 0, path.with_suffix(".log").read_text()
    return path.read_text()


def crash(server: Any) -> float:
    """Kill the server and all that it runs; return when."""
    at = time.monotonic()
    server.kill()
    return at


def hold_answers(server: Any, *, runs: int) -> None:
    """Let each run have an append that is recorded and not answered: the commit waits for a copy that is not there.

    That ends with the server, which starts without it.
    """
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    server.execute("SELECT pg_reload_conf()")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'agent_es' AND wait_event = 'SyncRep'"
    wait_for(lambda: server.execute(waiting) == [(runs,)])
    server.execute("ALTER SYSTEM RESET synchronous_standby_names")


KILLS = 20
WRITERS = {"ann": "run-0", "bob": "run-0", "cyd": "run-1", "dan": "run-2"}
"""Who appends to which run: two are rivals."""

APPENDING = """
import json, sys, time
from pathlib import Path
from agent_es import AgentRun, CallTool, RunStore
from agent_es.errors import RunMoved
from agent_es.run import Planned

url, writer, run_id, folder = sys.argv[1:]
acknowledged = []

with RunStore(url, snapshots=False) as store:  # one would wait for the copy beside the appends
    run = store.aggregate(AgentRun, run_id)
    Path(folder, f"{writer}.ready").touch()
    while not Path(folder, "stop").exists():
        name = f"{writer} {len(acknowledged)}"
        run.record_turn([Planned(CallTool("work"), json.dumps({"name": name}))], at_once=1)
        run.record_result(len(run.state.steps) - 1, "1")
        began = time.monotonic()
        try:
            store.save(run)
        except RunMoved:  # a rival was faster, and nothing of this was recorded: it is made again
            run = store.aggregate(AgentRun, run_id)
        else:
            acknowledged.append([name, began, time.monotonic()])
print(json.dumps(acknowledged))
"""


def test_a_server_that_is_killed_in_mid_append_has_all_that_it_acknowledged_and_each_of_it_once(
    database: str, new_server: Callable[[], Any], spawn: Spawn, tmp_path: Path
) -> None:
    server, draw = new_server(), Random(0)  # noqa: S311  # chance, and no secret
    url = server.new_url()
    with RunStore(url) as store:
        for run_id in set(WRITERS.values()):
            store.start(AgentRun, run_id=run_id, goal="go on")
    writers = {name: spawn(name, APPENDING, url, name, run_id, str(tmp_path)) for name, run_id in WRITERS.items()}

    def lengths() -> list[int]:
        return [length for (length,) in server.execute("SELECT cursor FROM agent_es_runs ORDER BY run_id", url=url)]

    wait_for(lambda: len([*tmp_path.glob("*.ready")]) == len(WRITERS))
    killed_at = []
    for n in range(KILLS):
        before = lengths()
        wait_for(lambda before=before: all(now > then for now, then in zip(lengths(), before, strict=True)))
        if n % 2:
            hold_answers(server, runs=len(before))  # committed, and nobody is told
        else:
            time.sleep(draw.uniform(0.0, 0.05))  # anywhere in an append
        killed_at.append(crash(server))
        server.start()
    (tmp_path / "stop").touch()
    acknowledged = {name: json.loads(said(writer, tmp_path / name)) for name, writer in writers.items()}

    with RunStore(url) as store:
        for run_id in set(WRITERS.values()):
            journal = store.journal(run_id)
            assert [entry.seq for entry in journal] == [*range(store.record(run_id).cursor)]
            decided = [entry.data["args"]["name"] for entry in journal if entry.type == "llm_decided"]
            there = {name: [it for it in decided if it.startswith(name)] for name in WRITERS}
            expected = {
                name: [it for it, _, _ in acknowledged[name]] if WRITERS[name] == run_id else [] for name in WRITERS
            }
            assert there == expected
    appends = [(began, ended) for appended in acknowledged.values() for _, began, ended in appended]
    hit = [at for at in killed_at if any(began < at < ended for began, ended in appends)]
    assert len(hit) >= 0.75 * KILLS  # the others came between two appends


class Refunds(AgentRun):
    """What the worker's process knows how to move."""


WORKING = """
import json, sys, time
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from agent_es import AgentRun, CallTool, Effect, Finish, RunStore, ScriptedDecider, ToolContext, tool
from agent_es.testing import PaymentProvider
from agent_es.worker import Worker

url, folder = sys.argv[1], Path(sys.argv[2])

class Refunds(AgentRun):
    decider = ScriptedDecider([CallTool("look"), CallTool("refund"), Finish("refunded")])

    @tool(effect=Effect.READ)
    def look(self) -> str:
        return "not paid yet"

    @tool(effect=Effect.IDEMPOTENT)
    def refund(self, ctx: ToolContext[PaymentProvider]) -> None:
        ctx.deps.refund(ctx.run_id, Decimal(1), key=ctx.idempotency_key)
        until = time.monotonic() + 60
        while not (folder / self.state.goal).exists() and time.monotonic() < until:
            time.sleep(0.01)

with RunStore(url) as store:
    deps = PaymentProvider(folder / "provider.db")
    worker = Worker(store, agents=[Refunds], deps=deps, concurrency=3, lease=5.0, poll=0.05)
    print(json.dumps(asdict(worker.run())))
"""


def test_a_worker_lives_through_the_kills_of_its_server_and_pays_each_refund_once(
    database: str, new_server: Callable[[], Any], spawn: Spawn, tmp_path: Path
) -> None:
    server = new_server()
    url, provider = server.new_url(), PaymentProvider(tmp_path / "provider.db")
    names = [f"run-{n:02}" for n in range(30)]
    with RunStore(url) as store:
        worker = spawn("worker", WORKING, url, str(tmp_path))
        for n in range(0, len(names), 6):
            for name in names[n : n + 6]:
                store.start(Refunds, run_id=name, goal=f"goal-{n}")
            wait_for(lambda n=n: provider.refunds > n)
            crash(server)
            (tmp_path / f"goal-{n}").touch()  # the body ends, and its result finds no server
            server.start()
            wait_for(lambda n=n: len(store.runs(status=Status.DONE)) == n + 6)
        worker.send_signal(signal.SIGTERM)
        tally = json.loads(said(worker, tmp_path / "worker"))

        assert (tally["failed"], tally["parked"]) == (0, 0)
        assert sorted(provider.effects()) == [(name, "1.00") for name in names]
        assert {(it.status, it.lease_owner, it.claims) for it in store.runs()} == {(Status.DONE, None, 0)}
        assert all([step.status for step in store.load(name).steps] == ["done", "done"] for name in names)


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)
