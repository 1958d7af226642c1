"""The timeline: every segment is there, in its order and visible, however long or short it was, and told in words."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET  # what is parsed is our own

import pytest

from agent_es.inspector.drawing import timeline_svg
from agent_es.inspector.layout import BREAK, NARROW, Bar, Layout, lay_out
from agent_es.journal import JournalEntry
from agent_es.testing.clock import STORY
from agent_es.timeline import Segment, segments

SVG = "{http://www.w3.org/2000/svg}"
NOW = STORY + timedelta(days=9, hours=5)


def after(seconds: float) -> datetime:
    return STORY + timedelta(seconds=seconds)


def attempt(idx: int, began: int, ended: int | None, at: float, until: float = 0, **more: Any) -> Segment:
    return Segment(
        kind="attempt",
        idx=idx,
        tool=more.pop("tool", "look_up"),
        attempt=more.pop("attempt", 1),
        began_seq=began,
        began_at=after(at),
        ended_seq=ended,
        ended_at=None if ended is None else after(until),
        end=more.pop("end", "open" if ended is None else "done"),
        **more,
    )


def bars_of(layout: Layout) -> list[Bar]:
    return [bar for lane in layout.lanes for bar in lane.bars]


def links(svg: str) -> list[ET.Element]:
    return ET.fromstring(svg).findall(f".//{SVG}a")  # noqa: S314  # what is parsed is our own


def titles(svg: str) -> list[str]:
    return [link.findtext(f"{SVG}title") or "" for link in links(svg)]


def words(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314


def test_each_segment_is_a_bar_that_leads_to_the_event_that_began_it(eventful: list[JournalEntry]) -> None:
    found = segments(eventful)

    svg = timeline_svg(found, now=NOW)

    assert Counter(link.get("href") for link in links(svg)) == Counter(f"#seq-{one.began_seq}" for one in found)
    assert all(link.get("aria-label") == title for link, title in zip(links(svg), titles(svg), strict=True))
    root = ET.fromstring(svg)  # noqa: S314
    assert root.findtext(f"{SVG}title") == "Timeline"
    assert "1 takeovers" in (root.findtext(f"{SVG}desc") or "")


def test_no_style_stands_in_the_drawing_and_nothing_that_acts(eventful: list[JournalEntry]) -> None:
    root = ET.fromstring(timeline_svg(segments(eventful), now=NOW))  # noqa: S314

    attributes = {name for element in root.iter() for name in element.attrib}
    assert "style" not in attributes
    assert not [name for name in attributes if name.startswith("on")]
    assert not {"style", "script", "image", "use", "foreignObject"} & {e.tag.removeprefix(SVG) for e in root.iter()}


def test_a_lost_attempt_has_a_cross_and_the_word_and_who_took_over_says_so(eventful: list[JournalEntry]) -> None:
    svg = timeline_svg(segments(eventful), now=NOW)

    (lost,) = [link for link in links(svg) if "crash" in (link.get("class") or "")]
    assert lost.find(f"{SVG}path[@class='cross']") is not None
    assert lost.findtext(f"{SVG}text") == "1 lost"
    (taker,) = [link for link in links(svg) if "takeover" in (link.get("class") or "")]
    assert taker.findtext(f"{SVG}text") == "2 takeover"
    assert "takes over" in (taker.get("aria-label") or "")


def test_what_was_lost_in_no_time_at_all_says_so_too() -> None:
    svg = timeline_svg([attempt(0, 1, 2, 0, 0, end="lost"), attempt(0, 2, 3, 0, 0, attempt=2)], now=STORY)

    assert {"1 lost", "2 takeover"} <= set(words(svg))


def test_segments_of_no_length_are_as_wide_as_others_and_stand_in_their_order() -> None:
    still = [attempt(n, 2 * n + 1, 2 * n + 2, 0) for n in range(5)]

    bars = bars_of(lay_out(still, now=STORY))

    assert all(bar.width >= NARROW for bar in bars)
    assert len({round(bar.width, 3) for bar in bars}) == 1
    assert all(one.right < other.left for one, other in pairwise(bars))


def test_what_is_not_too_short_is_to_scale() -> None:
    bars = bars_of(lay_out([attempt(0, 1, 2, 0, 30), attempt(1, 3, 4, 40, 100)], now=STORY))

    assert bars[1].width == pytest.approx(2 * bars[0].width)


def test_a_wait_of_a_week_is_a_break_that_says_so_and_leaves_room_for_milliseconds() -> None:
    week = timedelta(days=7).total_seconds()
    wait = Segment(
        kind="wait", idx=1, began_seq=3, began_at=after(0.003), ended_seq=4, ended_at=after(week), end="woken"
    )

    layout = lay_out([attempt(0, 1, 2, 0, 0.003), wait, attempt(2, 5, 6, week, week + 0.006)], now=STORY)

    assert [gap.text for gap in layout.breaks] == ["7 d"]
    short, waited, other = bars_of(layout)
    assert (waited.left, waited.right) == (layout.breaks[0].left, layout.breaks[0].right)
    assert other.width == pytest.approx(2 * short.width)
    assert min(short.width, other.width) > waited.width / 10


def test_waits_are_to_scale_among_themselves() -> None:
    days = [2, 8]
    waits, at, seq = list[Segment](), 0.0, 1
    for idx, length in enumerate(days):
        until = at + timedelta(days=length).total_seconds()
        waits.append(
            Segment(kind="wait", idx=idx, began_seq=seq, began_at=after(at), ended_seq=seq + 1, ended_at=after(until))
        )
        at, seq = until, seq + 2

    layout = lay_out(waits, now=STORY)

    short, long = (gap.right - gap.left for gap in layout.breaks)
    assert long == pytest.approx(4 * short) or short == pytest.approx(BREAK)
    assert short < long


def test_short_steps_between_looks_at_the_store_break_nothing() -> None:
    steps = [attempt(n, 2 * n + 1, 2 * n + 2, n / 2, n / 2 + 0.003) for n in range(30)]

    assert lay_out(steps, now=STORY).breaks == ()


def test_a_worker_that_nobody_missed_for_a_day_is_a_wait_and_a_short_one_is_not() -> None:
    day = timedelta(days=1).total_seconds()

    missed = lay_out([attempt(0, 1, 2, 0, day, end="lost"), attempt(0, 2, 3, day, day + 2, attempt=2)], now=STORY)
    busy = lay_out([attempt(0, 1, 2, 0, day), attempt(1, 3, 4, day, day + 2)], now=STORY)

    assert [gap.text for gap in missed.breaks] == ["1 d"]
    assert busy.breaks == ()


def test_what_is_still_going_on_lasts_until_now() -> None:
    (bar,) = bars_of(lay_out([attempt(0, 1, None, 0)], now=after(90)))

    assert bar.lasted == timedelta(seconds=90)
    assert "still going on" in titles(timeline_svg([bar.segment], now=after(90)))[0]


def test_a_clock_that_went_back_turns_no_bar_around() -> None:
    bars = bars_of(lay_out([attempt(0, 1, 2, 10, 5), attempt(1, 3, 4, 3, 4)], now=STORY))

    assert all(bar.right > bar.left and bar.lasted >= timedelta() for bar in bars)


def test_parallel_steps_stand_above_each_other_in_one_stretch_of_time() -> None:
    first, second = bars_of(lay_out([attempt(0, 1, 4, 0, 3), attempt(1, 2, 3, 1, 2)], now=STORY))

    assert first.left < second.left < second.right < first.right


def test_what_came_after_the_moment_that_is_looked_at_lies_under_a_veil(eventful: list[JournalEntry]) -> None:
    found = segments(eventful)

    whole, then = timeline_svg(found, now=NOW), timeline_svg(found, now=NOW, until_seq=11)

    assert "veil" not in whole
    (veil,) = ET.fromstring(then).findall(f".//{SVG}rect[@class='veil']")  # noqa: S314
    (taker,) = ET.fromstring(then).findall(f".//{SVG}a[@href='#seq-11']/{SVG}rect")  # noqa: S314
    assert veil.get("x") == taker.get("x")
    assert titles(then) == titles(whole)


def test_a_thousand_steps_are_a_window_of_them_that_says_what_is_left_out() -> None:
    many = [attempt(n, 2 * n + 1, 2 * n + 2, n, n + 0.5) for n in range(1000)]

    last, chosen = timeline_svg(many, now=STORY), timeline_svg(many, now=STORY, first=100, most=10)
    then = timeline_svg(many, now=STORY, until_seq=1001)

    assert len(last) < 60_000
    assert "Left out: 960 steps before these, 0 after them." in words(last)
    assert "999 look_up" in words(last)
    assert "Left out: 100 steps before these, 890 after them." in words(chosen)
    assert [link.get("href") for link in links(chosen)] == [f"#seq-{2 * n + 1}" for n in range(100, 110)]
    assert "500 look_up" in words(then)


def test_a_step_of_a_thousand_attempts_is_bounded_and_says_so() -> None:
    many = [attempt(0, n, n + 1, n, n + 1, attempt=n, end="failed") for n in range(1, 1001)]

    svg = timeline_svg(many, now=STORY)

    assert len(links(svg)) == 400
    assert min(bar.width for bar in bars_of(lay_out(many, now=STORY))) >= NARROW
    assert "Left out: 600 earlier segments of these lanes." in words(svg)


def test_a_run_in_which_nothing_took_time_says_so() -> None:
    assert "Nothing took time yet." in words(timeline_svg([], now=STORY))


def test_hostile_words_are_escaped_visible_and_cut() -> None:
    bad = attempt(0, 1, 2, 0, 1, tool='</text><script>alert(1)</script>"\x1b[2J\u202e\0' + "x" * 5_000_000)
    bad = replace(bad, end="failed", text='<img src=x onerror="alert(1)">\ud83d')

    svg = timeline_svg([bad], now=STORY)

    assert len(svg) < 5_000
    ET.fromstring(svg)  # noqa: S314
    assert "<script" not in svg
    assert "<img" not in svg
    assert not {"\x1b", "\u202e", "\0", "\ud83d"} & set(svg)


def test_the_lanes_are_what_held_up_the_run_its_decider_and_its_steps(eventful: list[JournalEntry]) -> None:
    layout = lay_out(segments(eventful), now=NOW)

    assert [lane.name.split()[0] for lane in layout.lanes] == ["parked", "decider", "0", "1", "2", "3", "4", "5"]


@pytest.fixture
def drawn_alone() -> Callable[..., str]:
    def draw(kind: Any, end: Any) -> str:
        one = Segment(
            kind=kind, end=end, began_seq=1, began_at=STORY, ended_seq=2, ended_at=after(60), idx=0, attempt=1
        )
        return timeline_svg([one], now=NOW)

    return draw


@pytest.mark.parametrize(
    ("kind", "end", "said"),
    [
        ("attempt", "done", "1"),
        ("attempt", "failed", "1 failed"),
        ("attempt", "in_doubt", "1 in doubt"),
        ("attempt", "refused", "1 refused"),
        ("doubt", "settled", "in doubt 1 min"),
        ("approval", "denied", "asks for a yes 1 min, denied"),
        ("retry", "done", "retries 1 min"),
        ("wait", "woken", "waits 1 min"),
        ("question", "answered", "asks a person 1 min"),
        ("model", "unusable", "asked unusable"),
        ("paused", "ended", "paused 1 min"),
    ],
)
def test_what_a_colour_says_a_word_says_too(drawn_alone: Callable[..., str], kind: str, end: str, said: str) -> None:
    assert said in words(drawn_alone(kind, end))
