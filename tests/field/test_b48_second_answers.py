"""B48: of two decisions one counts, whatever moment they come at; who comes second, late or to nothing is told so.

Run as a program, this file is a process that decides about many runs, each as soon as it is told to, or a worker that
dies when the money has moved.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Literal

import pytest

from agent_es import (
    AgentRun,
    Approval,
    Ask,
    Decision,
    Envelope,
    Finish,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    Worker,
    tool,
)
from agent_es.errors import AnswerConflict, BadAnswer, RunNotFound
from agent_es.testing import Crash, CrashingRunner, MovableClock, PaymentProvider

ROUNDS = 60
ASKED = Envelope(needs_approval=["pay"])
FOUR_EYES = Envelope(needs_approval=[Approval(call="pay", people=2)])
DECISIONS = ("approval_granted", "approval_denied")


class Payer(AgentRun):
    """Pays somebody."""

    @tool(effect="idempotent")
    def pay(self, ctx: ToolContext[PaymentProvider], to: str) -> dict[str, str]:
        return ctx.deps.refund(to, Decimal(10), key=ctx.idempotency_key)


class Model:
    """Pays, once, or asks whether to."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        self.asked.append(run.turns)
        if run.turns:
            return Finish("paid")
        return Ask("pay?") if run.input == "ask" else Payer.pay.call(to=run.run_id)


@pytest.fixture
def open_store(url: str) -> Iterator[Callable[[], RunStore]]:
    """Opens the store anew at each call, as a process that was restarted does."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(RunStore(url))


@pytest.fixture
def store(open_store: Callable[[], RunStore]) -> RunStore:
    return open_store()


def parked(
    store: RunStore,
    provider: PaymentProvider,
    run_id: str = "run-1",
    *,
    envelope: Envelope | None = ASKED,
    how: str | None = None,
) -> RunState:
    runner = Runner(store, Model(), deps=provider, max_wait=0)
    return runner.run(Payer, run_id=run_id, goal="pay", input=how, envelope=envelope)


def decisions(store: RunStore, run_id: str) -> list[str]:
    return [entry.type for entry in store.journal(run_id) if entry.type in (*DECISIONS, "question_answered")]


# At the same moment, from two processes.


class Person:
    """Another process, which decides as soon as it is told to."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "decide"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def says(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()

    @property
    def got(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def two_people() -> Iterator[tuple[Person, Person]]:
    with ExitStack() as open_:
        two = Person(), Person()
        for person in two:
            open_.callback(person.close)
        yield two


@pytest.fixture
def people(two_people: tuple[Person, Person], url: str) -> tuple[Person, Person]:
    RunStore(url).close()  # the tables are there before anybody comes
    for person in two_people:
        person.says("open", url, "-")
    assert [person.got for person in two_people] == ["done", "done"]
    return two_people


def at_once(people: tuple[Person, Person], round_: int, first: tuple[str, ...], second: tuple[str, ...]) -> list[str]:
    """Let both decide at the same moment, taking turns at being told first; return what each got."""
    said = [(people[0], first), (people[1], second)]
    for person, words in said[:: 1 if round_ % 2 else -1]:
        person.says(*words)
    return [people[0].got, people[1].got]


def test_of_a_yes_and_a_no_at_once_one_is_recorded_and_the_other_is_a_conflict(
    people: tuple[Person, Person], store: RunStore, provider: PaymentProvider
) -> None:
    winners: list[str] = []
    run_ids = [f"run-{n}" for n in range(ROUNDS)]
    for run_id in run_ids:
        parked(store, provider, run_id)

    for n, run_id in enumerate(run_ids):
        got = at_once(people, n, ("approve", run_id, "ann"), ("deny", run_id, "bob"))

        assert sorted(got) == ["AnswerConflict", "done"]
        winners.append(DECISIONS[got.index("done")])
        assert decisions(store, run_id) == winners[-1:]

    Worker(store, agents=[Payer], decider=Model(), deps=provider).run(until_idle=True)
    yes = [run_id for run_id, winner in zip(run_ids, winners, strict=True) if winner == "approval_granted"]
    assert 0 < len(yes) < ROUNDS
    assert provider.ledger == dict.fromkeys(provider.ledger, "10.00")
    assert sorted(provider.ledger) == sorted(yes)
    assert {store.record(run_id).status for run_id in run_ids} == {Status.DONE}


@pytest.mark.parametrize(
    ("envelope", "how", "words", "recorded"),
    [
        (ASKED, None, ("approve",), "approval_granted"),
        (FOUR_EYES, None, ("approve",), "approval_granted"),
        (None, "ask", ("answer",), "question_answered"),
    ],
    ids=["approve", "approve with four eyes", "answer"],
)
def test_a_double_click_is_one_decision_and_a_conflict(
    envelope: Envelope | None,
    how: str | None,
    words: tuple[str],
    recorded: str,
    people: tuple[Person, Person],
    store: RunStore,
    provider: PaymentProvider,
) -> None:
    for n in range(ROUNDS // 4):
        run_id = f"run-{n}"
        parked(store, provider, run_id, envelope=envelope, how=how)

        got = at_once(people, n, (*words, run_id, "ann"), (*words, run_id, "ann"))

        assert sorted(got) == ["AnswerConflict", "done"]
        assert decisions(store, run_id) == [recorded]

    Worker(store, agents=[Payer], decider=Model(), deps=provider).run(until_idle=True)
    assert provider.refunds == (ROUNDS // 4 if envelope is ASKED else 0)
    if envelope is FOUR_EYES:
        assert {item.approved_by for item in store.inbox()} == {("ann",)}


def test_two_who_say_yes_at_once_are_four_eyes(
    people: tuple[Person, Person], store: RunStore, provider: PaymentProvider
) -> None:
    for n in range(ROUNDS // 4):
        run_id = f"run-{n}"
        parked(store, provider, run_id, envelope=FOUR_EYES)

        got = at_once(people, n, ("approve", run_id, "ann"), ("approve", run_id, "bob"))

        assert got == ["done", "done"]
        assert decisions(store, run_id) == ["approval_granted", "approval_granted"]

    Worker(store, agents=[Payer], decider=Model(), deps=provider).run(until_idle=True)
    assert (provider.refunds, store.inbox()) == (ROUNDS // 4, [])


# A second time.


@pytest.mark.parametrize("then", ["at once", "when the call was made", "when the run is done"])
def test_whoever_clicks_again_hears_who_was_first_and_the_body_runs_once(
    then: str, store: RunStore, provider: PaymentProvider
) -> None:
    parked(store, provider)
    store.approve("run-1", 0, by="ann")
    if then != "at once":
        runner = Runner(store, Model(), deps=provider, agents=[Payer])
        (runner.step if then == "when the call was made" else runner.resume)("run-1")
    before = store.load("run-1")

    for again in (store.approve, store.deny):
        with pytest.raises(AnswerConflict, match="approved by ann"):
            again("run-1", 0, by="bob")

    assert store.load("run-1") == before
    state = Runner(store, Model(), deps=provider, agents=[Payer]).resume("run-1")
    assert (state.status, provider.refunds, decisions(store, "run-1")) == (Status.DONE, 1, ["approval_granted"])


def test_a_yes_after_a_no_is_refused_and_names_the_no(store: RunStore, provider: PaymentProvider) -> None:
    parked(store, provider)
    store.deny("run-1", 0, by="bob", reason="too much")

    with pytest.raises(AnswerConflict, match="denied by bob: too much"):
        store.approve("run-1", 0, by="ann")

    state = parked(store, provider)
    assert (state.status, provider.refunds, decisions(store, "run-1")) == (Status.DONE, 0, ["approval_denied"])


# To nothing that waits.


@pytest.mark.parametrize("run_id", ["feed" * 8, "run-2", "5b0b6a0e-7d6a-4c3e-9f0e-2a4b8c1d3e5f", " run-1"])
def test_a_decision_for_a_run_that_is_not_there_is_an_error(
    run_id: str, store: RunStore, provider: PaymentProvider
) -> None:
    before = parked(store, provider)

    for decide in deciding(store, run_id, 0):
        with pytest.raises(RunNotFound, match=run_id):
            decide()

    assert (store.load("run-1"), store.count(), provider.refunds) == (before, 1, 0)


@pytest.mark.parametrize("idx", [1, 7, -1, 2**63])
def test_a_decision_for_a_step_that_is_not_there_is_an_error_and_no_answer_to_another(
    idx: int, store: RunStore, provider: PaymentProvider
) -> None:
    before = parked(store, provider)

    for decide in deciding(store, "run-1", idx):
        with pytest.raises(BadAnswer, match="has no step"):
            decide()

    assert (parked(store, provider), len(store.inbox()), provider.refunds) == (before, 1, 0)


def deciding(store: RunStore, run_id: str, idx: int) -> list[Callable[[], object]]:
    return [
        lambda: store.approve(run_id, idx, by="ann"),
        lambda: store.deny(run_id, idx, by="ann"),
        lambda: store.answer(run_id, idx, "yes", by="ann"),
        lambda: store.approve(run_id, idx, by="ann", args={"to": "ann"}, agent=Payer),
    ]


# Late.


@pytest.mark.parametrize("late_by", [1, 0], ids=["journaled", "nobody came by"])
@pytest.mark.parametrize("then", ["deny", "park"])
def test_a_decision_that_comes_when_the_time_is_over_is_refused(
    then: Literal["deny", "park"], late_by: float, url: str, provider: PaymentProvider
) -> None:
    clock = MovableClock()
    envelope = Envelope(needs_approval=[Approval(call="pay", within=timedelta(minutes=5), then=then)])
    with RunStore(url, clock=clock) as store:
        parked(store, provider, envelope=envelope)
        clock.move(5 * 60)
        if late_by:
            state = parked(store, provider)
            assert state.status is (Status.DONE if then == "deny" else Status.WAITING)
        clock.move(late_by)

        for decide in deciding(store, "run-1", 0):
            with pytest.raises((AnswerConflict, BadAnswer)):
                decide()
        with pytest.raises(AnswerConflict):
            store.approve("run-1", 0, by="ann")

        state = parked(store, provider)
        assert [(step.status, step.error and step.error["by"]) for step in state.steps] == [("failed", "the clock")]
        assert (decisions(store, "run-1"), provider.refunds) == (["approval_denied"], 0)
        assert [item.kind for item in store.inbox()] == (["parked"] if then == "park" else [])


def test_a_decision_in_the_last_moment_counts(url: str, provider: PaymentProvider) -> None:
    clock = MovableClock()
    envelope = Envelope(needs_approval=[Approval(call="pay", within=timedelta(minutes=5))])
    with RunStore(url, clock=clock) as store:
        parked(store, provider, envelope=envelope)
        clock.move(5 * 60 - 0.001)
        store.approve("run-1", 0, by="ann")
        clock.move(60)

        state = parked(store, provider)

        assert (state.status, provider.refunds) == (Status.DONE, 1)


# The worker dies.


def test_a_worker_that_dies_after_the_effect_leaves_no_new_question_and_the_next_sends_the_same_key(
    url: str, open_store: Callable[[], RunStore], tmp_path: Path, provider: PaymentProvider
) -> None:
    store, model = open_store(), Model()
    parked(store, provider)
    store.approve("run-1", 0, by="ann")

    died = subprocess.run([sys.executable, __file__, "die", url, provider.path], check=False, timeout=60)

    assert (died.returncode, provider.refunds) == (-signal.SIGKILL, 1)
    assert (open_store().inbox(), open_store().load("run-1").steps[0].status) == ([], "started")
    state = Runner(open_store(), model, deps=provider, agents=[Payer]).resume("run-1")
    assert (state.status, state.steps[0].attempt, model.asked) == (Status.DONE, 2, [1])
    assert (provider.keystore, provider.ledger) == ({"run-1:0:pay": 2}, {"run-1": "10.00"})
    assert [entry.type for entry in store.journal("run-1")].count("approval_requested") == 1
    assert decisions(store, "run-1") == ["approval_granted"]


def test_a_yes_is_asked_for_once_and_used_once_wherever_a_worker_dies(store: RunStore, tmp_path: Path) -> None:
    at, is_dying = 0, True

    while is_dying:
        at += 1
        run_id, provider, told = f"run-{at}", PaymentProvider(tmp_path / f"provider-{at}.db"), list[int | None]()
        parked(store, provider, run_id)
        store.notify_people(lambda item, told=told: told.append(item.idx))  # type: ignore[misc]
        store.approve(run_id, 0, by="ann")
        try:
            CrashingRunner(store, Model(), deps=provider, agents=[Payer], at=at).resume(run_id)
        except Crash:
            assert store.inbox() == [], f"killed at place {at}"
        else:
            is_dying = False
        state = Runner(store, Model(), deps=provider, agents=[Payer]).resume(run_id)
        store.notify_people(lambda item, told=told: told.append(item.idx))  # type: ignore[misc]

        assert (state.status, provider.refunds, told) == (Status.DONE, 1, [0]), f"killed at place {at}"
        assert [*provider.keystore] == [f"{run_id}:0:pay"]
        assert decisions(store, run_id) == ["approval_granted"]

    assert at > 10


# The processes.


@contextmanager
def telling() -> Iterator[None]:
    """Say what came of it."""
    try:
        yield
    except AnswerConflict as conflict:
        print(type(conflict).__name__, flush=True)  # noqa: T201  # the test reads it
    else:
        print("done", flush=True)  # noqa: T201


def decide() -> None:
    with ExitStack() as opened:
        for line in sys.stdin:
            what, run_id, by = line.split()  # of what is opened, its address
            with telling():
                match what:
                    case "open":
                        store = opened.enter_context(RunStore(run_id))
                        store.count()
                    case "approve":
                        store.approve(run_id, 0, by=by)
                    case "deny":
                        store.deny(run_id, 0, by=by)
                    case "answer":
                        store.answer(run_id, 0, "yes", by=by)


def die_with_the_money_moved(url: str, path: str) -> None:
    provider = PaymentProvider(path, after_commit=lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with RunStore(url) as store:
        Runner(store, Model(), deps=provider, agents=[Payer]).resume("run-1")


if __name__ == "__main__":
    {"decide": decide, "die": die_with_the_money_moved}[sys.argv[1]](*sys.argv[2:])
