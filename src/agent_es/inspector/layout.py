"""Where what took time in a run stands in a picture: lanes, and an axis of time that keeps its short steps readable.

Rule 1: the axis goes from event to event.  Each stands at least ``NARROW`` after the one before it, whatever their
times are, so that what took no time is seen, and what came first stands first; the rest of the width is to scale.
Rule 2: where nothing but waits goes on, and for longer than all the rest together by far, the axis is broken: the
break says how long it is.  Breaks are to scale among themselves, but for those that are as wide as their words.
Rule 3: an attempt that was lost, and the time until somebody noticed, is a wait: nobody knows that anything went on.
Rule 4: a picture has so many lanes, and says how many steps it leaves out.  Lengths are units, not pixels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from math import inf

from agent_es.timeline import Segment

PLOT = 920.0
"""Units of width that there are for the time; where there are many events, it grows."""
NARROW, READABLE, ROOMY = 7.0, 19.0, 28.0
"""Units between two events: at least, where a number and a sign are to be read, and where there are few of them."""
LOST, TAKEOVER = 58.0, 86.0
"""Units that it takes to say these words."""
BREAK, WIDER = 76.0, 24.0
"""Units that it takes to say how long a break is, and what there is for each beyond that, to be shared to scale."""
BREAKS = 0.4
"""The share of the width that breaks have, where there are any; where there are many, the width grows."""
LONG = 4
"""A wait is a break where it is so many times as long as all that is shorter, and all that is no wait."""
MOST_BREAKS = 8
"""Where there would be more, only the longest are breaks: a worker that looks every half second makes none."""
MOST_LANES = 40
"""Steps in one picture."""
MOST_BARS = 400
"""Bars in one picture."""
APART = 96.0
"""Units between two times on the axis."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A segment, from where to where it stands."""

    segment: Segment
    left: float
    right: float
    lasted: timedelta
    takes_over: bool
    """Whether it is the first attempt after one that was lost."""

    @property
    def width(self) -> float:
        """How wide it is."""
        return self.right - self.left


@dataclass(frozen=True, slots=True)
class Lane:
    """What belongs to one step, to the decider, or to the whole run."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A time on the axis, told from the beginning."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Break:
    """A part of the axis that is not to the scale of the rest."""

    left: float
    right: float
    text: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A picture of a run before it is drawn."""

    lanes: tuple[Lane, ...] = ()
    ticks: tuple[Tick, ...] = ()
    breaks: tuple[Break, ...] = ()
    width: float = PLOT
    began_at: datetime | None = None
    lasted: timedelta = timedelta()
    crashes: tuple[float, ...] = ()
    """Where another worker took over from one that was lost."""
    cursor: float | None = None
    """Where the moment is that is looked at."""
    before: int = 0
    """Steps that are left out before the first one, and after the last."""
    after: int = 0
    bars_left_out: int = 0


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where the events of a picture stand; the last place may be the present, which has no ``seq``."""

    seqs: tuple[float, ...]
    times: tuple[datetime, ...]
    places: tuple[float, ...]
    breaks: tuple[Break, ...]

    def place_of(self, seq: float) -> float:
        return self.places[self.seqs.index(seq)]

    def cursor(self, seq: int | None) -> float | None:
        if seq is None:
            return None
        return max((place for known, place in zip(self.seqs, self.places, strict=True) if known <= seq), default=0.0)


def lay_out(
    segments: Sequence[Segment],
    *,
    now: datetime,
    until_seq: int | None = None,
    first: int | None = None,
    most: int = MOST_LANES,
) -> Layout:
    """Return where segments stand, those of ``most`` steps from ``first`` on, and what else went on meanwhile.

    Without ``first`` it is the last steps, or those that there were at ``until_seq``.
    """
    began = _began(segments)
    steps = sorted(began)
    known = [idx for idx in steps if until_seq is None or began[idx] <= until_seq]
    begin = max(0, (len(known) or most) - most) if first is None else sum(idx < first for idx in steps)
    wanted = frozenset(steps[begin : begin + most])
    shown, left_out = _bounded(_meanwhile(segments, wanted, whole=len(wanted) == len(steps)))
    if not shown:
        return Layout(before=begin, after=len(steps) - begin - len(wanted))
    axis = _axis(shown, now)
    lanes = tuple(_lanes(shown, axis))
    crashes = {bar.left for lane in lanes for bar in lane.bars if bar.takes_over}
    return Layout(
        lanes,
        tuple(_ticks(axis)),
        axis.breaks,
        axis.places[-1],
        axis.times[0],
        max(axis.times) - axis.times[0],
        tuple(sorted(crashes)),
        axis.cursor(until_seq),
        begin,
        len(steps) - begin - len(wanted),
        left_out,
    )


def lasting(lasted: timedelta) -> str:
    """Return how long something was, in its two largest units.

    >>> [lasting(timedelta(seconds=s)) for s in (0, 0.0034, 1.5, 125, 3600, 7 * 86_400 + 3 * 3600)]
    ['0 s', '3.4 ms', '1.5 s', '2 min 5 s', '1 h', '7 d 3 h']
    """
    seconds = lasted.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds > 0 else "0 s"
    if seconds < 60:  # noqa: PLR2004  # a minute
        return f"{seconds:.3g} s"
    whole, parts = round(seconds), list[str]()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if whole >= size:
            parts.append(f"{whole // size} {unit}")
            whole %= size
    return " ".join(parts[:2])


def _began(segments: Iterable[Segment]) -> Mapping[int, int]:
    """Return with which event each step began."""
    began = dict[int, int]()
    for segment in segments:
        if segment.idx is not None:
            began[segment.idx] = min(segment.began_seq, began.get(segment.idx, segment.began_seq))
    return began


def _meanwhile(segments: Sequence[Segment], wanted: frozenset[int], *, whole: bool) -> list[Segment]:
    """Return the segments of some steps, and those of no step that went on while these did."""
    if whole:
        return [*segments]
    of_steps = [segment for segment in segments if segment.idx in wanted]
    begin = min((segment.began_seq for segment in of_steps), default=0)
    end = max((_end(segment) for segment in of_steps), default=inf)
    others = (s for s in segments if s.idx is None and s.began_seq < end and _end(s) >= begin)
    return [*of_steps, *others]


def _bounded(segments: Sequence[Segment]) -> tuple[list[Segment], int]:
    """Return the last segments, in their order, and how many are left out."""
    in_order = sorted(segments, key=lambda segment: (segment.began_seq, segment.idx or -1))
    return in_order[-MOST_BARS:], max(0, len(in_order) - MOST_BARS)


def _end(segment: Segment) -> float:
    return inf if segment.ended_seq is None else segment.ended_seq


def _axis(segments: Sequence[Segment], now: datetime) -> _Axis:
    times = dict[float, datetime]()
    for segment in segments:
        times[segment.began_seq] = segment.began_at
        if segment.ended_seq is not None and segment.ended_at is not None:
            times[segment.ended_seq] = segment.ended_at
    if any(segment.ended_seq is None for segment in segments):
        times[inf] = max(now, *times.values())
    seqs = tuple(sorted(times))
    at = tuple(times[seq] for seq in seqs)
    passed = [max(0.0, (later - earlier).total_seconds()) for earlier, later in pairwise(at)]
    is_work = _work(segments, {seq: n for n, seq in enumerate(seqs)})
    broken = _broken(passed, is_work)
    widths = _widths(passed, broken, _words(segments, seqs))
    places = tuple(accumulate(widths, initial=0.0))
    breaks = tuple(
        Break(places[n], places[n + 1], lasting(timedelta(seconds=passed[n])))
        for n in range(len(passed))
        if broken[n]
    )
    return _Axis(seqs, at, places, breaks)


def _work(segments: Iterable[Segment], position: Mapping[float, int]) -> list[bool]:
    """Say between which events something went on that is no wait."""
    changes = [0] * len(position)
    for segment in segments:
        if segment.kind in ("attempt", "model") and segment.end != "lost":
            changes[position[segment.began_seq]] += 1
            changes[position[_end(segment)] - (segment.ended_seq is None)] -= 1
    return [count > 0 for count in accumulate(changes)][:-1]


def _broken(passed: Sequence[float], is_work: Sequence[bool]) -> list[bool]:
    """Say where the axis is broken."""
    total = sum(seconds for seconds, work in zip(passed, is_work, strict=True) if work)
    quiet = sorted(seconds for seconds, work in zip(passed, is_work, strict=True) if not work)
    longest = inf
    for n, seconds in enumerate(quiet):
        if seconds > LONG * total and len(quiet) - n <= MOST_BREAKS:
            longest = seconds
            break
        total += seconds
    return [not work and seconds >= longest for seconds, work in zip(passed, is_work, strict=True)]


def _words(segments: Iterable[Segment], seqs: Sequence[float]) -> list[float]:
    """Return how much room the words need that must stand between two events: of a loss, and of who took over."""
    needed = [0.0] * (len(seqs) - 1)
    position = {seq: n for n, seq in enumerate(seqs)}
    for segment in segments:
        if segment.end == "lost":
            here = position[_end(segment)]
            needed[here - 1] = max(needed[here - 1], LOST)
            if here < len(needed):
                needed[here] = max(needed[here], TAKEOVER)
    return needed


def _widths(passed: Sequence[float], broken: Sequence[bool], needed: Sequence[float]) -> list[float]:
    """Return how wide each part of the axis is: breaks on one scale, the rest on another, and nothing too narrow."""
    apart = [n for n, is_broken in enumerate(broken) if is_broken]
    rest = [n for n, is_broken in enumerate(broken) if not is_broken]
    room = max(PLOT * BREAKS, (BREAK + WIDER) * len(apart)) if apart else 0.0
    many = max(1, len(rest))
    narrow = min(ROOMY, max(NARROW, (PLOT - room) / (2 * many), min(READABLE, PLOT / (2 * many))))
    widths = [0.0] * len(passed)
    for chosen, least, wide in ((apart, BREAK, room), (rest, narrow, PLOT - room)):
        parts = _to_scale([passed[n] for n in chosen], [max(least, needed[n]) for n in chosen], wide)
        for n, width in zip(chosen, parts, strict=True):
            widths[n] = width
    return widths


def _to_scale(lengths: Sequence[float], least: Sequence[float], room: float) -> list[float]:
    """Share a room in proportion, but give each what it needs at least."""
    fixed = [length <= 0 for length in lengths]
    while True:
        left = room - sum(need for need, is_fixed in zip(least, fixed, strict=True) if is_fixed)
        total = sum(length for length, is_fixed in zip(lengths, fixed, strict=True) if not is_fixed)
        scale = max(0.0, left) / total if total else 0.0
        too_narrow = [
            not is_fixed and length * scale < need
            for length, need, is_fixed in zip(lengths, least, fixed, strict=True)
        ]
        if not any(too_narrow):
            return [
                need if is_fixed else length * scale
                for length, need, is_fixed in zip(lengths, least, fixed, strict=True)
            ]
        fixed = [was or now for was, now in zip(fixed, too_narrow, strict=True)]


def _lanes(segments: Iterable[Segment], axis: _Axis) -> Iterable[Lane]:
    """Yield the lanes: the whole run, its decider, and each step."""
    found = dict[tuple[int, str, int], list[Segment]]()
    for segment in segments:
        if segment.idx is not None:
            key = (2, "", segment.idx)
        else:
            key = (1, "decider", 0) if segment.kind == "model" else (0, segment.kind, 0)
        found.setdefault(key, []).append(segment)
    for (rank, name, idx), members in sorted(found.items()):
        tool = next((segment.tool for segment in members if segment.tool), members[0].kind)
        yield Lane(f"{idx} {tool}".rstrip() if rank > 1 else name, tuple(_bars(members, axis)))


def _bars(segments: Iterable[Segment], axis: _Axis) -> Iterable[Bar]:
    was_lost = False
    for segment in segments:
        end = _end(segment)
        ended_at = axis.times[-1] if segment.ended_at is None else segment.ended_at
        lasted = max(timedelta(), ended_at - segment.began_at)
        is_attempt = segment.kind in ("attempt", "model")
        yield Bar(segment, axis.place_of(segment.began_seq), axis.place_of(end), lasted, is_attempt and was_lost)
        if is_attempt:
            was_lost = segment.end == "lost"


def _ticks(axis: _Axis) -> Iterable[Tick]:
    """Yield times, as many as there is room for, and none twice."""
    last, said = -inf, ""
    for at, place in zip(axis.times, axis.places, strict=True):
        text = lasting(at - axis.times[0])
        if place - last >= APART and text != said:
            yield Tick(place, f"+{text}" if said else text)
            last, said = place, text
