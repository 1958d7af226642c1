"""B35: parallel results are shown in decision order, whatever order they end in: a resume builds the same request.

Run as a program, this file is a worker under a hash seed of its own.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Finish,
    Notice,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.testing import Crash, CrashingRunner, FrozenClock

RUN_ID = "run-1"
CALLS = ("c1", "c2", "c3")


@dataclass
class World:
    """Every body that ran, and who may end when."""

    bodies: list[str] = field(default_factory=list)
    may_end: dict[str, threading.Event] = field(default_factory=dict)


class Research(AgentRun):
    """Looks up, and follows up on what it found."""

    @tool(effect="idempotent")
    def look_up(self, ctx: ToolContext[World], name: str) -> set[str]:
        ctx.deps.bodies.append(name)
        if name in ctx.deps.may_end:
            assert ctx.deps.may_end[name].wait(timeout=5)
        return {f"{name} {word}" for word in ("alpha", "beta", "gamma")}

    @tool(effect="read")
    def follow_up(self, ctx: ToolContext[World], found: list[str]) -> str:
        ctx.deps.bodies.append(f"after {found[0]}")
        return found[0]


class Model:
    """Keeps each request, as bytes; follows up on each result with a call of its own."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        shown = [[step.call_id, step.tool, step.args, step.result, step.error] for step in run.steps]
        self.requests.append(json.dumps(shown))
        match run.turns:
            case 0:
                return [CallTool("look_up", {"name": name}, call_id=name) for name in CALLS]
            case 1:
                return [
                    CallTool("follow_up", {"found": step.result}, call_id=f"after {step.call_id}")
                    for step in run.steps
                ]
            case _:
                return Finish([step.result for step in run.steps[3:]])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The requests of a run whose calls ended in the order of their decision, and that nobody killed."""
    folder = tmp_path_factory.mktemp("calm")
    model = Model()
    with RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock()) as store:
        Runner(store, model, deps=World(), at_once=1).run(Research, run_id=RUN_ID, goal="look up")
    assert len(model.requests) == 3
    return model.requests


def ended(store: RunStore) -> list[str]:
    return [CALLS[entry.data["idx"]] for entry in store.journal(RUN_ID)[:7] if entry.type == "tool_result"]


def test_results_that_come_in_another_order_make_the_same_requests(store: RunStore, expected: list[str]) -> None:
    world, model = World(may_end={name: threading.Event() for name in CALLS}), Model()
    order = ["c2", "c3", "c1"]

    def let_the_next_one_end(notice: Notice) -> None:
        if notice.kind == "completed" and notice.idx is not None and notice.idx < 3:
            last = order.index(CALLS[notice.idx])
            if last < 2:
                world.may_end[order[last + 1]].set()

    world.may_end[order[0]].set()

    Runner(store, model, deps=world, on_event=let_the_next_one_end).run(Research, run_id=RUN_ID, goal="look up")

    assert ended(store) == order
    assert model.requests == expected


@pytest.mark.parametrize("seed", range(50))
def test_after_a_kill_between_the_results_only_the_missing_call_runs_again_and_the_requests_are_the_same(
    seed: int, open_store: Callable[[], RunStore], expected: list[str]
) -> None:
    world, model = World(), Model()

    def die_after_two(notice: Notice) -> None:
        nonlocal results
        results += notice.kind == "completed"
        if results == 2:
            raise Crash

    results = 0
    with pytest.raises(Crash):
        CrashingRunner(open_store(), model, deps=world, seed=seed, on_event=die_after_two).run(
            Research, run_id=RUN_ID, goal="look up"
        )
    (missing,) = (CALLS[step.idx] for step in open_store().load(RUN_ID).steps if step.is_open)
    before = Counter(world.bodies)

    state = CrashingRunner(open_store(), model, deps=world, seed=seed + 1).run(Research, run_id=RUN_ID)

    assert state.status is Status.DONE
    assert model.requests == expected
    assert [name for name in world.bodies[sum(before.values()) :] if name in CALLS] == [missing]
    assert [step.args["name"] for step in state.steps[:3]] == list(CALLS)
    assert [step.result[0].split()[0] for step in state.steps[:3]] == list(CALLS)


@pytest.mark.parametrize(
    "hash_seed", ["0", *(pytest.param(seed, marks=pytest.mark.crash) for seed in ("1", "12345"))]
)
def test_a_worker_under_another_hash_seed_makes_the_same_requests(
    hash_seed: str, tmp_path: Path, expected: list[str]
) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}

    told = subprocess.run(
        [sys.executable, __file__, tmp_path], env=environment, check=True, timeout=60, capture_output=True, text=True
    ).stdout

    assert told == digest(expected)


def digest(requests: list[str]) -> str:
    return hashlib.sha256("\n".join(requests).encode()).hexdigest()


def work(folder: Path) -> None:
    model = Model()
    store = RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock())
    Runner(store, model, deps=World()).run(Research, run_id=RUN_ID, goal="look up")
    sys.stdout.write(digest(model.requests))


if __name__ == "__main__":
    work(Path(sys.argv[1]))
