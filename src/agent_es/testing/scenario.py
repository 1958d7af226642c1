"""A scenario: an agent, what it is to do, and the world that it does it to.

Rule 1: the world outlives every worker and is opened anew by each; what a worker keeps in a variable dies with it.
Rule 2: a life is what one process would do: open the store, open the world, run, and let people act where it waits.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_es.decider import Decider
from agent_es.envelope import Envelope
from agent_es.errors import BadScenario, IllegalEvent
from agent_es.journal import JournalEntry
from agent_es.loading import load
from agent_es.notices import OnEvent, ignore
from agent_es.own_loop import OpenRun
from agent_es.run import AgentRun, Clock
from agent_es.state import RunState
from agent_es.store import PATIENCE, RunStore
from agent_es.store.arrivals import Delivered
from agent_es.testing.audit import Audit, Audited, Overheard, Watched
from agent_es.testing.clock import FrozenClock
from agent_es.testing.crash import Life, essence
from agent_es.testing.folders import in_its_folder
from agent_es.tools import Tool

MEMORY = "/dev/shm"  # noqa: S108  # the folders in it are made by tempfile
MAX_ACTS = 20
"""How often a person may act on one run within one life."""

Person = Callable[[RunStore, RunState, Any], object]
"""Acts on a run that waits, given the store, the run's state and the world."""
Sent = tuple[str, Any, str]
"""A signal that somebody sends: its name, its payload, and the id of its delivery."""


@dataclass(frozen=True)
class Ending:
    """What a run came to, for an invariant to look at."""

    state: RunState
    journal: Sequence[JournalEntry]
    world: Any
    """What the scenario's ``world`` gives, opened once more."""
    store: RunStore


def anything(ending: Ending) -> None:
    """Hold for every ending."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What the crash kit lives through, again and again.  Raises ``BadScenario``."""

    agent: type[AgentRun]
    decider: Decider | Callable[[], Decider] | None = None
    """Copied for each life, or made by calling it where it is a factory; left out, it is the agent's own."""
    drive: Callable[[OpenRun], object] | None = None
    """A loop of your own, which each life drives the run by, given it open; left out, a ``Runner`` drives it.

    It decides too, so that no ``decider`` is needed: ``while not run.done: run.decide(...); run.act()``.
    """
    world: Callable[[Path], Any] = lambda _: None
    """Opens what tools get as ``ctx.deps``, in a folder that outlives every worker.

    Where it has a method ``effects()`` that lists what happened there, the kit counts what happened twice and what
    never did; where it has a ``close()``, it is closed at the end of each life.
    """
    invariant: Callable[[Ending], object] = anything
    """Raises, or returns False, where an ending is wrong."""
    goal: str = "survive"
    input: Any = None
    run_id: str = "run-1"
    tags: Mapping[str, str] = field(default_factory=dict)
    envelope: Envelope | None = None
    """What the run may do, and what it may spend."""
    tools: Sequence[Tool] = ()
    at_once: int | None = None
    clock: Clock = FrozenClock()  # noqa: RUF009  # frozen
    """The store's clock; where it has a method ``sleep(seconds)``, workers sleep by that."""
    url: Callable[[Path], str] = in_its_folder
    """Gives where the runs of a folder are kept; ``on_postgres(url)`` keeps them on a server."""
    patience: float = PATIENCE
    """Seconds that a worker waits for the store's write lock."""
    person: Person | None = None
    """Acts on the run where it waits, before time goes by; a life goes on for as long as that moves it."""
    signals: Sequence[Sent] = ()
    """What somebody sends to the run: name, payload, and the id of the delivery.

    All of it comes where a life's run waits for the first time, before time goes by: in each life again, as from
    one who does not know what had come.
    """
    same: Callable[[RunState], Any] = essence
    """Gives what of a state must be as it is without a crash.

    Leave out what says in which order things happened, such as the numbers of receipts of calls in one turn.
    """

    def __post_init__(self) -> None:
        if not (isinstance(self.agent, type) and issubclass(self.agent, AgentRun)):
            raise BadScenario(f"agent={self.agent!r:.200} is no subclass of AgentRun")
        if self.decider is None and self.agent.decider is None and self.drive is None:
            raise BadScenario(
                f"nothing decides: pass decider=..., or drive=..., or set {self.agent.__name__}.decider"
            )

    def live(self, folder: Path, life: Life, audit: Audit, on_event: OnEvent = ignore) -> RunState:
        """Live the life of one worker on what lies in the folder; return the run as it left it.

        ``on_event`` is told each notice.  Raises ``Crash`` where the life ends early, and whatever the runner raises.
        """
        with life.lived(), ExitStack() as left:
            with life.doing("the opening of the store"):
                store = left.enter_context(self.open_store(folder, audit))
            world = self.world(folder)
            if hasattr(world, "close"):
                left.callback(world.close)
            runner = Audited(
                store,
                None if self.drive else Overheard(self._new_decider(), audit, store),
                audit=audit,
                life=life,
                deps=world,
                tools=self.tools,
                at_once=self.at_once,
                agents=[self.agent],
                max_wait=0.0 if self.signals or self.person else life.max_wait,
                sleep=getattr(self.clock, "sleep", time.sleep),
                on_event=on_event,
            )
            state = self._run(runner)
            for _ in range(MAX_ACTS):
                if state.is_over or not (self.signals or self.person):
                    break
                before = state.version
                self._act(store, state, world, life)
                runner.max_wait = life.max_wait
                state = self._run(runner)
                if state.version == before:
                    break
            audit.effects = [*self.effects(world)]
            return state

    def _act(self, store: RunStore, state: RunState, world: Any, life: Life) -> None:
        """Let those outside do what they do to a run that waits."""
        with life.doing("the coming of signals"), suppress(IllegalEvent):  # it is over: another worker was faster
            self.send(store, self.signals)
        if self.person is not None:
            with life.doing("an act of a person"):
                self.person(store, state, world)

    def _run(self, runner: Audited) -> RunState:
        options = {"goal": self.goal, "input": self.input, "tags": dict(self.tags)}
        with runner.life.doing("the start of the run"):
            if self.drive is None:
                return runner.run(self.agent, run_id=self.run_id, envelope=self.envelope, **options)
            with runner.open(self.agent, run_id=self.run_id, envelope=self.envelope, **options) as run:
                self.drive(run)
            return run.state

    def open_store(self, folder: Path, audit: Audit) -> RunStore:
        """Open the store that lies in a folder; what is appended through it is noted."""
        return Watched(self.url(folder), clock=self.clock, patience=self.patience, audit=audit)

    def send(self, store: RunStore, signals: Iterable[Sent]) -> list[Delivered]:
        """Send signals to the run; return where they are in its journal.  Raises what ``RunStore.signal`` raises."""
        return [
            delivered
            for name, payload, delivery_id in signals
            for delivered in store.signal(self.run_id, name, payload, delivery_id=delivery_id)
        ]

    @staticmethod
    def effects(world: Any) -> Iterable[Any]:
        """Return what happened in the world, each as often as it happened."""
        return world.effects() if hasattr(world, "effects") else ()

    def _new_decider(self) -> Decider:
        given: Any = self.agent.decider if self.decider is None else self.decider
        if isinstance(given, type) or not hasattr(given, "decide"):
            if not callable(given):
                raise BadScenario(f"decider={given!r:.200} has no decide(run, tools), and makes none when called")
            made: Decider = given()
            return made
        try:
            copied: Decider = deepcopy(given)
        except Exception as error:
            raise BadScenario(
                f"decider={given!r:.200} cannot be copied for each life ({error}); "
                "pass a function that makes a new one: Scenario(decider=lambda: ...)"
            ) from error
        return copied


def scratch() -> str | None:
    """Return where folders of worlds are made: in memory where the system has such a folder, else where it says.

    Workers die in these tests, machines do not, so nothing is proved by waiting for a disk.  ``TMPDIR`` overrules it.
    """
    return MEMORY if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) else None


def load_scenario(name: str) -> Scenario:
    """Import the scenario that ``module:name`` names; raise ``BadScenario`` where it is none."""
    found = load(name)
    if not isinstance(found, Scenario):
        raise BadScenario(f"{name} is {found!r:.200}, no Scenario(agent=..., decider=...)")
    return found
