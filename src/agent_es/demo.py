"""The story that every reader knows: a refund, a worker that is killed, a naive restart, a durable resume.

Rule: the money is moved by a provider that is not in the agent, and the worker that dies is a real process.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

from agent_es.decider import Decider, Finish, ScriptedDecider
from agent_es.errors import AgentError
from agent_es.run import AgentRun
from agent_es.runtime import Runner
from agent_es.state import RunState
from agent_es.store import RunStore
from agent_es.testing import Ending, FrozenClock, PaymentProvider, Scenario
from agent_es.tools import CallTool, Effect, ToolContext, tool
from agent_es.values import canonical

RUN_ID = "run-7f3a"
GOAL = "Refund ORD-3300"
RUNS_DB = "runs.db"
PROVIDER_DB = "provider.db"
POLICY = "Refundable within the window, minus a fee."
KILLED_WITHIN = 30.0
"""Seconds that the worker has to reach the hard spot."""
MODEL = "AGENT_ES_MODEL"
"""The variable that names a model which decides in place of the script."""
MODEL_ANSWERS_WITHIN = 600.0
"""Seconds that a process has where a model decides."""
INSTRUCTIONS = """\
You refund orders.  Look up the refund policy first.  Then refund the order in full with process_refund, once.
Then say in one sentence that it is done.  ORD-3300 was paid in full: 180.00."""

SCRIPT = ScriptedDecider(
    [
        CallTool("search_policy", {"query": "refund policy window"}),
        CallTool("process_refund", {"order_id": "ORD-3300", "amount": 180.0}),
        Finish("Refund of $180.00 for ORD-3300 is complete."),
    ]
)


def decider_of_the_story() -> Decider | None:
    """Return the model that decides, where one is named; None for the script.  Raises ``AgentError``."""
    name = os.environ.get(MODEL)
    if not name:
        return None
    try:
        from agent_es.integrations.pydantic_ai import ModelDecider  # noqa: PLC0415  # an optional extra
    except ImportError as error:
        raise AgentError(str(error)) from None
    return ModelDecider(name, instructions=INSTRUCTIONS)


class RefundRun(AgentRun):
    """Refund an order once, whatever crashes."""

    decider = SCRIPT

    @tool(effect=Effect.READ)
    def search_policy(self, query: str) -> str:  # noqa: ARG002  # one policy answers every query
        """Look up the refund policy."""
        return POLICY

    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:refund:{amount:.2f}")
    def process_refund(self, ctx: ToolContext[PaymentProvider], order_id: str, amount: Decimal) -> dict[str, str]:
        """Refund an order through the payment provider."""
        return ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)


def one_refund(ending: Ending) -> None:
    """Hold where the order was refunded once, under its key."""
    if ending.world.ledger != {"ORD-3300": "180.00"}:  # no assert: python -O would leave it out
        raise AssertionError(ending.world.ledger)
    if [*ending.world.keystore] != ["ORD-3300:refund:180.00"]:
        raise AssertionError(ending.world.keystore)


scenario = Scenario(
    agent=RefundRun,
    world=lambda folder: PaymentProvider(folder / PROVIDER_DB),
    invariant=one_refund,
    goal=GOAL,
    run_id=RUN_ID,
)
"""The story, for the crash kit."""


@dataclass(frozen=True)
class Told:
    """What the story came to, for a program to read."""

    naive: dict[str, Any]
    durable: dict[str, Any]
    crashed: dict[str, Any]
    killed_by: int

    def as_dict(self) -> dict[str, Any]:
        """Return the one object that ``agent-es demo --json`` prints."""
        return {
            "crashed": self.crashed,
            "durable": self.durable,
            "killed_by": self.killed_by,
            "naive": self.naive,
            "run_id": RUN_ID,
        }


def tell(folder: Path, say: Callable[[str, str], object]) -> Told:
    """Play the story in a folder; ``say`` is told (style, line), a style being act, line, good, bad or journal."""
    provider = PaymentProvider(folder / PROVIDER_DB)
    store = open_store(folder)

    decider_of_the_story()  # what is wrong with it is better said here than by the worker
    say("act", f"1  A worker starts {RUN_ID}: {GOAL}.")
    killed_by = kill_at_the_hard_spot(folder)
    say("line", f"SIGKILL ({killed_by}): the provider has posted the refund, the journal does not know it yet.")
    crashed = [str(entry) for entry in store.journal(RUN_ID)]
    say("line", f"The journal on disk has {len(crashed)} events:")
    for line in crashed:
        say("journal", line)
    crash_ledger = provider.ledger
    say("line", f"The provider's ledger: {_ledger(crash_ledger)}")

    say("act", "2  A naive restart, on a copy: it starts again from the top, and forgets what it did.")
    naive = restart_naively(folder, store.load(RUN_ID), say)

    say("act", "3  The durable resume, in a fresh process, on what the dead worker left.")
    for line in resume_in_a_fresh_process(folder):
        say("line", line)
    journal = [str(entry) for entry in store.journal(RUN_ID)]
    state = store.load(RUN_ID)
    paid = next(step.idx for step in state.steps if step.tool == "process_refund")
    say("line", f"The journal now has {len(journal)} events; step {paid} was decided once and recorded twice:")
    for line in journal:
        say("journal", line)
    say("line", f"The provider's keystore: {_keystore(provider.keystore)}")
    say("good", f"The provider's ledger: {_ledger(provider.ledger)}. One refund, one key, no second charge.")
    store.close()
    return Told(
        naive=naive,
        durable={
            "answer": state.answer,
            "journal": [json.loads(line) for line in journal],
            "keystore": provider.keystore,
            "ledger": provider.ledger,
            "refunds": provider.refunds,
            "status": str(state.status),
        },
        crashed={"journal": [json.loads(line) for line in crashed], "ledger": crash_ledger},
        killed_by=killed_by,
    )


def open_store(folder: Path) -> RunStore:
    """Return the story's store, whose clock is frozen: two tellings write the same bytes."""
    return RunStore(f"sqlite:///{folder / RUNS_DB}", clock=FrozenClock())


def kill_at_the_hard_spot(folder: Path) -> int:
    """Start a worker in a process of its own, and SIGKILL it when its refund is posted; return the signal."""
    worker = subprocess.Popen(  # noqa: S603  # this very program
        [sys.executable, "-m", "agent_es.demo", "worker", str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None  # noqa: S101  # for the type checker
    with worker.stdout:
        posted = worker.stdout.readline().strip()
        worker.kill()
    if posted != "posted":
        status = worker.wait()
        if posted:
            name = os.environ.get(MODEL)
            raise AgentError(f"the run came to its end, and the model {name} did not call process_refund: {posted}")
        raise RuntimeError(f"the worker ended before its refund was posted (exit status {status})")
    return -worker.wait()


def restart_naively(folder: Path, crashed: RunState, say: Callable[[str, str], object]) -> dict[str, Any]:
    """Do what a program without a journal does after a crash: call everything again, under new keys."""
    provider = PaymentProvider(shutil.copy(folder / PROVIDER_DB, folder / "naive-provider.db"))
    view = RefundRun.of(RunState(run_id=RUN_ID, goal=GOAL))
    for step in crashed.steps:
        if step.tool in RefundRun.agent_tools and (step.is_open or step.status == "done"):
            ctx = ToolContext(provider, RUN_ID, step.idx, 1, idempotency_key=f"refund-{uuid4()}")
            body = RefundRun.agent_tools[step.tool].bind(view, ctx, step.args_json)
            say("line", f"step {step.idx} {step.tool} is called again: {canonical(body())}")
    say("bad", f"The provider's ledger: {_ledger(provider.ledger)}. Double refund: the customer was paid twice.")
    return {"ledger": provider.ledger, "refunds": provider.refunds}


def resume_in_a_fresh_process(folder: Path) -> list[str]:
    """Resume the run in a process of its own; return what it said."""
    done = subprocess.run(  # noqa: S603  # this very program
        [sys.executable, "-m", "agent_es.demo", "resume", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=MODEL_ANSWERS_WITHIN if os.environ.get(MODEL) else KILLED_WITHIN,
    )
    return done.stdout.splitlines()


def work(folder: Path) -> None:
    """Be the worker: run the story up to the hard spot, say so, and wait there to be killed."""

    def wait_to_be_killed(_: str) -> None:
        print("posted", flush=True)  # noqa: T201  # the parent reads it
        time.sleep(KILLED_WITHIN)

    provider = PaymentProvider(folder / PROVIDER_DB, after_commit=wait_to_be_killed)
    state = Runner(open_store(folder), decider_of_the_story(), deps=provider).run(RefundRun, run_id=RUN_ID, goal=GOAL)
    print(canonical(state.answer or state.parked))  # noqa: T201  # the parent reads it


def resume(folder: Path) -> None:
    """Be the second worker: resume the run, and say what happens."""
    provider = PaymentProvider(folder / PROVIDER_DB)
    explained = {
        "resumed": "resumed from the journal",
        "memoized": "step {idx} {tool}: memoized, its result is read from the journal",
        "attempted_again": "step {idx} {tool}: the decision is read back and recorded again, attempt {attempt}",
        "completed": "step {idx} {tool}: {text}",
        "finished": "finished: {text}",
    }

    keys = dict[int, str]()

    def explain(notice: Any) -> None:
        values = {name: getattr(notice, name) for name in ("idx", "tool", "attempt", "key", "text")}
        print(explained.get(notice.kind, str(notice)).format(**values))  # noqa: T201  # the parent reads it
        if notice.kind == "attempted_again":
            keys[notice.idx] = notice.key
            print(f"step {notice.idx} {notice.tool}: sent with the same key, {notice.key}")  # noqa: T201
        if notice.kind == "completed" and notice.idx in keys:
            calls = provider.keystore[keys[notice.idx]]
            print(f"the provider honoured the key already: call {calls}, the first answer, no second charge")  # noqa: T201

    Runner(open_store(folder), decider_of_the_story(), deps=provider, on_event=explain).resume(RUN_ID)


def _ledger(ledger: dict[str, str]) -> str:
    return ", ".join(f"{order_id} {total}" for order_id, total in ledger.items()) or "empty"


def _keystore(keystore: dict[str, int]) -> str:
    return ", ".join(f"{key} (sent {calls} times)" for key, calls in keystore.items())


if __name__ == "__main__":
    {"worker": work, "resume": resume}[sys.argv[1]](Path(sys.argv[2]))
