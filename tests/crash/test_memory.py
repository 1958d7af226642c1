"""Memory under crashes: at every place, a run summarizes, remembers and reads on as if nothing had happened."""

from dataclasses import replace
from typing import Any

import pytest

from agent_es import Memory
from agent_es.testing import Ending
from examples.remembering import Reader, remembering


class Forgetful(Reader):
    """Reads so little at once that the cap closes its phases."""

    memory = Memory(cap=200, keep=0, longest_result=300)


def the_cap_closed_two_phases(ending: Ending) -> None:
    """Hold where the run was summarized twice because it had grown too long."""
    assert [entry.data["phase"] for entry in ending.journal if entry.type == "summarized"] == ["", ""]


SCENARIOS = [remembering, replace(remembering, decider=Forgetful(), invariant=the_cap_closed_two_phases)]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_with_a_memory_survives_a_sample_of_crashes(crash_kit: Any, scenario: Any) -> None:
    replace(crash_kit, points="sample", size=8).survives(scenario)


@pytest.mark.crash
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_with_a_memory_survives_a_crash_anywhere(crash_kit: Any, scenario: Any) -> None:
    crash_kit.survives(scenario)
