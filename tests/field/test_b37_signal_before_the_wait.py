"""B37: a signal that comes before anybody waits for it is kept: the wait ends with it, and no time-out is needed.

Five hundred interleavings, with a crash in between, are in `tests/crash/test_signals.py`.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Finish,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    WaitFor,
    Woken,
    Worker,
    tool,
)
from agent_es.testing import Crash, CrashingRunner

AN_HOUR = timedelta(hours=1)

OpenStore = Callable[[], RunStore]


class Order(AgentRun):
    """Prepares, then waits for what the run's input names."""

    @tool(effect="idempotent")
    def prepare(self, ctx: ToolContext[list[str]]) -> None:
        ctx.deps.append(ctx.run_id)


class Model:
    """Waits for all that the input names in one turn, and tells what came."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        match run.turns:
            case 0:
                return CallTool("prepare")
            case 1:
                return [WaitFor(name, timeout=AN_HOUR) for name in run.input]
            case _:
                return Finish([step.result["payload"] for step in run.steps[1:]])


@pytest.fixture
def open_store(url: str) -> Iterator[OpenStore]:
    """Opens the store anew at each call, as a process that was restarted does."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(RunStore(url))


def run_it(store: RunStore, run_id: str = "run-1", names: Sequence[str] = ("paid:o1",), **options: Any) -> RunState:
    return Runner(store, Model(), deps=[], max_wait=0, **options).run(
        Order, run_id=run_id, goal="order", input=list(names)
    )


def pay(store: RunStore, order: str = "o1", run_id: str = "run-1") -> None:
    store.signal(run_id, f"paid:{order}", f"payment of {order}", delivery_id=f"evt-{order}")


def test_what_comes_five_seconds_early_is_kept_visible_and_ends_the_wait(open_store: OpenStore) -> None:
    store = open_store()
    store.start(Order, run_id="run-1", goal="order", input=["paid:o1"])
    pay(store)

    (kept,) = open_store().load("run-1").signals
    state = run_it(open_store())

    assert (kept.name, kept.payload, kept.delivery_id) == ("paid:o1", "payment of o1", "evt-o1")
    assert (state.status, state.answer, state.signals) == (Status.DONE, ["payment of o1"], ())
    assert state.steps[1].woken == Woken("signal", "paid:o1", "payment of o1")


def test_what_comes_where_a_worker_died_ends_the_wait(open_store: OpenStore, url: str) -> None:
    at, store = 0, open_store()

    while True:
        at += 1
        run_id, options = f"run-{at}", {"deps": [], "max_wait": 0, "agents": [Order]}
        store.start(Order, run_id=run_id, goal="order", input=["paid:o1"])
        with RunStore(url) as first:
            try:
                CrashingRunner(first, Model(), at=at, **options).resume(run_id)
            except Crash:
                pay(store, run_id=run_id)
            else:
                break
        with RunStore(url) as second:
            state = Runner(second, Model(), **options).resume(run_id)
        assert (state.status, state.answer) == (Status.DONE, ["payment of o1"]), f"it came at place {at}"

    assert at > 15


def test_what_comes_at_the_same_instant_as_the_wait_ends_it(open_store: OpenStore) -> None:
    store, draw, runs = open_store(), random.Random(37), 60  # noqa: S311  # moments, not secrets
    worker = Worker(open_store(), agents=[Order], decider=Model(), deps=[], poll=30.0)
    working = threading.Thread(target=worker.run)
    working.start()

    try:
        for n in range(runs):
            store.start(Order, run_id=f"run-{n}", goal="order", input=["paid:o1"])
            time.sleep(draw.uniform(0, 0.03))
            pay(store, run_id=f"run-{n}")
        until = time.monotonic() + 25
        while len(store.runs(status="done")) < runs and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        worker.stop()
        working.join(20)

    states = [store.load(f"run-{n}") for n in range(runs)]
    assert {state.status for state in states} == {Status.DONE}
    assert {step.woken for state in states for step in state.steps[1:]} == {
        Woken("signal", "paid:o1", "payment of o1")
    }


@pytest.mark.parametrize("is_early", [True, False], ids=["before the waits", "while they wait"])
@pytest.mark.parametrize("order", [["o1", "o2"], ["o2", "o1"]], ids=["in order", "in reverse"])
def test_each_of_two_waits_gets_its_own(order: Sequence[str], is_early: bool, open_store: OpenStore) -> None:  # noqa: FBT001
    names = ["paid:o1", "paid:o2"]
    store = open_store()
    if is_early:
        store.start(Order, run_id="run-1", goal="order", input=names)
    else:
        assert run_it(store, names=names).waiting_for == "signal"

    for each in order:
        pay(open_store(), each)
    state = run_it(open_store(), names=names)

    assert (state.status, state.answer) == (Status.DONE, ["payment of o1", "payment of o2"])


def test_with_a_restart_after_each_of_two_that_come_in_reverse_the_first_wait_goes_on_waiting(
    open_store: OpenStore,
) -> None:
    names = ["paid:o1", "paid:o2"]
    run_it(open_store(), names=names)

    pay(open_store(), "o2")
    between = run_it(open_store(), names=names)
    pay(open_store(), "o1")
    state = run_it(open_store(), names=names)

    assert [step.status for step in between.steps[1:]] == ["waiting", "done"]
    assert (between.status, between.waiting_for) == (Status.WAITING, "signal")
    assert state.answer == ["payment of o1", "payment of o2"]


def test_what_nobody_waited_for_stays_visible_and_a_wait_for_another_goes_on(open_store: OpenStore) -> None:
    run_it(open_store())

    pay(open_store(), "o9")
    state = run_it(open_store())

    assert (state.status, state.waiting_for) == (Status.WAITING, "signal")
    assert [signal.name for signal in state.signals] == ["paid:o9"]
    pay(open_store(), "o1")
    over = run_it(open_store())
    assert (over.status, [signal.name for signal in over.signals]) == (Status.DONE, ["paid:o9"])


def test_a_wait_whose_time_is_up_ends_with_the_signal_that_came_before_anybody_looked(
    open_store: OpenStore, sql: Callable[..., Any]
) -> None:
    run_it(open_store())
    sql("UPDATE agent_es_runs SET wake_at = wake_at - 7200")  # by the clock of the database, an hour late

    pay(open_store())
    Worker(open_store(), agents=[Order], decider=Model(), deps=[]).run(until_idle=True)

    state = open_store().load("run-1")
    assert (state.status, state.answer) == (Status.DONE, ["payment of o1"])
