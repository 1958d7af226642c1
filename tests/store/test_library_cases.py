"""The event store library's own cases, on our recorder; they and its cipher need a package that we do not."""

import os
import threading
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from eventsourcing.application import Application

from agent_es import AgentRun, RunStore
from agent_es.errors import RunUnreadable
from agent_es.store.recorder import RunRecorder

pytest.importorskip("Crypto", reason="the cases import a cipher: pip install pycryptodome")

from eventsourcing.tests import application as applications
from eventsourcing.tests import persistence as cases

CASES = [
    (cases.ApplicationRecorderTestCase, "test_insert_select"),
    (cases.ApplicationRecorderTestCase, "test_concurrent_no_conflicts"),
    (cases.NonInterleavingNotificationIDsBaseCase, "test"),
]  # its cases of performance are measured in benchmarks/


@pytest.mark.parametrize(("case", "name"), CASES, ids=lambda it: getattr(it, "__name__", it))
def test_the_librarys_own_case_holds_for_our_recorder(store: RunStore, case: Any, name: str) -> None:
    class Ours(case):  # type: ignore[misc]
        def create_recorder(self) -> RunRecorder:
            return store.recorder

    before = threading.enumerate()
    Ours(name).debug()
    for left in set(threading.enumerate()).difference(before):
        left.join()  # it leaves its readers behind


APPLICATION_CASES = [
    (applications.ExampleApplicationTestCase, "test_example_application"),
    *(
        (applications.ApplicationTestCase, name)
        for name in vars(applications.ApplicationTestCase)
        if name.startswith("test_") and name not in ("test_name", "test_resolve_persistence_topics")
    ),
]  # these two are about other factories


@pytest.mark.filterwarnings("default:'log' is deprecated")  # and it sees whether it warned
@pytest.mark.parametrize(("case", "name"), APPLICATION_CASES, ids=lambda it: getattr(it, "__name__", it))
def test_the_librarys_own_applications_run_on_our_recorder(
    url: str, case: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSISTENCE_MODULE", "agent_es.store.recorder:Factory")
    monkeypatch.setenv("SQLALCHEMY_URL", url)
    opened: list[Application[Any]] = []
    begin = Application.__init__

    def open_too(app: Application[Any], *args: Any, **kwargs: Any) -> None:
        begin(app, *args, **kwargs)
        opened.append(app)
        assert isinstance(app.recorder, RunRecorder)
        app.recorder.open(create=True, migrate=False)

    monkeypatch.setattr(Application, "__init__", open_too)

    class Ours(case):  # type: ignore[misc]
        expected_factory_topic = "agent_es.store.recorder:Factory"

    Ours(name).debug()
    for app in opened:
        app.close()
        if isinstance(app.recorder, RunRecorder):
            app.recorder.datastore.close()
    assert opened


def test_the_librarys_cipher_needs_its_key_only(open_store: Callable[..., RunStore]) -> None:
    key, another = (b64encode(os.urandom(32)).decode() for _ in range(2))
    open_store(env={"CIPHER_KEY": key}).start(AgentRun, run_id="run-7f3a", goal="Refund ORD-3300")

    assert open_store(env={"CIPHER_KEY": key}).load("run-7f3a").goal == "Refund ORD-3300"
    with pytest.raises(RunUnreadable, match="is the key right"):
        open_store(env={"CIPHER_KEY": another}).load("run-7f3a")
