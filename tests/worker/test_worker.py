"""Workers: claimed, moved one step, given back; many on one store, killed, frozen and stopped."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    Notice,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.errors import BadAgent, LeaseLost, RunHeld
from agent_es.owners import Owner
from agent_es.testing import PaymentProvider
from agent_es.worker import Worker

Sql = Callable[..., list[tuple[object, ...]]]

PLAN = ScriptedDecider([CallTool("look"), CallTool("pay", {"order": "A"}), Finish("paid")])


class Shop(AgentRun):
    """Looks, and pays."""

    decider = PLAN

    @tool(effect=Effect.READ)
    def look(self) -> str:
        return "in stock"

    @tool(effect=Effect.IDEMPOTENT)
    async def pay(self, ctx: ToolContext[list[str]], order: str) -> str:
        ctx.deps.append(ctx.idempotency_key or "")
        return "paid"


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    with RunStore(url) as store:
        yield store


def statuses(store: RunStore) -> list[Status]:
    return [record.status for record in store.runs(limit=None)]


# One worker.


def test_runs_that_were_only_recorded_are_moved_to_their_end_and_held_by_nobody(store: RunStore) -> None:
    for n in range(20):
        store.start(Shop, run_id=f"run-{n}", goal="shop")
    paid: list[str] = []

    tally = Worker(store, agents=[Shop], deps=paid).run(until_idle=True)

    assert statuses(store) == [Status.DONE] * 20
    assert sorted(paid) == sorted({f"run-{n}:1:pay" for n in range(20)})
    assert (tally.steps, tally.lost, tally.failed) == (60, 0, 0)
    assert {(record.lease_owner, record.claims) for record in store.runs()} == {(None, 0)}


def test_a_run_is_claimed_for_one_step(store: RunStore) -> None:
    store.start(Shop, run_id="run-1", goal="shop")

    tally = Worker(store, agents=[Shop], deps=[]).run(once=True)

    assert tally.steps == 1
    assert [step.tool for step in store.load("run-1").steps] == ["look"]
    assert store.record("run-1").lease_token == 1


def test_no_more_runs_are_moved_at_once_than_there_are_slots(store: RunStore) -> None:
    running, most, lock = 0, 0, threading.Lock()

    class Slow(AgentRun):
        decider = ScriptedDecider([CallTool("wait"), Finish("done")])

        @tool(effect=Effect.READ)
        def wait(self) -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.02)
            with lock:
                running -= 1

    for n in range(9):
        store.start(Slow, run_id=f"run-{n}", goal="wait")

    Worker(store, agents=[Slow], concurrency=3).run(until_idle=True)

    assert most == 3
    assert statuses(store) == [Status.DONE] * 9


@pytest.mark.parametrize(("moment", "thinks"), [(0.0, 0.0), (0.05, 0.06)])
def test_no_run_keeps_the_others_waiting(store: RunStore, moment: float, thinks: float) -> None:
    order: list[str] = []

    class Endless:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
            order.append(run.run_id)
            time.sleep(thinks)
            return CallTool("look") if run.turns < 5 else Finish("done")

    for name in "ab":
        store.start(Shop, run_id=name, goal="shop")

    worker = Worker(store, agents=[Shop], decider=Endless(), deps=[], concurrency=1, moment=moment)
    worker.run(until_idle=True)

    assert order == ["a", "b"] * 6


def test_steps_that_fit_in_a_moment_are_one_claim(store: RunStore) -> None:
    decider = ScriptedDecider([*[CallTool("look")] * 5, Finish("done")])
    store.start(Shop, run_id="run-1", goal="shop")

    tally = Worker(store, agents=[Shop], decider=decider, deps=[], moment=60.0).run(until_idle=True)

    assert (tally.steps, tally.events) == (6, 11)
    assert store.record("run-1").lease_token == 1


def test_a_run_that_another_process_moved_since_goes_on_from_there(store: RunStore) -> None:
    decider = ScriptedDecider([*[CallTool("look")] * 5, Finish("done")])
    store.start(Shop, run_id="run-1", goal="shop")
    worker = Worker(store, agents=[Shop], decider=decider, deps=[], moment=0.0)

    worker.run(once=True)
    Runner(store, decider, deps=[], agents=[Shop]).step("run-1")
    tally = worker.run(until_idle=True)

    assert (tally.steps, tally.lost) == (5, 0)
    assert [entry.seq for entry in store.journal("run-1")] == [*range(12)]


def test_each_agent_may_have_a_decider_of_its_own(store: RunStore) -> None:
    class Other(Shop):
        """The same tools."""

    store.start(Shop, run_id="run-1", goal="shop")
    store.start(Other, run_id="run-2", goal="shop")

    Worker(store, agents=[Shop, Other], decider={Other: ScriptedDecider([Finish("other")])}, deps=[]).run(
        until_idle=True
    )

    assert [store.load(run_id).answer for run_id in ("run-1", "run-2")] == ["paid", "other"]


def test_a_worker_needs_an_agent_and_two_of_one_name_are_refused(store: RunStore) -> None:
    with pytest.raises(BadAgent, match=r"agents=\[\.\.\.\]"):
        Worker(store, agents=[])
    with pytest.raises(BadAgent, match="two agents are called 'Shop'"):
        Worker(store, agents=[Shop, Shop])
    for wrong in ({"poll": 0.0}, {"grace": -1.0}, {"lease": 0.0}):
        with pytest.raises(BadAgent, match=next(iter(wrong))):
            Worker(store, agents=[Shop], **wrong)


# What cannot be moved.


def test_what_it_has_no_class_for_is_left_to_others(store: RunStore) -> None:
    class Stranger(AgentRun):
        """Of another program."""

    store.start(Stranger, run_id="run-1", goal="stay")
    store.start(Shop, run_id="run-2", goal="shop")

    Worker(store, agents=[Shop], deps=[]).run(until_idle=True)

    assert store.load("run-1").status is Status.PENDING
    assert store.load("run-2").status is Status.DONE


def test_a_run_that_cannot_be_read_is_skipped_and_shown_and_the_others_go_on(store: RunStore, tmp_path: Path) -> None:
    for run_id in ("damaged", "whole"):
        store.start(Shop, run_id=run_id, goal="shop")
    with store.recorder.datastore.writing() as connection:
        connection.execute(
            "UPDATE agent_es_events SET topic = 'agent_es:FromTomorrow' WHERE originator_id = "
            "(SELECT originator_id FROM agent_es_events ORDER BY id LIMIT 1)"
        )
    told: list[Notice] = []

    tally = Worker(store, agents=[Shop], deps=[], on_event=told.append).run(until_idle=True)

    assert store.load("whole").status is Status.DONE
    assert (tally.skipped, tally.steps) == (1, 3)
    assert [notice.run_id for notice in told if notice.kind == "skipped"] == ["damaged"]
    assert store.record("damaged").claims == 0


def test_a_run_that_fails_its_workers_is_left_alone_a_while_and_parked_in_the_end(store: RunStore) -> None:
    class Confused:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
            raise ConnectionError("the model is away")

    store.start(Shop, run_id="run-1", goal="shop")
    told: list[str] = []
    worker = Worker(
        store,
        agents=[Shop],
        decider=Confused(),
        deps=[],
        park_after=2,
        on_event=lambda notice: told.append(str(notice)),
    )

    for _ in range(3):
        worker.run(once=True)
        with store.recorder.datastore.writing() as connection:
            connection.execute("UPDATE agent_es_runs SET lease_until = 0")  # a while later

    state = store.load("run-1")
    assert (state.status, state.waiting_for) == (Status.WAITING, "person")
    assert state.parked == "2 workers had the run, and none of them got anywhere"
    assert "run-1 step failed: ConnectionError: the model is away" in told


@pytest.mark.crash
def test_why_a_run_was_not_moved_is_shown_until_somebody_takes_it_again(store: RunStore) -> None:
    class Confused:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
            raise ConnectionError("the model is away")

    store.start(Shop, run_id="run-1", goal="shop")
    Worker(store, agents=[Shop], decider=Confused(), deps=[]).run(once=True)

    assert store.record("run-1").trouble == "ConnectionError: the model is away"
    assert "trouble     ConnectionError: the model is away" in said("show", "run-1", "--store", store.url)
    assert "trouble" in said("runs", "--store", store.url)

    Runner(store, deps=[]).run(Shop, run_id="run-1")
    assert store.record("run-1").trouble is None
    assert "trouble" not in said("runs", "--store", store.url)


def said(*command: str) -> str:
    done = subprocess.run([sys.executable, "-m", "agent_es", *command], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_what_is_due_is_found_by_an_index(store: RunStore, sql: Sql) -> None:
    plan = [
        str(row)
        for statement in store.leases._claims(1)  # noqa: SLF001  # how it is found shows in nothing else
        for row in sql(f"EXPLAIN QUERY PLAN {statement}", ("owner", "owner", 1.0, "Shop"))
    ]

    assert [line for line in plan if "agent_es_runs_due" in line]
    assert [line for line in plan if "agent_es_runs_movable" in line]
    assert not [line for line in plan if "TEMP B-TREE" in line]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_worker_outlives_a_database_that_refuses_and_is_not_idle_meanwhile(store: RunStore, sql: Sql) -> None:
    told: list[str] = []
    store.start(Shop, run_id="run-1", goal="shop")
    sql("CREATE TRIGGER refuse BEFORE UPDATE ON agent_es_runs BEGIN SELECT RAISE(ABORT, 'read only'); END")

    def mend(notice: Notice) -> None:
        told.append(notice.kind)
        if told.count("store_failed") == 2:
            sql("DROP TRIGGER IF EXISTS refuse")

    Worker(store, agents=[Shop], deps=[], poll=0.01, on_event=mend).run(until_idle=True)

    assert told[:3] == ["ready", "store_failed", "store_failed"]
    assert store.load("run-1").status is Status.DONE


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_step_whose_run_cannot_be_given_back_frees_its_slot(store: RunStore, sql: Sql) -> None:
    told: list[str] = []

    class Refusing:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
            sql("CREATE TRIGGER refuse BEFORE UPDATE ON agent_es_runs BEGIN SELECT RAISE(ABORT, 'read only'); END")
            raise LookupError

    store.start(Shop, run_id="run-1", goal="shop")
    worker = Worker(store, agents=[Shop], decider=Refusing(), concurrency=1, on_event=lambda it: told.append(it.kind))

    worker.run(once=True)

    assert told == ["ready", "step_failed"]


def test_a_listener_that_raises_costs_no_slot_and_is_told_of_on_standard_error(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_always(notice: Notice) -> None:
        raise ZeroDivisionError(notice.kind)

    for run_id in ("run-1", "run-2"):
        store.start(Shop, run_id=run_id, goal="shop")
    worker = Worker(store, agents=[Shop], deps=[], concurrency=1, on_event=raise_always)

    worker.run(until_idle=True)

    assert worker.tally.failed == 2
    assert [store.load(run_id).version for run_id in ("run-1", "run-2")] == [2, 2]
    assert "ZeroDivisionError: step_failed" in capsys.readouterr().err


def test_a_body_that_hangs_is_handed_back_and_keeps_no_other_run_from_its_slot(store: RunStore) -> None:
    hangs = threading.Event()

    class Hanging(AgentRun):
        decider = ScriptedDecider([CallTool("hang"), Finish("done")])

        @tool(effect=Effect.READ)
        def hang(self) -> None:
            hangs.wait(30)

    store.start(Hanging, run_id="run-1", goal="hang")
    worker = Worker(store, agents=[Hanging, Shop], deps=[], concurrency=1, grace=0.1)
    worker.run(once=True)
    assert worker.tally.handed_back == 1
    with store.recorder.datastore.writing() as connection:
        connection.execute("UPDATE agent_es_runs SET lease_until = 9e9")  # nobody looks at it for now

    store.start(Shop, run_id="run-2", goal="shop")
    began = time.monotonic()
    worker.run(until_idle=True)

    assert store.load("run-2").status is Status.DONE
    assert time.monotonic() - began < 20
    hangs.set()


# Leases.


def test_a_runner_leaves_a_run_alone_that_a_living_worker_holds(store: RunStore) -> None:
    store.start(Shop, run_id="run-1", goal="shop")
    store.leases.take("run-1", Owner.here("worker"), 60.0)

    with pytest.raises(RunHeld, match=r"run run-1 is held by .*/worker until "):
        Runner(store, deps=[]).run(Shop, run_id="run-1")

    state = Runner(store, deps=[], force_takeover=True).run(Shop, run_id="run-1")
    assert state.status is Status.DONE


def test_a_runner_takes_over_at_once_from_a_process_that_is_gone(store: RunStore, tmp_path: Path) -> None:
    store.start(Shop, run_id="run-1", goal="shop")
    program = (
        "import os, signal, sys\n"
        "from agent_es import RunStore\n"
        "from agent_es.owners import Owner\n"
        "RunStore(sys.argv[1]).leases.take('run-1', Owner.here(), 3600.0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, store.url], check=False)
    assert killed.returncode == -signal.SIGKILL

    state = Runner(store, deps=[]).run(Shop, run_id="run-1")

    assert state.status is Status.DONE
    assert store.record("run-1").lease_token == 2


def test_the_token_fences_an_append_whose_version_would_still_fit(store: RunStore) -> None:
    store.start(Shop, run_id="run-1", goal="shop")
    run = store.aggregate(Shop, "run-1")
    run.lease = store.leases.take("run-1", Owner.here("first"), 0.0)
    store.leases.take("run-1", Owner.here("second"), 60.0)
    run.record_answer('"too late"')

    with pytest.raises(LeaseLost, match="the lease 1 was taken over"):
        store.save(run)

    assert store.load("run-1").version == 1


def test_a_lease_is_renewed_beside_a_tool_that_outlasts_it(store: RunStore) -> None:
    class Slow(AgentRun):
        decider = ScriptedDecider([CallTool("sleep"), Finish("done")])

        @tool(effect=Effect.AT_MOST_ONCE)
        def sleep(self) -> str:
            time.sleep(2.5)
            return "slept"

    store.start(Slow, run_id="run-1", goal="sleep")
    rival: list[object] = []

    def compete() -> None:
        until = time.monotonic() + 2.2
        while time.monotonic() < until:
            rival.append(store.leases.claim(["Slow"], Owner.here("rival"), 1.0))
            time.sleep(0.1)

    worker = Worker(store, agents=[Slow], lease=1.0)
    other = threading.Timer(0.1, compete)
    other.start()
    worker.run(once=True)
    other.join()

    assert [lease for lease in rival if lease is not None] == []
    assert len(rival) > 5
    assert store.load("run-1").steps[0].status == "done"


def test_a_lapsed_lease_is_taken_over(store: RunStore) -> None:
    store.start(Shop, run_id="run-1", goal="shop")
    store.leases.claim(["Shop"], Owner.here("who dies"), 0.2)
    assert store.leases.claim(["Shop"], Owner.here("next"), 0.2) is None

    time.sleep(0.25)
    lease = store.leases.claim(["Shop"], Owner.here("next"), 0.2)

    assert lease is not None
    assert (lease.token, lease.claims) == (2, 2)


def test_an_owner_is_dead_only_where_that_is_sure() -> None:
    here = Owner.here()
    gone = Owner(here.boot, here.namespace, 2**22 + 1, "1", "gone")
    elsewhere = Owner("another boot", here.namespace, here.pid, here.started, "elsewhere")

    again = Owner(here.boot, here.namespace, here.pid, "1", "before the number was given out again")
    odd = Owner(here.boot, here.namespace, 2**80, "1", "odd")

    owners = (here, gone, elsewhere, again, odd)
    assert [owner.is_surely_dead for owner in owners] == [False, True, False, True, False]
    assert Owner.parse(str(here)) == here


def test_a_process_that_cannot_be_looked_at_lives_and_a_zombie_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        here = Owner.here()
        other = Owner(here.boot, here.namespace, process.pid, stat[19], "other")
        assert not other.is_surely_dead

        with monkeypatch.context() as hidden:
            hidden.setattr("agent_es.owners.PROC", tmp_path)  # as where /proc shows nobody else's processes
            assert not other.is_surely_dead

        process.kill()
        wait_for(lambda: other.is_surely_dead)  # nobody has asked what became of it yet


# Processes.

PROGRAM = """
import sys, time
from decimal import Decimal
from pathlib import Path
from agent_es import AgentRun, CallTool, Effect, Finish, RunStore, ScriptedDecider, ToolContext, tool
from agent_es.testing import PaymentProvider
from agent_es.worker import Worker

class Refunds(AgentRun):
    decider = ScriptedDecider([CallTool("refund"), CallTool("wait"), Finish("done")])

    @tool(effect=Effect.IDEMPOTENT)
    def refund(self, ctx: ToolContext[PaymentProvider]) -> None:
        ctx.deps.refund(ctx.run_id, Decimal(1), key=ctx.idempotency_key)
        time.sleep(float(sys.argv[2]))

    @tool(effect=Effect.READ)
    def wait(self) -> None:
        time.sleep(0.01)

folder = Path(sys.argv[1])
store = RunStore(sys.argv[5])
if sys.argv[3] == "start":
    for n in range(int(sys.argv[4])):
        store.start(Refunds, run_id=f"run-{n}", goal="refund")
else:
    provider = PaymentProvider(folder / "provider.db")
    tally = Worker(store, agents=[Refunds], deps=provider, lease=1.0, poll=0.05, concurrency=4).run(
        until_idle=sys.argv[3] == "idle"
    )
    print(tally, flush=True)
"""


@pytest.fixture
def spawn(tmp_path: Path, url: str) -> Callable[..., subprocess.Popen[str]]:
    def start(seconds: str, what: str, count: str = "0") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), seconds, what, count, url]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    return start


def finish(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=60)
    return said


def test_a_worker_that_is_told_to_end_ends_what_it_has_begun(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path, store: RunStore
) -> None:
    finish(spawn("0", "start", "4"))
    worker = spawn("0.5", "work")
    wait_for(lambda: PaymentProvider(tmp_path / "provider.db").refunds == 4)

    worker.send_signal(signal.SIGTERM)
    said = finish(worker)

    assert worker.returncode == 0
    assert "lost=0" in said
    assert [store.load(f"run-{n}").steps[0].status for n in range(4)] == ["done"] * 4
    assert {(record.lease_owner, record.claims) for record in store.runs()} == {(None, 0)}


@pytest.mark.crash
def test_a_worker_that_is_told_twice_hands_back_what_it_has_begun(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path, store: RunStore
) -> None:
    finish(spawn("0", "start", "1"))
    worker = spawn("9", "work")
    wait_for(lambda: PaymentProvider(tmp_path / "provider.db").refunds == 1)

    worker.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.3)
    worker.send_signal(signal.SIGINT)
    said = finish(worker)

    assert "handed_back=1" in said
    assert (store.record("run-0").lease_owner, store.record("run-0").claims) == (None, 0)


@pytest.mark.crash
def test_a_frozen_worker_whose_runs_another_finished_runs_none_of_the_later_steps(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path, store: RunStore
) -> None:
    finish(spawn("0", "start", "1"))
    frozen = spawn("1.0", "work")
    provider = PaymentProvider(tmp_path / "provider.db")
    wait_for(lambda: provider.refunds == 1)
    os.kill(frozen.pid, signal.SIGSTOP)
    time.sleep(1.2)

    finish(spawn("0", "idle"))
    assert statuses(store) == [Status.DONE]
    events = store.load("run-0").version
    os.kill(frozen.pid, signal.SIGCONT)
    time.sleep(1.5)
    frozen.send_signal(signal.SIGTERM)
    said = finish(frozen)

    assert "lost=1" in said
    assert store.load("run-0").version == events
    assert provider.refunds == 1


@pytest.mark.crash
def test_workers_that_are_killed_again_and_again_refund_each_run_once(
    spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path, store: RunStore
) -> None:
    finish(spawn("0", "start", "12"))
    for _ in range(3):
        workers = [spawn("0.05", "work") for _ in range(2)]
        time.sleep(0.9)
        for worker in workers:
            worker.kill()
            worker.communicate()
    time.sleep(1.1)
    finish(spawn("0", "idle"))

    provider = PaymentProvider(tmp_path / "provider.db")
    assert statuses(store) == [Status.DONE] * 12
    assert provider.ledger == {f"run-{n}": "1.00" for n in range(12)}


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


# The command line.

SHOP = """
from agent_es import AgentRun, CallTool, Effect, Finish, ScriptedDecider, tool

class Shop(AgentRun):
    decider = ScriptedDecider([CallTool("look"), Finish("seen")])

    @tool(effect=Effect.READ)
    def look(self) -> str:
        return "in stock"
"""


@pytest.mark.parametrize("name", ["shop", "shop:Shop"], ids=["a module", "a class"])
def test_the_command_moves_runs_and_says_what_it_did(name: str, tmp_path: Path, store: RunStore) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    store.start(Shop, run_id="run-1", goal="shop")
    command = [sys.executable, "-m", "agent_es", "worker", name, "--until-idle", "--json", "--store", store.url]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0
    tally = dict.fromkeys(("failed", "handed_back", "lost", "parked", "skipped"), 0)
    assert json.loads(done.stdout) == {**tally, "steps": 2, "events": 3}
    kinds = [json.loads(line)["kind"] for line in done.stderr.splitlines()]
    assert kinds == ["ready", "attempted", "completed", "finished"]
    assert store.load("run-1").answer == "seen"


def test_the_command_says_which_module_cannot_be_imported(tmp_path: Path, store: RunStore) -> None:
    command = [sys.executable, "-m", "agent_es", "worker", "nowhere", "--store", store.url]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (
        1,
        "error: importing nowhere failed: ModuleNotFoundError: No module named 'nowhere'\n",
    )


def test_the_command_refuses_a_module_without_agents(tmp_path: Path, store: RunStore) -> None:
    (tmp_path / "empty.py").write_text("")
    command = [sys.executable, "-m", "agent_es", "worker", "empty", "--store", store.url]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 1
    assert "error: empty defines no subclass of AgentRun; name one: empty:TheClass" in done.stderr
