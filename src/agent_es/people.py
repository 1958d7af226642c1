"""What people do to a run: say yes or no, answer, settle, steer, stop it and let it go on.

Rule 1: nothing but an explicit yes, to exactly what was asked, lets a step run; it is used once.
Rule 2: what comes second is a conflict for whoever came late, and changes nothing.
Rule 3: whoever gives other arguments answers for them: they must fit the tool, lie within the envelope, and ask
for no other people.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from agent_es.envelope import Asks, Refused
from agent_es.errors import AnswerConflict, BadAnswer, BadSettlement, NotAllowed
from agent_es.keys import renewed
from agent_es.run import AgentRun
from agent_es.state import Gate, RunState, Step
from agent_es.tools import Tool
from agent_es.values import canonical, valid_unicode

Action = Literal[
    "approve",
    "edit",
    "deny",
    "answer",
    "steer",
    "pause",
    "resume",
    "cancel",
    "compensate",
    "settle",
    "requeue",
    "change_envelope",
]
Authorize = Callable[[str, Action, RunState], object]
"""Says whether a person may do that to a run: whatever does not count as true is a no."""

MAX_PERSON = 200
MAX_TEXT = 10_000
"""Characters of a person's name, and of a message."""


def check_person(by: object) -> str:
    """Return the name of a person; raise ``BadAnswer`` for what names nobody."""
    if isinstance(by, str) and by.isprintable() and by.strip() and len(by) <= MAX_PERSON:
        return by
    raise BadAnswer(f"by={by!r:.80}: say who says so, in 1 to {MAX_PERSON} printable characters")


def approve(
    run: AgentRun,
    idx: int,
    by: str,
    *,
    args: Mapping[str, Any] | None = None,
    tools: Mapping[str, Tool] | None = None,
    digest: str | None = None,
    reason: str = "",
    renewals: int = 0,
) -> None:
    """Say yes to a step that waits for it, as it was shown, or with other ``args``.

    Their key is renewed so many times, where steps that were never taken hold the keys before.
    """
    step, gate = _gated(run, idx, by, digest)
    edited = None if args is None else _edited(run, step, gate, by, args, tools or {}, renewals)
    if edited is not None and edited[0] == gate.args_json:
        edited = None
    if edited is None:
        if by in gate.approved_by:
            raise AnswerConflict(f"{_where(run, idx)}: {by} has said yes already; {_missing(gate)}")
        _check_allowed(run, step.tool, [step.tool], gate.args)
        if gate.edited_by is not None:
            _check_asked(run, step, gate, by, [step.tool], gate.args)
    run.record_granted(idx, by, edited=edited, reason=reason)


def deny(run: AgentRun, idx: int, by: str, reason: str, *, digest: str | None = None) -> None:
    """Say no to a step that waits for a yes; the decider sees the reason."""
    _gated(run, idx, by, digest)
    run.record_denied(idx, by, reason or f"{by} said no")


def answer(run: AgentRun, idx: int, value: Any, by: str) -> None:
    """Answer a question of the decider."""
    step = _step(run, idx)
    if step.answered is not None:
        who = step.answered.by or "nobody in time"
        raise AnswerConflict(f"{_where(run, idx)} was answered by {who}; nothing was recorded")
    if step.idx not in [asked.idx for asked in run.state.questions]:
        raise BadAnswer(f"{_where(run, idx)} asks nobody anything; it is {step.tool}, {step.status}")
    if step.wake_at is not None and step.wake_at <= run.now:
        raise AnswerConflict(f"{_where(run, idx)}: the time to answer was over at {step.wake_at:%Y-%m-%dT%H:%M:%SZ}")
    text = canonical(value)
    choices = step.args.get("choices")
    if choices is not None and text not in map(canonical, choices):
        raise BadAnswer(f"{_where(run, idx)}: {text:.200} is none of {', '.join(map(canonical, choices)):.500}")
    run.record_answered(idx, text, by)


def steer(run: AgentRun, text: str, by: str) -> None:
    """Tell the decider something before it decides again."""
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_TEXT:
        raise BadAnswer(f"a message is a text of 1 to {MAX_TEXT:,} characters")
    run.record_steered(valid_unicode(text), by)


def settle(run: AgentRun, idx: int, outcome: Literal["happened", "did_not_happen"], by: str, result: Any) -> None:
    """Say what became of a doubt."""
    state = run.state
    if idx not in [step.idx for step in state.doubts]:
        doubts = ", ".join(f"{step.idx} ({step.tool})" for step in state.doubts) or "none"
        raise BadSettlement(f"run {state.run_id}: step {idx} is not in doubt; in doubt: {doubts}")
    run.record_settlement(idx, outcome, by)
    if outcome == "happened":
        run.record_result(idx, canonical(result))


def tools_of(agents: Iterable[type[AgentRun]], more: Iterable[Tool] = ()) -> Mapping[str, Tool]:
    """Return the tools of some agents, and further ones, by all their names."""
    known = [*more, *(tool for agent in agents for tool in agent.agent_tools.values())]
    return {name: tool for tool in reversed(known) for name in tool.names}


def _gated(run: AgentRun, idx: int, by: str, digest: str | None) -> tuple[Step, Gate]:
    """Return a step that a person may answer for; raise ``BadAnswer``, ``AnswerConflict`` or ``NotAllowed``."""
    step = _step(run, idx)
    gate = step.approval
    if gate is None:
        raise BadAnswer(f"{_where(run, idx)} asks for nobody's yes; it is {step.tool}, {step.status}")
    if step.status != "gated":
        raise AnswerConflict(f"{_where(run, idx)} {_came_to(step, gate)}; nothing was recorded")
    if gate.is_expired(run.now):
        raise AnswerConflict(
            f"{_where(run, idx)}: the time to answer was over at {gate.expires_at:%Y-%m-%dT%H:%M:%SZ}"
        )
    if digest not in (None, gate.digest):
        raise AnswerConflict(
            f"{_where(run, idx)}: it is about {gate.digest} by now, and not about {digest!r:.80}; look at it again"
        )
    _check_named(run, idx, by, gate.by)
    return step, gate


def _check_named(run: AgentRun, idx: int, by: str, groups: Sequence[Sequence[str]]) -> None:
    if not all(any(fnmatchcase(by, name) for name in group) for group in groups):
        named = " and ".join(" or ".join(group) for group in groups)
        raise NotAllowed(f"{_where(run, idx)}: {by} may not answer; {named} may")


def _came_to(step: Step, gate: Gate) -> str:
    if step.error is not None and step.error.get("type") == "Denied" and "by" in step.error:
        return f"was denied by {step.error.get('by')}: {step.error.get('message')}"
    if len(gate.approved_by) >= gate.people:
        return f"was approved by {', '.join(gate.approved_by)}"
    return f"waits for nobody any more; it is {step.status}"


def _missing(gate: Gate) -> str:
    return f"{gate.people - len(gate.approved_by)} more of {gate.people} people must"


def _edited(
    run: AgentRun,
    step: Step,
    gate: Gate,
    by: str,
    args: Mapping[str, Any],
    tools: Mapping[str, Tool],
    renewals: int,
) -> tuple[str, str | None, str | None]:
    """Return other arguments as they are recorded, the key that they have, and its name."""
    if not isinstance(args, Mapping):
        raise BadAnswer(f"{_where(run, step.idx)}: args={args!r:.80} is no mapping from names of arguments")
    tool = tools.get(step.tool)
    if tool is None:
        raise BadAnswer(
            f"{_where(run, step.idx)}: other arguments can be given where the tool {step.tool!r} is known; pass "
            f"agent={run.state.agent}, on the command line --agent MODULE:CLASS"
        )
    text = canonical(dict(args))
    shown = tool.as_called(text)
    _check_allowed(run, step.tool, tool.names, shown)
    _check_asked(run, step, gate, by, tool.names, shown)
    text = canonical(dict(shown))
    key = tool.key_for(run.state.run_id, step.idx, text)
    for _ in range(renewals if key else 0):
        key = renewed(key or "")
    return text, key, tool.first_name if key and tool.first_name != step.tool else None


def _check_allowed(run: AgentRun, called: str, names: Iterable[str], args: Mapping[str, Any]) -> None:
    """Raise ``BadAnswer`` for what the run's envelope does not allow, whoever says yes to it."""
    if run.envelope is None:
        return
    verdicts = (run.envelope.refused(name, args) for name in names if run.envelope.offers(name))
    refused: Refused | None = next((verdict for verdict in verdicts if verdict), None)
    if refused is not None:
        raise BadAnswer(
            f"run {run.state.run_id}: {called} with these arguments is outside of its envelope ({refused.rule}): "
            f"{refused.why}"
        )


def _check_asked(
    run: AgentRun, step: Step, gate: Gate, by: str, names: Iterable[str], args: Mapping[str, Any]
) -> None:
    """Raise ``NotAllowed`` or ``BadAnswer`` where arguments that a person gave ask for other people, or for more."""
    if run.envelope is None:
        return
    asks = Asks.all_of(
        rule for name in names if run.envelope.offers(name) for rule in run.envelope.approvals(name, args)
    )
    if asks is None:
        return
    _check_named(run, step.idx, by, asks.by)
    if asks.people > gate.people:
        raise BadAnswer(
            f"{_where(run, step.idx)}: with these arguments {asks.people} people must say yes, and {gate.people} was "
            "asked for; deny it, so that it is asked for as it is meant"
        )


def _step(run: AgentRun, idx: int) -> Step:
    if not isinstance(idx, int) or isinstance(idx, bool) or not 0 <= idx < len(run.state.steps):
        raise BadAnswer(f"run {run.state.run_id} has no step {idx!r:.80}; see: agent-es show {run.state.run_id}")
    return run.state.steps[idx]


def _where(run: AgentRun, idx: int) -> str:
    return f"run {run.state.run_id} step {idx}"
