"""The only place that acts: performs what a step asks for, and tells what happened.

Rule 1: two loops of ten lines, one blocking, one awaiting, drive one generator; there is no second copy of it.
Rule 2: no transaction is open while a tool or a decider runs.
Rule 3: a lost append ends the execution of that run at once; what still runs beside it is cancelled, or left
behind in a daemon thread where it cannot be.
"""

import asyncio
import inspect
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, assert_never
from uuid import uuid4

from agent_es.decider import Decider, Decision
from agent_es.errors import AgentUnknown, BadAgent, BadDecision, BadTool
from agent_es.events import (
    AnyEvent,
    Finished,
    LlmDecided,
    RunFailed,
    RunStarted,
    StepInDoubt,
    ToolFailed,
    ToolResult,
)
from agent_es.run import AgentRun
from agent_es.state import RunState, Status
from agent_es.step import Append, Decide, NextDone, Request, Requests, Start, advance
from agent_es.store import RunStore, check_same
from agent_es.telemetry import Kind, Notice, OnEvent, ignore
from agent_es.tools import Outcome, Tool, ToolContext, ToolSpec
from agent_es.values import canonical

T = TypeVar("T")

Done = tuple[int, Outcome]


class Performer(Protocol):
    """Performs the requests of a step, blocking."""

    def perform(self, request: Request, /) -> Any:
        """Do what is asked and return the answer."""
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

    def __init__(self, runner: "Runner", request: Start) -> None:
        step = request.step
        self.idx = step.idx
        self.tool = runner.tools_of(type(request.run))[step.tool]
        self._deps = runner.deps
        self._view = type(request.run).of(request.run.state)
        self._step = step

    def call(self) -> Any:
        """Call the function; an asynchronous one gives an awaitable."""
        step = self._step
        context = ToolContext(self._deps, self._view.state.run_id, step.idx, step.attempt, step.key)
        return self.tool.bind(self._view, context, step.args_json)()

    def run(self) -> Done:
        """Call the function here, and wait for it."""
        try:
            return self.idx, self.tool.returned(finish(self.call()))
        except Exception as error:  # the tool's effect says what it means
            return self.idx, self.tool.raised(error)

    async def arun(self) -> Done:
        """Await an asynchronous function here; the outcome of any other comes from a thread."""
        try:
            return self.idx, self.tool.returned(await self.call())
        except Exception as error:  # the tool's effect says what it means
            return self.idx, self.tool.raised(error)


class Threads:
    """Performs requests for a blocking driver: bodies run here, or in threads where there are several."""

    def __init__(self, runner: "Runner") -> None:
        self._runner = runner
        self._ready: deque[Body] = deque()
        self._flying = 0
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()

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
            case _:
                assert_never(request)

    def next_done(self) -> Done:
        """Return the outcome of the body that ended first."""
        if len(self._ready) == 1 and not self._flying:
            return self._ready.popleft().run()
        while self._ready:
            self._flying += 1
            spawn(self._work, self._ready.popleft())
        done = self._done.get()
        self._flying -= 1
        return done

    def _work(self, body: Body) -> None:
        self._done.put(body.run())


class Tasks:
    """Performs requests for an awaiting driver: asynchronous bodies are tasks, the others run in threads.

    A cancelled caller is cancelled as soon as what is known is recorded: an append under way gets its answer, and
    the results that are there already are appended.  Nothing new is decided or started.
    """

    def __init__(self, runner: "Runner") -> None:
        self._runner = runner
        self._done: asyncio.Queue[Done] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cancelled: asyncio.CancelledError | None = None
        """Set once the caller was cancelled: what is known is recorded, then this is raised."""

    async def perform(self, request: Request) -> Any:
        """Do what is asked and return the answer."""
        match request:
            case Append(run):
                await self._append(run)
            case NextDone():
                return await self._next_done()
            case Decide(run):
                if self.cancelled is not None:
                    raise self.cancelled
                decision = self._runner.ask(run)
                return await decision if inspect.isawaitable(decision) else decision
            case Start():
                if self.cancelled is None:
                    self._start(Body(self._runner, request))
            case _:
                assert_never(request)
        return None

    async def _append(self, run: AgentRun) -> None:
        appending = asyncio.ensure_future(asyncio.to_thread(self._runner.save, run))
        while not appending.done():
            try:
                await asyncio.wait([appending])
            except asyncio.CancelledError as error:
                self.cancelled = error
        appending.result()

    async def _next_done(self) -> Done:
        if self.cancelled is None:
            try:
                return await self._done.get()
            except asyncio.CancelledError as error:
                self.cancelled = error
        if self._done.empty():
            raise self.cancelled
        return self._done.get_nowait()

    def _start(self, body: Body) -> None:
        if body.tool.is_async:
            task = asyncio.create_task(self._await(body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            spawn(self._work, body, asyncio.get_running_loop())

    async def _await(self, body: Body) -> None:
        self._done.put_nowait(await body.arun())

    def _work(self, body: Body, loop: asyncio.AbstractEventLoop) -> None:
        done = body.run()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._done.put_nowait, done)

    async def close(self) -> None:
        """Cancel what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Runner:
    """Moves runs forward in this process.

    ``deps`` reaches tools as ``ctx.deps``; ``tools`` are functions given to every run beside its agent's own;
    ``agents`` are the classes to find a run's agent among (all that the program defines, where left out);
    ``at_once`` bounds the bodies that run beside each other; ``on_event`` is told each ``Notice``.
    """

    def __init__(
        self,
        store: RunStore,
        decider: Decider | None = None,
        *,
        deps: Any = None,
        tools: Iterable[Tool] = (),
        agents: Iterable[type[AgentRun]] | None = None,
        at_once: int = 8,
        on_event: OnEvent = ignore,
    ) -> None:
        if at_once < 1:
            raise BadAgent(f"at_once={at_once}: at least one body must be allowed to run")
        self.store = store
        self.decider = decider
        self.deps = deps
        self.at_once = at_once
        self.on_event = on_event
        self._agents = None if agents is None else tuple(agents)
        self._ran: dict[str, type[AgentRun]] = {}
        self._tools = _by_name(tools)

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
        while can_move(run.state):
            await adrive(self._advance(run), Tasks(self))
        return replace(run.state, resumed=found)

    def resume(self, run_id: str) -> RunState:
        """Drive a run that was started before until it is over or waits; raise ``RunNotFound``."""
        return self._drive(self._open(run_id), found=True)

    def step(self, run_id: str) -> RunState:
        """Move a run exactly one step: one decision and the calls that it made."""
        run = self._open(run_id)
        if can_move(run.state):
            drive(self._advance(run), self.performer())
        return replace(run.state, resumed=True)

    # What the performers call.

    def ask(self, run: AgentRun) -> Decision | Awaitable[Decision]:
        """Ask the run's decider, which sees the tools of its agent."""
        agent, state = type(run), run.state
        decider = self.decider or agent.decider
        if decider is None:
            raise BadDecision(
                f"run {state.run_id}: nothing decides; pass Runner(store, decider), or set {agent.__name__}.decider"
            )
        specs: Sequence[ToolSpec] = [tool.spec for tool in self.tools_of(agent).values()]
        decision: Decision | Awaitable[Decision] = decider.decide(state, specs)
        return decision

    def save(self, run: AgentRun) -> None:
        """Append what is pending, then tell it."""
        events: list[AnyEvent] = list(run.pending_events)  # type: ignore[arg-type]  # triggered by AgentRun
        self.store.save(run)
        for event in events:
            self.on_event(_notice(run.state.run_id, event))

    def tools_of(self, agent: type[AgentRun]) -> Mapping[str, Tool]:
        """Return the tools of an agent and those given to every run, by name; raise ``BadTool`` on a clash."""
        for name in self._tools.keys() & agent.agent_tools.keys():
            raise BadTool(f"two tools are called {name!r}: one of {agent.__name__}, one of tools=[...]")
        return {**agent.agent_tools, **self._tools}

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
        state = self.store.start(agent, run_id=run_id or f"run-{uuid4().hex[:12]}", goal=goal, input=input, tags=tags)
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
        while can_move(run.state):
            drive(self._advance(run), self.performer())
        return replace(run.state, resumed=found)

    def _advance(self, run: AgentRun) -> Requests:
        return advance(run, self.tools_of(type(run)), at_once=self.at_once)

    def _tell_resumed(self, state: RunState) -> None:
        seq = state.version - 1
        if state.is_over:
            self.on_event(Notice("already_over", state.run_id, seq, text=f"{state.status}, nothing is executed"))
            return
        self.on_event(Notice("resumed", state.run_id, seq, text=state.goal))
        for step in state.steps:
            if not step.is_open:
                self.on_event(Notice("memoized", state.run_id, seq, step.idx, step.tool, step.attempt, step.key))


def can_move(state: RunState) -> bool:
    """Whether a run can go on now."""
    return state.status in (Status.PENDING, Status.RUNNING)


def finish(value: T | Awaitable[T]) -> T:
    """Return the value, or what awaiting it gives, in a loop of its own."""
    if not inspect.isawaitable(value):
        return value

    async def wait() -> T:
        return await value

    return asyncio.run(wait())


def spawn(function: Callable[..., object], *args: object) -> None:
    """Start a daemon thread: one that cannot be stopped must not keep the interpreter alive."""
    threading.Thread(target=function, args=args, daemon=True).start()


def _by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    named: dict[str, Tool] = {}
    for tool in tools:
        if not isinstance(tool, Tool):
            raise BadTool(f"{tool!r} is no tool; declare it with @tool(effect=...)")
        if tool.name in named:
            raise BadTool(f"two tools are called {tool.name!r}")
        named[tool.name] = tool
    return named


def _subclasses(cls: type[AgentRun]) -> Iterable[type[AgentRun]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _notice(run_id: str, event: AnyEvent) -> Notice:
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
