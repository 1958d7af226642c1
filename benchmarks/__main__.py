"""The command: run the workloads, show what they found, and fail where a bar is missed."""

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from agent_es.bench import append, load, load_growth, startup
from agent_es.bench.measure import Measure, Report
from agent_es.bench.report import as_markdown, as_object, as_table, showing
from benchmarks import idle, postgres, workers, writers


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


if __name__ == "__main__":
    typer.run(main)
