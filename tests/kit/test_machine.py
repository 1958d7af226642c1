"""The machine: workers in any order, and a failure that is a program."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from agent_es import AgentRun, CallTool, Effect, Finish, RunStore, ScriptedDecider, Status, ToolContext, tool
from agent_es.demo import scenario as story
from agent_es.testing import PaymentProvider, RunMachine, Scenario, SteppedWorker
from agent_es.testing.machine import DidNotHold
from examples.waiting import instalments, one_booking, reminder

FEW = settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=set(Phase) - {Phase.explain},
)


class StoryMachine(RunMachine):
    """The story, with every rule."""

    scenario = story


def test_the_story_survives_workers_in_any_order() -> None:
    run_state_machine_as_test(StoryMachine, settings=FEW)


class ReminderMachine(RunMachine):
    """A mail, a payment within a week, a day's rest and a booking; the clock may go back here."""

    scenario = replace(reminder, invariant=one_booking)


class InstalmentsMachine(RunMachine):
    """Two waits beside a body that runs, and one more for the same signal."""

    scenario = instalments


@pytest.mark.parametrize("waiting", [ReminderMachine, InstalmentsMachine])
@pytest.mark.crash
def test_waits_survive_signals_workers_and_clocks_in_any_order(waiting: type[RunMachine]) -> None:
    run_state_machine_as_test(waiting, settings=FEW)


def provider(folder: Path) -> PaymentProvider:
    return PaymentProvider(folder / "provider.db")


class Careless(AgentRun):
    """Says that paying is reading."""

    @tool(effect=Effect.READ)
    def pay(self, ctx: ToolContext[PaymentProvider]) -> str:
        ctx.deps.refund("ann", Decimal(10), key=None)
        return "paid"


class CarelessMachine(RunMachine):
    """A machine that finds out."""

    scenario = Scenario(agent=Careless, decider=ScriptedDecider([CallTool("pay"), Finish("done")]), world=provider)


def test_a_failing_machine_prints_a_program_that_fails_again_when_it_is_pasted() -> None:
    # What is drawn depends on which modules are loaded; it ends where it fails, and shrinking is Hypothesis's affair.
    quickly = settings(FEW, max_examples=1_000, phases=[Phase.generate], report_multiple_bugs=False)

    with pytest.raises(DidNotHold, match=r"double: \('ann', '10\.00'\) happened") as failed:
        run_state_machine_as_test(CarelessMachine, settings=quickly)

    told = failed.value.__notes__
    program = "\n".join(told[told.index("state = CarelessMachine()") : told.index("state.teardown()") + 1])
    with pytest.raises(DidNotHold, match=r"double: \('ann', '10\.00'\) happened"):
        exec(program, {"CarelessMachine": CarelessMachine})  # noqa: S102  # pasted, as a user would


# The rules, one after the other.


@pytest.fixture
def machine() -> Any:
    """A machine of the story that is moved by hand."""
    return StoryMachine()


def move_to(machine: RunMachine, worker: SteppedWorker, place: str) -> None:
    while worker.is_alive and place not in str(worker.at):
        machine.move(worker, 1)


def types(store: RunStore) -> list[str]:
    return [entry.type for entry in store.journal("run-7f3a")]


def test_a_worker_that_was_overtaken_while_it_stood_still_thaws_and_is_refused(machine: StoryMachine) -> None:
    frozen = machine.hire()
    move_to(machine, frozen, "the money has moved")
    machine.finish(machine.hire())

    machine.finish(frozen)

    assert "LeaseLost" in repr(frozen.error)
    assert machine.world.refunds == 1
    machine.teardown()


def test_a_worker_that_lives_keeps_its_run_until_its_lease_lapses(machine: StoryMachine) -> None:
    alive, other = machine.hire(lives=True), machine.hire()
    move_to(machine, alive, "the money has moved")
    machine.finish(other)
    assert "RunHeld" in repr(other.error)

    machine.lapse()
    machine.finish(machine.hire())
    machine.finish(alive)

    assert "LeaseLost" in repr(alive.error)
    assert machine.world.refunds == 1
    machine.teardown()


def test_a_worker_whose_lease_lapsed_untaken_renews_it_and_goes_on(machine: StoryMachine) -> None:
    alive = machine.hire(lives=True)
    move_to(machine, alive, "the money has moved")

    machine.lapse()
    machine.finish(alive)

    assert alive.state is not None
    assert machine.store.record("run-7f3a").lease_token == 1
    machine.teardown()


def test_a_run_is_taken_by_force_from_a_worker_that_lives(machine: StoryMachine) -> None:
    alive = machine.hire(lives=True)
    move_to(machine, alive, "the money has moved")

    machine.finish(machine.hire(force=True))
    machine.finish(alive)

    assert "LeaseLost" in repr(alive.error)
    assert machine.world.refunds == 1
    machine.teardown()


def test_a_worker_whose_clock_is_wrong_steals_nothing(machine: StoryMachine) -> None:
    alive = machine.hire(lives=True)
    move_to(machine, alive, "the money has moved")

    for wrong in (3_600.0, -3_600.0):
        other = machine.hire(wrong=wrong)
        machine.finish(other)
        assert "RunHeld" in repr(other.error)

    machine.finish(alive)
    assert alive.state is not None
    machine.teardown()


def test_workers_that_are_killed_leave_their_work_to_the_next(machine: StoryMachine) -> None:
    for places in (6, 9, 12):
        worker = machine.hire()
        machine.move(worker, places)
        machine.crash(worker)

    machine.teardown()


@pytest.mark.parametrize("fault", ["busy", "disk_full", "lost_answer"])
def test_a_store_that_fails_at_a_commit_stops_the_worker_or_is_overcome(fault: Any, machine: StoryMachine) -> None:
    worker = machine.hire()
    machine.move(worker, 6)
    before = types(machine.store)

    machine.fail_storage(worker, fault, 60)

    if fault == "busy":
        assert "StoreBusy" in repr(worker.error)
        assert types(machine.store) == before
    else:
        assert worker.state is not None
        assert types(machine.store)[-1] == "finished"
    machine.teardown()


def test_the_clock_may_go_back(machine: StoryMachine) -> None:
    worker = machine.hire()
    machine.move(worker, 12)
    machine.move_clock(-3_000)
    machine.finish(worker)

    times = [entry.at for entry in machine.store.journal("run-7f3a")]
    assert times != sorted(times)
    machine.teardown()


class Once(AgentRun):
    """Pays, and cannot be asked whether it did."""

    @tool(effect=Effect.AT_MOST_ONCE)
    def pay(self, ctx: ToolContext[PaymentProvider]) -> str:
        ctx.deps.refund("ann", Decimal(10), key=None)
        return "paid"


def look(store: RunStore, state: Any, world: PaymentProvider) -> None:
    for step in state.doubts:
        store.settle(
            state.run_id, step.idx, "happened" if world.effects() else "did_not_happen", by="person", result="paid"
        )


class SettledMachine(RunMachine):
    """A machine with an act of its own."""

    scenario = Scenario(agent=Once, decider=ScriptedDecider([CallTool("pay"), Finish("done")]), world=provider)
    acts: ClassVar[dict[str, Callable[..., object]]] = {**RunMachine.acts, "look": look}  # type: ignore[assignment]


def test_people_act_on_the_run_between_the_moves() -> None:
    machine = SettledMachine()
    first = machine.hire()
    move_to(machine, first, "the money has moved")
    machine.crash(first)
    machine.finish(machine.hire())
    assert [step.status for step in machine.store.load("run-1").steps] == ["in_doubt"]

    machine.act("look")

    assert [step.status for step in machine.store.load("run-1").steps] == ["done"]
    machine.teardown()
    assert not machine.folder.exists()


def test_what_people_may_not_do_is_no_problem(machine: StoryMachine) -> None:
    machine.act("requeue")
    machine.finish(machine.hire())
    machine.act("requeue")
    machine.teardown()


# One worker, step by step.


def test_a_stepped_worker_stands_where_it_is_told_to() -> None:
    machine = StoryMachine()
    worker = machine.hire()

    machine.move(worker, 1)
    assert str(worker.at) == "before the commit, in the start of the run"
    machine.move(worker, 3)
    assert worker.at is not None
    assert worker.at.n == 4
    assert worker.is_alive
    machine.finish(worker)

    assert not worker.is_alive
    assert worker.state is not None
    assert worker.state.answer == "Refund of $180.00 for ORD-3300 is complete."
    machine.teardown()


def test_a_worker_that_never_began_can_die() -> None:
    worker = SteppedWorker(lambda life: pytest.fail("it lived"))

    worker.die()

    assert not worker.is_alive


# What a run waits for.


@pytest.fixture
def waiting() -> Any:
    """A machine whose run waits for a payment: the mail is out, and the life of its worker has ended."""
    machine = ReminderMachine()
    worker = machine.hire()
    machine.finish(worker)
    assert worker.state is not None
    assert worker.state.waiting_for == "signal"
    return machine


PAID = reminder.signals[0]


def woken(machine: RunMachine) -> list[str]:
    """Return what ended the waits of the run so far."""
    return [entry.data["reason"] for entry in machine.store.journal("run-1") if entry.type == "wait_ended"]


def test_a_life_ends_where_its_run_waits_for_long_and_nobody_holds_it(waiting: RunMachine) -> None:
    record = waiting.store.record("run-1")

    assert (record.status, record.lease_owner) == (Status.WAITING, None)
    waiting.finish(waiting.hire())
    assert woken(waiting) == []
    waiting.teardown()


def test_who_comes_after_the_signal_finds_it(waiting: RunMachine) -> None:
    waiting.signal(PAID)
    waiting.signal(PAID)

    waiting.finish(waiting.hire())

    assert woken(waiting) == ["signal"]
    assert waiting.store.load("run-1").waiting_for == "clock"
    waiting.teardown()


def test_a_signal_that_comes_before_the_wait_is_kept_for_it() -> None:
    machine = ReminderMachine()
    machine.signal(PAID)  # nobody is there yet
    worker = machine.hire()
    move_to(machine, worker, "it has happened")
    machine.signal(PAID)

    machine.finish(worker)

    assert woken(machine) == ["signal"]
    machine.teardown()


def test_who_comes_after_the_time_finds_it_past(waiting: RunMachine) -> None:
    waiting.move_clock(3_600)
    waiting.finish(waiting.hire())
    assert woken(waiting) == []

    waiting.sleep()
    waiting.finish(waiting.hire())
    waiting.sleep()
    waiting.finish(waiting.hire())

    assert woken(waiting) == ["clock", "clock"]
    assert waiting.store.load("run-1").status is Status.DONE
    waiting.teardown()


def test_a_clock_that_goes_back_ends_no_wait_again(waiting: RunMachine) -> None:
    waiting.sleep()
    waiting.finish(waiting.hire())

    waiting.move_clock(-3_600)
    waiting.finish(waiting.hire())

    assert woken(waiting) == ["clock"]
    waiting.teardown()


def test_the_last_worker_finds_every_signal_and_sleeps_for_as_long_as_it_takes() -> None:
    for machine in (ReminderMachine(), InstalmentsMachine()):
        machine.finish(machine.hire())

        machine.teardown()  # it raises where the run does not come to its end


def test_what_comes_for_a_run_that_is_over_is_no_problem(waiting: RunMachine) -> None:
    for _ in range(2):
        waiting.sleep()
        waiting.finish(waiting.hire())

    waiting.signal(PAID)

    waiting.teardown()


def test_a_row_that_does_not_know_of_the_signal_is_a_problem_told_with_the_journal(waiting: RunMachine) -> None:
    waiting.signal(PAID)
    with waiting.store.recorder.datastore.writing() as connection:
        connection.execute("UPDATE agent_es_runs SET status = 'waiting', waiting_for = 'signal'")
    worker = waiting.hire()

    with pytest.raises(DidNotHold, match=r"the row of the run says waiting, signal") as failed:
        waiting.move(worker, 1)

    assert '"type": "signal_received"' in str(failed.value)
    worker.die()
    waiting.store.close()
