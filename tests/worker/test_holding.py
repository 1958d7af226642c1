"""A runner and the lease of its run: taken, given back, and asked about before anything new begins."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text

from agent_es import (
    AgentRun,
    CallTool,
    Effect,
    Finish,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    ToolContext,
    tool,
)
from agent_es.errors import LeaseLost, RunUnreadable
from agent_es.owners import Lease, Owner

Sql = Callable[..., list[tuple[Any, ...]]]
Drive = Callable[[Runner, type[AgentRun]], RunState]


class Look(AgentRun):
    """Looks once."""

    decider = ScriptedDecider([CallTool("look"), Finish("seen")])

    @tool(effect=Effect.READ)
    def look(self) -> str:
        return "in stock"


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    with RunStore(url) as store:
        yield store


@pytest.fixture(params=["run", "arun"])
def drive(request: pytest.FixtureRequest) -> Drive:
    """Drives run-1, by either driver."""
    if request.param == "run":
        return lambda runner, agent: runner.run(agent, run_id="run-1")
    return lambda runner, agent: asyncio.run(runner.arun(agent, run_id="run-1"))


def is_free(store: RunStore) -> bool:
    return store.leases.holder("run-1") is None


def test_a_caller_that_is_cancelled_while_it_takes_a_run_gives_it_back(store: RunStore) -> None:
    taking, may_go_on = threading.Event(), threading.Event()

    class Slow(Runner):
        def hold(self, run: AgentRun) -> AgentRun:
            taking.set()
            may_go_on.wait(20)
            return super().hold(run)

    async def main() -> None:
        task = asyncio.ensure_future(Slow(store).arun(Look, run_id="run-1"))
        await asyncio.to_thread(taking.wait, 20)
        task.cancel()
        await asyncio.sleep(0.05)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    store.start(Look, run_id="run-1", goal="look")
    asyncio.run(main())

    assert store.record("run-1").lease_token == 1
    assert is_free(store)
    assert store.load("run-1").version == 1


def test_a_run_that_turns_out_to_be_unreadable_once_it_is_held_is_given_back(
    store: RunStore, sql: Sql, drive: Drive
) -> None:
    class Overtaken(Runner):
        def hold(self, run: AgentRun) -> AgentRun:
            sql(
                "INSERT INTO agent_es_events (originator_id, originator_version, topic, state) "
                "SELECT originator_id, 2, 'agent_es:FromTomorrow', state FROM agent_es_events"
            )  # since it was read
            return super().hold(run)

    store.start(Look, run_id="run-1", goal="look")

    with pytest.raises(RunUnreadable):
        drive(Overtaken(store), Look)

    assert store.record("run-1").lease_token == 1
    assert is_free(store)


class Noting(Runner):
    """Says which lease it has."""

    held: Lease | None = None

    def hold(self, run: AgentRun) -> AgentRun:
        held = super().hold(run)
        self.held = held.lease
        return held


@pytest.mark.parametrize("next_call", ["book", "look_up"])
def test_a_body_that_stands_behind_one_during_which_the_run_was_taken_over_does_not_begin(
    store: RunStore, drive: Drive, next_call: str
) -> None:
    began: list[str] = []

    class Two(AgentRun):
        at_once = 1
        decider = ScriptedDecider([[CallTool("stand_still"), CallTool(next_call)], Finish("done")])

        @tool(effect=Effect.READ)
        def stand_still(self) -> None:
            store.leases.take("run-1", Owner.here(), 60.0, force=True)
            assert runner.held is not None
            runner.held.lapse()  # as after a long time

        @tool(effect=Effect.TRANSACTIONAL)
        def book(self, ctx: ToolContext[None]) -> None:
            began.append("book")
            ctx.session.execute(text("SELECT 1"))

        @tool(effect=Effect.READ)
        def look_up(self) -> None:
            began.append("look_up")

    runner = Noting(store)
    store.start(Two, run_id="run-1", goal="two")

    with pytest.raises(LeaseLost):
        drive(runner, Two)

    assert began == []
    assert store.record("run-1").lease_token == 2
