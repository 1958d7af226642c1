"""Drives a step: two loops of ten lines, one blocking, one awaiting, and what performs the requests for each.

Rule 1: one generator is driven; there is no second copy of its logic.
Rule 2: a body that was started is never forgotten: its outcome is recorded, or it is late.
Rule 3: what ends more than a body, as ``sys.exit()`` does, is raised where the driver is, not lost in a thread.
"""

import asyncio
import inspect
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol, TypeVar, assert_never

from agent_es.decider import Answered, Decider
from agent_es.errors import AgentError
from agent_es.events import LlmDecided
from agent_es.run import AgentRun
from agent_es.scratchpad import Phase
from agent_es.state import Step
from agent_es.step import (
    Append,
    Decide,
    Enter,
    NextDone,
    Probe,
    Request,
    Requests,
    Start,
    Summarize,
    Transact,
    retry_of,
)
from agent_es.tools import Outcome, Probed, Returned, Tool, ToolContext, Unknown, Waits, describe

T = TypeVar("T")

NewWork = Decide | Summarize | Start | Transact | Probe | Enter
"""What is not begun under a lease that another worker has by now."""

SOON = 1.0
"""Seconds in which an outcome is at hand that a body has claimed to be the end of it."""

Done = tuple[int, Outcome]
Ended = tuple[int, Outcome | BaseException]
"""How a body ended: with an outcome, or with what ends more than itself, as ``sys.exit()`` does."""


class Acts(Protocol):
    """What a performer does its work through: a ``Runner``."""

    deps: Any

    def tools_of(self, agent: type[AgentRun], /) -> Mapping[str, Tool]:
        """Return the tools of an agent, by name."""
        ...

    def check_held(self, run: AgentRun, /) -> None:
        """Raise ``LeaseLost`` where another worker has the run."""
        ...

    def ask(self, run: AgentRun, decider: Decider | None, /) -> Answered | Awaitable[Answered]:
        """Ask a decider, or the run's own."""
        ...

    def summarize(self, run: AgentRun, phase: Phase, /) -> Any:
        """Ask the run's summarizer."""
        ...

    def save(self, run: AgentRun, /) -> None:
        """Append what is pending."""
        ...

    def enter(self, run: AgentRun, step: Step, /) -> tuple[datetime | None, bool]:
        """Ask the limits that all workers share when a step may start."""
        ...

    def transact(self, run: AgentRun, body: "Body", /) -> Outcome:
        """Run a body and record its result in one transaction of the store, or neither."""
        ...

    def deliver_late(self, body: "Body", outcome: Outcome | BaseException, /) -> None:
        """Record the result of a body that nobody waits for any more, where it is still wanted."""
        ...


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

    def __init__(self, runner: Acts, request: Start | Transact | Probe) -> None:
        self.run_id = request.run.state.run_id
        self.step = request.step
        self.tool = runner.tools_of(type(request.run))[request.step.tool]
        self.retry = retry_of(request.run, self.tool)
        self._deps = runner.deps
        self._view = type(request.run).of(request.run.state)
        self._lock = threading.Lock()
        self._is_over = False
        self._facts: dict[str, str] = {}

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
            return self.returned(value)
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

    def returned(self, value: Any) -> Outcome:
        """Say what a returned value means, with what the body wants to be remembered."""
        outcome = self.tool.returned(value)
        if self._facts and isinstance(outcome, Returned | Waits):
            return replace(outcome, facts=tuple(self._facts.items()))
        return outcome

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
                return self.returned(await value)
        except TimeoutError:
            if not limit.expired():
                raise
            return self.tool.timed_out(self.retry.timeout or 0)

    def _context(self, session: Any) -> ToolContext[Any]:
        step = self.step
        return ToolContext(self._deps, self.run_id, step.idx, step.attempt, step.key, session, self._facts)


class Threads:
    """Performs requests for a blocking driver: bodies run here, or in threads where there are several.

    A body with a limit on its time runs in a thread too.  One that passes it cannot be stopped: its attempt ends, and
    when it returns after all, its result is late.
    """

    def __init__(self, runner: Acts) -> None:
        self._runner = runner
        self._ready: deque[Body] = deque()
        self._flying: dict[int, tuple[Body, float]] = {}
        self._done: queue.SimpleQueue[Ended] = queue.SimpleQueue()

    def perform(self, request: Request, /) -> Any:  # noqa: PLR0911  # one answer per request
        """Do what is asked and return the answer."""
        if isinstance(request, Append):
            return self._runner.save(request.run)
        if isinstance(request, NextDone):
            return self.next_done()
        self._runner.check_held(request.run)
        match request:
            case Decide(run, decider):
                return finish(self._runner.ask(run, decider))
            case Summarize(run, phase):
                return finish(self._runner.summarize(run, phase))
            case Start():
                self._ready.append(Body(self._runner, request))
                return None
            case Transact(run):
                return self._runner.transact(run, Body(self._runner, request))
            case Probe():
                return Body(self._runner, request).probe()
            case Enter(run, step):
                return self._runner.enter(run, step)
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
        """Leave behind what still runs: its results will be late, as are those that nobody has asked for."""
        ended = [body for body, _ in self._flying.values() if not body.claim_end()]
        with suppress(queue.Empty):  # a signal's handler may have raised as one was taken
            for _ in ended:
                idx, outcome = self._done.get(timeout=SOON)
                deliver(self._runner, self._flying[idx][0], outcome)

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

    def __init__(self, runner: Acts) -> None:
        self._runner = runner
        self._done: asyncio.Queue[Ended] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flying: dict[int, Body] = {}
        self.cancelled: asyncio.CancelledError | None = None
        """Set once the caller was cancelled: what is known is recorded, then this is raised."""

    async def perform(self, request: Request) -> Any:  # noqa: C901, PLR0911  # one answer per request
        """Do what is asked and return the answer."""
        if isinstance(request, NewWork) and self.cancelled is None:
            await self.see_through(self._runner.check_held, request.run)
        match request:
            case Append(run):
                return await self._save(run)
            case NextDone():
                return await self._next_done()
            case Start():
                if self.cancelled is None:
                    self._start(Body(self._runner, request))
                return None
            case _ if self.cancelled is not None:
                raise self.cancelled
            case Decide(run, decider):
                decision = self._runner.ask(run, decider)
                return await decision if inspect.isawaitable(decision) else decision
            case Summarize(run, phase):
                summary = self._runner.summarize(run, phase)
                return await summary if inspect.isawaitable(summary) else summary
            case Transact(run):
                return await self.see_through(self._runner.transact, run, Body(self._runner, request))
            case Probe():
                return await asyncio.to_thread(Body(self._runner, request).probe)
            case Enter(run, step):
                return await self.see_through(self._runner.enter, run, step)
            case _:
                assert_never(request)

    async def _save(self, run: AgentRun) -> None:
        if self.cancelled is not None and any(isinstance(event, LlmDecided) for event in run.pending_events):
            raise self.cancelled
        await self.see_through(self._runner.save, run)

    async def see_through(self, work: Callable[..., T], *args: Any) -> T:
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
                return self._taken(*await self._done.get())
            except asyncio.CancelledError as error:
                self.cancelled = error
        if self._done.empty():
            raise self.cancelled
        return self._taken(*self._done.get_nowait())

    def _taken(self, idx: int, ended: Outcome | BaseException) -> Done:
        del self._flying[idx]
        return outcome_of(idx, ended)

    def _start(self, body: Body) -> None:
        self._flying[body.idx] = body
        if body.tool.is_async:
            task = asyncio.create_task(self._await(body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        loop = asyncio.get_running_loop()
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
        """Cancel what still runs; what cannot be cancelled has a late result, as has what nobody has asked for."""
        threads = [body for body in self._flying.values() if not body.tool.is_async]
        ended = {body.idx for body in threads if not body.claim_end()}
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while ended or not self._done.empty():
            idx, outcome = await self._done.get()  # it is there, or on its way
            ended.discard(idx)
            await self.see_through(deliver, self._runner, self._flying.pop(idx), outcome)


def to_the_end(body: Body) -> Outcome | BaseException:
    """Run a body in a thread, where nothing that it raises may be lost."""
    try:
        return body.run()
    except BaseException as error:  # the driver is told, and raises it
        return error


def deliver(runner: Acts, body: Body, ended: Outcome | BaseException) -> None:
    """Deliver a result late, where the store can be reached: else the step is in doubt, as where nothing came."""
    with suppress(AgentError):
        runner.deliver_late(body, ended)


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
