"""What calling a tool of pydantic-ai twice would do, and the tool as a step of ours knows it.

Rule 1: an effect is declared, never guessed: a tool about which nothing is said is ``AT_MOST_ONCE``.
Rule 2: what the program that makes the agent says by name comes before what the tool says of itself.
Rule 3: pydantic-ai validates arguments and calls functions; here they are what the journal holds.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, Never

from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    SkipToolExecution,
    ToolFailed,
    ToolFailedError,
    ToolRetryError,
    UnexpectedModelBehavior,
)
from pydantic_ai.tools import ToolDefinition

from agent_es.errors import BadArguments, BadTool
from agent_es.integrations.pydantic_ai.kept import Kept
from agent_es.tools import MAX_NAME, Effect, Failed, OnDoubt, OnKeyReuse, Outcome, Retry, Tool, ToolContext, ToolSpec
from agent_es.values import decode
from agent_es.waits import WaitFor

Named = Literal["read", "idempotent", "probed", "at_most_once"]
Declared = Mapping[str, Any]
"""What is said of a tool: its ``effect``, and the options of ``effect``."""

OPTIONS = frozenset(
    ("effect", "key", "retry", "probe", "settle_after", "key_ttl", "on_doubt", "on_key_reuse", "max_result_bytes")
)

_under_way: ContextVar[ToolContext[Any] | None] = ContextVar("agent_es_step", default=None)


def effect(
    effect: Effect | Named,
    *,
    key: str | None = None,
    retry: Retry | None = None,
    probe: Callable[..., Any] | None = None,
    settle_after: float | None = None,
    key_ttl: float | None = None,
    on_doubt: OnDoubt | None = None,
    on_key_reuse: OnKeyReuse | None = None,
    max_result_bytes: int | None = None,
) -> dict[str, Any]:
    """Say what calling a tool twice would do: as ``@agent.tool(metadata=effect("read"))``, or by the tool's name.

    The options are those of ``agent_es.tool``; ``key`` is a template over the arguments of a call as JSON has them.
    Raises ``BadTool`` for what cannot work; ``TRANSACTIONAL`` is none that a tool of pydantic-ai can have.
    """
    given = {
        "effect": effect,
        "key": key,
        "retry": retry,
        "probe": probe,
        "settle_after": settle_after,
        "key_ttl": key_ttl,
        "on_doubt": on_doubt,
        "on_key_reuse": on_key_reuse,
        "max_result_bytes": max_result_bytes,
    }
    declared = {name: value for name, value in given.items() if value is not None}
    FrameworkTool(ToolDefinition(name="tool"), declared)
    return declared


def idempotency_key() -> str | None:
    """Return the key of the call that is being made: the same text at every attempt at it.

    None outside of a durable run, and in a tool that reads.
    """
    ctx = _under_way.get()
    return None if ctx is None else ctx.idempotency_key


async def outside(call: Callable[[], Awaitable[Any]]) -> Any:
    """Make a call that is no step of a run: what is under way around it is not its own."""
    token = _under_way.set(None)
    try:
        return await call()
    finally:
        _under_way.reset(token)


class Effects:
    """What is said of tools, by their names or patterns of names: the first one that fits counts."""

    def __init__(self, named: Mapping[str, Effect | Named | Declared]) -> None:
        self._named = {
            name: _options(name, said if isinstance(said, Mapping) else {"effect": said})
            for name, said in named.items()
        }
        for name, declared in self._named.items():
            FrameworkTool(ToolDefinition(name=name), declared)

    def of(self, definition: ToolDefinition) -> Declared:
        """Return what is said of a tool."""
        name = definition.name
        if name in self._named:
            return self._named[name]
        for pattern, declared in self._named.items():
            if fnmatchcase(name, pattern):
                return declared
        said = definition.metadata or {}
        if "effect" not in said:
            return {"effect": Effect.AT_MOST_ONCE}
        return {option: value for option, value in said.items() if option in OPTIONS}


def _options(name: str, said: Declared) -> Declared:
    if unknown := sorted(map(str, {*said} - OPTIONS)):
        raise BadTool(f"tool {name}: {', '.join(unknown)} is nothing that can be said of it; see effect(...)")
    return said


class FrameworkTool(Tool):
    """A tool of pydantic-ai as a step knows it; ``bodies`` has what makes the call of each step."""

    def __init__(
        self,
        definition: ToolDefinition,
        declared: Declared,
        bodies: Mapping[int, Callable[[], Awaitable[Any]]] | None = None,
    ) -> None:
        options = {**declared}
        known = _effect_of(definition, options.pop("effect", None))
        super().__init__(_call, effect=known, name=_as_identifier(definition.name), **options)
        self.name = definition.name
        self.schema = definition.parameters_json_schema
        self.description = definition.description or ""
        self.needs_deps = False
        self._bodies = {} if bodies is None else bodies
        properties = self.schema.get("properties", {})
        self._parameters = frozenset(properties)
        self._defaults = {name: said["default"] for name, said in properties.items() if "default" in said}
        self._result: Any = Kept()
        self._resolve_probe(None)

    @cached_property
    def spec(self) -> ToolSpec:
        """What a decider sees."""
        return ToolSpec(self.name, self.description, self.schema, self.effect)

    def validated(self, args: str, *, strictly: bool = False) -> dict[str, Any]:  # noqa: ARG002  # of the base class
        """Return journaled arguments as they are: pydantic-ai has checked them."""
        given: dict[str, Any] = decode(args)
        return given

    def as_called(self, args: str) -> Mapping[str, Any]:
        """Return the arguments as JSON has them, with the defaults that the schema tells of."""
        return {**self._defaults, **self.validated(args)}

    def key_for(self, run_id: str, idx: int, args: str) -> str | None:
        """Return the key of a call; what the schema calls a number counts as one."""
        if self.effect is Effect.READ:
            return None
        given = {name: self._number(name, value) for name, value in self.as_called(args).items()}
        try:
            return self._filled({**given, "run_id": run_id, "idx": idx, "tool": self.name})
        except KeyError as missing:
            raise BadArguments(f"{self.name}: no key can be made without the argument {missing}") from None

    def _number(self, name: str, value: Any) -> Any:
        said = self.schema.get("properties", {}).get(name, {})
        kinds = {one.get("type") for one in [said, *said.get("anyOf", [])]}
        if not isinstance(value, str) or not kinds & {"number", "integer"}:
            return value
        try:
            return Decimal(value)
        except InvalidOperation:
            return value

    def bind(self, run: object, ctx: ToolContext[Any], args: str) -> Callable[[], Awaitable[Any]]:  # noqa: ARG002
        """Return the call of a step, which finds its key while it is made."""
        make = self._bodies[ctx.idx]

        async def body() -> Any:
            token = _under_way.set(ctx)
            try:
                return await make()
            except SkipToolExecution as skipped:
                return skipped.result
            except CallDeferred:
                return WaitFor(signal_of(self.name, ctx.idx))
            except ApprovalRequired:
                raise AsksFirst from None
            finally:
                _under_way.reset(token)

        return body

    def raised(self, error: BaseException, retry: Retry, *, first: bool) -> Outcome:
        """Say what an exception means; what is said to the model says that the call did not happen."""
        told = told_by(error)
        if told is not None:
            return Failed(type(told).__name__, told.message)
        return super().raised(error, retry, first=first)


class AsksFirst(BaseException):  # no outcome: it goes past the step to who drives it
    """A body said, before it did anything, that a person must say yes to it."""


def signal_of(tool: str, idx: int) -> str:
    """Return the name of the signal that brings what a call gives that is made elsewhere.

    >>> signal_of("run_report", 2)
    'run_report:2'
    """
    return f"{tool}:{idx}"


def told_by(error: BaseException | None) -> ModelRetry | ToolFailed | None:
    """Return what a tool says to the model, which pydantic-ai may have wrapped in its own errors."""
    while isinstance(error, ToolRetryError | ToolFailedError | UnexpectedModelBehavior):
        error = error.__cause__
    return error if isinstance(error, ModelRetry | ToolFailed) else None


def raise_told(error: Mapping[str, Any]) -> Never:
    """Raise what the model is told of a step that failed, as it was recorded."""
    kind, message = error["type"], error["message"]
    if kind == ModelRetry.__name__:
        raise ModelRetry(message)
    raise ToolFailed(message if kind == ToolFailed.__name__ else f"{kind}: {message}")


async def _call() -> Never:
    """Stand for a function that pydantic-ai calls."""
    raise AssertionError("pydantic-ai makes the calls of its tools")


def _as_identifier(name: str) -> str:
    """Return a name that a tool of ours may have: those of servers may hold other characters, and be longer."""
    return name if name.isidentifier() and len(name) <= MAX_NAME else "tool"


def _effect_of(definition: ToolDefinition, said: Any) -> Effect:
    if definition.kind == "external":
        return Effect.READ  # nothing of it happens here
    try:
        known = Effect(said)
    except ValueError:
        names = ", ".join(repr(one.value) for one in Effect if one is not Effect.TRANSACTIONAL)
        raise BadTool(f"tool {definition.name}: effect={said!r} is none of {names}") from None
    if known is Effect.TRANSACTIONAL:
        raise BadTool(
            f"tool {definition.name}: it cannot be TRANSACTIONAL: pydantic-ai makes its call, and cannot make it "
            "inside of the store's transaction; declare it IDEMPOTENT, PROBED or AT_MOST_ONCE"
        )
    return known
