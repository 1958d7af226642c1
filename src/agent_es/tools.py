"""Tools: what an agent may call, what calling it twice would do, and what its call says happened.

Rule 1: an effect is declared, never guessed: ``effect`` has no default.
Rule 2: arguments are validated from the journaled text at every attempt, so each attempt gets the same ones.
Rule 3: a tool that cannot work is an error where it is declared, not where it is first called.
"""

import inspect
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import FrameType, MethodType, UnionType
from typing import Any, Generic, Literal, NotRequired, Union, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict, TypeVar

from agent_es.errors import (
    BadArguments,
    BadTool,
    EffectError,
    KeyMismatch,
    NotApplied,
    NotRecordable,
    ResultDoesNotFit,
)
from agent_es.keys import DEFAULT, KeyTemplate, sub_key
from agent_es.values import BASE64, Shape, bounded, canonical, covers, decode, what_is_wrong
from agent_es.waits import Sleep, Until, Wait, WaitFor, Woken

MAX_NAME = 64

Deps = TypeVar("Deps", default=Any)


class Effect(StrEnum):
    """What calling a tool twice would do to the world."""

    READ = "read"
    """Nothing: call it again freely."""
    IDEMPOTENT = "idempotent"
    """Nothing more, as long as the provider keeps the key."""
    TRANSACTIONAL = "transactional"
    """Nothing: it writes only through the store's own transaction, which records its result too."""
    PROBED = "probed"
    """Harm, but the provider can be asked whether the first call happened."""
    AT_MOST_ONCE = "at_most_once"
    """Harm, and nobody can be asked."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a body may be started, and how long to wait in between.

    ``max_attempts`` counts the start marks in the journal, so a crash resets nothing.  After attempt n the run waits
    ``initial * factor ** (n - 1)`` seconds, at most ``max_delay``, and up to ``jitter`` of that more; the time is
    recorded, never drawn again.  ``timeout`` bounds one attempt, in seconds.  What is in ``non_retryable`` ends the
    attempts at once.  Raises ``BadTool``.
    """

    max_attempts: int = 5
    initial: float = 0.2
    factor: float = 2.0
    max_delay: float = 60.0
    jitter: float = 0.1
    timeout: float | None = None
    non_retryable: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise BadTool(f"Retry(max_attempts={self.max_attempts}): a body must be allowed to start once")
        if min(self.initial, self.max_delay, self.jitter) < 0 or self.factor < 1:
            raise BadTool(f"{self}: waits are never negative, and never shrink")
        if self.timeout is not None and self.timeout <= 0:
            raise BadTool(f"Retry(timeout={self.timeout}): an attempt must be given some time")

    def delay(self, attempts: int, drawn: float) -> float:
        """Return the seconds to wait after so many attempts; ``drawn`` is between 0 and 1.

        >>> Retry(initial=1, max_delay=5).delay(3, 0.0), Retry(initial=1, max_delay=5).delay(4, 0.0)
        (4.0, 5.0)
        """
        wait = min(self.initial * self.factor ** min(attempts - 1, 1_000), self.max_delay)
        return wait * (1 + self.jitter * drawn)


_AFTER_CRASHES = Retry(non_retryable=(Exception,))
DEFAULT_RETRY = {
    Effect.READ: _AFTER_CRASHES,
    Effect.IDEMPOTENT: Retry(),
    Effect.TRANSACTIONAL: _AFTER_CRASHES,
    Effect.PROBED: Retry(),
    Effect.AT_MOST_ONCE: Retry(max_attempts=1),
}
"""How a tool is retried where neither it nor its agent says so: a failure for a known reason is for the decider."""

OnDoubt = Literal["park", "resend", "skip", "tell"]
OnKeyReuse = Literal["refuse", "return_first"]

TRANSACTION_LIMIT = 5.0
"""Seconds that the body of a ``TRANSACTIONAL`` tool may hold the store's write lock."""

MAX_ARGS_BYTES = 1_000_000
"""Of the arguments of one call, as JSON."""

MAX_RESULT_BYTES = 1 << 20

MAX_FACT = 16_000
"""Characters of a fact, as JSON: the decider reads all of them at every turn."""

Facts = tuple[tuple[str, str], ...]
"""What is to be remembered: names, and values as canonical JSON."""


@dataclass(frozen=True, slots=True)
class Happened:
    """A probe found that the effect happened, and what it gave."""

    result: Any


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """A probe found that the effect surely did not happen."""


@dataclass(frozen=True, slots=True)
class ToolContext(Generic[Deps]):
    """What a body may know beside its arguments: injected where a parameter is annotated with it."""

    deps: Deps
    run_id: str
    idx: int
    attempt: int
    idempotency_key: str | None
    """The same text for every attempt at this step; None for a ``READ`` tool."""
    _session: Any = None
    _facts: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def session(self) -> Any:
        """The store's own SQLAlchemy ``Session``: what a ``TRANSACTIONAL`` tool writes through."""
        if self._session is None:
            raise EffectError("ctx.session is there for a TRANSACTIONAL tool only: declare the effect")
        return self._session

    def remember(self, name: str, value: Any) -> None:
        """Keep a value by its name, in its own type, however much of the run is summarized.

        It is recorded with the result of this call: an attempt that fails leaves nothing.  The last value of a name
        counts; ``run.fact(name, type)`` reads it.  Raises ``NotRecordable``.
        """
        check_fact(name)
        text = Shape(type(value)).encode(value)
        if len(text) > MAX_FACT:
            raise NotRecordable(f"the fact {name!r} has {len(text):,} characters and may have {MAX_FACT:,}")
        self._facts[name] = text

    @staticmethod
    def sleep(until: Until) -> Sleep:
        """Return what a body returns to let its step wait: for that time, or until that instant."""
        return Sleep(until)

    @staticmethod
    def wait_for(signal: str, timeout: Until | None = None) -> WaitFor:
        """Return what a body returns to let its step wait for a signal.

        What ended the wait is the step's result: a ``Woken``.
        """
        return WaitFor(signal, timeout)

    def subkey(self, name: str) -> str:
        """Return the key of one of several provider calls of this step: the same at every attempt."""
        if self.idempotency_key is None or not name:
            raise EffectError("ctx.subkey(name) needs a name, and a tool with a key")
        return sub_key(self.idempotency_key, name)


@dataclass(frozen=True, slots=True)
class CallTool:
    """A decision to call one tool.  ``call_id`` is the provider's: kept as data, never used as a key."""

    tool: str
    args: Mapping[str, Any] | str = field(default_factory=dict)
    """By name; or the JSON text of them, as a model wrote it."""
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
    facts: Facts = ()


@dataclass(frozen=True, slots=True)
class Waits:
    """The body did what it does, and asks to wait: the step's result is what ends the wait."""

    wait: Wait
    facts: Facts = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The decider may see this: the effect surely did not happen, or it did and its value cannot be recorded."""

    type: str
    message: str
    may_retry: bool = False
    applied: bool | None = False
    """Whether the effect happened; None where nobody knows and the tool says that the decider is told."""

    @property
    def error_json(self) -> str:
        """What is recorded of it."""
        return canonical({"applied": self.applied, "message": self.message, "type": self.type})


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell whether the effect happened."""

    type: str
    message: str
    may_retry: bool = True

    @property
    def error_json(self) -> str:
        """What is recorded of it."""
        return canonical({"applied": None, "message": self.message, "type": self.type})


Outcome = Returned | Waits | Failed | Unknown
Probed = Returned | Waits | DidNotHappen | Unknown


class Tool:
    """A function that an agent may call, with its effect; made by ``@tool``."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        effect: Effect,
        key: str | None = None,
        name: str | None = None,
        aliases: Sequence[str] = (),
        retry: Retry | None = None,
        probe: Callable[..., Any] | None = None,
        settle_after: float = 0.0,
        key_ttl: float | None = None,
        on_doubt: OnDoubt = "park",
        on_key_reuse: OnKeyReuse = "refuse",
        compensate: str | None = None,
        max_result_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        self.aliases = tuple(aliases)
        self.effect = effect
        self.retry = retry
        self.probe = probe
        self.settle_after = settle_after
        self.key_ttl = key_ttl
        self.on_doubt = on_doubt
        self.on_key_reuse = on_key_reuse
        self.compensate = compensate
        self.max_result_bytes = max_result_bytes
        self.is_async = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__
        try:
            self._template = KeyTemplate(DEFAULT if key is None else key)
        except ValueError as error:
            raise BadTool(f"tool {self.name}: the key template {key!r} cannot be read: {error}") from None
        for called in (self.name, *self.aliases):
            if not called.isidentifier() or len(called) > MAX_NAME:
                raise BadTool(f"tool {called!r}: a name is an identifier of at most {MAX_NAME} characters")
        self._check_effect(key)

    def _check_effect(self, key: str | None) -> None:
        effect = self.effect
        wrong = {
            "a READ tool has no effect to key; leave `key` out": effect is Effect.READ and key is not None,
            "a READ tool leaves no doubt and nothing to undo; leave `on_doubt` and `compensate` out": effect
            is Effect.READ
            and (self.on_doubt != "park" or self.compensate is not None),
            "a TRANSACTIONAL tool holds a transaction and cannot wait in it; make it synchronous": effect
            is Effect.TRANSACTIONAL
            and self.is_async,
            "a PROBED tool needs `probe=`, a function that says whether the effect happened": effect is Effect.PROBED
            and self.probe is None,
            "only a PROBED tool, or an IDEMPOTENT one with a `key_ttl`, is probed": self.probe is not None
            and effect is not Effect.PROBED
            and not (effect is Effect.IDEMPOTENT and self.key_ttl is not None),
            "only an IDEMPOTENT tool has a `key_ttl`": self.key_ttl is not None and effect is not Effect.IDEMPOTENT,
            f"on_doubt={self.on_doubt!r} is none of {', '.join(get_args(OnDoubt))}": self.on_doubt
            not in get_args(OnDoubt),
            f"on_key_reuse={self.on_key_reuse!r} is none of {', '.join(get_args(OnKeyReuse))}": self.on_key_reuse
            not in get_args(OnKeyReuse),
        }
        for what, is_wrong in wrong.items():
            if is_wrong:
                raise BadTool(f"tool {self.name}: {what}")

    def resolve(self, frame: FrameType | None) -> "Tool":
        """Read the signature, with the names that the declaration could see; raise ``BadTool``."""
        hints = self._hints(self.function, frame)
        parameters = list(inspect.signature(self.function).parameters.values())
        self._takes_run = bool(parameters) and parameters[0].name == "self"
        self._context_name: str | None = None
        self.needs_deps = False
        fields: dict[str, Any] = {}
        for parameter in parameters[1:] if self._takes_run else parameters:
            annotation = hints.get(parameter.name, Any)
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise BadTool(f"tool {self.name}: {parameter} must be an argument with a name of its own")
            if (context := context_in(annotation)) is not None:
                if self._context_name is not None:
                    raise BadTool(
                        f"tool {self.name}: {self._context_name} and {parameter.name} are both a ToolContext"
                    )
                self._context_name = parameter.name
                self.needs_deps = bool(set(get_args(context)) - {type(None), Any})
            elif parameter.default is parameter.empty:
                fields[parameter.name] = annotation
            else:
                fields[parameter.name] = NotRequired[annotation]
        if not self._template.is_default:
            self._template.check(self.name, fields)
        self._parameters = frozenset(fields)
        self._resolve_probe(frame)
        self._result = Shape(_as_recorded(hints.get("return", Any)))
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        typed_dict: Any = TypedDict  # made at run time: no checker can read it
        arguments = typed_dict(f"{self.name}_arguments", fields)
        arguments.__pydantic_config__ = ConfigDict(extra="forbid", **BASE64)
        try:
            self._plain: TypeAdapter[dict[str, Any]] = TypeAdapter(arguments)
            in_a_tuple: Any = tuple  # whose configuration reaches what is in it
            self._arguments = Shape(in_a_tuple[arguments])
            self._arguments.build()
            self._result.build()
        except Exception as error:  # a user's type raises what it likes
            raise BadTool(f"tool {self.name}: an annotation has no JSON form: {error}") from None
        return self

    def _hints(self, function: Callable[..., Any], frame: FrameType | None) -> dict[str, Any]:
        local: dict[str, Any] = {}
        file = frame.f_code.co_filename if frame else ""
        while frame and frame.f_code.co_name != "<module>" and frame.f_code.co_filename == file:
            local = {**frame.f_locals, **local}
            frame = frame.f_back
        try:
            return get_type_hints(function, localns=local, include_extras=True)
        except Exception as error:  # an annotation is any expression
            raise BadTool(f"tool {self.name}: an annotation cannot be resolved: {error}") from None

    def _resolve_probe(self, frame: FrameType | None) -> None:
        if self.probe is None:
            return
        hints = self._hints(self.probe, frame)
        names = list(inspect.signature(self.probe).parameters)
        self._probe_contexts = [n for n in names if context_in(hints.get(n)) is not None]
        if any(set(get_args(context_in(hints[n]))) - {type(None), Any} for n in self._probe_contexts):
            self.needs_deps = True
        asked = [n for n in names if n not in ("self", *self._probe_contexts)]
        if set(asked) - {"key", "args"}:
            raise BadTool(
                f"tool {self.name}: its probe takes key and args (and self, and a ToolContext), not {asked}"
            )
        self._probe_asks = frozenset(asked)
        self._probe_takes_run = names[:1] == ["self"]

    @property
    def first_name(self) -> str:
        """The oldest name that it had: its keys are held under that one."""
        return self.aliases[0] if self.aliases else self.name

    def __get__(self, run: object | None, owner: type | None = None) -> Any:
        """On a class, the tool; on a run, the plain method, which is not a step."""
        return self if run is None else MethodType(self.function, run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function, which is not a step."""
        return self.function(*args, **kwargs)

    @property
    def names(self) -> Sequence[str]:
        """Its name, and those that it had before: a rule that names one of them is about this tool."""
        return (self.name, *self.aliases)

    @property
    def parameters(self) -> Collection[str]:
        """The names of its arguments."""
        return self._parameters

    def as_called(self, args: str) -> Mapping[str, Any]:
        """Return what the body would get for these journaled arguments, as JSON reads it, defaults among it.

        Raises ``BadArguments``, for values of another type too.
        """
        given = {name: value for name, value in self._defaults.items() if name in self._parameters}
        try:
            (found,) = decode(self._arguments.encode(({**given, **self.validated(args, strictly=True)},)))
        except NotRecordable as error:
            raise BadArguments(f"{self.name}: its defaults cannot be judged: {error}") from None
        return cast(Mapping[str, Any], found)

    @cached_property
    def spec(self) -> ToolSpec:
        """What a decider sees."""
        schema = self._plain.json_schema()
        return ToolSpec(self.name, inspect.getdoc(self.function) or "", schema, self.effect)

    def call(self, **arguments: Any) -> CallTool:
        """Return a checked decision to call this tool; raise ``BadArguments`` where they do not fit."""
        try:
            fitting = self._plain.validate_python(arguments)
            (args,) = decode(self._arguments.encode((fitting,)))
        except ValidationError as error:
            raise BadArguments(bounded(f"{self.name}: {what_is_wrong(error)}")) from None
        except NotRecordable as error:
            raise BadArguments(f"{self.name}: {error}") from None
        return CallTool(self.name, args)

    def validated(self, args: str, *, strictly: bool = False) -> dict[str, Any]:
        """Return journaled arguments as annotated; raise ``BadArguments`` with what is wrong with each.

        ``strictly``, an argument must be of its type as JSON has it: a text is no number.
        """
        try:
            (arguments,) = self._arguments.decode(f"[{args}]", strictly=strictly)
        except ValidationError as error:
            raise BadArguments(bounded(f"{self.name}: {what_is_wrong(error, within=1)}")) from None
        return dict(arguments)

    def keyed(self, template: str) -> "Tool":
        """Return the same tool, whose keys are made from another template."""
        other = copy(self)
        other._template = KeyTemplate(template)  # noqa: SLF001  # its own kind
        return other

    def key_for(self, run_id: str, idx: int, args: str) -> str | None:
        """Return the key of a call with these journaled arguments; None for a ``READ`` tool.

        Raises ``BadArguments``.
        """
        if self.effect is Effect.READ:
            return None
        return self._filled(
            {**self._defaults, **self.validated(args), "run_id": run_id, "idx": idx, "tool": self.name}
        )

    def _filled(self, values: Mapping[str, Any]) -> str:
        """Return the key with its blanks filled in."""
        try:
            return self._template.fill(values)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadArguments(f"{self.name}: no key can be made of these arguments: {error}") from None

    def bind(self, run: object, ctx: ToolContext[Any], args: str) -> Callable[[], Any | Awaitable[Any]]:
        """Return the body, ready to start with the journaled arguments."""
        arguments = self.validated(args)
        if self._context_name is not None:
            arguments[self._context_name] = ctx
        function = MethodType(self.function, run) if self._takes_run else self.function
        return lambda: function(**arguments)

    def bind_probe(self, run: object, ctx: ToolContext[Any], args: str) -> Callable[[], Any]:
        """Return the probe, ready to ask whether the call with these journaled arguments happened."""
        if self.probe is None:
            raise BadTool(f"tool {self.name} has no probe")
        given: dict[str, Any] = {"key": ctx.idempotency_key, "args": self.validated(args)}
        arguments = {name: value for name, value in given.items() if name in self._probe_asks}
        arguments.update(dict.fromkeys(self._probe_contexts, ctx))
        function = MethodType(self.probe, run) if self._probe_takes_run else self.probe
        return lambda: function(**arguments)

    def undoing(self, step: Any) -> CallTool:
        """Return the call of this tool that undoes a done step: with those of its arguments that this one takes.

        A parameter called ``result`` gets what the step gave.
        """
        given = {**step.args, "result": step.result}
        return CallTool(self.name, {name: value for name, value in given.items() if name in self._parameters})

    def probed(self, answer: Any) -> Probed:
        """Say what a probe's answer means."""
        match answer:
            case Happened(result):
                outcome = self.returned(result)
                if isinstance(outcome, Failed):
                    return Unknown("NotRecordable", outcome.message)
                return outcome
            case DidNotHappen():
                return answer
            case _:
                return Unknown("Probe", f"the probe of {self.name} answered {answer!r:.200}")

    def returned(self, value: Any) -> Outcome:
        """Say what a returned value means: it is encoded before the step counts as done."""
        if isinstance(value, Sleep | WaitFor):
            return Waits(value)
        try:
            text = self._result.encode(value)
        except NotRecordable as error:
            return self._lost("NotRecordable", f"cannot be recorded: {error}")
        size = len(text.encode())
        if size > self.max_result_bytes:
            return self._lost(
                "ResultTooLarge",
                f"has {size:,} bytes and max_result_bytes is {self.max_result_bytes:,}: store it elsewhere and "
                "return a reference",
            )
        return Returned(text)

    def _lost(self, kind: str, why: str) -> Failed:
        """Say that the body ran and its value is lost; a transaction goes with it, any other effect stays."""
        stays = self.effect not in (Effect.READ, Effect.TRANSACTIONAL)
        happened = "ran and its effect has happened, so do not call it again for this" if stays else "ran"
        return Failed(kind, f"{self.name} {happened}; its result {why}", applied=stays)

    def raised(self, error: BaseException, retry: Retry, *, first: bool) -> Outcome:
        """Say what an exception means, by the tool's effect; ``first`` is the first attempt under its key."""
        kind, text = type(error).__qualname__, describe(error)
        may_retry = not isinstance(error, (KeyMismatch, *retry.non_retryable))
        if isinstance(error, NotApplied) or (first and isinstance(error, KeyMismatch)):
            return Failed(kind, text)
        if self.effect in (Effect.READ, Effect.TRANSACTIONAL):
            return Failed(kind, text, may_retry=may_retry)
        return Unknown(kind, text, may_retry=may_retry)

    def timed_out(self, seconds: float) -> Outcome:
        """Say what it means that an attempt took too long; a blocking body goes on, and none may run beside it."""
        text = f"{self.name} took longer than {seconds:g} s"
        if not self.is_async:
            text += " and cannot be stopped; a second attempt beside it is not started"
        if self.effect in (Effect.READ, Effect.TRANSACTIONAL):
            return Failed("TimeoutError", text, may_retry=self.is_async)
        return Unknown("TimeoutError", text, may_retry=self.is_async)

    def result_of(self, step: Any) -> Any:
        """Return the recorded result of a done step, as annotated today; raise ``ResultDoesNotFit``."""
        try:
            value = self._result.decode(step.value_json)
            again = self._result.encode(value)
        except Exception as error:  # the user's type raises what it likes
            raise self._misfit(step, str(error)) from None
        if not covers(again, step.value_json):
            raise self._misfit(step, "it would leave out what was recorded")
        return value

    def _misfit(self, step: Any, why: str) -> ResultDoesNotFit:
        return ResultDoesNotFit(
            f"step {step.idx}: the recorded result of {self.name} does not fit {self._result}: "
            f"{bounded(' '.join(why.split()), 500)}"
        )

    def __repr__(self) -> str:
        return f"<tool {self.name} ({self.effect})>"


def tool(  # every option of a tool
    *,
    effect: Effect | Literal["read", "idempotent", "transactional", "probed", "at_most_once"] | None = None,
    key: str | None = None,
    name: str | None = None,
    aliases: Sequence[str] = (),
    retry: Retry | None = None,
    probe: Callable[..., Any] | None = None,
    settle_after: float = 0.0,
    key_ttl: float | None = None,
    on_doubt: OnDoubt = "park",
    on_key_reuse: OnKeyReuse = "refuse",
    compensate: str | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
) -> Callable[[Callable[..., Any]], Tool]:
    """Declare a tool: a method of an ``AgentRun`` (its first parameter is ``self``), or a function.

    * ``key``: a template over the arguments, such as ``"{order_id}:refund:{amount:.2f}"``: one intent, once in the
      whole store.  Left out, each step has a key of its own.  ``key_ttl``: seconds that the provider keeps it.
    * ``probe``: asked with ``key`` and ``args`` before a second attempt; it returns ``Happened(result)``,
      ``DidNotHappen()``, or anything else where it cannot tell.  ``settle_after``: seconds until it can be believed.
    * ``on_doubt``: ``park`` waits for a person or a probe; ``resend`` where a duplicate is acceptable; ``skip`` goes
      on with no result; ``tell`` lets the decider see that the outcome is unknown.
    * ``on_key_reuse``: ``return_first`` gives a second call under a key what the first one gave.
    * ``compensate``: the tool that undoes this one.  ``aliases``: names that it had before,
      the oldest first.

    Raises ``BadTool``.
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
        made = Tool(
            function,
            effect=known,
            key=key,
            name=name,
            aliases=aliases,
            retry=retry,
            probe=probe,
            settle_after=settle_after,
            key_ttl=key_ttl,
            on_doubt=on_doubt,
            on_key_reuse=on_key_reuse,
            compensate=compensate,
            max_result_bytes=max_result_bytes,
        )
        return made.resolve(frame)

    return declare


def _as_recorded(annotation: Any) -> Any:
    """Return the type of what is recorded: a body that asks to wait gives what ended the wait."""
    if annotation in (Sleep, WaitFor):
        return Woken
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(map(_as_recorded, get_args(annotation)))]  # noqa: UP007  # made at run time
    return annotation


def context_in(annotation: Any) -> Any:
    """Return the ``ToolContext`` that an annotation stands for, also where it says that it may be None."""
    parts = (annotation, *get_args(annotation)) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return next((part for part in parts if (get_origin(part) or part) is ToolContext), None)


def check_fact(name: str) -> None:
    """Raise ``NotRecordable`` for what names no fact."""
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= MAX_NAME:
        raise NotRecordable(f"{name!r:.80} names no fact: a name is 1 to {MAX_NAME} printable characters")


def describe(error: BaseException) -> str:
    """Return the message of an exception, bounded, even where its ``__str__`` raises."""
    try:
        return bounded(str(error))
    except Exception:  # it is the user's
        return "(its message cannot be read)"
