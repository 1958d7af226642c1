"""Runs to measure with: one call per turn, its decision and its result, of the size that real ones have."""

from pathlib import Path

from agent_es.bench.measure import Show
from agent_es.run import AgentRun, Planned
from agent_es.store import RunStore
from agent_es.tools import CallTool

TOOL = "search_policy"
GOAL = "Refund order ORD-3300, 180.00, if the policy allows it"
BATCH = 1_000
"""How many events one save makes durable where a store is filled and nothing is timed."""

_WHY = "w" * 125
_TEXT = "t" * 225


class BenchRun(AgentRun):
    """A run that is moved by hand."""


def url_of(path: Path) -> str:
    """Return the URL of a store in that file."""
    return f"sqlite:///{path}"


def args_json(idx: int) -> str:
    """Return the arguments of a step, canonical as a decision's are: some 200 bytes."""
    return f'{{"page":{idx % 10},"query":"refund policy window, order ORD-{idx:06}","why":"{_WHY}"}}'


def result_json(idx: int) -> str:
    """Return the result of a step: some 300 bytes."""
    return f'{{"text":"{_TEXT}","title":"Policy {idx:06}","url":"https://example.org/policies/{idx:06}"}}'


def begin(store: RunStore, run_id: str) -> BenchRun:
    """Start a run and return it, ready to take commands."""
    return BenchRun.of(store.start(BenchRun, run_id=run_id, goal=GOAL), store.clock)


def go_on(run: AgentRun, *, key: str | None = None) -> None:
    """Record the next event: the result of the open step, or else the next decision."""
    idx = len(run.state.steps)
    if run.state.open_steps:
        run.record_result(idx - 1, result_json(idx - 1))
    else:
        run.record_turn([Planned(CallTool(TOOL), args_json(idx), key and f"{key}:{idx}")], at_once=1)


def fill(store: RunStore, run_id: str, events: int, show: Show) -> None:
    """Store a run of exactly so many events."""
    run = begin(store, run_id)
    for start in show(range(1, events, BATCH), f"filling a run of {events:,} events"):
        for _ in range(start, min(start + BATCH, events)):
            go_on(run)
        store.save(run)
    assert run.state.version == events
