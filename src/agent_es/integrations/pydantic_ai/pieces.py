"""What a model is asked, in pieces: enough to tell whether it is asked the same again after a resume.

Rule 1: a request is told by what is new in it since the one before: a journal grows with what is said, once.
Rule 2: a piece has a digest of all of it, and so much of its text that a person sees what it is.
Rule 3: what is different each time and means nothing is left out: times, the ids of runs, and data of the program.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import unified_diff
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_jsonable_python

from agent_es.errors import RequestDiverged
from agent_es.integrations.pydantic_ai.kept import parts_as_data
from agent_es.values import bounded, canonical, digest, valid_unicode

LONGEST = 400
"""Characters of the text of a piece."""

SHOWN = 60
"""Lines of a difference that an error shows."""

LEFT_OUT = frozenset(("timestamp", "metadata"))
"""Of a part of a message: the model does not see it."""

NO_MATTER = frozenset(("extra_headers", "timeout"))
"""Settings that change nothing of what is asked; one may hold a secret."""

Piece = Mapping[str, str]
"""``what`` it is, the ``digest`` of the whole, and its ``text``, bounded."""


class Questions:
    """The requests of one run, one after the other: what was in the last one is not told again."""

    def __init__(self) -> None:
        self._standing: Sequence[Piece] = ()
        self._known: list[tuple[ModelMessage, str]] = []

    def new_in(self, request: ModelRequestContext) -> Sequence[Piece]:
        """Return what of a request is new: instructions, settings and tools where they changed, then messages."""
        standing, before = [*_standing(request)], self._standing
        self._standing = standing
        changed = [] if standing == before else [piece for piece in standing if piece not in before]
        gone = [_piece("no more", piece["what"]) for piece in before if piece["what"] not in _names(standing)]
        return [*changed, *gone, *self._new_messages(request.messages)]

    def answered(self, answer: ModelMessage) -> None:
        """Take in an answer: it is on record, and not told again."""
        self._known.append((answer, _digest(answer)))

    def _new_messages(self, messages: Sequence[ModelMessage]) -> Iterable[Piece]:
        same = 0
        for message, (known, its_digest) in zip(messages, self._known, strict=False):
            if message is not known and _digest(message) != its_digest:
                break
            same += 1
        if same < len(self._known):
            yield _piece("history", f"goes on after message {same}")
        new = messages[same:]
        self._known = [*self._known[:same], *((message, _digest(message)) for message in new)]
        for message in new:
            yield from map(_piece_of, _parts(message))


def check_same(run_id: str, turn: int, recorded: Sequence[Piece], now: Sequence[Piece]) -> None:
    """Raise ``RequestDiverged`` where a request is not the one that was answered, with what differs."""
    if [*recorded] == [*now]:
        return
    lines = [*unified_diff(_lines(recorded), _lines(now), "on record", "now", n=0, lineterm="")]
    cut = [] if len(lines) <= SHOWN else [f"({len(lines) - SHOWN} more lines)"]
    raise RequestDiverged(
        f"run {run_id}: request {turn} to the model is not the one that was answered; nothing was done.  Run the "
        "program as it was, or start another run id.  What differs:\n" + "\n".join([*lines[:SHOWN], *cut])
    )


def _lines(pieces: Sequence[Piece]) -> list[str]:
    """Return pieces as lines; one that was cut ends in its digest."""
    lines = []
    for piece in pieces:
        cut = f" ({piece['digest'][:12]})" if len(piece["text"]) >= LONGEST else ""
        lines += f"{piece['what']}: {piece['text']}{cut}".splitlines()
    return lines


def _standing(request: ModelRequestContext) -> Iterable[Piece]:
    """Yield what stands beside the messages."""
    asked = request.model_request_parameters
    if asked.instruction_parts:
        yield _piece("instructions", "\n\n".join(part.content for part in asked.instruction_parts))
    if settings := {k: v for k, v in (request.model_settings or {}).items() if k not in NO_MATTER}:
        yield _piece("settings", _json(settings))
    yield _piece("tools", ", ".join(tool.name for tool in asked.function_tools))
    yield from (_piece(f"tool {tool.name}", _definition(tool)) for tool in asked.function_tools)
    if asked.native_tools:
        yield _piece("native tools", _json(asked.native_tools))
    schema = None if asked.output_object is None else asked.output_object.json_schema
    yield _piece("output", _json({"mode": asked.output_mode, "text": asked.allow_text_output, "object": schema}))
    yield from (_piece(f"output tool {tool.name}", _definition(tool)) for tool in asked.output_tools)


def _definition(tool: ToolDefinition) -> str:
    told = {"parameters": tool.parameters_json_schema, "kind": tool.kind, "strict": tool.strict}
    return f"{tool.description or ''}\n{_json(told)}".strip()


def _names(pieces: Iterable[Piece]) -> set[str]:
    return {piece["what"] for piece in pieces}


def _parts(message: ModelMessage) -> Iterable[Mapping[str, Any]]:
    who = "" if isinstance(message, ModelRequest) else "answered "
    for part in parts_as_data(message):
        kept = {name: value for name, value in part.items() if name not in LEFT_OUT}
        yield {**kept, "part_kind": f"{who}{kept['part_kind']}"}


def _piece_of(part: Mapping[str, Any]) -> Piece:
    kind, name, content = part["part_kind"], part.get("tool_name"), part.get("content")
    text = content if isinstance(content, str) else _json(part if content is None else content)
    return _piece(f"{kind} {name}" if name else kind, text, whole=_json(part))


def _piece(what: str, text: str, whole: str | None = None) -> Piece:
    return {"what": what, "digest": digest(valid_unicode(whole or text)), "text": bounded(text, LONGEST)}


def _digest(message: ModelMessage) -> str:
    return digest(_json([*_parts(message)]))


def _json(value: Any) -> str:
    return canonical(to_jsonable_python(value, fallback=lambda unknown: type(unknown).__qualname__))
