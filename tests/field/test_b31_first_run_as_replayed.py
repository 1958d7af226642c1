"""B31: what the first run is shown is what every replay is shown: same types, same order, same bytes.

The worker is crashed at each request, on both sides; whole transcripts of requests are compared.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.testing import Crash, CrashingRunner, CrashPoint, FrozenClock

RUN_ID = "run-1"


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: int


class Name(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"Name({self!s})"


ODD: dict[str, Any] = {
    "tuple": ("a", 1),
    "nested tuple": {"pair": [("a", 1)]},
    "namedtuple": Point(1, 2),
    "unsorted dict": {"b": 1, "a": 2},
    "OrderedDict": OrderedDict(b=1, a=2),
    "str subclass": Name("ann"),
    "str-Enum": Colour.RED,
    "int-Enum": Level.HIGH,
    "int-keyed dict": {1: "one"},
}
RECORDED: dict[str, Any] = {
    "tuple": ["a", 1],
    "nested tuple": {"pair": [["a", 1]]},
    "namedtuple": [1, 2],
    "unsorted dict": {"a": 2, "b": 1},
    "OrderedDict": {"a": 2, "b": 1},
    "str subclass": "ann",
    "str-Enum": "red",
    "int-Enum": 3,
}


class Lab(AgentRun):
    """Gives odd values, and keeps what is made of them."""

    @tool(effect=Effect.READ)
    def give(self, ctx: ToolContext[list[str]], which: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
        ctx.deps.append(which)
        return ODD[which]

    @tool(effect=Effect.READ)
    def give_a_pair(self) -> tuple[str, int]:
        return ("a", 1)

    @tool(effect=Effect.READ)
    def give_int_keys(self) -> dict[int, str]:
        return {2: "two", 1: "one"}

    @tool(effect=Effect.IDEMPOTENT, key="{text}")
    def keep(self, text: str) -> int:
        return len(text)


class Model:
    """Builds requests and calls from ``repr``, as careless code does, and keeps every request by its turn."""

    def __init__(self) -> None:
        self.requests: dict[int, set[str]] = {}

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        request = repr([(step.tool, step.args, step.result, step.error) for step in run.steps])
        self.requests.setdefault(run.turns, set()).add(request)
        match run.turns:
            case 0:
                odd = [CallTool("give", {"which": which}) for which in ODD]
                return [*odd, CallTool("give_a_pair"), CallTool("give_int_keys")]
            case 1:
                return [CallTool("keep", {"text": repr(step.result)}) for step in run.steps[:2]]
            case _:
                return Finish(request)


class World:
    """One folder with a store, its model, and the bodies that ran."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.url = f"sqlite:///{folder / 'runs.db'}"
        self.model = Model()
        self.bodies: list[str] = []

    def live(self, at: CrashPoint | None = None) -> tuple[CrashingRunner, RunState]:
        with RunStore(self.url, clock=FrozenClock()) as store:
            worker = CrashingRunner(store, self.model, deps=self.bodies, at=at)
            return worker, worker.run(Lab, run_id=RUN_ID, goal="odd")


@pytest.fixture
def new_world(tmp_path: Path) -> Callable[[str], World]:
    return lambda name: World(tmp_path / name)


def test_what_a_decider_is_shown_on_the_first_run_is_what_the_journal_gives_back(
    new_world: Callable[[str], World],
) -> None:
    world = new_world("calm")

    _, first = world.live()
    _, replayed = world.live()

    shown = {step.args["which"]: step.result for step in first.steps if step.tool == "give" and not step.error}
    assert repr(shown) == repr(RECORDED)
    assert repr([*first.steps]) == repr([*replayed.steps])


def test_an_annotated_result_is_the_annotated_type_on_the_first_run_and_on_replay(
    new_world: Callable[[str], World],
) -> None:
    world = new_world("calm")

    _, first = world.live()
    _, replayed = world.live()

    for state in (first, replayed):
        pair, int_keys = (step for step in state.steps if step.tool in ("give_a_pair", "give_int_keys"))
        assert (pair.result, Lab.give_a_pair.result_of(pair)) == (["a", 1], ("a", 1))
        assert (int_keys.result, Lab.give_int_keys.result_of(int_keys)) == (
            {"1": "one", "2": "two"},
            {1: "one", 2: "two"},
        )


def test_keys_that_are_no_text_are_one_recorded_failure_that_names_the_tool_and_the_type(
    new_world: Callable[[str], World],
) -> None:
    world = new_world("calm")

    _, state = world.live()

    (refused,) = (step for step in state.steps if step.args.get("which") == "int-keyed dict")
    assert refused.status == "failed"
    assert refused.error is not None
    assert refused.error["type"] == "NotRecordable"
    assert "give" in refused.error["message"]
    assert "int" in refused.error["message"]
    assert world.bodies.count("int-keyed dict") == 1


@pytest.mark.crash
def test_every_request_is_byte_equal_with_a_crash_at_any_point_and_with_none(
    new_world: Callable[[str], World],
) -> None:
    calm = new_world("calm")
    worker, expected = calm.live()
    points = [
        point for n in range(1, worker.requests + 1) for point in (CrashPoint(n, "before"), CrashPoint(n, "after"))
    ]

    for point in points:
        world = new_world(f"{point.n} {point.side}")
        with pytest.raises(Crash):
            world.live(point)

        _, state = world.live()

        assert state.status is Status.DONE
        assert world.model.requests == calm.model.requests
        assert state.answer_json == expected.answer_json
        assert [step.key for step in state.steps] == [step.key for step in expected.steps]

    assert all(len(requests) == 1 for requests in calm.model.requests.values())
    assert len(points) > 50
