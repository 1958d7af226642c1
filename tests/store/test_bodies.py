"""Bodies that end in what is no ``Exception``, or cannot begin: no worker waits for ever, and no doubt is made up.

Each case is a program of its own: what hangs can be killed, and what is left behind is left behind there.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Finish,
    NotApplied,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    Status,
    ToolContext,
    tool,
)
from agent_es.errors import BadAgent

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # what dies here is no store

PROGRAM = """
import asyncio, sys
from agent_es import AgentRun, CallTool, Finish, Retry, RunStore, Runner, ScriptedDecider, tool

class Dies(AgentRun):
    retry = Retry(initial=0.01)  # its waits would be most of the time that it is given

    @tool(effect="idempotent")
    def exits(self) -> None:
        sys.exit(7)

    @tool(effect="idempotent")
    async def cancels(self) -> None:
        raise asyncio.CancelledError

    @tool(effect="idempotent")
    def works(self) -> None:
        pass

runner = Runner(RunStore(sys.argv[1]), ScriptedDecider([[CallTool(name) for name in sys.argv[3:]], Finish(1)]))
if sys.argv[2] == "run":
    runner.run(Dies, run_id="run-7f3a", goal="die")
else:
    asyncio.run(runner.arun(Dies, run_id="run-7f3a", goal="die"))
"""


@pytest.mark.parametrize(
    "arguments", ["run exits works", "arun exits", "run cancels works", "arun cancels", "arun cancels works"]
)
def test_a_body_that_dies_leaves_no_worker_waiting(url: str, arguments: str) -> None:
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM, url, *arguments.split()]

    ended = None
    with suppress(subprocess.TimeoutExpired):
        ended = subprocess.run(program, check=False, timeout=5, capture_output=True)

    assert ended is not None, "it waits for a body that is dead"


IN_A_NOTEBOOK = """
import asyncio, sys
from contextlib import suppress
from agent_es import AgentError, AgentRun, CallTool, Finish, RunStore, Runner, ScriptedDecider, tool

class Working(AgentRun):
    @tool(effect="idempotent")
    async def work(self) -> str:
        return "worked"

async def cell() -> None:
    runner = Runner(RunStore(sys.argv[1]), ScriptedDecider([CallTool("work"), Finish(1)]))
    with suppress(AgentError):
        runner.run(Working, run_id="r", goal="g")

asyncio.run(cell())
"""


def test_an_asynchronous_body_that_could_not_begin_is_not_in_doubt(
    url: str, open_store: Callable[..., RunStore]
) -> None:
    program = [sys.executable, "-W", "ignore", "-c", IN_A_NOTEBOOK, url]

    subprocess.run(program, check=True, timeout=20)

    assert open_store().load("r").doubts == ()


# Bodies that need what the program did not give.


class Needy(AgentRun):
    """Has a tool that depends on a list, and one that may do without it."""

    @tool(effect="idempotent")
    def note(self, ctx: ToolContext[list[int]]) -> int:
        ctx.deps.append(ctx.attempt)
        return len(ctx.deps)

    @tool(effect="idempotent")
    def look(self, ctx: ToolContext[Any]) -> bool:
        return ctx.deps is None


NOTES = ScriptedDecider([CallTool("note"), Finish("noted")])
LOOKS = ScriptedDecider([CallTool("look"), Finish("looked")])
DRIVERS: dict[str, Callable[[Runner], RunState]] = {
    "run": lambda runner: runner.run(Needy, run_id="run-1", goal="note"),
    "arun": lambda runner: asyncio.run(runner.arun(Needy, run_id="run-1", goal="note")),
}


@pytest.mark.parametrize("drive", DRIVERS.values(), ids=DRIVERS.keys())
def test_a_body_that_needs_deps_is_refused_before_its_start_is_marked_and_runs_where_they_are(
    store: RunStore, drive: Callable[[Runner], RunState]
) -> None:
    with pytest.raises(BadAgent, match=r"note needs ctx\.deps, and there are none; pass Runner\(\.\.\., deps="):
        drive(Runner(store, NOTES))
    assert [entry.type for entry in store.journal("run-1")] == ["run_started"]

    state = drive(Runner(store, NOTES, deps=[]))

    assert (state.status, state.steps[0].attempt, state.steps[0].result) == (Status.DONE, 1, 1)


def test_a_step_that_was_started_elsewhere_is_left_as_it_is_where_its_deps_are_missing(store: RunStore) -> None:
    class Dying(list[int]):
        def append(self, _: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Runner(store, NOTES, deps=Dying()).run(Needy, run_id="run-1", goal="note")
    before = store.load("run-1")

    with pytest.raises(BadAgent, match="note needs ctx"):
        Runner(store, NOTES).run(Needy, run_id="run-1")

    assert store.load("run-1") == before
    assert Runner(store, NOTES, deps=[]).run(Needy, run_id="run-1").steps[0].attempt == 2


def test_a_body_that_takes_any_deps_or_none_runs_without(store: RunStore) -> None:
    assert Runner(store, LOOKS).run(Needy, run_id="run-1", goal="look").steps[0].result is True


def test_deps_that_are_empty_are_deps(store: RunStore) -> None:
    assert Runner(store, NOTES, deps=[]).run(Needy, run_id="run-1", goal="note").steps[0].result == 1


# Bodies that go by two names.


class Renamed(AgentRun):
    """Has a tool that had another name before."""

    @tool(effect="at_most_once", key="{order_id}:pay", name="pay_v2", aliases=["pay"])
    def pay(self, ctx: ToolContext[list[str]], order_id: str) -> str:
        ctx.deps.append(order_id)
        return order_id


class Refusing(AgentRun):
    """Has a tool that had another name before, whose calls fail at first."""

    @tool(effect="at_most_once", key="{order_id}:pay", name="pay_v2", aliases=["pay"])
    def pay(self, ctx: ToolContext[list[str | None]], order_id: str) -> str:
        ctx.deps.append(ctx.idempotency_key)
        if len(ctx.deps) < 3:
            raise (TimeoutError if len(ctx.deps) == 1 else NotApplied)("no")
        return order_id


@pytest.mark.parametrize(("first", "second"), [("pay", "pay_v2"), ("pay_v2", "pay"), ("pay", "pay")])
def test_no_key_is_sent_twice_by_whatever_name_its_tool_is_called(store: RunStore, first: str, second: str) -> None:
    sent: list[str | None] = []
    script = [CallTool(first, {"order_id": "A"}), CallTool(second, {"order_id": "A"}), Finish("paid")]
    runner = Runner(store, ScriptedDecider(script), deps=sent)
    runner.run(Refusing, run_id="run-1", goal="pay A")
    store.settle("run-1", 0, "did_not_happen", by="ann")

    state = runner.run(Refusing, run_id="run-1")

    assert [step.status for step in state.steps] == ["failed", "done"]
    assert sent == ["A:pay", "A:pay#2", "A:pay#3"]


@pytest.mark.parametrize(("first", "second"), [("pay", "pay_v2"), ("pay_v2", "pay"), ("pay", "pay")])
def test_an_intent_is_met_once_by_whatever_name_its_tool_is_called(store: RunStore, first: str, second: str) -> None:
    paid: list[str] = []
    script = [CallTool(first, {"order_id": "A"}), CallTool(second, {"order_id": "A"}), Finish("paid")]

    state = Runner(store, ScriptedDecider(script), deps=paid).run(Renamed, run_id="run-1", goal="pay A")

    assert paid == ["A"]
    assert (state.steps[1].error or {})["type"] == "KeyReused"
