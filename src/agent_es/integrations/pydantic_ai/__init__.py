"""pydantic-ai: agents of it that survive."""

from agent_es.integrations.pydantic_ai.durable import DurableRun
from agent_es.integrations.pydantic_ai.effects import effect, idempotency_key

__all__ = ["DurableRun", "effect", "idempotency_key"]
