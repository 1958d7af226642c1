"""What the store tests start from: a real SQLite file, our store on it, and a second way in by plain SQL."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from agent_es import RunStore
from agent_es.testing import FrozenClock

settings.register_profile("agent_es", deadline=None)  # a busy machine is no failure
settings.load_profile("agent_es")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def open_store(url: str) -> Iterator[Callable[..., RunStore]]:
    """Opens the file anew at each call; closes what it opened."""
    with ExitStack() as opened:

        def open_again(cls: type[RunStore] = RunStore, **settings: Any) -> RunStore:
            store = cls(url, clock=FrozenClock(), **settings)
            opened.callback(store.close)
            return store

        yield open_again


@pytest.fixture
def store(open_store: Callable[..., RunStore]) -> RunStore:
    return open_store()


@pytest.fixture
def sql(tmp_path: Path) -> Callable[..., list[tuple[Any, ...]]]:
    """Executes one statement on the file, behind the store's back."""

    def execute(statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as database:
            return database.execute(statement, values).fetchall()

    return execute
