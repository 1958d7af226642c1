"""A run that is open: somebody's own loop asks what comes next and when to act, and both are durable.

Rule 1: what the loop is asked for follows from the state alone: it needs no determinism, and no step is named by it.
Rule 2: a function is called where nothing is decided, and never again once its answer is in the journal.
Rule 3: what is shown is what is durable; after an error the journal is looked at before anything goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from types import TracebackType
from typing import Protocol, Self

from agent_es.decider import Answered, Call, Decider, Decision, Fail, Finish
from agent_es.drivers import Acts, Performer, Tasks, adrive, drive
from agent_es.errors import RunNotOpen
from agent_es.run import AgentRun
from agent_es.state import RunState, Status
from agent_es.step import Requests
from agent_es.tools import CallTool, ToolSpec
from agent_es.values import decode

Asked = Callable[[RunState], Answered | Awaitable[Answered]]
"""Says what comes next, as a decider does: given the run as folded so far."""


@dataclass
class Course:
    """A run on its way in this process."""

    run: AgentRun
    may_probe: bool
    """Whether the probes of steps in doubt are still to be asked."""
    asks: bool = True
    """Whether it goes on past the calls that were decided."""

    @property
    def is_through(self) -> bool:
        """Whether it goes no further, whatever the run could do."""
        return not self.asks and not self.run.state.open_steps


class Opens(Acts, Protocol):
    """What an open run is moved by: a ``Runner``."""

    def performer(self) -> Performer:
        """Return what performs the requests of one step."""
        ...

    def hold(self, run: AgentRun, /) -> AgentRun:
        """Take the lease of a run, and return the run as it is then."""
        ...

    def let_go(self, run: AgentRun, /) -> None:
        """Give back the lease of a run, where it still has one."""
        ...

    def as_it_is(self, run: AgentRun, /) -> AgentRun:
        """Return a run as it is in the store."""
        ...

    def offered(self, run: AgentRun, /) -> Sequence[ToolSpec]:
        """Return the tools that a decider of the run may call."""
        ...

    def wait_before_next(self, run: AgentRun, /, *, may_probe: bool) -> float | None:
        """Return the seconds until the run can go on in this process; None where it cannot."""
        ...

    def question(self, run: AgentRun, decider: Decider, /) -> Requests:
        """Return the requests of one decision."""
        ...

    def go_on(self, course: Course, /) -> None:
        """Take one step after the other, as far as the course goes."""
        ...

    async def ago_on(self, course: Course, /) -> None:
        """Do what ``go_on`` does, awaiting."""
        ...


class OpenRun:
    """A run inside a loop of your own: what the loop decides and does is durable, and done once.

    It is what ``Runner.open`` gives, to be entered by ``with`` or ``async with``; there the run is started or found,
    and its lease taken, which is renewed beside your code and given back at the end, also where your code raises.
    As with every worker, an append after which the run waits gives the lease back; it is taken again when the run
    goes on.  One thread, or one task, at a time.
    """

    def __init__(self, runner: Opens, start: Callable[[], tuple[AgentRun, bool]]) -> None:
        self._runner = runner
        self._start = start
        self._course: Course | None = None
        self._is_open = False
        self._is_stale = False
        """Whether the journal may hold something else than what is known of it."""
        self._is_unseen = True
        """Whether there may be something to act on that nobody has looked at here: a doubt to probe, a child."""

    # What a loop asks.

    @property
    def state(self) -> RunState:
        """The run as far as it is durable; also after the end of the ``with`` statement."""
        return self._known.recorded

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._known.state.run_id

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """What a model may be offered: the tools of the agent, less those that the run's envelope forbids."""
        return self._runner.offered(self._known)

    @property
    def done(self) -> bool:
        """Whether there is nothing more to do here now.

        So it is where the run is over, where a person must see to it or say yes to all that is open, where nobody
        knows what became of a step, and where it waits for a signal, or for the clock longer than ``max_wait``.
        """
        run = self._known
        state = run.recorded
        if state.is_over or state.is_held:
            return True
        if self._is_unseen and any(step.child for step in state.waits):
            return False
        return self._runner.wait_before_next(run, may_probe=self._is_unseen) is None

    # What a loop does.

    def decide(self, ask: Asked) -> Decision | None:
        """Return what was decided last, where its calls are open; else call ``ask(state)`` and record what it says.

        ``ask`` returns what a decider may say, or something to await that gives it, and may be called again where a
        person said something meanwhile.  Nothing starts: that is what ``act`` is for.
        The calls of the turn are returned as a list of ``CallTool``, their arguments as they were decided; so is what
        was a ``Sleep``, ``WaitFor``, ``Ask`` or ``StartChild``, under the name that its step has.  ``Finish`` and
        ``Fail`` are returned as they were recorded.  None is returned, and nobody asked, where the run is over or a
        person holds it, and where its budget is spent.  A run that undoes its effects asks nobody what comes next.
        Raises ``BadDecision`` where ``ask`` said something else, ``LeaseLost``, ``RunHeld``, ``RunMoved``,
        ``RunNotOpen``, and whatever ``ask`` raises.
        """
        self._look()
        before = self.state
        while self._is_to_decide(before):
            with self._noted():
                self._hold()
                drive(self._question(ask), self._runner.performer())
        return self._said(before)

    async def adecide(self, ask: Asked) -> Decision | None:
        """Do what ``decide`` does, awaiting what can be awaited."""
        await asyncio.to_thread(self._look)
        before = self.state
        while self._is_to_decide(before):
            with self._noted():
                tasks = Tasks(self._runner)
                await tasks.see_through(self._hold)
                await adrive(self._question(ask), tasks)
        return self._said(before)

    def act(self) -> RunState:
        """Make the calls that were decided, as ``Runner`` does; return the run as it is then.

        Retries are waited for up to ``max_wait`` seconds each, probes asked, children moved.  Calls that wait for a
        person's yes, for a signal, or for longer, stay open.  Where nothing is open nothing is done.
        Raises ``LeaseLost``, ``RunHeld``, ``RunMoved`` and ``RunNotOpen``.
        """
        self._look()
        with self._noted():
            self._runner.go_on(self._acting())
        return self._acted()

    async def aact(self) -> RunState:
        """Do what ``act`` does, awaiting what can be awaited."""
        await asyncio.to_thread(self._look)
        with self._noted():
            await self._runner.ago_on(self._acting())
        return self._acted()

    # How it is opened and closed.

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    async def __aenter__(self) -> Self:
        tasks = Tasks(self._runner)
        await tasks.see_through(self._open)
        if tasks.cancelled is not None:  # while the lease was taken: it is given back
            await tasks.see_through(self._close)
            raise tasks.cancelled
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks = Tasks(self._runner)
        await tasks.see_through(self._close)
        if tasks.cancelled is not None:
            raise tasks.cancelled

    def _open(self) -> None:
        if self._course is not None:
            raise RunNotOpen(f"run {self.run_id}: it was opened before; Runner.open(...) gives one to open anew")
        run, found = self._start()
        if not run.state.is_over:
            run = self._runner.hold(run)
        self._course = Course(run, may_probe=found, asks=False)
        self._is_open = True

    def _close(self) -> None:
        self._is_open = False
        self._runner.let_go(self._known)

    # The rest is how.

    @property
    def _entered(self) -> Course:
        if self._course is None:
            raise RunNotOpen("Runner.open(...) starts nothing by itself; enter it: with runner.open(...) as run")
        return self._course

    @property
    def _known(self) -> AgentRun:
        return self._entered.run

    def _look(self) -> None:
        """See what is in the journal by now, where something may have come that nobody here knows of."""
        run = self._known
        if not self._is_open:
            raise RunNotOpen(f"run {self.run_id}: its with statement has ended; open it again to go on")
        if self._is_stale or self.done:
            self._entered.run = now = self._runner.as_it_is(run)
            self._is_unseen = self._is_unseen or now.version != run.recorded.version
            self._is_stale = False

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Note where something broke off: what is known here may not be what is durable."""
        try:
            yield
        except BaseException:
            self._is_stale = True
            raise

    def _hold(self) -> None:
        if self._known.lease is None:
            self._entered.run = self._runner.hold(self._known)

    def _is_to_decide(self, before: RunState) -> bool:
        state = self.state
        return state.can_move and not state.open_steps and state.turns == before.turns

    def _question(self, ask: Asked) -> Requests:
        self._is_unseen = True
        return self._runner.question(self._known, _Asking(ask))

    def _said(self, before: RunState) -> Decision | None:
        """Return what is decided and open, or was decided since then."""
        state = self.state
        if before.is_over:
            return None
        if state.turns > before.turns or (state.open_steps and not state.is_over):
            return _calls_of(state)
        if state.status is Status.DONE:
            return Finish(state.answer)
        return Fail(state.failure or "") if state.status is Status.FAILED else None

    def _acting(self) -> Course:
        self._entered.may_probe = self._is_unseen
        return self._entered

    def _acted(self) -> RunState:
        self._is_unseen = False
        return self.state


@dataclass(frozen=True)
class _Asking:
    """A decider that is a function of the state."""

    ask: Asked

    def decide(self, run: RunState, _: Sequence[ToolSpec], /) -> Answered | Awaitable[Answered]:
        """Ask the function."""
        return self.ask(run)


def _calls_of(state: RunState) -> list[Call]:
    """Return the calls of the turn that was decided last."""
    turn = [*takewhile(lambda step: step.turn == state.turns - 1, reversed(state.steps))]
    return [CallTool(step.tool, decode(step.said_json), step.call_id) for step in reversed(turn)]
