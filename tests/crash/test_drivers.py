"""The blocking, the awaiting and the crashing driver drive one generator to the same journal."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Effect,
    Finish,
    Runner,
    RunStore,
    ScriptedDecider,
    Status,
    tool,
)
from agent_es.errors import RunMoved
from agent_es.testing import CrashingRunner, FrozenClock


class Worker(AgentRun):
    """Three tools that end in another order than they were decided in."""

    @tool(effect=Effect.READ)
    def slow(self) -> str:
        time.sleep(0.15)
        return "slow"

    @tool(effect=Effect.READ)
    async def quick(self) -> str:
        await asyncio.sleep(0.01)
        return "quick"

    @tool(effect=Effect.READ)
    def broken(self) -> str:
        time.sleep(0.05)
        raise LookupError("nothing there")


TURN = [CallTool("slow"), CallTool("quick"), CallTool("broken")]
PLAN = ScriptedDecider([TURN, CallTool("quick"), Finish("done")])


def store_in(path: Path) -> RunStore:
    return RunStore(f"sqlite:///{path}", clock=FrozenClock())


def lines(store: RunStore) -> list[str]:
    return [str(entry) for entry in store.journal("run-1")]


def test_the_drivers_write_the_same_journal(tmp_path: Path) -> None:
    blocking, awaiting = store_in(tmp_path / "sync.db"), store_in(tmp_path / "async.db")

    Runner(blocking, PLAN).run(Worker, run_id="run-1", goal="go")
    asyncio.run(Runner(awaiting, PLAN).arun(Worker, run_id="run-1", goal="go"))

    assert lines(blocking) == lines(awaiting)


def test_results_are_appended_as_they_arrive_and_shown_in_decision_order(tmp_path: Path) -> None:
    store = store_in(tmp_path / "runs.db")

    state = Runner(store, PLAN).run(Worker, run_id="run-1", goal="go")

    ended = [entry.data["tool"] for entry in store.journal("run-1") if entry.type in ("tool_result", "tool_failed")]
    assert ended == ["quick", "broken", "slow", "quick"]
    assert [step.tool for step in state.steps] == ["slow", "quick", "broken", "quick"]
    assert [step.status for step in state.steps] == ["done", "done", "failed", "done"]


def test_the_crash_driver_runs_bodies_in_an_order_drawn_from_its_seed(tmp_path: Path) -> None:
    orders = set()
    for seed in range(8):
        store = store_in(tmp_path / f"{seed}.db")
        CrashingRunner(store, PLAN, seed=seed).run(Worker, run_id="run-1", goal="go")
        orders.add(tuple(entry.data["tool"] for entry in store.journal("run-1")[4:7]))

    assert len(orders) > 1


def test_no_more_bodies_run_beside_each_other_than_the_bound(tmp_path: Path) -> None:
    running, most, lock = 0, 0, threading.Lock()

    @tool(effect=Effect.READ)
    def count(nth: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return nth

    plan = ScriptedDecider([[CallTool("count", {"nth": n}) for n in range(7)], Finish("done")])
    store = store_in(tmp_path / "runs.db")

    state = Runner(store, plan, tools=[count], at_once=3).run(AgentRun, run_id="run-1", goal="count")

    assert most == 3
    assert [step.result for step in state.steps] == list(range(7))


def test_an_agent_may_ask_for_one_body_after_the_other(tmp_path: Path) -> None:
    ended: list[str] = []

    class Orderly(AgentRun):
        at_once = 1

        @tool(effect=Effect.READ)
        def first(self) -> None:
            time.sleep(0.05)
            ended.append("first")

        @tool(effect=Effect.READ)
        def second(self) -> None:
            ended.append("second")

    plan = ScriptedDecider([[CallTool("first"), CallTool("second")], Finish("done")])
    Runner(store_in(tmp_path / "runs.db"), plan).run(Orderly, run_id="run-1", goal="in order")

    assert ended == ["first", "second"]


def test_a_step_is_one_decision_and_its_calls(tmp_path: Path) -> None:
    store = store_in(tmp_path / "runs.db")
    store.start(Worker, run_id="run-1", goal="go")
    runner = Runner(store, PLAN, agents=[Worker])

    statuses = [(runner.step("run-1").status, len(store.load("run-1").steps)) for _ in range(4)]

    assert statuses == [(Status.RUNNING, 3), (Status.RUNNING, 4), (Status.DONE, 4), (Status.DONE, 4)]


def overtaken(store: RunStore) -> Any:
    """A tool during which another worker moves the run."""

    @tool(effect=Effect.READ)
    def lose() -> str:
        run = store.aggregate(AgentRun, "run-1")
        run.record_start(0)
        store.save(run)
        return "too late"

    return lose


def test_a_lost_version_race_stops_the_execution_at_once(tmp_path: Path) -> None:
    store = store_in(tmp_path / "runs.db")
    later: list[str] = []

    @tool(effect=Effect.READ)
    def go_on() -> str:
        later.append("went on")
        return "later"

    plan = ScriptedDecider([CallTool("lose"), CallTool("go_on"), Finish("done")])
    runner = Runner(store, plan, tools=[overtaken(store), go_on])

    with pytest.raises(RunMoved, match="another worker appended seq 2 first"):
        runner.run(AgentRun, run_id="run-1", goal="race")

    assert [entry.type for entry in store.journal("run-1")] == ["run_started", "llm_decided", "llm_decided"]
    assert later == []


def test_a_lost_race_cancels_an_asynchronous_sibling(tmp_path: Path) -> None:
    store = store_in(tmp_path / "runs.db")
    ended: list[str] = []

    @tool(effect=Effect.READ)
    async def linger() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "never"

    plan = ScriptedDecider([[CallTool("lose"), CallTool("linger")], Finish("done")])
    runner = Runner(store, plan, tools=[overtaken(store), linger])

    with pytest.raises(RunMoved):
        asyncio.run(runner.arun(AgentRun, run_id="run-1", goal="race"))

    assert ended == ["cancelled"]
