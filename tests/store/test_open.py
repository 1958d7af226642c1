"""Opening: which files are a store, how each connection is set, and who may open one when."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from decimal import Decimal
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import text

from agent_es import AgentRun, Finish, Runner, RunState, RunStore, ToolSpec, Used
from agent_es.errors import SchemaMismatch, StoreUnusable

Sql = Callable[..., list[tuple[Any, ...]]]
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


class Refund(AgentRun):
    pass


def start(store: RunStore, run_id: str = "run-7f3a") -> None:
    store.start(Refund, run_id=run_id, goal="Refund ORD-3300")


# Which URLs.


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "mysql+pymysql://localhost/runs",
            "keeps runs in SQLite or PostgreSQL; use sqlite:///path/to/runs.db or post",
        ),
        ("postgresql+asyncpg://localhost/runs", r"or postgresql\+psycopg://user@host/database"),
        ("postgres://localhost/runs", r"or postgresql\+psycopg://user@host/database"),
        ("sqlite://", "a run in memory dies with its process; name a file"),
        ("sqlite:///:memory:", "a run in memory dies with its process; name a file"),
        ("sqlite:///file:runs?mode=memory&uri=true", "a run in memory dies with its process; name a file"),
        ("sqlite:///file::memory:?uri=true", "a run in memory dies with its process; name a file"),
        ("sqlite:///no/such/folder/runs.db", "there is no folder 'no/such/folder'; create it first"),
        ("runs.db", "is no store URL; use sqlite:///path/to/runs.db"),
        ("", "is no store URL; use sqlite:///path/to/runs.db"),
        ("sqlite+nodriver:///runs.db", "nodriver"),
        ("sqlite+aiosqlite:///runs.db", "aiosqlite"),
    ],
)
def test_a_url_that_cannot_keep_runs_says_why_and_what_to_use(
    url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StoreUnusable, match=says):
        RunStore(url)

    assert [*tmp_path.iterdir()] == []


WITHOUT_A_DRIVER = """
import sys
sys.modules["psycopg"] = None
from agent_es import RunStore
from agent_es.errors import StoreUnusable
try:
    RunStore("postgresql://localhost/runs")
except StoreUnusable as error:
    print(error)
"""


def test_a_driver_that_is_missing_is_named_with_the_way_to_get_it() -> None:
    program = [sys.executable, "-c", WITHOUT_A_DRIVER]

    told = subprocess.run(program, check=True, timeout=60, capture_output=True, text=True).stdout

    assert "pip install 'agent-es[postgres]'" in told


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=tmp_path.name):
        RunStore(f"sqlite:///{tmp_path}")


@on_sqlite
def test_a_file_that_is_no_database_is_no_store_and_stays_as_it_is(tmp_path: Path, url: str) -> None:
    (tmp_path / "runs.db").write_text("my notes, which are long enough to be taken for a page\n" * 100)
    before = (tmp_path / "runs.db").read_bytes()

    with pytest.raises(StoreUnusable, match=r"runs\.db"):
        RunStore(url)

    assert (tmp_path / "runs.db").read_bytes() == before


@on_sqlite
def test_the_url_of_the_call_wins_over_the_environment(
    open_store: Callable[..., RunStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ES_SQLALCHEMY_URL", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    monkeypatch.setenv("SQLALCHEMY_URL", f"sqlite:///{tmp_path / 'elsewhere.db'}")

    start(open_store())

    assert not (tmp_path / "elsewhere.db").exists()
    assert (tmp_path / "runs.db").exists()


def test_a_path_may_hold_spaces_and_any_letters(tmp_path: Path) -> None:
    file = tmp_path / "my runs é \N{GRINNING FACE}.db"

    with RunStore(f"sqlite:///{file}") as store:
        start(store)

    assert file.exists()


@on_sqlite
def test_without_create_nothing_is_made(open_store: Callable[..., RunStore], tmp_path: Path) -> None:
    with pytest.raises(
        StoreUnusable, match="is no file: there is nothing to read; start a run there, or name another store"
    ):
        open_store(create=False)

    assert [*tmp_path.iterdir()] == []


def test_without_create_a_database_of_something_else_stays_as_it_is(
    open_store: Callable[..., RunStore], sql: Sql, tables: Callable[[], list[str]]
) -> None:
    sql("CREATE TABLE notes (line TEXT)")

    with pytest.raises(StoreUnusable, match="a database without runs of agent_es"):
        open_store(create=False)

    assert tables() == ["notes"]


def test_a_store_lives_beside_tables_of_the_users_own(open_store: Callable[..., RunStore], sql: Sql) -> None:
    sql("CREATE TABLE notes (line TEXT)")
    sql("INSERT INTO notes VALUES ('mine')")

    start(open_store())

    assert sql("SELECT * FROM notes") == [("mine",)]


# Each connection.


def pragmas(connection: sqlite3.Connection) -> tuple[Any, ...]:
    names = ("synchronous", "journal_mode", "busy_timeout")
    return tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)


DURABLE = (2, "wal", 0)


@on_sqlite
def test_every_connection_is_durable_and_waits_our_way(store: RunStore) -> None:
    with ExitStack() as lent:
        connections = [lent.enter_context(store.recorder.datastore.raw()) for _ in range(4)]

        assert len(set(map(id, connections))) == 4
        assert [pragmas(connection) for connection in connections] == [DURABLE] * 4


@on_sqlite
def test_connections_of_other_threads_are_durable_too(store: RunStore) -> None:
    together = Barrier(4)

    def look(_: int) -> tuple[Any, ...]:
        with store.recorder.datastore.raw() as connection:
            together.wait()
            return pragmas(connection)

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(look, range(4))] == [DURABLE] * 4


@on_sqlite
@pytest.mark.parametrize("commit", [True, False])
def test_the_librarys_own_sessions_are_durable_too(store: RunStore, commit: bool) -> None:  # noqa: FBT001
    with store.recorder.datastore.transaction(commit=commit) as session:
        assert session.execute(text("PRAGMA synchronous")).scalar() == 2
        assert session.execute(text("PRAGMA journal_mode")).scalar() == "wal"


@on_sqlite
def test_a_closed_store_leaves_no_connection_behind(open_store: Callable[..., RunStore], tmp_path: Path) -> None:
    store = open_store()
    start(store)

    store.close()

    assert [path.name for path in tmp_path.iterdir()] == ["runs.db"]  # SQLite's last connection tidies up


@pytest.mark.parametrize("way", ["raw", "writing", "transaction", "lending"])
def test_a_connection_in_use_while_its_store_is_closed_is_closed_after_that(store: RunStore, way: str) -> None:
    datastore = store.recorder.datastore
    lent: Any = datastore.transaction(commit=True) if way == "transaction" else getattr(datastore, way)()

    with lent as given:
        connection = {
            "transaction": lambda: given.connection().connection.driver_connection,
            "lending": lambda: given[1],
        }.get(way, lambda: given)()
        store.close()
        connection.execute("SELECT 1")

    with pytest.raises(datastore.dialect.errors, match="closed"):
        connection.execute("SELECT 1")


@on_sqlite
def test_a_store_can_be_opened_for_the_length_of_a_block(tmp_path: Path, url: str) -> None:
    with RunStore(url) as store:
        start(store)

    assert [path.name for path in tmp_path.iterdir()] == ["runs.db"]


# The schema.


def test_a_store_of_newer_code_is_not_opened(open_store: Callable[..., RunStore], sql: Sql) -> None:
    start(open_store())
    sql("UPDATE agent_es_schema SET version = 99")

    with pytest.raises(SchemaMismatch, match="the store has schema 99 and this code knows 7; upgrade agent-es"):
        open_store()
    with pytest.raises(SchemaMismatch):
        open_store(migrate=True)


def test_a_store_of_older_code_waits_for_its_migration(open_store: Callable[..., RunStore], sql: Sql) -> None:
    start(open_store())
    sql("UPDATE agent_es_schema SET version = 0")

    with pytest.raises(SchemaMismatch, match=r"the store has schema 0 and this code needs 7; .*agent-es migrate"):
        open_store()


def test_a_migration_brings_the_tables_up_and_keeps_rows_and_leases(
    open_store: Callable[..., RunStore], sql: Sql, shape: Callable[[], object]
) -> None:
    start(open_store())
    before = shape(), sql("SELECT * FROM agent_es_events")
    sql("UPDATE agent_es_runs SET lease_owner = 'worker-1', lease_token = 7")
    sql("ALTER TABLE agent_es_runs DROP COLUMN envelope_id")
    for table in ("keys", "tags", "deliveries", "spending", "rates", "rate_times", "rate_holds"):
        sql(f"DROP TABLE agent_es_{table}")
    sql("UPDATE agent_es_schema SET version = 0")

    store = open_store(migrate=True)

    (record,) = store.runs()
    assert (record.run_id, record.goal, record.envelope_id) == ("run-7f3a", "Refund ORD-3300", None)
    assert (record.lease_owner, record.lease_token) == ("worker-1", 7)
    assert (shape(), sql("SELECT * FROM agent_es_events")) == before
    assert sql("SELECT version FROM agent_es_schema") == [(7,)]


def test_a_store_without_schedules_is_given_a_place_for_them(
    open_store: Callable[..., RunStore], sql: Sql, shape: Callable[[], object]
) -> None:
    start(open_store())
    before = shape(), sql("SELECT * FROM agent_es_events"), sql("SELECT * FROM agent_es_runs")
    sql("DROP TABLE agent_es_schedules")  # as schema 2 had it
    sql("UPDATE agent_es_schema SET version = 2")
    with pytest.raises(SchemaMismatch, match=r"the store has schema 2 and this code needs 7; .*agent-es migrate"):
        open_store()

    store = open_store(migrate=True)

    assert (shape(), sql("SELECT * FROM agent_es_events"), sql("SELECT * FROM agent_es_runs")) == before
    assert store.schedules() == []
    made = store.schedule("dunning", "0 9 * * *", Refund, goal="Remind who is overdue")
    assert open_store().schedules() == [made]

    sql("UPDATE agent_es_schema SET version = 2")  # what is there is kept by a migration that comes again
    assert open_store(migrate=True).schedules() == [made]


class Paid:
    """Calls nothing, and costs something."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Used:
        return Used(Finish("refunded"), tokens=1_200, cost="0.0125")


def test_a_store_without_costs_gets_them_from_the_events(
    open_store: Callable[..., RunStore], sql: Sql, shape: Callable[[], object]
) -> None:
    store = open_store()
    Runner(store, Paid()).run(Refund, run_id="run-1", goal="Refund ORD-3300")
    start(store)
    rows = "SELECT run_id, status, cursor, lease_token, tokens, cost, updated_at FROM agent_es_runs ORDER BY run_id"
    before = shape(), sql(rows)
    for column in ("tokens", "cost"):  # as schema 6 had it
        sql(f"ALTER TABLE agent_es_runs DROP COLUMN {column}")
    sql("UPDATE agent_es_schema SET version = 6")
    with pytest.raises(SchemaMismatch, match=r"the store has schema 6 and this code needs 7; .*agent-es migrate"):
        open_store()

    migrated = open_store(migrate=True)

    assert {(record.tokens, record.cost) for record in migrated.runs()} == {(0, 0)}  # until rows are made again
    assert migrated.rebuild() == 2
    assert (shape(), sql(rows)) == before
    assert (migrated.record("run-1").tokens, migrated.record("run-1").cost) == (1_200, Decimal("0.0125"))


def test_a_store_that_lost_its_schema_row_says_so(open_store: Callable[..., RunStore], sql: Sql) -> None:
    start(open_store())
    sql("DELETE FROM agent_es_schema")

    with pytest.raises((SchemaMismatch, StoreUnusable)):
        open_store()


# Others.


def test_two_kinds_of_store_share_the_tables(
    open_store: Callable[..., RunStore], tables: Callable[[], list[str]]
) -> None:
    class Refunds(RunStore):
        pass

    class Archive(Refunds):
        name = "archive"

    start(open_store(Refunds))

    assert open_store(Archive).load("run-7f3a").goal == "Refund ORD-3300"
    assert open_store().load("run-7f3a").goal == "Refund ORD-3300"
    names = (
        *(
            "deliveries",
            "events",
            "inbox",
            "keys",
            "rate_holds",
            "rate_times",
            "rates",
            "runs",
            "schedules",
            "schema",
        ),
        *("snapshots", "spending", "tags", "tracking"),
    )
    assert tables() == [f"agent_es_{name}" for name in names]


@on_sqlite
def test_a_store_that_is_there_opens_while_another_writes(
    open_store: Callable[..., RunStore], tmp_path: Path
) -> None:
    start(open_store())
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        store = open_store()

        assert store.load("run-7f3a").goal == "Refund ORD-3300"


FORKED = """
import os, sys
from agent_es import AgentRun
from agent_es.store import RunStore

store = RunStore(sys.argv[1])
store.start(AgentRun, run_id="parent", goal="before")
assert store.notification_log.select(start=1, limit=1)  # by the library's own connection
with store.recorder.datastore.raw() as connection:
    at_hand = connection
child = os.fork()
if child == 0:
    store.start(AgentRun, run_id="child", goal="in the child")
    assert store.load("parent").goal == "before"
    assert len(store.notification_log.select(start=1, limit=9)) == 2
    with store.recorder.datastore.raw() as connection:
        assert connection is not at_hand
    store.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
with store.recorder.datastore.raw() as connection:
    assert connection is at_hand
store.start(AgentRun, run_id="after", goal="in the parent")
assert len(store.notification_log.select(start=1, limit=9)) == 3
store.close()
"""


def test_a_child_process_uses_none_of_its_parents_connections_and_closes_none(
    open_store: Callable[..., RunStore], url: str
) -> None:
    program = [sys.executable, "-W", "error", "-c", FORKED, url]

    ended = subprocess.run(program, check=False, timeout=60, capture_output=True, text=True)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert {record.run_id for record in open_store().runs()} == {"parent", "child", "after"}


EIGHT_AT_ONCE = """
import os, sys
from agent_es import AgentRun
from agent_es.store import RunStore

held, starting_gun = os.pipe()
children = []
for n in range(8):
    child = os.fork()
    if child == 0:
        os.close(starting_gun)
        os.read(held, 1)  # returns when the parent lets go
        RunStore(sys.argv[1]).start(AgentRun, run_id=f"run-{n}", goal="open at once")
        os._exit(0)
    children.append(child)
os.close(starting_gun)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""


@pytest.mark.crash
@pytest.mark.parametrize("_", range(3))
def test_eight_processes_may_open_a_new_database_at_once(
    url: str, open_store: Callable[..., RunStore], _: int
) -> None:
    program = [sys.executable, "-c", EIGHT_AT_ONCE, url]

    ended = subprocess.run(program, check=False, timeout=60, capture_output=True, text=True)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert {record.run_id for record in open_store().runs()} == {f"run-{n}" for n in range(8)}
