"""B27: an enum inside a model inside a list is that enum after a restart too, and for the tool that it goes on to."""

from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Any

import pytest
from pydantic import BaseModel

from agent_es import AgentRun, CallTool, Decision, Finish, Runner, RunState, RunStore, Status, tool
from agent_es.testing import Crash, CrashingRunner, CrashPoint

RUN_ID = "run-1"
AFTER_THE_FIRST_RESULT = CrashPoint(5, "after")  # decide, append, start, next done, append
BEFORE_THE_SECOND_BODY = CrashPoint(9, "before")  # and decide, append, start, next done


class Phase(Enum):
    QUERY = 1
    DONE = 2


class Tag(StrEnum):
    A = "a"


class Artifact(BaseModel):
    phase: Phase
    tags: list[Tag]
    before: Phase | None = None


class Research(AgentRun):
    """Finds artifacts, and judges them by their phase."""

    agent_name = "Research"

    @tool(effect="read")
    def find(self) -> list[Artifact]:
        return [Artifact(phase=Phase.QUERY, tags=[Tag.A], before=Phase.DONE)]

    @tool(effect="idempotent")
    def judge(self, found: list[Artifact]) -> list[Any]:
        return told(found)


class LaterResearch(AgentRun):
    """The next deploy: ``judge`` has one more parameter."""

    agent_name = "Research"

    @tool(effect="read")
    def find(self) -> list[Artifact]:
        raise AssertionError("it was found before")

    @tool(effect="idempotent")
    def judge(self, found: list[Artifact], strictly: bool = False) -> list[Any]:  # noqa: FBT001, FBT002
        return [*told(found), strictly]


def told(found: list[Artifact]) -> list[Any]:
    (artifact,) = found
    return [
        type(artifact) is Artifact,
        artifact.phase is Phase.QUERY,
        artifact.tags[0] is Tag.A,
        artifact.before is Phase.DONE,
    ]


def typed(run: RunState) -> Decision:
    return Research.judge.call(found=Research.find.result_of(run.steps[0]))


def as_shown(run: RunState) -> Decision:
    return CallTool("judge", {"found": run.steps[0].result})


class Model:
    """Finds, hands on what was found, and ends with the judgement."""

    def __init__(self, hand_on: Callable[[RunState], Decision]) -> None:
        self.hand_on = hand_on

    def decide(self, run: RunState, tools: Any, /) -> Decision:
        match run.turns:
            case 0:
                return CallTool("find")
            case 1:
                return self.hand_on(run)
            case _:
                return Finish(run.steps[1].result)


@pytest.mark.parametrize("hand_on", [typed, as_shown])
def test_an_enum_is_itself_for_the_tool_that_it_is_handed_on_to(
    hand_on: Callable[[RunState], Decision], store: RunStore
) -> None:
    state = Runner(store, Model(hand_on)).run(Research, run_id=RUN_ID, goal="judge")

    assert (state.status, state.answer) == (Status.DONE, [True] * 4)


@pytest.mark.parametrize("at", [AFTER_THE_FIRST_RESULT, BEFORE_THE_SECOND_BODY], ids=["result", "body"])
@pytest.mark.parametrize("hand_on", [typed, as_shown])
@pytest.mark.parametrize(("agent", "more"), [(Research, []), (LaterResearch, [False])], ids=["same code", "deployed"])
def test_an_enum_is_itself_after_a_restart_and_a_deploy_too(
    agent: type[AgentRun],
    more: list[bool],
    hand_on: Callable[[RunState], Decision],
    at: CrashPoint,
    open_store: Callable[[], RunStore],
) -> None:
    with pytest.raises(Crash):
        CrashingRunner(open_store(), Model(hand_on), at=at).run(Research, run_id=RUN_ID, goal="judge")

    state = Runner(open_store(), Model(hand_on)).run(agent, run_id=RUN_ID, goal="judge")

    assert (state.status, state.answer) == (Status.DONE, [True, True, True, True, *more])


def test_a_result_is_read_back_with_its_enums_in_another_life(open_store: Callable[[], RunStore]) -> None:
    first = Runner(open_store(), Model(typed)).run(Research, run_id=RUN_ID, goal="judge")
    replayed = open_store().load(RUN_ID)

    results = [Research.find.result_of(state.steps[0]) for state in (first, replayed)]

    assert [told(result) for result in results] == [[True] * 4] * 2
