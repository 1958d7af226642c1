"""The only place that acts: performs what a step asks for, and tells what happened.

Rule 1: two loops of ten lines, one blocking, one awaiting, drive one generator; there is no second copy of it.
Rule 2: no transaction is open while a tool or a decider runs.
Rule 3: a lost append ends the execution of that run at once; what still runs beside it is cancelled, or left
behind in a daemon thread where it cannot be.
"""

import asyncio
import inspect
import math
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, TypeVar, assert_never
from uuid import uuid4

from agent_es.decider import Decider, Decision
from agent_es.errors import AgentUnknown, BadAgent, BadDecision, BadTool, NotApplied, RunMoved
from agent_es.events import (
    AnyEvent,
    CompensationBegan,
    CompensationEnded,
    DoubtSettled,
    Finished,
    LlmDecided,
    Parked,
    Requeued,
    RunFailed,
    RunStarted,
    StepInDoubt,
    ToolFailed,
    ToolResult,
    WaitBegan,
    WaitEnded,
)
from agent_es.run import AgentRun
from agent_es.state import RunState, Status
from agent_es.step import (
    Append,
    Decide,
    NextDone,
    Probe,
    Request,
    Requests,
    Start,
    Transact,
    advance,
    retry_of,
)
from agent_es.store import RunStore, check_same
from agent_es.telemetry import Kind, Notice, OnEvent, ignore
from agent_es.tools import (
    TRANSACTION_LIMIT,
    Failed,
    Outcome,
    Probed,
    Returned,
    Tool,
    ToolContext,
    ToolSpec,
    Unknown,
    describe,
)
from agent_es.values import canonical

T = TypeVar("T")

Done = tuple[int, Outcome]
Ended = tuple[int, Outcome | BaseException]
"""How a body ended: with an outcome, or with what ends more than itself, as ``sys.exit()`` does."""


class Performer(Protocol):
    """Performs the requests of a step, blocking."""

    def perform(self, request: Request, /) -> Any:
        """Do what is asked and return the answer."""
        ...

    def close(self) -> None:
        """Leave behind what still runs."""
        ...


def drive(requests: Requests, performer: Performer) -> None:
    """Drive a step to its end."""
    try:
        request = next(requests)
        while True:
            try:
                answer = performer.perform(request)
            except Exception as error:  # the step decides what an error means
                request = requests.throw(error)
            else:
                request = requests.send(answer)
    except StopIteration:
        return
    finally:
        requests.close()
        performer.close()


async def adrive(requests: Requests, performer: "Tasks") -> None:
    """Drive a step to its end, awaiting what it asks for."""
    try:
        request = next(requests)
        while True:
            try:
                answer = await performer.perform(request)
            except Exception as error:  # the step decides what an error means
                request = requests.throw(error)
            else:
                request = requests.send(answer)
    except StopIteration:
        if performer.cancelled is not None:
            raise performer.cancelled from None
    finally:
        requests.close()
        await performer.close()


class Body:
    """One attempt at one step: a tool with its arguments and its context, ready to start."""

    def __init__(self, runner: "Runner", request: Start | Transact | Probe) -> None:
        self.run_id = request.run.state.run_id
        self.step = request.step
        self.tool = runner.tools_of(type(request.run))[request.step.tool]
        self.retry = retry_of(request.run, self.tool)
        self._deps = runner.deps
        self._view = type(request.run).of(request.run.state)
        self._lock = threading.Lock()
        self._is_over = False

    @property
    def idx(self) -> int:
        """The step that this is an attempt at."""
        return self.step.idx

    def call(self, session: Any = None) -> Any:
        """Call the function; an asynchronous one gives an awaitable."""
        return self.tool.bind(self._view, self._context(session), self.step.args_json)()

    def run(self) -> Outcome:
        """Call the function here, and wait for it."""
        try:
            value = self.call()
            if inspect.isawaitable(value):
                outcome: Outcome = finish(self._awaited(value))
                return outcome
            return self.tool.returned(value)
        except (Exception, asyncio.CancelledError) as error:  # the tool's effect says what it means
            return self.raised(error)

    async def arun(self) -> Outcome:
        """Await an asynchronous function here."""
        try:
            return await self._awaited(self.call())
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self.raised(error)  # something that the body awaited was cancelled, not the body
        except Exception as error:  # the tool's effect says what it means
            return self.raised(error)

    def probe(self) -> Probed:
        """Ask whether the last attempt happened; a probe that raises cannot tell."""
        try:
            ask = self.tool.bind_probe(self._view, self._context(None), self.step.args_json)
            return self.tool.probed(finish(ask()))
        except Exception as error:  # a probe raises what it likes
            return Unknown(type(error).__qualname__, describe(error))

    def raised(self, error: Exception | asyncio.CancelledError) -> Outcome:
        """Say what an exception means."""
        return self.tool.raised(error, self.retry, first=self.step.attempts_spent <= 1)

    def claim_end(self) -> bool:
        """Say whether whoever asks is the first to end this attempt: its body, or the limit on its time."""
        with self._lock:
            was, self._is_over = self._is_over, True
            return not was

    async def _awaited(self, value: Awaitable[Any]) -> Outcome:
        limit = asyncio.timeout(self.retry.timeout)
        try:
            async with limit:
                return self.tool.returned(await value)
        except TimeoutError:
            if not limit.expired():
                raise
            return self.tool.timed_out(self.retry.timeout or 0)

    def _context(self, session: Any) -> ToolContext[Any]:
        step = self.step
        return ToolContext(self._deps, self.run_id, step.idx, step.attempt, step.key, session)


class Threads:
    """Performs requests for a blocking driver: bodies run here, or in threads where there are several.

    A body with a limit on its time runs in a thread too.  One that passes it cannot be stopped: its attempt ends, and
    when it returns after all, its result is late.
    """

    def __init__(self, runner: "Runner") -> None:
        self._runner = runner
        self._ready: deque[Body] = deque()
        self._flying: dict[int, tuple[Body, float]] = {}
        self._done: queue.SimpleQueue[Ended] = queue.SimpleQueue()

    def perform(self, request: Request, /) -> Any:
        """Do what is asked and return the answer."""
        match request:
            case Decide(run):
                return finish(self._runner.ask(run))
            case Append(run):
                return self._runner.save(run)
            case Start():
                self._ready.append(Body(self._runner, request))
                return None
            case NextDone():
                return self.next_done()
            case Transact(run):
                return self._runner.transact(run, Body(self._runner, request))
            case Probe():
                return Body(self._runner, request).probe()
            case _:
                assert_never(request)

    def next_done(self) -> Done:
        """Return the outcome of the body that ended first."""
        if len(self._ready) == 1 and not self._flying and not self._ready[0].retry.timeout:
            body = self._ready.popleft()
            return body.idx, body.run()
        while self._ready:
            body = self._ready.popleft()
            self._flying[body.idx] = body, time.monotonic() + (body.retry.timeout or math.inf)
            spawn(self._work, body)
        while True:
            overdue, until = min(self._flying.values(), key=lambda flying: flying[1])
            try:
                left = None if until == math.inf else max(0.0, until - time.monotonic())
                idx, ended = self._done.get(timeout=left)
            except queue.Empty:
                if not overdue.claim_end():
                    continue  # it has just ended: its outcome is on its way
                idx, ended = overdue.idx, overdue.tool.timed_out(overdue.retry.timeout or 0)
            del self._flying[idx]
            return outcome_of(idx, ended)

    def close(self) -> None:
        """Leave behind what still runs: its results will be late."""
        for body, _ in self._flying.values():
            body.claim_end()

    def _work(self, body: Body) -> None:
        ended = to_the_end(body)
        if body.claim_end():
            self._done.put((body.idx, ended))
        else:
            self._runner.deliver_late(body, ended)


class Tasks:
    """Performs requests for an awaiting driver: asynchronous bodies are tasks, the others run in threads.

    A cancelled caller is cancelled as soon as what is known is recorded: an append under way gets its answer, and
    the results that are there already are appended.  Nothing new is decided or started.
    """

    def __init__(self, runner: "Runner") -> None:
        self._runner = runner
        self._done: asyncio.Queue[Ended] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: list[Body] = []
        self.cancelled: asyncio.CancelledError | None = None
        """Set once the caller was cancelled: what is known is recorded, then this is raised."""

    async def perform(self, request: Request) -> Any:
        """Do what is asked and return the answer."""
        match request:
            case Append(run):
                if self.cancelled is not None and any(isinstance(e, LlmDecided) for e in run.pending_events):
                    raise self.cancelled
                return await self._to_the_end(self._runner.save, run)
            case NextDone():
                return await self._next_done()
            case Start():
                if self.cancelled is None:
                    self._start(Body(self._runner, request))
                return None
            case _ if self.cancelled is not None:
                raise self.cancelled
            case Decide(run):
                decision = self._runner.ask(run)
                return await decision if inspect.isawaitable(decision) else decision
            case Transact(run):
                return await self._to_the_end(self._runner.transact, run, Body(self._runner, request))
            case Probe():
                return await asyncio.to_thread(Body(self._runner, request).probe)
            case _:
                assert_never(request)

    async def _to_the_end(self, work: Callable[..., T], *args: Any) -> T:
        """Do the work in a thread; a cancelled caller must not tear it from its answer."""
        task = asyncio.ensure_future(asyncio.to_thread(work, *args))
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                self.cancelled = error
        return task.result()

    async def _next_done(self) -> Done:
        if self.cancelled is None:
            try:
                return outcome_of(*await self._done.get())
            except asyncio.CancelledError as error:
                self.cancelled = error
        if self._done.empty():
            raise self.cancelled
        return outcome_of(*self._done.get_nowait())

    def _start(self, body: Body) -> None:
        if body.tool.is_async:
            task = asyncio.create_task(self._await(body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        loop = asyncio.get_running_loop()
        self._threads.append(body)
        spawn(self._work, body, loop)
        if body.retry.timeout:
            loop.call_later(body.retry.timeout, self._expire, body)

    async def _await(self, body: Body) -> None:
        ended: Outcome | BaseException
        try:
            ended = await body.arun()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the driver is told, and raises it
            ended = error
        self._done.put_nowait((body.idx, ended))

    def _expire(self, body: Body) -> None:
        if body.claim_end():
            self._done.put_nowait((body.idx, body.tool.timed_out(body.retry.timeout or 0)))

    def _work(self, body: Body, loop: asyncio.AbstractEventLoop) -> None:
        ended = to_the_end(body)
        if body.claim_end() and not loop.is_closed():
            loop.call_soon_threadsafe(self._done.put_nowait, (body.idx, ended))
        else:
            self._runner.deliver_late(body, ended)

    async def close(self) -> None:
        """Cancel what still runs; the results of what cannot be cancelled will be late."""
        for body in self._threads:
            body.claim_end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class RolledBack(Exception):  # never leaves this module
    """The transaction of a body is not to be committed."""


class Runner:
    """Moves runs forward in this process.

    ``deps`` reaches tools as ``ctx.deps``; ``tools`` are functions given to every run beside its agent's own;
    ``agents`` are the classes to find a run's agent among (all that the program defines, where left out);
    ``at_once`` bounds the bodies that run beside each other, for every agent; ``on_event`` is told each notice.
    A run that waits for a retry is waited for up to ``max_wait`` seconds, by ``sleep``; ``draw`` gives numbers
    between 0 and 1 for the jitter of such waits.
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
    ) -> None:
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
    ) -> RunState:
        """Start a run, or resume the one of that id, and drive it until it is over or waits.

        Without ``run_id`` a new one is made; with one that is there, ``goal`` may be left out.
        Raises ``RunConflict`` where that id was started with something else, ``RunMoved`` where another worker
        moves the run, and whatever the decider raises.
        """
        run, found = self._start(agent, run_id, goal, input, tags)
        return self._drive(run, found=found)

    async def arun(
        self,
        agent: type[AgentRun],
        *,
        run_id: str | None = None,
        goal: str | None = None,
        input: Any = None,  # noqa: A002  # the word of the design
        tags: Mapping[str, str] | None = None,
    ) -> RunState:
        """Do what ``run`` does, awaiting deciders and tools that can be awaited."""
        run, found = await asyncio.to_thread(self._start, agent, run_id, goal, input, tags)
        may_probe = found
        while (wait := self._wait_before_next(run, may_probe=may_probe)) is not None:
            await asyncio.sleep(wait)
            await adrive(self._advance(run), Tasks(self))
            may_probe = False
        return replace(run.state, resumed=found)

    def resume(self, run_id: str) -> RunState:
        """Drive a run that was started before until it is over or waits; raise ``RunNotFound``."""
        return self._drive(self._open(run_id), found=True)

    def step(self, run_id: str) -> RunState:
        """Move a run exactly one step: one decision and the calls that it made.  It never waits for the clock."""
        run = self._open(run_id)
        if self._wait_before_next(run, may_probe=True) == 0:
            drive(self._advance(run), self.performer())
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

    def ask(self, run: AgentRun) -> Decision | Awaitable[Decision]:
        """Ask the run's decider, which sees the tools of its agent."""
        agent, state = type(run), run.state
        decider = self.decider or agent.decider
        if decider is None:
            raise BadDecision(
                f"run {state.run_id}: nothing decides; pass Runner(store, decider), or set {agent.__name__}.decider"
            )
        specs: Sequence[ToolSpec] = [tool.spec for name, tool in self.tools_of(agent).items() if name == tool.name]
        decision: Decision | Awaitable[Decision] = decider.decide(state, specs)
        return decision

    def save(self, run: AgentRun) -> None:
        """Append what is pending, then tell it; a result that lost its place may still settle its own doubt."""
        events: list[AnyEvent] = list(run.pending_events)  # type: ignore[arg-type]  # triggered by AgentRun
        try:
            self.store.save(run)
        except RunMoved:
            for event in events:
                if isinstance(event, ToolResult):
                    self.store.record_late(run.state.run_id, event.idx, event.attempt, event.result)
            raise
        self._tell(run, events)

    def transact(self, run: AgentRun, body: Body) -> Outcome:
        """Run a body and record its result in one transaction of the store, or neither."""
        outcome: Outcome = Failed("TransactionLost", "the transaction was not committed", may_retry=True)
        events: list[AnyEvent] = []

        def act(session: Any) -> None:
            nonlocal outcome
            started = time.monotonic()
            try:
                outcome = body.tool.returned(body.call(session))
                session.flush()
            except Exception as error:
                outcome = body.raised(error)
            if time.monotonic() - started > TRANSACTION_LIMIT:
                outcome = Failed(
                    "TransactionLimit", f"{body.tool.name} held its transaction longer than {TRANSACTION_LIMIT:g} s"
                )
            if not isinstance(outcome, Returned):
                raise RolledBack
            run.record_result(body.idx, outcome.value)
            events.extend(run.pending_events)  # type: ignore[arg-type]  # triggered by AgentRun

        try:
            self.store.transact(run, act)
        except RolledBack:
            return outcome
        except NotApplied as refused:
            return body.raised(refused)
        self._tell(run, events)
        return outcome

    def deliver_late(self, body: Body, outcome: Outcome | BaseException) -> None:
        """Record the result of a body that nobody waits for any more, where it settles its own doubt."""
        if isinstance(outcome, Returned):
            self.store.record_late(body.run_id, body.idx, body.step.attempt, outcome.value)

    def tools_of(self, agent: type[AgentRun]) -> Mapping[str, Tool]:
        """Return the tools of an agent and those given to every run, by name and alias; raise ``BadTool``."""
        if agent not in self._known:
            named = by_name([*agent.agent_tools.values(), *self._tools])
            self._known[agent] = named
        return self._known[agent]

    def agent_of(self, state: RunState) -> type[AgentRun]:
        """Return the class that the run was started with, by its name; raise ``AgentUnknown``."""
        if state.agent in self._ran:
            return self._ran[state.agent]
        known: Iterable[type[AgentRun]] = (AgentRun, *_subclasses(AgentRun))
        if self._agents is not None:
            known = self._agents
        found = {agent for agent in known if agent.agent_name == state.agent}
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

    # Driving.

    def _start(
        self,
        agent: type[AgentRun],
        run_id: str | None,
        goal: str | None,
        input: Any,  # noqa: A002
        tags: Mapping[str, str] | None,
    ) -> tuple[AgentRun, bool]:
        self._ran[agent.agent_name] = agent
        if goal is None:
            if run_id is None:
                raise BadAgent("a new run needs a goal: run(agent, goal=...)")
            run = self._open(run_id, agent)
            check_same(run.state, agent.agent_name, None, None if input is None else canonical(input))
            return run, True
        state = self.store.start(agent, run_id=run_id or new_run_id(), goal=goal, input=input, tags=tags)
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
        may_probe = found
        while (wait := self._wait_before_next(run, may_probe=may_probe)) is not None:
            if wait:
                self.sleep(wait)
            drive(self._advance(run), self.performer())
            may_probe = False
        return replace(run.state, resumed=found)

    def _wait_before_next(self, run: AgentRun, *, may_probe: bool) -> float | None:
        """Return the seconds until the run can go on in this process; None where it cannot."""
        state = run.state
        if state.can_move:
            return 0.0
        if state.waiting_for == "retry" and state.wake_at is not None:
            wait = max(0.0, (state.wake_at - run.now).total_seconds())
            return wait if wait <= self.max_wait else None
        if state.waiting_for == "doubt" and may_probe:
            tools = self.tools_of(type(run))
            return 0.0 if any(step.tool in tools and tools[step.tool].probe for step in state.doubts) else None
        return None

    def _advance(self, run: AgentRun) -> Requests:
        tools = self.tools_of(type(run))
        if self.deps is None:
            tools = WithoutDeps(tools)
        return advance(run, tools, at_once=self.at_once or run.at_once, draw=self.draw)

    def _tell(self, run: AgentRun, events: Iterable[AnyEvent]) -> None:
        for event in events:
            self.on_event(_notice(run.state.run_id, event))

    def _tell_resumed(self, state: RunState) -> None:
        seq = state.version - 1
        if state.is_over:
            self.on_event(Notice("already_over", state.run_id, seq, text=f"{state.status}, nothing is executed"))
            return
        self.on_event(Notice("resumed", state.run_id, seq, text=state.goal))
        for step in state.steps:
            if not step.is_open:
                self.on_event(Notice("memoized", state.run_id, seq, step.idx, step.tool, step.attempt, step.key))


def to_the_end(body: Body) -> Outcome | BaseException:
    """Run a body in a thread, where nothing that it raises may be lost."""
    try:
        return body.run()
    except BaseException as error:  # the driver is told, and raises it
        return error


def outcome_of(idx: int, ended: Outcome | BaseException) -> Done:
    """Return how a body ended, or raise what ends more than itself."""
    if isinstance(ended, BaseException):
        raise ended
    return idx, ended


def finish(value: Any) -> Any:
    """Return the value, or what awaiting it gives, in a loop of its own: in a thread, where one runs here."""
    if not inspect.isawaitable(value):
        return value

    async def wait() -> Any:
        return await value

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wait()).result()


def spawn(function: Callable[..., object], *args: object) -> None:
    """Start a daemon thread: one that cannot be stopped must not keep the interpreter alive."""
    threading.Thread(target=function, args=args, daemon=True).start()


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


def _subclasses(cls: type[AgentRun]) -> Iterable[type[AgentRun]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _notice(run_id: str, event: AnyEvent) -> Notice:  # noqa: C901, PLR0912  # one branch per event
    kind: Kind
    match event:
        case LlmDecided(attempt=attempt):
            kind, text = "decided" if attempt == 0 else "attempted" if attempt == 1 else "attempted_again", event.args
        case ToolResult():
            kind, text = "completed", event.result
        case ToolFailed():
            kind, text = "failed", event.error
        case StepInDoubt():
            kind, text = "in_doubt", event.reason
        case DoubtSettled():
            kind, text = "settled", f"{event.outcome}, by {event.by}"
        case WaitBegan():
            kind, text = "waiting", f"until {event.wake_at:%Y-%m-%dT%H:%M:%SZ}"
        case WaitEnded():
            kind, text = "woken", event.reason
        case Parked():
            kind, text = "parked", event.reason
        case Requeued():
            kind, text = "requeued", f"by {event.by}"
        case CompensationBegan():
            kind, text = "compensating", f"by {event.by}"
        case CompensationEnded():
            kind, text = "compensated", ""
        case Finished():
            kind, text = "finished", event.answer
        case RunFailed():
            kind, text = "run_failed", event.reason
        case RunStarted():
            kind, text = "started", event.goal
        case _:
            assert_never(event)
    step = {name: getattr(event, name, None) for name in ("idx", "tool", "attempt", "key")}
    return Notice(kind, run_id, event.originator_version - 1, text=text, **step)
