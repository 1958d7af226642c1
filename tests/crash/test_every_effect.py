"""Scenarios that use every effect survive wherever their workers die, once and in the recovery too."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_es import Effect
from agent_es.testing import Life, Scenario
from agent_es.testing.audit import Audit
from examples import every_effect
from examples.every_effect import Errands

SCENARIOS: Mapping[str, Scenario] = {
    name: value for name, value in vars(every_effect).items() if isinstance(value, Scenario)
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_it_survives_a_crash(name: str, crash_kit: Any) -> None:
    report = replace(crash_kit, size=12).survives(SCENARIOS[name])

    assert report.crashes
    assert (report.double, report.lost) == (0, 0)
    assert SCENARIOS[name].person is None or report.in_doubt == 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.crash if name == "glance" else pytest.mark.exhaustive)
        for name in SCENARIOS
    ],
)
def test_it_survives_two_crashes_at_places_that_are_drawn(name: str, crash_kit: Any) -> None:
    report = replace(crash_kit, points="sample", size=300).survives(SCENARIOS[name], crashes=2)

    assert (report.double, report.lost) == (0, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCENARIOS)
def test_it_survives_two_crashes_wherever_they_are(name: str, crash_kit: Any) -> None:
    report = crash_kit.survives(SCENARIOS[name], crashes=2)

    assert (report.double, report.lost) == (0, 0)


def test_every_effect_is_used(tmp_path: Path) -> None:
    used = set()

    for name, scenario in SCENARIOS.items():
        folder = tmp_path / name
        folder.mkdir()
        state = scenario.live(folder, Life(), Audit())
        used |= {Errands.agent_tools[step.tool].effect for step in state.steps}

    assert used == set(Effect)
