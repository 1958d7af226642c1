"""B23: whoever is cancelled while a call is in flight leaves no call without an answer to come.

What ended is recorded, what can be stopped is stopped, and the next life answers or doubts the rest.
Run as a program, this file is a worker that gets a SIGINT in the middle of its second call.
"""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Finish,
    Notice,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.testing import FrozenClock

RUN_ID = "run-1"
FOR_EVER = 60


@dataclass
class World:
    """What runs, what was stopped, and whether the slow calls are slow."""

    is_slow: bool = True
    bodies: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    on_slow: Callable[[], object] = lambda: None

    def begin(self, name: str) -> None:
        self.bodies.append(name)
        if name != "quick":
            self.on_slow()


class Desk(AgentRun):
    """Has a quick call, and slow ones of all kinds."""

    @tool(effect="idempotent")
    def quick(self, ctx: ToolContext[World]) -> str:
        ctx.deps.begin("quick")
        return "quick"

    @tool(effect="idempotent")
    async def awaits(self, ctx: ToolContext[World]) -> str:
        ctx.deps.begin("awaits")
        try:
            await asyncio.sleep(FOR_EVER if ctx.deps.is_slow else 0)
        except asyncio.CancelledError:
            ctx.deps.stopped.append("awaits")
            raise
        return "awaited"

    @tool(effect="at_most_once")
    async def awaits_unprotected(self, ctx: ToolContext[World]) -> str:
        ctx.deps.begin("awaits_unprotected")
        await asyncio.sleep(FOR_EVER if ctx.deps.is_slow else 0)
        return "awaited"

    @tool(effect="idempotent")
    def blocks(self, ctx: ToolContext[World]) -> str:
        ctx.deps.begin("blocks")
        if ctx.deps.is_slow:
            assert ctx.deps.go_on.wait(FOR_EVER)
        return "let go"

    @tool(effect="idempotent")
    def sleeps(self, ctx: ToolContext[World]) -> str:
        if ctx.deps.is_slow:
            sys.stdout.write("asleep\n")
            sys.stdout.flush()
            time.sleep(FOR_EVER)
        return "slept"


class Model:
    """Makes a quick and a slow call in one turn; its provider wants an answer to each."""

    def __init__(self, slow: str) -> None:
        self.slow = slow
        self.answers: list[tuple[str | None, Any]] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        if not run.turns:
            return [CallTool("quick", call_id="c1"), CallTool(self.slow, call_id="c2")]
        self.answers = [(step.call_id, step.result) for step in run.steps]
        assert all(step.status in ("done", "failed") for step in run.steps)
        return Finish("answered")


def interrupted(store: RunStore, world: World, model: Model) -> float:
    """Cancel the caller when the quick call is recorded and the slow one runs; return how long that took."""

    async def start_and_cancel() -> float:
        loop, is_recorded, is_slow = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def on_event(notice: Notice) -> None:
            if notice.kind == "completed" and notice.seq >= 0:  # a late one comes when the loop is closed
                loop.call_soon_threadsafe(is_recorded.set)

        world.on_slow = lambda: loop.call_soon_threadsafe(is_slow.set)
        runner = Runner(store, model, deps=world, on_event=on_event)
        task = asyncio.create_task(runner.arun(Desk, run_id=RUN_ID, goal="answer"))
        await is_recorded.wait()
        await is_slow.wait()
        world.on_slow = lambda: None
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    return asyncio.run(start_and_cancel())


def test_a_call_that_can_be_stopped_is_and_the_next_life_answers_both(
    store: RunStore, open_store: Callable[[], RunStore]
) -> None:
    world, model = World(), Model("awaits")

    took = interrupted(store, world, model)

    assert took < 1
    assert world.stopped == ["awaits"]
    assert [step.status for step in store.load(RUN_ID).steps] == ["done", "started"]
    world.is_slow = False
    state = Runner(open_store(), model, deps=world).run(Desk, run_id=RUN_ID)
    assert (state.status, model.answers) == (Status.DONE, [("c1", "quick"), ("c2", "awaited")])
    assert world.bodies.count("quick") == 1


def test_a_call_that_cannot_be_stopped_delivers_its_result_late_and_is_not_made_again(store: RunStore) -> None:
    world, model = World(), Model("blocks")

    took = interrupted(store, world, model)

    assert took < 1
    assert store.load(RUN_ID).steps[1].status == "started"
    world.go_on.set()
    until = time.monotonic() + 5
    while store.load(RUN_ID).steps[1].is_open and time.monotonic() < until:
        time.sleep(0.01)
    state = Runner(store, model, deps=world).run(Desk, run_id=RUN_ID)
    assert (state.status, model.answers) == (Status.DONE, [("c1", "quick"), ("c2", "let go")])
    assert world.bodies == ["quick", "blocks"]


def test_a_call_that_nothing_protects_is_in_doubt_and_the_model_is_not_asked_over_it(store: RunStore) -> None:
    world, model = World(), Model("awaits_unprotected")

    interrupted(store, world, model)
    state = Runner(store, model, deps=world).run(Desk, run_id=RUN_ID)

    assert [step.status for step in state.steps] == ["done", "in_doubt"]
    assert (state.waiting_for, model.answers) == ("doubt", [])
    store.settle(RUN_ID, 1, "happened", by="ann", result="seen in the log")
    Runner(store, model, deps=world).run(Desk, run_id=RUN_ID)
    assert model.answers == [("c1", "quick"), ("c2", "seen in the log")]
    assert world.bodies.count("awaits_unprotected") == 1


def test_a_process_that_gets_a_sigint_stops_at_once_and_the_next_one_answers_both(
    store: RunStore, tmp_path: Path
) -> None:
    worker = subprocess.Popen(
        [sys.executable, __file__, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "asleep\n"
        began = time.monotonic()
        worker.send_signal(signal.SIGINT)
        worker.wait(timeout=30)
    assert time.monotonic() - began < 5
    assert [step.status for step in store.load(RUN_ID).steps] == ["done", "started"]
    model = Model("sleeps")

    state = Runner(store, model, deps=World(is_slow=False)).run(Desk, run_id=RUN_ID)

    assert (state.status, model.answers) == (Status.DONE, [("c1", "quick"), ("c2", "slept")])
    assert [step.attempt for step in state.steps] == [1, 2]


def work_until_interrupted(folder: Path) -> None:
    store = RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock())
    Runner(store, Model("sleeps"), deps=World(), at_once=1).run(Desk, run_id=RUN_ID, goal="answer")


if __name__ == "__main__":
    work_until_interrupted(Path(sys.argv[1]))
