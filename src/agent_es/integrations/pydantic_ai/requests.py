"""What a model is asked: a conversation that is built from the run as folded, and the tools that it may call.

Rule 1: the same state gives the same request: no clock, no ids of this process.
Rule 2: each call of the conversation is followed by what became of it, in decision order, whatever ended first.
Rule 3: an answer is given back as the model said it, with what is opaque in it; only the arguments of its calls are
those that the journal has, which can be parsed, and ids that a model repeats or leaves out are made unique.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import ToolDefinition

from agent_es.scratchpad import shown
from agent_es.state import ModelAnswer, RunState, Step
from agent_es.tools import ToolSpec
from agent_es.values import decode

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""When all messages were made, as far as a request says."""

LOCAL = ("timestamp", "run_id", "conversation_id", "model_id", "metadata", "workspace_ref", "failed_attempts")
"""What a message says of the process that asked: none of it is the model's, and it is never sent."""

MADE_UP = "pyd_ai_"
"""How the ids begin that the model layer makes up, at random, where a model gave none."""

CUT = "length"
"""The reason of an answer that ended because it was too long."""


def conversation(state: RunState, *, longest: int, instructions: str | None) -> list[ModelMessage]:
    """Return all that is said to a model: a result of more than ``longest`` characters is cut."""
    said = deque(state.messages)
    answers = {answer.turn: answer for answer in state.answers}
    ids = call_ids(state.steps)
    messages = list[ModelMessage]()
    parts = opening(state)
    for turn, group in groupby(state.steps[state.summarized :], key=attrgetter("turn")):
        while said and said[0].turn <= turn:
            parts.append(told(f"{said[0].by} says: {said.popleft().text}"))
        steps = [*group]
        messages += [request(parts, instructions), response_of(answers.get(turn), steps, ids)]
        parts = [returned(step, ids[step.idx], longest) for step in steps]
    parts += [told(f"{message.by} says: {message.text}") for message in said]
    parts += [told(f"Your last answer could not be used: {why}. Answer again.") for why in state.unusable]
    return [*messages, request(parts, instructions)]


def opening(state: RunState) -> list[ModelRequestPart]:
    """Return what stands at the beginning: the goal, and apart from it what changes, facts and summaries."""
    given = "" if state.input_json == "null" else f"\n\nInput: {state.input_json}"
    parts: list[ModelRequestPart] = [told(f"{state.goal}{given}")]
    if state.summaries:
        done = [f"{one.phase}: {one.text}" if one.phase else one.text for one in state.summaries]
        parts.append(told("\n\n".join(["What was done so far, in summary:", *done])))
    if state.facts_json:
        known = [f"{name} = {value}" for name, value in state.facts_json.items()]
        parts.append(told("\n".join(["What is known:", *known])))
    return parts


def call_ids(steps: Sequence[Step]) -> Mapping[int, str]:
    """Return an id for each step: its model's own, where that is one and the first of its kind."""
    ids, taken = dict[int, str](), set[str]()
    for step in steps:
        given = step.call_id
        name = f"call_{step.idx}" if not given or given.startswith(MADE_UP) or given in taken else given
        while name in taken:
            name = f"{name}_"
        ids[step.idx] = name
        taken.add(name)
    return ids


def response_of(answer: ModelAnswer | None, steps: Sequence[Step], ids: Mapping[int, str]) -> ModelResponse:
    """Return what was said for a turn: word for word where a model said it, else as a model would have."""
    recorded = None if answer is None else as_message(answer.answer_json)
    if recorded is None or [call.tool_name for call in recorded.tool_calls] != [step.tool for step in steps]:
        calls = [ToolCallPart(step.tool, step.said_json, ids[step.idx]) for step in steps]
        return ModelResponse(parts=calls, timestamp=EPOCH)
    made = iter(steps)
    parts = list[ModelResponsePart]()
    for part in recorded.parts:
        if isinstance(part, ToolCallPart):
            step = next(made)
            parts.append(replace(part, args=step.said_json, tool_call_id=ids[step.idx]))
        elif not (isinstance(part, ThinkingPart) and recorded.finish_reason == CUT and not part.signature):
            parts.append(part)
    return replace(recorded, parts=parts)


def returned(step: Step, call_id: str, longest: int) -> ToolReturnPart:
    """Return what became of a call; a failure, a refusal and a doubt that is told are errors to be read."""
    if step.status == "done":
        return ToolReturnPart(step.tool, shown(step, longest), call_id, timestamp=EPOCH)
    return ToolReturnPart(step.tool, _why(step.error), call_id, timestamp=EPOCH, outcome="failed")


def _why(error: Mapping[str, Any] | None) -> str:
    if error is None:
        return "Nothing came of it."
    said = f"{error['type']}: {error['message']}"
    applied = {None: "Nobody knows whether it happened.", True: "It happened all the same."}
    more = applied.get(error.get("applied", False))
    return said if more is None else f"{said.rstrip('.')}. {more}"


def as_json(response: ModelResponse) -> Any:
    """Return a message as the journal keeps it: what the model said, and nothing of who asked."""
    (data,) = ModelMessagesTypeAdapter.dump_python([response], mode="json", exclude_none=True)
    for part in data["parts"]:
        if part.get("tool_call_id", "").startswith(MADE_UP):
            part["tool_call_id"] = ""
    kept = {name: value for name, value in data.items() if name not in LOCAL}
    return {**kept, "usage": {name: count for name, count in kept["usage"].items() if count}}


def as_message(answer_json: str) -> ModelResponse | None:
    """Return the message that the journal has, or None where it was written by somebody else, in another form."""
    try:
        (message,) = ModelMessagesTypeAdapter.validate_python([decode(answer_json)])
    except ValidationError:
        return None
    return replace(message, timestamp=EPOCH) if isinstance(message, ModelResponse) else None


def definitions(tools: Iterable[ToolSpec]) -> list[ToolDefinition]:
    """Return tools as a model is told of them."""
    return [
        ToolDefinition(name=spec.name, description=spec.description, parameters_json_schema=dict(spec.parameters))
        for spec in tools
    ]


def told(text: str) -> UserPromptPart:
    """Return a text as a part of what a model is told."""
    return UserPromptPart(text, timestamp=EPOCH)


def request(parts: Sequence[ModelRequestPart], instructions: str | None) -> ModelRequest:
    """Return a message to a model, with what always holds for it."""
    return ModelRequest(parts=parts, timestamp=EPOCH, instructions=instructions)
