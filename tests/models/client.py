"""Clients of a stub: the models of the model layer, at its URL, in either form."""

import ssl
from collections.abc import Callable
from typing import Any

import httpx2
from pydantic_ai.models import Model, create_async_httpx2_client
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from agent_es.integrations.pydantic_ai import ModelDecider, Patience

FORMS: dict[str, type[Model]] = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
QUICK = Patience(first_wait=0.001)
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Knows no certificates: reading those takes longer than all else that a client does, and a stub has none."""


def model_at(url: str, form: str = "chat") -> Callable[[], Model]:
    """Return what makes a model that asks a stub."""

    def made() -> Model:
        http = create_async_httpx2_client(transport=httpx2.AsyncHTTPTransport(verify=NO_TLS))
        return FORMS[form]("gpt-5", provider=OpenAIProvider(base_url=url, api_key="none", http_client=http))

    return made


def decider_at(url: str, form: str = "chat", **options: Any) -> ModelDecider:
    """Return a decider that asks a stub, and has no patience to spare."""
    return ModelDecider(model_at(url, form), **{"patience": QUICK, **options})
