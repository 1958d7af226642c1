"""When an expression comes in a zone, above all where its clocks are set forward or back; what is no expression."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from agent_es.cron import Cron
from agent_es.errors import BadSchedule

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
"""In 2026 clocks go forward on 29 March at 01:00Z and on 8 March at 07:00Z, back on 25 October at 01:00Z and on
1 November at 06:00Z."""


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def between(expression: str, zone: str, first: str, last: str) -> list[str]:
    """The instants later than ``first`` up to ``last``, without their year."""
    cron = Cron.parse(expression, zone)

    def instants() -> Iterator[int]:
        instant: int | None = at(first)
        while (instant := cron.after(instant or 0)) is not None:
            yield instant

    found = takewhile(lambda instant: instant <= at(last), instants())
    return [f"{datetime.fromtimestamp(instant, UTC):%m-%d %H:%MZ}" for instant in found]


# Clocks that change.


@pytest.mark.parametrize(
    ("zone", "first", "last", "instants"),
    [
        (BERLIN, "2026-03-27T12:00Z", "2026-03-30T12:00Z", ["03-28 01:30Z", "03-29 01:00Z", "03-30 00:30Z"]),
        (NEW_YORK, "2026-03-06T12:00Z", "2026-03-09T12:00Z", ["03-07 07:30Z", "03-08 07:00Z", "03-09 06:30Z"]),
    ],
)
def test_a_time_that_a_day_leaves_out_comes_at_the_first_moment_behind_the_gap(
    zone: str, first: str, last: str, instants: list[str]
) -> None:
    assert between("30 2 * * *", zone, first, last) == instants


def test_several_times_that_a_day_leaves_out_come_once() -> None:
    assert between("0,20,40 2,3 * * *", BERLIN, "2026-03-29T00:00Z", "2026-03-29T12:00Z") == [
        "03-29 01:00Z",
        "03-29 01:20Z",
        "03-29 01:40Z",
    ]


@pytest.mark.parametrize(
    ("zone", "expression", "first", "last", "instants"),
    [
        (
            BERLIN,
            "30 2 * * *",
            "2026-10-23T12:00Z",
            "2026-10-26T12:00Z",
            ["10-24 00:30Z", "10-25 00:30Z", "10-26 01:30Z"],
        ),
        (
            NEW_YORK,
            "30 1 * * *",
            "2026-10-30T12:00Z",
            "2026-11-02T12:00Z",
            ["10-31 05:30Z", "11-01 05:30Z", "11-02 06:30Z"],
        ),
    ],
)
def test_a_time_that_a_day_has_twice_comes_the_first_time(
    zone: str, expression: str, first: str, last: str, instants: list[str]
) -> None:
    assert between(expression, zone, first, last) == instants


@pytest.mark.parametrize(
    ("zone", "first", "last", "instants"),
    [
        (BERLIN, "2026-03-27T12:00Z", "2026-03-29T12:00Z", ["03-28 08:00Z", "03-29 07:00Z"]),
        (BERLIN, "2026-10-23T12:00Z", "2026-10-25T12:00Z", ["10-24 07:00Z", "10-25 08:00Z"]),
        (NEW_YORK, "2026-03-06T20:00Z", "2026-03-08T20:00Z", ["03-07 14:00Z", "03-08 13:00Z"]),
        (NEW_YORK, "2026-10-30T20:00Z", "2026-11-01T20:00Z", ["10-31 13:00Z", "11-01 14:00Z"]),
    ],
)
def test_nine_in_the_morning_stays_nine_in_the_morning(zone: str, first: str, last: str, instants: list[str]) -> None:
    assert between("0 9 * * *", zone, first, last) == instants


@pytest.mark.parametrize(
    ("zone", "first", "last"),
    [
        (BERLIN, "2026-03-29T00:00Z", "2026-03-29T02:00Z"),
        (BERLIN, "2026-10-25T00:00Z", "2026-10-25T02:00Z"),
        (NEW_YORK, "2026-03-08T06:00Z", "2026-03-08T08:00Z"),
        (NEW_YORK, "2026-11-01T05:00Z", "2026-11-01T07:00Z"),
    ],
)
def test_a_quarter_of_an_hour_stays_a_quarter_of_an_hour(zone: str, first: str, last: str) -> None:
    day, hour = first[5:10], int(first[11:13])

    assert between("*/15 * * * *", zone, first, last) == [
        f"{day} {hour:02}:15Z",
        f"{day} {hour:02}:30Z",
        f"{day} {hour:02}:45Z",
        f"{day} {hour + 1:02}:00Z",
        f"{day} {hour + 1:02}:15Z",
        f"{day} {hour + 1:02}:30Z",
        f"{day} {hour + 1:02}:45Z",
        f"{day} {hour + 2:02}:00Z",
    ]


def test_with_a_star_in_minute_or_hour_the_clock_is_read_as_it_goes_what_it_leaves_out_does_not_come() -> None:
    assert between("*/15 2 * * *", BERLIN, "2026-03-28T01:30Z", "2026-03-30T00:15Z") == [
        "03-28 01:45Z",
        "03-30 00:00Z",
        "03-30 00:15Z",
    ]
    assert between("0 */2 * * *", BERLIN, "2026-03-28T22:00Z", "2026-03-29T04:00Z") == [
        "03-28 23:00Z",
        "03-29 02:00Z",
        "03-29 04:00Z",
    ]
    assert between("*/30 2 * * *", NEW_YORK, "2026-03-07T07:00Z", "2026-03-09T06:00Z") == [
        "03-07 07:30Z",
        "03-09 06:00Z",
    ]


def test_with_a_star_in_minute_or_hour_what_a_clock_shows_twice_comes_twice() -> None:
    assert between("*/30 2 * * *", BERLIN, "2026-10-24T23:00Z", "2026-10-25T12:00Z") == [
        "10-25 00:00Z",
        "10-25 00:30Z",
        "10-25 01:00Z",
        "10-25 01:30Z",
    ]
    assert between("30 * * * *", NEW_YORK, "2026-11-01T05:00Z", "2026-11-01T07:00Z") == [
        "11-01 05:30Z",
        "11-01 06:30Z",
    ]


def test_who_asks_in_the_second_of_two_hours_alike_is_not_sent_back_to_the_first() -> None:
    quarter_past_one_again = at("2026-11-01T06:15Z")

    half_past_one = Cron.parse("30 1 * * *", NEW_YORK)

    assert half_past_one.after(quarter_past_one_again) == at("2026-11-02T06:30Z")
    assert half_past_one.last(at("2026-10-30T05:30Z"), quarter_past_one_again) == at("2026-11-01T05:30Z")


# Any time.


def test_an_instant_is_not_after_itself_and_a_fraction_of_a_second_is_none_too_late() -> None:
    nine = Cron.parse("0 9 * * *", "UTC")

    assert nine.after(at("2026-07-05T08:59:59Z") + 0.9) == at("2026-07-05T09:00Z")
    assert nine.after(at("2026-07-05T09:00Z")) == at("2026-07-06T09:00Z")


def test_of_day_and_day_of_week_one_will_do_unless_one_of_them_begins_with_a_star() -> None:
    week = ("UTC", "2026-07-05T12:00Z", "2026-07-12T12:00Z")  # from Sunday to Sunday

    assert between("0 0 8 * FRI", *week) == ["07-08 00:00Z", "07-10 00:00Z"]
    assert between("0 0 */2 * FRI", *week) == []
    assert between("0 0 */2 * SAT", *week) == ["07-11 00:00Z"]


EXPRESSIONS = [
    "*/15 * * * *",
    "5 * * * *",
    "30 2 * * *",
    "0,30 0-3 * * *",
    "*/20 1,2 * * *",
    "0 9 * * MON-FRI",
    "0 0 1 * *",
]
EDGES = ["2026-03-29T01:00Z", "2026-10-25T01:00Z", "2026-03-08T07:00Z", "2026-11-01T06:00Z", "2026-07-05T12:00Z"]


@given(
    expression=st.sampled_from(EXPRESSIONS),
    zone=st.sampled_from([BERLIN, NEW_YORK, "UTC", "Asia/Kolkata"]),
    edge=st.sampled_from(EDGES),
    begins=st.integers(-200_000, 0),
    takes=st.integers(0, 400_000),
)
def test_the_next_and_the_last_are_those_that_cronsim_lists(
    expression: str, zone: str, edge: str, begins: int, takes: int
) -> None:
    cron, first, upto = Cron.parse(expression, zone), at(edge) + begins, at(edge) + begins + takes
    listed = takewhile(
        lambda found: found.timestamp() <= upto, CronSim(expression, datetime.fromtimestamp(first, ZoneInfo(zone)))
    )
    expected = [instant for found in listed if (instant := int(found.timestamp())) > first]

    found: list[int] = []
    while (instant := cron.after(found[-1] if found else first)) is not None and instant <= upto:
        found.append(instant)

    assert found == expected
    for n, instant in enumerate(found):
        assert cron.last(found[0], instant) == instant
        assert cron.last(found[0], instant - 0.5) == found[max(0, n - 1)]


def test_the_last_of_five_million_minutes_is_found_by_halving() -> None:
    minutes, first = Cron.parse("* * * * *", BERLIN), at("2016-07-05T00:00Z")

    assert minutes.last(first, at("2026-07-05T00:00:59Z")) == at("2026-07-05T00:00Z")


# What is none.


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("0 25 * * *", "bad hour; its fields are minute, hour, day-of-month, month and day-of-week: '0 9 "),
        ("60 * * * *", "bad minute"),
        ("0 9 32 * *", "bad day-of-month"),
        ("0 9 * 13 *", "bad month"),
        ("0 9 30 13 *", "bad month"),
        ("0 9 * * FRI-SUN", "bad day-of-week"),
        ("0 9 * * MON#6", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("", "write five fields"),
        ("0 9 * *", "write five fields"),
        ("0 0 9 * * *", "write five fields"),
        ("@daily", "write five fields"),
        ("\N{ARABIC-INDIC DIGIT NINE} * * * *", "write five fields"),
        ("0 9 * * " + "9" * 5_000, "write five fields"),
        ("0 9 30 2 *", "never comes; write a day that some month has"),
        ("0 9 31 4,6,9,11 *", "never comes; write a day that some month has"),
    ],
)
def test_what_is_no_expression_is_refused_with_what_is_wrong_and_what_a_right_one_looks_like(
    expression: str, says: str
) -> None:
    with pytest.raises(BadSchedule) as caught:
        Cron.parse(expression, "UTC")

    assert says in str(caught.value)
    assert "'0 9 * * MON-FRI' is 09:00 from Monday to Friday" in str(caught.value)


def test_a_day_that_comes_never_though_each_of_its_fields_does_is_50_years_away() -> None:
    last_working_day_that_is_a_sunday = Cron.parse("0 9 LW * */7", "UTC")

    assert last_working_day_that_is_a_sunday.after(at("2026-07-05T12:00Z")) is None


@pytest.mark.parametrize(
    "zone", ["", "Europe", "Europe/Berln", "../Berlin", "/etc/passwd", "a\0b", "\ud800", "x" * 5_000]
)
def test_what_is_no_zone_is_refused_with_what_a_zone_looks_like(zone: str) -> None:
    with pytest.raises(BadSchedule, match=r"is no zone that is known here; write a name .* as 'Europe/Berlin'"):
        Cron.parse("0 9 * * *", zone)


WITHOUT_ZONES = """
import sys
sys.modules["tzdata"] = None
from agent_es.cron import Cron
from agent_es.errors import BadSchedule
try:
    Cron.parse("0 9 * * *", "Europe/Berlin")
except BadSchedule as error:
    print(Cron.parse("0 9 * * *", "UTC").after(0), error)
"""


def test_a_system_without_zones_has_utc_and_is_told_where_the_others_come_from() -> None:
    program = [sys.executable, "-c", WITHOUT_ZONES]
    no_zones = {**os.environ, "PYTHONTZPATH": ""}

    told = subprocess.run(program, check=True, timeout=60, capture_output=True, text=True, env=no_zones).stdout

    assert told.startswith(f"{9 * 3600} 'Europe/Berlin' is no zone that is known here")
    assert "pip install tzdata" in told


def test_the_library_is_loaded_where_something_is_scheduled() -> None:
    program = [sys.executable, "-c", "import sys, agent_es.store, agent_es.worker; print(*sys.modules)"]

    loaded = subprocess.run(program, check=True, timeout=60, capture_output=True, text=True).stdout.split()

    assert "agent_es.cron" in loaded
    assert "cronsim" not in loaded
