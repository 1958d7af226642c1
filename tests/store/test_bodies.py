"""Bodies that end in what is no ``Exception``, or cannot begin: no worker waits for ever, and no doubt is made up.

Each case is a program of its own: what hangs can be killed, and what is left behind is left behind there.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from agent_es import RunStore

PROGRAM = """
import asyncio, sys
from agent_es import AgentRun, CallTool, Finish, RunStore, Runner, ScriptedDecider, tool

class Dies(AgentRun):
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
