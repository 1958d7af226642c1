"""A Hypothesis machine over a scenario: workers that are frozen, thawed, killed and failed in any order.

Signals come between their moves, people answer, steer, pause and cancel, and time goes by.

Rule 1: exhaustive is the other tool (``survives_every_crash``); this one draws interleavings.
Rule 2: whatever was drawn, the last worker brings the run to its end, and then everything must hold.
Rule 3: a failing machine prints its steps as a program; pasted below the class, it fails again.

The idea of a failing state machine that prints a program is Hypothesis's own.
"""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
)
from sqlalchemy import update

from agent_es.errors import AgentError, RunHeld, StoreBusy
from agent_es.journal import JournalEntry
from agent_es.owners import Owner
from agent_es.state import RunState, Step
from agent_es.store import RunStore
from agent_es.store.tables import runs
from agent_es.testing.audit import Audit, hashable, unheard, wrong_row
from agent_es.testing.clock import MovableClock, WrongClock
from agent_es.testing.crash import Crash, Life
from agent_es.testing.journey import Fate, doubles, is_another, look_at, travel
from agent_es.testing.scenario import Scenario, Sent, scratch
from agent_es.testing.stepped import EXPECTED, Fault, SteppedWorker

MAX_WORKERS = 3
MAY_STOP = (*EXPECTED, RunHeld, Crash)
"""What may stop a worker here."""
MAX_MOVE = 60
FAR = st.integers(1, 12) | st.integers(1, MAX_MOVE)
FARTHEST = 3_600.0
"""Seconds by which the clock is moved at once, and for which a worker waits for it, at most."""

Act = Callable[[RunStore, RunState, Any], object]
"""Something that happens to a run from outside, given the store, the run's state and the world."""


class DidNotHold(AssertionError):
    """Something that must hold of every run broke, in the program that is printed with it."""


def _let_lapse(store: RunStore) -> None:
    with store.recorder.transaction(commit=True) as session:
        session.execute(update(runs).values(lease_until=0))


def _who(machine: "RunMachine") -> st.SearchStrategy[str]:
    return st.sampled_from(machine.people)


def _how_wrong(machine: "RunMachine") -> st.SearchStrategy[float]:
    return st.sampled_from(machine.wrong_by)


class RunMachine(RuleBasedStateMachine):
    """Subclass it, give it a ``scenario``, and let pytest collect its ``TestCase``.

    ``acts`` are what people and the world may do to the run, by name: a refusal (an ``AgentError``) is no problem.
    Add rules of your own as methods; ``self.store``, ``self.world`` and ``self.clock`` are there for them.

    Where a run waits for something that may be long in coming, its worker's life ends, and whoever is hired next
    looks whether it is there.  The ``signals`` of the scenario come at any moment: before anybody waits for them,
    late, once more, in any order.  So do the answers of ``people``, who also steer and pause the run; with
    ``says_no``, they deny, give other arguments, and cancel.  Where they say something else than in a run without a
    crash, it is another run, and compared with nothing but itself: what happens in it happens once, and nothing
    without the yes that it waits for.  The last worker finds all signals there, and sleeps for as long as it takes.
    A wait with a timeout may end by the clock here; say in ``Scenario(same=...)`` what is the same then.
    """

    scenario: ClassVar[Scenario]
    acts: ClassVar[Mapping[str, Act]] = {
        "requeue": lambda store, state, _: store.requeue(state.run_id, by="machine"),
    }

    wrong_by: ClassVar[Sequence[float]] = (0.0, -600.0, 600.0)
    """By how many seconds the clock of a worker may be wrong."""

    people: ClassVar[Sequence[str]] = ("dana", "ann")
    """Who answers, steers and stops the run."""

    says_no: ClassVar[bool] = False
    """Whether people also deny, give other arguments, let the time go by and cancel: the invariant must hold of such
    runs, too."""

    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="agent-es-machine-", dir=scratch()))
        self.clock = MovableClock()
        self.running = self.prepared(replace(self.scenario, clock=self.clock, patience=0.0, signals=()))
        """The scenario as it is played here: with a clock that moves, and nobody who waits for a lock."""
        self.audit = Audit(alone=False, same=self.running.same)
        self.store = self.running.open_store(self.folder, self.audit)
        self.world = self.running.world(self.folder)
        self._alive: list[SteppedWorker] = []
        self._problems: list[str] = []
        self._told: dict[str, int] = {}
        """Where the store said that it has a delivery."""

    def __init_subclass__(cls) -> None:
        """Do without Hypothesis's explanations: a failure has its program, and they take longer than all the rest."""
        super().__init_subclass__()
        cls.TestCase.settings = settings(cls.TestCase.settings, phases=set(Phase) - {Phase.explain})

    def prepared(self, scenario: Scenario) -> Scenario:
        """Return the scenario to play; override it where the world needs ``self.clock``."""
        return scenario

    @classmethod
    def calm(cls) -> Fate:
        """Return what the scenario comes to without a crash."""
        if "_calm" not in vars(cls):
            with tempfile.TemporaryDirectory(dir=scratch()) as folder:
                cls._calm = travel(cls.scenario, Path(folder))
        return cls._calm

    _calm: ClassVar[Fate]

    # Rules.

    @initialize(target=workers, places=st.tuples(FAR, FAR))
    def begin(self, places: tuple[int, int]) -> MultipleResults[SteppedWorker]:
        """Let two workers go, the second while the first stands somewhere."""
        hired: list[Any] = [self.hire() for _ in places]
        for worker, far in zip(hired, places, strict=True):
            self.move(worker, far)
        return multiple(*hired)

    @precondition(lambda self: len(self._alive) < MAX_WORKERS)
    @rule(target=workers, lives=st.booleans(), force=st.booleans(), wrong=st.runner().flatmap(_how_wrong))
    def hire(self, *, lives: bool = False, force: bool = False, wrong: float = 0.0) -> SteppedWorker:
        """Bring in a worker: the first starts the run, another takes it over from one that stands still.

        One that ``lives`` in the eyes of the others keeps its run until its lease lapses, or somebody uses ``force``.
        The clock of a worker may be ``wrong``, by so many seconds.
        """
        owner = Owner.here() if lives else None
        running = replace(self.running, clock=WrongClock(self.clock, wrong)) if wrong else self.running
        worker = SteppedWorker(lambda life: self._live(life, running), owner=owner, force_takeover=force)
        self._alive.append(worker)
        return worker

    @rule()
    def lapse(self) -> None:
        """Let a lease lapse, unless a transaction is open; who had it may find it untaken when it thaws."""
        with suppress(StoreBusy):
            _let_lapse(self.store)
        for worker in self._alive:
            if worker.lease is not None:
                worker.lease.lapse()

    @rule(worker=workers, places=FAR)
    def move(self, worker: SteppedWorker, places: int) -> None:
        """Let a worker go on: one that was overtaken meanwhile thaws."""
        if worker.is_alive:
            worker.move(places)
            self._look(worker)

    def finish(self, worker: SteppedWorker) -> None:
        """Let a worker go on to its end: no rule, since nobody is in anybody's way once a run is over."""
        if worker.is_alive:
            worker.finish()
            self._look(worker)

    @rule(worker=consumes(workers))
    def crash(self, worker: SteppedWorker) -> None:
        """Kill a worker where it stands."""
        worker.die()
        self._look(worker)

    @rule(worker=workers, fault=st.sampled_from(["lost_answer", "disk_full", "busy"]), places=FAR)
    def fail_storage(self, worker: SteppedWorker, fault: Fault, places: int) -> None:
        """Let a worker go on, and its store fail at the next commit."""
        if worker.is_alive:
            worker.fail_next(fault)
            self.move(worker, places)

    @rule(seconds=st.floats(-FARTHEST, FARTHEST).map(round))
    def move_clock(self, seconds: float) -> None:
        """Move the time, forward or back."""
        self.clock.move(seconds)

    @rule()
    def sleep(self) -> None:
        """Let the time come until which the run waits, where it waits for one: whoever comes next finds it due."""
        with suppress(AgentError):
            due_at = self.store.load(self.running.run_id).wake_at
            if due_at is not None:
                self.clock.move(max(0.0, (due_at - self.clock.now()).total_seconds()))

    @precondition(lambda self: self.scenario.signals)
    @rule(signal=st.runner().flatmap(lambda machine: st.sampled_from(machine.scenario.signals)))
    def signal(self, signal: Sent) -> None:
        """Send a signal, before somebody waits for it, while or after somebody does, or once more."""
        delivery_id = signal[2]
        with suppress(AgentError):
            (told,) = self.running.send(self.store, [signal])
            if (first := self._told.setdefault(delivery_id, told.seq)) != told.seq:
                self._problems.append(
                    f"the delivery {delivery_id} was at seq {first}, and came to seq {told.seq} too"
                )

    # Rules of people.  They do something where there is something to do; a refusal is no problem.

    def given(self, step: Step) -> Mapping[str, Any]:
        """Return the arguments that a person gives for a call instead; override it: here, those that it has."""
        return step.approval.args if step.approval else step.args

    @property
    def asks(self) -> bool:
        """Whether a person may have to say yes to something."""
        return self.scenario.envelope is not None and any(it.needs_approval for it in self.scenario.envelope.chain)

    @precondition(lambda self: self.asks)
    @rule(by=st.runner().flatmap(_who), which=st.integers(0, 3), twice=st.booleans())
    def approve(self, by: str, which: int = 0, *, twice: bool = False) -> None:
        """Say yes to one of the calls that wait for it, and once more where somebody clicks twice."""
        for _ in range(1 + twice):
            self._answer(which, lambda step: self.store.approve(self.running.run_id, step.idx, by=by))

    @precondition(lambda self: self.asks and self.says_no)
    @rule(by=st.runner().flatmap(_who), which=st.integers(0, 3))
    def edit(self, by: str, which: int = 0) -> None:
        """Say yes to one of the calls with other arguments."""
        agent, run_id = self.scenario.agent, self.running.run_id
        self._answer(
            which, lambda step: self.store.approve(run_id, step.idx, by=by, args=self.given(step), agent=agent)
        )

    @precondition(lambda self: self.asks and self.says_no)
    @rule(by=st.runner().flatmap(_who), which=st.integers(0, 3))
    def deny(self, by: str, which: int = 0) -> None:
        """Say no to one of the calls."""
        self._answer(which, lambda step: self.store.deny(self.running.run_id, step.idx, by=by))

    @precondition(lambda self: self.asks and self.says_no)
    @rule()
    def expire(self) -> None:
        """Let the time come after which it is too late to answer."""
        with suppress(AgentError):
            gates = [step.approval for step in self.store.load(self.running.run_id).gated]
            expires = [gate.expires_at for gate in gates if gate is not None and gate.expires_at is not None]
            if expires:
                self.clock.move(max(0.0, (min(expires) - self.clock.now()).total_seconds()))

    @rule(by=st.runner().flatmap(_who), text=st.sampled_from(["go on", "be careful"]))
    def steer(self, by: str, text: str = "go on") -> None:
        """Tell the decider something."""
        with suppress(AgentError):
            self.store.steer(self.running.run_id, text, by=by)

    @rule(by=st.runner().flatmap(_who))
    def pause(self, by: str) -> None:
        """Stop the run."""
        with suppress(AgentError):
            self.store.pause(self.running.run_id, by=by)

    @rule(by=st.runner().flatmap(_who))
    def resume(self, by: str) -> None:
        """Let a paused run go on."""
        with suppress(AgentError):
            self.store.resume(self.running.run_id, by=by)

    @precondition(lambda self: self.says_no)
    @rule(by=st.runner().flatmap(_who), compensate=st.booleans(), really=st.integers(0, 7))
    def cancel(self, by: str, *, compensate: bool = False, really: int = 0) -> None:
        """End the run, now and then: not much can happen to it after that."""
        if really == 0:
            with suppress(AgentError):
                self.store.cancel(self.running.run_id, by=by, compensate=compensate)

    def _answer(self, which: int, answer: Callable[[Step], object]) -> None:
        with suppress(AgentError):
            gated = self.store.load(self.running.run_id).gated
            if gated:
                answer(gated[which % len(gated)])

    @rule(name=st.runner().flatmap(lambda machine: st.sampled_from(sorted(machine.acts))))
    def act(self, name: str) -> None:
        """Let somebody outside act on the run, where it is there and they may."""
        with suppress(AgentError):
            self.acts[name](self.store, self.store.load(self.running.run_id), self.world)

    def teardown(self) -> None:
        """Kill who is left, bring the run to its end, and look at everything."""
        has_failed = sys.exc_info()[0] is not None  # a rule has, and says why
        try:
            for worker in [*self._alive]:
                worker.die()
                if not has_failed:
                    self._look(worker)
            if not has_failed:
                self._end()
        finally:
            self.store.close()
            if hasattr(self.world, "close"):
                self.world.close()
            shutil.rmtree(self.folder)

    # What must hold.

    def _end(self) -> None:
        alone = replace(self.running, signals=self.scenario.signals, patience=self.scenario.patience)
        with alone.open_store(self.folder, self.audit) as store:
            _let_lapse(store)
            with suppress(AgentError):
                store.resume(alone.run_id, by=self.people[0])
        last = SteppedWorker(lambda life: alone.live(self.folder, life, self.audit))
        last.finish()
        fate = Fate((), 0, problems=[*self._problems, *self.audit.problems], shown=self.audit.shown)
        if last.error is not None:
            fate.problems.append(f"the last worker, alone, stopped with {last.error!r}")
        look_at(fate, self.running, self.folder, last.state, self.calm())
        fate.problems += unheard(fate.journal, self.audit.heard)
        there = {entry.data.get("delivery_id"): entry.seq for entry in fate.journal}
        for delivery_id, seq in self._told.items():
            if there.get(delivery_id) != seq:
                fate.problems.append(f"lost: the delivery {delivery_id} was told to be at seq {seq}")
        self._hold(fate.problems)

    def _look(self, worker: SteppedWorker) -> None:
        """Look at the world and the journal after a worker has moved."""
        if not worker.is_alive and worker in self._alive:
            self._alive.remove(worker)
        if worker.error is not None and not isinstance(worker.error, MAY_STOP):
            self._problems.append(f"a worker stopped with {worker.error!r}, where it stood {worker.at}")
        happened = Counter(map(hashable, self.running.effects(self.world)))
        expected = Counter(map(hashable, self.calm().effects))
        journal: Sequence[JournalEntry] = ()
        with suppress(AgentError):
            journal = self.store.journal(self.running.run_id)
        too_often = doubles(happened, expected, is_other=is_another(journal, self.calm()))
        double = [f"double: {effect} happened {times} times too often" for effect, times in too_often.items()]
        row = wrong_row(self.store, self.running.run_id)
        self._hold([*double, *([row] if row else [])])

    def _hold(self, problems: Sequence[str]) -> None:
        """Fail where there is a problem: in one place, so that Hypothesis takes it for one failure."""
        if problems:
            journal: Sequence[object] = ()
            with suppress(AgentError):
                journal = self.store.journal(self.running.run_id)
            raise DidNotHold(
                "\n".join([*(f"* {problem}" for problem in problems), "its journal:", *map(str, journal)])
            )

    def _live(self, life: Life, running: Scenario) -> RunState:
        life.max_wait = FARTHEST
        return running.live(self.folder, life, self.audit)
