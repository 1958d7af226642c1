"""An agent inside a loop of your own: you decide when it takes a step, and you may stop between any two.

Run it: python examples/own_loop.py [FOLDER]
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agent_es import AgentRun, CallTool, Decision, Effect, Finish, Runner, RunState, RunStore, Status, ToolSpec, tool

CAN_MOVE = (Status.PENDING, Status.RUNNING)


class TriageRun(AgentRun):
    """Read the tickets of a queue one by one."""

    @tool(effect=Effect.READ)
    def read_ticket(self, number: int) -> str:
        """Return a ticket's first line."""
        return ("printer on fire", "please reset my password", "thank you")[number]


class Triage:
    """Reads a ticket per turn, and answers with what it read."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        """Return the next ticket to read, until there are as many as the run's input says."""
        if run.turns < run.input["tickets"]:
            return CallTool(tools[0].name, {"number": run.turns})
        return Finish([step.result for step in run.steps])


def shift(folder: Path, most: int) -> RunState:
    """Work as a process of its own would: move the run by a few steps, and go home."""
    store = RunStore(f"sqlite:///{folder / 'runs.db'}")
    runner = Runner(store, Triage(), agents=[TriageRun])
    run = store.start(TriageRun, run_id="queue-1", goal="Triage", input={"tickets": 3})
    print(f"a shift finds the run {run.status}, with {len(run.steps)} steps")
    for _ in range(most):
        if run.status not in CAN_MOVE:
            break
        run = runner.step(run.run_id)
        last = run.steps[-1]
        print(f"  {run.status}: step {last.idx} {last.status}: {last.result}")
    store.close()
    return run


if __name__ == "__main__":
    place = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
    while (state := shift(place, most=2)).status in CAN_MOVE:
        pass
    print(f"{state.status}: {', '.join(state.answer)}")
