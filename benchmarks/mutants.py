"""Mutation testing of the crash kit: faults are put into the library, and the kit must report each of them.

Rule 1: the library as it is passes the same trials first; else nothing that is found means anything.
Rule 2: a mutant is killed by what the kit reports; one that stumbles over its own text, or hangs, is not.
Rule 3: each mutant lives in a copy of the package and in a process of its own; the checkout is never touched.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.mutations import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "agent_es"
AT_ONCE = 2
"""How many mutants live beside each other."""
LIMIT = 240.0
"""Seconds that one may take: several times what the library as it is takes."""
CONTROL = "(none)"
KILLED, ALIVE, HUNG = "killed", "alive", "hung"


@dataclass(frozen=True)
class Fate:
    """What became of a mutant, or of the library as it is."""

    mutant: str
    kind: str
    by: str = ""
    crashes: int | None = None
    problem: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.mutant}: {self.kind}" + (f" by {self.by}" if self.by else "") + f", {self.seconds:.0f} s"


def main(
    *,
    only: Annotated[list[str] | None, typer.Option(help="Put in this fault; may be given again.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout.")] = False,
) -> None:
    """Put faults into agent_es, and see whether the crash kit reports them; exit with 1 where one is not."""
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := {*(only or ())} - {*known}:
        raise typer.BadParameter(f"{', '.join(unknown)}: the mutants are {', '.join(known)}")
    chosen = [known[name] for name in only or known]
    for mutant in chosen:
        mutant.mutated(PACKAGE)
    control = fate_of(None)
    print(control, file=sys.stderr)
    fates = {CONTROL: control}
    if control.kind == ALIVE:
        for fate in fates_of(chosen):
            print(fate, file=sys.stderr)
            fates[fate.mutant] = fate
    told = [fates[name] for name in (CONTROL, *known) if name in fates]
    if as_json:
        json.dump([asdict(fate) for fate in told], sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(as_table(told))
    raise typer.Exit(0 if all(fate.kind == (ALIVE if fate.mutant == CONTROL else KILLED) for fate in told) else 1)


def fates_of(mutants: Iterable[Mutant]) -> Iterator[Fate]:
    """Yield what becomes of mutants, as it is known."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for future in as_completed([pool.submit(fate_of, mutant) for mutant in mutants]):
            yield future.result()


def fate_of(mutant: Mutant | None, *trials: str) -> Fate:
    """Hold trials over a copy of the package with that fault, or without one; raise ``Stale``."""
    name = CONTROL if mutant is None else mutant.name
    with TemporaryDirectory(prefix="agent-es-mutant-", dir=in_memory()) as folder:
        copy = Path(folder, "src")
        shutil.copytree(PACKAGE, copy / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            (copy / PACKAGE.name / mutant.file).write_text(mutant.mutated(PACKAGE))
        command = [sys.executable, "-m", "benchmarks.proving_ground", str(copy), *trials]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment(copy, folder),
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Fate(name, HUNG, problem=f"it came to no end in {LIMIT:g} s", seconds=LIMIT)
    if done.returncode:
        return Fate(name, "broken", problem=done.stderr.strip().rpartition("\n")[2])
    return Fate(name, **json.loads(done.stdout.splitlines()[-1]))


def environment(copy: Path, folder: str) -> Mapping[str, str]:
    """Return the variables under which a process imports the copy, and makes its files in a folder."""
    path = os.pathsep.join([str(copy), str(ROOT)])
    # What measures coverage would look for the copy when it is gone.
    here = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    return {**here, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": folder}


def in_memory() -> str | None:
    """Return a folder in memory, where there is one: what survives here is a process, not a computer."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # a folder of its own is made in it


def as_table(fates: Iterable[Fate]) -> Table:
    """Return what became of each mutant."""
    table = Table(
        "mutant", "fate", "by", "crashes", "the first problem", title="mutants of agent_es", title_justify="left"
    )
    what = {mutant.name: mutant.what for mutant in MUTANTS}
    for fate in fates:
        expected = ALIVE if fate.mutant == CONTROL else KILLED
        told = f"{fate.mutant}\n{what.get(fate.mutant, 'the library as it is')}"
        crashes = "" if fate.crashes is None else str(fate.crashes)
        table.add_row(told, fate.kind, fate.by, crashes, fate.problem, style="" if fate.kind == expected else "red")
        table.add_section()
    return table


if __name__ == "__main__":
    typer.run(main)
