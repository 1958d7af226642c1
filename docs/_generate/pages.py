"""Which page holds what is generated: a whole page is one text, a part of a page has its place in it."""

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import page, results

from . import broken, cli, crashes, effects, events, status
from .places import put

STANDS_IN = Path(__file__).parents[2]
DOCS = STANDS_IN / "docs"

WHOLE: Mapping[str, Callable[[], str]] = {
    "concepts/status.svg": status.diagram,
    "reference/cli.md": cli.page,
    "reference/events.md": events.page,
}
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "concepts/how-a-run-survives.md": {"crash points": crashes.table, "transitions": status.table},
    "concepts/effects.md": {"one crash": effects.table, "two crashes": effects.twice},
    "concepts/memory.md": {"what is sent": page.sent},
    "howto/test-for-crashes.md": broken.PARTS,
}


def stale() -> dict[Path, str]:
    """Return the files whose text is not what would be generated now, with that text."""
    wanted = {DOCS / name: make() for name, make in WHOLE.items()}
    for name, parts in PARTS.items():
        text = (DOCS / name).read_text(encoding="utf-8")
        for part, make in parts.items():
            text = put(text, part, make())
        wanted[DOCS / name] = text
    wanted[page.PAGE] = page.written(page.PAGE.read_text(encoding="utf-8"), results.read())  # but for its pictures
    return {
        path: text for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    }
