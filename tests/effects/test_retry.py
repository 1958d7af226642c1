"""What a failure costs: attempts counted over crashes, waits that are rows, limits on time."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Effect,
    Finish,
    Retry,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    Status,
    ToolContext,
    tool,
)
from agent_es.errors import BadTool

Play = Callable[..., RunState]


class Flaky(AgentRun):
    """Reads what fails a few times."""

    @tool(effect=Effect.READ, retry=Retry(max_attempts=4, initial=1, factor=3, max_delay=5, jitter=0.5))
    def look(self, ctx: ToolContext[list[Exception]]) -> int:
        if ctx.deps:
            raise ctx.deps.pop(0)
        return ctx.attempt


SCRIPT = [CallTool("look"), Finish("done")]


def test_waits_grow_and_their_times_are_recorded(play: Play, store: RunStore, clock: Any) -> None:
    state = play(Flaky, SCRIPT, [OSError()] * 3, draw=lambda: 1.0, max_wait=10)

    assert (state.status, state.steps[0].result) == (Status.DONE, 4)
    assert clock.slept == [1.5, 4.5, 7.5]
    failures = [entry for entry in store.journal("run-1") if entry.type == "tool_failed"]
    waits = [entry.event.retry_at - entry.at for entry in failures]  # type: ignore[union-attr]
    assert waits == [timedelta(seconds=seconds) for seconds in (1.5, 4.5, 7.5)]


def test_a_wait_longer_than_the_runner_has_patience_for_is_a_row(play: Play, store: RunStore, clock: Any) -> None:
    state = play(Flaky, SCRIPT, [OSError()] * 3, max_wait=2)

    assert (state.status, state.waiting_for, state.steps[0].status) == (Status.WAITING, "retry", "retrying")
    (record,) = store.runs(waiting_for="retry")
    assert record.wake_at == state.wake_at == clock.now + timedelta(seconds=3)
    assert clock.slept == [1]


def test_a_waiting_run_goes_on_when_it_is_due_and_not_before(play: Play, clock: Any) -> None:
    failing: list[Exception] = [OSError(), OSError()]
    play(Flaky, SCRIPT, failing, max_wait=2)

    early = play(Flaky, SCRIPT, failing, max_wait=1)
    clock.now += timedelta(seconds=3)
    state = play(Flaky, SCRIPT, failing, max_wait=0)

    assert early.waiting_for == "retry"
    assert (state.status, state.steps[0].attempt) == (Status.DONE, 3)


def test_attempts_are_used_up_over_all_of_them(play: Play) -> None:
    state = play(Flaky, SCRIPT, [OSError(str(n)) for n in range(9)], max_wait=60)

    assert (state.steps[0].status, state.steps[0].attempt) == ("failed", 4)
    assert state.steps[0].error == {"applied": False, "message": "3", "type": "OSError"}


def test_what_is_not_retryable_fails_at_once(play: Play) -> None:
    class Picky(AgentRun):
        @tool(effect=Effect.READ, retry=Retry(non_retryable=(ValueError,)))
        def look(self, ctx: ToolContext[list[Exception]]) -> int:
            raise ctx.deps.pop(0)

    state = play(Picky, SCRIPT, [OSError(), ValueError("no use")])

    assert (state.steps[0].attempt, (state.steps[0].error or {})["type"]) == (2, "ValueError")


def test_an_agent_says_how_tools_are_retried_that_do_not_say_so_themselves(play: Play) -> None:
    class Patient(AgentRun):
        retry = Retry(max_attempts=2, initial=0)

        @tool(effect=Effect.READ)
        def look(self, ctx: ToolContext[list[Exception]]) -> int:
            if ctx.deps:
                raise ctx.deps.pop(0)
            return ctx.attempt

    assert play(Patient, SCRIPT, [OSError()]).steps[0].result == 2


def test_one_step_that_waits_does_not_hold_up_its_siblings(play: Play, store: RunStore) -> None:
    class Both(Flaky):
        @tool(effect=Effect.READ)
        def other(self) -> str:
            return "there"

    state = play(Both, [[CallTool("look"), CallTool("other")], Finish("done")], [OSError()], max_wait=0)

    assert [step.status for step in state.steps] == ["retrying", "done"]
    assert state.waiting_for == "retry"


def test_steps_wait_for_their_own_times(play: Play, clock: Any) -> None:
    class Two(AgentRun):
        @tool(effect=Effect.READ, retry=Retry(initial=1, jitter=0))
        def soon(self, ctx: ToolContext[dict[str, int]]) -> str:
            return self.nth(ctx, "soon")

        @tool(effect=Effect.READ, retry=Retry(initial=4, jitter=0))
        def later(self, ctx: ToolContext[dict[str, int]]) -> str:
            return self.nth(ctx, "later")

        def nth(self, ctx: ToolContext[dict[str, int]], name: str) -> str:
            ctx.deps[name] = ctx.deps.get(name, 0) + 1
            if ctx.deps[name] == 1:
                raise OSError(name)
            return name

    state = play(Two, [[CallTool("later"), CallTool("soon")], Finish("done")], {})

    assert [step.result for step in state.steps] == ["later", "soon"]
    assert clock.slept == [1, 3]


class Odd(Exception):
    """It cannot be printed, or it is very long."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "message"), [(Odd(), "(its message cannot be read)"), (ValueError("x" * 3_000_000), "x" * 2_000)]
)
def test_an_odd_exception_is_recorded_by_type_and_a_bounded_message(
    error: Exception, message: str, play: Play, store: RunStore
) -> None:
    state = play(AgentWith(error), SCRIPT, max_wait=60)

    recorded = state.steps[0].error or {}
    assert recorded["type"] == type(error).__qualname__
    assert recorded["message"].startswith(message)
    assert len(recorded["message"]) < 3_000


def AgentWith(error: Exception) -> type[AgentRun]:  # noqa: N802  # it makes a class
    class Raising(AgentRun):
        @tool(effect=Effect.READ)
        def look(self) -> int:
            raise error

    return Raising


def test_an_asynchronous_tool_is_cancelled_within_its_limit(tmp_path: Any) -> None:
    ended: list[str] = []

    class Slow(AgentRun):
        @tool(effect=Effect.READ, retry=Retry(max_attempts=2, initial=0, timeout=0.1))
        async def look(self) -> str:
            try:
                await asyncio.sleep(30)
            finally:
                ended.append("ended")
            return "never"

    store = RunStore(f"sqlite:///{tmp_path / 'slow.db'}")
    runner = Runner(store, ScriptedDecider(SCRIPT))
    for run in (
        lambda: runner.run(Slow, run_id="sync", goal="x"),
        lambda: asyncio.run(runner.arun(Slow, run_id="async", goal="x")),
    ):
        started = time.monotonic()
        state = run()

        assert time.monotonic() - started < 1.2
        assert (state.steps[0].attempt, (state.steps[0].error or {})["type"]) == (2, "TimeoutError")
    assert ended == ["ended"] * 4


@pytest.mark.parametrize(
    ("effect", "status"), [("read", "failed"), ("idempotent", "in_doubt"), ("at_most_once", "in_doubt")]
)
@pytest.mark.parametrize("way", ["run", "arun"])
def test_a_blocking_tool_never_runs_beside_its_own_second_attempt(
    effect: Any,
    status: str,
    way: str,
    tmp_path: Any,
) -> None:
    go_on = threading.Event()
    started: list[int] = []

    class Slow(AgentRun):
        @tool(effect=effect, retry=Retry(max_attempts=3, initial=0, timeout=0.1))
        def look(self, ctx: ToolContext[None]) -> str:
            started.append(ctx.attempt)
            go_on.wait(10)
            return "late"

    store = RunStore(f"sqlite:///{tmp_path / 'slow.db'}")
    runner = Runner(store, ScriptedDecider(SCRIPT))
    if way == "arun":
        state = asyncio.run(runner.arun(Slow, run_id="run-1", goal="x"))
    else:
        state = runner.run(Slow, run_id="run-1", goal="x")

    assert (state.steps[0].status, started) == (status, [1])
    assert "cannot be stopped" in str(state.steps[0].value_json)
    go_on.set()
    if status == "in_doubt":
        until = time.monotonic() + 5
        while store.load("run-1").doubts and time.monotonic() < until:
            time.sleep(0.01)
        assert store.load("run-1").steps[0].result == "late"
        assert runner.run(Slow, run_id="run-1", goal="x").status is Status.DONE


@pytest.mark.parametrize(
    "wrong", [{"max_attempts": 0}, {"initial": -1}, {"factor": 0.5}, {"jitter": -0.1}, {"timeout": 0}]
)
def test_a_retry_that_cannot_work_is_refused(wrong: Any) -> None:
    with pytest.raises(BadTool):
        Retry(**wrong)
