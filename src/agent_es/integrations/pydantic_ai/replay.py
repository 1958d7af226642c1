"""One durable run of a pydantic-ai agent on its way: its journal answers what it has an answer to.

Rule 1: pydantic-ai runs its loop from the start each time; what is on record is given back, not done again.
Rule 2: the n-th request is answered by the n-th answer on record, and a call is found by its place in that answer.
Rule 3: nobody touches the run but who has its lock; it is given away only while a body is awaited.
Rule 4: where a call cannot go on, the calls beside it come to their end first; then the agent's run stops.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, SkipModelRequest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDefinition, ToolDenied
from pydantic_core import to_jsonable_python

from agent_es.decider import OnlySaid, Said, Used
from agent_es.drivers import Tasks, adrive
from agent_es.envelope import Asks, Envelope
from agent_es.errors import AgentError, BadTool, InDoubt, RequestDiverged, RunConflict, RunUnfinished, StepUnplayable
from agent_es.integrations.pydantic_ai.answers import price_of
from agent_es.integrations.pydantic_ai.effects import (
    AsksFirst,
    Effects,
    FrameworkTool,
    outside,
    raise_told,
    signal_of,
)
from agent_es.integrations.pydantic_ai.kept import Kept, response_as_data, response_from_data
from agent_es.integrations.pydantic_ai.pieces import Piece, Questions, check_same
from agent_es.run import AgentRun
from agent_es.runtime import Runner
from agent_es.state import RunState, Step
from agent_es.step import NextDone, Request, act, decide
from agent_es.tools import CallTool, Failed, Tool
from agent_es.values import canonical, decode
from agent_es.waits import WaitFor

OWN_KINDS = frozenset(("tool-search", "capability-load"))
"""Tools of pydantic-ai itself: they change nothing but what the agent knows, and run each time."""

AT_ONCE = 1
"""Each call of a turn is driven by itself."""


class Replay:
    """Answers what an agent's run asks for: out of the journal, or by doing it and recording it."""

    def __init__(self, run_id: str, agent: type[AgentRun], effects: Effects, **options: Any) -> None:
        self._tools: dict[str, FrameworkTool] = {}
        self._runner = _Mover(self._tools, **options)
        self._run_id = run_id
        self._agent = agent
        self._effects = effects
        self._run: AgentRun = agent.of(RunState(run_id=run_id))
        self._lock = asyncio.Lock()
        self._questions = Questions()
        self._asked = 0
        """How many requests were answered."""
        self._bodies: dict[int, Callable[[], Awaitable[Any]]] = {}
        self._steps: dict[str, int] = {}
        """The steps of the latest answer, by the ids of its calls."""
        self._beside = _Beside()

    @property
    def state(self) -> RunState:
        """The run as far as it is durable."""
        return self._run.recorded

    # Opening and closing.

    async def enter(self, goal: str, envelope: Envelope | None) -> None:
        """Start the run or find it, and hold it where it is not over."""
        tasks = Tasks(self._runner)
        await tasks.see_through(self._enter, goal, envelope)
        if tasks.cancelled is not None:  # while the lease was taken: it is given back
            await self.leave()
            raise tasks.cancelled

    def _enter(self, goal: str, envelope: Envelope | None) -> None:
        state = self._found(goal, envelope)
        self._run = self._agent.of(state, self._runner.store.clock)
        if state.failure is not None or state.is_held:
            state.result()
        if not state.is_over:
            self._run = self._runner.hold(self._run)

    def _found(self, goal: str, envelope: Envelope | None) -> RunState:
        """Start the run or find it; what it was asked for is on record with its first request."""
        try:
            return self._runner.store.start(self._agent, run_id=self._run_id, goal=goal, envelope=envelope)
        except RunConflict:
            state = self._runner.store.load(self._run_id)
            if state.agent != self._agent.agent_name or not state.answers:
                raise
            return state

    async def leave(self) -> None:
        """Give back the lease."""
        await Tasks(self._runner).see_through(self._runner.let_go, self._run)

    async def finish(self, output: Any) -> None:
        """Record what the agent's run came to."""
        async with self._lock:
            if self._run.state.is_over:
                self._run.state.result()
                return
            self._end_unmade([])
            plain = to_jsonable_python(output, serialize_unknown=True)
            self._run.record_answer(canonical(plain))
            await self._save()

    # What is asked of the model.

    async def request(
        self, request: ModelRequestContext, handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Return the answer that is on record; else ask, and record the answer and the calls that it makes."""
        async with self._lock:
            now = self._questions.new_in(request)
            parameters = request.model_request_parameters
            self._tools.clear()
            self._tools.update({tool.name: self._tool_of(tool) for tool in parameters.function_tools})
            if self._asked == len(self._run.state.answers):
                self._check_not_over()
                self._end_unmade(request.messages)
                await self._ask(_Asked(request, handler, now))
            answer = self._run.state.answers[self._asked]
            recorded: Sequence[Piece] = decode(answer.request_json or "[]")
            check_same(self._run_id, self._asked, recorded, now)
            response = response_from_data(decode(answer.answer_json))
            calls = _calls_of(response, _not_ours(request))
            self._steps = {call.tool_call_id: answer.first + n for n, call in enumerate(calls)}
            self._bodies.clear()
            self._questions.answered(response)
            self._asked += 1
            return response

    def _tool_of(self, definition: ToolDefinition) -> FrameworkTool:
        return FrameworkTool(definition, self._effects.of(definition), self._bodies)

    def _check_not_over(self) -> None:
        """Raise where the run is over, and yet something is asked."""
        if self._run.state.is_over:
            self._run.state.result()
            raise RequestDiverged(
                f"run {self._run_id} is done after {self._asked} requests, and the model would be asked once more; "
                "nothing was done.  Run the program as it was, or start another run id"
            )

    async def _ask(self, asked: "_Asked") -> None:
        while len(self._run.state.answers) == self._asked:
            if self._run.state.is_over or self._run.state.is_held:
                self._run.state.result()
            await self._hold()
            await adrive(decide(self._run, self._tools, asked), Tasks(self._runner))

    # What is asked of tools.

    async def call(
        self,
        call: ToolCallPart,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
        *,
        is_approved: bool,
    ) -> Any:
        """Return what a call gave, as it is on record; else make it, and record what it gave."""
        idx = self._steps.get(call.tool_call_id)
        if idx is None:  # made inside of another call, or of a tool of pydantic-ai itself
            return await outside(lambda: handler(args))
        gate = self._step(idx).approval
        if gate is not None and not is_approved:
            raise ApprovalRequired
        self._bodies[idx] = lambda: handler(args)
        with self._beside.moving(idx):
            wait = await self._move(idx)
            while wait is not None:
                await asyncio.sleep(wait)
                wait = await self._move(idx)
        step = self._step(idx)
        if step.status in ("waiting", "gated"):
            raise CallDeferred if step.status == "waiting" else ApprovalRequired
        if step.is_open:
            await self._beside.all_still()
            raise self._why_open(step)
        return _told(step)

    def _step(self, idx: int) -> Step:
        return self._run.state.steps[idx]

    async def _move(self, idx: int) -> float | None:
        """Go on with a step; return the seconds until it can go on again, None where it does not."""
        async with self._lock:
            step = self._step(idx)
            if not step.is_open or self._run.state.is_over:
                return None
            wait = 0.0 if step.retry_at is None else (step.retry_at - self._run.now).total_seconds()
            if wait > 0:
                return wait if wait <= self._runner.max_wait else None
            await self._hold()
            asks_first = await self._act(idx)
            if asks_first:
                self._ask_person(idx, "ApprovalRequired")
                await self._save()
            step = self._step(idx)
            return 0.0 if step.status == "retrying" else None

    async def _act(self, idx: int) -> bool:
        """Drive a step; say whether its body asks for a person's yes first."""
        try:
            await adrive(
                act(
                    self._run,
                    self._tools,
                    at_once=AT_ONCE,
                    draw=self._runner.draw,
                    limited=self._held_to(),
                    only={idx},
                ),
                _Sharing(self._runner, self._lock),
            )
        except AsksFirst:
            return True
        return False

    def _held_to(self) -> Sequence[str]:
        """Return the tools that are held to a limit that all workers share."""
        known = self._runner.store.rates.limited
        return [name for name in self._tools if name in known]

    def _why_open(self, step: Step) -> AgentError:
        """Say why a step has no outcome yet, and what is to be done."""
        where = f"run {self._run_id} step {step.idx} ({step.tool})"
        if step.status == "in_doubt":
            return InDoubt(
                f"{where} is in doubt: {step.doubt}; find out, then say: agent-es settle {self._run_id} {step.idx} "
                "--happened, or --did-not-happen; then run the agent again"
            )
        if step.status == "retrying":
            return RunUnfinished(
                f"{where} is tried again at {step.retry_at:%Y-%m-%dT%H:%M:%SZ}; run the agent again then"
            )
        state = self._run.state
        why = state.failure or state.parked or state.paused or state.status
        return RunUnfinished(f"{where} is {step.status}, and the run does not go on: {why}")

    # What people are asked, and what comes from elsewhere.

    async def resolve(self, requests: DeferredToolRequests) -> DeferredToolResults:
        """Return what people and signals have said of calls; stop the agent's run where that is still to come."""
        approvals = {call.tool_call_id: self._steps[call.tool_call_id] for call in self._ours(requests.approvals)}
        elsewhere = {call.tool_call_id: self._steps[call.tool_call_id] for call in self._ours(requests.calls)}
        async with self._lock:
            for idx in approvals.values():
                if self._step(idx).status == "queued" and self._step(idx).approval is None:
                    self._ask_person(idx, "requires_approval")
            for idx in elsewhere.values():
                if self._step(idx).status == "queued":
                    self._run.record_wait_of(idx, WaitFor(signal_of(self._step(idx).tool, idx)))
            await self._save()
            if waits := [idx for idx in (*elsewhere.values(), *approvals.values()) if self._is_awaited(idx)]:
                await self._hold()
                await adrive(
                    act(self._run, self._tools, at_once=AT_ONCE, draw=self._runner.draw, only={*waits}),
                    Tasks(self._runner),
                )
            if awaited := [
                self._awaited(idx) for idx in (*approvals.values(), *elsewhere.values()) if self._is_awaited(idx)
            ]:
                raise RunUnfinished(
                    f"run {self._run_id} waits for {'; for '.join(awaited)}; then run the agent again"
                )
        return DeferredToolResults(
            approvals={call_id: self._answer(idx) for call_id, idx in approvals.items()},
            calls={call_id: _told(self._step(idx)) for call_id, idx in elsewhere.items()},
        )

    def _ours(self, calls: Sequence[ToolCallPart]) -> list[ToolCallPart]:
        return [call for call in calls if call.tool_call_id in self._steps]

    def _is_awaited(self, idx: int) -> bool:
        return self._step(idx).status in ("gated", "waiting")

    def _awaited(self, idx: int) -> str:
        step = self._step(idx)
        if step.status == "gated":
            return f"a yes to step {idx} ({step.tool}): agent-es approve {self._run_id} {idx}"
        return f"what step {idx} ({step.tool}) gives: agent-es signal {self._run_id} {step.awaits}"

    def _ask_person(self, idx: int, rule: str) -> None:
        """Record that a person must say yes to a step; an attempt that asked for that did nothing."""
        step = self._step(idx)
        if step.status == "started" and step.key is None:
            raise BadTool(
                f"tool {step.tool}: it reads, and raised ApprovalRequired; declare it with requires_approval=True, "
                "or with another effect"
            )
        if step.status == "started":
            self._run.record_settlement(idx, "did_not_happen", rule)
        tool = self._tools[step.tool]
        self._run.record_asked(idx, Asks(rule), canonical(dict(tool.as_called(step.args_json))))

    def _answer(self, idx: int) -> ToolApproved | ToolDenied:
        """Return what a person said of a call."""
        step = self._step(idx)
        error = step.error or {}
        if step.status == "failed" and error.get("type") == "Denied":
            return ToolDenied(error["message"])
        gate = step.approval
        is_edited = gate is not None and gate.edited_by is not None
        return ToolApproved(override_args=dict(step.args) if is_edited else None)

    # Calls that are not made.

    def _end_unmade(self, messages: Sequence[ModelMessage]) -> None:
        """Record why calls were not made: what pydantic-ai answers instead of making them."""
        told = {part.tool_call_id: part for part in _returns_of(messages)}
        ids = {idx: call_id for call_id, idx in self._steps.items()}
        for step in self._run.state.open_steps:
            part = told.get(ids.get(step.idx, ""))
            why = "the agent's run ended without it" if part is None else part.model_response_str()
            if step.status == "gated":
                self._run.record_denied(step.idx, "the agent", why)
            elif step.status == "queued":
                kind = "NotValid" if part is not None and part.outcome == "retried" else "NotExecuted"
                self._run.record_failure(step.idx, Failed(kind, why))
            else:
                raise StepUnplayable(
                    f"run {self._run_id} step {step.idx} ({step.tool}) is {step.status}, and this program does not "
                    "make its call any more; run the program as it was"
                )

    # The rest is how.

    async def _hold(self) -> None:
        """Take the lease again, where an append gave it back."""
        if self._run.lease is None:
            tasks = Tasks(self._runner)
            self._run = await tasks.see_through(self._runner.hold, self._run)
            if tasks.cancelled is not None:
                raise tasks.cancelled

    async def _save(self) -> None:
        if self._run.pending_events:
            tasks = Tasks(self._runner)
            await tasks.see_through(self._runner.save, self._run)
            if tasks.cancelled is not None:
                raise tasks.cancelled


class _Mover(Runner):
    """Moves one run, with the tools that its agent has by now."""

    def __init__(self, tools: Mapping[str, Tool], **options: Any) -> None:
        super().__init__(**options)
        self._now = tools

    def tools_of(self, agent: type[AgentRun]) -> Mapping[str, Tool]:  # noqa: ARG002  # one run, one agent
        """Return the tools that the agent has now."""
        return self._now

    def ask(self, run: AgentRun, decider: Any = None) -> Any:
        """Ask the model, which is told of tools by pydantic-ai."""
        return decider.decide(run.state, ())


class _Asked:
    """Asks the model once, whatever comes in between: a decider for one request."""

    memory = None

    def __init__(
        self,
        request: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
        pieces: Sequence[Piece],
    ) -> None:
        self._request = request
        self._handler = handler
        self._pieces = pieces
        self._response: ModelResponse | None = None

    async def decide(self, run: RunState, _: Any, /) -> Used:  # noqa: ARG002  # pydantic-ai has the messages
        """Return the calls that the model makes, and what it said, word for word."""
        if self._response is None:
            try:
                self._response = _with_ids(await self._handler(self._request))
            except SkipModelRequest as skipped:
                self._response = _with_ids(skipped.response)
        response = self._response
        calls = [
            CallTool(call.tool_name, call.args or {}, call.tool_call_id)
            for call in _calls_of(response, _not_ours(self._request))
        ]
        tokens = response.usage.input_tokens + response.usage.output_tokens
        said = Said(
            response.model_name or self._request.model.model_name,
            response_as_data(response),
            response.finish_reason,
            tokens or None,
            [dict(piece) for piece in self._pieces],
        )
        return Used(calls or OnlySaid(), tokens=tokens, cost=price_of(response), said=said)


class _Sharing(Tasks):
    """Performs the requests of one step, and lets others have the run while its body is awaited."""

    def __init__(self, runner: Runner, lock: asyncio.Lock) -> None:
        super().__init__(runner)
        self._lock = lock

    async def perform(self, request: Request) -> Any:
        """Do what is asked and return the answer."""
        if not isinstance(request, NextDone):
            return await super().perform(request)
        self._lock.release()
        try:
            return await super().perform(request)
        finally:
            await self._take_back()

    async def _take_back(self) -> None:
        """Take the lock again, whoever is cancelled meanwhile."""
        while True:
            try:
                await self._lock.acquire()
            except asyncio.CancelledError as error:
                self.cancelled = error
            else:
                return


class _Beside:
    """The calls of a turn that are on their way."""

    def __init__(self) -> None:
        self._moving: set[int] = set()
        self._still = asyncio.Event()
        self._still.set()

    def moving(self, idx: int) -> "_Moving":
        """Count a call as being on its way meanwhile."""
        return _Moving(self._moving, self._still, idx)

    async def all_still(self) -> None:
        """Wait until no call is on its way."""
        await self._still.wait()


class _Moving:
    def __init__(self, moving: set[int], still: asyncio.Event, idx: int) -> None:
        self._moving, self._still, self._idx = moving, still, idx

    def __enter__(self) -> None:
        self._moving.add(self._idx)
        self._still.clear()

    def __exit__(self, *_: object) -> None:
        self._moving.discard(self._idx)
        if not self._moving:
            self._still.set()


def _not_ours(request: ModelRequestContext) -> frozenset[str]:
    """Return the tools whose calls are no steps: those that give the output, and pydantic-ai's own."""
    asked = request.model_request_parameters
    own = [tool.name for tool in asked.function_tools if tool.tool_kind in OWN_KINDS]
    return frozenset([*(tool.name for tool in asked.output_tools), *own])


def _calls_of(response: ModelResponse, not_ours: frozenset[str]) -> list[ToolCallPart]:
    return [part for part in response.parts if isinstance(part, ToolCallPart) and part.tool_name not in not_ours]


def _with_ids(response: ModelResponse) -> ModelResponse:
    """Return a response in which each call has an id of its own: pydantic-ai finds a call by it."""
    seen: set[str] = set()
    parts = []
    for n, part in enumerate(response.parts):
        if isinstance(part, ToolCallPart):
            if not part.tool_call_id or part.tool_call_id in seen:
                part = replace(part, tool_call_id=f"{part.tool_call_id or 'call'}-{n}")  # noqa: PLW2901
            seen.add(part.tool_call_id)
        parts.append(part)
    return replace(response, parts=parts)


def _returns_of(messages: Sequence[ModelMessage]) -> list[ToolReturnPart]:
    last = messages[-1] if messages else None
    return [part for part in last.parts if isinstance(part, ToolReturnPart)] if isinstance(last, ModelRequest) else []


def _told(step: Step) -> Any:
    """Return what a step gave, or raise what the model is told of it."""
    if step.status == "failed":
        raise_told(step.error or {})
    if step.woken is not None:
        return step.woken.payload
    return Kept().decode(step.value_json or "null")
