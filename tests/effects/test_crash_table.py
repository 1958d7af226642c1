"""Five effects, every crash point, one crash and two: what is claimed of each effect, held against what happens."""

import pytest

from agent_es import Effect
from docs._generate.effects import AFTER_COMMIT, AFTER_DECISION, BEFORE_COMMIT, POINTS, Fate, fates, schedules

SCHEDULES = list(schedules())


def ends(effect: Effect) -> dict[tuple[str, ...], Fate]:
    return {points: fates()[effect, points] for points in SCHEDULES}


@pytest.mark.crash
def test_every_point_is_tried_alone_and_before_every_other() -> None:
    assert len(SCHEDULES) == len(POINTS) + len(POINTS) ** 2
    assert len(fates()) == len(Effect) * len(SCHEDULES)


@pytest.mark.parametrize("effect", [Effect.IDEMPOTENT, Effect.TRANSACTIONAL, Effect.PROBED])
def test_such_an_effect_happens_exactly_once_and_the_run_ends(effect: Effect) -> None:
    for points, fate in ends(effect).items():
        assert (points, fate.happened, fate.status) == (points, 1, "done")


def test_an_at_most_once_effect_never_happens_twice_and_is_never_started_again() -> None:
    for points, fate in ends(Effect.AT_MOST_ONCE).items():
        assert fate.started <= 1, points
        assert fate.happened <= 1, points


def test_an_at_most_once_step_whose_start_mark_is_durable_is_in_doubt_after_a_crash() -> None:
    for point in (AFTER_DECISION, BEFORE_COMMIT, AFTER_COMMIT):
        fate = fates()[Effect.AT_MOST_ONCE, (point,)]
        assert (fate.status, fate.waiting_for) == ("waiting", "doubt")


def test_a_read_is_run_again_and_the_run_ends() -> None:
    for fate in ends(Effect.READ).values():
        assert fate.status == "done"


def test_only_a_crash_in_the_body_starts_a_body_again() -> None:
    for effect in Effect:
        for point in set(POINTS) - {BEFORE_COMMIT, AFTER_COMMIT}:
            assert fates()[effect, (point,)].started <= 1
