"""The runs that a worker moved last, so that it need not read them again from their first event.

Rule 1: what is kept is where reading begins, and never what the run is: whoever takes it reads what came since, and
the version of the run still fences each append.
Rule 2: it is bounded by what it holds, not by how many runs those are: what was used longest ago goes first.
"""

import threading
from collections import OrderedDict

from agent_es.state import RunState

MOST_EVENTS = 50_000
"""How many events the runs that are kept have together, at most: some tens of megabytes."""


class LiveRuns:
    """Keeps the states of runs, by their ids; threads may use it beside each other."""

    def __init__(self, most_events: int = MOST_EVENTS) -> None:
        self._most_events = most_events
        self._events = 0
        self._states: OrderedDict[str, RunState] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, run_id: str) -> RunState | None:
        """Return the state of a run as it was kept, and keep it no more: who moves it puts it back."""
        with self._lock:
            state = self._states.pop(run_id, None)
            self._events -= state.version if state else 0
            return state

    def put(self, state: RunState) -> None:
        """Keep the state of a run that is not over, and let go of others where that is too much."""
        with self._lock:
            before = self._states.pop(state.run_id, None)
            self._events -= before.version if before else 0
            if state.is_over or state.version > self._most_events:
                return
            self._states[state.run_id] = state
            self._events += state.version
            while self._events > self._most_events:
                _, oldest = self._states.popitem(last=False)
                self._events -= oldest.version

    def __len__(self) -> int:
        return len(self._states)
