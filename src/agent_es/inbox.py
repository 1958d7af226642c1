"""What waits for a person: what is asked, of whom, and how to answer.

Rule: what a person sees is what stands in the journal, and nothing that a model wrote about it.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from agent_es.state import RunState

ItemKind = Literal["approval", "doubt", "question", "parked", "paused"]

WHOLE = -1
"""The place of what is about a whole run, and none of its steps."""


@dataclass(frozen=True, slots=True)
class InboxItem:
    """One thing that waits for a person."""

    kind: ItemKind
    run_id: str
    agent: str
    goal: str
    since: datetime
    text: str
    """What is asked: the rules that ask for a yes, why nobody knows, the question, or why the run stands."""
    idx: int | None = None
    """The step that it is about; None for the whole run."""
    tool: str | None = None
    args: Mapping[str, Any] | None = None
    """Exactly what the body would get, or got."""
    key: str | None = None
    digest: str | None = None
    """What a yes is to: of the tool, the arguments and the key."""
    by: Sequence[Sequence[str]] = ()
    """Who may answer: a person whom each of these groups names; anybody, where there are none."""
    people: int = 1
    """How many must say yes."""
    approved_by: Sequence[str] = ()
    """Who has said yes to it by now."""
    edited_by: str | None = None
    expires_at: datetime | None = None
    choices: Sequence[Any] | None = None

    @property
    def commands(self) -> Sequence[str]:
        """What to type to answer it."""
        run = shlex.quote(self.run_id)
        match self.kind:
            case "approval":
                return (
                    f"agent-es approve {run} {self.idx} --digest {self.digest}",
                    f"agent-es deny {run} {self.idx} --reason ...",
                )
            case "doubt":
                return (f"agent-es settle {run} {self.idx} --happened | --did-not-happen",)
            case "question":
                said = "..." if self.choices is None else shlex.quote(json.dumps(self.choices[0]))
                return (f"agent-es answer {run} {self.idx} {said}",)
            case "parked":
                return (f"agent-es requeue {run}", f"agent-es cancel {run}")
            case "paused":
                return (f"agent-es resume {run}", f"agent-es cancel {run}")


def item_of(state: RunState, idx: int, kind: ItemKind, since: datetime) -> InboxItem:
    """Return what waits for a person in a run."""
    run: dict[str, Any] = {"kind": kind, "run_id": state.run_id, "agent": state.agent, "goal": state.goal}
    run["since"] = since
    if idx == WHOLE:
        why = state.parked if kind == "parked" else state.paused
        return InboxItem(**run, text=why or "")
    step = state.steps[idx]
    about: dict[str, Any] = {**run, "idx": idx, "tool": step.tool, "key": step.key, "args": step.args}
    gate = step.approval
    if kind == "question":
        asked = step.args
        return InboxItem(**about, text=asked["question"], choices=asked.get("choices"), expires_at=step.wake_at)
    if kind == "doubt" or gate is None:
        return InboxItem(**about, text=step.doubt or "")
    return InboxItem(
        **{**about, "args": gate.args},
        text=gate.rule,
        digest=gate.digest,
        by=gate.by,
        people=gate.people,
        approved_by=gate.approved_by,
        edited_by=gate.edited_by,
        expires_at=gate.expires_at,
    )
