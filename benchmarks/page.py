"""The page about speed: the tables and pictures in ``docs/performance.md``.

    python -m benchmarks --json > today.json  # over an hour; ``benchmarks/results.py`` puts shorter runs together
    mv today.json benchmarks/results.json
    python -m benchmarks.page

Rule 1: a figure on the page comes from the file; ``python -m docs._generate --check`` says where it does not.
Rule 2: what stands outside the places of the program is written by hand, and left alone.
Rule 3: the same file gives the same page, and with one version of matplotlib the same pictures.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_es.bench.measure import Bar, Measured
from agent_es.bench.report import DATABASES, readable
from benchmarks.results import RESULTS, Found, Picture, measured_apart, pictures, place_of, read, workloads
from docs._generate.places import names, put

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
FOLDER = "performance"
"""Where the pictures are, beside the page."""
INSTALL = "pictures need matplotlib: pip install -e '.[bench]'"

NOT_MEASURED = "Not measured in this run.\n"
MACHINE, SYSTEMS = "the machine", "the systems"
ABOUT: Mapping[str, tuple[str, str]] = {
    "replay": ("Replay", "A warm process loads a run by its id: a SELECT, the decoding of its events, the fold."),
    "resume": (
        "Cold resume",
        "The process died; a new one opens the store: the time until the next step is recorded, imports apart.",
    ),
    "step": ("A durable step", "A run from its start to its end in one process: a step is a decision and a result."),
    "profile": (
        "Where the time of a step goes",
        "What a run of 1,000 steps is found doing, by a timer, in one process.",
    ),
    "append": ("An append", "One event and the run's row are made durable on SQLite, against the same bytes in SQL."),
    "appends": ("Many writers on PostgreSQL", "Processes append at the same time, each to a run of its own."),
    "writers": ("Many writers on one file", "Eight processes append at the same time on SQLite: who gets how much."),
    "idle": (
        "Sleeping runs",
        "Runs sleep, and one becomes due: what finding and claiming it costs beside the others.",
    ),
    "short_runs": (
        "Many short runs",
        "Runs of three steps, moved from their start to their end by one worker and two.",
    ),
    "size": ("Bytes on disk", "What a step leaves behind, in tables and indexes."),
    "help": ("The command line", "`agent-es --help`, as a process of its own."),
    "imports": (
        "Imports",
        "What importing each library takes, in a process of its own, and what is installed for it.",
    ),
    "memory": (
        "What a model is sent",
        "A run reads pages of 5,000 characters: all in each question, or 8,000 tokens at most, with summaries.",
    ),
    "inspect": (
        "The inspector",
        "Pages of a store with 100,000 runs, over HTTP, and the start of `agent-es inspect` until it answers.",
    ),
}
"""How a workload is called on the page, and what it measures."""
SIZES = {
    "replay": "events in the run",
    "resume": "steps in the run",
    "step": "steps in the run",
    "appends": "processes that write",
    "idle": "runs that sleep",
    "short_runs": "workers",
    "size": "steps in the run",
    "memory": "question of the run",
}
"""What the size of a workload counts."""


def written(text: str, results: Mapping[str, Any]) -> str:
    """Return the page's text with what the results say in its places; what has none gets one at the end."""
    made = parts(results)
    for name in made:
        if name not in names(text):
            text = f"{text.rstrip()}\n\n## {title_of(name)}\n\n<!-- generated: {name} -->\n<!-- end -->\n"
    for name in names(text):
        text = put(text, name, made.get(name, NOT_MEASURED))
    return text


def parts(results: Mapping[str, Any]) -> dict[str, str]:
    """Return what stands in each place of the page."""
    told = {MACHINE: about_machine(results), SYSTEMS: about_systems(results.get("systems") or {})}
    apart = measured_apart(results)
    return told | {
        name: about_workload(name, found) + (about_apart(apart[name]) if name in apart else "")
        for name, found in workloads(results).items()
    }


def about_apart(results: Mapping[str, Any]) -> str:
    """Return what a workload was measured on that was not measured with the others."""
    return f"\nThis was measured apart from the others:\n\n{about_machine(results)}"


def sent() -> str:
    """Return what a model is sent, for a page that stands in a folder beside this one's pictures."""
    results = read()
    if (found := workloads(results).get("memory")) is None:
        return NOT_MEASURED
    (picture,) = pictures("memory", found)
    rows = [(one.name, readable(one.value), one.unit) for one in found.figures]
    return f"![{alt_of(picture)}](../{FOLDER}/{picture.name}.svg)\n\n{table(['', '', ''], rows)}"


def about_machine(results: Mapping[str, Any]) -> str:
    """Return what was measured on."""
    machine, versions = results["machine"], results["versions"]
    rows = [
        ("measured", f"{results['began_at'][:16].replace('T', ' ')} UTC"),
        ("commit", ", ".join(f"`{commit}`" for commit in (results.get("commit") or "unknown").split(", "))),
        ("processor", f"{machine['cpu'] or machine['machine']}, {machine['cpus']} of them"),
        ("system", machine["platform"]),
        ("load average", readable(machine["load_average"])),
        *((name, str(found)) for name, found in versions.items()),
    ]
    small = "**Small sizes: this run shows that everything works, and nothing of how fast it is.**\n\n"
    return (small if results["quick"] else "") + table(["", ""], rows)


def about_systems(systems: Mapping[str, Any]) -> str:
    """Return what each system does more or less than the others."""
    if not systems:
        return "No other system took part in this run.\n"
    rows = []
    for name in sorted(systems, key=place_of):
        told = systems[name]
        note, version = (told, "") if isinstance(told, str) else (told.get("note"), told.get("version"))
        rows.append((name, version or "", note or ""))
    if not any(version for _, version, _ in rows):
        return table(
            ["system", "what it does more or less than the others"], [(name, note) for name, _, note in rows]
        )
    return table(["system", "version", "what it does more or less than the others"], rows)


def about_workload(name: str, found: Found) -> str:
    """Return the sentence, the pictures, the bars, and the medians of a workload."""
    told = [f"{ABOUT[name][1]}\n"] if name in ABOUT else []
    drawn = pictures(name, found)
    told += [f"![{alt_of(picture)}]({FOLDER}/{picture.name}.svg)\n" for picture in drawn]
    if found.bars:
        told.append(table(["bar", "", "must be", ""], map(row_of, found.bars)))
    told += [medians(picture) for picture in drawn]
    if not drawn:
        told.append(table(["", "", ""], [(one.name, readable(one.value), one.unit) for one in found.figures]))
    return "\n".join(told)


def row_of(bar: Bar) -> Sequence[str]:
    """Return what is said of a bar."""
    met = "met" if bar.is_met else "**MISSED**"
    return bar.name, readable(bar.value), f"{bar.wanted} {bar.limit:g}", met


def medians(picture: Picture) -> str:
    """Return what each system needed: the median of its rounds, and between which values they lay."""
    many = max(one.rounds for one in picture.measured)
    about = [DATABASES.get(picture.database), picture.unit]
    if len(picture.sizes) > 1:
        about.append(f"by {size_of(picture.workload)}")
    if many > 1:
        about.append(f"medians of up to {many} rounds (smallest to largest)")
    shown = [1, *picture.sizes[9::10]] if picture.is_course else picture.sizes
    sizes = [f"{size:,}" for size in shown] if len(shown) > 1 else [picture.unit]
    rows = [(system, *(cell(picture.at(system, size)) for size in shown)) for system in picture.systems]
    return f"{', '.join(filter(None, about))}:\n\n{table(['system', *sizes], rows)}"


def cell(one: Measured | None) -> str:
    """Return a median and its spread."""
    if one is None:
        return ""
    spread = f" ({readable(one.low)} to {readable(one.high)})" if one.rounds > 1 else ""
    return f"{readable(one.value)}{spread}"


def alt_of(picture: Picture) -> str:
    """Return what a picture shows, for who does not see it."""
    largest = picture.sizes[-1]
    values = [
        f"{system}: {readable(one.value)}" for system in picture.systems if (one := picture.at(system, largest))
    ]
    where = f" on {DATABASES[picture.database]}" if picture.database in DATABASES else ""
    if len(picture.sizes) > 1:
        shown = f"a line for each system, by {size_of(picture.workload)}; at {largest:,} as follows"
    else:
        shown = "a bar for each system"
    return f"{title_of(picture.workload)}{where}, {picture.unit}, {shown}.  {'; '.join(values)}"


def title_of(name: str) -> str:
    """Return how a part of the page is called."""
    return ABOUT[name][0] if name in ABOUT else name.replace("_", " ").capitalize()


def size_of(workload: str) -> str:
    """Return what the size of a workload counts."""
    return SIZES.get(workload, "size")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; what comes from elsewhere cannot leave its cell."""

    def lines() -> Iterator[str]:
        yield f"| {' | '.join(name or ' ' for name in head)} |\n"
        yield f"|{'---|' * len(head)}\n"
        for row in rows:
            yield f"| {' | '.join(text.replace('|', '&#124;').replace(chr(10), ' ') for text in row)} |\n"

    return "".join(lines())


def main(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What --json wrote.")] = RESULTS,
) -> None:
    """Write the page and draw its pictures."""
    results = read(file)
    try:
        from benchmarks.pictures import draw, styles_of  # noqa: PLC0415  # an optional extra
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print(INSTALL, file=sys.stderr)
        raise typer.Exit(1) from None
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    folder = PAGE.parent / FOLDER
    folder.mkdir(exist_ok=True)
    drawn = [picture for name, found in workloads(results).items() for picture in pictures(name, found)]
    styles = styles_of(system for picture in drawn if not picture.is_course for system in picture.systems)
    for picture in drawn:
        own = styles_of(picture.systems) if picture.is_course else styles  # its lines are ways, not systems
        draw(picture, folder, title_of(picture.workload), size_of(picture.workload), own)
    kept = {picture.name for picture in drawn}
    for old in folder.iterdir():
        if old.suffix in {".svg", ".png"} and old.stem not in kept:
            old.unlink()


if __name__ == "__main__":
    typer.run(main)
