"""Finished effects are undone backwards, each as a durable step with a key of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Fail,
    Finish,
    NotApplied,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    WaitFor,
    Woken,
    tool,
)
from agent_es.errors import BadTool, IllegalEvent
from agent_es.testing import Crash, CrashingRunner, CrashPoint

Play = Callable[..., RunState]


class Trip(AgentRun):
    """Books a flight and a hotel, each with a way back."""

    @tool(effect="idempotent", compensate="cancel")
    def book(self, ctx: ToolContext[list[Any]], what: str) -> str:
        ctx.deps.append(("book", what, ctx.idempotency_key))
        return f"{what}-1"

    @tool(effect="idempotent")
    def cancel(self, ctx: ToolContext[list[Any]], result: str) -> str:
        if ctx.deps and ctx.deps[0] == "closed":
            raise ctx.deps[1]
        ctx.deps.append(("cancel", result, ctx.idempotency_key))
        return "cancelled"

    @tool(effect="read")
    def look(self) -> str:
        return "nice"


SCRIPT = [
    CallTool("book", {"what": "flight"}),
    CallTool("look"),
    CallTool("book", {"what": "hotel"}),
    Finish("booked"),
]


def test_finished_effects_are_undone_backwards(play: Play, store: RunStore) -> None:
    world: list[Any] = []
    play(Trip, SCRIPT, world)

    state = Runner(store, deps=world, agents=[Trip]).compensate("run-1", by="ann")

    assert [deed[:2] for deed in world] == [
        ("book", "flight"),
        ("book", "hotel"),
        ("cancel", "hotel-1"),
        ("cancel", "flight-1"),
    ]
    assert len({key for *_, key in world}) == 4
    assert [(step.tool, step.undoes) for step in state.steps[3:]] == [("cancel", 2), ("cancel", 0)]
    assert (state.status, state.failure) == (Status.CANCELLED, "compensated: its finished effects were undone")


def test_a_run_that_failed_can_be_undone_too(play: Play, store: RunStore) -> None:
    world: list[Any] = []
    play(Trip, [SCRIPT[0], Fail("no hotel")], world)

    state = Runner(store, deps=world, agents=[Trip]).compensate("run-1")

    assert state.status is Status.CANCELLED
    assert [deed[:2] for deed in world] == [("book", "flight"), ("cancel", "flight-1")]


def test_a_crash_anywhere_in_the_undoing_undoes_each_effect_once(play: Play, store: RunStore) -> None:
    crashes = 0
    for n in range(1, 30):
        for side in ("before", "after"):
            run_id, world = f"{n}-{side}", list[Any]()
            play(Trip, SCRIPT, world, run_id=run_id)
            dying = CrashingRunner(store, deps=world, agents=[Trip], at=CrashPoint(n, side))
            try:
                dying.compensate(run_id)
            except Crash:
                crashes += 1
                again = Runner(store, deps=world, agents=[Trip])
                state = again.compensate(run_id)
                assert state.status is Status.CANCELLED
            undone = {(what, key) for deed, what, key in world if deed == "cancel"}
            assert sorted(what for what, _ in undone) == ["flight-1", "hotel-1"]
    assert crashes > 10


def test_an_effect_that_cannot_be_undone_parks_the_run(play: Play, store: RunStore) -> None:
    world: list[Any] = []
    play(Trip, SCRIPT, world)
    state = Runner(store, deps=["closed", NotApplied("too late")], agents=[Trip]).compensate("run-1")

    assert (state.status, state.waiting_for) == (Status.WAITING, "person")
    assert "could not undo step 2" in (state.parked or "")


def test_nothing_is_undone_while_steps_are_open(play: Play, store: RunStore, tmp_path: Path) -> None:
    store.start(Trip, run_id="run-1", goal="trip")
    with pytest.raises(Crash):
        CrashingRunner(store, deps=[], at=CrashPoint(3, "before"), decider=_Once(), agents=[Trip]).resume("run-1")

    with pytest.raises(IllegalEvent, match="while steps are open"):
        Runner(store, deps=[], agents=[Trip]).compensate("run-1")


class _Once:
    def decide(self, run: RunState, tools: Any, /) -> CallTool:
        return CallTool("book", {"what": "flight"})


def test_a_way_back_that_does_not_exist_is_an_error_before_anything_runs(play: Play) -> None:
    class NoWayBack(AgentRun):
        @tool(effect="idempotent", compensate="undo")
        def book(self, what: str) -> str:
            return what

    with pytest.raises(BadTool, match="there is no tool 'undo' to undo it"):
        play(NoWayBack, SCRIPT)


class Hold(AgentRun):
    """Holds a seat, and waits for its confirmation in the same step."""

    @tool(effect="idempotent", compensate="let_go")
    def hold(self, ctx: ToolContext[list[Any]], seat: str) -> WaitFor:
        ctx.deps.append(("hold", seat))
        return ctx.wait_for("confirmed")

    @tool(effect="idempotent")
    def let_go(self, ctx: ToolContext[list[Any]], seat: str) -> None:
        ctx.deps.append(("let go", seat))


HOLDS = [[CallTool("hold", {"seat": "4A"}), WaitFor("never")], Finish("held")]


def test_a_step_that_waits_for_what_its_body_asked_is_done_in_a_run_that_is_cancelled(
    play: Play, store: RunStore
) -> None:
    play(Hold, HOLDS, [])

    state = store.cancel("run-1", by="ann")

    held, asked = state.steps
    assert (held.status, held.woken) == (
        "done",
        Woken("cancelled", "confirmed"),
    )  # it was called, and nobody says else
    assert (asked.status, asked.error and asked.error["applied"]) == ("failed", False)


def test_what_a_body_did_before_it_waited_is_undone(play: Play, store: RunStore) -> None:
    world: list[Any] = []
    play(Hold, HOLDS, world)

    store.cancel("run-1", by="ann", compensate=True)
    state = play(Hold, HOLDS, world)

    assert state.status is Status.CANCELLED
    assert world == [("hold", "4A"), ("let go", "4A")]
