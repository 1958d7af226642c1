"""The event store library's own cases, on our recorder; they and its cipher need a package that we do not."""

import os
from base64 import b64encode
from collections.abc import Callable

import pytest

from agent_es import AgentRun, RunStore
from agent_es.errors import RunUnreadable
from agent_es.store.recorder import RunRecorder

pytest.importorskip("Crypto", reason="the cases import a cipher: pip install pycryptodome")

from eventsourcing.tests.persistence import (
    ApplicationRecorderTestCase,
    NonInterleavingNotificationIDsBaseCase,
)


@pytest.fixture
def recorder(request: pytest.FixtureRequest, store: RunStore) -> None:
    request.instance.recorder = store.recorder


class OurRecorder:
    """Hands the library's cases our recorder, on a file."""

    recorder: RunRecorder

    def create_recorder(self) -> RunRecorder:
        return self.recorder


@pytest.mark.usefixtures("recorder")
class TestOurRecorder(OurRecorder, ApplicationRecorderTestCase[RunRecorder]):
    test_performance = None  # type: ignore[assignment]  # measured in benchmarks/
    test_concurrent_throughput = None  # type: ignore[assignment]


@pytest.mark.usefixtures("recorder")
class TestOurPositions(OurRecorder, NonInterleavingNotificationIDsBaseCase):
    pass


def test_the_librarys_cipher_needs_its_key_only(open_store: Callable[..., RunStore]) -> None:
    key, another = (b64encode(os.urandom(32)).decode() for _ in range(2))
    open_store(env={"CIPHER_KEY": key}).start(AgentRun, run_id="run-7f3a", goal="Refund ORD-3300")

    assert open_store(env={"CIPHER_KEY": key}).load("run-7f3a").goal == "Refund ORD-3300"
    with pytest.raises(RunUnreadable, match="is the key right"):
        open_store(env={"CIPHER_KEY": another}).load("run-7f3a")
