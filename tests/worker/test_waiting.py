"""Runs that wait: for the clock, for a signal, for the runs that they started.  Each is one row until then."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Fail,
    Finish,
    Happened,
    Retry,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    Sleep,
    StartChild,
    Status,
    ToolContext,
    WaitFor,
    Woken,
    Worker,
    tool,
)
from agent_es.errors import OutcomeUnknown, RunConflict, RunHeld
from agent_es.owners import Owner
from agent_es.testing import Crash, CrashingRunner, MovableClock
from agent_es.testing.provider import PaymentProvider

Sql = Callable[..., list[tuple[Any, ...]]]
WEEK = timedelta(days=7)
SOON = timedelta(seconds=0.2)
PATIENCE = 30.0


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    with RunStore(url) as store:
        yield store


def wait_for(is_so: Callable[[], Any]) -> float:
    """Wait until something is so; return when it was, by the machine's clock."""
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until, "it never was"
        time.sleep(0.002)
    return time.time()


@contextmanager
def working(store: RunStore, *agents: type[AgentRun], poll: float = PATIENCE) -> Iterator[Worker]:
    """A worker that would be late by half a minute, were it not told."""
    worker = Worker(store, agents=agents, poll=poll)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)


def woken(state: RunState) -> list[Woken | None]:
    return [step.woken for step in state.steps]


class Nap(AgentRun):
    decider = ScriptedDecider([Sleep(SOON), Finish("awake")])


class Collect(AgentRun):
    decider = ScriptedDecider([WaitFor("paid", WEEK), Finish("paid")])


# By the clock and by signals.


def test_who_sleeps_goes_on_at_its_time_without_any_poll(store: RunStore) -> None:
    with working(store, Nap):
        store.start(Nap, run_id="nap", goal="sleep")
        wait_for(lambda: store.load("nap").is_over)

    began, ended = [entry.at for entry in store.journal("nap") if entry.type in ("wait_began", "wait_ended")]
    assert SOON <= ended - began < SOON + timedelta(seconds=5)
    assert woken(store.load("nap")) == [Woken("clock")]


def test_who_waits_goes_on_at_its_signal_without_any_poll(store: RunStore, url: str) -> None:
    with working(store, Collect), RunStore(url) as elsewhere:
        store.start(Collect, run_id="run-1", goal="collect")
        wait_for(lambda: store.record("run-1").status is Status.WAITING)
        elsewhere.signal("run-1", "paid", 180)
        wait_for(lambda: store.load("run-1").is_over)

    assert woken(store.load("run-1")) == [Woken("signal", "paid", 180)]


def test_two_workers_of_one_store_are_both_told(store: RunStore, url: str) -> None:
    with working(store, Collect), working(store, Nap), RunStore(url) as elsewhere:
        for n in range(5):
            for agent in (Collect, Nap):
                elsewhere.start(agent, run_id=f"{agent.__name__}-{n}", goal="wait")
            wait_for(lambda n=n: store.record(f"Collect-{n}").status is Status.WAITING)
            elsewhere.signal(f"Collect-{n}", "paid")
            wait_for(lambda n=n: all(store.load(f"{name}-{n}").is_over for name in ("Collect", "Nap")))


def test_a_run_that_waits_is_held_by_nobody_and_no_thread_waits_with_it(store: RunStore) -> None:
    for n in range(20):
        store.start(Collect, run_id=f"run-{n}", goal="collect")
    worker = Worker(store, agents=[Collect])
    worker.run(until_idle=True)
    before = threading.active_count()

    records = store.runs(status="waiting")

    assert len(records) == 20
    assert {(record.lease_owner, record.claims) for record in records} == {(None, 0)}
    assert not [thread.name for thread in threading.enumerate() if "run-" in thread.name]
    assert threading.active_count() <= before


def test_a_run_that_is_due_sooner_than_those_before_it_is_not_kept_waiting_by_them(store: RunStore, sql: Sql) -> None:
    for n in range(3):
        store.start(Nap, run_id=f"nap-{n}", goal="sleep")
    Worker(store, agents=[Nap]).run(until_idle=True)
    sql("UPDATE agent_es_runs SET wake_at = 1")
    for n in range(2):
        store.leases.take(f"nap-{n}", Owner.here(), 60.0)

    assert store.leases.due_in(["Nap"]) == 0.0

    store.leases.take("nap-2", Owner.here(), 5.0)
    due_in = store.leases.due_in(["Nap"])
    assert due_in is not None
    assert 3.0 < due_in <= 5.0
    assert store.leases.due_in(["Other"]) is None
    assert store.leases.due_in([]) is None


def test_a_foreground_runner_sleeps_a_short_wait_and_returns_from_a_long_one(url: str) -> None:
    clock = MovableClock()
    script = ScriptedDecider([Sleep(timedelta(seconds=2)), Sleep(WEEK), Finish("awake")])

    with RunStore(url, clock=clock) as store:
        state = Runner(store, script, sleep=clock.sleep).run(Nap, run_id="nap", goal="sleep")

    assert clock.now() - MovableClock().now() == timedelta(seconds=2)
    assert (state.status, state.waiting_for) == (Status.WAITING, "clock")
    assert state.wake_at is not None


def test_a_wait_whose_time_has_passed_and_a_signal_that_is_there_end_it_in_one_append(store: RunStore) -> None:
    store.start(Nap, run_id="nap", goal="sleep")
    store.signal("nap", "paid", payload=False)
    script = ScriptedDecider([[Sleep(datetime(1999, 1, 1, tzinfo=UTC)), WaitFor("paid", WEEK)], Finish("awake")])
    appends = []
    append = store.recorder.append
    store.recorder.append = lambda *args: (appends.append(len(args[0])), append(*args))[1]  # type: ignore[method-assign]

    state = Runner(store, script, agents=[Nap]).resume("nap")

    assert woken(state) == [Woken("clock"), Woken("signal", "paid", payload=False)]
    assert appends == [6, 1]


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_a_due_run_whose_row_somebody_holds_is_looked_for_without_haste(store: RunStore, url: str) -> None:
    store.start(Nap, run_id="nap", goal="sleep")
    claims = []
    claim = store.leases.claim
    store.leases.claim = lambda *args: (claims.append(1), claim(*args))[1]  # type: ignore[method-assign]

    with RunStore(url) as stuck:
        with stuck.recorder.datastore.writing() as connection:
            stuck.recorder.hold(connection, "nap")
            with working(store, Nap):
                wait_for(lambda: claims)
                before = len(claims)
                time.sleep(0.5)
                looked = len(claims) - before
        assert 0 < looked <= 60


# Bodies that ask to wait.


class World:
    def __init__(self, folder: Path) -> None:
        self.provider = PaymentProvider(folder / "provider.db")


class Asks(AgentRun):
    def was_refunded(self, ctx: ToolContext[World], key: str) -> Happened:
        return Happened(ctx.wait_for("reply", WEEK))

    @tool(effect=Effect.READ)
    def read(self, ctx: ToolContext[World]) -> WaitFor:
        return ctx.wait_for("reply", WEEK)

    @tool(effect=Effect.IDEMPOTENT)
    def idempotent(self, ctx: ToolContext[World]) -> WaitFor:
        ctx.deps.provider.refund("ORD-1", Decimal(1), key=ctx.idempotency_key)
        return ctx.wait_for("reply", WEEK)

    @tool(effect=Effect.PROBED, probe=was_refunded)
    async def probed(self, ctx: ToolContext[World]) -> WaitFor:
        ctx.deps.provider.refund("ORD-1", Decimal(1), key=ctx.idempotency_key)
        return ctx.wait_for("reply", WEEK)

    @tool(effect=Effect.AT_MOST_ONCE)
    def at_most_once(self, ctx: ToolContext[World]) -> Woken | str:
        ctx.deps.provider.refund("ORD-1", Decimal(1), key=ctx.idempotency_key)
        return ctx.wait_for("reply", WEEK)  # type: ignore[return-value]  # recorded as what ends it

    @tool(effect=Effect.TRANSACTIONAL)
    def transactional(self, ctx: ToolContext[World]) -> WaitFor:
        ctx.session.execute(text("INSERT INTO bookings VALUES ('ORD-1')"))
        return ctx.wait_for("reply", WEEK)


@pytest.mark.parametrize("name", ["read", "idempotent", "probed", "at_most_once", "transactional"])
def test_a_body_of_any_effect_may_ask_to_wait_and_is_not_called_again(
    name: str, store: RunStore, sql: Sql, tmp_path: Path
) -> None:
    sql("CREATE TABLE bookings (what VARCHAR(20))")
    world = World(tmp_path)
    runner = Runner(store, ScriptedDecider([CallTool(name), Finish("done")]), deps=world, agents=[Asks])

    waiting = runner.run(Asks, run_id="run-1", goal="ask")
    store.signal("run-1", "reply", {"yes": 0})
    state = runner.resume("run-1")

    assert (waiting.status, waiting.waiting_for, waiting.steps[0].status) == (Status.WAITING, "signal", "waiting")
    assert state.status is Status.DONE
    assert woken(state) == [Woken("signal", "reply", {"yes": 0})]
    assert Asks.agent_tools[name].result_of(state.steps[0]) == Woken("signal", "reply", {"yes": 0})
    assert len(world.provider.effects()) + len(sql("SELECT * FROM bookings")) == (name != "read")


def test_a_worker_that_died_before_the_wait_was_recorded_finds_out_like_with_any_result(
    store: RunStore, tmp_path: Path
) -> None:
    world = World(tmp_path)
    script = ScriptedDecider([CallTool("idempotent"), Finish("done")])
    calm = CrashingRunner(store, script, deps=world)
    calm.run(Asks, run_id="calm", goal="ask")
    deaths = 0

    for place in range(1, len(calm.life.places) + 1):
        run_id = f"run-{place}"
        try:
            CrashingRunner(store, script, deps=world, at=place).run(Asks, run_id=run_id, goal="ask")
        except Crash:
            deaths += 1
        store.start(Asks, run_id=run_id, goal="ask")
        store.signal(run_id, "reply", 1)
        state = Runner(store, script, deps=world, agents=[Asks]).resume(run_id)
        assert woken(state) == [Woken("signal", "reply", 1)]

    assert deaths == len(calm.life.places)
    assert len(world.provider.effects()) == deaths + 1


def test_a_doubt_beside_a_wait_is_probed_and_the_wait_goes_on(store: RunStore) -> None:
    knows = []

    def was_sent(key: str) -> Happened | None:
        return Happened("sent") if knows else None

    class Sends(AgentRun):
        @tool(effect=Effect.PROBED, probe=was_sent, retry=Retry(max_attempts=1))
        def send(self) -> str:
            raise OutcomeUnknown("no answer")

    script = ScriptedDecider([[CallTool("send"), Sleep(WEEK)], Finish("done")])
    before = Runner(store, script).run(Sends, run_id="run-1", goal="send")

    knows.append(True)
    after = Runner(store, script, agents=[Sends]).resume("run-1")

    assert (before.waiting_for, before.steps[0].status, before.steps[1].status) == ("doubt", "in_doubt", "waiting")
    assert (after.waiting_for, after.steps[0].result, after.steps[1].status) == ("clock", "sent", "waiting")
    assert after.wake_at == before.wake_at


# Children.


class Part(AgentRun):
    decider = ScriptedDecider([Sleep(timedelta(0)), Finish({"part": True})])


class Fails(AgentRun):
    decider = ScriptedDecider([Fail("no such part")])


class Whole(AgentRun):
    decider = ScriptedDecider(
        [[StartChild(Part, "one", input={"n": 1}), StartChild(Fails, "two", tags={"team": "a"})], Finish("whole")]
    )


class Grand(AgentRun):
    decider = ScriptedDecider([StartChild(Whole, "all of it"), Finish("grand")])


def told(state: RunState) -> list[tuple[Any, ...]]:
    return [(it["run_id"], it["status"], it["answer"], it["failure"]) for it in (step.result for step in state.steps)]


PARTS = [("run-1.0", "done", {"part": True}, None), ("run-1.1", "failed", None, "no such part")]


def test_a_worker_moves_children_and_their_parent_reads_what_they_came_to(store: RunStore) -> None:
    store.start(Whole, run_id="run-1", goal="all of it")

    Worker(store, agents=[Whole, Part, Fails]).run(until_idle=True)

    state, part, fails = (store.load(run_id) for run_id in ("run-1", "run-1.0", "run-1.1"))
    assert (state.status, told(state)) == (Status.DONE, PARTS)
    assert (part.parent, part.goal, part.input, part.agent) == ("run-1", "one", {"n": 1}, "Part")
    assert fails.tags == {"team": "a"}
    assert [record.run_id for record in store.runs(tag=("team", "a"))] == ["run-1.1"]


def test_a_parent_waits_as_one_row_while_nobody_knows_the_class_of_its_child(store: RunStore) -> None:
    store.start(Whole, run_id="run-1", goal="all of it")

    Worker(store, agents=[Whole]).run(until_idle=True)

    record = store.record("run-1")
    assert (record.status, record.waiting_for, record.wake_at, record.lease_owner) == (
        "waiting",
        "signal",
        None,
        None,
    )
    assert {record.run_id for record in store.runs(status="pending")} == {"run-1.0", "run-1.1"}


def test_a_runner_moves_the_children_of_its_run_and_theirs(store: RunStore) -> None:
    state = Runner(store).run(Grand, run_id="grand", goal="everything")

    assert state.status is Status.DONE
    assert told(state) == [("grand.0", "done", "whole", None)]
    assert told(store.load("grand.0")) == [("grand.0.0", *PARTS[0][1:]), ("grand.0.1", *PARTS[1][1:])]


async def _arun(store: RunStore) -> RunState:
    return await Runner(store).arun(Grand, run_id="grand", goal="everything")


def test_an_awaiting_runner_does_so_too(store: RunStore) -> None:
    import asyncio  # noqa: PLC0415  # here alone

    assert asyncio.run(_arun(store)).status is Status.DONE
    assert store.load("grand.0").status is Status.DONE


def test_a_runner_leaves_a_child_that_a_worker_has_to_it(store: RunStore) -> None:
    store.start(Whole, run_id="run-1", goal="all of it")
    Worker(store, agents=[Whole]).run(until_idle=True)
    lease = store.leases.take("run-1.0", Owner.here(), 60.0)

    state = Runner(store).resume("run-1")

    assert (state.status, state.steps[0].status, state.steps[1].status) == (Status.WAITING, "waiting", "done")
    with pytest.raises(RunHeld):
        Runner(store).resume("run-1.0")
    store.leases.release(lease)
    assert told(Runner(store).resume("run-1")) == PARTS


def test_a_crash_anywhere_starts_no_child_twice_and_loses_none(store: RunStore) -> None:
    calm = CrashingRunner(store)
    calm.run(Whole, run_id="run-1", goal="all of it")
    places = len(calm.life.places)
    assert told(store.load("run-1")) == PARTS

    for place in range(1, places + 1):
        run_id = f"crashed-{place}"
        with pytest.raises(Crash):
            CrashingRunner(store, at=place).run(Whole, run_id=run_id, goal="all of it")
        state = Runner(store).run(Whole, run_id=run_id, goal="all of it")
        assert [it[1:] for it in told(state)] == [it[1:] for it in PARTS]
        assert [entry.type for entry in store.journal(run_id)].count("signal_received") == 2

    assert store.count() == (places + 1) * 3


def test_children_are_cancelled_with_their_parent_and_it_is_told_of_one_that_was_alone(store: RunStore) -> None:
    class Waits(AgentRun):
        decider = ScriptedDecider([WaitFor("never"), Finish("done")])

    class Both(AgentRun):
        decider = ScriptedDecider([[StartChild(Waits, "one"), StartChild(Waits, "two")], Finish("both")])

    worker = Worker(store, agents=[Waits, Both])
    for run_id in ("alone", "all"):
        store.start(Both, run_id=run_id, goal="wait")
    worker.run(until_idle=True)

    store.cancel("alone.0", by="ann", reason="not this one")
    store.cancel("all", by="ann")
    Worker(store, agents=[Waits, Both]).run(until_idle=True)

    alone = store.load("alone")
    assert (alone.status, alone.steps[0].status, alone.steps[1].status) == (Status.WAITING, "done", "waiting")
    assert alone.steps[0].result["failure"] == "cancelled by ann: not this one"
    assert [store.load(run_id).failure for run_id in ("all", "all.0", "all.1")] == [
        "cancelled by ann",
        "cancelled by ann: run all was cancelled",
        "cancelled by ann: run all was cancelled",
    ]


def test_a_child_whose_id_is_somebody_elses_run_is_not_started_and_that_is_told(store: RunStore) -> None:
    store.start(Nap, run_id="run-1.0", goal="sleep")
    store.start(Whole, run_id="run-1", goal="all of it")

    with pytest.raises(RunConflict, match=r"run run-1\.0 is there already, and is no child of run run-1"):
        Runner(store).resume("run-1")

    assert store.load("run-1").version == 1
    assert store.count() == 2


def test_a_child_that_ends_while_its_parent_is_cancelled_waits_for_it_in_no_circle(store: RunStore) -> None:
    class Quick(AgentRun):
        decider = ScriptedDecider([Finish("quick")])

    class Asks2(AgentRun):
        decider = ScriptedDecider([StartChild(Quick, "quick"), Finish("done")])

    for n in range(15):
        store.start(Asks2, run_id=f"run-{n}", goal="quick")
    Worker(store, agents=[Asks2]).run(until_idle=True)

    with working(store, Quick, Asks2):
        for n in range(15):
            store.cancel(f"run-{n}", by="ann")
    Worker(store, agents=[Asks2, Quick]).run(until_idle=True)

    for n in range(15):
        parent, child = store.load(f"run-{n}"), store.load(f"run-{n}.0")
        assert parent.is_over
        assert child.is_over
        if parent.status is Status.DONE:
            assert child.status is Status.DONE


def test_an_answer_as_deep_as_may_be_reaches_the_parent(store: RunStore) -> None:
    deep: Any = 1
    for _ in range(64):
        deep = [deep]

    class Deep(AgentRun):
        decider = ScriptedDecider([Finish(deep)])

    class AsksDeep(AgentRun):
        decider = ScriptedDecider([StartChild(Deep, "deep"), Finish("done")])

    state = Runner(store).run(AsksDeep, run_id="run-1", goal="deep")

    assert state.steps[0].result["answer"] == deep


def test_a_decider_may_say_anything_with_anything(store: RunStore) -> None:
    def said(run: RunState, _: Any) -> Decision:
        if run.turns:
            return Finish([step.status for step in run.steps])
        return [Sleep(timedelta(0)), StartChild(Part, "part"), CallTool("nothing"), WaitFor("x", timedelta(0))]

    class Anything:
        def decide(self, run: RunState, tools: Any) -> Decision:
            return said(run, tools)

    state = Runner(store, Anything(), tools=()).run(Nap, run_id="run-1", goal="all")

    assert state.answer == ["done", "done", "failed", "done"]


# Clocks.


def test_a_clock_that_steps_back_ends_no_wait_twice_and_delays_none(url: str) -> None:
    clock = MovableClock()
    script = ScriptedDecider([Sleep(timedelta(hours=1)), Sleep(timedelta(hours=1)), Finish("awake")])
    with RunStore(url, clock=clock) as store:
        runner = Runner(store, script, sleep=lambda seconds: clock.move(seconds - 7_200), max_wait=1e9)

        state = runner.run(Nap, run_id="nap", goal="sleep")

        assert state.status is Status.DONE
        assert [entry.type for entry in store.journal("nap")].count("wait_ended") == 2
