"""What may happen to a run, drawn: the table ``LEGAL`` says which events, the fold says where they lead."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from html import escape
from itertools import product
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

from pydantic import AwareDatetime

from agent_es.events import (
    AnyEvent,
    Event,
    LlmDecided,
    RunStarted,
    WaitBegan,
    WaitEnded,
)
from agent_es.keys import renewed
from agent_es.legality import LEGAL, misfit
from agent_es.state import RunState, Status, Step, evolve, fold
from agent_es.waits import ASKED

NOON = datetime(2026, 7, 5, 10, tzinfo=UTC)
STEPS = 2
"""Steps of the turn that is explored: with two, each can be open, done or in doubt beside the other."""

PLACED = {"idx", "turn", "attempt", "timestamp", "first", "up_to"}
"""Fields whose values say where in the journal an event stands."""

CHOSEN = {"then", "is_expired"}
"""Fields with a default of which every value is tried, since it leads elsewhere."""

Transition = tuple[Status, str, Status]


@cache
def transitions() -> tuple[Transition, ...]:
    """Return every (status, event, status that it leads to), found by folding legal events into each state."""
    (started,) = (RunStarted(**fields) for fields in _samples(RunStarted, RunState()))
    waiting: list[tuple[RunState, AnyEvent]] = [(fold([started]), started)]
    seen = {_shape(*waiting[0])}
    found: set[Transition] = set()
    while waiting:
        state, last = waiting.pop()
        for event in _legal(state, last):
            after = evolve(state, event)
            found.add((state.status, type(event).__name__, after.status))
            if _shape(after, event) not in seen:
                seen.add(_shape(after, event))
                waiting.append((after, event))
    order = list(Status)
    return tuple(sorted(found, key=lambda t: (order.index(t[0]), t[1], order.index(t[2]))))


def table() -> str:
    """Return the transitions as a Markdown table."""
    rows = ["| a run that is | may see | and is then |", "|---|---|---|"]
    for status in Status:
        events = dict.fromkeys(event for before, event, _ in transitions() if before is status)
        for event in events:
            after = ", ".join(to for before, name, to in transitions() if (before, name) == (status, event))
            rows.append(f"| {status} | `{event}` | {after} |")
        if not events:
            rows.append(f"| {status} | nothing | |")
    return "\n".join(rows) + "\n"


def _shape(state: RunState, last: AnyEvent) -> object:
    """Return what decides what may happen: which of the steps is how, and how one of them ended, does not."""
    comes = bool(state.signals), state.rests_until is not None
    held = state.compensating, state.parked is not None, state.paused is not None
    steps = sorted(_shape_of(step) if step.is_open else ("over",) for step in state.steps)
    goes_on = isinstance(last, LlmDecided)  # with the next call of its turn
    return state.status, state.waiting_for, held, comes, tuple(steps), goes_on


def _shape_of(step: Step) -> tuple[str, ...]:
    parks = step.approval.then if step.status == "gated" and step.approval else ""
    is_new = step.status == "queued" and step.attempt == 0 and step.key is None
    return step.status, parks, str(step.asks_person), str(is_new)


def _legal(state: RunState, last: AnyEvent) -> Iterator[AnyEvent]:
    for cls in sorted(LEGAL[state.status], key=lambda cls: cls.__name__):
        for fields in _samples(cls, state):
            event = cast(AnyEvent, cls(**fields))
            if misfit(state, event, last) is None:
                yield event


def _samples(cls: type[Event], state: RunState) -> Iterator[dict[str, Any]]:
    """Yield values for an event of that class: one for each open step, and for each choice that it has."""
    choices = {
        name: _choices(about.annotation)
        for name, about in cls.model_fields.items()
        if (about.is_required() or name in CHOSEN) and name not in PLACED
    }
    if cls in (WaitBegan, WaitEnded):
        yield from ({"timestamp": NOON, **fields} for fields in _waits(cls, state))
        return
    for chosen in product(*choices.values()):
        where = {"turn": state.turns, "first": state.summarized, "up_to": len(state.steps)}
        known = {name: value for name, value in where.items() if name in cls.model_fields}
        values = {"timestamp": NOON, **known, **dict(zip(choices, chosen, strict=True))}
        if "idx" not in cls.model_fields:
            yield values
            continue
        places = [(step.idx, step.attempt) for step in state.open_steps]
        if cls is LlmDecided:
            places = [(idx, attempt + 1) for idx, attempt in places]
            places += [(len(state.steps), attempt) for attempt in (0, 1) if len(state.steps) < STEPS]
        for idx, attempt in places:
            place = {"idx": idx, "turn": 0, "attempt": attempt}
            placed = values | {name: value for name, value in place.items() if name in cls.model_fields}
            if placed.get("outcome") == "did_not_happen":
                placed["key"] = renewed(state.steps[idx].key or "null")
            elif cls is LlmDecided and idx < len(state.steps):
                placed["key"] = state.steps[idx].key
            yield placed


def _waits(cls: type[Event], state: RunState) -> Iterator[dict[str, Any]]:
    """Yield values for a wait that begins or ends: that of each step, and that of those which are retrying."""
    if cls is WaitEnded:
        yield {"reason": "clock"}
        yield from ({"reason": "clock", "idx": step.idx} for step in state.waits)
        return
    yield {"wake_at": NOON}
    for step in state.open_steps:
        waits = {"wake_at": NOON, "idx": step.idx, "attempt": step.attempt or None}
        yield {**waits, "signal": "null"}
        yield {**waits, "signal": f"{ASKED}{step.idx}"}


def _choices(annotation: Any) -> tuple[Any, ...]:
    origin = get_origin(annotation)
    if origin is Literal:
        return get_args(annotation)
    if origin in (Union, UnionType):
        return (None,) if type(None) in get_args(annotation) else _choices(get_args(annotation)[0])
    known: dict[Any, tuple[Any, ...]] = {
        str: ("null",),
        int: (1,),
        bool: (True, False),
        Decimal: (Decimal(0),),
        AwareDatetime: (NOON,),
    }
    if annotation in known:
        return known[annotation]
    return ({},) if "Mapping" in str(annotation) else ((),)


# The drawing.

ROWS = (
    (Status.PENDING, Status.RUNNING, Status.WAITING),
    (Status.DONE, Status.FAILED, Status.CANCELLED),
)
CHAR, LINE, PAD, GAP, TOP = 7.2, 17, 12, 76, 46
"""Pixels: of a character and a line, inside a card, between cards, and above them."""

Side = Literal["left", "right", "top", "bottom"]


@dataclass
class Card:
    """One status: its place, what may happen in it, and where arrows touch it."""

    status: Status
    lines: list[str]
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0
    ports: dict[Side, list[tuple[float, object]]] = field(default_factory=dict)

    def claim(self, side: Side, order: float, edge: object) -> None:
        """Ask for a place on a side; those of a side are sorted by ``order``."""
        self.ports.setdefault(side, []).append((order, edge))

    def port(self, side: Side, edge: object) -> tuple[float, float]:
        """Return where the edge touches that side."""
        edges = [other for _, other in sorted(self.ports[side], key=lambda port: (port[0], str(port[1])))]
        share = (edges.index(edge) + 1) / (len(edges) + 1)
        if side in ("top", "bottom"):
            return self.x + share * self.width, self.y + (self.height if side == "bottom" else 0)
        return self.x + (self.width if side == "right" else 0), self.y + share * self.height


def diagram() -> str:
    """Return the transitions as an SVG that needs no script and no font of its own."""
    cards = _cards()
    places = {status: (row, column) for row, statuses in enumerate(ROWS) for column, status in enumerate(statuses)}
    edges = sorted({(before, after) for before, _, after in transitions()}, key=str)
    sides = {edge: _sides(places[edge[0]], places[edge[1]]) for edge in edges}
    for edge, (leaving, entering) in sides.items():
        (row, column), (to_row, to_column) = places[edge[0]], places[edge[1]]
        level = leaving in ("left", "right")
        cards[edge[0]].claim(leaving, to_row if level else to_column - 0.1, (edge, "from"))
        cards[edge[1]].claim(entering, row if level else column + 0.1, (edge, "to"))
    drawn = [
        _arrow(cards[edge[0]].port(leaving, (edge, "from")), cards[edge[1]].port(entering, (edge, "to")), leaving)
        for edge, (leaving, entering) in sides.items()
    ]
    first = cards[Status.PENDING]
    start = (first.x - 34, first.y + first.height / 2)
    drawn.append(f'<circle cx="{start[0]:g}" cy="{start[1]:g}" r="6" fill="#37474f"/>')
    drawn.append(_arrow((start[0] + 6, start[1]), (first.x, start[1]), "right"))
    width = max(card.x + card.width for card in cards.values()) + PAD
    height = max(card.y + card.height for card in cards.values()) + PAD
    told = "; ".join(f"{before}: {event} leads to {after}" for before, event, after in transitions())
    body = "\n".join([*drawn, *(_card(card) for card in cards.values())])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12">\n'
        f"<title>What may happen to a run, by status</title>\n<desc>{escape(told)}</desc>\n"
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        f'orient="auto"><path d="M0 0 8 4 0 8z" fill="#37474f"/></marker></defs>\n'
        f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _cards() -> dict[Status, Card]:
    cards: dict[Status, Card] = {}
    reached = {after for _, _, after in transitions()} | {Status.PENDING}
    y = float(TOP)
    for statuses in ROWS:
        for status in statuses:
            events = dict.fromkeys(event for before, event, _ in transitions() if before is status)
            lines = [
                f"{event} → {', '.join(to for b, name, to in transitions() if (b, name) == (status, event))}"
                for event in events
            ]
            if status not in reached:
                lines.append("nothing leads here yet")
            cards[status] = Card(status, lines or ["nothing may follow"], y=y)
        height = LINE * (1 + max(len(cards[status].lines) for status in statuses)) + 2 * PAD
        for status in statuses:
            cards[status].height = height
        y += height + GAP
    for column in zip(*ROWS, strict=True):
        x = max((c.x + c.width + GAP for c in cards.values() if c.width), default=48.0)
        width = max(CHAR * len(line) for status in column for line in [status, *cards[status].lines]) + 2 * PAD
        for status in column:
            cards[status].x, cards[status].width = x, width
    if missing := set(Status) - cards.keys():
        raise ValueError(f"ROWS has no place for {', '.join(sorted(missing))}")
    return cards


def _sides(before: tuple[int, int], after: tuple[int, int]) -> tuple[Side, Side]:
    """Return the side that an arrow leaves by, and the one that it comes in by."""
    if before[0] != after[0]:
        return ("bottom", "top") if before[0] < after[0] else ("top", "bottom")
    if after[1] - before[1] == 1:
        return "right", "left"
    return ("left", "right") if before[1] - after[1] == 1 else ("top", "top")


def _arrow(start: tuple[float, float], end: tuple[float, float], leaving: Side) -> str:
    (x, y), (to_x, to_y) = start, end
    path = f"M{x:g} {y:g} L{to_x:g} {to_y:g}"
    if leaving == "top" and y == to_y:  # to itself, or over the head of a neighbour
        path = f"M{x:g} {y:g} C{x:g} {y - 40:g} {to_x:g} {to_y - 40:g} {to_x:g} {to_y:g}"
    return f'<path d="{path}" fill="none" stroke="#37474f" marker-end="url(#tip)"/>'


def _card(card: Card) -> str:
    x, y = card.x + PAD, card.y + PAD + 11
    lines = [f'<text x="{x:g}" y="{y:g}" font-weight="bold">{card.status}</text>']
    lines += [
        f'<text x="{x:g}" y="{y + LINE * number:g}" fill="#455a64">{escape(line)}</text>'
        for number, line in enumerate(card.lines, start=1)
    ]
    frame = (
        f'<rect x="{card.x:g}" y="{card.y:g}" width="{card.width:g}" height="{card.height:g}" rx="6" '
        'fill="#eceff1" stroke="#78909c"/>'
    )
    return "\n".join([frame, *lines])
