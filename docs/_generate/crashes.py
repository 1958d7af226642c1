"""The story, killed before each of its requests: what is on disk then, and what the resume does."""

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_es.decider import Decision
from agent_es.demo import GOAL, POLICY, RUN_ID, SCRIPT, RefundRun, open_store
from agent_es.drivers import Performer
from agent_es.runtime import Runner
from agent_es.state import RunState
from agent_es.step import Append, Decide, NextDone, Probe, Request, Start, Transact
from agent_es.testing import Crash, CrashingRunner, CrashPoint, PaymentProvider
from agent_es.tools import Effect, ToolContext, ToolSpec, tool

COUNTED = (
    "events on disk",
    "questions to the decider",
    "calls of `search_policy`",
    "calls of the provider",
    "refunds paid",
    "events in the end",
)
HARD_SPOT = "append `ToolResult` of step 1"


class Counted:
    """The story's decider, which counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        """Answer as the script does."""
        self.asked += 1
        return SCRIPT.decide(run, tools)


class Calls(PaymentProvider):
    """The story's provider, which counts the calls of the other tool too."""

    searched = 0


class CountedRun(RefundRun):
    """The story's agent, with a ``search_policy`` that counts its calls."""

    @tool(effect=Effect.READ)
    def search_policy(self, ctx: ToolContext[Calls], query: str) -> str:  # noqa: ARG002  # as the story's own
        """Look up the refund policy."""
        ctx.deps.searched += 1
        return POLICY


class Watched(CrashingRunner):
    """A worker that names the requests that it performs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.named: list[str] = []

    def performer(self) -> Performer:
        """Return the performer that names, then performs."""
        inner, named = super().performer(), self.named

        class Naming:
            def perform(self, request: Request, /) -> Any:
                named.append(name(request))
                return inner.perform(request)

            def close(self) -> None:
                inner.close()

        return Naming()


def name(request: Request) -> str:
    """Say what a request of the story asks for."""
    match request:
        case Decide():
            return "ask the decider"
        case Append(run):
            event: Any = run.pending_events[0]
            step = f" of step {event.idx}" if hasattr(event, "idx") else ""
            return f"append `{type(event).__name__}`{step}"
        case Start(_, step):
            return f"start the body of step {step.idx}"
        case NextDone():
            return "wait for the body"
        case Transact(_, step) | Probe(_, step):
            return f"act on step {step.idx}"


def table() -> str:
    """Return the table: one row per place to be killed in."""
    with tempfile.TemporaryDirectory() as folder:
        calm = Watched(open_store(Path(folder)), SCRIPT, deps=Calls(Path(folder) / "provider.db"))
        calm.run(CountedRun, run_id=RUN_ID, goal=GOAL)
        calm.store.close()
    rows = [
        f"| killed just before it would | {' | '.join(COUNTED)} |",
        f"|---|{'--:|' * len(COUNTED)}",
    ]
    for number, what in enumerate(calm.named, start=1):
        mark = "**" if what == HARD_SPOT else ""
        rows.append(f"| {mark}{what}{mark} | {killed(CrashPoint(number, 'before'))} |")
    rows.append(f"| end, its work done | {killed(CrashPoint(len(calm.named), 'after'))} |")
    return "\n".join(rows) + "\n"


def killed(point: CrashPoint) -> str:
    """Return the figures of a story that is killed there and resumed by another worker."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store, provider, decider = open_store(folder), Calls(folder / "provider.db"), Counted()
        with suppress(Crash):
            CrashingRunner(store, decider, deps=provider, at=point).run(CountedRun, run_id=RUN_ID, goal=GOAL)
        on_disk = len(store.journal(RUN_ID))
        state = Runner(store, decider, deps=provider, agents=[CountedRun]).resume(RUN_ID)
        store.close()
        calls = sum(provider.keystore.values())
        figures = (on_disk, decider.asked, provider.searched, calls, provider.refunds, state.version)
    return " | ".join(map(str, figures))
