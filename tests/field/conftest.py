"""What the cases share: the files that outlive a worker, and workers that are real processes.

Rule: what stands in these files is all that a second worker gets to know about the first one.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent_es import RunStore
from agent_es.testing import FrozenClock, PaymentProvider
from tests.models.script import Script
from tests.models.stub import Stub

ROOT = Path(__file__).parents[2]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[[], RunStore]]:
    """Opens the store anew at each call, as a process that was restarted does."""
    opened: list[RunStore] = []

    def open_once_more() -> RunStore:
        opened.append(RunStore(f"sqlite:///{tmp_path / 'runs.db'}", clock=FrozenClock()))
        return opened[-1]

    yield open_once_more
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[[], RunStore]) -> RunStore:
    """The store, opened."""
    return open_store()


@pytest.fixture
def provider(tmp_path: Path) -> PaymentProvider:
    """The payment provider, which no crash of ours reaches."""
    return PaymentProvider(tmp_path / "provider.db")


@pytest.fixture
def new_stub() -> Iterator[Callable[[Script], Stub]]:
    """Starts a model to test against, which refuses what a strict API does."""
    with ExitStack() as started:
        yield lambda script: started.enter_context(Stub(script))


@pytest.fixture
def run_worker(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., int]:
    """Runs the test's own file as a program, in the same folder; returns its exit status."""

    def run(*arguments: str) -> int:
        module = f"tests.field.{request.path.stem}"
        command = [sys.executable, "-m", module, tmp_path, *arguments]
        return subprocess.run(command, cwd=ROOT, check=False, timeout=60).returncode

    return run
