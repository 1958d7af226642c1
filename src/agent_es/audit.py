"""What another envelope would have said of runs: their journals, judged anew.

Rule 1: nothing is called and nothing is recorded; what is read are journals.
Rule 2: what came after a call that would have been refused is judged as it happened: nobody knows what else would be.
Rule 3: where the tools are known, a call is judged with the defaults of today's code, else as it was journaled.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from agent_es.envelope import ALWAYS, Asks, Envelope, Refused, Usage, Verdict
from agent_es.errors import BadArguments, RunUnreadable
from agent_es.events import AnyEvent, LlmDecided, RunStarted, UsageRecorded
from agent_es.scratchpad import read_result
from agent_es.store import RunStore
from agent_es.tools import Tool
from agent_es.values import decode

Said = Literal["refused", "asked", "stopped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What an envelope would have said of a call, or of a whole run from one of its turns on."""

    run_id: str
    seq: int
    """Of the event that decided on the call, or on the first one that would not have been decided."""
    said: Said
    rule: str
    why: str
    idx: int | None = None
    tool: str | None = None


@dataclass(slots=True)
class Audited:
    """What was found in some runs."""

    runs: int = 0
    calls: int = 0
    findings: list[Finding] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """The runs that this code cannot read."""


def audit(
    store: RunStore,
    envelope: Envelope,
    *,
    run_ids: Sequence[str] | None = None,
    since: datetime | None = None,
    tools: Mapping[str, Tool] | None = None,
    on_run: Callable[[], object] = lambda: None,
) -> Audited:
    """Judge runs by an envelope that they did not have: those that are named, or all that changed ``since`` then.

    ``on_run`` is called after each.  Raises ``RunNotFound``, ``StoreUnusable``.
    """
    found = Audited()
    for run_id in changed_since(store, since) if run_ids is None else run_ids:
        try:
            events = [entry.event for entry in store.journal(run_id)]
        except RunUnreadable:
            found.unreadable.append(run_id)
        else:
            found.runs += 1
            found.calls += len({event.idx for event in events if isinstance(event, LlmDecided)})
            found.findings += audited(run_id, events, envelope, tools or {})
        on_run()
    return found


def changed_since(store: RunStore, since: datetime | None) -> list[str]:
    """Return the ids of the runs that changed since then, or of all, the one that started first first."""
    records = [record for record in store.runs(limit=None) if since is None or record.updated_at >= since]
    return [record.run_id for record in sorted(records, key=lambda record: (record.started_at, record.run_id))]


def audited(
    run_id: str, events: Iterable[AnyEvent], envelope: Envelope, tools: Mapping[str, Tool]
) -> Iterator[Finding]:
    """Yield what an envelope would have said of a run's events."""
    began: datetime | None = None
    turns = steps = 0
    is_stopped = False
    called: Counter[str] = Counter()
    used = Usage()
    for event in events:
        seq = event.originator_version - 1
        if isinstance(event, RunStarted):
            began = event.timestamp
        if isinstance(event, UsageRecorded):  # of the question that the next decision answers
            why = next((why for it in envelope.chain if (why := it.budget.is_used_up(used))), None)
            if why is not None and not is_stopped:
                is_stopped = True
                yield Finding(run_id, seq, "stopped", "budget", why)
            used = Usage(tokens=used.tokens + event.tokens, cost=used.cost + event.cost)
        if not isinstance(event, LlmDecided) or event.idx < steps:
            continue  # a further attempt is no further call
        if event.turn >= turns:
            why = envelope.spent(turns, steps, began, event.timestamp)
            if why is not None and not is_stopped:
                is_stopped = True
                yield Finding(run_id, seq, "stopped", "budget", why)
        turns, steps = event.turn + 1, event.idx + 1
        match verdict_on(event, envelope, tools, called):
            case Refused(rule, why):
                yield Finding(run_id, seq, "refused", rule, why, event.idx, event.tool)
                continue
            case Asks(rule):
                yield Finding(run_id, seq, "asked", rule, "a person would have been asked", event.idx, event.tool)
        called[event.tool] += 1


def verdict_on(
    event: LlmDecided, envelope: Envelope, tools: Mapping[str, Tool], called: Mapping[str, int]
) -> Verdict:
    """Return what the envelope says of a call, after so many of each tool."""
    tool = tools.get(event.tool)
    if tool is None and event.tool in (*ALWAYS, read_result.name):
        return None
    args = decode(event.args)
    if tool is None:
        return envelope.judge_any([event.tool], event.idx, args, called)
    with suppress(BadArguments):  # they fitted the tool of that time, or were refused
        args = tool.as_called(event.args)
    return envelope.judge_any(tool.names, event.idx, args, called)
