"""What a person does beside a worker stops no worker: what it was about to do and fits no more, it looks at again.

Each test lets a person act in the moment between what a worker knows and what it appends.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from agent_es import (
    AgentRun,
    Approval,
    CallTool,
    Decision,
    Envelope,
    Finish,
    Happened,
    Retry,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    Worker,
    tool,
)
from agent_es.run import AgentRun as AnyRun
from agent_es.state import Step
from agent_es.testing import MovableClock

RUN_ID = "run-1"


@dataclass
class World:
    """What a person does while a body or a probe is under way."""

    beside: Callable[[], object] = lambda: None


def as_seen(ctx: ToolContext[World]) -> Happened:
    ctx.deps.beside()
    return Happened("seen by the probe")


class Desk(AgentRun):
    """Has a call of each kind that a worker comes back to."""

    @tool(effect="read", retry=Retry(initial=0.01, jitter=0))
    def look(self, ctx: ToolContext[World]) -> str:
        if ctx.attempt == 1:
            ctx.deps.beside()
            raise TimeoutError("not now")
        return "seen"

    @tool(effect="idempotent")
    def wipe(self, ctx: ToolContext[World], table: str) -> str:
        return table

    @tool(effect="probed", probe=as_seen)
    def pay(self, ctx: ToolContext[World]) -> str:
        raise ConnectionError("gone")


class Model:
    """Makes some calls, and ends with what they gave."""

    def __init__(self, *calls: CallTool) -> None:
        self.calls = calls

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        return Finish([step.result for step in run.steps]) if run.turns else [*self.calls]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def open_store(url: str, clock: MovableClock) -> Iterator[Callable[[], RunStore]]:
    with ExitStack() as opened:
        yield lambda: opened.enter_context(RunStore(url, clock=clock))


@pytest.fixture
def store(open_store: Callable[[], RunStore]) -> RunStore:
    return open_store()


@pytest.fixture
def elsewhere(open_store: Callable[[], RunStore]) -> RunStore:
    return open_store()


def test_a_yes_beside_a_call_that_is_to_be_retried_lets_the_approved_one_start_at_once(
    store: RunStore, elsewhere: RunStore, clock: MovableClock
) -> None:
    world = World(lambda: elsewhere.approve(RUN_ID, 1, by="ann"))
    model = Model(CallTool("look"), Desk.wipe.call(table="t"))

    state = Runner(store, model, deps=world, sleep=clock.sleep).run(
        Desk, run_id=RUN_ID, goal="wipe", envelope=Envelope(needs_approval=["wipe"])
    )

    assert (state.status, state.answer) == (Status.DONE, ["seen", "t"])
    assert [step.attempt for step in state.steps] == [2, 1]


def test_a_worker_that_a_yes_comes_beside_loses_no_claim(store: RunStore, elsewhere: RunStore) -> None:
    model = Model(CallTool("look"), Desk.wipe.call(table="t"))
    world = World(lambda: elsewhere.approve(RUN_ID, 1, by="ann"))
    store.start(Desk, run_id=RUN_ID, goal="wipe", envelope=Envelope(needs_approval=["wipe"]))

    tally = Worker(store, agents=[Desk], decider=model, deps=world).run(once=True)

    assert (tally.lost, tally.failed) == (0, 0)
    assert [step.status for step in store.load(RUN_ID).steps] == ["retrying", "queued"]


def test_a_person_who_settles_a_doubt_while_its_probe_is_asked_is_believed(
    store: RunStore, elsewhere: RunStore, clock: MovableClock
) -> None:
    model = Model(CallTool("pay"))
    in_doubt(store, model, clock)
    world = World(lambda: elsewhere.settle(RUN_ID, 0, "happened", by="ann", result="seen by ann"))

    state = Runner(store, model, deps=world, agents=[Desk]).resume(RUN_ID)

    assert (state.status, state.answer) == (Status.DONE, ["seen by ann"])
    settled = [entry.event for entry in store.journal(RUN_ID) if entry.type == "doubt_settled"]
    assert [event.by for event in settled if hasattr(event, "by")] == ["ann"]


def in_doubt(store: RunStore, model: Model, clock: MovableClock) -> None:
    """Leave the payment in doubt: its probe could not tell."""

    class Blind(Desk):
        agent_name = "Desk"

        @tool(effect="probed", probe=lambda: "who knows")
        def pay(self, ctx: ToolContext[World]) -> str:
            raise ConnectionError("gone")

    state = Runner(store, model, deps=World(), sleep=clock.sleep).run(Blind, run_id=RUN_ID, goal="pay")
    assert [step.status for step in state.steps] == ["in_doubt"]


def test_other_arguments_in_the_moment_in_which_the_time_is_over_are_not_denied_for_the_old_ones(
    store: RunStore, elsewhere: RunStore, clock: MovableClock
) -> None:
    model = Model(Desk.wipe.call(table="t"))
    two = Envelope(needs_approval=[Approval(call="wipe", people=2, within=timedelta(minutes=5))])
    Runner(store, model, deps=World(), max_wait=0).run(Desk, run_id=RUN_ID, goal="wipe", envelope=two)
    run = store.aggregate(Desk, RUN_ID)
    run.lease = store.leases.take(RUN_ID, Runner(store).owner, 30)
    run.record_denied(0, "the clock", "nobody answered in time", is_expired=True)  # by a clock that is ahead

    elsewhere.approve(RUN_ID, 0, by="ann", args={"table": "u"}, agent=Desk)
    store.save(run)

    assert run.state == store.load(RUN_ID)
    assert [(step.status, step.approval and step.approval.args) for step in run.state.steps] == [
        ("gated", {"table": "u"})
    ]


def test_a_pause_in_the_moment_in_which_a_call_is_held_to_a_limit_stops_the_run_and_nobody_else(
    store: RunStore, elsewhere: RunStore
) -> None:
    class Hasty(Runner):
        def enter(self, run: AnyRun, step: Step) -> tuple[datetime | None, bool]:
            until = super().enter(run, step)
            elsewhere.pause(RUN_ID, by="ann")
            return until

    store.limit("wipe", per_second=0.001)
    model = Model(Desk.wipe.call(table="t"))
    Runner(store, model, deps=World()).run(Desk, run_id="first", goal="wipe")

    state = Hasty(store, model, deps=World()).run(Desk, run_id=RUN_ID, goal="wipe")

    assert (state.waiting_for, state.paused, [step.status for step in state.steps]) == (
        "person",
        "by ann",
        ["queued"],
    )
