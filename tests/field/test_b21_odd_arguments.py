"""B21: arguments that were cut, or are odd, poison no later request: not now, and not after a restart."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from agent_es import AgentRun, Effect, Runner, RunStore, Status, tool
from tests.models.client import decider_at
from tests.models.script import Answer, Call
from tests.models.stub import Stub

BODIES: list[str] = []
ODD = Answer(
    "",
    (
        Call("execute", '{"command": "ls'),
        Call("ping", ""),
        Call("ping", "null"),
        Call("execute", "[1]"),
        Call("execute", '{"command": "a", "command": "b"}'),
        Call("execute", '{"command": "pwd"}'),
    ),
    finish="length",
)
DONE = Answer("Done.")


class Shell(AgentRun):
    """Executes what it is told."""

    at_once = 1

    @tool(effect=Effect.AT_MOST_ONCE)
    def execute(self, command: str) -> str:
        """Execute a command."""
        BODIES.append(command)
        return "ok"

    @tool(effect=Effect.AT_MOST_ONCE)
    def ping(self) -> str:
        """Ping."""
        BODIES.append("ping")
        return "pong"


@pytest.fixture(params=["chat", "responses"])
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def stub() -> Iterator[Stub]:
    BODIES.clear()
    with closing(Stub([ODD, DONE])) as stub:
        yield stub


def test_what_cannot_be_read_is_an_error_and_the_rest_is_called_once(
    form: str, stub: Stub, open_store: Callable[[], RunStore]
) -> None:
    state = Runner(open_store(), decider_at(stub.url, form)).run(Shell, run_id="run-1", goal="work")

    assert (state.status, state.answer) == (Status.DONE, "Done.")
    assert BODIES == ["ping", "pwd"]
    assert [step.status for step in state.steps] == ["failed", "done", "failed", "failed", "failed", "done"]
    assert [step.error["type"] for step in state.steps if step.error] == ["BadArguments"] * 4


def test_the_next_request_can_be_parsed_and_a_restart_sends_the_same(
    form: str, stub: Stub, open_store: Callable[[], RunStore]
) -> None:
    with closing(Stub([ODD, DONE])) as other:
        Runner(open_store(), decider_at(other.url, form)).run(Shell, run_id="run-1", goal="work")
        at_once = other.requests

    open_store().start(Shell, run_id="run-2", goal="work")
    Runner(open_store(), decider_at(stub.url, form), agents=[Shell]).step("run-2")
    Runner(open_store(), decider_at(stub.url, form), agents=[Shell]).resume("run-2")

    assert [request.got for request in stub.requests] == ["answer 0", "answer 0"]
    assert [request.body for request in stub.requests] == [request.body for request in at_once]
    assert BODIES == ["ping", "pwd"] * 2


def test_a_call_that_was_cut_before_its_arguments_is_not_made(open_store: Callable[[], RunStore]) -> None:
    BODIES.clear()
    cut = Answer("", (Call("execute", '{"command": "pwd"}'), Call("ping", "")), finish="length")

    with closing(Stub([cut])) as stub:
        state = Runner(open_store(), decider_at(stub.url, asks=2)).run(Shell, run_id="run-1", goal="work")

    assert (state.waiting_for, BODIES) == ("person", [])
