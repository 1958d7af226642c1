"""A research agent that asks three archives at once: one turn, three steps beside each other.

Run it: python examples/research.py [FOLDER]
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from agent_es import AgentRun, CallTool, Decision, Effect, Finish, Notice, Runner, RunState, RunStore, ToolSpec, tool

ARCHIVES = {
    "harbour": (0.6, "The light was lit in 1871."),
    "parish": (0.3, "The keeper's name was Ada Horn."),
    "railway": (0.0, "The line reached the coast in 1868."),
}


class ResearchRun(AgentRun):
    """Collect what the archives know of a place."""

    @tool(effect=Effect.READ)
    def ask(self, archive: str) -> str:
        """Ask an archive; some are slow."""
        seconds, found = ARCHIVES[archive]
        time.sleep(seconds)
        return found


class Researcher:
    """Asks all archives in its first turn, and sums up in its second."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        """Return three calls, then an answer from what they gave, in the order in which they were decided."""
        if not run.steps:
            return [CallTool(tools[0].name, {"archive": name}) for name in ARCHIVES]
        return Finish(" ".join(step.result for step in run.steps if step.status == "done"))


def watch(notice: Notice) -> None:
    """Print what happens, as it happens."""
    if notice.kind in ("attempted", "completed"):
        print(f"seq {notice.seq}: step {notice.idx} {notice.kind}: {notice.text}")


if __name__ == "__main__":
    folder = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
    store = RunStore(f"sqlite:///{folder / 'runs.db'}")
    run = Runner(store, Researcher(), on_event=watch).run(ResearchRun, run_id="light-1", goal="The old light")
    print(f"{run.status}, {len(run.steps)} steps: {run.answer}")
