"""Budgets under crashes, and shared by runs that are moved side by side: no more is spent than was set aside."""

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Finish,
    Runner,
    RunState,
    RunStore,
    StartChild,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.decider import Answered, Used
from agent_es.envelope import Budget, Envelope, Usage
from agent_es.errors import AgentError
from agent_es.store.spending import NANOS
from agent_es.testing import Crash, CrashingRunner, Ending, PaymentProvider, Scenario

EACH = Usage(tokens=100, cost=Decimal("0.05"))
QUESTIONS, CRASHES = 50, 200


class Looks(AgentRun):
    """Looks things up."""

    @tool(effect="read")
    def look(self) -> int:
        return 1


class Asked:
    """A model that takes a different number of tokens each time, and is paid whether its answer arrives or not."""

    def __init__(self, questions: int) -> None:
        self.questions = questions
        self.paid = 0
        self._random = random.Random(questions)  # noqa: S311  # to be told again
        self._lock = threading.Lock()

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
        with self._lock:
            tokens = self._random.randint(20, EACH.tokens)
            self.paid += tokens
        decision = CallTool("look") if run.turns < self.questions - 1 else Finish(run.turns)
        return Used(decision, tokens=tokens, cost=Decimal(tokens) / 10_000)


def recorded(store: RunStore, run_id: str) -> tuple[int, Decimal]:
    """Return what the journal says that was used."""
    used = [entry.data for entry in store.journal(run_id) if entry.type == "usage_recorded"]
    return sum(usage["tokens"] for usage in used), sum((Decimal(usage["cost"]) for usage in used), Decimal(0))


def spent(store: RunStore, run_id: str) -> dict[str, int]:
    """Return what the store has counted for a run's budget."""
    found = store.recorder.select("SELECT run_id, what, amount FROM agent_es_spending", ())
    return {what: amount for owner, what, amount in found if owner == run_id}


@pytest.mark.parametrize("seed", range(2))
def test_a_run_of_fifty_questions_that_crashes_two_hundred_times_forgets_no_token_and_pays_none_twice(
    url: str, seed: int
) -> None:
    draw, crashes = random.Random(seed), 0  # noqa: S311  # to be told again
    model = Asked(QUESTIONS)
    envelope = Envelope(budget=Budget(tokens=100_000, cost=Decimal(50), each=EACH))

    with RunStore(url) as store:
        state = store.start(Looks, run_id="run-1", goal="look", envelope=envelope)
        while not state.is_over:
            at = draw.randint(1, 14) if crashes < CRASHES else None
            try:
                state = CrashingRunner(store, model, agents=[Looks], at=at, seed=crashes).resume("run-1")
            except Crash:
                crashes += 1

        tokens, cost = recorded(store, "run-1")
        assert crashes == CRASHES
        assert (state.status, state.answer, state.reserved) == (Status.DONE, QUESTIONS - 1, None)
        assert (state.tokens, state.cost) == (tokens, cost)
        assert spent(store, "run-1") == {"tokens": tokens, "cost": int(cost * NANOS)}
        assert model.paid <= tokens  # what nobody knows counts as all that was set aside
        counted = spent(store, "run-1")
        store.rebuild()
        assert spent(store, "run-1") == counted


def test_a_budget_is_never_passed_by_more_than_what_is_set_aside_wherever_the_run_crashes(url: str) -> None:
    draw, model = random.Random(7), Asked(QUESTIONS)  # noqa: S311  # to be told again
    envelope = Envelope(budget=Budget(tokens=1_000, cost=Decimal(50), each=EACH))

    with RunStore(url) as store:
        state = store.start(Looks, run_id="run-1", goal="look", envelope=envelope)
        while state.waiting_for != "person":
            try:
                runner = CrashingRunner(store, model, agents=[Looks], at=draw.randint(1, 14))
                state = runner.resume("run-1")
            except Crash:
                state = store.load("run-1")
            assert state.tokens + (state.reserved or (0, 0))[0] <= 1_000
            assert spent(store, "run-1")["tokens"] <= 1_000 if state.version > 1 else True

        assert model.paid <= 1_000
        assert "of 1000 tokens, and 100 more were to be set aside" in (state.parked or "")
        assert spent(store, "run-1")["tokens"] == state.tokens + (state.reserved or (0, 0))[0] > 1_000 - EACH.tokens


class Parent(AgentRun):
    """Starts three that look."""


class Family(Asked):
    """Of a parent and three children."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
        if run.agent == "Looks":
            return super().decide(run, tools)
        if not run.steps:
            return Used([StartChild(Looks, f"look {n}") for n in range(3)], tokens=10)
        return Used(Finish([step.result["answer"] for step in run.steps]), tokens=10)


@pytest.mark.parametrize("limit", [700, 5_000])
def test_three_children_that_are_moved_side_by_side_share_what_their_parent_may_spend(url: str, limit: int) -> None:
    model = Family(12)
    envelope = Envelope(budget=Budget(tokens=limit, each=EACH, calls={"look": 30}))
    with RunStore(url) as store:
        store.start(Parent, run_id="run-1", goal="look", envelope=envelope)
        Runner(store, model, agents=[Parent, Looks]).step("run-1")

    def move(child: str) -> None:
        with RunStore(url) as own:
            Runner(own, model, agents=[Parent, Looks]).resume(child)

    children = [f"run-1.{n}" for n in range(3)]
    threads = [threading.Thread(target=move, args=[child]) for child in children]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with RunStore(url) as store:
        states = [store.load(run_id) for run_id in ("run-1", *children)]
        used = sum(state.tokens for state in states)
        looked = sum(state.called.get("look", 0) for state in states)
        assert used == sum(recorded(store, state.run_id)[0] for state in states)
        assert spent(store, "run-1")["tokens"] == used <= limit
        assert spent(store, "run-1")["calls of look"] == looked <= 30
        assert model.paid <= used
        why = [state.parked for state in states[1:] if state.parked]
        assert why, "three times eleven calls are more than thirty"
        assert all("of run run-1 and those that it started" in reason or "calls of look" in reason for reason in why)
        if limit == 700:
            assert used > limit - EACH.tokens
        before = spent(store, "run-1")
        store.rebuild()
        assert spent(store, "run-1") == before


@pytest.mark.parametrize("limit", [0, 1_000, 1_800])
def test_a_budget_of_which_nothing_is_set_aside_ends_where_it_is_spent(tmp_path: Path, limit: int) -> None:
    class Dear:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
            return Used(CallTool("look") if run.turns < 9 else Finish("?"), tokens=900)

    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        envelope = Envelope(budget=Budget(tokens=limit))
        state = Runner(store, Dear()).run(Looks, run_id="run-1", goal="look", envelope=envelope)

        assert state.waiting_for == "person"
        assert state.tokens == (0 if limit == 0 else 1_800)
        assert f"{state.tokens} of {limit} tokens" in (state.parked or "")


def test_what_a_question_took_beyond_what_was_set_aside_counts_all_the_same(tmp_path: Path) -> None:
    class Dear:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
            return Used(CallTool("look"), tokens=900)

    envelope = Envelope(budget=Budget(tokens=1_000, each=EACH))
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        state = Runner(store, Dear()).run(Looks, run_id="run-1", goal="look", envelope=envelope)

        assert (state.tokens, state.turns, state.waiting_for) == (1_800, 2, "person") or state.tokens == 900
        assert spent(store, "run-1")["tokens"] == state.tokens


def test_what_is_used_is_recorded_without_a_budget_too(tmp_path: Path) -> None:
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        state = Runner(store, Asked(3)).run(Looks, run_id="run-1", goal="look")

        assert state.tokens == recorded(store, "run-1")[0] > 0
        assert spent(store, "run-1") == {}


def test_a_decision_that_took_no_number_of_tokens_is_refused(tmp_path: Path) -> None:
    class Odd:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
            return Used(Finish("ok"), tokens=-3)

    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        with pytest.raises(AgentError, match="a decision took -3 tokens"):
            Runner(store, Odd()).run(Looks, run_id="run-1", goal="look")
        assert store.load("run-1").version == 1


def test_what_a_bad_decision_took_is_recorded_though_nothing_follows_from_it(tmp_path: Path) -> None:
    class Odd:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
            return Used("look around", tokens=30)  # type: ignore[arg-type]  # what a model may say

    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        with pytest.raises(AgentError, match="the decider returned 'look around'"):
            Runner(store, Odd()).run(Looks, run_id="run-1", goal="look")
        assert (store.load("run-1").tokens, store.load("run-1").turns) == (30, 0)


def test_what_a_decision_took_is_recorded_once_where_a_key_of_it_is_held_by_another_step(tmp_path: Path) -> None:
    class Pays(AgentRun):
        """Pays each order once."""

        @tool(effect="idempotent", key="{order}:pay")
        def pay(self, order: str) -> str:
            return order

    class Twice:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
            return Used(CallTool("pay", {"order": "ORD-1"}) if run.turns < 2 else Finish("ok"), tokens=10)

    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        state = Runner(store, Twice()).run(Pays, run_id="run-1", goal="pay")

        assert [step.status for step in state.steps] == ["done", "failed"]
        assert (state.tokens, recorded(store, "run-1")[0]) == (30, 30)


class Careful(AgentRun):
    """Refunds within limits."""

    @tool(effect="idempotent")
    def refund(self, ctx: ToolContext[PaymentProvider], amount: int) -> str:
        return ctx.deps.refund("ORD-1", Decimal(amount), key=ctx.idempotency_key)["refund_id"]


class Greedy:
    """Asks for too much, then for less, then for one too many; is paid each time."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
        calls = [[refund(900), refund(150)], [refund(50)], [refund(20)]]
        return Used(calls[run.turns] if run.turns < len(calls) else Finish(len(run.steps)), tokens=60)


def refund(amount: int) -> CallTool:
    return CallTool("refund", {"amount": amount})


def no_more_than_allowed(ending: Ending) -> None:
    assert [step.status for step in ending.state.steps] == ["failed", "done", "done", "failed"]
    used = [entry.data["tokens"] for entry in ending.journal if entry.type == "usage_recorded"]
    assert ending.state.tokens == sum(used) >= 4 * 60


ENVELOPE = Envelope(
    limits={"refund.amount": "<= 200"}, budget=Budget(calls={"refund": 2}, tokens=5_000, each=Usage(tokens=100))
)
GREEDY = Scenario(
    agent=Careful,
    decider=Greedy(),
    world=lambda folder: PaymentProvider(folder / "provider.db"),
    envelope=ENVELOPE,
    invariant=no_more_than_allowed,
)


@pytest.mark.crash
def test_an_envelope_holds_wherever_a_worker_dies(crash_kit: Any) -> None:
    report = crash_kit.survives(GREEDY)

    assert report.crashes > 30
    assert (report.double, report.lost) == (0, 0)


@pytest.mark.exhaustive
def test_an_envelope_holds_where_two_workers_die_at_places_that_are_drawn(crash_kit: Any) -> None:
    assert replace(crash_kit, points="sample", size=600).survives(GREEDY, crashes=2).double == 0


@pytest.mark.exhaustive
def test_an_envelope_holds_wherever_two_workers_die(crash_kit: Any) -> None:
    assert crash_kit.survives(GREEDY, crashes=2).double == 0
