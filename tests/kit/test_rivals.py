"""Two workers on one run, stores that fail, and signals: what is tried, and what it finds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    RunState,
    ScriptedDecider,
    ToolContext,
    ToolSpec,
    WaitFor,
    crash_point,
    tool,
)
from agent_es.demo import scenario as story
from agent_es.errors import BadScenario, RunMoved
from agent_es.testing import (
    DidNotSurvive,
    Ending,
    Scenario,
    survives_every_fault,
    survives_every_signal,
    survives_overtaking,
)
from agent_es.testing.audit import Audit


class Ledger:
    """A world: amounts in a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger"

    def pay(self) -> None:
        with self.path.open("a") as file:
            file.write("10.00\n")
        crash_point("it is paid")

    def effects(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


class Payer(AgentRun):
    """Pays at most once, or says that paying is reading."""

    @tool(effect=Effect.AT_MOST_ONCE)
    def pay(self, ctx: ToolContext[Ledger]) -> str:
        ctx.deps.pay()
        return "paid"

    @tool(effect=Effect.READ)
    def pay_carelessly(self, ctx: ToolContext[Ledger]) -> str:
        ctx.deps.pay()
        return "paid"


def paying(tool_name: str) -> Scenario:
    return Scenario(agent=Payer, decider=ScriptedDecider([CallTool(tool_name), Finish("done")]), world=Ledger)


def test_the_story_survives_every_failure_of_its_store() -> None:
    report = survives_every_fault(story)

    assert report.runs == 1 + 2 * 7  # its lease and each of its events; the commit fails, or its answer is lost
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


def test_an_effect_that_nothing_protects_survives_a_store_that_fails() -> None:
    report = survives_every_fault(paying("pay"))

    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


def test_the_story_survives_being_overtaken() -> None:
    report = survives_overtaking(story, pairs=40)

    assert (report.runs, report.drawn) == (41, 40)
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


@pytest.mark.crash
def test_an_effect_that_nothing_protects_happens_at_most_once_or_is_in_doubt() -> None:
    report = survives_overtaking(paying("pay"), pairs=200)

    assert (report.double, report.lost) == (0, 0)


def test_an_agent_that_says_too_much_is_found_out_and_the_failure_says_who_stood_where() -> None:
    with pytest.raises(DidNotSurvive, match=r"double: 10\.00 happened 2 times, and 1 without a crash") as failed:
        survives_overtaking(paying("pay_carelessly"), pairs=200)

    assert failed.value.report.smallest is not None
    assert "  one stands " in str(failed.value.report.smallest)


def test_an_invariant_that_does_not_hold_without_any_rival_is_found_first() -> None:
    def never(_: Ending) -> bool:
        return False

    for survives in (survives_every_fault, survives_overtaking):
        with pytest.raises(DidNotSurvive, match="no worker meets another, and no store fails"):
            survives(story, never)  # type: ignore[operator]


def test_a_worker_that_is_stopped_by_its_own_append_is_a_problem_and_one_that_was_beaten_is_none(
    tmp_path: Path,
) -> None:
    audit, scenario = Audit(alone=False), paying("pay")
    store, other = (scenario.open_store(tmp_path, audit) for _ in range(2))
    store.start(Payer, run_id="run-1", goal="pay")
    mine, stale, theirs = (each.aggregate(Payer, "run-1") for each in (store, store, other))
    for run in (mine, stale, theirs):
        run.record_answer('"done"')
    store.save(mine)

    with pytest.raises(RunMoved):
        store.save(stale)
    assert len(audit.problems) == 1
    assert audit.problems[0].startswith("a worker was stopped by its own append: run run-1")

    with pytest.raises(RunMoved):
        other.save(theirs)
    assert len(audit.problems) == 1


# Signals.


class Hasty:
    """Waits for a payment, unless it is there already; then it pays itself."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        if run.turns == 0:
            return CallTool("pay_carelessly") if run.signals else WaitFor("paid")
        return Finish("done")


@pytest.mark.crash
def test_a_signal_may_come_at_any_place_and_is_used_once() -> None:
    twice = ScriptedDecider([WaitFor("paid"), CallTool("pay"), WaitFor("packed"), Finish("done")])
    waiting = replace(paying("pay"), decider=twice, signals=[("paid", 1, "evt-1"), ("packed", 2, "evt-2")])

    report = survives_every_signal(waiting)

    assert report.crashes == (report.runs - 1) / 2
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


def test_a_decider_that_looks_at_what_came_early_is_found_out() -> None:
    hasty = replace(paying("pay"), decider=Hasty(), signals=[("paid", None, "evt-1")])

    with pytest.raises(DidNotSurvive, match=r"double: 10\.00 happened 1 time, and 0 without a crash") as failed:
        survives_every_signal(hasty)

    assert "evt-1 came " in str(failed.value)


def test_a_scenario_without_signals_is_refused() -> None:
    with pytest.raises(BadScenario, match=r"pass Scenario\(signals="):
        survives_every_signal(story)
