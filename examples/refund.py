"""The story: a refund, a SIGKILL once the money has moved, and a resume that pays nothing twice.

Run it: python examples/refund.py [FOLDER]
"""

import os
import signal
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

from agent_es import AgentRun, CallTool, Effect, Finish, Runner, RunStore, ScriptedDecider, ToolContext, tool
from agent_es.testing import PaymentProvider

RUN_ID, GOAL = "run-7f3a", "Refund ORD-3300"


class RefundRun(AgentRun):
    """Refund an order once, whatever crashes."""

    decider = ScriptedDecider(
        [
            CallTool("process_refund", {"order_id": "ORD-3300", "amount": 180.0}),
            Finish("Refund of $180.00 for ORD-3300 is complete."),
        ]
    )

    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:refund:{amount:.2f}")
    def process_refund(self, ctx: ToolContext[PaymentProvider], order_id: str, amount: Decimal) -> dict[str, str]:
        """Refund an order through the payment provider."""
        return ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)


def die(_: str) -> None:
    """Be killed: the provider has paid, and its answer is on its way."""
    os.kill(os.getpid(), signal.SIGKILL)


def work(folder: Path) -> None:
    """Be the worker that does not live to see its refund."""
    provider = PaymentProvider(folder / "provider.db", after_commit=die)
    Runner(RunStore(f"sqlite:///{folder / 'runs.db'}"), deps=provider).run(RefundRun, run_id=RUN_ID, goal=GOAL)


def tell(folder: Path) -> None:
    """Start the run in a process that dies in it, and resume it in this one."""
    worker = subprocess.run([sys.executable, __file__, str(folder), "worker"], check=False)
    store, provider = RunStore(f"sqlite:///{folder / 'runs.db'}"), PaymentProvider(folder / "provider.db")
    print(f"the worker ended with {worker.returncode}; its last event is {store.journal(RUN_ID)[-1].type}")
    print(f"ledger: {provider.ledger}")
    run = Runner(store, deps=provider, on_event=print).run(RefundRun, run_id=RUN_ID)
    print(f"{run.status}: {run.answer}\nledger: {provider.ledger}, keys sent: {provider.keystore}")


if __name__ == "__main__":
    place = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
    (work if sys.argv[2:] == ["worker"] else tell)(place)
