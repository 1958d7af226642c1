"""The command: run the workloads, show what they found, and fail where a bar is missed."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from agent_es.bench import append, load, load_growth, startup
from agent_es.bench.command import perform
from agent_es.bench.measure import Measure
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
    measures = {workload: MEASURES[workload] for workload in only or Workload}
    raise typer.Exit(perform(measures, folder, quick=quick, as_json=as_json, indent=2, as_page=as_page))


if __name__ == "__main__":
    typer.run(main)
