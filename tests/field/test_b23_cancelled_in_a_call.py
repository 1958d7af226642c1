"""B23: whoever is cancelled while a call is in flight leaves no call without an answer to come.

What ended is recorded, what can be stopped is stopped, and the next life answers or doubts the rest.  Where somebody
else cancels the run, what was begun is in doubt until its result comes, and nothing else is begun.
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
from agent_es.errors import BadAnswer, IllegalEvent
from agent_es.testing import FrozenClock, StrictModel, check_messages, messages_of

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


class Other:
    """Does what a person says to do instead, in one turn more."""

    def __init__(self, slow: str) -> None:
        self.slow = slow

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        check_messages(messages_of(run), tools)
        if not run.turns:
            return [CallTool("quick"), CallTool(self.slow)]
        said = [message.text for message in run.messages]
        return CallTool("quick") if said and run.turns == 1 else Finish(said)


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


# Somebody else cancels the run.


@dataclass
class Cancelled:
    """A run that was cancelled in the middle of its second call, and a worker that still has that call."""

    store: RunStore
    world: World
    worker: threading.Thread
    states: list[RunState]
    """What the worker returned."""

    def comes_to_its_end(self) -> RunState:
        self.world.go_on.set()
        self.worker.join(20)
        (state,) = self.states
        return state


def cancelled(store: RunStore, elsewhere: RunStore, slow: str, **how: Any) -> Cancelled:
    """Let a worker come to its second call, with a third one to follow, and cancel the run from elsewhere."""
    world, is_slow = World(), threading.Event()
    world.on_slow = is_slow.set
    calls = [CallTool("quick"), CallTool(slow), CallTool("quick")]
    runner = Runner(store, StrictModel([calls, Finish("answered")]), deps=world, at_once=1)
    states: list[RunState] = []
    worker = threading.Thread(target=lambda: states.append(runner.run(Desk, run_id=RUN_ID, goal="answer")))
    worker.start()
    assert is_slow.wait(20)
    elsewhere.cancel(RUN_ID, by="ann", reason="never mind", **how)
    return Cancelled(store, world, worker, states)


def test_a_run_that_is_cancelled_in_a_call_doubts_that_one_and_begins_no_other(
    store: RunStore, open_store: Callable[[], RunStore]
) -> None:
    it = cancelled(store, open_store(), "blocks")

    state = open_store().load(RUN_ID)

    assert (state.status, state.failure) == (Status.CANCELLED, "cancelled by ann: never mind")
    assert [step.status for step in state.steps] == ["done", "in_doubt", "failed"]
    assert all(step.value_json is not None for step in state.steps)
    assert (state.steps[0].result, (state.steps[2].error or {})["type"]) == ("quick", "Cancelled")
    assert [(item.kind, item.idx) for item in store.inbox()] == [("doubt", 1)]
    assert it.comes_to_its_end().status is Status.CANCELLED


def test_the_result_of_the_call_that_was_under_way_settles_its_doubt_when_it_comes(
    store: RunStore, open_store: Callable[[], RunStore]
) -> None:
    it = cancelled(store, open_store(), "blocks")

    returned = it.comes_to_its_end()

    state = open_store().load(RUN_ID)
    assert state == returned
    assert [(step.status, step.result) for step in state.steps] == [
        ("done", "quick"),
        ("done", "let go"),
        ("failed", None),
    ]
    assert (state.status, store.inbox(), it.world.bodies) == (Status.CANCELLED, [], ["quick", "blocks"])
    asked_again = [*messages_of(state), {"role": "user", "content": "what now?"}]
    check_messages(asked_again, [tool.spec for tool in Desk.agent_tools.values()])


def test_a_run_that_is_cancelled_is_moved_by_nobody_and_a_late_yes_or_word_changes_nothing(
    store: RunStore, open_store: Callable[[], RunStore]
) -> None:
    it = cancelled(store, open_store(), "blocks")
    before = it.comes_to_its_end()

    for late in (
        lambda: store.approve(RUN_ID, 2, by="bob"),
        lambda: store.steer(RUN_ID, "go on", by="bob"),
        lambda: store.resume(RUN_ID, by="bob"),
        lambda: store.requeue(RUN_ID, by="bob"),
        lambda: store.pause(RUN_ID, by="bob"),
    ):
        with pytest.raises((IllegalEvent, BadAnswer)):
            late()
    again = store.cancel(RUN_ID, by="bob", reason="once more")
    state = Runner(open_store(), Model("blocks"), deps=it.world, agents=[Desk]).resume(RUN_ID)

    assert (again, state) == (before, before)
    assert it.world.bodies == ["quick", "blocks"]


def test_a_run_that_is_to_be_undone_brings_the_call_to_its_end_and_begins_no_other(
    store: RunStore, open_store: Callable[[], RunStore]
) -> None:
    it = cancelled(store, open_store(), "blocks", compensate=True)

    state = it.comes_to_its_end()

    assert (state.status, it.world.bodies) == (Status.CANCELLED, ["quick", "blocks"])
    assert [step.status for step in state.steps] == ["done", "done", "failed"]


@pytest.mark.parametrize("compensate", [False, True], ids=["cancelled", "to be undone"])
def test_a_call_that_is_about_to_begin_when_the_run_is_ended_does_not_begin(
    compensate: bool,  # noqa: FBT001  # a case
    store: RunStore,
    open_store: Callable[[], RunStore],
) -> None:
    world, elsewhere = World(is_slow=False), open_store()

    def end_it(notice: Notice) -> None:
        if notice.kind == "completed" and notice.idx == 0:
            elsewhere.cancel(RUN_ID, by="ann", compensate=compensate)

    runner = Runner(store, Model("blocks"), deps=world, at_once=1, on_event=end_it)

    state = runner.run(Desk, run_id=RUN_ID, goal="answer")

    assert (state.status, world.bodies) == (Status.CANCELLED, ["quick"])
    assert [step.status for step in state.steps] == ["done", "failed"]


def test_what_a_person_says_instead_comes_after_the_answers_to_both_calls(
    store: RunStore, open_store: Callable[[], RunStore]
) -> None:
    world, elsewhere = World(is_slow=False), open_store()
    world.on_slow = lambda: elsewhere.steer(RUN_ID, "never mind, do X", by="ann")

    state = Runner(store, Other("blocks"), deps=world, at_once=1).run(Desk, run_id=RUN_ID, goal="answer")

    assert (state.status, state.answer) == (Status.DONE, ["never mind, do X"])
    assert world.bodies == ["quick", "blocks", "quick"]
    assert [message["role"] for message in messages_of(state)] == [
        *("user", "assistant", "tool", "tool"),
        *("user", "assistant", "tool"),
    ]


def work_until_interrupted(folder: Path) -> None:
    store = RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock())
    Runner(store, Model("sleeps"), deps=World(), at_once=1).run(Desk, run_id=RUN_ID, goal="answer")


if __name__ == "__main__":
    work_until_interrupted(Path(sys.argv[1]))
