"""The story in real processes that get a real SIGKILL at each place where a worker can die."""

from typing import Any

import pytest

STORY = "agent_es.demo:scenario"


@pytest.mark.crash
def test_a_process_killed_at_any_place_pays_once(crash_kit: Any) -> None:
    report = crash_kit.survives_kills(STORY)

    assert report.crashes >= 14
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)
