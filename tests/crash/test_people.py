"""The story with a limit, wherever a worker dies: without a yes no refund ever, with one exactly one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from agent_es import Step
from agent_es.testing import RunMachine, Scenario, on_postgres, survives_every_act, survives_every_fault
from agent_es.testing.rivals import Act
from agent_es.testing.scenario import anything
from examples import approving, every_effect, waiting
from examples.approving import given, only_with_a_yes

SCENARIOS: Mapping[str, Scenario] = {
    name: value for name, value in vars(approving).items() if isinstance(value, Scenario)
}

CRASH, EXHAUSTIVE = pytest.mark.crash, pytest.mark.exhaustive
EVERYTHING: Mapping[str, Scenario] = {
    "errands": every_effect.errands,
    "crowd": every_effect.crowd,
    "instalments": waiting.instalments,
}

FEW = settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=set(Phase) - {Phase.explain},
)


@pytest.fixture(scope="module")
def moved(database: str, request: pytest.FixtureRequest) -> Any:
    """Returns a scenario with its runs on the database that the test is for."""
    if database == "sqlite":
        return lambda scenario: scenario
    server = request.getfixturevalue("server")
    return lambda scenario: replace(scenario, url=on_postgres(server.url))


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_a_person_says_counts_once_wherever_a_worker_dies(name: str, moved: Any, crash_kit: Any) -> None:
    report = replace(crash_kit, size=12).survives(moved(SCENARIOS[name]))

    assert report.crashes
    assert (report.double, report.lost, report.in_doubt, report.calm) == (0, 0, 0, "done")


@pytest.mark.crash
@pytest.mark.parametrize("name", SCENARIOS)
def test_so_it_does_where_the_next_worker_dies_too(name: str, crash_kit: Any) -> None:
    report = replace(crash_kit, points="sample", size=50).survives(SCENARIOS[name], crashes=2)

    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCENARIOS)
def test_so_it_does_wherever_two_workers_die(name: str, crash_kit: Any) -> None:
    report = crash_kit.survives(SCENARIOS[name], crashes=2)

    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=CRASH if name == "approved" else EXHAUSTIVE) for name in SCENARIOS]
)
def test_so_it_does_where_the_process_of_the_worker_is_killed(name: str, crash_kit: Any) -> None:
    report = crash_kit.survives_kills(f"examples.approving:{name}")

    assert report.crashes
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


@pytest.mark.parametrize("name", ["approved", "edited"])
def test_so_it_does_where_the_store_fails(name: str) -> None:
    survives_every_fault(SCENARIOS[name])


ACTS: Mapping[str, Mapping[str, Act]] = {
    "steered": {"act": lambda store, run_id: store.steer(run_id, "be careful", by="ann")},
    "paused": {
        "act": lambda store, run_id: store.pause(run_id, by="ann"),
        "then": lambda store, run_id: store.resume(run_id, by="ann"),
    },
    "approved before it is asked": {"act": lambda store, run_id: store.approve(run_id, 1, by="ann")},
    "cancelled": {"act": lambda store, run_id: store.cancel(run_id, by="ann")},
    "undone": {"act": lambda store, run_id: store.cancel(run_id, by="ann", compensate=True)},
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what == "approved before it is asked" else CRASH) for what in ACTS]
)
def test_somebody_acts_wherever_a_worker_stands_and_nothing_is_refunded_without_a_yes_or_twice(what: str) -> None:
    report = survives_every_act(approving.approved, **ACTS[what], invariant=only_with_a_yes)

    assert report.crashes > 20
    assert report.double == 0
    assert (report.in_doubt > 0) == (what == "cancelled")  # in the middle of a call


@pytest.mark.parametrize(
    ("what", "name"),
    [
        pytest.param(what, name, marks=CRASH if (what, name) == ("undone", "errands") else EXHAUSTIVE)
        for what in ("steered", "paused", "cancelled", "undone")
        for name in EVERYTHING
    ],
)
def test_so_they_do_where_a_run_has_tools_of_every_effect_and_waits(what: str, name: str) -> None:
    survives_every_act(EVERYTHING[name], **ACTS[what], invariant=anything)


class ApprovalMachine(RunMachine):
    """The story with a limit, and people who say this and that while workers die."""

    scenario: ClassVar[Scenario] = replace(approving.approved, invariant=only_with_a_yes)
    says_no = True

    def given(self, step: Step) -> Mapping[str, Any]:
        """Return the arguments with a smaller sum."""
        return given(step)


def test_people_and_workers_in_any_order_refund_nothing_without_a_yes_and_nothing_twice() -> None:
    run_state_machine_as_test(ApprovalMachine, settings=FEW)


@pytest.mark.exhaustive
def test_so_they_do_five_hundred_times() -> None:
    run_state_machine_as_test(ApprovalMachine, settings=settings(FEW, max_examples=500, stateful_step_count=20))


def test_the_machine_has_said_all_that_people_can_say() -> None:
    """One program by hand, so that no rule is one that never does anything."""
    machine = ApprovalMachine()
    worker = machine.hire()
    while not machine.store.load("run-1").gated if machine.store.count() else True:
        machine.move(worker, 1)
    worker.die()

    machine.pause("ann")
    machine.approve("dana", twice=True)
    machine.edit("ann")
    machine.steer("dana", "be careful")
    machine.resume("ann")
    machine.approve("dana")
    machine.deny("ann")
    types = [entry.type for entry in machine.store.journal("run-1")]
    machine.teardown()

    assert types.count("approval_granted") == 3
    assert {"paused", "resumed", "steered"} <= {*types}
    assert "approval_denied" not in types
