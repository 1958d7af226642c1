"""Where a generated part of a page stands: between ``<!-- generated: NAME -->`` and ``<!-- end -->``."""

import re


def names(text: str) -> list[str]:
    """Return which parts a page has places for."""
    return re.findall(r"^<!-- generated: (.+) -->$", text, re.MULTILINE)


def put(text: str, part: str, made: str) -> str:
    """Return the page's text with one generated part in its place."""
    begin, end = f"<!-- generated: {part} -->", "<!-- end -->"
    place = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    if len(place.findall(text)) != 1:
        raise ValueError(f"the page has no place, or several, for {begin}")
    return place.sub(lambda _: f"{begin}\n\n{made}\n{end}", text)
