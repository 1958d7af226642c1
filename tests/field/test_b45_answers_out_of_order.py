"""B45: the answers to questions that were asked together come in any order, and each reaches its own call."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    Ask,
    CallTool,
    Decision,
    Envelope,
    Finish,
    Retry,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)

RUN_ID = "run-1"
SHUFFLES = 50
ASKED = Envelope(needs_approval=["move"])
SAID = {
    0: (None, {"applied": False, "by": "ann", "message": "not that one", "type": "Denied"}),
    1: ("moved 20 for bob", None),
    2: ("moved 3 for cem", None),
}
"""The result and the error of each call."""


@dataclass
class World:
    """What was moved; a call takes as long as chance wants."""

    seed: int = 0
    moved: list[tuple[str, int]] = field(default_factory=list)
    beside: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311  # delays to reproduce, not a secret

    def delay(self) -> None:
        time.sleep(self._random.random() / 500)


class Movers(AgentRun):
    """Moves for people, and looks something up."""

    @tool(effect="idempotent")
    def move(self, ctx: ToolContext[World], to: str, n: int) -> str:
        ctx.deps.delay()
        ctx.deps.moved.append((to, n))
        return f"moved {n} for {to}"

    @tool(effect="read", retry=Retry(initial=0.01, jitter=0))
    def look(self, ctx: ToolContext[World]) -> str:
        if ctx.attempt == 1:
            ctx.deps.beside()
            raise TimeoutError("not now")
        return "seen"


class Model:
    """Calls three times at once, and ends when it has three outcomes."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        self.asked.append(run.turns)
        if run.turns:
            return Finish("moved")
        calls = [("ann", 1), ("bob", 2), ("cem", 3)]
        return [CallTool("move", {"to": to, "n": n}, call_id="the same") for to, n in calls]


@pytest.fixture
def open_store(url: str) -> Iterator[Callable[[], RunStore]]:
    """Opens the store anew at each call, as a process that was restarted does."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(RunStore(url))


def deny_the_first(store: RunStore, run_id: str) -> None:
    store.deny(run_id, 0, by="ann", reason="not that one")


def edit_the_second(store: RunStore, run_id: str) -> None:
    store.approve(run_id, 1, by="bob", args={"to": "bob", "n": 20}, agent=Movers)


def approve_the_third(store: RunStore, run_id: str) -> None:
    store.approve(run_id, 2, by="cem")


ANSWERS: dict[int, Callable[[RunStore, str], None]] = {0: deny_the_first, 1: edit_the_second, 2: approve_the_third}


def waiting_in(store: RunStore) -> list[tuple[int | None, Any]]:
    return sorted((item.idx, item.args) for item in store.inbox(kind="approval"))


def came_to(state: RunState) -> dict[int, tuple[Any, Any]]:
    return {step.idx: (step.result, step.error) for step in state.steps if not step.is_open}


@pytest.mark.parametrize("order", [*permutations(ANSWERS)], ids=str)
def test_what_is_not_answered_yet_stays_in_the_inbox_and_what_is_does_not_come_back(
    order: tuple[int, ...], open_store: Callable[[], RunStore]
) -> None:
    world, model, told = World(), Model(), list[int | None]()

    def restarted() -> tuple[RunStore, RunState]:
        store = open_store()
        state = Runner(store, model, deps=world).run(Movers, run_id=RUN_ID, goal="move", envelope=ASKED)
        store.notify_people(lambda item: told.append(item.idx))
        return store, state

    store, state = restarted()
    asked = {0: {"to": "ann", "n": 1}, 1: {"to": "bob", "n": 2}, 2: {"to": "cem", "n": 3}}
    assert waiting_in(store) == [*asked.items()]
    for idx in order:
        ANSWERS[idx](open_store(), RUN_ID)
        del asked[idx]
        assert waiting_in(open_store()) == [*asked.items()]

        store, state = restarted()

        assert waiting_in(store) == [*asked.items()]
        assert came_to(state) == {idx: said for idx, said in SAID.items() if idx not in asked}

    assert (state.status, store.inbox(), sorted(told)) == (Status.DONE, [], [0, 1, 2])
    assert sorted(world.moved) == [("bob", 20), ("cem", 3)]
    assert model.asked == [0, 1]


def test_each_answer_reaches_its_own_call_in_every_shuffle(url: str) -> None:
    shuffle = random.Random(45)  # noqa: S311  # orders to reproduce, not a secret

    for seed in range(SHUFFLES):
        run_id, world, model = f"run-{seed}", World(seed), Model()
        order = shuffle.sample([*ANSWERS], len(ANSWERS))
        with RunStore(url) as store:
            for said in (None, *order):
                if said is not None:
                    ANSWERS[said](store, run_id)
                fresh = Runner(store, model, deps=world)  # it knows of nothing but the journal
                state = fresh.run(Movers, run_id=run_id, goal="move", envelope=ASKED)

        assert (state.status, came_to(state)) == (Status.DONE, SAID), f"answered in the order {order}"
        assert sorted(world.moved) == [("bob", 20), ("cem", 3)], f"answered in the order {order}"
        assert model.asked == [0, 1]


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_answers_to_what_a_model_asks_reach_their_own_questions_too(
    order: tuple[int, ...], open_store: Callable[[], RunStore]
) -> None:
    class Curious:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
            questions = [Ask("which?"), Ask("which?"), Ask("which?")]
            return Finish([step.answered and step.answered.answer for step in run.steps]) if run.turns else questions

    def restarted() -> RunState:
        return Runner(open_store(), Curious()).run(Movers, run_id=RUN_ID, goal="ask")

    restarted()
    for n, idx in enumerate(order, start=1):
        open_store().answer(RUN_ID, idx, f"the answer to {idx}", by="ann")
        assert len(open_store().inbox(kind="question")) == 3 - n
        state = restarted()

    assert state.answer == ["the answer to 0", "the answer to 1", "the answer to 2"]


def test_a_yes_that_comes_while_a_call_beside_it_fails_stops_nobody(open_store: Callable[[], RunStore]) -> None:
    class Both:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
            return Finish("both") if run.turns else [CallTool("look"), Movers.move.call(to="cem", n=3)]

    store = open_store()
    world = World(beside=lambda: open_store().approve(RUN_ID, 1, by="cem"))

    state = Runner(store, Both(), deps=world).run(Movers, run_id=RUN_ID, goal="move", envelope=ASKED)

    assert state.status is Status.DONE
    assert [(step.status, step.attempt) for step in state.steps] == [("done", 2), ("done", 1)]
    assert world.moved == [("cem", 3)]
