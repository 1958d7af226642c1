"""The timeline of a run as an SVG: a lane for each step, one for the decider, one for what held up the whole run.

Where things stand is ``layout``'s affair, and so is what was decided there: events stand in their order and apart,
work is to scale, and a wait that is long beside all the rest is a break of the axis that says how long it was.

Rule 1: no colour is written here, and no style: classes say what a thing is, and ``timeline.css`` how that looks.
Rule 2: what a colour says, a word or a shape says too: an attempt has its number, a lost one a cross and the word,
what failed an exclamation mark, what is in doubt stripes and a question mark; what waits has round ends.
Rule 3: what others wrote is visible, in one line, cut, and escaped.
Rule 4: a bar is a link to the event that began it, ``#seq-3``, and its title says all that there is to say of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from xml.sax.saxutils import escape, quoteattr

from agent_es.inspector.layout import MOST_LANES, Bar, Lane, Layout, lasting, lay_out
from agent_es.journal import timestamp
from agent_es.timeline import Segment
from agent_es.values import bounded
from agent_es.visible import in_a_line

LABELS = 190.0
"""Units on the left of the plot, for the names of the lanes."""
MARGIN = 24.0
TOP, ROW, BAR, THIN, LINE = 34.0, 28.0, 19.0, 15.0, 22.0
"""Units: above the first lane, of a lane, of what works and what waits in it, and of a line of words."""
LETTER = 7.0
"""Units that a letter is wide."""
NAME, SAID = 24, 200
"""Characters of a lane's name, and of what is said of a segment."""

WAITS = frozenset({"retry", "wait", "approval", "question", "parked", "paused"})
WORDS = {
    "model": "asked",
    "retry": "retries",
    "wait": "waits",
    "approval": "asks for a yes",
    "question": "asks a person",
    "doubt": "in doubt",
    "parked": "parked",
    "paused": "paused",
}
"""What is said in a bar that is no attempt."""
ENDS = {
    "failed": ("failed", "!"),
    "refused": ("refused", "!"),
    "unusable": ("unusable", "!"),
    "denied": ("denied", "!"),
    "in_doubt": ("in doubt", "?"),
    "lost": ("lost", "✕"),
    "open": ("…", "…"),
}
"""How an end is said in a bar, and how where there is no room for words; others are said by the title alone."""
LEGEND = {
    "asked": "the decider is asked",
    "worked": "an attempt, by its number",
    "bad": "! failed, refused or denied",
    "crash": "✕ lost: its worker died or was overtaken",
    "wait": "waits",
    "held": "parked or paused",
    "doubt": "? in doubt",
}
NOTHING = "Nothing took time yet."


def timeline_svg(
    segments: Sequence[Segment],
    *,
    now: datetime,
    until_seq: int | None = None,
    first: int | None = None,
    most: int = MOST_LANES,
) -> str:
    """Return the drawing of a run's segments, as an SVG element.

    What is still going on lasts until ``now``.  What came after ``until_seq`` is drawn pale.  At most ``most`` steps
    are drawn, from the step ``first`` on, or the last of them; what is left out is said below.
    """
    layout = lay_out(segments, now=now, until_seq=until_seq, first=first, most=most)
    there = {class_of(bar.segment) for lane in layout.lanes for bar in lane.bars}
    legend = [name for name in LEGEND if name in there]
    below = TOP + ROW * len(layout.lanes)
    notes = [*notes_of(layout)]
    width = LABELS + layout.width + MARGIN
    keys = [*_placed(legend, width)]
    end = below + LINE * (1 + max((row for _, _, row in keys), default=-1))
    height = end + LINE * len(notes) + 10
    return "".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" role="group" {_size(width, height)}>',
            f"<title>Timeline</title><desc>{escape(_described(layout))}</desc>",
            *_ground(layout, below),
            *(part for n, lane in enumerate(layout.lanes) for part in _lane(lane, TOP + ROW * n, layout.width)),
            *_cursor(layout, below),
            *(part for name, x, row in keys for part in _key(name, x, below + LINE * (row + 1))),
            *(_text("note", 8, end + LINE * (n + 1), note) for n, note in enumerate(notes)),
            "</svg>",
        )
    )


def told(bar: Bar) -> str:
    """Return all that there is to say of a bar, in one line."""
    segment = bar.segment
    what = f"attempt {segment.attempt}" if segment.kind == "attempt" else WORDS.get(segment.kind, segment.kind)
    of = " ".join(
        part
        for part in (
            None if segment.idx is None else f"step {segment.idx}",
            segment.tool and segment.tool[:SAID],
            None if segment.idx is not None or segment.turn is None else f"turn {segment.turn}",
        )
        if part
    )
    seqs = f"seq {segment.began_seq}" + ("" if segment.ended_seq is None else f" to {segment.ended_seq}")
    end = "still going on" if segment.end == "open" else segment.end.replace("_", " ")
    took = "" if segment.tokens is None else f"{segment.tokens:,} tokens, cost {segment.cost}"
    takeover = "takes over" if bar.takes_over else ""
    parts = (of, what, segment.model, end, takeover, lasting(bar.lasted), took, seqs, segment.text[:SAID])
    return bounded(in_a_line(" · ".join(part for part in parts if part)), SAID)


def said(bar: Bar) -> tuple[str, ...]:
    """Return what may stand in a bar, the longest first: the first that there is room for does."""
    segment = bar.segment
    word, sign = ENDS.get(segment.end, ("", ""))
    if segment.kind in ("attempt", "model"):
        number = str(segment.attempt) if segment.kind == "attempt" and segment.attempt is not None else ""
        told = [f"{number} {word}".strip(), f"{number}{sign}"]
        if bar.takes_over:
            told = [f"{number} takeover {word}".strip(), f"{number} takeover{sign}".strip(), *told]
        if segment.kind == "model":
            told = [f"asked {word}".strip(), *told]
        return tuple(dict.fromkeys((*told, sign or number)))
    what = WORDS[segment.kind]
    lasted = lasting(bar.lasted)
    ended = f", {word}" if sign == "!" else ""
    return (f"{what} {lasted}{ended}", f"{what}{ended}", lasted, sign)


def class_of(segment: Segment) -> str:
    """Return what kind of thing a segment is to who looks: one of the ``LEGEND``."""
    if segment.end == "lost":
        return "crash"
    if segment.kind == "doubt" or segment.end == "in_doubt":
        return "doubt"
    if segment.end in ("failed", "refused", "unusable", "denied"):
        return "bad"
    if segment.kind in ("parked", "paused"):
        return "held"
    return "wait" if segment.kind in WAITS else "asked" if segment.kind == "model" else "worked"


def _described(layout: Layout) -> str:
    if layout.began_at is None:
        return NOTHING
    return (
        f"What took time since {timestamp(layout.began_at.replace(microsecond=0))}, {lasting(layout.lasted)} in all: "
        f"{len(layout.lanes)} lanes, {len(layout.breaks)} breaks of the axis, {len(layout.crashes)} takeovers."
    )


def notes_of(layout: Layout) -> Iterator[str]:
    """Yield what is not in the drawing, in words."""
    if layout.began_at is None:
        yield NOTHING
    if layout.before or layout.after:
        yield f"Left out: {layout.before} steps before these, {layout.after} after them."
    if layout.bars_left_out:
        yield f"Left out: {layout.bars_left_out} earlier segments of these lanes."


def _ground(layout: Layout, below: float) -> Iterator[str]:
    """Yield what lies under the lanes: their stripes, the axis, its breaks, and where workers were lost."""
    if layout.began_at is not None:
        yield _text("tick", 8, 14, timestamp(layout.began_at.replace(microsecond=0)))
    for n in range(0, len(layout.lanes), 2):
        yield _rect("stripe", 0, TOP + ROW * n, LABELS + layout.width + MARGIN, ROW)
    for gap in layout.breaks:
        left, right = LABELS + gap.left, LABELS + gap.right
        yield _rect("break", left, TOP - 6, right - left, below - TOP + 6)
        for at in (left, right):
            waves = "".join(f"l{4 if n % 2 else -4} 6" for n in range(int((below - TOP + 6) / 6)))
            yield f'<path class="torn" fill="none" d="M{at:.1f} {TOP - 6:.1f}{waves}"/>'
        yield _text("gap", (left + right) / 2, 14, gap.text, anchor="middle")
    for tick in layout.ticks:
        yield _line("grid", LABELS + tick.at, TOP - 8, LABELS + tick.at, below)
        if not any(gap.left < tick.at < gap.right for gap in layout.breaks):
            yield _text("tick", LABELS + tick.at, TOP - 8, tick.text, anchor=anchor_of(tick.at, layout.width))
    for at in layout.crashes:
        yield _line("fell", LABELS + at, TOP - 6, LABELS + at, below)


def anchor_of(at: float, width: float) -> str:
    """Return from where the words at a place of the axis go on, so that none of them are cut off."""
    return "start" if at < MARGIN else "end" if at > width - MARGIN else "middle"


def _lane(lane: Lane, top: float, width: float) -> Iterator[str]:
    name = in_a_line(lane.name[:SAID])
    short = name if len(name) <= NAME else f"{name[: NAME - 1]}…"
    yield f'<g class="lane"><text class="name" x="8" y="{top + 19:.1f}">{escape(short)}'
    yield "" if short == name else f"<title>{escape(bounded(name, SAID))}</title>"
    yield "</text>"
    yield _line("rail", LABELS, top + ROW / 2, LABELS + width, top + ROW / 2)
    for bar in lane.bars:
        yield from _bar(bar, top)
    yield "</g>"


def _bar(bar: Bar, top: float) -> Iterator[str]:
    segment = bar.segment
    kind = class_of(segment)
    height = THIN if segment.kind in WAITS else BAR
    left, middle = LABELS + bar.left, top + ROW / 2
    names = f"seg {kind}{' open' if segment.end == 'open' else ''}{' takeover' if bar.takes_over else ''}"
    title = told(bar)
    yield f'<a class="{names}" href="#seq-{segment.began_seq}" aria-label={quoteattr(title)}>'
    yield f"<title>{escape(title)}</title>"
    yield _rect("", left, middle - height / 2, bar.width, height, f'rx="{7 if segment.kind in WAITS else 2}"')
    if kind == "doubt":
        yield _stripes(left, left + bar.width, middle, height - 3)
    yield from _word(bar, kind, left, middle)
    if kind == "crash":
        x = left + bar.width
        yield (
            f'<path class="cross" d="M{x - 7:.1f} {middle - 7:.1f}l14 14m0 -14l-14 14" fill="none" stroke-width="3"/>'
        )
    yield "</a>"


def _word(bar: Bar, kind: str, left: float, middle: float) -> Iterator[str]:
    """Yield the words of a bar: in its middle, on a ground of their own where the bar is striped."""
    room = bar.width - (14 if kind == "crash" else 4)
    word = next((text for text in said(bar) if text and len(text) * LETTER <= room), "")
    if not word:
        return
    at, wide = left + (bar.width - (8 if kind == "crash" else 0)) / 2, len(word) * LETTER + 6
    if kind == "doubt":
        yield _rect("plate", at - wide / 2, middle - 8, wide, 16)
    yield _text("word", at, middle + 4, word, anchor="middle")


def _cursor(layout: Layout, below: float) -> Iterator[str]:
    """Yield the moment that is looked at, and a veil over what came after it."""
    if layout.cursor is not None:
        at = LABELS + layout.cursor
        later = layout.width - layout.cursor + MARGIN
        yield _rect("veil", at, TOP - 6, later, below - TOP + 6, more='pointer-events="none"')
        yield _line("cursor", at, TOP - 10, at, below)


def _placed(names: Iterable[str], width: float) -> Iterator[tuple[str, float, int]]:
    """Yield what each sign means with its place: how far from the left, and in which row."""
    x, row = 8.0, 0
    for name in names:
        wide = 40 + len(LEGEND[name]) * LETTER
        if x > 8 and x + wide > width:  # noqa: PLR2004  # it is not the first of its row
            x, row = 8.0, row + 1
        yield name, x, row
        x += wide


def _key(name: str, x: float, y: float) -> Iterator[str]:
    round_by = 'rx="6"' if name in ("wait", "held") else ""
    yield f'<g class="seg {name}">{_rect("", x, y - 11, 16, 13, round_by)}'
    if name == "doubt":
        yield _stripes(x, x + 16, y - 5, 11)
    yield f"</g>{_text('key', x + 22, y, LEGEND[name])}"


def _stripes(left: float, right: float, y: float, height: float) -> str:
    return (
        f'<line class="stripes" x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" '
        f'stroke-width="{height:.0f}" stroke-dasharray="2 5"/>'
    )


def _size(width: float, height: float) -> str:
    return f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'


def _rect(name: str, x: float, y: float, width: float, height: float, more: str = "") -> str:
    named = f'class="{name}" ' if name else ""
    return f'<rect {named}x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {more}/>'


def _line(name: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(name: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
