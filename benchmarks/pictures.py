"""Pictures of what systems needed: lines where there are several sizes, else bars.

Rule 1: the same results give the same bytes: no date, no name of a program, no random ids.
Rule 2: nobody needs to tell colours apart: agent_es is the thick one, each line has its mark, each bar its name.
Rule 3: a picture has its own light ground, so that it reads on a dark page too.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from agent_es.bench.report import DATABASES, readable
from benchmarks.results import Picture, is_floor, is_ours, place_of

COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C510A", "#000000")
"""Okabe and Ito's, which the colour-blind tell apart, but for the blue that is ours and the yellow that is pale."""
OURS, FLOOR = "#0072B2", "#777777"
MARKS = "osD^vPX*<>"
Styles = Mapping[str, Mapping[str, Any]]
"""How each system is drawn."""
SETTINGS: Mapping[str, Any] = {
    "svg.hashsalt": "agent_es",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "savefig.facecolor": "white",
}
NOTHING_ELSE: Mapping[str, Mapping[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
"""What is not written into a file."""


def draw(picture: Picture, folder: Path, title: str, counted: str, styles: Styles) -> None:
    """Draw a picture into a folder, as SVG and as PNG; ``counted`` says what sizes are."""
    database = DATABASES.get(picture.database)
    with mpl.rc_context(dict(SETTINGS)), drawn(len(picture.systems)) as (figure, axes):
        if len(picture.sizes) > 1:
            (course if picture.is_course else lines)(picture, axes, styles)
            axes.set_xlabel(counted)
            axes.set_ylabel(picture.unit)
        else:
            bars(picture, axes, styles)
            axes.set_xlabel(picture.unit)
        axes.set_title(", ".join(filter(None, [title, database])), loc="left", fontweight="bold")
        for kind, nothing in NOTHING_ELSE.items():
            figure.savefig(folder / f"{picture.name}.{kind}", dpi=144, metadata=dict(nothing))


@contextmanager
def drawn(systems: int) -> Iterator[tuple[Figure, Axes]]:
    """Lend the paper: no screen is needed."""
    figure = Figure(figsize=(7.5, max(2.4, 1.2 + 0.42 * systems)), layout="constrained")
    yield figure, figure.add_subplot()


def lines(picture: Picture, axes: Axes, styles: Styles) -> None:
    """Draw a line for each system, both axes logarithmic."""
    for system in picture.systems:
        found = [one for size in picture.sizes if (one := picture.at(system, size))]
        values = [one.value for one in found]
        spread = [[one.value - one.low for one in found], [one.high - one.value for one in found]]
        axes.errorbar([one.size for one in found], values, yerr=spread, label=system, capsize=2, **styles[system])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(list(picture.sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(which="major", color="#dddddd")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)


def course(picture: Picture, axes: Axes, styles: Styles) -> None:
    """Draw how each system went from step to step, both axes linear, a mark at every tenth."""
    for system in picture.systems:
        found = [one for size in picture.sizes if (one := picture.at(system, size))]
        axes.plot(
            [one.size for one in found], [one.value for one in found], label=system, markevery=10, **styles[system]
        )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.grid(which="major", color="#dddddd")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)


def bars(picture: Picture, axes: Axes, styles: Styles) -> None:
    """Draw a bar for each system, the longest below."""
    found = sorted(picture.measured, key=lambda one: (-one.value, one.system))
    for place, one in enumerate(found):
        axes.barh(
            place,
            one.value,
            xerr=[[one.value - one.low], [one.high - one.value]],
            height=0.7 if is_ours(one.system) else 0.45,
            color="white" if is_floor(one.system) else styles[one.system]["color"],
            edgecolor=styles[one.system]["color"],
            hatch="///" if is_floor(one.system) else "",
            error_kw={"ecolor": "#333333", "capsize": 2, "elinewidth": 1},
        )
        axes.annotate(readable(one.value), (one.high, place), xytext=(6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(found)), [one.system for one in found])
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if is_ours(label.get_text()) else "normal")
    axes.set_xlim(0, max(one.high for one in found) * 1.15)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.grid(axis="x", color="#dddddd")


def styles_of(systems: Iterable[str]) -> Styles:
    """Return how each system is drawn, the same in all pictures: ours thick, the floor dashed."""
    styles: dict[str, dict[str, Any]] = {}
    ours, floors, others = 0, 0, 0
    for n, system in enumerate(sorted(set(systems), key=place_of)):
        if is_ours(system):
            style = {"color": OURS, "linewidth": 3, "linestyle": (0, (4, 1)) if ours else "-", "zorder": 4}
            ours += 1
        elif is_floor(system):
            style = {"color": FLOOR, "linewidth": 1.4, "linestyle": ":" if floors else "--"}
            floors += 1
        else:
            style = {"color": COLOURS[others % len(COLOURS)], "linewidth": 1.4}
            others += 1
        styles[system] = {**style, "marker": MARKS[n % len(MARKS)], "markersize": 5}
    return styles
