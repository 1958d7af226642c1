"""Tools: what an agent may call, what calling it twice would do, and what its call says happened.

Rule 1: an effect is declared, never guessed: ``effect`` has no default.
Rule 2: arguments are validated from the journaled text at every attempt, so each attempt gets the same ones.
Rule 3: a tool that cannot work is an error where it is declared, not where it is first called.
"""

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import FrameType, MethodType
from typing import Any, Generic, Literal, NotRequired, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict, TypeVar

from agent_es.errors import BadArguments, BadTool, NotApplied, NotRecordable
from agent_es.keys import DEFAULT, KeyTemplate
from agent_es.values import Shape, bounded, decode

MAX_NAME = 64

Deps = TypeVar("Deps", default=Any)


class Effect(StrEnum):
    """What calling a tool twice would do to the world."""

    READ = "read"  #: nothing: call it again freely
    IDEMPOTENT = "idempotent"  #: nothing more, as long as the provider keeps the key
    TRANSACTIONAL = "transactional"  #: it writes only to the store's own database
    PROBED = "probed"  #: harm, but the provider can be asked whether it happened
    AT_MOST_ONCE = "at_most_once"  #: harm, and nobody can be asked


PLAYABLE = (Effect.READ, Effect.IDEMPOTENT)
"""The effects that this version knows how to keep."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a body may be started before its run stops and asks.

    ``max_attempts`` counts the start marks in the journal, so a crash resets nothing.
    """

    max_attempts: int = 5

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise BadTool(f"Retry(max_attempts={self.max_attempts}): a body must be allowed to start once")


@dataclass(frozen=True, slots=True)
class ToolContext(Generic[Deps]):
    """What a body may know beside its arguments: injected where a parameter is annotated with it."""

    deps: Deps
    run_id: str
    idx: int
    attempt: int
    idempotency_key: str | None
    """The same text for every attempt at this step; None for a ``READ`` tool."""


@dataclass(frozen=True, slots=True)
class CallTool:
    """A decision to call one tool.  ``call_id`` is the provider's: kept as data, never used as a key."""

    tool: str
    args: Mapping[str, Any] = field(default_factory=dict)
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a decider sees it: ``parameters`` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    effect: Effect


@dataclass(frozen=True, slots=True)
class Returned:
    """The body returned; its value as canonical JSON."""

    value: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt surely had no effect, or its value cannot be recorded: the decider may see this."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell whether the effect happened."""

    type: str
    message: str


Outcome = Returned | Failed | Unknown


class Tool:
    """A function that an agent may call, with its effect; made by ``@tool``."""

    def __init__(
        self, function: Callable[..., Any], *, effect: Effect, key: str | None, name: str | None, retry: Retry
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        self.effect = effect
        self.retry = retry
        self.is_async = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__
        self._template = KeyTemplate(key or DEFAULT)
        if not self.name.isidentifier() or len(self.name) > MAX_NAME:
            raise BadTool(f"tool {self.name!r}: a name is an identifier of at most {MAX_NAME} characters")
        if effect not in PLAYABLE:
            raise BadTool(f"tool {self.name}: this version keeps the effects {', '.join(PLAYABLE)} only")
        if effect is Effect.READ and key is not None:
            raise BadTool(f"tool {self.name}: a READ tool has no effect to key; leave `key` out")

    def resolve(self, frame: FrameType | None) -> "Tool":
        """Read the signature, with the names that the declaration could see; raise ``BadTool``."""
        local: dict[str, Any] = {}
        file = frame.f_code.co_filename if frame else ""
        while frame and frame.f_code.co_name != "<module>" and frame.f_code.co_filename == file:
            local = {**frame.f_locals, **local}
            frame = frame.f_back
        try:
            hints = get_type_hints(self.function, localns=local, include_extras=True)
        except Exception as error:  # an annotation is any expression
            raise BadTool(f"tool {self.name}: an annotation cannot be resolved: {error}") from None
        parameters = list(inspect.signature(self.function).parameters.values())
        self._takes_run = bool(parameters) and parameters[0].name == "self"
        self._context_name: str | None = None
        fields: dict[str, Any] = {}
        for parameter in parameters[1:] if self._takes_run else parameters:
            annotation = hints.get(parameter.name, Any)
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise BadTool(f"tool {self.name}: {parameter} must be an argument with a name of its own")
            if (get_origin(annotation) or annotation) is ToolContext:
                self._context_name = parameter.name
            elif parameter.default is parameter.empty:
                fields[parameter.name] = annotation
            else:
                fields[parameter.name] = NotRequired[annotation]
        self._template.check(self.name, fields)
        self._result = Shape(hints.get("return", Any))
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        typed_dict: Any = TypedDict  # made at run time: no checker can read it
        arguments = typed_dict(f"{self.name}_arguments", fields)
        arguments.__pydantic_config__ = ConfigDict(extra="forbid")
        try:
            self._arguments: TypeAdapter[dict[str, Any]] = TypeAdapter(arguments)
            self._result.build()
        except Exception as error:  # a user's type raises what it likes
            raise BadTool(f"tool {self.name}: an annotation has no JSON form: {error}") from None
        return self

    def __get__(self, run: object | None, owner: type | None = None) -> Any:
        """On a class, the tool; on a run, the plain method, which is not a step."""
        return self if run is None else MethodType(self.function, run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function, which is not a step."""
        return self.function(*args, **kwargs)

    @cached_property
    def spec(self) -> ToolSpec:
        """What a decider sees."""
        return ToolSpec(self.name, inspect.getdoc(self.function) or "", self._arguments.json_schema(), self.effect)

    def call(self, **arguments: Any) -> CallTool:
        """Return a checked decision to call this tool; raise ``BadArguments`` where they do not fit."""
        args = self._arguments.dump_python(self.validated(arguments), mode="json")
        return CallTool(self.name, args)

    def validated(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as annotated; raise ``BadArguments`` with what is wrong with each."""
        try:
            return self._arguments.validate_python(dict(arguments))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
            raise BadArguments(bounded(f"{self.name}: {wrong}")) from None

    def key_for(self, run_id: str, idx: int, args: str) -> str | None:
        """Return the key of a call with these journaled arguments; None for a ``READ`` tool."""
        if self.effect is Effect.READ:
            return None
        values = {**self._defaults, **self.validated(decode(args))}
        return self._template.fill({"run_id": run_id, "idx": idx, "tool": self.name, **values})

    def bind(self, run: object, ctx: ToolContext[Any], args: str) -> Callable[[], Any | Awaitable[Any]]:
        """Return the body, ready to start with the journaled arguments."""
        arguments = self.validated(decode(args))
        if self._context_name is not None:
            arguments[self._context_name] = ctx
        function = MethodType(self.function, run) if self._takes_run else self.function
        return lambda: function(**arguments)

    def returned(self, value: Any) -> Outcome:
        """Say what a returned value means: it is encoded before the step counts as done."""
        try:
            return Returned(self._result.encode(value))
        except NotRecordable as error:
            return Failed("NotRecordable", f"{self.name} ran, but its result cannot be recorded: {error}")

    def raised(self, error: Exception) -> Outcome:
        """Say what an exception from the body means, by the tool's effect."""
        kind, text = type(error).__qualname__, describe(error)
        sure = isinstance(error, NotApplied) or self.effect is Effect.READ
        return Failed(kind, text) if sure else Unknown(kind, text)

    def result_of(self, text: str) -> Any:
        """Return a recorded result as annotated."""
        return self._result.decode(text)

    def __repr__(self) -> str:
        return f"<tool {self.name} ({self.effect})>"


def tool(
    *,
    effect: Effect | Literal["read", "idempotent"] | None = None,
    key: str | None = None,
    name: str | None = None,
    retry: Retry | None = None,
) -> Callable[[Callable[..., Any]], Tool]:
    """Declare a tool: a method of an ``AgentRun`` (its first parameter is ``self``), or a function.

    ``key`` is a template over the arguments, such as ``"{order_id}:refund:{amount:.2f}"``: one intent, once
    in the whole store.  Left out, each step has a key of its own.  Raises ``BadTool``.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # annotations may name what stands around the declaration

    def declare(function: Callable[..., Any]) -> Tool:
        if effect is None:
            raise BadTool(
                f"tool {function.__name__}: say what calling it twice would do: "
                f"effect=Effect.{', Effect.'.join(e.name for e in Effect)}"
            )
        try:
            known = Effect(effect)
        except ValueError:
            raise BadTool(f"tool {function.__name__}: effect={effect!r} is none of {[*Effect]}") from None
        made = Tool(function, effect=known, key=key, name=name, retry=retry or Retry())
        return made.resolve(frame)

    return declare


def describe(error: BaseException) -> str:
    """Return the message of an exception, bounded, even where its ``__str__`` raises."""
    try:
        return bounded(str(error))
    except Exception:  # it is the user's
        return "(its message cannot be read)"
