"""An agent with three tools whose process is killed where it is told to: forked, so that each is as good as new."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Never

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from agent_es import RunStore, crash_point
from agent_es.crashpoints import watching
from agent_es.errors import InDoubt
from agent_es.integrations.pydantic_ai import DurableRun, effect, idempotency_key
from agent_es.testing import PaymentProvider

RUN = "run-7f3a"

Place = tuple[str, int]
"""What a process does, and how often it did it before it dies there, this time included."""


def store_of(folder: Path) -> RunStore:
    return RunStore(f"sqlite:///{folder / 'runs.db'}")


def provider_of(folder: Path) -> PaymentProvider:
    return PaymentProvider(folder / "provider.db")


def mails_of(folder: Path) -> list[str]:
    outbox = folder / "outbox"
    return outbox.read_text().splitlines() if outbox.exists() else []


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    crash_point("the model is asked")
    said = sum(isinstance(message, ModelResponse) for message in messages)
    refund = ToolCallPart("refund", {"order": "ORD-3300", "amount": 180.0})
    lines = [
        [ToolCallPart("search", {"query": "refund policy window"})],
        [refund, ToolCallPart("search", {"query": "fees"})],
        [ToolCallPart("mail", {"to": "ann"})],
    ]
    if said < len(lines):
        return ModelResponse(parts=lines[said])
    told = [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    return ModelResponse(parts=[TextPart(json.dumps(told))])


def agent_of(folder: Path) -> Agent[None, str]:
    agent = Agent(FunctionModel(model), name="refunds", capabilities=[DurableRun(store_of(folder))])  # the one line

    @agent.tool_plain(metadata=effect("read"))
    def search(query: str) -> str:
        """Search the policy."""
        crash_point("it is searched")
        return f"{query}: 30 days"

    @agent.tool_plain(metadata=effect("idempotent", key="{order}:refund:{amount:.2f}"))
    def refund(order: str, amount: float) -> dict[str, str]:
        """Refund an order."""
        return provider_of(folder).refund(order, amount, key=idempotency_key())

    @agent.tool_plain
    def mail(to: str) -> str:
        """Send a mail."""
        crash_point("before the mail is sent")
        with (folder / "outbox").open("a") as outbox:
            outbox.write(f"{to}\n")
        crash_point("the mail is sent")
        return "sent"

    return agent


def run(folder: Path) -> str:
    return asyncio.run(agent_of(folder).run("Refund ORD-3300", run_id=RUN)).output


def live(folder: Path, at: Place | None, tell: int) -> Never:
    """Run the agent until it reaches that place; say what it came to.

    Tools run beside each other, each in its thread: which of them reaches its places first is the machine's to say,
    so a place is the name of it and how often it was reached.
    """
    reached, one_at_a_time = Counter[str](), threading.Lock()

    def reach(what: str, _: Any) -> None:
        with one_at_a_time:
            reached[what] += 1
            if (what, reached[what]) == at:
                os.write(tell, json.dumps({"died": what}).encode())
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        with watching(reach):
            said = {"output": run(folder), "places": reached}
    except InDoubt as doubt:
        said = {"doubt": str(doubt)}
    except BaseException as error:  # it is told to who waits
        said = {"error": repr(error)}
    os.write(tell, json.dumps(said).encode())
    os._exit(0)


def serve() -> None:
    """Fork an agent's process for each line of standard input."""
    for line in sys.stdin:
        folder, at = json.loads(line)
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            live(Path(folder), at and (at[0], at[1]), write)
        os.close(write)
        with os.fdopen(read) as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print(json.dumps([is_killed, json.loads(said)]), flush=True)  # noqa: T201  # the parent reads it


if __name__ == "__main__":
    serve()
