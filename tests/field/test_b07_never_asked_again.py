"""B07: a resume acts on the decision that is in the journal and does not ask the model for another.

Run as a program, this file is the worker that dies at the request that it is told.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Envelope,
    Finish,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.testing import CrashingRunner, CrashPoint, FrozenClock, PaymentProvider, sigkill

RUN_ID = "run-1"
MUST_BE_APPROVED = Envelope(needs_approval=["pay"])


class Payer(AgentRun):
    """Pays somebody."""

    @tool(effect=Effect.IDEMPOTENT)
    def pay(self, ctx: ToolContext[PaymentProvider], to: str, amount: Decimal) -> dict[str, str]:
        return ctx.deps.refund(to, amount, key=ctx.idempotency_key)


class FickleModel:
    """Says acct-1 when it is first asked, and acct-2 when it is asked the same again, by whatever process."""

    def __init__(self, folder: Path) -> None:
        self.asked = folder / "asked.txt"

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        before = self.calls(run.turns)
        with self.asked.open("a") as lines:
            lines.write(f"{run.turns}\n")
        if run.turns:
            return Finish("paid")
        return CallTool("pay", {"to": "acct-2" if before else "acct-1", "amount": 10})

    def calls(self, turn: int) -> int:
        return self.asked.read_text().splitlines().count(str(turn)) if self.asked.exists() else 0


@pytest.fixture
def model(tmp_path: Path) -> FickleModel:
    return FickleModel(tmp_path)


@pytest.mark.parametrize(
    ("n", "side", "paid_before"),
    [
        (2, "after", 0),
        (4, "before", 0),
        (4, "after", 1),
        (5, "before", 1),
    ],
    ids=["decision is durable", "before the tool", "after the effect", "before the append of the result"],
)
def test_a_decision_that_is_durable_is_acted_on_and_never_asked_for_again(
    n: int,
    side: str,
    paid_before: int,
    run_worker: Callable[..., int],
    model: FickleModel,
    store: RunStore,
    provider: PaymentProvider,
) -> None:
    exit_status = run_worker(str(n), side)
    assert exit_status == -signal.SIGKILL
    assert provider.refunds == paid_before

    state = Runner(store, model, deps=provider).run(Payer, run_id=RUN_ID)

    assert state.status is Status.DONE
    assert (model.calls(turn=0), model.calls(turn=1)) == (1, 1)
    assert provider.ledger == {"acct-1": "10.00"}
    assert provider.refunds == 1


def test_a_decision_that_died_before_it_was_durable_was_acted_on_by_nobody(
    run_worker: Callable[..., int], model: FickleModel, store: RunStore, provider: PaymentProvider
) -> None:
    exit_status = run_worker("the first append")
    assert exit_status == -signal.SIGKILL
    assert [entry.type for entry in store.journal(RUN_ID)] == ["run_started"]
    assert provider.refunds == 0

    state = Runner(store, model, deps=provider).run(Payer, run_id=RUN_ID)

    assert state.status is Status.DONE
    assert model.calls(turn=0) == 2
    assert provider.ledger == {"acct-2": "10.00"}


@pytest.mark.parametrize(
    ("first_life", "second_life", "paid_before"),
    [
        (("parked",), (), 0),
        (("parked",), ("1", "after"), 0),
        (("2", "after"), ("3", "after"), 1),
    ],
    ids=[
        "the worker stands by",
        "then, the start mark is durable",
        "the question is durable; then, after the effect",
    ],
)
def test_a_run_that_is_parked_on_an_approval_acts_on_what_was_approved_whoever_dies(
    first_life: tuple[str, ...],
    second_life: tuple[str, ...],
    paid_before: int,
    run_worker: Callable[..., int],
    model: FickleModel,
    store: RunStore,
    provider: PaymentProvider,
) -> None:
    exit_status = run_worker("gated", *first_life)
    assert exit_status == -signal.SIGKILL
    (asked,) = store.inbox()
    assert (asked.kind, asked.args, provider.refunds) == ("approval", {"to": "acct-1", "amount": "10"}, 0)
    store.approve(RUN_ID, 0, by="dana", digest=asked.digest)
    if second_life:
        exit_status = run_worker("gated", *second_life)
        assert exit_status == -signal.SIGKILL
    assert provider.refunds == paid_before

    state = Runner(store, model, deps=provider).run(Payer, run_id=RUN_ID)

    assert (state.status, store.inbox()) == (Status.DONE, [])
    assert (model.calls(turn=0), model.calls(turn=1)) == (1, 1)
    assert (provider.ledger, provider.refunds) == ({"acct-1": "10.00"}, 1)
    assert [entry.type for entry in store.journal(RUN_ID)].count("approval_requested") == 1


class DyingAtItsFirstAppend(Runner):
    """Dies when it has a decision and has not recorded it."""

    def save(self, run: AgentRun) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def die_there(folder: Path, *where: str) -> None:
    store = RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock())
    model, provider = FickleModel(folder), PaymentProvider(folder / "provider.db")
    envelope = MUST_BE_APPROVED if where[0] == "gated" else None
    match where:
        case ("the first append",):
            worker: Runner = DyingAtItsFirstAppend(store, model, deps=provider)
        case ("gated", "parked"):
            worker = Runner(store, model, deps=provider)
        case (*_, n, side):
            at = CrashPoint(int(n), side)  # type: ignore[arg-type]  # before or after
            worker = CrashingRunner(store, model, deps=provider, at=at, die=sigkill)
    worker.run(Payer, run_id=RUN_ID, goal="pay", envelope=envelope)
    assert store.load(RUN_ID).waiting_for == "approval"
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    die_there(Path(sys.argv[1]), *sys.argv[2:])
