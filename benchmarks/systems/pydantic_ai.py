"""pydantic-ai on DBOS: an agent whose model is a function, and whose tool is a step of DBOS."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from benchmarks.systems.dbos import abruptly, launch
from benchmarks.systems.process import (
    RUN_ID,
    STEPS,
    STUCK,
    WARM,
    WARM_STEPS,
    Job,
    Span,
    Work,
    answer,
    args_of,
    die,
    result_of,
)

NOTE = (
    "A whole agent loop of its own on top of DBOS: it builds and checks messages, and hands the whole history to the "
    "model, here a function that answers at once, in each request.  The request and the tool are a step of DBOS "
    "each.  Otherwise as dbos."
)
USAGE = RequestUsage(input_tokens=1_234, output_tokens=56)
"""Told by the model: else its stand-in counts the tokens of the whole history in each request."""


class Goal:
    """How far agents go in this process, and what is done there."""

    count = 0
    then: Callable[[], object] = staticmethod(lambda: None)


def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Return the decision of a step, or the answer."""
    idx = (len(messages) - 1) // 2
    if idx < Goal.count:
        return ModelResponse([ToolCallPart("look", {"idx": idx, **args_of(idx)}, f"call-{idx}")], usage=USAGE)
    Goal.then()
    return ModelResponse([TextPart("seen")], usage=USAGE)


@DBOS.step(name="look_up")
def look(idx: int, page: int, query: str, why: str) -> dict[str, str]:  # noqa: ARG001  # a model gives them
    """Return the result of a step."""
    return result_of(idx)


agent = Agent(FunctionModel(model), name="bench", capabilities=[DBOSDurability()])
agent.tool_plain(look, name="look")


@DBOS.workflow()
async def looking() -> str:
    """Let the agent run to its end."""
    return (await agent.run("Look", usage_limits=UsageLimits(request_limit=None))).output


async def run(workflow_id: str, count: int) -> None:
    """Run a workflow to its end."""
    Goal.count = count
    with SetWorkflowID(workflow_id):
        assert await looking() == "seen"


async def steps(job: Job) -> Span:
    """Run a workflow to its end."""
    launch(job)
    await run(WARM, WARM_STEPS)
    began = monotonic()
    await run(RUN_ID, job.count)
    return Span(began, monotonic())


async def fill(job: Job) -> Span:
    """Run a workflow until its process dies."""
    launch(job)
    began = monotonic()
    Goal.then = lambda: die(began)
    await run(RUN_ID, job.count)
    raise AssertionError("it outlived itself")


async def resume(job: Job) -> Span:
    """Launch DBOS, and wait until the workflow that it recovers has its next step."""
    is_there = threading.Event()
    ended = 0.0

    def note() -> None:
        nonlocal ended
        ended = monotonic()
        is_there.set()

    Goal.count, Goal.then = job.count + 1, note
    began = monotonic()
    launch(job)
    assert await asyncio.to_thread(is_there.wait, STUCK), "nothing was recovered"
    return Span(began, ended)


async def runs(job: Job) -> Span:
    """Run this process's part of the workflows."""
    launch(job)
    await run(f"{WARM}-{job.part}", WARM_STEPS)
    job.await_start()
    began = monotonic()
    for n in job.mine():
        await run(f"run-{n}", STEPS)
    return Span(began, monotonic())


def awaited(work: Callable[[Job], Coroutine[Any, Any, Span]]) -> Work:
    """Return a work that needs no loop around it."""
    return abruptly(lambda job: asyncio.run(work(job)))


WORKS: dict[str, Work] = {
    "steps": awaited(steps),
    "fill": awaited(fill),
    "resume": awaited(resume),
    "runs": awaited(runs),
}

if __name__ == "__main__":
    answer(NOTE, WORKS)
