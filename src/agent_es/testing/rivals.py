"""Two workers on one run, a worker whose store fails, and signals: what one worker's crashes do not show.

Rule 1: pairs of places are more than can be tried, so they are drawn, and counted; faults at commits are all tried,
and so are the places at which signals come.
Rule 2: what may stop a worker is that another was faster; a worker that is alone is stopped by nothing.
"""

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import get_args

from agent_es.crashpoints import BEFORE_COMMIT
from agent_es.errors import AgentError, BadScenario
from agent_es.store import RunStore
from agent_es.testing.audit import Audit, unheard
from agent_es.testing.journey import Fate, look_at, travel
from agent_es.testing.scenario import Ending, Scenario, scratch
from agent_es.testing.stepped import EXPECTED, Fault, SteppedWorker
from agent_es.testing.survival import DidNotSurvive, Failure, Report

Act = Callable[[RunStore, str], object]
"""What somebody does to the run of that id."""


def survives_every_fault(scenario: Scenario, invariant: Callable[[Ending], object] | None = None) -> Report:
    """Let the store of a lone worker fail at each commit, before and after it: the worker comes to its end.

    Returns the report; raises ``DidNotSurvive``.
    """
    trial = _Rivals(scenario, invariant)
    faults = [fault for fault in get_args(Fault) if fault != "busy"]  # who finds it busy has only to come again
    for place, fault in product(trial.calm.places, faults):
        if place.what == BEFORE_COMMIT and place.kind == "commit" and place.of != "the opening of the store":
            with trial.run() as meeting:
                worker = meeting.hire()
                worker.move(place.n)
                meeting.what = f"{fault} {worker.at}"
                worker.fail_next(fault)
                worker.finish()
                meeting.blame(worker)
    return trial.report


def survives_overtaking(
    scenario: Scenario, invariant: Callable[[Ending], object] | None = None, *, pairs: int = 100, seed: int = 0
) -> Report:
    """Let a worker stand still somewhere, another go on to somewhere, then the first to its end, and the other.

    ``pairs`` of places are drawn with ``seed``.  Returns the report; raises ``DidNotSurvive``.
    """
    trial = _Rivals(scenario, invariant, seed=seed)
    hasty = replace(scenario, patience=0.0)  # nobody waits for one that stands in a transaction
    spots = [*product(trial.calm.places, repeat=2)]
    draw = random.Random(seed)  # noqa: S311  # pairs to reproduce, not a secret
    for still, there in draw.sample(spots, min(pairs, len(spots))):
        with trial.run() as meeting:
            workers = first, second = meeting.hire(hasty), meeting.hire(hasty)
            first.move(still.n)
            second.move(there.n)
            stands = second.at if second.is_alive else "to its end"
            meeting.what = f"one stands {first.at}; the other goes on, {stands}"
            for worker in workers:
                if worker.is_alive:
                    worker.finish()
            last = meeting.hire()
            last.finish()
            meeting.blame(*workers, unless=EXPECTED)
            meeting.blame(last)
    trial.report.drawn = trial.report.runs - 1
    return trial.report


def survives_every_signal(scenario: Scenario, invariant: Callable[[Ending], object] | None = None) -> Report:
    """Let the scenario's signals come at each place of a lone worker, which goes on then, or dies there.

    At each place one of them comes, or all of them, in their order or the last one first, and each of them twice.
    What has not come by then comes to the worker that is last.  Returns the report; raises ``DidNotSurvive``, and
    ``BadScenario`` where there are no signals.
    """
    if not scenario.signals:
        raise BadScenario("there are no signals to send: pass Scenario(signals=[(name, payload, delivery_id)])")
    trial = _Rivals(scenario, invariant)
    silent = replace(scenario, signals=(), patience=0.0)  # who sends waits for no worker that stands in a transaction
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        places = travel(silent, Path(folder)).places
    together = [scenario.signals, scenario.signals[::-1]] if len(scenario.signals) > 1 else []
    for signals, place, dies in product([*zip(scenario.signals), *together], places, [False, True]):
        with trial.run() as meeting:
            worker = meeting.hire(silent)
            worker.move(place.n)
            meeting.what = f"{', '.join(delivery_id for *_, delivery_id in signals)} came {worker.at}"
            with suppress(AgentError), silent.open_store(meeting.folder, Audit()) as store:
                silent.send(store, [*signals, *signals])
            if dies:
                worker.die()
            else:
                worker.finish()
                meeting.blame(worker)
            last = meeting.hire()
            last.finish()
            meeting.blame(last)
            trial.report.crashes += dies
    return trial.report


def survives_every_act(
    scenario: Scenario,
    act: Act,
    *,
    then: Act = lambda _, __: None,
    invariant: Callable[[Ending], object] | None = None,
) -> Report:
    """Let somebody act on the run at each place of a lone worker, which goes on then, or dies there.

    ``act`` gets a store and the run's id; it may be refused, by an ``AgentError``.  ``then`` is done before the last
    worker comes, and lets a run go on that was paused.  The invariant must hold of every such run, whatever the act
    makes of it.  Returns the report; raises ``DidNotSurvive``.
    """
    trial = _Rivals(scenario, invariant)
    hasty = replace(scenario, patience=0.0)  # who acts waits for no worker that stands in a transaction
    for place, dies in product(trial.calm.places, [False, True]):
        with trial.run() as meeting:
            worker = meeting.hire()
            worker.move(place.n)
            meeting.what = f"somebody acted {worker.at}"
            with suppress(AgentError), hasty.open_store(meeting.folder, Audit()) as store:
                act(store, scenario.run_id)
            if dies:
                worker.die()
            else:
                worker.finish()
                meeting.blame(worker)
            with suppress(AgentError), scenario.open_store(meeting.folder, Audit()) as store:
                then(store, scenario.run_id)
            last = meeting.hire()
            last.finish()
            meeting.blame(last)
            trial.report.crashes += dies
    return trial.report


class _Rivals:
    """Runs of one scenario, each moved by several workers, up to the first in which something breaks."""

    def __init__(self, scenario: Scenario, invariant: Callable[[Ending], object] | None, *, seed: int = 0) -> None:
        self._scenario = scenario if invariant is None else replace(scenario, invariant=invariant)
        with tempfile.TemporaryDirectory(dir=scratch()) as folder:
            self.calm = travel(self._scenario, Path(folder), seed=seed)
        self.report = Report(points=len(self.calm.places), counted=self.calm.counted, seed=seed)
        self._count(self.calm, "no worker meets another, and no store fails")

    @contextmanager
    def run(self) -> Iterator["_Meeting"]:
        """Lend a meeting of workers on one run, and look at what it came to."""
        audit = Audit(alone=False, same=self._scenario.same)
        with tempfile.TemporaryDirectory(dir=scratch()) as name:
            folder = Path(name)

            def hire(scenario: Scenario = self._scenario) -> SteppedWorker:
                return SteppedWorker(lambda life: scenario.live(folder, life, audit))

            meeting = _Meeting(folder, hire)
            yield meeting
            fate = Fate((), self.report.seed, problems=meeting.problems)
            fate.shown = audit.shown
            look_at(fate, self._scenario, folder, None, self.calm)
            fate.problems += [*audit.problems, *unheard(fate.journal, audit.heard)]
        self._count(fate, meeting.what)

    def _count(self, fate: Fate, what: str) -> None:
        report = self.report
        report.runs += 1
        report.double += fate.double
        report.lost += fate.lost
        report.in_doubt += fate.in_doubt
        if fate.problems:
            report.broken = 1
            report.smallest = Failure((), fate.seed, [what], fate.problems, [str(entry) for entry in fate.journal])
            raise DidNotSurvive(report)


@dataclass
class _Meeting:
    """Workers on one run."""

    folder: Path
    hire: Callable[..., SteppedWorker]
    """Brings in a worker of the scenario, or of one that stands in for it."""
    what: str = ""
    """Where they met, as they stood there."""
    problems: list[str] = field(default_factory=list)

    def blame(self, *workers: SteppedWorker, unless: tuple[type[BaseException], ...] = ()) -> None:
        """Note what stopped workers that nothing should have stopped."""
        for worker in workers:
            if worker.error is not None and not isinstance(worker.error, unless):
                self.problems.append(f"a worker stopped with {worker.error!r}")
