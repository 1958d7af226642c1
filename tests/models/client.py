"""Clients of a stub: the models of the model layer, at its URL, in either form."""

from collections.abc import Callable
from typing import Any

from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from agent_es.integrations.pydantic_ai import ModelDecider, Patience

FORMS: dict[str, type[Model]] = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
QUICK = Patience(first_wait=0.001)


def model_at(url: str, form: str = "chat") -> Callable[[], Model]:
    """Return what makes a model that asks a stub."""
    return lambda: FORMS[form]("gpt-5", provider=OpenAIProvider(base_url=url, api_key="none"))


def decider_at(url: str, form: str = "chat", **options: Any) -> ModelDecider:
    """Return a decider that asks a stub, and has no patience to spare."""
    return ModelDecider(model_at(url, form), **{"patience": QUICK, **options})
