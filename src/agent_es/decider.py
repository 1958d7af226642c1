"""What chooses the next step, and what it may say.

Rule: a decision is recorded before anything acts on it, and is never asked for anew once it is recorded.
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Protocol

from agent_es.envelope import Envelope, Usage
from agent_es.errors import BadDecision
from agent_es.run import AgentRun
from agent_es.state import RunState
from agent_es.tools import CallTool, ToolSpec
from agent_es.values import decode
from agent_es.waits import Ask, Sleep, WaitFor


@dataclass(frozen=True, slots=True)
class Finish:
    """The goal is met; the answer is any JSON value."""

    answer: Any


@dataclass(frozen=True, slots=True)
class Fail:
    """The goal cannot be met."""

    reason: str


@dataclass(frozen=True, slots=True)
class StartChild:
    """Start another run, and go on at its end; it is cancelled with this one.

    The step's result tells what it came to: ``{"answer": ..., "failure": None, "run_id": ..., "status": "done"}``.
    Its id is made of this run's and the step's position: it is started once.  The workers must know its class.
    """

    agent: type[AgentRun]
    goal: str
    input: Any = None
    tags: Mapping[str, str] = field(default_factory=dict)
    envelope: Envelope | None = None
    """What it may do, within what this run may."""

    tool: ClassVar[str] = "start_child"
    """What the step is called that starts it."""

    @property
    def args(self) -> Mapping[str, Any]:
        """What the step's arguments are: what the run is started with."""
        bounds = {} if self.envelope is None else {"envelope": decode(self.envelope.json_text)}
        return {
            **bounds,
            "agent": self.agent.agent_name,
            "agent_version": self.agent.agent_version,
            "goal": self.goal,
            "input": self.input,
            "tags": dict(self.tags),
        }


@dataclass(frozen=True, slots=True)
class ClosePhase:
    """What was done since the last summary is one phase, and it is over: the decider reads a summary of it instead.

    Where the decider does not say the summary itself, the run's summarizer is asked.
    """

    phase: str
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class Unusable:
    """Nothing can be done with what a model said: it was cut, empty, or refused to say anything.

    That is recorded, and the decider is asked again: it finds the reasons so far in ``run.unusable``.  After so many
    answers to one question, the run is parked.
    """

    reason: str
    asks: int = 3


@dataclass(frozen=True, slots=True)
class OnlySaid:
    """What a model said calls nothing, and whoever asked it sees to what comes of it: it is recorded, and no more.

    For those who ask by ``step.decide`` and go on by themselves; a run that is driven would only ask again.
    """


@dataclass(frozen=True, slots=True)
class Said:
    """What a model said, word for word, and how it came to an end."""

    model: str
    answer: Any
    """The message as JSON data: what later requests must give back to the byte lies in it."""
    finish_reason: str | None = None
    tokens: int | None = None
    """How long the conversation is by now, this answer with it, where the model counted."""
    request: Any = None
    """What it was asked, where whoever asks must be able to tell that it asks the same again."""


@dataclass(frozen=True, slots=True)
class Used:
    """A decision, what it took to come to it, and what it was read from."""

    decision: "Decision | ClosePhase | Unusable | OnlySaid"
    tokens: int = 0
    cost: Decimal | str | int = 0
    """In one currency for all of a program's runs."""
    said: Said | None = None

    @property
    def usage(self) -> Usage:
        """What it took; raise ``BadDecision`` where that is no usage."""
        try:
            return Usage(tokens=self.tokens, cost=Decimal(self.cost))
        except (ValueError, ArithmeticError, TypeError) as error:
            raise BadDecision(f"a decision took {self.tokens!r} tokens and {self.cost!r}: {error}") from None


Call = CallTool | Sleep | WaitFor | Ask | StartChild
"""What becomes one step."""

Decision = Call | Sequence[Call] | Finish | Fail
"""One call, several of one turn, an answer, or giving up."""


Answered = Decision | ClosePhase | Unusable | Used
"""What a decider may say."""


class Decider(Protocol):
    """Chooses the next step from the run as folded so far: a model, or a script.

    Where it has an attribute ``memory``, a ``Memory`` or None for all there is, that says how much it reads at once.
    """

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered | Awaitable[Answered]:
        """Return what to do next, and where somebody pays for that, what it took."""
        ...


class ScriptedDecider:
    """Says the next line of a script, picked by the turns decided so far, so that it is right after a resume."""

    memory: ClassVar[None] = None
    """It reads nothing."""

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
