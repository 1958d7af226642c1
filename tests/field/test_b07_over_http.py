"""B07 where the model answers over HTTP: it is asked again only where its answer was not durable."""

from contextlib import closing
from decimal import Decimal

import pytest

from agent_es import AgentRun, Effect, Runner, RunStore, Status, ToolContext, tool
from agent_es.testing import Crash, CrashingRunner, CrashPoint, PaymentProvider
from tests.models.client import decider_at
from tests.models.script import Answer, Call, Turn
from tests.models.stub import Stub, asked_again

RUN_ID = "run-1"


class PaysByWire(AgentRun):
    """Pays somebody."""

    @tool(effect=Effect.IDEMPOTENT)
    def pay(self, ctx: ToolContext[PaymentProvider], to: str, amount: Decimal) -> dict[str, str]:
        """Pay."""
        return ctx.deps.refund(to, amount, key=ctx.idempotency_key)


@pytest.mark.parametrize("form", ["chat", "responses"])
@pytest.mark.parametrize(("at", "asked"), [(CrashPoint(2, "after"), 2), (CrashPoint(2, "before"), 3)])
def test_a_model_over_http_is_asked_again_only_where_its_answer_was_not_durable(
    at: CrashPoint, asked: int, form: str, store: RunStore, provider: PaymentProvider
) -> None:
    pay = [Answer("", (Call("pay", f'{{"to": "acct-{n}", "amount": 10}}'),)) for n in (1, 2)]
    with closing(Stub([Turn(tuple(pay)), Answer("paid")])) as stub:
        with pytest.raises(Crash):
            CrashingRunner(store, decider_at(stub.url, form), deps=provider, at=at).run(
                PaysByWire, run_id=RUN_ID, goal="pay"
            )

        state = Runner(store, decider_at(stub.url, form), deps=provider).run(PaysByWire, run_id=RUN_ID)

        assert (state.status, len(stub.requests)) == (Status.DONE, asked)
        assert provider.ledger == {f"acct-{asked - 1}": "10.00"}
        assert asked_again(stub.requests[asked - 2 :], stub.requests) == [0] * (asked - 2)
