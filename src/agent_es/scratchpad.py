"""The working context of a run: what its decider has to go on, folded from the journal.

Rule 1: nothing here is stored but facts and summaries, which are events; the same events give the same entries.
Rule 2: what is summarized leaves the active entries and stays in the journal; the goal, facts, and what people said
are never summarized.
Rule 3: a summary stands for whole turns: no call is without what became of it.
Rule 4: what an active entry leaves out of a long result can be read: ``read_result`` says it, piece by piece.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agent_es.envelope import Usage
from agent_es.errors import BadMemory, NotApplied
from agent_es.run import AgentRun
from agent_es.state import Message, RunState, Step, StepStatus, Summary
from agent_es.tools import Effect, tool

__all__ = ["Entry", "Outline", "Phase", "Summarizer", "Written", "active", "entries"]

Kind = Literal["goal", "fact", "summary", "message", "call", "result", "error", "doubt", "gate"]

_KINDS: dict[StepStatus, Kind] = {
    "done": "result",
    "failed": "error",
    "retrying": "error",
    "in_doubt": "doubt",
    "gated": "gate",
}

PIECE = 8_000
"""Characters that ``read_result`` gives at once."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that the decider is told: the goal, a fact, a person's message, a call, or what became of one."""

    kind: Kind
    text: str
    idx: int | None = None
    """The step that it is about."""


def entries(state: RunState) -> Iterator[Entry]:
    """Yield all entries, whatever was summarized, in decision order, whatever ended first."""
    yield Entry("goal", state.goal)
    yield from _told(state, 0)


def active(state: RunState, *, longest: float = math.inf) -> Iterator[Entry]:
    """Yield what a decider reads: the goal, facts, summaries, and what no summary stands for.

    A result that is a text stands there as it is.  One of more than ``longest`` characters is cut, and says how the
    rest can be read.
    """
    yield Entry("goal", state.goal)
    for name, value in state.facts_json.items():
        yield Entry("fact", f"{name} = {value}")
    for summary in state.summaries:
        yield Entry("summary", f"{summary.phase}: {summary.text}" if summary.phase else summary.text)
    yield from _told(state, state.summarized, longest)


def _told(state: RunState, first: int, longest: float | None = None) -> Iterator[Entry]:
    """Yield what people said, and the steps from that one on."""
    messages = deque(state.messages)
    for step in state.steps[first:]:
        while messages and messages[0].turn <= step.turn:
            yield _said(messages.popleft())
        yield Entry("call", f"{step.tool} {step.args_json}", step.idx)
        if step.value_json is not None:
            text = step.value_json if longest is None or step.status != "done" else shown(step, longest)
            yield Entry(_KINDS[step.status], text, step.idx)
    yield from map(_said, messages)


def _said(message: Message) -> Entry:
    return Entry("message", f"{message.by}: {message.text}")


def text_of(step: Step) -> str:
    """Return a result as a decider reads it: a text as it is, anything else as JSON."""
    result = step.result
    return result if isinstance(result, str) else step.value_json or ""


def shown(step: Step, longest: float) -> str:
    """Return a result as a decider reads it, cut to so many characters, but for a piece of another one."""
    text = text_of(step)
    if len(text) <= longest or step.tool == read_result.name:
        return text
    end = int(longest)
    rest = f"{read_result.name}(idx={step.idx}, start={end}, end={min(len(text), end + PIECE)})"
    return f"{text[:end]}\n[cut: {end:,} of {len(text):,} characters; go on with {rest}]"


@tool(effect=Effect.READ)
def read_result(self: AgentRun, idx: int, start: int = 0, end: int | None = None) -> str:
    """Read a part of the result of an earlier call that was shown cut.

    idx is the number of the call; start and end count characters from 0, and end is not read any more.
    At most 8,000 characters are given at once.
    """
    steps = self.state.steps
    if not 0 <= idx < len(steps) or steps[idx].status != "done":
        raise NotApplied(f"step {idx} has no result")
    text = text_of(steps[idx])
    if not 0 <= start <= len(text) or (end is not None and end < start):
        raise NotApplied(f"the result of step {idx} has {len(text):,} characters: there is nothing from {start} on")
    return text[start : min(start + PIECE, len(text) if end is None else end)]


@dataclass(frozen=True, slots=True)
class Measured:
    """How much a decider reads."""

    tokens: int
    is_estimate: bool
    """Whether no model counted any of them: then four bytes are taken for a token."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Whole turns that are to be summarized, and what a summarizer needs for that."""

    run_id: str
    goal: str
    name: str
    """What the phase is called; empty where the cap closed it."""
    first: int
    up_to: int
    """The steps from ``first`` on and before this one."""
    summaries: tuple[Summary, ...]
    """What stood for a part of it, and goes."""
    entries: tuple[Entry, ...]
    """The rest of it, as it was told."""
    facts: Mapping[str, str]
    """What is kept beside it, as JSON: a summary need not say it again."""
    longest: int
    """Tokens that a summary may have; what is longer is cut."""


@dataclass(frozen=True, slots=True)
class Written:
    """A summary, and what it took to write it."""

    text: str
    usage: Usage = field(default_factory=Usage)


class Summarizer(Protocol):
    """Writes what stands for a phase: a model, or a rule."""

    def summarize(self, phase: Phase, /) -> str | Written | Awaitable[str | Written]:
        """Return a summary of at most ``phase.longest`` tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Outline:
    """Summarizes by a rule: a line for each call with the beginning of what became of it; no model is asked.

    Where that is too long, the oldest lines go first.
    """

    clip: int = 160
    """Characters of a line."""

    def summarize(self, phase: Phase, /) -> str:
        """Return the outline of a phase."""
        lines = [line for summary in phase.summaries for line in summary.text.splitlines()]
        for entry in phase.entries:
            if entry.kind == "call":
                lines.append(f"- {self._clipped(entry.text)}")
            elif entry.kind != "message":  # what people said stays as it is
                lines.append(f"  {entry.kind}: {self._clipped(entry.text)}")
        kept = list[str]()
        room = phase.longest * BYTES_PER_TOKEN - 100
        for line in reversed(lines):
            room -= len(line.encode()) + 1
            if room < 0:
                kept.append(f"({len(lines) - len(kept)} earlier lines are left out)")
                break
            kept.append(line)
        return "\n".join(reversed(kept))

    def _clipped(self, text: str) -> str:
        line = " ".join(text.split())
        return line if len(line) <= self.clip else f"{line[: self.clip]}…"


BYTES_PER_TOKEN = 4
"""What is taken where no model counts: of English text and of JSON this is about right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How much of its run a decider reads at once.  Raises ``BadMemory``.

    Over ``cap`` tokens, the oldest turns are summarized before anything else is decided.  The cap counts what the
    model counts (its instructions and tools too), where it says so, and what came since by an estimate.
    """

    cap: int = 32_000
    keep: int = 3
    """How many of the last turns stay as they are, where that is short enough."""
    longest_result: int = 16_000
    """Characters of a result that are shown at once."""
    summarizer: Summarizer = field(default_factory=Outline)
    closes: Callable[[RunState], str | None] | None = None
    """A rule that looks at a run before each decision, and names the phase that is over; None where none is."""

    def __post_init__(self) -> None:
        if self.cap < LEAST_CAP or self.keep < 0 or self.longest_result < 1:
            raise BadMemory(
                f"Memory(cap={self.cap}, keep={self.keep}, longest_result={self.longest_result}): the cap is at "
                f"least {LEAST_CAP} tokens, keep at least 0, and something of a result is shown"
            )

    @property
    def longest_summary(self) -> int:
        """Tokens of a summary."""
        return self.cap // 8

    def measured(self, state: RunState) -> Measured:
        """Return how much a decider of the run reads now."""
        last = state.answers[-1] if state.answers else None
        if last is not None and last.tokens is not None:
            new = [shown(step, self.longest_result) for step in state.steps[last.first :] if step.status == "done"]
            new += [step.value_json or "" for step in state.steps[last.first :] if step.status != "done"]
            new += [message.text for message in state.messages if message.turn > last.turn]
            return Measured(last.tokens + sum(map(estimated, new)), is_estimate=False)
        told = active(state, longest=self.longest_result)
        return Measured(sum(estimated(entry.text) for entry in told), is_estimate=True)

    def due(self, state: RunState) -> Phase | None:
        """Return what is to be summarized before anything else is decided; None where nothing is."""
        done = len(state.steps)
        if done == state.summarized:
            return None
        if self.closes is not None and (name := self.closes(state)) is not None:
            return self.phase(state, name)
        if not self._may_be_over(state) or self.measured(state).tokens <= self.cap:
            return None
        up_to = done
        for idx in range(done - 1, state.summarized - 1, -1):
            if state.steps[idx].turn < state.turns - self.keep:
                break
            up_to = idx
        return self.phase(state, "", up_to if up_to > state.summarized else done)

    def phase(self, state: RunState, name: str, up_to: int | None = None) -> Phase:
        """Return the phase that lasts until that step; where summaries have grown long, it takes them in."""
        standing = sum(estimated(summary.text) for summary in state.summaries)
        first = 0 if standing > self.cap // 4 else state.summarized
        last = len(state.steps) if up_to is None else up_to
        told = [entry for entry in _told(state, state.summarized) if entry.idx is not None and entry.idx < last]
        return Phase(
            run_id=state.run_id,
            goal=state.goal,
            name=name,
            first=first,
            up_to=last,
            summaries=() if first else state.summaries,
            entries=tuple(told),
            facts=state.facts_json,
            longest=self.longest_summary,
        )

    def cuts(self, state: RunState) -> bool:
        """Whether a decider of the run reads a result that is cut."""
        return state.weight > self.longest_result and any(
            step.status == "done" and len(text_of(step)) > self.longest_result and step.tool != read_result.name
            for step in state.steps[state.summarized :]
        )

    def _may_be_over(self, state: RunState) -> bool:
        """Whether it is worth looking closely: a short run is not measured at each of its turns."""
        if state.answers and state.answers[-1].tokens is not None:
            return True
        said = (message.text for message in state.messages)
        told = (state.goal, *state.facts_json.values(), *(summary.text for summary in state.summaries), *said)
        return 2 * state.weight + sum(map(len, told)) > self.cap


LEAST_CAP = 200

DEFAULT = Memory()
"""What a decider has that says nothing of its memory."""


def estimated(text: str) -> int:
    """Return about how many tokens a text has.

    >>> estimated("Refund ORD-3300, 180.00")
    6
    """
    size = len(text) if text.isascii() else len(text.encode())
    return -(-size // BYTES_PER_TOKEN)


def cut_summary(text: str, longest: int) -> str:
    """Return a summary, cut to so many tokens."""
    if estimated(text) <= longest:
        return text
    return text.encode()[: longest * BYTES_PER_TOKEN].decode(errors="ignore") + "…"
