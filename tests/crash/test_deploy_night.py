"""A short deploy night: workers are killed again and again, and every run is done and paid once in the morning.

`python -m benchmarks.deploy_night` spends a whole one.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deploy_night import HITS, Morning, Night, spend

QUIET = Morning(
    runs=40,
    in_flight=40,
    done=40,
    refunds=40,
    double=0,
    lost=0,
    kills=20,
    hits=2,
    struck=3,
    calls=43,
    torn=0,
    fell=0,
    troubles=0,
    seconds=8.0,
)


@pytest.mark.parametrize(
    "database",
    [pytest.param("sqlite", marks=pytest.mark.crash), pytest.param("postgres", marks=pytest.mark.postgres)],
    indirect=True,
)
def test_a_night_of_kills_loses_no_run_and_pays_none_twice(database: str, url: str, tmp_path: Path) -> None:
    night = Night(seconds=8.0, runs=40, workers=3, kill_every=0.5)

    morning = spend(night, url, tmp_path, database, lambda rounds, _: rounds)

    assert morning.problems == []
    assert (morning.done, morning.refunds, morning.double, morning.lost) == (40, 40, 0, 0)
    assert morning.calls - morning.refunds >= morning.struck >= morning.hits >= morning.kills * HITS


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"in_flight": 39}, "39 of 40 runs were in flight to the end"),
        ({"done": 39}, "39 of 40 runs are done"),
        ({"refunds": 39}, "39 refunds for 40 runs"),
        ({"double": 1}, "1 orders were paid more than once"),
        ({"lost": 1}, "1 orders were not paid"),
        ({"torn": 1}, "1 runs have a journal that is torn"),
        ({"fell": 1}, "1 workers ended by themselves"),
        ({"hits": 1}, "1 kills hit a body in flight, and 2 should"),
        ({"calls": 42}, "3 bodies were hit, and 2 calls were made again"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
def test_a_morning_says_what_is_not_as_it_must_be(changed: dict[str, Any], problem: str) -> None:
    assert QUIET.problems == []
    assert replace(QUIET, **changed).problems == [problem]
