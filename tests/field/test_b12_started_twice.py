"""B12: a run id that is started twice, at once or with another input, stands for one run.

Run as a program, this file is a process in which four callers start the run at the same moment.
"""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agent_es import AgentRun, CallTool, Effect, Finish, Runner, RunStore, ScriptedDecider, Status, ToolContext, tool
from agent_es.errors import RunConflict, RunHeld, RunMoved
from agent_es.testing import FrozenClock, PaymentProvider

RUN_ID = "order-7"
GOAL = "ship the order"
SCRIPT = ScriptedDecider([CallTool("ship"), Finish("shipped")])


@dataclass
class World:
    """The provider, and what happens elsewhere while a body runs."""

    provider: PaymentProvider
    elsewhere: Callable[[], object] = lambda: None


class Order(AgentRun):
    """Ships an order, which pays the carrier."""

    @tool(effect=Effect.IDEMPOTENT)
    def ship(self, ctx: ToolContext[World]) -> dict[str, str]:
        ctx.deps.elsewhere()
        return ctx.deps.provider.refund(f"order-{self.state.input['n']}", Decimal(10), key=ctx.idempotency_key)


class Invoice(AgentRun):
    """Another agent."""


# At once.


def eight_callers(folder: Path, what: str) -> list[Any]:
    """Let four callers in each of two processes do it at the same moment; return what each of them got."""
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, folder, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [got for process in processes for got in json.loads(process.communicate(timeout=60)[0])]


def test_eight_starts_at_once_are_one_run_whose_body_runs_once(
    tmp_path: Path, store: RunStore, provider: PaymentProvider
) -> None:
    got = eight_callers(tmp_path, "start")

    assert len(got) == 8
    assert sorted(caller["resumed"] for caller in got) == [False] + 7 * [True]
    assert {(caller["run_id"], caller["n"]) for caller in got} == {(RUN_ID, 1)}
    assert [entry.type for entry in store.journal(RUN_ID)] == [
        "run_started",
        "llm_decided",
        "tool_result",
        "finished",
    ]
    assert provider.keystore == {"order-7:0:ship": 1}
    assert [record.run_id for record in store.runs()] == [RUN_ID]


def test_eight_drivers_at_once_move_money_once_in_one_journal(
    tmp_path: Path, store: RunStore, provider: PaymentProvider
) -> None:
    got = eight_callers(tmp_path, "drive")

    assert len(got) == 8
    assert {caller["run_id"] for caller in got} == {RUN_ID}
    journal = store.journal(RUN_ID)
    assert [entry.type for entry in journal] == ["run_started", "llm_decided", "tool_result", "finished"]
    assert provider.keystore == {"order-7:0:ship": 1}
    assert (provider.refunds, provider.ledger) == (1, {"order-1": "10.00"})


# With another input.


def another_input(store: RunStore) -> Runner:
    return Runner(store, SCRIPT)


@pytest.mark.parametrize(
    "start_again",
    [
        lambda store: store.start(Order, run_id=RUN_ID, goal=GOAL, input={"n": 2}),
        lambda store: another_input(store).run(Order, run_id=RUN_ID, goal=GOAL, input={"n": 2}),
        lambda store: another_input(store).run(Order, run_id=RUN_ID, input={"n": 2}),
        lambda store: asyncio.run(another_input(store).arun(Order, run_id=RUN_ID, goal=GOAL, input={"n": 2})),
    ],
    ids=["store.start", "run", "run without its goal", "arun"],
)
def test_a_start_with_another_input_while_the_run_runs_is_a_conflict_that_names_the_stored_input(
    start_again: Callable[[RunStore], object], open_store: Callable[[], RunStore], provider: PaymentProvider
) -> None:
    conflicts: list[str] = []

    def start_it_again() -> None:
        with pytest.raises(RunConflict) as conflict:
            start_again(open_store())
        conflicts.append(str(conflict.value))

    store = open_store()

    state = Runner(store, SCRIPT, deps=World(provider, start_it_again)).run(
        Order, run_id=RUN_ID, goal=GOAL, input={"n": 1}
    )

    (message,) = conflicts
    assert RUN_ID in message
    assert '{"n":1}' in message
    assert state.status is Status.DONE
    assert state.input == {"n": 1}
    assert provider.ledger == {"order-1": "10.00"}


@pytest.mark.parametrize(
    ("agent", "goal", "named"),
    [(Invoice, GOAL, "Order"), (Order, "cancel the order", GOAL), (Invoice, None, "Order")],
    ids=["another agent", "another goal", "another agent without a goal"],
)
def test_a_start_of_a_done_run_as_something_else_is_a_conflict_that_names_what_is_stored(
    agent: type[AgentRun], goal: str | None, named: str, store: RunStore, provider: PaymentProvider
) -> None:
    runner = Runner(store, SCRIPT, deps=World(provider))
    runner.run(Order, run_id=RUN_ID, goal=GOAL, input={"n": 1})

    with pytest.raises(RunConflict, match=named):
        runner.run(agent, run_id=RUN_ID, goal=goal, input={"n": 1})

    assert [entry.type for entry in store.journal(RUN_ID)] == [
        "run_started",
        "llm_decided",
        "tool_result",
        "finished",
    ]


def test_the_same_start_again_is_the_same_run_and_executes_nothing(
    store: RunStore, provider: PaymentProvider
) -> None:
    runner = Runner(store, SCRIPT, deps=World(provider))
    first = runner.run(Order, run_id=RUN_ID, goal=GOAL, input={"n": 1})

    again = runner.run(Order, run_id=RUN_ID, goal=GOAL, input={"n": 1})

    assert again == first
    assert (first.resumed, again.resumed) == (False, True)
    assert provider.keystore == {"order-7:0:ship": 1}


# The process with four callers.


def start(store: RunStore, runner: Runner) -> dict[str, Any]:
    """Start the run; whoever made it drives it."""
    state = store.start(Order, run_id=RUN_ID, goal=GOAL, input={"n": 1})
    if not state.resumed:
        runner.resume(RUN_ID)
    return {"run_id": state.run_id, "n": state.input["n"], "resumed": state.resumed}


def drive(_: RunStore, runner: Runner) -> dict[str, Any]:
    """Start the run and drive it, until another caller is faster."""
    try:
        return {"run_id": runner.run(Order, run_id=RUN_ID, goal=GOAL, input={"n": 1}).run_id}
    except (RunHeld, RunMoved):
        return {"run_id": RUN_ID}


def four_callers(folder: Path, what: Callable[[RunStore, Runner], dict[str, Any]]) -> None:
    store = RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock())
    runner = Runner(store, SCRIPT, deps=World(PaymentProvider(folder / "provider.db")))
    same_moment = threading.Barrier(4)
    got: list[dict[str, Any]] = []

    def call() -> None:
        same_moment.wait()
        got.append(what(store, runner))

    callers = [threading.Thread(target=call) for _ in range(4)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    sys.stdout.write(json.dumps(got))


if __name__ == "__main__":
    four_callers(Path(sys.argv[1]), {"start": start, "drive": drive}[sys.argv[2]])
