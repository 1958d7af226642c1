"""B24: opaque data of a provider comes back to it to the byte, beside the same call, whoever died meanwhile.

Run as a program, this file is the worker that gets a SIGKILL while its run waits for a person.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from agent_es import AgentRun, Effect, Envelope, Runner, RunState, RunStore, Status, tool
from agent_es.integrations.pydantic_ai import ModelDecider
from agent_es.testing import FrozenClock
from tests.models.client import decider_at
from tests.models.script import Answer, Call, Fault, Ill, Turn
from tests.models.stub import Stub

ROOT = Path(__file__).parents[2]
RUN_ID = "run-1"
SIGNATURE = "EqQB/+=="
PAY = Answer("", (Call("pay", '{"amount": 10}'),), reasoning=SIGNATURE)
PAID = Answer("Paid.")
MUST_BE_APPROVED = Envelope(needs_approval=["pay"])


class ThinksAndPays(AgentRun):
    """Pays."""

    @tool(effect=Effect.IDEMPOTENT)
    def pay(self, amount: int) -> str:
        """Pay."""
        return f"{amount} paid"


def open_in(folder: Path) -> RunStore:
    return RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock())


def items_of(stub: Stub) -> list[dict[str, Any]]:
    return json.loads(stub.requests[-1].body)["input"]


@pytest.mark.crash
def test_a_signature_survives_an_approval_and_the_death_of_the_worker(tmp_path: Path, store: RunStore) -> None:
    with closing(Stub([PAY, PAID])) as stub:
        worker = [sys.executable, "-m", "tests.field.test_b24_opaque_provider_data", tmp_path, stub.url]
        assert subprocess.run(worker, cwd=ROOT, check=False, timeout=60).returncode == -signal.SIGKILL
        (asked,) = store.inbox()
        store.approve(RUN_ID, asked.idx, by="dana", digest=asked.digest)

        state = Runner(store, decider_at(stub.url, "responses")).resume(RUN_ID)

        _, reasoning, call, output = items_of(stub)

    assert (state.status, state.answer) == (Status.DONE, "Paid.")
    assert (reasoning["id"], reasoning["encrypted_content"]) == ("rs_0_0", SIGNATURE)
    assert (call["id"], call["call_id"]) == ("fc_0_0_0", output["call_id"])
    assert [request.got for request in stub.requests] == ["answer 0", "answer 0"]


def test_what_stands_beside_a_call_is_given_back_to_the_byte(store: RunStore) -> None:
    said = [
        ThinkingPart("hm", id="t-1", signature=SIGNATURE, provider_name="google"),
        ToolCallPart(
            "pay",
            '{"amount": 10}',
            "c-1",
            id="p-1",
            provider_name="google",
            provider_details={"thought_signature": "AQL/", "n": None, "weight": 1.0},
        ),
    ]
    asked: list[list[ModelMessage]] = []

    def speak(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(messages)
        parts = [TextPart("Paid.")] if len(messages) > 1 else said
        return ModelResponse(parts=parts, provider_response_id="r-1", provider_details={"raw": [{"b": 1, "a": 2}]})

    def worker() -> Runner:
        return Runner(store, ModelDecider(FunctionModel(speak)))

    worker().run(ThinksAndPays, run_id=RUN_ID, goal="pay", envelope=MUST_BE_APPROVED)
    store.approve(RUN_ID, 0, by="dana", digest=store.inbox()[0].digest)
    worker().resume(RUN_ID)

    answer = asked[1][1]
    assert isinstance(answer, ModelResponse)
    assert answer.parts[0] == said[0]
    assert answer.parts[1].provider_details == said[1].provider_details
    assert (answer.parts[1].id, answer.parts[1].tool_call_id) == ("p-1", "c-1")
    assert (answer.provider_response_id, answer.provider_details) == ("r-1", {"raw": [{"b": 1, "a": 2}]})


def test_a_stream_that_is_cut_is_never_recorded_as_an_answer(store: RunStore) -> None:
    cut = Turn((PAY,), (Fault(Ill.CUT_STREAM), Fault(Ill.CUT_BODY)))

    with closing(Stub([cut, PAID])) as stub:
        state = run_streamed(store, stub)

        reasonings = [item for item in items_of(stub) if item.get("type") == "reasoning"]

    assert state.answer == "Paid."
    assert [one["encrypted_content"] for one in reasonings] == [SIGNATURE]
    assert [entry.type for entry in store.journal(RUN_ID)].count("llm_answered") == 2


def test_a_thought_that_was_cut_before_its_signature_is_left_out(store: RunStore) -> None:
    half = ThinkingPart("I will p", signature="", provider_name="anthropic")
    whole = ThinkingPart("I pay.", signature=SIGNATURE, provider_name="anthropic")
    asked: list[list[ModelMessage]] = []

    def speak(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(messages)
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart("Paid.")])
        return ModelResponse(
            parts=[whole, ToolCallPart("pay", '{"amount": 10}', "c-1"), half], finish_reason="length"
        )

    Runner(store, ModelDecider(FunctionModel(speak))).run(ThinksAndPays, run_id=RUN_ID, goal="pay")

    assert [part for part in asked[1][1].parts if isinstance(part, ThinkingPart)] == [whole]


def run_streamed(store: RunStore, stub: Stub) -> RunState:
    decider = decider_at(stub.url, "responses", on_delta=lambda _: None)
    return Runner(store, decider).run(ThinksAndPays, run_id=RUN_ID, goal="pay")


def die_there(folder: Path, url: str) -> None:
    with open_in(folder) as store:
        decider = decider_at(url, "responses")
        state = Runner(store, decider).run(ThinksAndPays, run_id=RUN_ID, goal="pay", envelope=MUST_BE_APPROVED)
    assert state.waiting_for == "approval"
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    die_there(Path(sys.argv[1]), sys.argv[2])
