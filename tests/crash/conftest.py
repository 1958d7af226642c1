"""The story of the demo, ready to be crashed: a store and a provider on disk, a worker per life."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_es import RunState, RunStore
from agent_es.demo import GOAL, PROVIDER_DB, RUN_ID, RUNS_DB, SCRIPT, RefundRun
from agent_es.runtime import Runner
from agent_es.testing import CrashingRunner, CrashPoint, FrozenClock, PaymentProvider


@dataclass
class World:
    """What outlives a worker: the store's file and the provider's."""

    folder: Path

    @property
    def provider(self) -> PaymentProvider:
        return PaymentProvider(self.folder / PROVIDER_DB)

    @property
    def store(self) -> RunStore:
        return RunStore(f"sqlite:///{self.folder / RUNS_DB}", clock=FrozenClock())

    def worker(self, at: CrashPoint | None = None, seed: int = 0) -> CrashingRunner:
        """Return a new worker of the story, as a new process would have it."""
        return CrashingRunner(self.store, SCRIPT, deps=self.provider, at=at, seed=seed)

    @staticmethod
    def run(runner: Runner) -> RunState:
        return runner.run(RefundRun, run_id=RUN_ID, goal=GOAL)


@pytest.fixture
def new_world(tmp_path: Path) -> Callable[[], World]:
    """A new world at each call."""
    made = 0

    def make() -> World:
        nonlocal made
        made += 1
        folder = tmp_path / str(made)
        folder.mkdir()
        return World(folder)

    return make


@pytest.fixture
def world(new_world: Callable[[], World]) -> World:
    """One world."""
    return new_world()
