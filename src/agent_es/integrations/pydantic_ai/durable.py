"""``Agent(..., capabilities=[DurableRun(store)])``: the runs of an agent that have an id survive.

Rule 1: only public hooks of pydantic-ai are used; its loop, its validation and its models stay its own.
Rule 2: a run without an id of the caller's is none of ours: every hook lets it pass.
Rule 3: what belongs to one run is in the copy that is made for it; agents inside of tools have their own.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from types import new_class
from typing import Any, Self
from uuid import uuid4

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse, ToolCallPart, UserContent
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, ToolDefinition

from agent_es.envelope import Envelope
from agent_es.events import stream_id
from agent_es.heart import Heart
from agent_es.integrations.pydantic_ai.effects import Declared, Effects, FrameworkTool, Named, outside
from agent_es.integrations.pydantic_ai.replay import Replay
from agent_es.notices import OnEvent, ignore
from agent_es.run import AgentRun
from agent_es.state import RunState
from agent_es.store import RunStore
from agent_es.tools import Effect, Tool
from agent_es.values import bounded


class Unnamed(str):
    """The id of a run that the caller has given none: it is not durable."""

    __slots__ = ()


class DurableRun(AbstractCapability[AgentDepsT]):
    """Makes the runs of an agent durable to which ``run_id=`` is given.

    ``effects`` says of tools, by their names or patterns of names, what calling them twice would do; a tool may say
    so itself by ``metadata=effect(...)``.  Of one about which nothing is said the worst is assumed: ``at_most_once``.
    An ``envelope`` says what new runs may do.  A call that is to be retried is waited for up to ``max_wait`` seconds;
    a run is held by a lease of so many seconds, which is renewed beside it.  ``on_event`` is told each notice.

    ``agent.run(..., run_id="run-7f3a")`` starts the run, or goes on with the one of that id.  It raises
    ``RunHeld`` where another process has it, ``RequestDiverged`` where the program asks something else than it asked
    before, ``InDoubt`` where nobody knows what became of a call, ``RunUnfinished`` where it waits for a person, a
    signal or a time, ``RunHasFailed`` where somebody ended it, and ``RunConflict`` where another agent or prompt has
    that id.  Raises ``BadTool`` for effects that cannot be.
    """

    id: str | None = "durable_run"

    def __init__(
        self,
        store: RunStore,
        *,
        effects: Mapping[str, Effect | Named | Declared] | None = None,
        envelope: Envelope | None = None,
        max_wait: float = 5.0,
        lease: float = 30.0,
        on_event: OnEvent = ignore,
    ) -> None:
        self._effects = Effects(effects or {})
        self._envelope = envelope
        self._options = {
            "store": store,
            "max_wait": max_wait,
            "lease": lease,
            "on_event": on_event,
            "heart": Heart(store.leases),
        }
        self._agents: dict[str, type[AgentRun]] = {}
        self._replay: Replay | None = None

    @property
    def state(self) -> RunState | None:
        """The run as far as it is durable; None outside of one."""
        return None if self._replay is None else self._replay.state

    def tools(self, *names: str) -> Sequence[Tool]:
        """Return tools, by what ``effects`` says of them, for ``store.approve(..., args=..., tools=...)``.

        What arguments they take, the agent says: it validates those that a person gave before it makes the call.
        """
        return [FrameworkTool(made, self._effects.of(made)) for made in (ToolDefinition(name=name) for name in names)]

    # How it comes into a run.

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[AgentDepsT]]) -> AbstractCapability[AgentDepsT]:
        """Refuse: a run has one journal."""
        raise UserError(f"an agent has one DurableRun, not {len(capabilities)}: its runs have one journal each")

    def get_ordering(self) -> CapabilityOrdering:
        """Ask to stand next to what acts: the hooks of others are called on each pass, as the loop is."""
        return CapabilityOrdering(position="innermost")

    def get_default_run_id(self) -> str | None:
        """Mark a run to which no id was given."""
        return Unnamed(uuid4())

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return the same id after each resume."""
        return None if isinstance(run_id, Unnamed) else str(stream_id(run_id))

    async def for_run(self, ctx: RunContext[AgentDepsT]) -> Self:
        """Return what has the state of one run, or this one where the run is not durable."""
        if ctx.run_id is None or isinstance(ctx.run_id, Unnamed):
            return self
        name = (ctx.agent and ctx.agent.name) or "agent"
        return self._within(Replay(ctx.run_id, self._agent(name), self._effects, deps=ctx.deps, **self._options))

    def _within(self, replay: Replay) -> Self:
        durable = copy(self)
        vars(durable)["_replay"] = replay
        return durable

    def _agent(self, name: str) -> type[AgentRun]:
        """Return the class that stands for an agent of pydantic-ai: by its name, runs are found."""
        if name not in self._agents:
            named = {"agent_name": name}
            self._agents[name] = new_class("DurableAgent", (AgentRun,), exec_body=lambda body: body.update(named))
        return self._agents[name]

    # What it does there.

    async def wrap_run(
        self, ctx: RunContext[AgentDepsT], *, handler: Callable[[], Awaitable[AgentRunResult[Any]]]
    ) -> AgentRunResult[Any]:
        """Hold the run while the agent moves it, and record what it comes to."""
        if self._replay is None:
            return await handler()
        await self._replay.enter(_goal_of(ctx.prompt), self._envelope)
        try:
            result = await handler()
            await self._replay.finish(result.output)
        finally:
            await self._replay.leave()
        return result

    async def wrap_model_request(
        self,
        ctx: RunContext[AgentDepsT],  # noqa: ARG002  # as the hook is called
        *,
        request_context: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Return the answer that is on record, or ask for one."""
        if self._replay is None:
            return await handler(request_context)
        return await self._replay.request(request_context, handler)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,  # noqa: ARG002  # as the hook is called
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Return what is on record of a call, or make it."""
        if self._replay is None:
            return await outside(lambda: handler(args))
        return await self._replay.call(call, args, handler, is_approved=ctx.tool_call_approved)

    async def handle_deferred_tool_calls(
        self,
        ctx: RunContext[AgentDepsT],  # noqa: ARG002  # as the hook is called
        *,
        requests: DeferredToolRequests,
    ) -> DeferredToolResults | None:
        """Return what was said of calls that wait for somebody."""
        return None if self._replay is None else await self._replay.resolve(requests)


def _goal_of(prompt: str | Sequence[UserContent] | None) -> str:
    """Return what a run is for, as a text."""
    if prompt is None or isinstance(prompt, str):
        return bounded(prompt or "")
    return bounded("\n".join(part if isinstance(part, str) else f"({type(part).__name__})" for part in prompt))
