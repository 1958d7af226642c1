"""The least that reading a run takes: pydantic's decoding, and the smallest fold that knows the steps."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict

Row = tuple[int, str, bytes]
"""Version, topic and state of an event."""


class Plain(BaseModel):
    """An event that is only decoded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timestamp: datetime


class PlainStarted(Plain):
    """The first event."""

    run_id: str
    agent: str
    agent_version: str
    goal: str
    input: str
    tags: dict[str, str]


class PlainDecided(Plain):
    """A decision."""

    idx: int
    turn: int
    tool: str
    args: str
    attempt: int
    key: str | None = None
    call_id: str | None = None


class PlainResult(Plain):
    """A result."""

    idx: int
    tool: str
    attempt: int
    result: str


def fold_least(rows: list[Row]) -> tuple[int, list[tuple[int, str, str]]]:
    """Decode every event, and keep what each finished step was."""
    decode = {
        "agent_es:RunStarted": PlainStarted.__pydantic_validator__.validate_json,
        "agent_es:LlmDecided": PlainDecided.__pydantic_validator__.validate_json,
        "agent_es:ToolResult": PlainResult.__pydantic_validator__.validate_json,
    }
    version = 0
    is_open: dict[int, PlainDecided] = {}
    steps: list[tuple[int, str, str]] = []
    for version, topic, state in rows:  # noqa: B007  # the last one is returned
        plain = decode[topic](state)
        if type(plain) is PlainDecided:
            is_open[plain.idx] = plain
        elif type(plain) is PlainResult:
            steps.append((plain.idx, is_open.pop(plain.idx).args, plain.result))
    return version, steps
