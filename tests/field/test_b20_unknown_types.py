"""B20: a result of a type that no codec knows is one recorded failure, and its effect is not repeated for it."""

import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

import pytest
from pydantic import BaseModel

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.testing import Crash, CrashingRunner, CrashPoint

RUN_ID = "run-1"
AFTER_THE_RECORD = CrashPoint(5, "after")  # decide, append, start, next done, append


class Size(Enum):
    SMALL = 1


@dataclass(frozen=True)
class Parcel:
    path: PurePosixPath
    took: timedelta


class Order(BaseModel):
    parcels: list[Parcel]


class Line:
    """An object that holds a socket."""

    def __init__(self) -> None:
        self.socket = socket.socket


PARCEL = Parcel(PurePosixPath("/a"), timedelta(seconds=1.5))
KNOWN: dict[str, tuple[Any, Any]] = {
    "set": (set[int], {1, 2}),
    "bytes": (bytes, b"\x00\xff"),
    "timedelta": (timedelta, timedelta(seconds=1.5)),
    "path": (PurePosixPath, PurePosixPath("/a")),
    "enum": (Size, Size.SMALL),
    "dataclass": (Parcel, PARCEL),
    "models": (list[Order], [Order(parcels=[PARCEL])]),
}
UNKNOWN: dict[str, tuple[Callable[[], Any], str]] = {
    "set": (lambda: {1, 2}, "set"),
    "bytes": (lambda: b"\x00\xff", "bytes"),
    "timedelta": (lambda: timedelta(seconds=1.5), "timedelta"),
    "path": (lambda: PurePosixPath("/a"), "PurePosixPath"),
    "enum": (lambda: Size.SMALL, "Size"),
    "dataclass": (lambda: PARCEL, "Parcel"),
    "model in a list": (lambda: [Order(parcels=[])], "Order"),
    "generator": (lambda: (n for n in range(3)), "generator"),
    "object with a socket": (Line, "Line"),
    "class": (lambda: Line, "type"),
}


def giving(annotation: Any, make: Callable[[], Any]) -> type[AgentRun]:
    """Return an agent whose tool has an effect, and gives that."""

    def give(self: AgentRun, ctx: ToolContext[list[str | None]]) -> Any:
        ctx.deps.append(ctx.idempotency_key)
        return make()

    give.__annotations__["return"] = annotation
    return type("Giving", (AgentRun,), {"give": tool(effect=Effect.IDEMPOTENT)(give)})


class Model:
    """Calls the tool, and keeps what it is shown then."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        if not run.turns:
            return CallTool("give")
        self.shown.append(json.dumps([run.steps[0].result, run.steps[0].error], sort_keys=True))
        return Finish("done")


def live_twice(store: RunStore, agent: type[AgentRun], model: Model, effects: list[str | None]) -> RunState:
    """Die when the outcome is recorded, and go on in another life."""
    with pytest.raises(Crash):
        CrashingRunner(store, model, deps=effects, at=AFTER_THE_RECORD).run(agent, run_id=RUN_ID, goal="give")
    return Runner(store, model, deps=effects).run(agent, run_id=RUN_ID)


@pytest.mark.parametrize(("annotation", "value"), KNOWN.values(), ids=KNOWN.keys())
def test_a_type_that_the_annotation_names_comes_back_equal_and_of_that_type(
    annotation: Any, value: Any, store: RunStore
) -> None:
    agent, effects = giving(annotation, lambda: value), []  # type: ignore[var-annotated]

    state = live_twice(store, agent, Model(), effects)

    back = agent.agent_tools["give"].result_of(state.steps[0])
    assert (back, type(back)) == (value, type(value))
    assert len(effects) == 1


@pytest.mark.parametrize(("make", "named"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_a_type_that_nothing_names_is_one_failure_that_says_so_and_the_effect_happened_once(
    make: Callable[[], Any], named: str, store: RunStore
) -> None:
    model, effects = Model(), []  # type: ignore[var-annotated]

    state = live_twice(store, giving(Any, make), model, effects)

    assert len(effects) == 1
    assert (state.status, state.steps[0].status, state.steps[0].attempt) == (Status.DONE, "failed", 1)
    error = state.steps[0].error or {}
    assert (error["type"], error["applied"]) == ("NotRecordable", True)
    assert "give ran and its effect has happened" in error["message"]
    assert f"{named} is not JSON" in error["message"]
    assert json.loads(model.shown[0]) == [None, error]
    assert [entry.type for entry in store.journal(RUN_ID)].count("tool_failed") == 1
