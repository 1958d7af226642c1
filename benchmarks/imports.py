"""What each system costs before it does anything: its import, in a process of its own, and what it needs on the disk.

The size is that of the installed files of a package and of all that it requires, without compiled bytecode; it is
left out where ``packaging`` is not there to say what that is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from agent_es.bench import startup
from agent_es.bench.measure import Figure, Measured, Report, Show, alternate
from benchmarks.systems.process import DBOS, FLOOR, LANGGRAPH, OURS, PYDANTIC_AI, STOCK, chosen

MEGABYTE = 1e6
WHAT = {"ms": "a process that imports it", "MB": "installed, with all that it requires"}


class Needs(NamedTuple):
    """What a system is, to Python and to pip."""

    line: str
    """Imports what a program needs that keeps its runs in a file of SQLite."""
    requires: str


SYSTEMS: Mapping[str, Needs] = {
    OURS: Needs("import agent_es", "agent-es"),
    f"{OURS}, every name": Needs("from agent_es import *", "agent-es"),
    FLOOR: Needs("import sqlite3, pydantic", "pydantic"),
    STOCK: Needs("import eventsourcing.application, eventsourcing_sqlalchemy", "eventsourcing-sqlalchemy"),
    DBOS: Needs("import dbos", "dbos"),
    LANGGRAPH: Needs("import langgraph.graph, langgraph.checkpoint.sqlite", "langgraph, langgraph-checkpoint-sqlite"),
    PYDANTIC_AI: Needs("import pydantic_ai, pydantic_ai.durable_exec.dbos", "pydantic-ai-slim[dbos]"),
}


def measure(folder: Path, show: Show, *, quick: bool, systems: Sequence[str] = ()) -> Report:
    """Return what ``import agent_es`` costs beyond what it stands on, and what others cost."""
    ours = startup.measure_imports(folder, show, quick=quick)
    names = chosen(systems)
    entered = {name: needs for name, needs in SYSTEMS.items() if name.partition(", ")[0] in names}
    sides = {name: startup.python("-c", needs.line, folder=folder) for name, needs in entered.items()}
    samples = alternate(sides, show(range(3 if quick else 9), "imports, by system"))
    measured = [Measured.of(name, "", 0, [second * 1e3 for second in samples.of(name)], "ms") for name in entered]
    measured += [
        Measured.of(name, "", 0, [installed(needs.requires) / MEGABYTE], "MB")
        for name, needs in entered.items()
        if name in names and find_spec("packaging")
    ]
    figures = [Figure(f"{it.system}, {WHAT[it.unit]}", it.value, it.unit) for it in measured]
    return Report((*ours.figures, *figures), ours.bar, ours.more, tuple(measured))


def installed(requires: str) -> int:
    """Return the bytes that some packages take with all that they require, as they are installed here."""
    from packaging.requirements import Requirement  # noqa: PLC0415  # of the extra `bench`

    found: dict[str, int] = {}
    wanted = [Requirement(each) for each in requires.split(", ")]
    seen: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        requirement = wanted.pop()
        name, extras = canonical(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            package = distribution(name)
        except PackageNotFoundError:  # another platform's
            continue
        found[name] = size_of(package)
        wanted += required(package, extras)
    return sum(found.values())


def required(package: Distribution, extras: frozenset[str]) -> Iterator[Any]:
    """Yield what a package requires here, with some of its extras."""
    from packaging.requirements import Requirement  # noqa: PLC0415  # of the extra `bench`

    for line in package.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def size_of(package: Distribution) -> int:
    """Return the bytes of a package's files; of one that lies in a checkout, those of its modules."""
    if canonical(package.metadata["Name"]) == "agent-es":
        return sum(path.stat().st_size for path in Path(startup.__file__).parents[1].rglob("*.py"))
    files = [Path(str(file.locate())) for file in package.files or () if "__pycache__" not in file.parts]
    return sum(path.stat().st_size for path in files if path.exists())


def canonical(name: str) -> str:
    """Return a package's name as everybody means it.

    >>> canonical("typing_extensions")
    'typing-extensions'
    """
    return re.sub(r"[-_.]+", "-", name).lower()
