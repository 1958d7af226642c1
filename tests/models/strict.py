"""What a chat API demands of a request, in its two forms: ``chat/completions`` and ``responses``.

Rule 1: both forms become one list of parts, so that what is demanded of calls and answers stands here once.
Rule 2: a call is answered once, after its turn and before anything else; its id is no other call's in the request.
Rule 3: a turn that was sent with reasoning comes back whole, in its order, its encrypted content byte for byte.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NoReturn

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

Json = dict[str, Any]


class Refused(Exception):
    """The API answers 400: ``param`` is the place in the request."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True)
class Part:
    """One thing in a request: ``said`` to the model; ``spoke``, ``thought``, ``call`` by it; ``answer`` to a call."""

    kind: str
    where: str
    data: Json

    @property
    def by_model(self) -> bool:
        return self.kind in {"spoke", "thought", "call"}


def parse(raw: bytes) -> Json:
    """Return the body of a request; raise ``Refused`` if it is not a JSON object in valid Unicode."""
    try:
        body = json.loads(raw.decode(), parse_constant=_refuse_constant)
        text = canonical(body)
        text.encode()
    except (UnicodeError, ValueError) as error:
        raise Refused("body", f"We could not parse the JSON body of your request: {error}") from None
    if not isinstance(body, dict):
        raise Refused("body", "The body is a JSON object")
    return body


def canonical(value: Any) -> str:
    """Return the JSON text of a value, the same for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def check(path: str, body: Json, sent: Sequence[Sequence[Json]]) -> list[Part]:
    """Return the parts of a request; raise ``Refused``.  ``sent`` is each output that went out before, its items."""
    if not isinstance(body.get("model"), str):
        raise Refused("model", "You must provide a model")
    parts = list(_parts_of_chat(body) if path == CHAT else _parts_of_responses(body))
    _check_tools(path, body.get("tools", []))
    _check_calls(parts)
    for by_model, turn in groupby(parts, key=lambda part: part.by_model):
        if by_model and path == RESPONSES:
            _check_opaque([*turn], sent)
    return parts


def turns_in(parts: Sequence[Part]) -> int:
    """Count the model's turns: what it said with nothing of anybody else in between."""
    return sum(by_model for by_model, _ in groupby(parts, key=lambda part: part.by_model))


def opening_of(parts: Sequence[Part]) -> str:
    """Return the content of the first user message as JSON text."""
    return next((canonical(part.data.get("content")) for part in parts if part.data.get("role") == "user"), "")


def _parts_of_chat(body: Json) -> Iterator[Part]:
    for where, message in _objects("messages", body.get("messages")):
        match message.get("role"):
            case "system" | "developer" | "user":
                _check_content(where, message)
                yield Part("said", where, message)
            case "assistant":
                calls = message.get("tool_calls")
                if calls is None:
                    _check_content(where, message)
                yield Part("spoke", where, message)
                for place, call in [] if calls is None else _objects(f"{where}.tool_calls", calls):
                    function = call.get("function")
                    if call.get("type") != "function" or not isinstance(function, dict):
                        raise Refused(place, "A tool call is of the type 'function', and has one")
                    yield Part("call", place, {**function, "call_id": call.get("id")})
            case "tool":
                _check_content(where, message)
                yield Part("answer", where, {**message, "call_id": message.get("tool_call_id")})
            case role:
                raise Refused(f"{where}.role", f"Invalid value: {role!r}")


def _parts_of_responses(body: Json) -> Iterator[Part]:
    said = body.get("input")
    if isinstance(said, str) and said:
        said = [{"role": "user", "content": said}]
    for where, item in _objects("input", said):
        match item.get("type", "message"), item.get("role"):
            case "message", "system" | "developer" | "user":
                _check_content(where, item)
                yield Part("said", where, item)
            case "message", "assistant":
                _check_content(where, item)
                yield Part("spoke", where, item)
            case "message", role:
                raise Refused(f"{where}.role", f"Invalid value: {role!r}")
            case "function_call" | "reasoning" as kind, _:
                yield Part("call" if kind == "function_call" else "thought", where, item)
            case "function_call_output", _:
                _check_content(where, {"content": item.get("output")})
                yield Part("answer", where, item)
            case kind, _:
                raise Refused(f"{where}.type", f"Invalid value: {kind!r}")


def _objects(where: str, values: Any) -> Iterator[tuple[str, Json]]:
    if not isinstance(values, list) or not values:
        raise Refused(where, f"Invalid {where!r}: expected a list with at least one entry")
    for at, value in enumerate(values):
        if not isinstance(value, dict):
            raise Refused(f"{where}[{at}]", "Expected an object")
        yield f"{where}[{at}]", value


def _check_content(where: str, message: Json) -> None:
    content = message.get("content")
    if isinstance(content, str) or (isinstance(content, list) and all(isinstance(part, dict) for part in content)):
        return
    raise Refused(f"{where}.content", f"Expected a text or a list of parts, got {content!r}")


def _check_tools(path: str, tools: Any) -> None:
    for where, tool in _objects("tools", tools) if tools else ():
        function = tool.get("function") if path == CHAT else tool
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise Refused(where, "A tool is of the type 'function', and has one")
        _check_name(where, function)
        schema = function.get("parameters")
        is_object = isinstance(schema, dict) and schema.get("type") == "object"
        if not is_object or not isinstance(schema.get("properties", {}), dict):
            raise Refused(
                f"{where}.parameters", f"Invalid schema for function {function['name']!r}: no object schema"
            )


def _check_name(where: str, function: Json) -> None:
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Refused(f"{where}.name", f"Expected a name like {NAME.pattern}, got {name!r}")


def _check_calls(parts: Sequence[Part]) -> None:
    calls: dict[str, bool] = {}  # of the turn at hand, and whether each has its answer
    seen: set[str] = set()
    previous = ""
    for part in parts:
        if part.kind == "answer":
            call_id = part.data.get("call_id")
            if not isinstance(call_id, str) or call_id not in calls:
                raise Refused(part.where, f"No tool call just before it has the id {call_id!r}")
            if calls[call_id]:
                raise Refused(part.where, f"The tool call {call_id!r} has an answer already")
            calls[call_id] = True
        elif part.kind != "call" or previous == "answer":
            _check_answered(part.where, calls)
            calls = {}
        if part.kind == "call":
            call_id = _check_call(part)
            if call_id in seen:
                raise Refused(part.where, f"Two tool calls have the id {call_id!r}")
            seen.add(call_id)
            calls[call_id] = False
        previous = part.kind
    _check_answered("the end", calls)


def _check_answered(where: str, calls: dict[str, bool]) -> None:
    if waiting := [call_id for call_id, answered in calls.items() if not answered]:
        raise Refused(where, f"No tool output found for the tool calls {waiting}")


def _check_call(part: Part) -> str:
    _check_name(part.where, part.data)
    call_id = part.data.get("call_id")
    if not isinstance(call_id, str) or not call_id:
        raise Refused(part.where, "A tool call has an id, which is not empty")
    if as_object(part.data.get("arguments")) is None:
        raise Refused(f"{part.where}.arguments", "The arguments are the text of a JSON object")
    return call_id


def as_object(text: Any) -> Json | None:
    """Return the object that a JSON text is, None if it is none."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (TypeError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_opaque(turn: Sequence[Part], sent: Sequence[Sequence[Json]]) -> None:
    with_reasoning = [output for output in sent if any(item["type"] == "reasoning" for item in output)]
    their_ids = [item["id"] for output in with_reasoning for item in output]
    thoughts = [part for part in turn if part.kind == "thought"]
    known = [item["encrypted_content"] for output in with_reasoning for item in output if item["type"] == "reasoning"]
    for part in thoughts:
        if part.data.get("encrypted_content") not in known:
            raise Refused(part.where, "The encrypted content could not be verified: it is not what was sent")
    if not thoughts and not any(part.data.get("id") in their_ids for part in turn):
        return
    if not any(_is_same_turn(turn, output) for output in with_reasoning):
        raise Refused(turn[0].where, "A reasoning item, or what follows it, is missing, changed or out of order")


def _is_same_turn(turn: Sequence[Part], output: Sequence[Json]) -> bool:
    return len(turn) == len(output) and all(
        _is_same_item(part.data, item) for part, item in zip(turn, output, strict=True)
    )


def _is_same_item(got: Json, sent: Json) -> bool:
    if got.get("type", "message") != sent["type"] or got.get("id") not in (None, sent["id"]):
        return False
    match sent["type"]:
        case "reasoning":
            return got.get("encrypted_content") == sent["encrypted_content"]
        case "function_call":  # arguments that are no JSON cannot come back as they are
            arguments = as_object(sent["arguments"])
            return got["name"] == sent["name"] and arguments in (None, as_object(got["arguments"]))
    return True
