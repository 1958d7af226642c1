"""B47: a missing or odd decision is no yes; an answer that counts as false is an answer, and ends the wait."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    Ask,
    CallTool,
    Decision,
    Envelope,
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
from agent_es.errors import AnswerConflict, BadAnswer, BadSettlement, BadSignal, NotAllowed

FALSY = [0, 0.0, "", False, None, [], {}]
ODD = [*FALSY, "no", "yes", True, {"approved": True}, ["approve"]]
ASKED = Envelope(needs_approval=["wipe"])


class Form(AgentRun):
    """Asks for a number, in the model's way or in a tool's."""

    @tool(effect="read")
    def ask(self, ctx: ToolContext) -> WaitFor:
        return ctx.wait_for("answered", timeout=timedelta(days=1))


class Model:
    """Waits for an answer, and tells it with its type."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        if run.turns == 0:
            return Form.ask.call() if run.input == "by a tool" else WaitFor("answered", timeout=timedelta(days=1))
        woken = run.steps[0].woken
        assert woken is not None
        return Finish([woken.reason, woken.payload])


@pytest.fixture
def open_store(url: str) -> Iterator[Callable[[], RunStore]]:
    """Opens the store anew at each call, as a process that was restarted does."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(RunStore(url))


@pytest.mark.parametrize("how", ["by the model", "by a tool"])
@pytest.mark.parametrize("answer", FALSY, ids=repr)
def test_an_answer_that_counts_as_false_is_delivered_as_it_is_and_ends_the_wait(
    answer: Any, how: str, open_store: Callable[[], RunStore]
) -> None:
    def restarted() -> RunState:
        return Runner(open_store(), Model(), max_wait=0).run(Form, run_id="run-1", goal="ask", input=how)

    assert restarted().waiting_for == "signal"

    open_store().signal("run-1", "answered", answer)
    state = restarted()

    assert state.status is Status.DONE
    assert state.steps[0].woken == Woken("signal", "answered", answer)
    assert (state.answer, type(state.answer[1])) == (["signal", answer], type(answer))


@pytest.mark.parametrize("name", ["answer", "answered ", "Answered", "answered:other"])
def test_an_answer_to_another_question_ends_no_wait(name: str, open_store: Callable[[], RunStore]) -> None:
    def restarted() -> RunState:
        return Runner(open_store(), Model(), max_wait=0).run(Form, run_id="run-1", goal="ask", input="by the model")

    restarted()

    open_store().signal("run-1", name, "yes")
    state = restarted()

    assert (state.status, state.waiting_for) == (Status.WAITING, "signal")
    assert [signal.name for signal in state.signals] == [name]


@pytest.mark.parametrize("answer", FALSY, ids=repr)
def test_an_answer_to_a_question_of_the_model_may_count_as_false(
    answer: Any, open_store: Callable[[], RunStore]
) -> None:
    def restarted() -> RunState:
        return Runner(open_store(), Asker(), max_wait=0).run(Form, run_id="run-1", goal="ask")

    assert restarted().waiting_for == "person"

    open_store().answer("run-1", 0, answer, by="ann")
    with pytest.raises(AnswerConflict, match="answered by ann"):
        open_store().answer("run-1", 0, "another", by="bob")
    state = restarted()

    assert (state.status, open_store().inbox()) == (Status.DONE, [])
    assert (state.answer, type(state.answer[1])) == (["answered", answer, "ann"], type(answer))


@pytest.mark.parametrize("choices", [[0, 1], [False, True], ["", "no"], [None, 0.5]], ids=repr)
@pytest.mark.parametrize("answer", FALSY, ids=repr)
def test_what_counts_as_false_is_one_of_the_choices_only_where_it_is_that_very_value(
    answer: Any, choices: list[Any], open_store: Callable[[], RunStore]
) -> None:
    asker = Asker(choices)
    Runner(open_store(), asker, max_wait=0).run(Form, run_id="run-1", goal="ask")
    is_choice = (answer, type(answer)) == (choices[0], type(choices[0]))

    if is_choice:
        open_store().answer("run-1", 0, answer, by="ann")
    else:
        with pytest.raises(BadAnswer, match="none of"):
            open_store().answer("run-1", 0, answer, by="ann")

    state = Runner(open_store(), asker, max_wait=0, agents=[Form]).resume("run-1")
    assert (state.status is Status.DONE, len(open_store().inbox())) == (is_choice, 0 if is_choice else 1)


class Asker:
    """Asks a person, and tells what was answered, and by whom."""

    def __init__(self, choices: Sequence[Any] | None = None) -> None:
        self.choices = choices

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        if not run.turns:
            return Ask("how many?", choices=self.choices, timeout=timedelta(days=1))
        answered = run.steps[0].answered
        assert answered is not None
        return Finish([answered.reason, answered.answer, answered.by])


# A call that a person must say yes to.


@dataclass
class World:
    """What was wiped, and read."""

    wiped: list[str] = field(default_factory=list)


class Archive(AgentRun):
    """Wipes a table, and reads one."""

    @tool(effect="idempotent")
    def wipe(self, ctx: ToolContext[World], table: str) -> None:
        ctx.deps.wiped.append(table)

    @tool(effect="read")
    def count(self, ctx: ToolContext[World], table: str) -> int:
        return 7


class Wiper:
    """Reads and wipes, beside each other; nobody may ask it twice."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        self.asked.append(run.turns)
        if run.turns:
            return Finish("wiped")
        return [CallTool("count", {"table": "t"}), CallTool("wipe", {"table": "t"})]


def odd_decisions(store: RunStore) -> Iterator[Callable[[], object]]:
    """Yield everything that is no yes of a person to the call that waits for one."""
    for odd in ODD:
        yield partial(store.answer, "run-1", 1, odd, by="ann")
        yield partial(store.signal, "run-1", "answer:1", odd)
        yield partial(store.settle, "run-1", 1, "happened", by="ann", result=odd)
    for by in (None, 0, "", False, [], {}, " ", "\n", True):
        yield partial(store.approve, "run-1", 1, by=by)
    for idx in (None, "", "1", False, True, 1.0, -1, 2, [1], {}):
        yield partial(store.approve, "run-1", idx, by="ann")
    for args in (0, "", False, [], "yes", ["t"], True):
        yield partial(store.approve, "run-1", 1, by="ann", args=args, agent=Archive)
    for digest in (0, "", False, [], {}, "yes", True):
        yield partial(store.approve, "run-1", 1, by="ann", digest=digest)
    yield lambda: store.approve("run-1", 0, by="ann")  # it asks for nobody's yes


def test_no_odd_decision_is_a_yes_and_the_call_stays_pending(open_store: Callable[[], RunStore]) -> None:
    world, model = World(), Wiper()

    def restarted() -> RunState:
        return Runner(open_store(), model, deps=world).run(Archive, run_id="run-1", goal="wipe", envelope=ASKED)

    before = restarted()
    store = open_store()
    asked = store.inbox()

    for decide in odd_decisions(store):
        with pytest.raises((BadAnswer, AnswerConflict, BadSettlement, BadSignal)):
            decide()

    assert (store.inbox(), [(item.kind, item.idx) for item in asked]) == (asked, [("approval", 1)])
    assert store.load("run-1") == before
    assert (restarted().waiting_for, world.wiped, model.asked) == ("approval", [], [0])
    store.approve("run-1", 1, by="ann")
    assert (restarted().status, world.wiped) == (Status.DONE, ["t"])


@pytest.mark.parametrize("says", FALSY, ids=repr)
def test_whoever_may_decide_is_said_by_what_counts_as_true_alone(says: Any, url: str) -> None:
    world, model = World(), Wiper()

    with RunStore(url, authorize=lambda *_: says) as store:
        runner = Runner(store, model, deps=world)
        runner.run(Archive, run_id="run-1", goal="wipe", envelope=ASKED)
        for decide in (store.approve, store.deny):
            with pytest.raises(NotAllowed):
                decide("run-1", 1, by="ann")
        state = runner.resume("run-1")

    assert (state.waiting_for, [step.status for step in state.steps]) == ("approval", ["done", "gated"])
    assert world.wiped == []


def test_a_process_that_begins_with_the_call_last_in_the_journal_takes_that_for_no_decision(
    open_store: Callable[[], RunStore],
) -> None:
    world, model = World(), Wiper()
    runner = Runner(open_store(), model, deps=world)
    runner.run(Archive, run_id="run-1", goal="wipe", envelope=ASKED)

    for _ in range(3):
        store = open_store()
        Worker(store, agents=[Archive], decider=model, deps=world).run(until_idle=True)
        state = Runner(store, model, deps=world, agents=[Archive]).step("run-1")

    assert (state.waiting_for, state.can_move, world.wiped, model.asked) == ("approval", False, [], [0])
    assert state == runner.store.load("run-1")
