"""The timeline of a run as a PNG, for those who paste pictures: the same lanes and the same axis as the drawing.

Rule: no window, no display, and nothing global: two pictures may be made at the same time.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from warnings import catch_warnings, filterwarnings

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from agent_es.inspector.drawing import LABELS, MARGIN, SAID, WAITS, anchor_of, class_of, notes_of, said
from agent_es.inspector.layout import MOST_LANES, Bar, Lane, Layout, lay_out
from agent_es.journal import timestamp
from agent_es.timeline import Segment
from agent_es.visible import in_a_line

INK, QUIET, LINE, BAD = "#1d2329", "#59616b", "#d9d6cc", "#a33a00"
COLOURS = {
    "worked": "#00654a",
    "asked": "#16527f",
    "bad": BAD,
    "crash": "#7a5300",
    "wait": "#175a8c",
    "held": QUIET,
    "doubt": "#86306a",
}
DPI = 144
PER_INCH = 100
"""Units of a layout."""
SIDES = {"start": "left", "middle": "center", "end": "right"}
ROW = 28.0
TALL, THIN = 0.68, 0.5
"""Of a row: what works, and what waits."""
LETTER = 6.4
NAME = 26


def save_picture(
    segments: Sequence[Segment],
    path: Path,
    *,
    now: datetime,
    until_seq: int | None = None,
    first: int | None = None,
    most: int = MOST_LANES,
) -> tuple[int, int]:
    """Write the picture of a run's segments, and return its width and height in pixels; see ``timeline_svg``."""
    layout = lay_out(segments, now=now, until_seq=until_seq, first=first, most=most)
    rows = max(1, len(layout.lanes))
    wide, high = (LABELS + layout.width + MARGIN) / PER_INCH, (ROW * (rows + 3)) / PER_INCH
    figure = Figure(figsize=(wide, high), dpi=DPI, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-LABELS, layout.width + MARGIN)
    axes.set_ylim(rows + 1, -2)
    axes.axis("off")
    _draw(axes, layout, rows)
    with catch_warnings():
        filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)  # a box stands for it
        figure.savefig(path, format="png", metadata={"Software": None})
    width, height = canvas.get_width_height()
    return width, height


def _draw(axes: Axes, layout: Layout, rows: int) -> None:
    if layout.began_at is not None:
        _say(axes, -LABELS + 8, -1.4, timestamp(layout.began_at.replace(microsecond=0)), color=QUIET)
    for gap in layout.breaks:
        axes.add_patch(Rectangle((gap.left, -0.3), gap.right - gap.left, rows + 0.3, color=QUIET, alpha=0.12, lw=0))
        for at in (gap.left, gap.right):
            axes.plot([at, at], [-0.3, rows], color=QUIET, lw=0.8, ls=(0, (1, 1)))
        _say(axes, (gap.left + gap.right) / 2, -1.4, gap.text, ha="center", weight="bold")
    for tick in layout.ticks:
        axes.plot([tick.at, tick.at], [-0.3, rows], color=LINE, lw=0.8, zorder=0)
        _say(axes, tick.at, -0.7, tick.text, color=QUIET, ha=SIDES[anchor_of(tick.at, layout.width)])
    for at in layout.crashes:
        axes.plot([at, at], [-0.3, rows], color=BAD, lw=1.2, ls="--", zorder=1)
    for n, lane in enumerate(layout.lanes):
        _lane(axes, lane, n, layout.width)
    if layout.cursor is not None:
        later = layout.width - layout.cursor + MARGIN
        axes.add_patch(Rectangle((layout.cursor, -0.3), later, rows + 0.3, color="white", alpha=0.68, lw=0, zorder=8))
        axes.plot([layout.cursor, layout.cursor], [-0.5, rows], color=COLOURS["asked"], lw=1.6, zorder=9)
    _say(axes, -LABELS + 8, rows + 0.6, "  ".join(notes_of(layout)), color=QUIET)


def _lane(axes: Axes, lane: Lane, row: int, width: float) -> None:
    name = in_a_line(lane.name[:SAID])
    _say(axes, -LABELS + 8, row + 0.5, name if len(name) <= NAME else f"{name[: NAME - 1]}…")
    axes.plot([0, width], [row + 0.5, row + 0.5], color=LINE, lw=0.6, ls=":", zorder=0)
    for bar in lane.bars:
        _bar(axes, bar, row + 0.5)


def _bar(axes: Axes, bar: Bar, middle: float) -> None:
    kind = class_of(bar.segment)
    colour, is_thin = COLOURS[kind], bar.segment.kind in WAITS
    height = THIN if is_thin else TALL
    axes.add_patch(
        Rectangle(
            (bar.left, middle - height / 2),
            bar.width,
            height,
            facecolor=(colour, 0.22),
            edgecolor=colour,
            lw=2.2 if bar.takes_over else 1.1,
            ls="--" if kind == "crash" or bar.segment.end == "open" else "-",
            hatch="////" if kind == "doubt" else None,
            zorder=2,
        )
    )
    room = bar.width - (14 if kind == "crash" else 4)
    word = next((text for text in said(bar) if text and len(text) * LETTER <= room), "")
    if word:
        plate = {"facecolor": "white", "edgecolor": "none", "pad": 1.0} if kind == "doubt" else None
        at = bar.left + (bar.width - (8 if kind == "crash" else 0)) / 2
        weight = "bold" if kind == "crash" or bar.takes_over else "normal"
        _say(axes, at, middle, word, ha="center", weight=weight, bbox=plate)
    if kind == "crash":
        axes.plot([bar.right], [middle], marker="x", ms=9, mew=2.4, color=BAD, zorder=6)


def _say(axes: Axes, x: float, y: float, text: str, **options: object) -> None:
    told = {"color": INK, "fontsize": 7.5, "va": "center", "family": "monospace", "zorder": 5, **options}
    axes.text(x, y, text, parse_math=False, **told)  # type: ignore[arg-type]
