"""B56: a step whose tool is gone or changed is parked by name, or found under an alias; no other body runs for it.

Run as a program, this file is the worker of before the deploy, which dies in the body of its pending call.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent_es import AgentRun, CallTool, Finish, Runner, RunStore, ScriptedDecider, Status, ToolContext, tool
from agent_es.testing import CrashingRunner, CrashPoint, FrozenClock, sigkill

RUN_ID = "run-1"
IN_THE_BODY = CrashPoint(4, "before")  # decide, append, start, next done
PENDING = {"lookup": CallTool("lookup_v1", {"q": "x"}), "send": CallTool("send", {"to": "a@x"})}


@dataclass
class World:
    """Every body that ran, with what it was called with."""

    bodies: list[str] = field(default_factory=list)


class Before(AgentRun):
    """Before the deploy."""

    agent_name = "Desk"

    @tool(effect="idempotent")
    def lookup_v1(self, ctx: ToolContext[World], q: str) -> str:
        ctx.deps.bodies.append(f"lookup_v1 {q}")
        return f"first {q}"

    @tool(effect="idempotent")
    def send(self, ctx: ToolContext[World], to: str) -> str:
        ctx.deps.bodies.append(f"send {to}")
        return "sent"


class After(AgentRun):
    """After it: the tools stand in another order, one is gone, one is new, one has another parameter."""

    agent_name = "Desk"

    @tool(effect="idempotent")
    def send(self, ctx: ToolContext[World], to: str, subject: str) -> str:
        ctx.deps.bodies.append(f"send {to} {subject}")
        return "sent"

    @tool(effect="idempotent")
    def lookup_v2(self, ctx: ToolContext[World], q: str) -> str:
        ctx.deps.bodies.append(f"lookup_v2 {q}")
        return f"second {q}"


class Aliased(AgentRun):
    """After another one: the new tool says which name it had before."""

    agent_name = "Desk"

    @tool(effect="idempotent")
    def send(self, ctx: ToolContext[World], to: str, subject: str = "none") -> str:
        ctx.deps.bodies.append(f"send {to} {subject}")
        return "sent"

    @tool(effect="idempotent", aliases=["lookup_v1"])
    def lookup_v2(self, ctx: ToolContext[World], q: str) -> str:
        ctx.deps.bodies.append(f"lookup_v2 {q}")
        return f"second {q}"


def script(pending: str) -> ScriptedDecider:
    return ScriptedDecider([PENDING[pending], Finish("done")])


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=PENDING)
def pending(request: pytest.FixtureRequest, run_worker: Callable[..., int]) -> str:
    """The call that was in flight when the worker died."""
    assert run_worker(request.param) < 0
    which: str = request.param
    return which


def test_a_pending_call_that_cannot_be_made_any_more_parks_its_run_and_no_body_runs(
    pending: str, store: RunStore, world: World
) -> None:
    says = {
        "lookup": "run run-1 step 0: this program has no tool 'lookup_v1'",
        "send": "run run-1 step 0: its arguments no longer fit: send: subject: Field required",
    }
    runner = Runner(store, script(pending), deps=world)

    parked, again = (runner.run(After, run_id=RUN_ID) for _ in range(2))

    assert (parked.status, parked.waiting_for) == (Status.WAITING, "person")
    assert (parked.parked or "").startswith(says[pending])
    assert (parked.steps[0].attempt, again.version, world.bodies) == (1, parked.version, [])


def test_beside_a_parked_run_all_the_other_tools_are_there_under_their_names(
    pending: str, store: RunStore, world: World
) -> None:
    Runner(store, script(pending), deps=world).run(After, run_id=RUN_ID)
    calls = [CallTool("lookup_v2", {"q": "y"}), CallTool("send", {"to": "b@x", "subject": "hello"})]

    state = Runner(store, ScriptedDecider([calls, Finish("done")]), deps=world, at_once=1).run(
        After, run_id="run-2", goal="work"
    )

    assert state.status is Status.DONE
    assert world.bodies == ["lookup_v2 y", "send b@x hello"]


def test_a_pending_call_is_made_where_its_tool_says_that_it_had_that_name_or_takes_what_was_given(
    pending: str, store: RunStore, world: World
) -> None:
    bodies = {"lookup": "lookup_v2 x", "send": "send a@x none"}

    state = Runner(store, script(pending), deps=world).run(Aliased, run_id=RUN_ID)

    assert (state.status, state.steps[0].attempt, world.bodies) == (Status.DONE, 2, [bodies[pending]])
    assert state.steps[0].key == f"run-1:0:{PENDING[pending].tool}"


def test_a_parked_run_that_is_sent_back_goes_on_after_the_deploy_is_rolled_back(
    pending: str, store: RunStore, world: World
) -> None:
    Runner(store, script(pending), deps=world).run(After, run_id=RUN_ID)

    store.requeue(RUN_ID, by="ann")
    state = Runner(store, script(pending), deps=world).run(Before, run_id=RUN_ID)

    assert (state.status, state.steps[0].attempt, len(world.bodies)) == (Status.DONE, 2, 1)


def die_in_the_body(folder: Path, pending: str) -> None:
    CrashingRunner(
        RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock()),
        script(pending),
        deps=World(),
        at=IN_THE_BODY,
        die=sigkill,
    ).run(Before, run_id=RUN_ID, goal="work")


if __name__ == "__main__":
    die_in_the_body(Path(sys.argv[1]), sys.argv[2])
