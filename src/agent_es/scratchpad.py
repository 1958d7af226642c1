"""The working context of a run: what its decider has to go on, folded from the journal.

Rule: nothing here is stored; the same events give the same entries.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from agent_es.state import Message, RunState, StepStatus

Kind = Literal["goal", "message", "call", "result", "error", "doubt", "gate"]

_KINDS: dict[StepStatus, Kind] = {
    "done": "result",
    "failed": "error",
    "retrying": "error",
    "in_doubt": "doubt",
    "gated": "gate",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that the decider is told: the goal, a person's message, a call, or what became of one."""

    kind: Kind
    text: str
    idx: int | None = None
    """The step that it is about."""


def entries(state: RunState) -> Iterator[Entry]:
    """Yield the entries in the order in which a decider reads them: decision order, whatever ended first."""
    yield Entry("goal", state.goal)
    messages = deque(state.messages)
    for step in state.steps:
        while messages and messages[0].turn <= step.turn:
            yield _said(messages.popleft())
        yield Entry("call", f"{step.tool} {step.args_json}", step.idx)
        if step.value_json is not None:
            yield Entry(_KINDS[step.status], step.value_json, step.idx)
    yield from map(_said, messages)


def _said(message: Message) -> Entry:
    return Entry("message", f"{message.by}: {message.text}")
