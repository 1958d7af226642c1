"""Starting: what a command and an import cost before anything is done, each in a process of its own."""

import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from agent_es.bench.measure import Bar, Figure, Report, Show, Side, alternate

HELP_AT_MOST = 0.35
IMPORT_AT_MOST = 60.0

PACKAGE = "import agent_es"
EVERYTHING = "from agent_es import *"
GROUND = "import sqlalchemy.orm, pydantic"


def measure_help(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return how long ``agent-es --help`` takes."""
    sides = {
        "--help": python("-m", "agent_es", "--help", folder=folder),
        "a process that does nothing": python("-c", "pass", folder=folder),
    }
    samples = alternate(sides, show(range(3 if quick else 15), "help"))
    seconds = samples.micros("--help") / 1e6
    bare = samples.micros("a process that does nothing") / 1e6
    return Report(
        (Figure("a process that does nothing", bare, "s"),),
        Bar("agent-es --help, s", seconds, "at most", HELP_AT_MOST),
    )


def measure_imports(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return what ``import agent_es`` costs beyond the ORM and pydantic, and what the first use of all of it does."""
    sides = {line: python("-c", line, folder=folder) for line in (PACKAGE, EVERYTHING, GROUND)}
    samples = alternate(sides, show(range(3 if quick else 15), "imports"))
    more = {line: median(samples.differences(line, GROUND)) * 1e3 for line in (PACKAGE, EVERYTHING)}
    return Report(
        (
            *(Figure(line, samples.micros(line) / 1e3, "ms") for line in sides),
            Figure(f"{EVERYTHING}, beyond {GROUND}", more[EVERYTHING], "ms"),
        ),
        Bar(f"{PACKAGE}, beyond {GROUND}, ms", more[PACKAGE], "at most", IMPORT_AT_MOST),
    )


def python(*words: str, folder: Path) -> Side:
    """Return the side that runs Python once."""

    def side() -> float:
        began = perf_counter()
        subprocess.run([sys.executable, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return perf_counter() - began

    return side
