"""B50: a call that fails takes none of its siblings with it: each result is recorded as it comes, and shown.

Run as a program, this file is the worker that is killed when two of three calls have ended.
"""

import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Finish,
    NotApplied,
    Notice,
    Retry,
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
ERRORS: dict[str, type[BaseException]] = {
    "refused": NotApplied,
    "raises": ValueError,
    "cancelled": asyncio.CancelledError,
}


@dataclass
class World:
    """Counts bodies in a file, which outlives the worker, and lets them end one after the other."""

    file: Path
    error: str = "refused"

    def __post_init__(self) -> None:
        self.c1_is_recorded = threading.Event()
        self.c2_is_recorded = threading.Event()
        self.file.touch()

    def count(self, name: str) -> None:
        with self.file.open("a") as lines:
            lines.write(f"{name}\n")

    @property
    def bodies(self) -> Counter[str]:
        return Counter(self.file.read_text().split())


class Orders(AgentRun):
    """Three effects: one is quick, one fails, one is slow."""

    @tool(effect="idempotent")
    def quick(self, ctx: ToolContext[World]) -> str:
        ctx.deps.count("c1")
        return "quick"

    @tool(effect="idempotent", retry=Retry(max_attempts=2, initial=0))
    def fails(self, ctx: ToolContext[World]) -> str:
        """Fail when the result of the quick one is recorded."""
        ctx.deps.count("c2")
        assert ctx.deps.c1_is_recorded.wait(timeout=5)
        raise ERRORS[ctx.deps.error]("no")

    @tool(effect="idempotent")
    def slow(self, ctx: ToolContext[World]) -> str:
        """End when the failure is recorded."""
        ctx.deps.count("c3")
        assert ctx.deps.c2_is_recorded.wait(timeout=5)
        return "slow"


class Model:
    """Makes the three calls in one turn, and keeps what it is shown of each."""

    def __init__(self) -> None:
        self.shown: list[tuple[str | None, str]] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        if not run.turns:
            return [CallTool(name, call_id=call) for name, call in (("quick", "c1"), ("fails", "c2"), ("slow", "c3"))]
        self.shown = [(step.call_id, step.result or (step.error or {}).get("type")) for step in run.steps]
        return Finish("ordered")


def going_on(world: World) -> Callable[[Notice], None]:
    """Let the next body end when the last one's outcome is recorded."""

    def on_event(notice: Notice) -> None:
        if notice.kind == "completed" and notice.tool == "quick":
            world.c1_is_recorded.set()
        if notice.kind in ("failed", "in_doubt") and notice.tool == "fails":
            world.c2_is_recorded.set()

    return on_event


@pytest.fixture(params=["blocking", "awaiting"])
def drive(request: pytest.FixtureRequest) -> Callable[[Runner], RunState]:
    """Drives the run with the one loop, and with the other."""
    if request.param == "blocking":
        return lambda runner: runner.run(Orders, run_id=RUN_ID, goal="order")
    return lambda runner: asyncio.run(runner.arun(Orders, run_id=RUN_ID, goal="order"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "bodies.txt")


def test_a_failure_is_one_of_three_answers_and_each_was_recorded_as_it_came(
    drive: Callable[[Runner], RunState], world: World, store: RunStore
) -> None:
    model = Model()

    state = drive(Runner(store, model, deps=world, on_event=going_on(world)))

    assert state.status is Status.DONE
    assert model.shown == [("c1", "quick"), ("c2", "NotApplied"), ("c3", "slow")]
    assert world.bodies == {"c1": 1, "c2": 1, "c3": 1}
    outcomes = [entry.data["idx"] for entry in store.journal(RUN_ID) if entry.type in ("tool_result", "tool_failed")]
    assert outcomes == [0, 1, 2]


@pytest.mark.parametrize("error", ["raises", "cancelled"])
def test_a_call_that_breaks_off_is_tried_again_by_itself_and_its_siblings_run_once(
    error: str, drive: Callable[[Runner], RunState], world: World, store: RunStore
) -> None:
    world.error = error

    state = drive(Runner(store, Model(), deps=world, on_event=going_on(world)))

    assert [step.status for step in state.steps] == ["done", "in_doubt", "done"]
    assert world.bodies == {"c1": 1, "c2": 2, "c3": 1}
    assert state.waiting_for == "doubt"
    assert ERRORS[error].__name__ in (state.steps[1].doubt or "")


def test_after_a_kill_only_the_call_that_had_not_ended_runs_again(
    run_worker: Callable[..., int], world: World, store: RunStore
) -> None:
    exit_status = run_worker()
    assert exit_status == -signal.SIGKILL
    assert [step.status for step in store.load(RUN_ID).steps] == ["done", "failed", "started"]
    world.c2_is_recorded.set()
    model = Model()

    state = Runner(store, model, deps=world).run(Orders, run_id=RUN_ID)

    assert state.status is Status.DONE
    assert model.shown == [("c1", "quick"), ("c2", "NotApplied"), ("c3", "slow")]
    assert world.bodies == {"c1": 1, "c2": 1, "c3": 2}


def die_when_two_have_ended(folder: Path) -> None:
    def die(notice: Notice) -> None:
        let_go_on(notice)
        if notice.kind == "failed":
            os.kill(os.getpid(), signal.SIGKILL)

    world = World(folder / "bodies.txt")
    world.c2_is_recorded.wait = lambda timeout=None: threading.Event().wait(60)  # type: ignore[method-assign]
    let_go_on = going_on(world)
    store = RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock())
    Runner(store, Model(), deps=world, on_event=die).run(Orders, run_id=RUN_ID, goal="order")


if __name__ == "__main__":
    die_when_two_have_ended(Path(sys.argv[1]))
