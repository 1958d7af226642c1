"""Where the runs of a scenario are kept: in the folder of its world, or on a PostgreSQL server beside it.

Rule: what belongs to a folder is found again by its name alone, in another process too, and goes with it.
"""

from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

RUNS_DB = "runs.db"


def in_its_folder(folder: Path) -> str:
    """Return the URL of a SQLite file in the folder."""
    return f"sqlite:///{folder / RUNS_DB}"


def on_postgres(url: str) -> Callable[[Path], str]:
    """Return what keeps the runs of each folder in a schema of its own, for ``Scenario(url=...)``.

    ``url`` is of a database in which schemas may be made: one for tests.  A schema goes after its folder has gone.
    """
    database = make_url(url).set(drivername="postgresql+psycopg")
    made: dict[Path, str] = {}

    def schema_of(folder: Path) -> str:
        name = f"agent_es_{sha256(str(folder).encode()).hexdigest()[:16]}"
        if folder not in made:
            gone = [made.pop(other) for other in [*made] if not other.exists()]
            statements = [f"DROP SCHEMA IF EXISTS {other} CASCADE" for other in gone]
            _execute(*statements, f"CREATE SCHEMA IF NOT EXISTS {name}")
            made[folder] = name
        return database.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(hide_password=False)

    def _execute(*statements: str) -> None:
        engine = create_engine(database, poolclass=NullPool)
        with closing(engine.raw_connection()) as connection:
            for statement in statements:
                connection.cursor().execute(statement)
            connection.commit()

    return schema_of
