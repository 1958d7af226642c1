"""pydantic-ai: a decider that is one of its models, and agents of it that survive; ``pip install 'agent-es[llm]'``.

Rule 1: only this package imports pydantic-ai, and nothing of agent_es imports this package before it is asked to.
Rule 2: what a model is asked is built from the run as folded alone, or held against what it was asked before.
Rule 3: what a model said is recorded before anything acts on it, and never asked for again.
"""

try:
    import pydantic_ai as _  # noqa: F401  # an optional extra
except ImportError as error:
    raise ImportError(
        f"agent_es.integrations.pydantic_ai needs a library that is not here ({error}): pip install 'agent-es[llm]'"
    ) from error

from agent_es.integrations.pydantic_ai.asking import Patience
from agent_es.integrations.pydantic_ai.deciding import ModelDecider
from agent_es.integrations.pydantic_ai.deltas import Delta, Deltas
from agent_es.integrations.pydantic_ai.durable import DurableRun
from agent_es.integrations.pydantic_ai.effects import effect, idempotency_key
from agent_es.integrations.pydantic_ai.summarizing import ModelSummarizer

__all__ = [
    "Delta",
    "Deltas",
    "DurableRun",
    "ModelDecider",
    "ModelSummarizer",
    "Patience",
    "effect",
    "idempotency_key",
]
