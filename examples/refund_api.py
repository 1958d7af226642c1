"""Refunds behind a web API: one commit records an order and the start of its run, and a worker does the rest.

Run it: uvicorn refund_api:app --app-dir examples
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from threading import Thread
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    RunState,
    RunStore,
    ToolContext,
    ToolSpec,
    Worker,
    awaitable,
    tool,
)
from agent_es.errors import AgentError, BadSettlement, RunError, RunNotFound, StoreError
from agent_es.testing import PaymentProvider

URL = os.environ.get("AGENT_ES_STORE", "sqlite:///refunds.db")
LEASE = float(os.environ.get("LEASE", "30"))
WORKS = os.environ.get("WORKER", "thread") == "thread"
"""Whether a worker runs beside the API; else it is a process of its own, agent-es worker refund_api:RefundRun."""

engine = create_engine(URL)
store = RunStore(URL)
provider = PaymentProvider(os.environ.get("PROVIDER", "provider.db"))


class Table(DeclarativeBase):
    """What this program keeps beside its runs."""


class Order(Table):
    """An order that is to be refunded."""

    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[str]  # a decimal number: not every database has such a type
    run_id: Mapped[str]


Table.metadata.create_all(engine)


def send_mail(order_id: str) -> None:
    """Stand for what sends a mail: it takes no key, and cannot be asked afterwards."""
    logging.getLogger("uvicorn.error").info("a mail about order %s went out", order_id)


class Refunds:
    """Refunds the order that the run was started with, and tells the customer."""

    def decide(self, run: RunState, _: Sequence[ToolSpec], /) -> Decision:
        """Return the next call, or the end."""
        plan = [CallTool("process_refund", run.input), CallTool("tell_customer", {"order_id": run.input["order_id"]})]
        return plan[run.turns] if run.turns < len(plan) else Finish(f"{run.input['amount']} were refunded.")


class RefundRun(AgentRun):
    """Refund an order once, whatever crashes."""

    decider = Refunds()

    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:refund:{amount:.2f}")
    def process_refund(self, ctx: ToolContext[PaymentProvider], order_id: str, amount: Decimal) -> dict[str, str]:
        """Refund an order through the payment provider."""
        return ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)

    @tool(effect=Effect.AT_MOST_ONCE)
    def tell_customer(self, order_id: str) -> None:
        """Send the customer a mail."""
        send_mail(order_id)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Let a worker run beside the API, and end it in good order: uvicorn comes here at SIGTERM too."""
    worker = Worker(store, agents=[RefundRun], deps=provider, lease=LEASE, poll=0.2)
    thread = Thread(target=worker.run, name="worker")
    if WORKS:
        thread.start()
    yield
    if WORKS:
        worker.stop()
        await asyncio.to_thread(thread.join)
    store.close()
    engine.dispose()


app = FastAPI(title="Refunds", lifespan=lifespan)


class Wanted(BaseModel):
    """A refund that a client asks for."""

    order_id: str = Field(pattern=r"^[\w-]{1,40}$")
    amount: Decimal = Field(gt=0, max_digits=9, decimal_places=2)


class Settlement(BaseModel):
    """What a person found out about a step in doubt."""

    idx: int
    outcome: Literal["happened", "did_not_happen"]
    by: str


@app.post("/refunds", status_code=202)
def start(wanted: Wanted) -> dict[str, Any]:
    """Record the order and the start of its run: both are there, or neither."""
    run_id = f"refund-{wanted.order_id}"
    values = {"order_id": wanted.order_id, "amount": str(wanted.amount)}
    try:
        with Session(engine) as session, session.begin():
            session.add(Order(order_id=wanted.order_id, amount=str(wanted.amount), run_id=run_id))
            session.flush()  # an order that is there already is refused here
            store.start(RefundRun, run_id=run_id, goal=f"Refund {wanted.order_id}", input=values, session=session)
    except IntegrityError:
        raise HTTPException(409, f"order {wanted.order_id} has a refund: /refunds/{run_id}") from None
    return {"run_id": run_id}


@app.get("/refunds/{run_id}")
async def look(run_id: str) -> dict[str, Any]:
    """Show how a refund stands."""
    return shown(await awaitable(store.load)(run_id))


@app.post("/refunds/{run_id}/settle")
def settle(run_id: str, found: Settlement) -> dict[str, Any]:
    """Take down what became of a step in doubt; the worker goes on with the run."""
    return shown(store.settle(run_id, found.idx, found.outcome, by=found.by))


def shown(run: RunState) -> dict[str, Any]:
    """Return what clients see of a run."""
    return {
        "run_id": run.run_id,
        "status": run.status,
        "waiting_for": run.waiting_for,
        "answer": run.answer,
        "steps": [{"idx": step.idx, "tool": step.tool, "status": step.status} for step in run.steps],
    }


STATUS = {RunNotFound: 404, RunError: 409, BadSettlement: 409, StoreError: 503}


@app.exception_handler(AgentError)
def refused(_: Request, error: Exception) -> JSONResponse:
    """Answer with what the error says: it names the run, what happened, and what to do."""
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)
    return JSONResponse({"detail": str(error)}, status)
