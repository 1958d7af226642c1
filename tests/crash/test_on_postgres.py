"""The crash kit with runs on PostgreSQL: the same scenarios survive there, wherever their workers die."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_es.demo import scenario as story
from agent_es.testing import Scenario, on_postgres, survives_every_fault, survives_overtaking
from examples import every_effect
from examples.every_effect import World

pytestmark = pytest.mark.postgres

SCENARIOS: Mapping[str, Scenario] = {
    name: value for name, value in vars(every_effect).items() if isinstance(value, Scenario) and value.world is World
}


@pytest.fixture(scope="module")
def moved(server: Any) -> Callable[[Scenario], Scenario]:
    """Returns a scenario with its runs on the server."""
    url = on_postgres(server.url)

    def move(scenario: Scenario) -> Scenario:
        world = partial(World, url=url) if scenario.world is World else scenario.world
        return replace(scenario, url=url, world=world)

    return move


def test_a_crash_at_any_place_of_the_story_pays_once(moved: Callable[[Scenario], Scenario], crash_kit: Any) -> None:
    report = replace(crash_kit, size=None).survives(moved(story))

    assert report.crashes == report.points == report.runs - 1
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_effect_survives_a_crash(name: str, moved: Callable[[Scenario], Scenario], crash_kit: Any) -> None:
    report = replace(crash_kit, size=12).survives(moved(SCENARIOS[name]))

    assert report.crashes
    assert (report.double, report.lost) == (0, 0)


def test_a_store_that_fails_at_a_commit_stops_no_lone_worker(moved: Callable[[Scenario], Scenario]) -> None:
    report = survives_every_fault(moved(SCENARIOS["twins"]))

    assert report.runs > 1


@pytest.mark.parametrize("name", ["twins", "crowd"])
def test_a_worker_that_was_overtaken_harms_nothing(name: str, moved: Callable[[Scenario], Scenario]) -> None:
    report = survives_overtaking(moved(SCENARIOS[name]), pairs=15)

    assert (report.double, report.lost) == (0, 0)


def test_a_schema_goes_with_its_folder(server: Any, tmp_path: Path) -> None:
    url = on_postgres(server.url)
    first, second = tmp_path / "first", tmp_path / "second"

    def schemas() -> set[str]:
        found = server.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'agent_es_%'")
        return {name for (name,) in found}

    before = schemas()
    first.mkdir()
    assert url(first) == url(first)
    (made,) = schemas() - before
    assert made in url(first)
    first.rmdir()
    second.mkdir()
    url(second)

    (other,) = schemas() - before
    assert other != made
