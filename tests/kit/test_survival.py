"""Living through a scenario: what is tried, what is counted, what is told."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    RunState,
    RunStore,
    ScriptedDecider,
    ToolContext,
    ToolSpec,
    WaitFor,
    Woken,
    crash_point,
    tool,
)
from agent_es.decider import Answered, Said, Unusable, Used
from agent_es.errors import BadScenario
from agent_es.scratchpad import Memory
from agent_es.testing import DidNotSurvive, Ending, Report, Scenario, fuzz, survives_every_crash


class Book:
    """A world: lines in a file, which outlives every worker."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "book"
        self.is_open = True

    def write(self, line: str, *, once: bool) -> None:
        if not (once and line in self.effects()):
            with self.path.open("a") as file:
                file.write(f"{line}\n")
        crash_point("it is written")

    def effects(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def close(self) -> None:
        self.is_open = False


class Clerk(AgentRun):
    """Writes into a book, in ways that are right and in ways that are wrong."""

    @tool(effect=Effect.IDEMPOTENT)
    def write(self, ctx: ToolContext[Book]) -> str:
        ctx.deps.write(ctx.idempotency_key or "", once=True)
        return "written"

    @tool(effect=Effect.READ)
    def write_carelessly(self, ctx: ToolContext[Book]) -> str:
        ctx.deps.write("a line", once=False)
        return "written"

    @tool(effect=Effect.AT_MOST_ONCE)
    def write_at_most_once(self, ctx: ToolContext[Book]) -> str:
        ctx.deps.write("a line", once=False)
        return "written"

    @tool(effect=Effect.AT_MOST_ONCE, on_doubt="skip")
    def write_or_skip(self, ctx: ToolContext[Book]) -> None:
        ctx.deps.write("a line", once=False)


class Unsure(AgentRun):
    """Never gets an answer."""

    @tool(effect=Effect.AT_MOST_ONCE)
    def time_out(self) -> str:
        raise TimeoutError


def scenario(*steps: str | WaitFor, **options: Any) -> Scenario:
    calls = [CallTool(step) if isinstance(step, str) else step for step in steps]
    script = ScriptedDecider([*calls, Finish("done")])
    return Scenario(**{"agent": Clerk, "decider": script, "world": Book, **options})


# What is tried.


def test_every_place_is_tried_once_and_every_worker_dies_there() -> None:
    report = survives_every_crash(scenario("write"))

    assert report.runs == report.points + 1
    assert report.crashes == report.points
    assert report.kinds == {"request": 14, "commit": 12, "mark": 1}
    assert (report.broken, report.double, report.lost, report.in_doubt) == (0, 0, 0, 0)


@pytest.mark.crash
def test_with_two_crashes_every_place_of_every_recovery_is_tried_too() -> None:
    one, two = fuzz(scenario()), fuzz(scenario(), crashes=2)

    assert two.all_of == 2
    assert two.runs > one.runs * 4
    assert two.crashes == one.crashes + 2 * (two.runs - one.runs)


def test_a_sample_is_bounded_per_number_of_crashes_and_the_same_seed_draws_the_same_one() -> None:
    first, again = (fuzz(scenario("write"), crashes=2, sample=5, seed=3) for _ in range(2))

    assert (first.runs, first.crashes, first.drawn, first.all_of) == (11, 15, 10, 0)
    assert {**first.as_dict(), "seconds": 0} == {**again.as_dict(), "seconds": 0}


@pytest.mark.crash
def test_time_that_is_left_goes_into_deeper_schedules() -> None:
    report = fuzz(scenario("write"), seconds=8)

    assert report.all_of == 1
    assert report.drawn > 0
    assert report.crashes > report.points
    assert 3 <= report.seconds < 10


def test_no_time_is_overdrawn_and_what_was_not_tried_is_not_claimed() -> None:
    report = fuzz(scenario("write"), crashes=2, seconds=0)

    assert (report.runs, report.crashes, report.all_of, report.drawn) == (1, 0, 0, 0)
    assert "; not each tried;" in report.told()


def test_one_schedule_can_be_lived_through_again() -> None:
    report = fuzz(scenario("write"), only=(9, 4))

    assert (report.runs, report.crashes) == (2, 2)


@pytest.mark.parametrize(("schedule", "worker"), [((99,), 1), ((0,), 1), ((9, 99), 2)])
def test_a_schedule_that_no_worker_reaches_is_an_error(schedule: tuple[int, ...], worker: int) -> None:
    with pytest.raises(
        BadScenario, match=f"worker {worker} came to its end before its place {schedule[-1]}; .* 27 places"
    ):
        fuzz(scenario("write"), only=schedule)


def test_who_watches_is_told_how_many_runs_are_done() -> None:
    told: list[tuple[int, int]] = []

    report = fuzz(scenario("write"), on_run=lambda done, total: told.append((done, total)))

    assert told[0] == (1, 1)
    assert told[-1] == (report.runs, report.runs)
    assert [done for done, _ in told] == [*range(1, report.runs + 1)]


# What is counted.


def test_an_effect_that_happens_twice_is_double() -> None:
    report = fuzz(scenario("write_carelessly"))

    assert report.double == report.broken == 4  # after it is written, and until its result is in the journal
    assert report.lost == 0
    assert report.smallest is not None
    assert report.smallest.deaths == ["it is written, in the body of step 0 (write_carelessly)"]


def test_an_effect_that_never_happens_though_the_run_ends_is_lost() -> None:
    def give_up(store: RunStore, state: RunState, _: Book) -> None:
        for step in state.doubts:
            store.settle(state.run_id, step.idx, "happened", by="somebody who does not look", result="written")

    report = fuzz(scenario("write_at_most_once", person=give_up))

    assert report.lost == report.broken > 0
    assert report.double == 0


def test_an_effect_of_which_nobody_knows_is_in_doubt_and_nothing_broke() -> None:
    report = survives_every_crash(scenario("write_at_most_once"))

    assert report.in_doubt > 0
    assert (report.double, report.lost) == (0, 0)


def test_a_person_who_looks_settles_every_doubt() -> None:
    def look(store: RunStore, state: RunState, book: Book) -> None:
        for step in state.doubts:
            outcome = ("did_not_happen", "happened")[bool(book.effects())]
            store.settle(state.run_id, step.idx, outcome, by="person", result="written")  # type: ignore[arg-type]

    report = survives_every_crash(scenario("write_at_most_once", person=look))

    assert (report.in_doubt, report.double, report.lost) == (0, 0, 0)


def test_an_effect_that_its_tool_does_without_is_not_lost() -> None:
    report = survives_every_crash(scenario("write_or_skip"))

    assert (report.in_doubt, report.double, report.lost) == (0, 0, 0)


# What is sent.


@pytest.mark.crash
def test_a_run_waits_for_ever_for_what_nobody_sends() -> None:
    waiting = scenario("write", WaitFor("read"))

    assert fuzz(waiting).calm == "waiting for signal"
    assert fuzz(replace(waiting, signals=[("read", "by ann", "evt-1")])).calm == "done"


@pytest.mark.crash
def test_what_is_sent_comes_before_time_goes_by_and_counts_once_however_many_lives_send_it() -> None:
    def came_once(ending: Ending) -> bool:
        came = [entry.data["delivery_id"] for entry in ending.journal if entry.type == "signal_received"]
        return came == ["evt-1", "evt-2"] and [step.woken for step in ending.state.steps[1:]] == [
            Woken("signal", "read", "by ann"),
            Woken("signal", "read", "by bob"),
        ]

    wait = WaitFor("read", timeout=timedelta(days=7))
    sent = [("read", "by ann", "evt-1"), ("read", "by bob", "evt-2")]
    report = survives_every_crash(scenario("write", wait, wait, signals=sent, invariant=came_once))

    assert report.runs > 1
    assert (report.double, report.lost, report.broken) == (0, 0, 0)


def test_an_invariant_may_raise_or_return_false() -> None:
    def raises(ending: Ending) -> None:
        raise ValueError(f"{len(ending.journal)} events")

    def says_no(_: Ending) -> bool:
        return False

    for wrong, said in ((raises, "4 events"), (says_no, "the invariant says_no does not hold")):
        with pytest.raises(DidNotSurvive, match=said) as failed:
            survives_every_crash(scenario("write"), wrong)
        assert failed.value.report.smallest is not None
        assert failed.value.report.smallest.schedule == ()


def test_nothing_deeper_is_tried_once_something_broke() -> None:
    report = fuzz(scenario("write_carelessly"), crashes=2, seconds=30)

    assert report.crashes == report.points
    assert report.seconds < 30


# What is noticed whatever the agent does.


class Counting:
    """Says the script by counting, not by looking at the run."""

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        self.asked += 1
        return [CallTool("write"), Finish("done")][self.asked - 1]


@pytest.mark.parametrize("decider", [Counting(), Counting], ids=["an object", "a factory"])
def test_a_decider_begins_each_life_as_it_was_given(decider: Any) -> None:
    with pytest.raises(DidNotSurvive, match="came to another state") as failed:
        survives_every_crash(scenario(decider=decider))

    assert failed.value.report.smallest is not None
    assert failed.value.report.smallest.deaths == ["after the commit, in the append of llm_decided of step 0"]


def test_what_a_worker_stops_with_is_told_with_its_place() -> None:
    class Confused:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
            return "write"  # type: ignore[return-value]

    with pytest.raises(DidNotSurvive, match=r"a worker stopped with BadDecision: .* \(step.py:\d+\)"):
        survives_every_crash(scenario(decider=Confused()))


def test_a_world_is_opened_in_every_life_and_closed() -> None:
    opened: list[Book] = []

    def open_book(folder: Path) -> Book:
        opened.append(Book(folder))
        return opened[-1]

    report = fuzz(scenario("write", world=open_book), sample=3)

    lives = report.crashes + report.runs
    assert len(opened) <= lives + report.runs  # and once per run for the invariant
    assert len(opened) > report.runs * 2
    assert not any(book.is_open for book in opened)


def test_a_mark_is_a_mark_whatever_it_is_called() -> None:
    class Confusing(Book):
        def write(self, line: str, *, once: bool) -> None:
            for name in ("before", "after", "before the commit"):
                crash_point(name)
            super().write(line, once=once)

    report = fuzz(scenario("write", world=Confusing), sample=1)

    assert report.kinds == {"request": 14, "commit": 12, "mark": 4}


class Stubborn(AgentRun):
    """Catches everything."""

    @tool(effect=Effect.READ)
    def catch(self) -> str:
        try:
            crash_point("in the middle")
        except BaseException:
            return "caught"
        return "caught"


def test_a_crash_that_is_caught_is_a_problem_of_its_own() -> None:
    stubborn = Scenario(agent=Stubborn, decider=ScriptedDecider([CallTool("catch"), Finish("done")]))

    with pytest.raises(DidNotSurvive, match="a worker outlived its crash in the middle, in the body of step 0"):
        survives_every_crash(stubborn)


def test_a_world_that_is_kept_in_a_variable_is_refused() -> None:
    class Forgetful:
        def __init__(self, _: Path) -> None:
            self.lines: list[str] = []

        def write(self, line: str, *, once: bool) -> None:
            self.lines.append(line)

        def effects(self) -> list[str]:
            return self.lines

    with pytest.raises(BadScenario, match="must lie in the folder, not in a variable"):
        fuzz(scenario("write", world=Forgetful))


def test_what_is_not_counted_is_not_said_to_be_none() -> None:
    class Silent:
        def __init__(self, _: Path) -> None: ...

        def write(self, line: str, *, once: bool) -> None: ...

    report = fuzz(scenario("write", world=Silent), sample=2)

    assert "effects not counted" in str(report)
    assert report.counted is False


def test_where_a_run_stands_without_a_crash_is_told_unless_it_is_done() -> None:
    report = fuzz(scenario("time_out", agent=Unsure), sample=2)

    assert "without a crash the run is waiting for doubt" in report.told()


# What is told.


def test_a_report_is_one_line_for_people_and_one_object_for_programs() -> None:
    report = fuzz(scenario("write_at_most_once"))

    line = f"{report.crashes} crashes in {report.runs} runs: 0 double, 0 lost, {report.in_doubt} in doubt"
    assert str(report) == line
    assert report.told().splitlines()[0] == line
    told = json.loads(json.dumps(report.as_dict()))
    assert {"runs", "crashes", "double", "lost", "in_doubt", "points"} <= told.keys()


def test_a_failure_tells_where_each_worker_died_what_broke_and_the_journal() -> None:
    smallest = fuzz(scenario("write_carelessly")).smallest

    assert smallest is not None
    told = str(smallest).splitlines()
    assert told[0] == (
        f"  worker 1 dies at place {smallest.schedule[0]}: it is written, in the body of step 0 (write_carelessly)"
    )
    assert told[1:3] == [
        f"  lived through again by: --at {smallest.schedule[0]}",
        "  * double: a line happened 2 times, and 1 without a crash",
    ]
    assert [json.loads(line)["type"] for line in told[4:]] == [
        "run_started",
        "llm_decided",
        "llm_decided",
        "tool_result",
        "finished",
    ]


def test_a_schedule_that_was_drawn_is_shrunk() -> None:
    class Later(Book):
        """Goes wrong only where the file is written to in a run's third life."""

        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            with (folder / "lives").open("a") as file:
                file.write("x")

    def two_workers(ending: Ending) -> bool:
        return len((ending.world.path.parent / "lives").read_text()) < 4  # two that died, the last, the invariant's

    report = fuzz(scenario("write", world=Later), two_workers, seconds=60)

    assert report.smallest is not None
    assert len(report.smallest.deaths) == 2


def test_reports_add_up() -> None:
    total = Report(runs=2, crashes=1, double=1) + Report(runs=3, crashes=2, in_doubt=4)

    assert str(total) == "3 crashes in 5 runs: 1 double, 0 lost, 4 in doubt"


# What cannot be lived through.


def test_a_scenario_that_cannot_be_lived_through_is_refused_and_says_why() -> None:
    with pytest.raises(BadScenario, match="nothing decides: pass decider="):
        Scenario(agent=Clerk)
    with pytest.raises(BadScenario, match="no subclass of AgentRun"):
        Scenario(agent=Book)  # type: ignore[arg-type]
    with pytest.raises(BadScenario, match="must be allowed to die once"):
        fuzz(scenario("write"), crashes=0)


class Uncopiable(ScriptedDecider):
    """Holds what cannot be copied."""

    def __deepcopy__(self, memo: object) -> "Uncopiable":
        raise TypeError("it holds a connection")


def test_a_decider_that_cannot_be_copied_asks_for_a_factory() -> None:
    with pytest.raises(BadScenario, match=r"it holds a connection.*Scenario\(decider=lambda"):
        survives_every_crash(scenario(decider=Uncopiable([Finish("done")])))


class Mumbler:
    """Says nothing of use first; its memory is small, and it reads what is summed up."""

    memory = Memory(cap=200, keep=0)

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
        if run.turns == 0 and not run.unusable:
            return Used(Unusable("it is empty"), said=Said("mumbler", None))
        return Finish("done") if run.turns else CallTool("read", {"words": 300})


class Reader(AgentRun):
    """Reads much."""

    decider = Mumbler()

    @tool(effect=Effect.READ)
    def read(self, words: int) -> str:
        return "word " * words


def test_a_decider_that_is_asked_again_for_a_reason_is_shown_that_reason_and_its_own_memory_counts() -> None:
    def summed_up(ending: Ending) -> None:
        assert len(ending.state.summaries) == 1

    report = survives_every_crash(Scenario(agent=Reader), summed_up)

    assert report.runs > 10
