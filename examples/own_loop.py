"""An agent inside a loop of your own: you ask your model and say when to act, and may stop between any two lines.

Run it: python examples/own_loop.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

from agent_es import AgentRun, CallTool, Decision, Effect, Finish, Runner, RunState, RunStore, tool


class TriageRun(AgentRun):
    """Read the tickets of a queue one by one."""

    @tool(effect=Effect.READ)
    def read_ticket(self, number: int) -> str:
        """Return a ticket's first line."""
        return ("printer on fire", "please reset my password", "thank you")[number]


def my_model(run: RunState) -> Decision:
    """Return the next ticket to read, until there are as many as the run's input says: a model would do it better."""
    print(f"  asked what comes after {run.turns} tickets")
    if run.turns < run.input["tickets"]:
        return CallTool("read_ticket", {"number": run.turns})
    return Finish([step.result for step in run.steps])


def shift(folder: Path, most: int) -> RunState:
    """Work as a process of its own would: take some decisions, and go home before the last of them is acted on."""
    with (
        RunStore(f"sqlite:///{folder / 'runs.db'}") as store,
        Runner(store).open(TriageRun, run_id="queue-1", goal="Triage", input={"tickets": 3}) as run,
    ):
        print(f"a shift finds the run {run.state.status}, with {len(run.state.steps)} steps")
        for left in reversed(range(most)):
            if run.done:
                break
            run.decide(my_model)
            if left:
                run.act()
    return run.state


if __name__ == "__main__":
    place = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
    while not (state := shift(place, most=3)).is_over:
        pass
    print(f"{state.status}: {', '.join(state.answer)}")
