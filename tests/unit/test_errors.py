"""Errors: what they say, and what they can be caught as."""

import pytest

from agent_es.errors import AgentError, KeyReused, NotRecordable, RunMoved


def test_an_error_without_a_message_says_what_its_class_is_about() -> None:
    assert str(RunMoved()) == (
        "Another worker appended to this run first; this execution stopped and nothing of it was recorded."
    )
    assert str(RunMoved("run r: gone")) == "run r: gone"


def test_a_value_that_cannot_be_recorded_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="set is not JSON") as caught:
        raise NotRecordable("set is not JSON")

    assert isinstance(caught.value, AgentError)


def test_a_reused_key_says_which_step_was_refused() -> None:
    assert KeyReused("taken", idx=3).idx == 3
