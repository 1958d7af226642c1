"""B57: what a tool needs to know and nobody may read reaches no file, no line and no notice; the tool gets it always.

This holds of what is passed as ``deps``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Finish,
    Notice,
    Retry,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.testing import Crash, CrashingRunner, CrashPoint
from agent_es.transfer import Tally, export_lines

RUN_ID = "run-1"
CANARY = "CANARY-1"
IN_THE_BODY = CrashPoint(4, "before")  # decide, append, start, next done


@dataclass
class Config:
    """What tools are given: among it a key."""

    api_key: str = CANARY
    used: list[str] = field(default_factory=list)


class Client(AgentRun):
    """Calls a service with its key, which fails at first."""

    @tool(effect="idempotent", retry=Retry(max_attempts=3, initial=0))
    def call(self, ctx: ToolContext[Config]) -> str:
        ctx.deps.used.append(ctx.deps.api_key)
        if ctx.attempt < 3:
            raise ConnectionError("the service is down")
        return "called"


class Model:
    """Keeps all that it is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        self.shown.append(repr((run, tools)))
        return Finish("done") if run.turns else CallTool("call")


@pytest.fixture
def written(tmp_path: Path) -> Callable[[], bytes]:
    """Everything in the folder of the store: the database, its log, its index."""
    return lambda: b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())


def test_a_key_among_the_deps_is_written_nowhere_and_every_attempt_gets_it(
    open_store: Callable[[], RunStore],
    written: Callable[[], bytes],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config, model = Config(), Model()
    notices: list[Notice] = []
    options: dict[str, Any] = {"deps": config, "on_event": notices.append}
    store = open_store()
    with pytest.raises(Crash):
        CrashingRunner(store, model, at=IN_THE_BODY, **options).run(Client, run_id=RUN_ID, goal="call")
    on_disk = written()

    state = Runner(store, model, **options).run(Client, run_id=RUN_ID)

    assert (state.status, state.steps[0].attempt) == (Status.DONE, 3)
    assert config.used == [CANARY, CANARY]
    lines = [*export_lines(store, [RUN_ID], Tally())]
    told = [
        *model.shown,
        *map(str, notices),
        *lines,
        repr(state),
        repr(store.runs()),
        *capfd.readouterr(),
        caplog.text,
    ]
    assert not [text for text in told if CANARY in text]
    assert b"call" in on_disk
    assert CANARY.encode() not in on_disk + written()
