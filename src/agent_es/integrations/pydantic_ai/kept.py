"""What a tool of pydantic-ai gives, as the journal keeps it.

Rule 1: what the agent goes on with is what is read back, on the first run too.
Rule 2: a plain value is kept as plain JSON, so that a person who settles a doubt can say it as well.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, ToolReturn, ToolReturnPart

from agent_es.errors import NotRecordable
from agent_es.values import canonical, decode

MARK = "agent_es:tool_return"
"""The one key of what is kept of a ``ToolReturn``, and of a mapping that looks like that."""

_BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_returns = TypeAdapter(list[ToolReturn], config=_BASE64)
_contents = TypeAdapter(list[ToolReturnPart], config=_BASE64)


class Kept:
    """Encodes and decodes what tools give, whatever they are annotated with."""

    def encode(self, value: Any) -> str:
        """Return the JSON text of a value; raise ``NotRecordable`` for what has none."""
        try:
            if isinstance(value, ToolReturn):
                return canonical({MARK: _returns.dump_python([value], mode="json")[0]})
            (part,) = _contents.dump_python([ToolReturnPart("", value, "")], mode="json")
        except NotRecordable:
            raise
        except Exception as error:  # a value's own serializer raises what it likes
            raise NotRecordable(f"JSON cannot say it: {error}") from None
        plain = part["content"]
        return canonical({MARK: {"return_value": plain}} if _looks_like_one(plain) else plain)

    def decode(self, text: str) -> Any:
        """Return what a text stands for: plain values, images and files, and the whole of a ``ToolReturn``."""
        plain = decode(text)
        if not _looks_like_one(plain):
            return _content(plain)
        kept = plain[MARK]
        return _content(kept["return_value"]) if len(kept) == 1 else _returns.validate_python([kept])[0]


def _looks_like_one(plain: Any) -> bool:
    return isinstance(plain, Mapping) and [*plain] == [MARK]


def _content(plain: Any) -> Any:
    (part,) = _contents.validate_python([{"tool_name": "", "content": plain, "tool_call_id": ""}])
    return part.content


def response_as_data(response: ModelResponse) -> Any:
    """Return a model's response as JSON data: all of it."""
    (data,) = ModelMessagesTypeAdapter.dump_python([response], mode="json")
    return data


def response_from_data(data: Any) -> ModelResponse:
    """Return the response that was kept."""
    (response,) = ModelMessagesTypeAdapter.validate_python([data])
    return cast(ModelResponse, response)


def parts_as_data(message: Any) -> Sequence[Mapping[str, Any]]:
    """Return the parts of a message as JSON data."""
    (data,) = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    return cast(Sequence[Mapping[str, Any]], data["parts"])
