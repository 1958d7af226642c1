"""The only place that acts: asks deciders, calls tools, appends to the store, and tells what happened.

Rule 1: no transaction is open while a decider or a tool runs, but for a ``TRANSACTIONAL`` tool, whose body it is.
Rule 2: a lost append ends the execution of that run at once.
Rule 3: time and chance enter here, as parameters.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypedDict
from uuid import uuid4

from agent_es.decider import Answered, Decider
from agent_es.drivers import Body, Performer, Tasks, Threads, adrive, drive
from agent_es.envelope import Envelope
from agent_es.errors import (
    AgentError,
    AgentUnknown,
    BadAgent,
    BadDecision,
    BadTool,
    LeaseLost,
    NotApplied,
    RunHeld,
    RunMoved,
    RunUnreadable,
)
from agent_es.events import AnyEvent, FactRecorded, StepInDoubt, ToolFailed, ToolResult, WaitBegan
from agent_es.heart import Heart
from agent_es.notices import Notice, OnEvent, ignore, notice_of
from agent_es.own_loop import Course, OpenRun
from agent_es.owners import Lease, Owner
from agent_es.run import AgentRun, agents_called, wait_of
from agent_es.scratchpad import DEFAULT, Memory, read_result
from agent_es.state import RunState, Status, Step
from agent_es.step import Requests, act, advance, decide
from agent_es.store import RunStore, check_same
from agent_es.tools import TRANSACTION_LIMIT, Failed, Outcome, Returned, Tool, ToolSpec, Waits
from agent_es.values import canonical

LONGEST = 86_400.0 * 30
"""Seconds for which this process sleeps at once."""


class Ways(TypedDict):
    """How the calls of a turn are made."""

    at_once: int
    draw: Callable[[], float]
    limited: Collection[str]


class RolledBack(Exception):  # never leaves this module
    """The transaction of a body is not to be committed."""


class Runner:
    """Moves runs forward in this process.

    ``decider`` decides for every run, but for those which another one started and whose agent has its own.
    ``deps`` reaches tools as ``ctx.deps``; ``tools`` are functions given to every run beside its agent's own;
    ``agents`` are the classes to find a run's agent among (all that the program defines, where left out);
    ``at_once`` bounds the bodies that run beside each other, for every agent; ``on_event`` is told each notice.
    A run that waits for a retry is waited for up to ``max_wait`` seconds, by ``sleep``; ``draw`` gives numbers
    between 0 and 1 for the jitter of such waits.

    While it is moved, a run is held by a lease of so many seconds, which is renewed beside the tools.  One that
    another worker holds is taken over where that worker is surely dead, or has let its lease lapse, or with
    ``force_takeover``; else ``RunHeld`` is raised.
    """

    def __init__(
        self,
        store: RunStore,
        decider: Decider | None = None,
        *,
        deps: Any = None,
        tools: Iterable[Tool] = (),
        agents: Iterable[type[AgentRun]] | None = None,
        at_once: int | None = None,
        max_wait: float = 5.0,
        sleep: Callable[[float], object] = time.sleep,
        draw: Callable[[], float] = random.random,
        on_event: OnEvent = ignore,
        lease: float = 30.0,
        owner: Owner | None = None,
        force_takeover: bool = False,
        heart: Heart | None = None,
    ) -> None:
        if lease <= 0:
            raise BadAgent(f"lease={lease}: a run must be held for some seconds")
        if at_once is not None and at_once < 1:
            raise BadAgent(f"at_once={at_once}: at least one body must be allowed to run")
        self.store = store
        self.decider = decider
        self.deps = deps
        self.at_once = at_once
        self.max_wait = max_wait
        self.sleep = sleep
        self.draw = draw
        self.on_event = on_event
        self.lease = lease
        self.owner = owner or Owner.here()
        self.force_takeover = force_takeover
        self.heart = heart or Heart(store.leases)
        self._agents = None if agents is None else tuple(agents)
        self._ran: dict[str, type[AgentRun]] = {}
        self._tools = tuple(tools)
        self._known: dict[type[AgentRun], Mapping[str, Tool]] = {}
        by_name(self._tools)

    # What a user calls.

    def run(
        self,
        agent: type[AgentRun],
        *,
        run_id: str | None = None,
        goal: str | None = None,
        input: Any = None,  # noqa: A002  # the word of the design
        tags: Mapping[str, str] | None = None,
        envelope: Envelope | None = None,
    ) -> RunState:
        """Start a run, or resume the one of that id, and drive it until it is over or waits.

        Without ``run_id`` a new one is made; with one that is there, ``goal`` may be left out.
        An ``envelope`` says what a new run may do, and what it may spend; without one it may do anything.
        Raises ``RunConflict`` where that id was started with something else, ``RunMoved`` where another worker
        moves the run, and whatever the decider raises.
        """
        run, found = self._start(agent, run_id, goal, input, tags, envelope)
        return self._drive(run, found=found)

    async def arun(
        self,
        agent: type[AgentRun],
        *,
        run_id: str | None = None,
        goal: str | None = None,
        input: Any = None,  # noqa: A002  # the word of the design
        tags: Mapping[str, str] | None = None,
        envelope: Envelope | None = None,
    ) -> RunState:
        """Do what ``run`` does, awaiting deciders and tools that can be awaited."""
        run, found = await asyncio.to_thread(self._start, agent, run_id, goal, input, tags, envelope)
        return await self._adrive(run, found=found)

    def resume(self, run_id: str) -> RunState:
        """Drive a run that was started before until it is over or waits; raise ``RunNotFound``."""
        return self._drive(self._open(run_id), found=True)

    def open(
        self,
        agent: type[AgentRun],
        *,
        run_id: str | None = None,
        goal: str | None = None,
        input: Any = None,  # noqa: A002  # the word of the design
        tags: Mapping[str, str] | None = None,
        envelope: Envelope | None = None,
        memory: Memory | None = DEFAULT,
    ) -> OpenRun:
        """Return a run to be entered by ``with`` or ``async with``, and moved by a loop of your own.

        ``memory`` says how much of the run the loop's function reads: what is too much is summarized before it is
        called.  With None it reads all there is.

        It is started or found as by ``run``, once it is entered; no decider is needed.  Entering raises what ``run``
        raises there, and ``RunHeld`` where another worker has the run.
        """
        return self.opened(partial(self._start, agent, run_id, goal, input, tags, envelope), memory)

    def step(self, run_id: str) -> RunState:
        """Move a run exactly one step: one decision and the calls that it made.  It never waits for the clock."""
        run = self._open(run_id)
        if self.wait_before_next(run, may_probe=True) == 0:
            run = self.hold(run)
            try:
                if self.wait_before_next(run, may_probe=True) == 0:
                    drive(self._advance(run), self.performer())
            finally:
                self.let_go(run)
        return replace(run.state, resumed=True)

    def compensate(self, run_id: str, *, by: str = "runner") -> RunState:
        """Undo the finished effects of a run, the last one first, each by the tool that its tool names.

        Each is a durable step with a key of its own.  The run ends cancelled; it is parked where an effect cannot be
        undone, and waits where nobody knows.  Raises ``IllegalEvent`` while steps are open.
        """
        state = self.store.load(run_id)
        run = self.agent_of(state).of(state, self.store.clock)
        if state.status is Status.CANCELLED:
            return replace(state, resumed=True)
        if not state.compensating:
            run.record_compensation(by)
            self.save(run)
        return self._drive(run, found=True)

    # What the performers call.

    def ask(self, run: AgentRun, decider: Decider | None = None) -> Answered | Awaitable[Answered]:
        """Ask a decider, or the run's own, which sees the tools of its agent.

        A run that another one started is of another agent as a rule, and has its own.
        """
        agent, state = type(run), run.state
        decider = decider or self._decider(run)
        if decider is None:
            raise BadDecision(
                f"run {state.run_id}: nothing decides; pass Runner(store, decider), or set {agent.__name__}.decider"
            )
        decision: Answered | Awaitable[Answered] = decider.decide(state, self.offered(run, memory_of(decider)))
        return decision

    def offered(self, run: AgentRun, memory: Memory | None = None) -> Sequence[ToolSpec]:
        """Return the tools that a run's decider may call now."""
        offers: Callable[..., bool] = (lambda *_: True) if run.envelope is None else run.envelope.offers
        specs = [
            tool.spec
            for name, tool in self.tools_of(type(run)).items()
            if name == tool.name and tool is not read_result and offers(*tool.names)
        ]
        return [*specs, read_result.spec] if memory is not None and memory.cuts(run.state) else specs

    def _decider(self, run: AgentRun) -> Any:
        """Return who decides for a run."""
        own, given = type(run).decider, self.decider
        return (given or own) if run.state.parent is None else (own or given)

    def save(self, run: AgentRun) -> None:
        """Append what is pending, then tell it; a result that lost its place may still settle its own doubt."""
        events = run.pending
        try:
            self.store.save(run)
        except RunMoved:
            facts = [event for event in events if isinstance(event, FactRecorded)]
            for event in events:
                kept = tuple([(one.name, one.value) for one in facts if one.idx == getattr(event, "idx", None)])
                if isinstance(event, ToolResult):
                    result = Returned(event.result, kept)
                    self._record_late(run.state.run_id, event.idx, event.tool, event.attempt, result)
                elif isinstance(event, WaitBegan) and event.idx is not None and event.attempt is not None:
                    step, waits = run.state.steps[event.idx], Waits(wait_of(event), kept)
                    self._record_late(run.state.run_id, step.idx, step.tool, event.attempt, waits)
            raise
        self._leave(run)
        self._tell(run, run.appended)

    def _leave(self, run: AgentRun) -> None:
        """Give back the places of calls that have ended; one that is not is free when the lease lapses."""
        with suppress(AgentError):
            for event in run.appended if self.store.rates.limited else ():
                if isinstance(event, ToolResult | ToolFailed | StepInDoubt | WaitBegan) and event.idx is not None:
                    self.store.rates.leave(run.state.run_id, event.idx)

    def enter(self, run: AgentRun, step: Step) -> tuple[datetime | None, bool]:
        """Ask the limits that all workers share: when may a step start, None for now, and is that time its own."""
        now = run.now
        names = self.tools_of(type(run))[step.tool].names
        wait, is_given = self.store.rates.enter(run.state, names, step, now.timestamp())
        return now + timedelta(seconds=wait) if wait > 0 else None, is_given

    def transact(self, run: AgentRun, body: Body) -> Outcome:
        """Run a body and record its result in one transaction of the store, or neither."""
        outcome: Outcome = Failed("TransactionLost", "the transaction was not committed", may_retry=True)

        def act(session: Any) -> None:
            nonlocal outcome
            started = time.monotonic()
            try:
                outcome = body.returned(body.call(session))
                session.flush()
            except Exception as error:
                outcome = body.raised(error)
            if time.monotonic() - started > TRANSACTION_LIMIT:
                outcome = Failed(
                    "TransactionLimit", f"{body.tool.name} held its transaction longer than {TRANSACTION_LIMIT:g} s"
                )
            if not isinstance(outcome, Returned | Waits):
                raise RolledBack
            run.record_outcome(body.idx, outcome)

        try:
            self.store.transact(run, act)
        except RolledBack:
            return outcome
        except NotApplied as refused:
            return body.raised(refused)
        self._leave(run)
        self._tell(run, run.appended)
        return outcome

    def deliver_late(self, body: Body, outcome: Outcome | BaseException) -> None:
        """Record the result of a body that nobody waits for any more, where it settles its own doubt."""
        if isinstance(outcome, Returned | Waits):
            self._record_late(body.run_id, body.idx, body.tool.name, body.step.attempt, outcome)

    def _record_late(self, run_id: str, idx: int, tool: str, attempt: int, outcome: Returned | Waits) -> None:
        if self.store.record_late(run_id, idx, attempt, outcome):
            late = "late: its worker had lost the run"
            self.on_event(Notice("completed", run_id, -1, idx, tool, attempt, text=late))

    def tools_of(self, agent: type[AgentRun]) -> Mapping[str, Tool]:
        """Return the tools of an agent and those given to every run, by name and alias; raise ``BadTool``."""
        if agent not in self._known:
            self._known[agent] = by_name([*agent.agent_tools.values(), *self._tools, read_result])
        return self._known[agent]

    def agent_of(self, state: RunState) -> type[AgentRun]:
        """Return the class that the run was started with, by its name; raise ``AgentUnknown``."""
        if state.agent in self._ran:
            return self._ran[state.agent]
        found = agents_called(state.agent, self._agents)
        if len(found) == 1:
            return found.pop()
        raise AgentUnknown(
            f"run {state.run_id} is of the agent {state.agent!r}, and "
            + (f"{len(found)} classes have that name" if found else "this program has no such class")
            + "; pass Runner(..., agents=[TheClass])"
        )

    def performer(self) -> Performer:
        """Return what performs the requests of one step; the crash kit puts its own here."""
        return Threads(self)

    def opened(self, start: Callable[[], tuple[AgentRun, bool]], memory: Memory | None) -> OpenRun:
        """Return what a loop of somebody's own moves a run by; the crash kit puts its own here."""
        return OpenRun(self, start, memory)

    # Driving.

    def _start(
        self,
        agent: type[AgentRun],
        run_id: str | None,
        goal: str | None,
        input: Any,  # noqa: A002
        tags: Mapping[str, str] | None,
        envelope: Envelope | None,
    ) -> tuple[AgentRun, bool]:
        self._ran[agent.agent_name] = agent
        if goal is None:
            if run_id is None:
                raise BadAgent("a new run needs a goal: run(agent, goal=...)")
            run = self._open(run_id, agent)
            check_same(run.state, agent.agent_name, None, None if input is None else canonical(input))
            return run, True
        run_id = run_id or new_run_id()
        state = self.store.start(agent, run_id=run_id, goal=goal, input=input, tags=tags, envelope=envelope)
        if state.resumed:
            self._tell_resumed(state)
        else:
            self.on_event(Notice("started", state.run_id, 0, text=goal))
        return agent.of(state, self.store.clock), state.resumed

    def _open(self, run_id: str, agent: type[AgentRun] | None = None) -> AgentRun:
        state = self.store.load(run_id)
        run = (agent or self.agent_of(state)).of(state, self.store.clock)
        self._tell_resumed(state)
        return run

    def _drive(self, run: AgentRun, *, found: bool) -> RunState:
        course = Course(run, may_probe=found)
        try:
            self.go_on(course)
        finally:
            self.let_go(course.run)
        return replace(course.run.state, resumed=found)

    def go_on(self, course: Course) -> None:
        """Take one step after the other until the run is over, waits for too long, or the course is through."""
        while True:
            run = course.run
            wait = self.wait_before_next(run, may_probe=course.may_probe)
            if wait != 0 and any(self._is_ended(child) for child in self._children(run)):
                course.run = self.as_it_is(run)
                continue
            if wait is None or course.is_through:
                return
            self._sleep(wait)
            if run.lease is None:
                course.run = self.hold(run)
                continue  # it may have moved meanwhile
            drive(self._next_of(course), self.performer())
            course.may_probe = False

    async def _adrive(self, run: AgentRun, *, found: bool) -> RunState:
        course = Course(run, may_probe=found)
        try:
            await self.ago_on(course)
        finally:
            await Tasks(self).see_through(self.let_go, course.run)
        return replace(course.run.state, resumed=found)

    async def ago_on(self, course: Course) -> None:
        """Do what ``go_on`` does, awaiting deciders and tools that can be awaited."""
        while True:
            run = course.run
            wait = self.wait_before_next(run, may_probe=course.may_probe)
            children = [] if wait == 0 else await asyncio.to_thread(self._children, run)
            if any([await self._has_ended(child) for child in children]):
                course.run = await asyncio.to_thread(self.as_it_is, run)
                continue
            if wait is None or course.is_through:
                return
            for _ in range(int(wait // LONGEST)):
                await asyncio.sleep(LONGEST)
            await asyncio.sleep(wait % LONGEST)
            tasks = Tasks(self)
            if run.lease is None:
                course.run = await tasks.see_through(self.hold, run)
                if tasks.cancelled is not None:  # while it was taken: it is given back
                    raise tasks.cancelled
                continue
            await adrive(self._next_of(course), tasks)
            course.may_probe = False

    def _sleep(self, seconds: float) -> None:
        """Sleep for so long, in pieces that every clock can tell."""
        while seconds > 0:
            self.sleep(min(seconds, LONGEST))
            seconds -= LONGEST

    def _is_ended(self, child: AgentRun) -> bool:
        """Move a child as far as it comes, unless a worker has it, and say whether it is over."""
        try:
            return self._drive(child, found=True).is_over
        except RunHeld:
            return False

    async def _has_ended(self, child: AgentRun) -> bool:
        try:
            return (await self._adrive(child, found=True)).is_over
        except RunHeld:
            return False

    def _children(self, run: AgentRun) -> list[AgentRun]:
        """Return the runs whose end a run waits for, and that this program has the classes of."""
        children = []
        for step in run.state.waits:
            with suppress(AgentUnknown, RunUnreadable):
                if step.child is not None:
                    children.append(self._open(step.child))
        return children

    def as_it_is(self, run: AgentRun) -> AgentRun:
        """Return a run as it is in the store, where others may have moved it, under the lease that it has."""
        now = type(run).of(self.store.load(run.state.run_id, known=run.recorded), self.store.clock)
        now.lease = run.lease
        return now

    # Holding.

    def hold(self, run: AgentRun) -> AgentRun:
        """Take the lease of a run, and return the run as it is then; raise ``RunHeld``."""
        lease = self.store.leases.take(run.state.run_id, self.owner, self.lease, force=self.force_takeover)
        run.lease = lease
        try:
            state = self.store.load(run.state.run_id, known=run.recorded)  # the decider sees no crash
        except AgentError:
            self.let_go(run)
            raise
        held = type(run).of(state, self.store.clock)
        held.lease = lease
        self.heart.keep(lease)
        return held

    def claimed(self, state: RunState, lease: Lease) -> AgentRun:
        """Return a run that a worker has claimed, ready to move; raise ``AgentUnknown``."""
        run = self.agent_of(state).of(state, self.store.clock)
        run.lease = lease
        return run

    def move(self, run: AgentRun) -> None:
        """Take one step of a run that is held, if it can move: what waits for the clock was claimed as due."""
        if run.state.can_move or run.state.wake_at is not None:
            drive(self._advance(run), self.performer())

    def let_go(self, run: AgentRun) -> None:
        """Give back the lease of a run, where it still has one."""
        if run.lease is None:
            return
        self.heart.leave(run.lease)
        with suppress(AgentError):  # it lapses by itself
            self.store.leases.release(run.lease)
        run.lease = None

    def check_held(self, run: AgentRun) -> None:
        """Raise ``LeaseLost`` where another worker has the run: nothing new may start."""
        lease = run.lease
        if lease is None or lease.is_fresh:
            return
        if lease.is_lost:
            raise LeaseLost(f"run {lease.run_id}: the lease {lease.token} was taken over; this execution stopped")
        self.store.leases.renew(lease)

    def wait_before_next(self, run: AgentRun, *, may_probe: bool) -> float | None:
        """Return the seconds until the run can go on in this process; None where it cannot."""
        state = run.state
        if state.can_move:
            return 0.0
        if state.waiting_for == "doubt" and may_probe:
            tools = self.tools_of(type(run))
            if any(step.tool in tools and tools[step.tool].probe for step in state.doubts):
                return 0.0
        if state.wake_at is not None:
            wait = max(0.0, (state.wake_at - run.now).total_seconds())
            return wait if wait <= self.max_wait else None
        return None

    def _advance(self, run: AgentRun) -> Requests:
        return advance(run, self._playing(run), memory=memory_of(self._decider(run)), **self._ways(run))

    def _next_of(self, course: Course) -> Requests:
        run = course.run
        return self._advance(run) if course.asks else act(run, self._playing(run), **self._ways(run))

    def question(self, run: AgentRun, decider: Decider) -> Requests:
        """Return the requests of one decision, which that decider makes."""
        return decide(run, self._playing(run), decider, memory_of(decider))

    def _playing(self, run: AgentRun) -> Mapping[str, Tool]:
        """Return the tools that the calls of a run are made with."""
        tools = self.tools_of(type(run))
        return WithoutDeps(tools) if self.deps is None else tools

    def _ways(self, run: AgentRun) -> Ways:
        """Return how the calls of a run are made."""
        limited = self._limited(type(run)) if self.store.rates.limited else ()
        return {"at_once": self.at_once or run.at_once, "draw": self.draw, "limited": limited}

    def _limited(self, agent: type[AgentRun]) -> Collection[str]:
        """Return the names of the tools that are held to a limit, whichever of their names it is for."""
        known = self.store.rates.limited
        return {name for name, tool in self.tools_of(agent).items() if not known.isdisjoint(tool.names)}

    def _tell(self, run: AgentRun, events: Iterable[AnyEvent]) -> None:
        if self.on_event is not ignore:
            for event in events:
                self.on_event(notice_of(run.state.run_id, event))

    def _tell_resumed(self, state: RunState) -> None:
        if self.on_event is ignore:
            return  # a long run has a notice for each of its steps
        seq = state.version - 1
        if state.parent is not None and state.version == 1:
            self.on_event(Notice("started", state.run_id, 0, text=state.goal))
            return
        if state.is_over:
            self.on_event(Notice("already_over", state.run_id, seq, text=f"{state.status}, nothing is executed"))
            return
        self.on_event(Notice("resumed", state.run_id, seq, text=state.goal))
        for step in state.steps:
            if not step.is_open:
                self.on_event(Notice("memoized", state.run_id, seq, step.idx, step.tool, step.attempt, step.key))


def memory_of(decider: Any) -> Memory | None:
    """Return how much of a run its decider reads: as it says itself, else what is usual."""
    found: Memory | None = getattr(decider, "memory", DEFAULT)
    return found


def new_run_id() -> str:
    """Return an id that no run has."""
    return f"run-{uuid4().hex[:12]}"


class WithoutDeps(Mapping[str, Tool]):
    """The tools of a runner that was given no deps: one that needs them is refused before its start is marked."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools

    def __getitem__(self, name: str) -> Tool:
        found = self._tools[name]
        if found.needs_deps:
            raise BadAgent(
                f"{name} needs ctx.deps, and there are none; pass Runner(..., deps=...), "
                "on the command line --deps MODULE:NAME"
            )
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)


def by_name(tools: Iterable[Tool]) -> Mapping[str, Tool]:
    """Return tools by their names and aliases; raise ``BadTool`` where two have one, or one cannot be undone."""
    named: dict[str, Tool] = {}
    for tool in tools:
        if not isinstance(tool, Tool):
            raise BadTool(f"{tool!r} is no tool; declare it with @tool(effect=...)")
        for name in (tool.name, *tool.aliases):
            if name in named:
                raise BadTool(f"two tools are called {name!r}")
            named[name] = tool
    for tool in named.values():
        if tool.compensate is not None and tool.compensate not in named:
            raise BadTool(f"tool {tool.name}: there is no tool {tool.compensate!r} to undo it")
    return named
