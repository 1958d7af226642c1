"""What the store tests start from: our store on a database, and a second way in by plain SQL."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from agent_es import RunStore
from agent_es.testing import FrozenClock


@pytest.fixture
def open_store(url: str) -> Iterator[Callable[..., RunStore]]:
    """Opens the database anew at each call; closes what it opened."""
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
def tables(sql: Callable[..., list[tuple[Any, ...]]], database: str) -> Callable[[], list[str]]:
    """Returns the names of the tables that are there, but for the database's own."""
    statement = {
        "sqlite": "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name",
        "postgres": "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename",
    }
    return lambda: [name for (name,) in sql(statement[database])]


@pytest.fixture
def shape(sql: Callable[..., list[tuple[Any, ...]]], database: str) -> Callable[[], object]:
    """Returns what all tables look like."""
    statement = {
        "sqlite": "SELECT sql FROM sqlite_schema ORDER BY name",
        "postgres": "SELECT table_name, column_name, data_type, is_nullable, column_default FROM "
        "information_schema.columns WHERE table_schema = current_schema() ORDER BY 1, 2",
    }
    return lambda: sql(statement[database])
