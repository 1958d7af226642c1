"""Errors: what they say, and what they can be caught as."""

import pytest

from agent_es.errors import (
    AgentError,
    InDoubt,
    KeyReused,
    NotRecordable,
    ResultDoesNotFit,
    RunError,
    RunMoved,
    RunUnfinished,
    StepUnplayable,
)


def test_an_error_without_a_message_says_what_its_class_is_about() -> None:
    assert str(RunMoved()) == (
        "Another worker appended to this run first; this execution stopped and recorded nothing more."
    )
    assert str(RunMoved("run r: gone")) == "run r: gone"


def test_a_value_that_cannot_be_recorded_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="set is not JSON") as caught:
        raise NotRecordable("set is not JSON")

    assert isinstance(caught.value, AgentError)


def test_a_reused_key_says_which_step_was_refused_and_what_its_holder_came_to() -> None:
    bare, told = KeyReused("taken", idx=3), KeyReused("taken", first='"rf-9"', is_free=True)

    assert (bare.idx, bare.first, bare.is_free) == (3, None, False)
    assert (told.idx, told.first, told.is_free) == (0, '"rf-9"', True)


def test_a_result_that_does_not_fit_is_one_of_the_reasons_to_park_a_run() -> None:
    assert issubclass(ResultDoesNotFit, StepUnplayable)
    assert issubclass(StepUnplayable, RunError)


def test_a_run_in_doubt_is_one_that_has_no_answer_yet() -> None:
    with pytest.raises(RunUnfinished, match="find out, and settle it"):
        raise InDoubt
