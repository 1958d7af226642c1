"""The command: run the workloads, show what they found, and fail where a bar is missed."""

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Protocol

import typer

from agent_es.bench import append, replay, startup
from agent_es.bench.command import perform
from agent_es.bench.measure import Measure, Report, Show
from benchmarks import appends, idle, imports, profile, resume, short_runs, size, step, writers
from benchmarks.systems.process import NAMES, about, chosen, missing

INSTALL = "not installed: pip install -e '.[bench]'"


class Workload(StrEnum):
    """What can be measured."""

    REPLAY = "replay"
    RESUME = "resume"
    STEP = "step"
    PROFILE = "profile"
    APPEND = "append"
    APPENDS = "appends"
    WRITERS = "writers"
    IDLE = "idle"
    SHORT_RUNS = "short_runs"
    SIZE = "size"
    HELP = "help"
    IMPORTS = "imports"
    MEMORY = "memory"
    INSPECT = "inspect"


class Comparison(Protocol):
    """Runs one workload with some systems."""

    def __call__(self, folder: Path, show: Show, *, quick: bool, systems: Sequence[str]) -> Report:
        """Return what was found."""
        ...


def measure_memory(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return what a model is sent."""
    from benchmarks import memory  # noqa: PLC0415  # of the extra `llm`

    return memory.measure(folder, show, quick=quick)


def measure_inspect(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return how long the inspector's pages take."""
    from benchmarks import inspecting  # noqa: PLC0415  # of the extra `inspect`

    return inspecting.measure(folder, show, quick=quick)


MEASURES: Mapping[Workload, Measure] = {
    Workload.REPLAY: replay.measure,
    Workload.PROFILE: profile.measure,
    Workload.APPEND: append.measure,
    Workload.APPENDS: appends.measure,
    Workload.WRITERS: writers.measure,
    Workload.IDLE: idle.measure,
    Workload.HELP: startup.measure_help,
    Workload.MEMORY: measure_memory,
    Workload.INSPECT: measure_inspect,
}
NEEDS: Mapping[Workload, Sequence[str]] = {
    Workload.MEMORY: ("pydantic_ai",),
    Workload.INSPECT: ("starlette", "jinja2", "uvicorn"),
}
"""What a workload cannot do without, beside the library itself."""
COMPARISONS: Mapping[Workload, Comparison] = {
    Workload.RESUME: resume.measure,
    Workload.STEP: step.measure,
    Workload.SHORT_RUNS: short_runs.measure,
    Workload.SIZE: size.measure,
    Workload.IMPORTS: imports.measure,
}
Named = StrEnum("Named", {name.upper(): name for name in NAMES})  # type: ignore[misc]  # the list is elsewhere


def main(
    *,
    only: Annotated[list[Workload] | None, typer.Option(help="Run this workload; may be given again.")] = None,
    system: Annotated[
        list[Named] | None,
        typer.Option(help="Compare with this system; may be given again.  All that are installed, if left out."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: see that it works, not how fast.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout.")] = False,
    as_page: Annotated[bool, typer.Option("--markdown", help="Write tables for a page of the docs.")] = False,
    folder: Annotated[Path, typer.Option(help="Where the databases are made: on a real disk.", exists=True)] = Path(),
) -> None:
    """Measure agent_es against its bars; exit with 1 where one is missed."""
    workloads = only or [*Workload]
    for workload in [workload for workload in workloads if not all(map(find_spec, NEEDS.get(workload, ())))]:
        print(f"left out: {workload}: {INSTALL}", file=sys.stderr)
        workloads = [other for other in workloads if other is not workload]
    wanted = [str(name) for name in system or ()]
    compares = any(workload in COMPARISONS for workload in workloads)
    for name in missing(wanted) if compares else ():
        print(f"left out: {name}: {INSTALL}", file=sys.stderr)
    every = {**MEASURES, **{name: partial(act, systems=chosen(wanted)) for name, act in COMPARISONS.items()}}
    measures = {workload: every[workload] for workload in workloads}
    systems = notes(wanted) if compares else None
    output = {"as_json": as_json, "indent": 2, "as_page": as_page, "systems": systems}
    raise typer.Exit(perform(measures, folder, quick=quick, **output))


def notes(wanted: Sequence[str]) -> dict[str, str]:
    """Return what each system does more or less than the others, or that it is not there."""
    return {name: about(name) for name in chosen(wanted)} | dict.fromkeys(missing(wanted), INSTALL)


if __name__ == "__main__":
    typer.run(main)
