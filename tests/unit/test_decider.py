"""The scripted decider: it says the line of the turn that the run is at."""

import pytest

from agent_es.decider import Decision, Fail, Finish, ScriptedDecider
from agent_es.errors import BadDecision
from agent_es.state import RunState
from agent_es.tools import CallTool

SCRIPT: list[Decision] = [
    CallTool("search", {"query": "refunds"}),
    [CallTool("a"), CallTool("b")],
    Fail("no such order"),
]


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_script_is_picked_up_at_the_turn_that_the_journal_ends_with(turns: int) -> None:
    decider = ScriptedDecider(SCRIPT)

    decision = decider.decide(RunState(run_id="run-7f3a", turns=turns), ())

    assert decision == SCRIPT[turns]


def test_a_script_that_is_asked_twice_says_the_same_line() -> None:
    decider = ScriptedDecider([Finish("refunded"), Finish("never said")])
    run = RunState(run_id="run-7f3a")

    assert decider.decide(run, ()) == decider.decide(run, ()) == Finish("refunded")


def test_a_script_that_does_not_end_the_run_says_so() -> None:
    decider = ScriptedDecider(SCRIPT)

    with pytest.raises(BadDecision, match=r"run run-7f3a: the script has 3 lines .* end the script with Finish"):
        decider.decide(RunState(run_id="run-7f3a", turns=3), ())


def test_a_script_does_not_change_with_the_list_that_it_was_made_from() -> None:
    lines: list[Decision] = [Finish("refunded")]
    decider = ScriptedDecider(lines)

    lines.clear()

    assert decider.decide(RunState(), ()) == Finish("refunded")
