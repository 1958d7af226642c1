"""B47, the part that is about answers: one that counts as false is an answer, and ends the wait."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from agent_es import (
    AgentRun,
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
    tool,
)

FALSY = [0, 0.0, "", False, None, [], {}]


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
