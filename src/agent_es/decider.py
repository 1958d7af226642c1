"""What chooses the next step, and what it may say.

Rule: a decision is recorded before anything acts on it, and is never asked for anew once it is recorded.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agent_es.errors import BadDecision
from agent_es.state import RunState
from agent_es.tools import CallTool, ToolSpec


@dataclass(frozen=True, slots=True)
class Finish:
    """The goal is met; the answer is any JSON value."""

    answer: Any


@dataclass(frozen=True, slots=True)
class Fail:
    """The goal cannot be met."""

    reason: str


Decision = CallTool | Sequence[CallTool] | Finish | Fail
"""One call, several calls of one turn, an answer, or giving up."""


class Decider(Protocol):
    """Chooses the next step from the run as folded so far: a model, or a script."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision | Awaitable[Decision]:
        """Return what to do next."""
        ...


class ScriptedDecider:
    """Says the next line of a script, picked by the turns decided so far, so that it is right after a resume."""

    def __init__(self, script: Sequence[Decision]) -> None:
        self.script = tuple(script)

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:  # noqa: ARG002  # a script knows
        """Return the line of the turn that the run is at; raise ``BadDecision`` past the last one."""
        if run.turns >= len(self.script):
            raise BadDecision(
                f"run {run.run_id}: the script has {len(self.script)} lines and the run is past them; "
                "end the script with Finish(...)"
            )
        return self.script[run.turns]
