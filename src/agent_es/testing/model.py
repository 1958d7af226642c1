"""A scripted model that is as strict about its history as a chat API is.

Rule 1: a run becomes the user's goal, then for each turn one message with its calls and one answer per call.
Rule 2: a call is named by its place in the run: a model repeats its own ids, or leaves them empty.
Rule 3: a result, an error and a doubt are all answers; a call that is still open has none yet.
Rule 4: a malformed history is refused before anything is said to it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any

from agent_es.decider import Decision, Fail, Finish, ScriptedDecider
from agent_es.state import RunState, Step
from agent_es.tools import ToolSpec
from agent_es.values import canonical, decode

Message = dict[str, Any]


class HistoryRule(StrEnum):
    """What a chat API demands of a history."""

    SHAPE = "a message is a text of the user, a text or calls of the assistant, or the answer to a call"
    OPENING = "the first message is the user's"
    IDS = "a call has an id, which is not empty and no other call's"
    ARGUMENTS = "the arguments of a call are the text of a JSON object"
    OFFERED = "only tools that were offered are called"
    ANSWERED = "a call has exactly one answer, in the order of the calls, before anything else follows"
    CALLED = "an answer is the answer to a call"
    ENDING = "the last message is not the assistant's"
    SAID = "the calls are those that this model made, in their turns"


class MalformedHistory(Exception):
    """A chat API would refuse this history; ``rule`` is what broke, ``where`` the message or the turn."""

    def __init__(self, rule: HistoryRule, where: str, found: str) -> None:
        super().__init__(f"{where}: {found}; {rule}")
        self.rule = rule
        self.where = where


class StrictModel(ScriptedDecider):
    """Says the next line of a script, if the history of the run is one that a chat API takes.

    A script that calls a tool which nobody offers is refused when that call comes back as history.
    """

    def __init__(self, script: Sequence[Decision]) -> None:
        super().__init__(script)
        self.requests: list[str] = []
        """Each request, its messages and tools, as canonical JSON text."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        """Return the line of the turn that the run is at; raise ``MalformedHistory``, or what a script raises."""
        messages = messages_of(run)
        offered = [
            {"name": spec.name, "description": spec.description, "parameters": spec.parameters} for spec in tools
        ]
        self.requests.append(canonical({"messages": messages, "tools": offered}))
        check_messages(messages, tools)
        self._check_said(run)
        return super().decide(run, tools)

    def _check_said(self, run: RunState) -> None:
        made: dict[int, list[Step]] = {turn: [*steps] for turn, steps in groupby(run.steps, key=_turn_of)}
        for turn in range(run.turns):
            steps = made.get(turn, [])
            if steps and all(step.undoes is not None for step in steps):
                continue  # the runner decides what it undoes, not the model
            calls = [(step.tool, step.said_json) for step in steps]
            said = _calls_of(self.script[turn]) if turn < len(self.script) else []
            if calls != said:
                raise MalformedHistory(HistoryRule.SAID, f"turn {turn}", f"it has {calls}, and the model said {said}")


def messages_of(run: RunState) -> list[Message]:
    """Return the messages that a chat API would get for the next turn of a run: plain JSON data."""
    messages: list[Message] = [{"role": "user", "content": run.goal}]
    said = deque(run.messages)
    for number, turn in groupby(run.steps, key=_turn_of):
        steps = [*turn]
        while said and said[0].turn <= number:
            messages.append(_said(said.popleft().text))
        messages.append({"role": "assistant", "tool_calls": [_call_of(step) for step in steps]})
        messages += [
            {"role": "tool", "tool_call_id": _id_of(step), "content": step.value_json}
            for step in steps
            if step.value_json is not None
        ]
    return messages + [_said(message.text) for message in said]


def check_messages(messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec]) -> None:
    """Raise ``MalformedHistory`` where a chat API that offers these tools would refuse the messages.

    >>> check_messages([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}], [])
    Traceback (most recent call last):
    agent_es.testing.model.MalformedHistory: message 1: it ends the request; the last message is not the assistant's
    """
    history = _History({spec.name for spec in tools})
    for message in messages:
        history.take(message)
    history.end()


class _History:
    """A history while it is read."""

    def __init__(self, offered: set[str]) -> None:
        self._offered = offered
        self._seen: set[str] = set()
        self._open: deque[str] = deque()
        """The calls that have no answer yet, in their order."""
        self._last = "nobody"
        self._at = -1

    def take(self, message: Mapping[str, Any]) -> None:
        self._at += 1
        if self._at == 0 and message.get("role") != "user":
            raise self._malformed(HistoryRule.OPENING, f"it is {_short(message)}")
        if self._open and message.get("role") != "tool":
            raise self._malformed(HistoryRule.ANSWERED, f"{self._open[0]} has no answer before it")
        match message:
            case {"role": "tool", "tool_call_id": str(answered), "content": str()}:
                self._answer(answered)
            case {"role": "assistant", "tool_calls": [_, *_] as calls}:
                for call in calls:
                    self._call(call)
            case {"role": "user" | "assistant", "content": str()} if "tool_calls" not in message:
                pass
            case _:
                raise self._malformed(HistoryRule.SHAPE, f"it is {_short(message)}")
        self._last = message["role"]

    def end(self) -> None:
        if self._at < 0:
            raise MalformedHistory(HistoryRule.OPENING, "message 0", "there is none")
        if self._open:
            raise self._malformed(HistoryRule.ANSWERED, f"the request ends, and {self._open[0]} has no answer")
        if self._last == "assistant":
            raise self._malformed(HistoryRule.ENDING, "it ends the request")

    def _call(self, call: Any) -> None:
        match call:
            case {"id": str(made), "name": str(name), "arguments": str(arguments)}:
                pass
            case _:
                raise self._malformed(HistoryRule.SHAPE, f"it calls {_short(call)}")
        if not made or made in self._seen:
            raise self._malformed(HistoryRule.IDS, f"a call of {name} has the id {made!r}")
        if name not in self._offered:
            raise self._malformed(HistoryRule.OFFERED, f"{made} calls {name!r}")
        if not _is_object(arguments):
            raise self._malformed(HistoryRule.ARGUMENTS, f"{made} calls {name} with {arguments!r:.200}")
        self._seen.add(made)
        self._open.append(made)

    def _answer(self, answered: str) -> None:
        if answered not in self._seen:
            raise self._malformed(HistoryRule.CALLED, f"it answers {answered!r}, and nothing called that")
        if answered not in self._open:
            raise self._malformed(HistoryRule.ANSWERED, f"it answers {answered} a second time")
        if answered != self._open[0]:
            raise self._malformed(HistoryRule.ANSWERED, f"it answers {answered} before {self._open[0]}")
        self._open.popleft()

    def _malformed(self, rule: HistoryRule, found: str) -> MalformedHistory:
        return MalformedHistory(rule, f"message {self._at}", found)


def _said(text: str) -> Message:
    return {"role": "user", "content": text}


def _turn_of(step: Step) -> int:
    return step.turn


def _id_of(step: Step) -> str:
    return f"call-{step.idx}"


def _call_of(step: Step) -> dict[str, str]:
    return {"id": _id_of(step), "name": step.tool, "arguments": step.said_json}


def _calls_of(line: Decision) -> list[tuple[str, str]]:
    if isinstance(line, Finish | Fail):
        return []
    calls = line if isinstance(line, Sequence) else [line]
    return [(call.tool, call.args if isinstance(call.args, str) else canonical(dict(call.args))) for call in calls]


def _is_object(text: str) -> bool:
    try:
        return isinstance(decode(text), dict)
    except ValueError:
        return False


def _short(value: Any) -> str:
    return f"{value!r:.200}"
