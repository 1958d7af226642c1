"""Two workers on one run, and a worker whose store fails: what one worker's crashes do not show.

Rule 1: pairs of places are more than can be tried, so they are drawn, and counted; faults at commits are all tried.
Rule 2: what may stop a worker is that another was faster; a worker that is alone is stopped by nothing.
"""

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

from agent_es.crashpoints import BEFORE_COMMIT
from agent_es.testing.audit import Audit
from agent_es.testing.journey import Fate, look_at, travel
from agent_es.testing.scenario import Ending, Scenario, scratch
from agent_es.testing.stepped import EXPECTED, Fault, SteppedWorker
from agent_es.testing.survival import DidNotSurvive, Failure, Report

Hire = Callable[[], SteppedWorker]


def survives_every_fault(scenario: Scenario, invariant: Callable[[Ending], object] | None = None) -> Report:
    """Let the store of a lone worker fail at each commit, before and after it: the worker comes to its end.

    Returns the report; raises ``DidNotSurvive``.
    """
    trial = _Rivals(scenario, invariant)
    faults = [fault for fault in get_args(Fault) if fault != "busy"]  # who finds it busy has only to come again
    for place, fault in product(trial.calm.places, faults):
        if place.what == BEFORE_COMMIT and place.kind == "commit" and place.of != "the opening of the store":
            with trial.run(f"{fault} {place}") as (hire, stopped):
                worker = hire()
                worker.move(place.n)
                worker.fail_next(fault)
                worker.finish()
                if worker.error is not None:
                    stopped.append(worker.error)
    return trial.report


def survives_overtaking(
    scenario: Scenario, invariant: Callable[[Ending], object] | None = None, *, pairs: int = 100, seed: int = 0
) -> Report:
    """Let a worker stand still somewhere, another go on to somewhere, then the first to its end, and the other.

    ``pairs`` of places are drawn with ``seed``.  Returns the report; raises ``DidNotSurvive``.
    """
    trial = _Rivals(replace(scenario, patience=0.0), invariant, seed=seed)
    spots = [*product(trial.calm.places, repeat=2)]
    draw = random.Random(seed)  # noqa: S311  # pairs to reproduce, not a secret
    for still, there in draw.sample(spots, min(pairs, len(spots))):
        with trial.run(f"one stands {still}; the other goes on, {there}") as (hire, stopped):
            workers = first, second = hire(), hire()
            first.move(still.n)
            second.move(there.n)
            for worker in (*workers, hire()):
                if worker.is_alive:
                    worker.finish()
            stopped.extend(
                worker.error for worker in workers if worker.error and not isinstance(worker.error, EXPECTED)
            )
    trial.report.drawn = trial.report.runs - 1
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
    def run(self, what: str) -> Iterator[tuple[Hire, list[BaseException]]]:
        """Lend what hires workers for one run, and where to put what stopped them; look at what it came to."""
        audit = Audit(alone=False, same=self._scenario.same)
        stopped: list[BaseException] = []
        with tempfile.TemporaryDirectory(dir=scratch()) as name:
            folder = Path(name)
            yield lambda: SteppedWorker(lambda life: self._scenario.live(folder, life, audit)), stopped
            fate = Fate((), self.report.seed, problems=[f"a worker stopped with {error!r}" for error in stopped])
            fate.shown = audit.shown
            look_at(fate, self._scenario, folder, None, self.calm)
            fate.problems += audit.problems
        self._count(fate, what)

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
