"""A read model: what was refunded, by day, kept beside the runs and made of their events.

Run it: python examples/refund_totals.py [FOLDER]
"""

import sys
import tempfile
from decimal import Decimal
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from agent_es import AgentRun, CallTool, Effect, Finish, Projection, RunStore, ScriptedDecider, Worker, tool
from agent_es.store.feed import FeedEntry


class RefundRun(AgentRun):
    """Refund an order."""

    decider = ScriptedDecider(
        [CallTool("refund", {"amount": 180}), CallTool("refund", {"amount": 20}), Finish("paid")]
    )

    @tool(effect=Effect.IDEMPOTENT)
    def refund(self, amount: Decimal) -> dict[str, str]:
        """Pretend to refund an amount."""
        return {"amount": str(amount)}


def add(session: Session, entry: FeedEntry) -> None:
    """Add a refund to its day."""
    if entry.type == "tool_result":
        row = {"day": f"{entry.at:%Y-%m-%d}", "amount": float(entry.data["result"]["amount"])}
        session.execute(text("INSERT INTO totals VALUES (:day, :amount)"), row)


def main(folder: Path) -> None:
    """Make three runs, and bring the read model up to date; the second time there is nothing to add."""
    store = RunStore(f"sqlite:///{folder / 'runs.db'}")
    for n in range(3):
        store.start(RefundRun, run_id=f"run-{n}", goal="Refund an order")
    Worker(store, agents=[RefundRun]).run(until_idle=True)

    engine = create_engine(store.url)
    with Session(engine) as session, session.begin():
        session.execute(text("CREATE TABLE IF NOT EXISTS totals (day TEXT, amount REAL)"))
    applied = Projection(store, "refund totals", add).catch_up()
    print(f"applied {applied} events")
    with Session(engine) as session:
        total = session.execute(text("SELECT sum(amount) FROM totals")).scalar_one()
    print(f"refunded: {total:.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp()))
