"""Workloads, run one after the other and shown: what ``agent-es bench`` and ``python -m benchmarks`` share."""

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from agent_es.bench import Workload, append, replay, startup
from agent_es.bench.measure import Measure, Report
from agent_es.bench.report import as_markdown, as_notes, as_object, as_table, showing

MEASURES: Mapping[Workload, Measure] = {
    Workload.APPEND: append.measure,
    Workload.REPLAY: replay.measure,
    Workload.HELP: startup.measure_help,
    Workload.IMPORTS: startup.measure_imports,
}


def perform(
    measures: Mapping[str, Measure],
    folder: Path,
    *,
    quick: bool,
    as_json: bool = False,
    indent: int | None = None,
    as_page: bool = False,
    systems: Mapping[str, str] | None = None,
) -> int:
    """Run workloads on files in a folder, and show what they found; return 1 where a bar is missed, else 0.

    JSON stands on one line without ``indent``.  ``systems`` says what each does more or less than the others.
    """
    began = datetime.now(UTC)
    reports: dict[str, Report] = {}
    with showing() as show:
        for workload, measure in measures.items():
            with TemporaryDirectory(prefix=".benchmarks-", dir=folder) as own:
                reports[workload] = measure(Path(own).resolve(), show, quick=quick)
    if as_json:
        told = as_object(reports, began, quick=quick) | {"systems": dict(systems or {})}
        json.dump(told, sys.stdout, indent=indent)
        sys.stdout.write("\n")
    elif as_page:
        sys.stdout.write("\n".join(map(as_markdown, reports.values())) + "\n")
        sys.stdout.writelines(f"* `{name}`: {note}\n" for name, note in (systems or {}).items())
    else:
        Console().print(as_table(reports))
        if systems:
            Console().print(as_notes(systems))
    missed = [f"missed: {workload}: {bar}\n" for workload, found in reports.items() for bar in found.missed]
    sys.stderr.writelines(missed)
    return 1 if missed else 0
