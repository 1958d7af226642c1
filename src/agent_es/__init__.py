"""Agents that survive: a run is an event-sourced aggregate, its journal is the only truth."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_es.awaiting import awaitable
    from agent_es.crashpoints import crash_point
    from agent_es.decider import (
        ClosePhase,
        Decider,
        Decision,
        Fail,
        Finish,
        Said,
        ScriptedDecider,
        StartChild,
        Unusable,
        Used,
    )
    from agent_es.envelope import Approval, Budget, Envelope, Usage
    from agent_es.errors import AgentError, AnswerConflict, KeyMismatch, NotApplied, OutcomeUnknown
    from agent_es.inbox import InboxItem
    from agent_es.limits import Limit
    from agent_es.notices import Notice
    from agent_es.own_loop import OpenRun
    from agent_es.projections import Projection
    from agent_es.run import AgentRun
    from agent_es.runtime import Runner
    from agent_es.scratchpad import Memory
    from agent_es.state import RunState, Signal, Status, Step
    from agent_es.store import RunStore
    from agent_es.tools import CallTool, DidNotHappen, Effect, Happened, Retry, ToolContext, ToolSpec, tool
    from agent_es.waits import Ask, Sleep, WaitFor, Woken
    from agent_es.worker import Worker

__version__ = "0.1.0"

_HOME = {
    "AgentError": "errors",
    "AgentRun": "run",
    "AnswerConflict": "errors",
    "Approval": "envelope",
    "Ask": "waits",
    "Budget": "envelope",
    "CallTool": "tools",
    "ClosePhase": "decider",
    "Decider": "decider",
    "Decision": "decider",
    "DidNotHappen": "tools",
    "Effect": "tools",
    "Envelope": "envelope",
    "Fail": "decider",
    "Finish": "decider",
    "Happened": "tools",
    "InboxItem": "inbox",
    "KeyMismatch": "errors",
    "Limit": "limits",
    "Memory": "scratchpad",
    "NotApplied": "errors",
    "Notice": "notices",
    "OpenRun": "own_loop",
    "OutcomeUnknown": "errors",
    "Projection": "projections",
    "Retry": "tools",
    "RunState": "state",
    "RunStore": "store",
    "Runner": "runtime",
    "Said": "decider",
    "ScriptedDecider": "decider",
    "Signal": "state",
    "Sleep": "waits",
    "StartChild": "decider",
    "Status": "state",
    "Step": "state",
    "ToolContext": "tools",
    "ToolSpec": "tools",
    "Unusable": "decider",
    "Usage": "envelope",
    "Used": "decider",
    "WaitFor": "waits",
    "Woken": "waits",
    "Worker": "worker",
    "awaitable": "awaiting",
    "crash_point": "crashpoints",
    "tool": "tools",
}

__all__ = [
    "AgentError",
    "AgentRun",
    "AnswerConflict",
    "Approval",
    "Ask",
    "Budget",
    "CallTool",
    "ClosePhase",
    "Decider",
    "Decision",
    "DidNotHappen",
    "Effect",
    "Envelope",
    "Fail",
    "Finish",
    "Happened",
    "InboxItem",
    "KeyMismatch",
    "Limit",
    "Memory",
    "NotApplied",
    "Notice",
    "OpenRun",
    "OutcomeUnknown",
    "Projection",
    "Retry",
    "RunState",
    "RunStore",
    "Runner",
    "Said",
    "ScriptedDecider",
    "Signal",
    "Sleep",
    "StartChild",
    "Status",
    "Step",
    "ToolContext",
    "ToolSpec",
    "Unusable",
    "Usage",
    "Used",
    "WaitFor",
    "Woken",
    "Worker",
    "awaitable",
    "crash_point",
    "tool",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the package costs nothing until it is used."""
    if name not in _HOME:
        raise AttributeError(f"module 'agent_es' has no attribute {name!r}")
    return getattr(import_module(f"agent_es.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
