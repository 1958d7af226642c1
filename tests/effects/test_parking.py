"""A step whose tool is gone, or whose values no longer fit, parks its run with the names, and no other run."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from agent_es import AgentRun, CallTool, Decision, Finish, Runner, RunState, RunStore, ScriptedDecider, Status, tool
from agent_es.errors import IllegalEvent, ResultDoesNotFit
from agent_es.testing import Crash, CrashingRunner, CrashPoint

Play = Callable[..., RunState]


class Before(AgentRun):
    """Yesterday's code."""

    agent_name = "Order"

    @tool(effect="idempotent")
    def lookup_v1(self, q: str) -> dict[str, str]:
        return {"q": q}

    @tool(effect="read")
    def other(self) -> str:
        return "other"


SCRIPT: list[Decision] = [CallTool("lookup_v1", {"q": "x"}), Finish("found")]


@pytest.fixture
def pending(store: RunStore) -> RunStore:
    """A store in which run-1 died in the body of lookup_v1, under yesterday's code."""
    with pytest.raises(Crash):
        CrashingRunner(store, ScriptedDecider(SCRIPT), at=CrashPoint(4, "before")).run(
            Before, run_id="run-1", goal="test"
        )
    return store


def test_a_tool_that_is_gone_parks_the_run_and_burns_no_attempt(pending: RunStore, play: Play) -> None:
    class After(AgentRun):
        agent_name = "Order"

        @tool(effect="read")
        def other(self) -> str:
            return "other"

    state = play(After, SCRIPT)
    again = play(After, SCRIPT)
    sibling = play(After, [CallTool("other"), Finish("fine")], run_id="run-2")

    assert (state.status, state.waiting_for) == (Status.WAITING, "person")
    assert "no tool 'lookup_v1'" in (state.parked or "")
    assert state.steps[0].attempt == 1
    assert again.version == state.version
    assert sibling.answer == "fine"


def test_an_alias_keeps_a_renamed_tool(pending: RunStore, play: Play) -> None:
    class After(AgentRun):
        agent_name = "Order"

        @tool(effect="idempotent", aliases=["lookup_v1"])
        def lookup_v2(self, q: str) -> dict[str, str]:
            return {"found": q}

    state = play(After, SCRIPT)

    assert (state.status, state.steps[0].tool, state.steps[0].result) == (Status.DONE, "lookup_v1", {"found": "x"})


def test_arguments_that_no_longer_fit_park_the_run_and_name_what_is_wrong(pending: RunStore, play: Play) -> None:
    class After(AgentRun):
        agent_name = "Order"

        @tool(effect="idempotent")
        def lookup_v1(self, q: str, limit: int) -> dict[str, str]:
            return {"q": q}

    state = play(After, SCRIPT)

    assert state.waiting_for == "person"
    assert "limit" in (state.parked or "")


def test_a_parked_run_goes_on_when_a_person_sends_it_back(pending: RunStore, play: Play) -> None:
    class After(AgentRun):
        agent_name = "Order"

    play(After, SCRIPT)
    pending.requeue("run-1", by="ann")

    state = play(Before, SCRIPT)

    assert (state.status, state.steps[0].attempt) == (Status.DONE, 2)
    assert [entry.data["by"] for entry in pending.journal("run-1") if entry.type == "requeued"] == ["ann"]


def test_only_a_parked_or_failed_run_is_sent_back(play: Play, store: RunStore) -> None:
    play(Before, SCRIPT)

    with pytest.raises(IllegalEvent):
        store.requeue("run-1", by="ann")


class Old(BaseModel):
    qty: int


class New(BaseModel):
    quantity: int


class Decides:
    """Reads a result by its type before it finishes."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def decide(self, run: RunState, tools: Any, /) -> Decision:
        if not run.turns:
            return CallTool("order")
        return Finish(str(self._agent.order.result_of(run.steps[0])))


def test_a_result_of_a_changed_type_parks_that_run_with_the_types_name(store: RunStore) -> None:
    class Yesterday(AgentRun):
        agent_name = "Orders"

        @tool(effect="read")
        def order(self) -> Old:
            return Old(qty=2)

    class Today(AgentRun):
        agent_name = "Orders"

        @tool(effect="read")
        def order(self) -> New:
            return New(quantity=2)

    with pytest.raises(Crash):
        CrashingRunner(store, Decides(Yesterday), at=CrashPoint(6, "before")).run(
            Yesterday, run_id="run-1", goal="test"
        )

    parked = Runner(store, Decides(Today)).run(Today, run_id="run-1")
    store.requeue("run-1", by="ann")
    done = Runner(store, Decides(Yesterday)).run(Yesterday, run_id="run-1")

    assert "order does not fit New" in (parked.parked or "")
    assert done.answer == "qty=2"


def test_a_result_is_read_as_annotated(play: Play) -> None:
    class Priced(AgentRun):
        @tool(effect="read")
        def price(self) -> Decimal:
            return Decimal("1.50")

    state = play(Priced, [CallTool("price"), Finish("x")])

    assert (state.steps[0].result, Priced.price.result_of(state.steps[0])) == ("1.50", Decimal("1.50"))
    with pytest.raises(ResultDoesNotFit, match="price does not fit"):
        Priced.price.result_of(state.steps[0]._replace(value_json='"free"'))
