"""An agent of pydantic-ai with tools of its own and of an MCP server, killed in the middle and run again.

Run it: python examples/durable_agent.py [FOLDER]
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from agent_es import RunStore
from agent_es.integrations.pydantic_ai import DurableRun, effect, idempotency_key
from agent_es.testing import PaymentProvider

RUN_ID = "run-7f3a"
SERVER = Path(__file__).with_name("notes_server.py")


def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Say what a model would say: it is asked once for each line, whatever dies."""
    said = sum(isinstance(message, ModelResponse) for message in messages)
    print(f"the model is asked for line {said}", flush=True)
    refund = ToolCallPart("refund", {"order": "ORD-3300", "amount": 180.0})
    add = ToolCallPart("notes_add", {"text": "ORD-3300 is refunded"})
    return ModelResponse(parts=[[refund], [add], [ToolCallPart("notes_read")], [TextPart("All done.")]][said])


def agent_in(folder: Path, *, dies: bool) -> Agent[None, str]:
    """Return the agent as any process makes it: one line makes its runs durable."""
    provider = PaymentProvider(
        folder / "provider.db", after_commit=lambda _: dies and os.kill(os.getpid(), signal.SIGKILL)
    )
    notes = MCPToolset(StdioTransport(sys.executable, [str(SERVER), str(folder / "notes.txt")]))
    durable = DurableRun[None](RunStore(f"sqlite:///{folder / 'runs.db'}"), effects={"notes_read": "read"})
    agent = Agent(FunctionModel(model), name="refunds", toolsets=[notes], capabilities=[durable])

    @agent.tool_plain(metadata=effect("idempotent", key="{order}:refund:{amount:.2f}"))
    def refund(order: str, amount: float) -> dict[str, str]:
        """Refund an order."""
        return provider.refund(order, amount, key=idempotency_key())

    return agent


if __name__ == "__main__":
    place, dies = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp()), sys.argv[2:] == ["dies"]
    if not dies:
        first = subprocess.run([sys.executable, __file__, place, "dies"], check=False)
        print(f"the first process ended with {first.returncode}")
    print(agent_in(place, dies=dies).run_sync("Refund ORD-3300 and note it", run_id=RUN_ID).output)
    print(f"ledger: {PaymentProvider(place / 'provider.db').ledger}, notes: {(place / 'notes.txt').read_text()!r}")
