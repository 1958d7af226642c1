"""A store whose clock a test moves, and runners that sleep by moving it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_es import AgentRun, Decision, Runner, RunState, RunStore, ScriptedDecider

NOON = datetime(2026, 7, 5, 12, tzinfo=UTC)


class MovableClock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now = NOON
        self.slept: list[float] = []

    def __call__(self, seq: int) -> datetime:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def store(tmp_path: Path, clock: MovableClock) -> RunStore:
    return RunStore(f"sqlite:///{tmp_path / 'runs.db'}", clock=clock)


@pytest.fixture
def play(store: RunStore, clock: MovableClock) -> Callable[..., RunState]:
    """Run an agent by a script; by default the run is called run-1, and sleeping takes no time."""

    def run(
        agent: type[AgentRun], script: list[Decision], deps: Any = None, run_id: str = "run-1", **kwargs: Any
    ) -> Any:
        options = {"sleep": clock.sleep, "draw": lambda: 0.0, **kwargs}
        decider = options.pop("decider", ScriptedDecider(script))
        return Runner(store, decider, deps=deps, **options).run(agent, run_id=run_id, goal="test")

    return run


@pytest.fixture
def types(store: RunStore) -> Callable[..., list[str]]:
    """The types of the events of a run, behind the first."""

    def of(run_id: str = "run-1") -> list[str]:
        return [entry.type for entry in store.journal(run_id)[1:]]

    return of
