"""What ``python -m benchmarks --json`` wrote, read back; what several runs of it wrote, put together.

for workload in step resume; do python -m benchmarks --only $workload --json > $workload.json; done
python -m benchmarks.results step.json resume.json > benchmarks/results.json

What was measured apart, on another machine or with other packages, is kept as a whole, with what it was measured on:

python -m benchmarks.results step.json resume.json --apart memory.json > benchmarks/results.json
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from agent_es.bench.measure import Bar, Figure, Measured

RESULTS = Path(__file__).with_name("results.json")
"""Those that the page in the docs shows."""

OURS, FLOOR = "agent_es", "floor"
MOST_CHOSEN = 12
"""Sizes that a workload has, where each is a piece of work of its own."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one workload found."""

    figures: Sequence[Figure]
    bars: Sequence[Bar]
    measured: Sequence[Measured]


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn in one picture: what systems needed on one database, in one unit."""

    name: str
    """Of its files, without what they end with."""
    workload: str
    database: str
    unit: str
    measured: Sequence[Measured]

    @property
    def systems(self) -> Sequence[str]:
        """Who was measured: agent_es first, the floor last."""
        return sorted({one.system for one in self.measured}, key=place_of)

    @property
    def sizes(self) -> Sequence[int]:
        """Which sizes were measured, the smallest first."""
        return sorted({one.size for one in self.measured})

    @property
    def is_course(self) -> bool:
        """Whether its sizes are the steps of a course, one after the other, rather than some that were chosen."""
        return len(self.sizes) > MOST_CHOSEN

    def at(self, system: str, size: int) -> Measured | None:
        """Return what a system needed at a size, if it went there."""
        return next((one for one in self.measured if (one.system, one.size) == (system, size)), None)


def read(path: Path = RESULTS) -> dict[str, Any]:
    """Return the whole object."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def together(found: Sequence[Mapping[str, Any]], apart: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the results of several runs as those of one; raise ``ValueError`` where they are not of one kind.

    A ratio is of one run as before: what is put together are workloads, of one machine with one set of packages.
    Those apart may be of any machine: they stand beside the others, and no ratio is of both.
    """
    first, *others = found
    for other in others:
        for what in ("quick", "versions"):
            if other[what] != first[what]:
                raise ValueError(f"{what}: one run has {first[what]}, another has {other[what]}")
        if differs := [
            name for name in ("platform", "cpu", "cpus") if other["machine"][name] != first["machine"][name]
        ]:
            raise ValueError(f"the runs are of different machines: {', '.join(differs)}")
    apart = [*(other for one in found for other in one.get("apart", ())), *apart]
    names = [name for one in (*found, *apart) for name in one["workloads"]]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"measured in two runs: {', '.join(sorted(twice))}")
    return {
        **first,
        "commit": ", ".join(dict.fromkeys(one["commit"] or "unknown" for one in found)),
        "began_at": min(one["began_at"] for one in found),
        "systems": {name: note for one in found for name, note in (one.get("systems") or {}).items()},
        "workloads": {name: told for one in found for name, told in one["workloads"].items()},
        **({"apart": apart} if apart else {}),
        "all_met": all(one["all_met"] for one in (*found, *apart)),
    }


def workloads(results: Mapping[str, Any]) -> dict[str, Found]:
    """Return what each workload found."""
    return {
        name: Found(
            [Figure(**figure) for figure in found["figures"]],
            [Bar(**{field.name: bar[field.name] for field in fields(Bar)}) for bar in found["bars"]],
            [Measured(**measured) for measured in found.get("measured", ())],
        )
        for one in (results, *results.get("apart", ()))
        for name, found in one["workloads"].items()
    }


def measured_apart(results: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the whole results that each workload comes from which was not measured with the others."""
    return {name: one for one in results.get("apart", ()) for name in one["workloads"]}


def pictures(workload: str, found: Found) -> list[Picture]:
    """Return the pictures of a workload: one for each database, and where it has several units for each of those."""
    groups: dict[tuple[str, str], list[Measured]] = {}
    for one in found.measured:
        groups.setdefault((one.database, one.unit), []).append(one)
    databases = [database for database, _ in groups]
    return [
        Picture(
            "-".join(filter(None, [workload, database, slug(unit) if databases.count(database) > 1 else ""])),
            workload,
            database,
            unit,
            measured,
        )
        for (database, unit), measured in groups.items()
    ]


def slug(unit: str) -> str:
    """Return a unit as the name of a file has it.

    >>> slug("runs/s")
    'runs-s'
    """
    return "".join(char if char.isalnum() else "-" for char in unit.lower())


def is_ours(system: str) -> bool:
    """Say whether it is agent_es, one way or another."""
    return system.partition(",")[0] == OURS


def is_floor(system: str) -> bool:
    """Say whether it is the least that the work takes."""
    return system.partition(",")[0] == FLOOR


def place_of(system: str) -> tuple[int, str]:
    """Return where a system stands among others."""
    return (0 if is_ours(system) else 2 if is_floor(system) else 1), system


if __name__ == "__main__":
    parser = ArgumentParser(description="Put together what several runs wrote.")
    parser.add_argument("file", nargs="+", type=Path, help="What --json wrote.")
    parser.add_argument("--apart", nargs="+", type=Path, default=[], help="What --json wrote somewhere else.")
    files = parser.parse_args()
    made = together([read(path) for path in files.file], [read(path) for path in files.apart])
    json.dump(made, sys.stdout, indent=2)
    sys.stdout.write("\n")
