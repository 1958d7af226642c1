"""An experiment on one scenario: crash its worker, restart naively, resume durably, and see what moved.

Rule 1: workers live and die in processes of their own; what is seen here is what they left on disk.
Rule 2: the naive restart works on a copy of what the dead worker left, the resume on the original.
Rule 3: one act at a time, in the order of ``ORDER``; what an act came to is one frozen ``Moment``.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, Self

from agent_es.errors import ActOutOfOrder, BadScenario
from agent_es.inspector.forking import About, Forks, Spot
from agent_es.inspector.lives import ALIVE, ASIDE, LEFT, NAIVE
from agent_es.inspector.panes import NOTHING, Panes, panes_of

STORY = "agent_es.demo:scenario"
WITHIN = 60.0
"""Seconds that a worker has for its life."""

Name = Literal["crash", "restart", "resume"]


class Stage(StrEnum):
    """Where an experiment stands."""

    FRESH = "fresh"
    """No worker has lived yet."""
    DEAD = "dead"
    """A worker was killed, and nobody has gone on."""
    OVER = "over"
    """The run was gone on with, as far as it goes."""


ORDER: Mapping[Name, frozenset[Stage]] = {
    "crash": frozenset({Stage.FRESH, Stage.DEAD}),
    "restart": frozenset({Stage.DEAD, Stage.OVER}),
    "resume": frozenset({Stage.DEAD}),
}
"""When there is which act; the naive restart, once.  A crash of who is dead is one of its recovery."""


@dataclass(frozen=True)
class Act:
    """What one worker did."""

    name: Name
    said: Sequence[str]
    killed_by: int | None
    """The signal that it died by; None where it came to its end."""
    spot: Spot | None
    """Where it was killed; None where it was not, or where its time was over."""
    pid: int
    seconds: float


@dataclass(frozen=True)
class Side:
    """One of the two ways to go on: its acts so far, and what lies there."""

    acts: Sequence[Act] = ()
    panes: Panes | None = None


@dataclass(frozen=True)
class Moment:
    """Where an experiment stands."""

    stage: Stage
    about: About
    spots: Sequence[Spot]
    """Where the next worker may die."""
    durable: Side = field(default_factory=Side)
    naive: Side = field(default_factory=Side)
    """Before the naive restart, what it would find."""

    def may(self, name: Name) -> bool:
        """Whether there is that act now."""
        lacks = {"crash": not self.spots, "restart": bool(self.naive.acts)}
        return self.stage in ORDER[name] and not lacks.get(name, False)

    @property
    def hard_spot(self) -> Spot:
        """The last mark in the body that has most of them; without any, the moment after a body."""
        marks = [spot for spot in self.spots if spot.kind == "mark"]
        if marks:
            (of, _), *_ = Counter(spot.of for spot in marks).most_common(1)
            return [spot for spot in marks if spot.of == of][-1]
        ran = [spot for spot in self.spots if (spot.what, spot.of) == ("after", "the wait for a body")]
        return ran[-1] if ran else self.spots[-1]


class Experiment:
    """Crashes the worker of a scenario, and goes on with its run in two ways.

    ``name`` is the ``module:name`` of the scenario; ``within``, the seconds that each worker has.  Close it at the
    end, or use it by ``with``.  Acts raise ``ActOutOfOrder`` where it is not their turn, and ``BadScenario`` where
    the scenario cannot be lived through.
    """

    def __init__(self, name: str = STORY, *, within: float = WITHIN) -> None:
        self.name = name
        self._within = within
        self._lock = threading.Lock()
        self._forks: Forks | None = None
        self._now: Moment | None = None
        self._calm = self._durable = NOTHING

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def moment(self) -> Moment:
        """Where it stands, while an act is under way too; the first look imports the scenario, and counts places."""
        now = self._now
        if now is not None:
            return now
        with self._lock:
            return self._begun()

    def places(self) -> Sequence[Spot]:
        """Return where the next worker may die: the first one, or who goes on with what a dead one left."""
        return self.moment.spots

    def crash(self, n: int) -> Act:
        """Let a worker live up to place ``n``, and get a SIGKILL there; after a crash, in its recovery."""
        with self._acting("crash") as (now, forks):
            spot = next((spot for spot in now.spots if spot.n == n), None)
            if spot is None:
                raise BadScenario(f"place {n}: this worker has the places 1 to {len(now.spots)}")
            act = self._live(forks, "crash", ALIVE, spot)
            self._went_on(forks, now, act)
            return act

    def resume(self) -> Act:
        """Let another worker go on with the run, from its journal, to the end."""
        with self._acting("resume") as (now, forks):
            act = self._live(forks, "resume", ALIVE)
            self._went_on(forks, now, act)
            return act

    def restart_naively(self) -> Act:
        """Do what a program without a journal does, on a copy: begin at the top, under new keys."""
        with self._acting("restart") as (now, forks):
            forks.copy(LEFT, NAIVE)
            before = forks.look(LEFT, self._within)
            act = self._live(forks, "restart", NAIVE)
            seen = forks.look(NAIVE, self._within)
            panes = panes_of(seen, before, self._calm, has_ended=act.killed_by is None, in_doubt=False)
            self._now = replace(now, naive=Side((act,), panes))
            return act

    def reset(self) -> None:
        """Forget everything; the scenario is imported anew, as it is then."""
        with self._lock:
            self._end()

    def close(self) -> None:
        """End the processes, and remove their folder: an act that is under way ends with them."""
        if self._forks is not None:
            self._forks.end()

    @contextmanager
    def _acting(self, name: Name) -> Iterator[tuple[Moment, Forks]]:
        """Let one act be done, if it is its turn."""
        with self._lock:
            now = self._begun()
            if not now.may(name):
                raise ActOutOfOrder(_why_not(name, now))
            assert self._forks is not None  # noqa: S101  # for the type checker
            yield now, self._forks

    def _begun(self) -> Moment:
        if self._now is None:
            self._forks = Forks(self.name)
            try:
                spots = self._forks.places(self._within)
                self._calm = self._forks.look(ASIDE, self._within)
            except BadScenario:
                self._end()
                raise
            self._durable = NOTHING
            self._now = Moment(Stage.FRESH, self._forks.about, spots)
        return self._now

    def _end(self) -> None:
        self.close()
        self._forks = self._now = None

    def _live(self, forks: Forks, name: Name, folder: str, spot: Spot | None = None) -> Act:
        began = time.monotonic()
        if name == "restart":
            life = forks.live("naive", folder, self._within)
        else:
            life = forks.live("live", folder, self._within, None if spot is None else spot.n)
        seconds = time.monotonic() - began
        killed_by = os.WTERMSIG(life.status) if os.WIFSIGNALED(life.status) else None
        died_there = killed_by == signal.SIGKILL and life.at is not None
        said = [*life.said, *([f"it was not done within {self._within:g} s, and was killed"] if life.is_late else [])]
        if name == "crash" and not killed_by:
            said.append("it came to its end before that place, and nobody killed it")
        return Act(name, said, killed_by, spot if died_there else None, life.pid, seconds)

    def _went_on(self, forks: Forks, now: Moment, act: Act) -> None:
        """Take in what became of the run itself."""
        seen = forks.look(ALIVE, self._within)
        has_ended = act.killed_by is None
        panes = panes_of(seen, self._durable, self._calm, has_ended=has_ended, in_doubt=seen.in_doubt)
        spots: Sequence[Spot] = ()
        naive = now.naive
        if not has_ended:
            naive = naive if naive.acts else Side((), panes)
            forks.copy(ALIVE, LEFT)
            forks.copy(ALIVE, ASIDE)
            with suppress(BadScenario):  # what goes wrong in its recovery, the resume says
                spots = forks.places(self._within)
        self._durable = seen
        self._now = replace(
            now,
            stage=Stage.OVER if has_ended else Stage.DEAD,
            spots=spots,
            durable=Side((*now.durable.acts, act), panes),
            naive=naive,
        )


def _why_not(name: Name, now: Moment) -> str:
    match name:
        case "crash" if now.stage is Stage.DEAD:
            return "the recovery cannot be lived through; resume, to see what goes wrong"
        case "crash":
            return "nobody is left to crash: the run was gone on with; reset the lab"
        case "resume" if now.stage is Stage.OVER:
            return "the run was gone on with before; reset the lab"
        case "restart" if now.naive.acts:
            return "it was restarted naively before; reset the lab"
        case _:
            return "no worker has died yet: crash one first"
