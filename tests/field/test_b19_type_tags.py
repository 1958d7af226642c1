"""B19: a value that looks like a serializer's own type tag is a value like any other.

Nothing that a tool, a model or a caller says picks a Python type or makes the run unloadable.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.testing import Crash, CrashingRunner, CrashPoint

RUN_ID = "run-1"

TAGGED = {
    "unknown tag": {"_type_": "invoice", "_data_": 1},
    "known tag": {"_type_": "decimal_str", "_data_": "1.5"},
    "another serializer's tag": {"__type__": "bytes", "data": "aGVsbG8="},
}
NESTED = {f"{name}, three levels deep": {"a": [{"b": value}]} for name, value in TAGGED.items()}
VALUES = {**TAGGED, **NESTED}

AFTER_THE_RESULT = CrashPoint(5, "after")  # decide, append, start, next done, append


class Echo(AgentRun):
    """Gives back what it is given."""

    @tool(effect=Effect.READ)
    def give(self, ctx: ToolContext[Any]):  # type: ignore[no-untyped-def]  # noqa: ANN201  # any JSON
        return ctx.deps

    @tool(effect=Effect.READ)
    def give_a_dict(self, ctx: ToolContext[Any]) -> dict[str, Any]:
        return dict(ctx.deps)

    @tool(effect=Effect.READ)
    def echo(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        assert type(document) is dict
        return [document]


class Model:
    """Makes its call, keeps what it is shown, and answers with it."""

    def __init__(self, call: CallTool) -> None:
        self.call = call
        self.shown: list[Any] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        if not run.turns:
            return self.call
        self.shown.append(run.steps[0].result)
        return Finish(run.steps[0].result)


def calls(value: Any) -> list[tuple[CallTool, Any]]:
    """Give each call through which the value passes, and what the call gives back."""
    return [
        (CallTool("give"), value),
        (CallTool("give_a_dict"), value),
        (CallTool("echo", {"document": value}), [value]),
    ]


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize("n", range(3), ids=["result", "annotated result", "argument"])
def test_a_value_like_a_type_tag_comes_back_as_the_same_dict(
    n: int, value: dict[str, Any], open_store: Callable[[], RunStore]
) -> None:
    call, expected = calls(value)[n]
    calm, model = Model(call), Model(call)
    first = Runner(open_store(), calm, deps=value).run(Echo, run_id="run-0", goal="echo", input=value)
    with pytest.raises(Crash):
        CrashingRunner(open_store(), model, deps=value, at=AFTER_THE_RESULT).run(
            Echo, run_id=RUN_ID, goal="echo", input=value
        )

    state = Runner(open_store(), model, deps=value).run(Echo, run_id=RUN_ID)

    assert (first.status, state.status) == (Status.DONE, Status.DONE)
    assert calm.shown == model.shown == [expected]
    assert open_store().load(RUN_ID).answer == expected
    assert (state.input, state.steps[0].args) == (value, call.args)
    assert [entry.data["result"] for entry in open_store().journal(RUN_ID) if entry.type == "tool_result"] == [
        expected
    ]
