"""A worker that dies at a chosen request: the seed of every crash test.

Rule 1: a crash is no ``Exception``: nothing in the library or in a tool outlives it.
Rule 2: bodies run at ``NextDone``, in an order drawn from a seed: no threads, no luck.
"""

import os
import random
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Never

from agent_es.drivers import Body, Done, Performer, Threads
from agent_es.runtime import Runner
from agent_es.state import RunState, Steps
from agent_es.step import Request


class Crash(BaseException):
    """The process died."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Request number ``n``, counted from 1 over the life of a worker, and the side of it to die on."""

    n: int
    side: Literal["before", "after"]


def crash(point: CrashPoint) -> Never:
    """Die as seen from inside: a ``BaseException`` that nothing catches."""
    raise Crash(f"{point.side} request {point.n}")


def sigkill(_: CrashPoint) -> Never:
    """Die as seen from outside: SIGKILL to this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process that was killed goes on")


class CrashingRunner(Runner):
    """A ``Runner`` that performs requests in line, counts them, and dies at ``at``; None dies nowhere."""

    def __init__(
        self,
        *args: Any,
        at: CrashPoint | None = None,
        seed: int = 0,
        die: Callable[[CrashPoint], Never] = crash,
        **kwargs: Any,
    ) -> None:
        drawn = random.Random(seed)  # noqa: S311  # an order to reproduce, not a secret
        super().__init__(*args, **{"draw": drawn.random, **kwargs})
        self.at = at
        self.requests = 0
        """How many requests were reached."""
        self._die = die
        self._random = drawn

    def performer(self) -> Performer:
        """Return the performer that dies."""
        return _Crashing(self)

    def reach(self, side: Literal["before", "after"], request: Request) -> None:  # noqa: ARG002  # for who overrides it
        """Die where this is the point; ``request`` is what is performed there."""
        here = CrashPoint(self.requests, side)
        if here == self.at:
            self._die(here)

    def next_body(self, bodies: list[Body]) -> Body:
        """Take the body that ends next."""
        return bodies.pop(self._random.randrange(len(bodies)))


class _Crashing(Threads):
    """Performs as ``Threads`` does, without the threads."""

    def __init__(self, runner: CrashingRunner) -> None:
        super().__init__(runner)
        self._crashing = runner

    def perform(self, request: Request, /) -> Any:
        """Do what is asked, unless the process dies before or after it."""
        self._crashing.requests += 1
        self._crashing.reach("before", request)
        answer = super().perform(request)
        self._crashing.reach("after", request)
        return answer

    def next_done(self) -> Done:
        """Run one of the bodies that started, and return its outcome."""
        waiting = [*self._ready]
        body = self._crashing.next_body(waiting)
        self._ready.clear()
        self._ready.extend(waiting)
        return body.idx, body.run()


def live_through(
    points: Iterable[CrashPoint],
    make: Callable[[CrashPoint | None], CrashingRunner],
    run: Callable[[Runner], RunState],
) -> RunState:
    """Give a run one life per point, each a new worker that dies there, and a last one that does not die.

    A life that does not reach its point ends the run; ``make`` builds the worker of a life, ``run`` moves it.
    """
    for point in points:
        try:
            return run(make(point))
        except Crash:
            continue
    return run(make(None))


def essence(state: RunState) -> RunState:
    """Return the state without what crashes may change: how often bodies started, and when."""
    steps = Steps(
        [(*step[:5], 0, *step[6:9], None, None, 0, None, step.undoes, step.keyed_as) for step in state.steps],
        len(state.steps),
        (),
    )
    return replace(state, steps=steps, version=0, updated_at=None)
