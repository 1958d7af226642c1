"""Any plan of turns, crashed at every request: one refund per intended refund, and the uncrashed run's state."""

import tempfile
from collections import Counter
from decimal import Decimal
from itertools import product
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    RunState,
    RunStore,
    ScriptedDecider,
    Status,
    ToolContext,
    tool,
)
from agent_es.runtime import Runner
from agent_es.testing import CrashingRunner, CrashPoint, PaymentProvider, essence, live_through

MAX_STEPS = 12


class Clerk(AgentRun):
    """Looks things up, and refunds; a refund is keyed by its step, or by what it is for."""

    @tool(effect=Effect.READ)
    def look_up(self, query: str) -> dict[str, str]:
        return {"query": query, "order": "of no importance"}

    @tool(effect=Effect.READ)
    def break_down(self, query: str) -> str:
        raise LookupError(query)

    @tool(effect=Effect.IDEMPOTENT)
    def refund(self, ctx: ToolContext[PaymentProvider], order_id: str) -> dict[str, str]:
        return ctx.deps.refund(order_id, Decimal("10.00"), key=ctx.idempotency_key)

    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:{nth}")
    def refund_nth(self, ctx: ToolContext[PaymentProvider], order_id: str, nth: int) -> dict[str, str]:
        return ctx.deps.refund(order_id, Decimal("10.00"), key=ctx.idempotency_key)


reads = st.builds(
    lambda tool, query: CallTool(tool, {"query": query}),
    st.sampled_from(["look_up", "break_down"]),
    st.text(max_size=3),
)
refunds = st.builds(lambda order: CallTool("refund", {"order_id": order}), st.sampled_from("AB"))


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Decision], Counter[str]]:
    """A script, and the refunds that it means."""
    script: list[Decision] = []
    intended: Counter[str] = Counter()
    left = draw(st.integers(1, MAX_STEPS))
    nth = 0
    while left:
        turn = draw(st.lists(reads | refunds | st.just(None), min_size=1, max_size=min(3, left)))
        calls = []
        for call in turn:
            nth += call is None
            calls.append(call or CallTool("refund_nth", {"order_id": "C", "nth": nth}))
        intended.update(str(call.args["order_id"]) for call in calls if call.tool.startswith("refund"))
        script.append(calls)
        left -= len(calls)
    return [*script, Finish("done")], intended


class Lives:
    """One run of one plan in a folder of its own."""

    def __init__(self, folder: Path, script: list[Decision], at_once: int, seed: int) -> None:
        self.provider = PaymentProvider(folder / "provider.db")
        self._url = f"sqlite:///{folder / 'runs.db'}"
        self._script = ScriptedDecider(script)
        self._at_once = at_once
        self._seed = seed

    def worker(self, at: CrashPoint | None = None) -> CrashingRunner:
        store = RunStore(self._url)
        return CrashingRunner(store, self._script, deps=self.provider, at=at, at_once=self._at_once, seed=self._seed)

    @staticmethod
    def run(runner: Runner) -> RunState:
        return runner.run(Clerk, run_id="run-1", goal="any")


@given(plans(), st.integers(1, 3), st.randoms(use_true_random=False))
# An example is a hundred lives: shrinking would take hours.
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
def test_any_plan_crashed_at_every_request_refunds_what_was_meant_once(
    plan: tuple[list[Decision], Counter[str]], at_once: int, random: Random
) -> None:
    script, intended = plan
    with tempfile.TemporaryDirectory() as folder:

        def new(name: str) -> Lives:
            path = Path(folder) / name
            path.mkdir()
            return Lives(path, script, at_once, seed=random.randrange(1000))

        calm = new("calm")
        worker = calm.worker()
        expected = calm.run(worker)
        assert expected.status is Status.DONE

        for n, side in product(range(1, worker.requests + 1), ("before", "after")):
            again = CrashPoint(random.randint(1, worker.requests), random.choice(["before", "after"]))
            lives = new(f"{n}{side}")

            state = live_through([CrashPoint(n, side), again], lives.worker, lives.run)

            assert lives.provider.ledger == {order: f"{10 * count}.00" for order, count in intended.items()}
            assert lives.provider.refunds == intended.total()
            assert comparable(state) == comparable(expected)
            store = lives.worker().store
            assert essence(store.load("run-1")) == essence(state)
            (row,) = store.runs()
            assert (row.status, row.cursor) == (state.status, len(store.journal("run-1")))


def comparable(state: RunState) -> list[tuple[object, ...]]:
    """What a decider sees of a run, but for the receipts' numbers, which say in which order refunds were posted."""
    seen = []
    for step in state.steps:
        result = {**step.result, "refund_id": ""} if step.tool.startswith("refund") else step.result
        seen.append((step.idx, step.turn, step.tool, step.args, step.key, step.status, result, step.error))
    return [(state.status, state.answer, state.turns), *seen]
