"""B38: a notice that a run is due is lost while the listener connects anew, or never comes at all.

The library's statement: a notice only shortens a wait.  A worker polls beside it, every `poll` seconds, and looks
again after each new connection of its listener, which is made two seconds after the old one was lost.
"""

import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent_es import AgentRun, Envelope, Finish, RunStore, ScriptedDecider, Status, WaitFor, Worker, tool
from agent_es.store.bell import AGAIN

pytestmark = pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)

SLACK = 1.5
"""Seconds that a busy machine may be late."""
NEVER = 60.0
"""Seconds between the polls of a worker that is to be woken otherwise."""
KILL_THE_LISTENER = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"


class Report(AgentRun):
    """Waits until it is approved."""

    decider = ScriptedDecider([WaitFor("approved"), Finish("published")])


class Press(AgentRun):
    """Publishes what a person says yes to."""

    @tool(effect="read")
    def publish(self) -> str:
        return "published"

    decider = ScriptedDecider([publish.call(), Finish("published")])


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    with RunStore(url) as store:
        yield store


def wait_for(happened: Callable[[], bool], seconds: float = 20.0) -> float:
    """Return after how many seconds it had happened."""
    began = time.monotonic()
    while not happened():
        assert time.monotonic() < began + seconds, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - began


@contextmanager
def working(store: RunStore, *, poll: float, listens: Callable[[], bool] | None = None) -> Iterator[None]:
    """Let a worker wait for work meanwhile, its listener in place."""
    worker = Worker(store, agents=[Report, Press], poll=poll)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_for(listens or (lambda: store.bell.is_heard))
        yield
    finally:
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


def waiting(store: RunStore, run_id: str = "run-1") -> None:
    """Start a run, and wait until it waits."""
    store.start(Report, run_id=run_id, goal="publish")
    wait_for(lambda: store.record(run_id).status is Status.WAITING)


def published_after(store: RunStore, run_id: str = "run-1") -> float:
    """Approve a run through a store of its own, and return after how many seconds it was published."""
    with RunStore(store.url) as elsewhere:
        elsewhere.signal(run_id, "approved")
    return wait_for(lambda: store.record(run_id).status is Status.DONE)


def kill_the_listener(server: Any, store: RunStore) -> None:
    assert server.execute(KILL_THE_LISTENER) != []
    wait_for(lambda: not store.bell.is_heard)


def test_a_signal_in_the_gap_is_noticed_within_one_poll_interval(store: RunStore, server: Any) -> None:
    with working(store, poll=0.3):
        waiting(store)
        kill_the_listener(server, store)

        took = published_after(store)

        assert not store.bell.is_heard  # it was the poll
        assert took < min(0.3 + SLACK, AGAIN)


@pytest.mark.parametrize("poll", [0.3, NEVER], ids=["by the poll", "by the new listener"])
def test_an_approval_in_the_gap_is_noticed_as_soon(poll: float, store: RunStore, server: Any) -> None:
    with working(store, poll=poll):
        store.start(Press, run_id="run-1", goal="publish", envelope=Envelope(needs_approval=["publish"]))
        wait_for(lambda: len(store.inbox(kind="approval")) == 1)
        kill_the_listener(server, store)

        with RunStore(store.url) as elsewhere:
            elsewhere.approve("run-1", 0, by="dana")
        took = wait_for(lambda: store.record("run-1").status is Status.DONE)

        assert took < min(poll, AGAIN) + SLACK


def test_the_store_is_looked_at_after_the_listener_has_connected_anew(store: RunStore, server: Any) -> None:
    with working(store, poll=NEVER):
        waiting(store)
        kill_the_listener(server, store)

        took = published_after(store)

        assert took < AGAIN + SLACK
        assert store.bell.is_heard


def test_a_listener_that_has_connected_anew_hears_as_before(store: RunStore, server: Any) -> None:
    with working(store, poll=NEVER):
        waiting(store, "first")
        kill_the_listener(server, store)
        wait_for(lambda: store.bell.is_heard)

        took = published_after(store, "first")
        waiting(store, "second")
        then = published_after(store, "second")

        assert max(took, then) < SLACK


def test_a_listener_whose_connection_is_lost_again_and_again_does_not_spin(store: RunStore, server: Any) -> None:
    with working(store, poll=0.3):
        waiting(store)
        killed, until = 0, time.monotonic() + 3 * AGAIN
        spent = time.process_time()

        while time.monotonic() < until:
            killed += len(server.execute(KILL_THE_LISTENER))
            time.sleep(0.1)

        assert 2 <= killed <= 4
        assert time.process_time() - spent < 2.0
        assert published_after(store) < 0.3 + SLACK


def test_a_server_that_was_away_is_heard_again(database: str, new_server: Callable[[], Any]) -> None:
    server = new_server()
    with RunStore(server.new_url()) as store, working(store, poll=0.3):
        waiting(store)
        server.kill()
        wait_for(lambda: not store.bell.is_heard)

        server.start()

        wait_for(lambda: store.bell.is_heard)
        assert published_after(store) < SLACK


# A pooler that hands a connection to somebody else after each transaction: whoever listens on it hears nothing.


class DeafPooler:
    """Stands between a client and a server, and passes on everything but notices."""

    def __init__(self, server_folder: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="deaf-"))
        self.listens = False
        """Whether somebody asked to be told."""
        self.notices = 0
        self._to = server_folder / ".s.PGSQL.5432"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.folder / ".s.PGSQL.5432"))
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()
        shutil.rmtree(self.folder)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._to))
                for pump in (self._ask, self._answer):
                    threading.Thread(target=pump, args=[client, server], daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                self.listens |= b"LISTEN " in data
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what the server says, message by message: a letter, and how long it is."""
        with suppress(OSError), server.makefile("rb") as said, client:
            while len(head := said.read(5)) == 5:
                body = said.read(struct.unpack("!I", head[1:])[0] - 4)
                if head[:1] == b"A":
                    self.notices += 1
                else:
                    client.sendall(head + body)
        server.close()


@pytest.fixture
def pooler(server: Any) -> Iterator[DeafPooler]:
    folder = server.url.partition("host=")[2]
    with ExitStack() as opened:
        pooler = DeafPooler(Path(folder))
        opened.callback(pooler.close)
        yield pooler


def test_a_listener_that_never_gets_a_notice_is_no_later_than_one_poll_interval(
    url: str, server: Any, pooler: DeafPooler
) -> None:
    deaf = url.replace(server.url.partition("host=")[2], str(pooler.folder))
    with RunStore(deaf) as store, working(store, poll=0.3, listens=lambda: pooler.listens):
        waiting(store)
        spent, notices = time.process_time(), pooler.notices

        with RunStore(url) as elsewhere:
            elsewhere.signal("run-1", "approved")
        took = wait_for(lambda: store.record("run-1").status is Status.DONE)

        assert pooler.notices > notices
        assert took < 0.3 + SLACK
        assert time.process_time() - spent < 1.0


def test_whoever_never_gets_a_notice_does_not_say_that_it_hears(url: str, server: Any, pooler: DeafPooler) -> None:
    deaf = url.replace(server.url.partition("host=")[2], str(pooler.folder))
    with RunStore(deaf) as store:
        over = threading.Event()
        listener = threading.Thread(target=store.bell.listen, args=[over, lambda: None])
        listener.start()
        try:
            wait_for(lambda: pooler.listens)
            time.sleep(1.0)  # and it has had the time to hear nothing

            assert not store.bell.is_heard
        finally:
            over.set()
            listener.join(20)
