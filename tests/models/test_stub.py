"""The stub of a model: what it refuses, what it says in both forms, how it fails, what it keeps.

Rule: what it refuses is sent as raw HTTP; what it says is read by the clients that the library uses.
"""

import json
import signal
import ssl
import subprocess
import sys
import time
from asyncio import run
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ThinkingPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from tests.models.script import Answer, Asked, Call, Fault, Ill, Turn
from tests.models.strict import CHAT, RESPONSES
from tests.models.stub import Stub, asked_again
from tests.models.wire import tokens_of

PAY = Call("pay", '{"to": "acct-1", "amount": 10}')
OPAQUE = "gAAAAAB+/=é\u2028opaque"
TURNS = [
    Answer("I pay.", (PAY, Call("pay", '{"to": "acct-2", "amount": 5}')), reasoning=OPAQUE),
    Answer("All is paid."),
]
USER = {"role": "user", "content": "pay"}
TOOL = {"name": "pay", "description": "Pay.", "parameters": {"type": "object", "properties": {}}}
FUNCTION = {"type": "function", **TOOL}
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # all is loopback; what a client loads for TLS takes a while
TOOL_OF_CHAT = {"type": "function", "function": TOOL}


def call(call_id: Any = "c1", arguments: Any = "{}", name: str = "pay") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [*calls]}


def result(call_id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "done"}


def item(call_id: Any = "c1", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "pay", "arguments": arguments, **more}


def output(call_id: Any = "c1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "done"}


def chat(messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "stub", "messages": messages, **more}


def responses(said: Any, **more: Any) -> dict[str, Any]:
    return {"model": "stub", "input": said, **more}


def post(stub: Any, path: str, body: Any, timeout: float = 10) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(stub.url.removesuffix("/v1") + path, content=content, timeout=timeout, verify=NO_TLS)


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        (CHAT, b"{", "could not parse"),
        (CHAT, b'{"model": "stub", "messages": [{"role": "user", "content": "\xff"}]}', "could not parse"),
        (CHAT, chat([{"role": "user", "content": "\ud83d"}]), "could not parse"),
        (CHAT, b'{"model": "stub", "messages": [{"role": "user", "content": "a"}], "top_p": NaN}', "could not parse"),
        (CHAT, b"[]", "JSON object"),
        (CHAT, {"messages": [USER]}, "a model"),
        (CHAT, chat([]), "at least one entry"),
        (CHAT, {"model": "stub"}, "at least one entry"),
        (CHAT, chat(["pay"]), "Expected an object"),
        (CHAT, chat([{"role": "robot", "content": "pay"}]), "Invalid value: 'robot'"),
        (CHAT, chat([{"role": "user", "content": None}]), "Expected a text"),
        (CHAT, chat([USER, {"role": "assistant", "content": None}]), "Expected a text"),
        (CHAT, chat([USER, result()]), "No tool call just before it"),
        (CHAT, chat([USER, calling(call()), result("c2")]), "No tool call just before it"),
        (CHAT, chat([USER, calling(call()), result(), USER, result()]), "No tool call just before it"),
        (CHAT, chat([USER, calling(call()), USER, result()]), "No tool output found"),
        (CHAT, chat([USER, calling(call()), calling(call("c2")), result(), result("c2")]), "No tool output found"),
        (CHAT, chat([USER, calling(call(), call("c2")), result()]), "No tool output found"),
        (CHAT, chat([USER, calling(call()), result(), result()]), "an answer already"),
        (CHAT, chat([USER, calling(call(), call()), result()]), "Two tool calls"),
        (CHAT, chat([USER, calling(call()), result(), calling(call()), result()]), "Two tool calls"),
        (CHAT, chat([USER, calling(call("")), result("")]), "not empty"),
        (CHAT, chat([USER, calling(call(name="a b")), result()]), "Expected a name"),
        *[
            (CHAT, chat([USER, calling(call(arguments=text)), result()]), "the text of a JSON object")
            for text in ("", "null", "[1]", '{"a": ', '{"a": NaN}', {"a": 1})
        ],
        (CHAT, chat([USER], tools=[{"type": "function", "function": {"name": "pay"}}]), "no object schema"),
        (CHAT, chat([USER], tools=[TOOL]), "A tool is of the type"),
        (RESPONSES, b"{", "could not parse"),
        (RESPONSES, responses("a\ud83d"), "could not parse"),
        (RESPONSES, responses([]), "at least one entry"),
        (RESPONSES, responses(""), "at least one entry"),
        (RESPONSES, responses([{"role": "tool", "content": "pay"}]), "Invalid value: 'tool'"),
        (RESPONSES, responses([{"type": "thing"}]), "Invalid value: 'thing'"),
        (RESPONSES, responses([USER, output()]), "No tool call just before it"),
        (RESPONSES, responses([USER, output(), item()]), "No tool call just before it"),
        (RESPONSES, responses([USER, output({}), item()]), "No tool call just before it"),
        (RESPONSES, responses([USER, item(), USER, output()]), "No tool output found"),
        (RESPONSES, responses([USER, item(), item("c2"), output(), item("c3"), output("c3")]), "No tool output"),
        (RESPONSES, responses([USER, item()]), "No tool output found"),
        (RESPONSES, responses([USER, item(), output(), output()]), "an answer already"),
        (RESPONSES, responses([USER, item(), item(), output()]), "Two tool calls"),
        (RESPONSES, responses([USER, item(arguments="null"), output()]), "the text of a JSON object"),
        (RESPONSES, responses([USER], tools=[{**FUNCTION, "parameters": {"type": "array"}}]), "no object schema"),
        (RESPONSES, responses([USER, {"type": "reasoning", "encrypted_content": "made up"}]), "verified"),
    ],
)  # fmt: skip
def test_a_malformed_request_is_refused_as_the_api_does_and_counts_for_no_turn(
    path: str, body: Any, complaint: str, new_stub: Callable[..., Stub]
) -> None:
    stub = new_stub([Answer("first")] * 4)

    refused = post(stub, path, body)

    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
    assert complaint in error["message"]
    (request,) = stub.requests
    assert (request.path, request.turn) == (path, -1)
    assert complaint in request.got


@pytest.mark.parametrize(
    ("path", "body", "turn"),
    [
        (CHAT, chat([USER, calling(call("a"), call("b")), result("b"), result("a")]), 1),
        (CHAT, chat([USER, calling(call(arguments='{"a":1,"a":2}')), result(), calling(call("d")), result("d")]), 2),
        (CHAT, chat([USER, {"role": "assistant", "content": "hm"}, USER], tools=[TOOL_OF_CHAT]), 1),
        (RESPONSES, responses("pay"), 0),
        (RESPONSES, responses([USER, item("a"), item("b"), output("b"), output("a")]), 1),
        (RESPONSES, responses([USER, item("a"), output("a"), item("b"), output("b")], tools=[FUNCTION]), 2),
    ],
)  # fmt: skip
def test_a_request_that_is_well_formed_is_answered_by_the_turns_in_it(
    path: str, body: Any, turn: int, new_stub: Callable[..., Stub]
) -> None:
    stub = new_stub([Answer(f"turn {at}") for at in range(3)])

    answered = post(stub, path, body)

    assert answered.status_code == 200
    assert f"turn {turn}" in answered.text
    assert [request.turn for request in stub.requests] == [turn]


def test_a_script_that_has_ended_is_said_to_have_ended(new_stub: Callable[..., Stub]) -> None:
    stub = new_stub([])

    refused = post(stub, CHAT, chat([USER]))

    assert (refused.status_code, "no turn 0" in refused.text) == (400, True)


def test_no_other_path_is_there(new_stub: Callable[..., Stub]) -> None:
    assert post(new_stub([]), "/v1/embeddings", {}).status_code == 404


def sent_with_reasoning(stub: Stub) -> list[dict[str, Any]]:
    body = responses([USER], include=["reasoning.encrypted_content"])
    items: list[dict[str, Any]] = post(stub, RESPONSES, body).json()["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert items[0]["encrypted_content"] == OPAQUE
    return items


def answers_to(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [output(item["call_id"]) for item in items if item["type"] == "function_call"]


def test_reasoning_that_comes_back_as_it_was_sent_is_taken(new_stub: Callable[..., Stub]) -> None:
    stub = new_stub(TURNS)
    items = sent_with_reasoning(stub)

    answered = post(stub, RESPONSES, responses([USER, *items, *answers_to(items)]))

    assert answered.json()["output"][0]["content"][0]["text"] == "All is paid."


@pytest.mark.parametrize(
    "change",
    [
        lambda items: [{**items[0], "encrypted_content": OPAQUE + " "}, *items[1:]],
        lambda items: [{**items[0], "encrypted_content": None}, *items[1:]],
        lambda items: [{**items[0], "id": "rs_9"}, *items[1:]],
        lambda items: items[1:],
        lambda items: [items[1], items[0], *items[2:]],
        lambda items: [items[0], items[1], items[3], items[2]],
        lambda items: items[:3],
        lambda items: [*items[:2], {**items[2], "arguments": "{}"}, items[3]],
        lambda items: [*items[:2], {**items[2], "name": "refund"}, items[3]],
    ],
    ids=["changed", "gone", "of another id", "left out", "late", "swapped", "cut", "other arguments", "other tool"],
)
def test_reasoning_that_comes_back_otherwise_is_refused(
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], new_stub: Callable[..., Stub]
) -> None:
    stub = new_stub(TURNS)
    items = change(sent_with_reasoning(stub))

    refused = post(stub, RESPONSES, responses([USER, *items, *answers_to(items)]))

    assert refused.status_code == 400
    assert "verified" in refused.text or "out of order" in refused.text


@asynccontextmanager
async def opened(stub: Any, path: str, **options: Any) -> AsyncIterator[Model[Any]]:
    """A model of pydantic-ai on the stub; it does not retry of itself."""
    http = DefaultAsyncHttpxClient(verify=NO_TLS)
    async with AsyncOpenAI(base_url=stub.url, api_key="none", max_retries=0, http_client=http, **options) as client:
        provider = OpenAIProvider(openai_client=client)
        yield (
            OpenAIChatModel("gpt-5", provider=provider)
            if path == CHAT
            else OpenAIResponsesModel("gpt-5", provider=provider)
        )


async def ask(stub: Any, path: str, *, stream: bool, **options: Any) -> ModelResponse:
    """Ask once."""
    messages: list[ModelMessage] = [ModelRequest.user_text_prompt("pay")]
    tool = ToolDefinition(name="pay", parameters_json_schema=TOOL["parameters"])  # type: ignore[arg-type]
    parameters = ModelRequestParameters(function_tools=[tool])
    async with opened(stub, path, **options) as model:
        if not stream:
            return await model.request(messages, None, parameters)
        async with model.request_stream(messages, None, parameters) as events:
            async for _ in events:
                pass
            return events.get()


forms = pytest.mark.parametrize("path", [CHAT, RESPONSES], ids=["chat", "responses"])
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@forms
@streams
def test_an_agent_of_pydantic_ai_holds_a_conversation_with_tools(
    path: str, *, stream: bool, new_stub: Callable[..., Stub]
) -> None:
    stub = new_stub(TURNS)
    paid: list[tuple[str, int]] = []

    async def converse() -> list[ModelMessage]:
        async with opened(stub, path) as model:
            agent = Agent(model)

            @agent.tool_plain
            def pay(to: str, amount: int) -> str:
                paid.append((to, amount))
                return "paid"

            if not stream:
                return (await agent.run("pay")).all_messages()
            async with agent.run_stream_events("pay") as events:
                return [event async for event in events][-1].result.all_messages()

    messages = run(converse())

    assert sorted(paid) == [("acct-1", 10), ("acct-2", 5)]
    first, last = (message for message in messages if isinstance(message, ModelResponse))
    thought = [part.signature for part in first.parts if isinstance(part, ThinkingPart)]
    calls = [(part.tool_call_id, part.args) for part in first.parts if isinstance(part, ToolCallPart)]
    assert thought == ([OPAQUE] if path == RESPONSES else [])
    assert calls == [(f"call_0_0_{at}", one.arguments) for at, one in enumerate(TURNS[0].calls)]
    assert (first.finish_reason, last.finish_reason) == ("tool_call" if path == CHAT else "stop", "stop")
    assert last.text == "All is paid."
    assert [(request.turn, request.got) for request in stub.requests] == [(0, "answer 0"), (1, "answer 0")]
    assert all(json.loads(request.body).get("stream", False) is stream for request in stub.requests)
    asked = json.loads(stub.requests[1].body)
    assert last.usage.input_tokens == tokens_of(asked["messages" if path == CHAT else "input"])
    assert last.usage.output_tokens == tokens_of(["All is paid."])


@forms
@streams
@pytest.mark.parametrize("text", ['{"command": "ls', "", "null", "[1]", '{"a":1,"a":2}', '{"a": "é\u2028"}'])
def test_arguments_are_sent_as_they_are_and_ids_as_they_were_chosen(
    path: str, *, stream: bool, text: str, new_stub: Callable[..., Stub]
) -> None:
    stub = new_stub([Answer(calls=(Call("pay", text, "same"), Call("pay", text, "same")))])

    said = run(ask(stub, path, stream=stream))

    calls = [part for part in said.parts if isinstance(part, ToolCallPart)]
    assert [(part.args or "", part.tool_call_id) for part in calls] == [(text, "same")] * 2


@forms
@streams
@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_an_answer_ends_for_the_reason_of_the_script(
    path: str, *, stream: bool, reason: str, new_stub: Callable[..., Stub]
) -> None:
    stub = new_stub([Answer("I p", finish=reason)])

    said = run(ask(stub, path, stream=stream))

    assert (said.text, said.finish_reason) == ("I p", reason)


def test_an_empty_id_is_sent_empty(new_stub: Callable[..., Stub]) -> None:
    stub = new_stub([Answer(calls=(Call("pay", "{}", ""),))])

    said = [post(stub, CHAT, chat([USER])).json(), post(stub, RESPONSES, responses([USER])).json()]

    assert said[0]["choices"][0]["message"]["tool_calls"][0]["id"] == ""
    assert said[1]["output"][0]["call_id"] == ""


@forms
def test_a_request_that_comes_again_gets_the_next_answer_and_at_last_the_last_one(
    path: str, new_stub: Callable[..., Stub]
) -> None:
    stub = new_stub([Turn((Answer("acct-1"), Answer("acct-2")))])

    said = [run(ask(stub, path, stream=False)).text for _ in range(3)]

    assert said == ["acct-1", "acct-2", "acct-2"]
    assert [request.got for request in stub.requests] == ["answer 0", "answer 1", "answer 1"]


def test_a_script_may_be_a_function_of_the_request(new_stub: Callable[..., Stub]) -> None:
    def echo(asked: Asked) -> Answer:
        return Answer(f"{asked.opening} at {asked.turn}")

    answered = post(new_stub(echo), CHAT, chat([USER]))

    assert answered.json()["choices"][0]["message"]["content"] == '"pay" at 0'


def test_a_script_that_raises_is_answered_and_shown(
    new_stub: Callable[..., Stub], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(asked: Asked) -> Answer:
        raise LookupError(asked.opening)

    stub = new_stub(fail)
    refused = post(stub, CHAT, chat([USER]))
    stub.close()

    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "stub_failed")
    assert "LookupError" in capsys.readouterr().err


def failure(stub: Stub, path: str, *, stream: bool, **options: Any) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011  # each test says which
        run(ask(stub, path, stream=stream, **options))
    return raised.value


@forms
@streams
@pytest.mark.parametrize(
    ("ill", "status"), [(Ill.RATE_LIMITED, 429), (Ill.BROKEN, 500), (Ill.OVERLOADED, 503)], ids=["429", "500", "503"]
)
def test_a_refusal_for_now_comes_as_often_as_it_says_and_then_the_answer(
    path: str, *, stream: bool, ill: Ill, status: int, new_stub: Callable[..., Stub]
) -> None:
    stub = new_stub([Turn((Answer("paid"),), (Fault(ill, times=2, seconds=7),))])

    failures = [failure(stub, path, stream=stream) for _ in range(2)]
    said = run(ask(stub, path, stream=stream))

    assert all(isinstance(one, ModelHTTPError) and one.status_code == status for one in failures)
    assert said.text == "paid"
    assert [request.got for request in stub.requests] == [ill, ill, "answer 0"]


def test_a_rate_limit_says_how_many_seconds_to_wait(new_stub: Callable[..., Stub]) -> None:
    stub = new_stub([Turn((Answer("paid"),), (Fault(Ill.RATE_LIMITED, seconds=7),))])

    assert post(stub, CHAT, chat([USER])).headers["retry-after"] == "7"


@forms
@pytest.mark.parametrize("ill", [Ill.CUT_BEFORE, Ill.CUT_BODY, Ill.CUT_STREAM])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_connection_that_is_cut_is_an_error_of_the_connection(
    path: str, ill: Ill, *, stream: bool, new_stub: Callable[..., Stub]
) -> None:
    stub = new_stub([Turn((TURNS[0],), (Fault(ill, times=2),))])
    body = {**(chat([USER]) if path == CHAT else responses([USER])), "stream": stream}

    with pytest.raises(httpx.RemoteProtocolError, match=r"without sending (a response|complete)"):
        post(stub, path, body)
    failed = failure(stub, path, stream=stream)
    said = run(ask(stub, path, stream=stream))

    assert isinstance(failed, ModelAPIError), repr(failed)
    assert said.tool_calls


def received(stub: Stub, path: str, body: dict[str, Any]) -> str:
    """Return what came of a stream before it was cut."""
    text = ""
    url = stub.url.removesuffix("/v1") + path
    with (
        suppress(httpx.RemoteProtocolError),
        httpx.stream("POST", url, json={**body, "stream": True}, verify=NO_TLS) as events,
    ):
        for piece in events.iter_text():
            text += piece
    return text


@forms
@pytest.mark.parametrize(
    ("answer", "first", "last"),
    [
        (Answer("a long text is said"), "a long te", "d"),
        (Answer("Now.", (Call("pay"), Call("pay", "0123456789"))), "01234", "56789"),
    ],
    ids=["text", "arguments"],
)
def test_a_stream_is_cut_in_the_middle_of_what_is_said(
    path: str, answer: Answer, first: str, last: str, new_stub: Callable[..., Stub]
) -> None:
    stub = new_stub([Turn((answer,), (Fault(Ill.CUT_STREAM),))])
    body = chat([USER]) if path == CHAT else responses([USER])

    cut, whole = received(stub, path, body), received(stub, path, body)

    assert (f'"{first}"' in cut, f'"{last}"' in cut) == (True, False)
    assert whole.startswith(cut)
    assert f'"{last}"' in whole
    assert cut.endswith("\n\n")


def test_a_body_that_is_cut_is_cut_within_an_event(new_stub: Callable[..., Stub]) -> None:
    stub = new_stub([Turn((Answer("a long text is said"),), (Fault(Ill.CUT_BODY),))])

    cut, whole = received(stub, CHAT, chat([USER])), received(stub, CHAT, chat([USER]))

    assert whole.startswith(cut)
    assert len(cut) == len(whole) // 2


@forms
@streams
@pytest.mark.parametrize("ill", [Ill.MALFORMED, Ill.EMPTY_BODY, Ill.EMPTY_CHOICES])
def test_a_body_without_an_answer_is_no_answer_to_the_client(
    path: str, *, stream: bool, ill: Ill, new_stub: Callable[..., Stub]
) -> None:
    stub = new_stub([Turn((Answer("paid"),), (Fault(ill),))])

    try:
        parts = run(ask(stub, path, stream=stream)).parts
    except (UnexpectedModelBehavior, ModelAPIError, IndexError):  # the last, where there is no choice to take
        parts = []
    said = run(ask(stub, path, stream=stream))

    assert parts == []
    assert said.text == "paid"


@forms
@pytest.mark.parametrize(("ill", "content"), [(Ill.MALFORMED, None), (Ill.EMPTY_BODY, b"")])
def test_a_body_that_is_malformed_or_empty_is_so(
    path: str, ill: Ill, content: bytes | None, new_stub: Callable[..., Stub]
) -> None:
    stub = new_stub([Turn((Answer("paid"),), (Fault(ill),))])

    answered = post(stub, path, chat([USER]) if path == CHAT else responses([USER]))

    assert answered.status_code == 200
    assert content is None or answered.content == content
    with pytest.raises(json.JSONDecodeError):
        answered.json()


@forms
@streams
def test_an_answer_may_end_without_a_reason(path: str, *, stream: bool, new_stub: Callable[..., Stub]) -> None:
    stub = new_stub([Turn((Answer("paid"),), (Fault(Ill.NO_FINISH),))])
    body = chat([USER]) if path == CHAT else responses([USER])

    without, whole = (received(stub, path, body) if stream else post(stub, path, body).text for _ in range(2))

    reason = '"finish_reason":"stop"' if path == CHAT else '"status":"completed","tool_choice"'
    assert (reason in without, reason in whole) == (False, True)
    assert "paid" in without or '"delta":"pa"' in without or '"content":"pa"' in without


@forms
@streams
def test_a_slow_answer_is_good_if_it_is_waited_for(path: str, *, stream: bool, new_stub: Callable[..., Stub]) -> None:
    stub = new_stub([Turn((Answer("paid"),), (Fault(Ill.SLOW, times=2, seconds=0.4),))])

    impatient = failure(stub, path, stream=stream, timeout=0.1)
    began = time.monotonic()
    said = run(ask(stub, path, stream=stream))

    assert isinstance(impatient, ModelAPIError)
    assert time.monotonic() - began >= 0.4
    assert said.text == "paid"


def test_a_stub_that_is_closed_does_not_wait_for_its_slow_answers() -> None:
    with Stub([Turn((Answer("late"),), (Fault(Ill.SLOW, seconds=60),))]) as stub:
        with pytest.raises(httpx.ReadTimeout):
            post(stub, CHAT, chat([USER]), timeout=0.2)
        began = time.monotonic()

    assert time.monotonic() - began < 5


def test_the_same_conversation_is_the_same_bytes_in_each_transcript(new_stub: Callable[..., Stub]) -> None:
    one, other = new_stub(TURNS), new_stub(TURNS)
    for stub in (one, other, other):
        post(stub, CHAT, chat([USER], stream=False))

    assert asked_again(one.requests, one.requests) == []
    assert asked_again(one.requests, other.requests) == [0]


@pytest.mark.parametrize("others", [[], ["pay!"], ["pay", "pay!"]], ids=["fewer", "other", "more"])
def test_transcripts_that_differ_are_not_the_same(others: list[str], new_stub: Callable[..., Stub]) -> None:
    one, other = new_stub(TURNS), new_stub(TURNS)
    post(one, CHAT, chat([USER]))
    for text in others:
        post(other, CHAT, chat([{"role": "user", "content": text}]))

    with pytest.raises(AssertionError, match=r"differs|instead of"):
        asked_again(one.requests, other.requests)


DYING = """
import os, signal, sys, httpx
stream = httpx.stream("POST", sys.argv[1] + "/chat/completions", content=sys.argv[2])
stream.__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_transcript_outlives_the_client_and_the_stub_and_a_new_stub_goes_on_from_it(
    new_stub_process: Callable[..., Any],
) -> None:
    stub = new_stub_process([Turn((TURNS[0], Answer("again")))])
    body = chat([USER])

    killed = subprocess.run([sys.executable, "-c", DYING, stub.url, json.dumps(body)], check=False, timeout=60)
    stub.kill()
    left = stub.requests
    stub.start()
    answered = post(stub, CHAT, body)

    assert killed.returncode == -signal.SIGKILL
    assert [(request.turn, request.got) for request in left] == [(0, "answer 0")]
    assert answered.json()["choices"][0]["message"]["content"] == "again"
    assert asked_again(left, stub.requests) == [0]


def test_a_request_is_on_disk_before_a_byte_of_its_answer_is_sent(new_stub_process: Callable[..., Any]) -> None:
    stub = new_stub_process([Turn((Answer("late"),), (Fault(Ill.SLOW, seconds=60),))])

    with pytest.raises(httpx.ReadTimeout):
        post(stub, CHAT, chat([USER]), timeout=2)
    stub.kill()

    assert [request.got for request in stub.requests] == [Ill.SLOW]


def test_a_stub_that_was_killed_knows_what_it_sent(new_stub_process: Callable[..., Any]) -> None:
    stub = new_stub_process(TURNS)
    items = sent_with_reasoning(stub)

    stub.kill()
    stub.start()
    answered = post(stub, RESPONSES, responses([USER, *items, *answers_to(items)]))

    assert answered.status_code == 200
