"""Which page holds what is generated.

A whole page is one text; a part of a page stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from . import broken, cli, crashes, effects, events, status

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
    "howto/test-for-crashes.md": broken.PARTS,
}


def stale() -> dict[Path, str]:
    """Return the files whose text is not what would be generated now, with that text."""
    wanted = {DOCS / name: make() for name, make in WHOLE.items()}
    for name, parts in PARTS.items():
        page = DOCS / name
        text = page.read_text(encoding="utf-8")
        for part, make in parts.items():
            text = put(text, part, make())
        wanted[page] = text
    return {
        path: text for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    }


def put(text: str, part: str, made: str) -> str:
    """Return the page's text with one generated part in its place."""
    begin, end = f"<!-- generated: {part} -->", "<!-- end -->"
    place = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    if len(place.findall(text)) != 1:
        raise ValueError(f"the page has no place, or several, for {begin}")
    return place.sub(lambda _: f"{begin}\n\n{made}\n{end}", text)
