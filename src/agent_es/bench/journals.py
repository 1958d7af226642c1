"""Runs to measure with: one call per turn, its decision and its result, of the size that real ones have."""

from agent_es.bench.measure import Show
from agent_es.bench.payloads import GOAL, TOOL, args_json, result_json
from agent_es.run import AgentRun, Planned
from agent_es.store import RunStore
from agent_es.tools import CallTool

BATCH = 1_000
"""How many events one save makes durable where a store is filled and nothing is timed."""


class BenchRun(AgentRun):
    """A run that is moved by hand."""


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
