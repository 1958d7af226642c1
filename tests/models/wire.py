"""An answer as the two APIs send it: as one object, or as events of a stream.

Rule: ids and times come from the place in the script alone, so that a conversation is the same bytes each time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.models.script import Answer
from tests.models.strict import CHAT, Json, canonical

CREATED_AT = 1_783_245_600
PIECE = 12
ENCRYPTED = "reasoning.encrypted_content"


@dataclass(frozen=True)
class Event:
    """One event of a stream.

    A ``delta`` holds a piece of text or arguments, ``finish`` the reason why it ends, ``done`` nothing.
    """

    kind: str
    data: Json


def tokens_of(value: Any) -> int:
    """Count the tokens of a value: one for each four bytes of its canonical JSON text, rounded up."""
    return -(-len(canonical(value).encode()) // 4)


@dataclass(frozen=True)
class Reply:
    """The answer to one request: the ``nth`` answer of a ``turn``."""

    path: str
    body: Json
    answer: Answer
    turn: int
    nth: int

    @property
    def usage(self) -> tuple[int, int]:
        """The tokens of the messages or the input (tools not counted), and of all that is said."""
        asked = self.body["messages"] if self.path == CHAT else self.body["input"]
        said = [self.answer.text, *([call.name, call.arguments] for call in self.answer.calls)]
        return tokens_of(asked), tokens_of(said)

    def whole(self) -> Json:
        """Return the answer as one object."""
        return self._chat() if self.path == CHAT else self._response(self.items(), self._status)

    def events(self) -> Iterator[Event]:
        """Yield the answer as the events of a stream."""
        yield from self._chunks() if self.path == CHAT else self._response_events()

    def items(self) -> list[Json]:
        """Return the output in the form of ``responses``; what a request says later is compared with it."""
        items: list[Json] = []
        if self.answer.reasoning is not None:
            encrypted = self.answer.reasoning if ENCRYPTED in (self.body.get("include") or []) else None
            items.append({"type": "reasoning", "id": self._id("rs"), "summary": [], "encrypted_content": encrypted})
        if self.answer.text:
            text = {"type": "output_text", "text": self.answer.text, "annotations": [], "logprobs": []}
            message = {"type": "message", "id": self._id("msg"), "role": "assistant", "content": [text]}
            items.append({**message, "status": "completed"})
        for at, call in enumerate(self.answer.calls):
            item = {"type": "function_call", "id": self._id("fc", at), "name": call.name, "arguments": call.arguments}
            items.append({**item, "call_id": self._call_id(at), "status": "completed"})
        return items

    def _id(self, kind: str, at: int | None = None) -> str:
        return f"{kind}_{self.turn}_{self.nth}" + ("" if at is None else f"_{at}")

    def _call_id(self, at: int) -> str:
        chosen = self.answer.calls[at].id
        return self._id("call", at) if chosen is None else chosen

    def _chat(self) -> Json:
        message = {"role": "assistant", "content": self.answer.text or None, "refusal": None}
        if self.answer.calls:
            message["tool_calls"] = [
                {
                    "id": self._call_id(at),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for at, call in enumerate(self.answer.calls)
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.answer.reason}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self._chat_usage()}

    def _head(self, kind: str) -> Json:
        return {
            "id": self._id("chatcmpl"),
            "object": kind,
            "created": CREATED_AT,
            "model": self.body["model"],
        }

    def _chat_usage(self) -> Json:
        asked, said = self.usage
        return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}

    def _chunks(self) -> Iterator[Event]:
        def chunk(delta: Json, reason: str | None = None) -> Json:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
            return {**self._head("chat.completion.chunk"), "choices": [choice]}

        yield Event("open", chunk({"role": "assistant", "content": "", "refusal": None}))
        for piece in pieces(self.answer.text):
            yield Event("delta", chunk({"content": piece}))
        for at, call in enumerate(self.answer.calls):
            opened = {"index": at, "id": self._call_id(at), "type": "function"}
            yield Event("open", chunk({"tool_calls": [{**opened, "function": {"name": call.name, "arguments": ""}}]}))
            for piece in pieces(call.arguments):
                yield Event("delta", chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]}))
        yield Event("finish", chunk({}, self.answer.reason))
        if (self.body.get("stream_options") or {}).get("include_usage"):
            yield Event("usage", {**chunk({}), "choices": [], "usage": self._chat_usage()})
        yield Event("done", {})

    @property
    def _status(self) -> str:
        return "incomplete" if self.answer.reason in {"length", "content_filter"} else "completed"

    def _response(self, output: list[Json], status: str) -> Json:
        asked, said = self.usage
        reason = "max_output_tokens" if self.answer.reason == "length" else self.answer.reason
        usage = {"input_tokens": asked, "output_tokens": said, "total_tokens": asked + said}
        usage["input_tokens_details"] = {"cached_tokens": 0, "cache_write_tokens": 0}
        usage["output_tokens_details"] = {"reasoning_tokens": 0}
        return {
            "id": self._id("resp"),
            "object": "response",
            "created_at": CREATED_AT,
            "model": self.body["model"],
            "status": status,
            "error": None,
            "incomplete_details": {"reason": reason} if status == "incomplete" else None,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": self.body.get("tools") or [],
            "usage": None if status == "in_progress" else usage,
        }

    def _response_events(self) -> Iterator[Event]:
        opened = self._response([], "in_progress")
        yield Event("open", {"type": "response.created", "response": opened})
        yield Event("open", {"type": "response.in_progress", "response": opened})
        for at, item in enumerate(self.items()):
            place = {"output_index": at}
            empty = {"content": [], "arguments": ""}
            started = {**item, **{name: value for name, value in empty.items() if name in item}}
            if "status" in item:
                started["status"] = "in_progress"
            yield Event("open", {"type": "response.output_item.added", "item": started, **place})
            yield from _inside(item, {"item_id": item["id"], **place})
            yield Event("open", {"type": "response.output_item.done", "item": item, **place})
        closed = self._response(self.items(), self._status)
        yield Event("finish", {"type": f"response.{self._status}", "response": closed})


def _inside(item: Json, place: Json) -> Iterator[Event]:
    match item["type"]:
        case "function_call":
            for piece in pieces(item["arguments"]):
                yield Event("delta", {"type": "response.function_call_arguments.delta", "delta": piece, **place})
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield Event("open", {"type": "response.function_call_arguments.done", **done, **place})
        case "message":
            (part,) = item["content"]
            place = {"content_index": 0, **place}
            yield Event("open", {"type": "response.content_part.added", "part": {**part, "text": ""}, **place})
            for piece in pieces(part["text"]):
                delta = {"type": "response.output_text.delta", "delta": piece, "logprobs": []}
                yield Event("delta", {**delta, **place})
            done = {"type": "response.output_text.done", "text": part["text"], "logprobs": []}
            yield Event("open", {**done, **place})
            yield Event("open", {"type": "response.content_part.done", "part": part, **place})


def pieces(text: str) -> list[str]:
    """Split a text into the deltas of a stream: two at least, where it has two characters."""
    size = max(1, min(PIECE, len(text) // 2))
    return [text[at : at + size] for at in range(0, len(text), size)]
