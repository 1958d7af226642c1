"""A worker that dies at a chosen place: the seed of every crash test.

Rule 1: a crash is no ``Exception``: nothing in the library or in a tool outlives it.
Rule 2: bodies run at ``NextDone``, in an order drawn from a seed: no threads, no luck.
Rule 3: places are counted over the whole life of a worker, so the same life reaches the same places again.
"""

import math
import os
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from types import TracebackType
from typing import Any, Literal, Never, Self

from agent_es.crashpoints import watching
from agent_es.drivers import Body, Done, Performer, Threads
from agent_es.heart import Heart
from agent_es.journal import JournalEntry
from agent_es.own_loop import OpenRun
from agent_es.owners import Lease, Owner
from agent_es.run import AgentRun
from agent_es.runtime import Runner
from agent_es.scratchpad import Memory
from agent_es.state import RunState, Steps
from agent_es.step import Append, Decide, Enter, NextDone, Probe, Request, Start, Summarize, Transact
from agent_es.tools import Outcome

NEVER = datetime(1, 1, 1, tzinfo=UTC)
BEFORE = "before"
AFTER = "after"


class Crash(BaseException):
    """The process died."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Request number ``n``, counted from 1 over the life of a worker, and the side of it to die on."""

    n: int
    side: Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker may die: around a request, around a commit, or where a body marks it."""

    n: int
    """Counted from 1 over the life of a worker."""
    what: str
    """``before`` or ``after`` a request, ``before the commit`` or ``after the commit``, or the name of a mark."""
    of: str
    """What the worker was doing."""
    kind: Literal["request", "commit", "mark"]
    requests: int = 0
    """How many requests it had come to."""
    request: Request | None = field(default=None, compare=False, repr=False)
    """The request that it was performing."""

    @property
    def point(self) -> CrashPoint | None:
        """The request and the side, where this is around one."""
        if self.kind != "request":
            return None
        return CrashPoint(self.requests, "before" if self.what == BEFORE else "after")

    def __str__(self) -> str:
        return f"{self.what} {self.of}" if self.kind == "request" else f"{self.what}, in {self.of}"


def crash(place: Place) -> Never:
    """Die as seen from inside: a ``BaseException`` that nothing catches."""
    raise Crash(str(place))


def sigkill(_: Place) -> Never:
    """Die as seen from outside: SIGKILL to this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process that was killed goes on")


class Life:
    """The life of one worker: the places that it reaches, and the one where it ends.

    ``at`` is the number of a place, or a request and its side; None ends nowhere.  ``seed`` draws the order in which
    bodies end.  Override ``reach`` to do something else at a place.
    """

    def __init__(
        self, at: int | CrashPoint | None = None, *, seed: int = 0, die: Callable[[Place], Never] = crash
    ) -> None:
        self.at = at
        self.seed = seed
        self.places: list[Place] = []
        self.requests = 0
        """How many requests were come to."""
        self.choices = 0
        """How often another body could have been run first."""
        self.owner = mortal()
        """As whom it takes leases."""
        self.force_takeover = False
        self.lease: Lease | None = None
        """The one that it took last."""
        self.max_wait = math.inf
        """Seconds for which it waits for the clock; where its run waits longer than that, the life ends."""
        self.random = random.Random(seed)  # noqa: S311  # an order to reproduce, not a secret
        self._die = die
        self._doing: tuple[str, Request | None] = ("a command", None)

    def reach(self, place: Place) -> None:
        """Die where this is the place."""
        if self.at is not None and self.at in (place.n, place.point):
            self._die(place)

    def arrive(self, what: str, kind: Literal["request", "commit", "mark"]) -> None:
        """Count a place, then reach it."""
        of, request = self._doing
        self.requests += kind == "request" and what == BEFORE
        place = Place(len(self.places) + 1, what, of, kind, self.requests, request)
        self.places.append(place)
        self.reach(place)

    @contextmanager
    def doing(self, what: str, request: Request | None = None) -> Iterator[None]:
        """Say what the worker does meanwhile."""
        was, self._doing = self._doing, (what, request)
        try:
            yield
        finally:
            self._doing = was

    def lived(self) -> Any:
        """Be told of the commits and marks that this thread reaches meanwhile."""
        return watching(self.arrive)


class CrashingRunner(Runner):
    """A ``Runner`` that performs requests in line, and lives the life that it is given.

    Instead of a ``life``, it takes the ``at``, ``seed`` and ``die`` to make one from.
    """

    def __init__(
        self,
        *args: Any,
        life: Life | None = None,
        at: int | CrashPoint | None = None,
        seed: int = 0,
        die: Callable[[Place], Never] = crash,
        **kwargs: Any,
    ) -> None:
        self.life = life or Life(at, seed=seed, die=die)
        lived = {
            "draw": self.life.random.random,
            "owner": self.life.owner,
            "force_takeover": self.life.force_takeover,
        }
        super().__init__(*args, **{**lived, **kwargs})
        self.heart = Still(self.store.leases)

    @property
    def requests(self) -> int:
        """How many requests were come to."""
        return self.life.requests

    def performer(self) -> Performer:
        """Return the performer that counts places."""
        return _Crashing(self)

    def run(self, *args: Any, **kwargs: Any) -> RunState:
        """Start or resume a run, within this life."""
        with self.life.lived():
            return super().run(*args, **kwargs)

    def resume(self, run_id: str) -> RunState:
        """Resume a run, within this life."""
        with self.life.lived():
            return super().resume(run_id)

    def step(self, run_id: str) -> RunState:
        """Move a run one step, within this life."""
        with self.life.lived():
            return super().step(run_id)

    def compensate(self, run_id: str, *, by: str = "runner") -> RunState:
        """Undo what a run did, within this life."""
        with self.life.lived():
            return super().compensate(run_id, by=by)

    def opened(self, start: Callable[[], tuple[AgentRun, bool]], memory: Memory | None) -> OpenRun:
        """Return a run that is within this life for as long as it is open."""
        return LivedRun(self, start, memory)

    def hold(self, run: AgentRun) -> AgentRun:
        """Take a lease, and say so."""
        held = super().hold(run)
        self.life.lease = held.lease
        return held

    def let_go(self, run: AgentRun) -> None:
        """Give back a lease, unless the process died."""
        if not isinstance(sys.exc_info()[1], Crash):
            super().let_go(run)

    def check_held(self, run: AgentRun) -> None:
        """Ask the store each time: here a worker stands still in no time, and its lease would seem fresh."""
        if run.lease is not None and self.store.record(run.state.run_id).lease_token != run.lease.token:
            run.lease.is_lost = True
        super().check_held(run)

    def before_body(self, body: Body) -> None:
        """Look at a body that is about to run."""

    def transact(self, run: AgentRun, body: Body) -> Outcome:
        """Run a body in the store's transaction."""
        self.before_body(body)
        return super().transact(run, body)


class LivedRun(OpenRun):
    """An open run, whose commits and marks are told to a life; by ``with``, as lives know no tasks."""

    def __init__(
        self, runner: CrashingRunner, start: Callable[[], tuple[AgentRun, bool]], memory: Memory | None
    ) -> None:
        super().__init__(runner, start, memory)
        self._life = runner.life
        self._lived = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as lived:
            lived.enter_context(self._life.lived())
            super().__enter__()
            self._lived = lived.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lived:
            super().__exit__(kind, error, traceback)


class Still(Heart):
    """A heart that does not beat: a life takes no time."""

    def keep(self, lease: Lease) -> None:
        """Leave it as it is."""


def mortal() -> Owner:
    """Return an owner in this process that others take for dead: a life ends, and its process does not."""
    return replace(Owner.here(), started="0")


class _Crashing(Threads):
    """Performs as ``Threads`` does, without the threads."""

    def __init__(self, runner: CrashingRunner) -> None:
        super().__init__(runner)
        self._crashing = runner

    def perform(self, request: Request, /) -> Any:
        """Do what is asked, unless the process dies before or after it."""
        life = self._crashing.life
        with life.doing(name_of(request), request):
            life.arrive(BEFORE, "request")
            answer = super().perform(request)
            life.arrive(AFTER, "request")
            return answer

    def next_done(self) -> Done:
        """Run one of the bodies that started, and return its outcome."""
        waiting, life = [*self._ready], self._crashing.life
        life.choices += len(waiting) > 1
        body = waiting.pop(life.random.randrange(len(waiting)))
        self._ready.clear()
        self._ready.extend(waiting)
        with life.doing(f"the body of step {body.idx} ({body.tool.name})"):
            self._crashing.before_body(body)
            return body.idx, body.run()


def name_of(request: Request) -> str:  # noqa: PLR0911  # one name per request
    """Say what a request asks for."""
    match request:
        case Decide(run=run):
            return f"the decision of turn {run.state.turns}"
        case Summarize(_, phase):
            return f"the summary of the steps before {phase.up_to}"
        case Enter(step=step):
            return f"the limits of step {step.idx} ({step.tool})"
        case Append(run):
            return "the append of " + ", ".join(map(_name_of_event, run.pending_events))
        case Start(_, step):
            return f"the start of step {step.idx} ({step.tool})"
        case NextDone():
            return "the wait for a body"
        case Transact(_, step):
            return f"the transaction of step {step.idx} ({step.tool})"
        case Probe(_, step):
            return f"the probe of step {step.idx} ({step.tool})"


def _name_of_event(event: Any) -> str:
    name = JournalEntry("", event).type
    return f"{name} of step {event.idx}" if hasattr(event, "idx") else name


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
    """Return the state without what crashes may change: how often bodies started, and when anything happened.

    What asking the decider took is left out: where a process dies meanwhile, it counts as all that was set aside.
    What came for the run and was not waited for is left out too: it comes when it likes.
    """
    steps = Steps(
        [
            (
                *step[:5],
                0,
                *step[6:9],
                None,
                None,
                0,
                None,
                step.undoes,
                step.keyed_as,
                step[15] and (None, *step[15][1:]),
                step[16] and step[16]._replace(expires_at=None, approved_by=tuple(sorted(step[16].approved_by))),
            )
            for step in state.steps
        ],
        len(state.steps),
        (),
    )
    messages = tuple([message._replace(seq=0, turn=0, at=NEVER) for message in state.messages])
    timeless = replace(state, wake_at=None, rests_until=None, started_at=None, updated_at=None, messages=messages)
    return replace(timeless, steps=steps, version=0, signals=(), tokens=0, cost=Decimal(0), reserved=None)
