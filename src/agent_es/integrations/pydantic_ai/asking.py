"""Asks a model over the network, and asks again where nothing was wrong with the question.

Rule 1: one place retries, within a bound that a person set; what lies below it sends each request once.
Rule 2: what was begun and broke off is thrown away whole.
Rule 3: a connection belongs to the event loop that opened it, and is closed before that loop goes on.
"""

import asyncio
import inspect
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import cast

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import (
    FallbackExceptionGroup,
    ModelAPIError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, infer_model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.settings import ModelSettings

from agent_es.errors import BadDecider, ModelRefused, ModelUnavailable
from agent_es.integrations.pydantic_ai.deltas import Delta, OnDelta

AskedModel = str | Model | Callable[[], Model]
"""The name of a model, a model, or a function that makes one; see ``ModelDecider``."""

AT_REST = 0.02
"""Seconds after which it is looked again whether a model is free that another event loop uses."""

COUNTED = 1_000
"""Runs whose requests are counted at once: a worker that lives for long does not keep those of all."""

TRANSIENT = frozenset({408, 409, 425, 429})
"""The statuses below 500 that say that the same question may be answered later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a model is asked that does not answer.  Times are in seconds.  Raises ``BadDecider``.

    The waits grow twofold, up to ``longest_wait``.  Where the model says how long to wait, that counts, if it is no
    longer than this.
    """

    attempts: int = 6
    """How often at most, for one answer."""
    within: float = 180.0
    """No attempt begins any later than that after the first."""
    first_wait: float = 0.5
    longest_wait: float = 60.0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    draw: Callable[[], float] = random.random
    """Gives numbers between 0 and 1 for the jitter of the waits."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.within, self.first_wait, self.longest_wait) < 0:
            raise BadDecider(f"{self!r:.200}: there is at least one attempt, and no time is negative")

    def wait(self, attempt: int, asked_for: float | None) -> float:
        """Return the seconds to wait after so many attempts."""
        if asked_for:
            return asked_for
        longest = min(self.longest_wait, self.first_wait * 2.0 ** min(attempt - 1, 50))
        return longest * (0.5 + self.draw() / 2)


@dataclass(frozen=True, slots=True)
class Question:
    """What a model is asked, and about which run."""

    run_id: str
    turn: int
    messages: Sequence[ModelMessage]
    parameters: ModelRequestParameters


class Broken(Exception):  # never leaves this module
    """An answer broke off without an error."""


class Line:
    """The way to a model.  Raises ``BadDecider`` where there is no such model."""

    def __init__(self, model: AskedModel, settings: ModelSettings | None, patience: Patience) -> None:
        self._given = model
        self._patience = patience
        self._turn = _Turnstile() if isinstance(model, Model) and not _is_local(model) else None
        known = self._model()
        self.name = known.model_name
        self.context_window = known.context_window
        own = known.settings or {}
        once: ModelSettings = {} if _is_local(known) or "max_retries" in own else {"max_retries": 0}
        self._settings = cast("ModelSettings", {**once, **(settings or {})})
        self._sent = dict[str, tuple[int, int]]()
        """The turn that a run is at, and how many requests it took so far: of the runs that were asked about last."""

    async def ask(self, question: Question, on_delta: OnDelta | None = None) -> ModelResponse:
        """Return an answer.

        Raises ``ModelUnavailable`` and ``ModelRefused``, and ``ModelAPIError`` or ``UnexpectedModelBehavior`` where
        nobody can read what came.
        """
        began, attempt = time.monotonic(), 0
        while True:
            attempt += 1
            try:
                return await self._once(question, on_delta)
            except (ModelAPIError, FallbackExceptionGroup, Broken) as error:
                wait = self._wait_after(error, question.run_id, attempt, time.monotonic() - began)
            await self._patience.sleep(wait)

    def _wait_after(self, error: Exception, run_id: str, attempt: int, spent: float) -> float:
        """Return the seconds to wait before the next attempt; raise where there is none."""
        cause = _cause(error)
        if isinstance(cause, ModelAPIError) and not is_transient(cause):
            if type(cause) is ModelAPIError:
                raise error  # what came cannot be read: that is no fault of the line
            status = getattr(cause, "status_code", None)
            raise ModelRefused(
                f"run {run_id}: the model {self.name} refused the request: {cause}; nothing was recorded, "
                "resume the run when that is mended",
                status=status,
            ) from error
        asked_for = getattr(cause, "retry_after", None)
        wait = self._patience.wait(attempt, asked_for)
        is_too_long = asked_for is not None and asked_for > self._patience.longest_wait
        if attempt >= self._patience.attempts or is_too_long or spent + wait > self._patience.within:
            asks = f", and asks to wait {asked_for:g} s" if asked_for else ""
            raise ModelUnavailable(
                f"run {run_id}: the model {self.name} gave no answer in {attempt} attempts and {spent:.1f} s{asks}: "
                f"{cause}; nothing was recorded, resume the run later",
                status=getattr(cause, "status_code", None),
            ) from error
        return wait

    async def _once(self, question: Question, on_delta: OnDelta | None) -> ModelResponse:
        async with self._entered() as model:
            if on_delta is None:
                try:
                    return await model_request(
                        model,
                        question.messages,
                        model_settings=self._settings,
                        model_request_parameters=question.parameters,
                    )
                except LookupError as error:  # a list is empty that never is
                    raise UnexpectedModelBehavior(f"something is not there that belongs to it: {error!r}") from error
            async with model_request_stream(
                model,
                question.messages,
                model_settings=self._settings,
                model_request_parameters=question.parameters,
            ) as stream:
                first = Delta(question.run_id, question.turn, self._count(question), 0, "text", "")
                await _tell(stream, on_delta, first)
                answer = stream.get()
        if answer.state == "incomplete":
            raise Broken("the stream ended before the answer did")
        return answer

    def _count(self, question: Question) -> int:
        """Return which request of its turn this is, in this process."""
        turn, sent = self._sent.get(question.run_id, (question.turn, 0))
        sent = sent + 1 if turn == question.turn else 1
        self._sent.pop(question.run_id, None)
        self._sent[question.run_id] = question.turn, sent
        if len(self._sent) > COUNTED:
            del self._sent[next(iter(self._sent))]
        return sent

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[Model]:
        """Lend a model whose connections are of this event loop, and are closed afterwards."""
        if self._turn is None:
            async with self._model() as model:
                yield model
            return
        async with self._turn.passed(), self._model() as model:
            yield model

    def _model(self) -> Model:
        """Return the model, or a new one where it can be made."""
        try:
            if isinstance(self._given, str):
                return infer_model(self._given)
            return self._given if isinstance(self._given, Model) else self._given()
        except (UserError, ValueError) as error:
            raise BadDecider(f"the model {self._given!r:.80} cannot be had: {error}") from None


class _Turnstile:
    """Lets several questions of one event loop at a model, and no two event loops at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inside = 0

    @asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        while not self._enters(loop):  # noqa: ASYNC110  # whoever leaves does so in another event loop
            await asyncio.sleep(AT_REST)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._loop = None

    def _enters(self, loop: asyncio.AbstractEventLoop) -> bool:
        with self._lock:
            if self._loop not in (None, loop):
                return False
            self._loop = loop
            self._inside += 1
            return True


def is_transient(error: ModelAPIError) -> bool:
    """Whether the same question may be answered later."""
    if isinstance(error, ModelRateLimitError):
        return True
    if isinstance(error, ModelRequestRejectedError | ModelQuotaExceededError):
        return False
    if isinstance(error, ModelHTTPError):
        return error.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.status_code in TRANSIENT
    return type(error) is not ModelAPIError or error.in_stream


def _cause(error: Exception) -> Exception:
    """Return what happened; of several models that were asked in turn, what happened at the last."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[-1]
    return error


def _is_local(model: Model) -> bool:
    return isinstance(model, TestModel | FunctionModel)


async def _tell(stream: StreamedResponse, on_delta: OnDelta, first: Delta) -> None:
    """Tell each piece of an answer as it comes."""
    index = 0
    async for event in stream:
        piece = _piece(event, first)
        if piece is None:
            continue
        heard = on_delta(replace(piece, index=index))
        if inspect.isawaitable(heard):
            await heard
        index += 1


def _piece(event: object, first: Delta) -> Delta | None:  # noqa: PLR0911  # one line for each kind
    """Return what an event brings; None where that is nothing to be read."""
    match event:
        case PartStartEvent(part=TextPart(content=text)) if text:
            return replace(first, text=text)
        case PartStartEvent(part=ThinkingPart(content=text)) if text:
            return replace(first, kind="thinking", text=text)
        case PartStartEvent(part=ToolCallPart() as call):
            args = call.args if isinstance(call.args, str) else call.args_as_json_str() if call.args else ""
            return replace(first, kind="tool_call", text=args, tool=call.tool_name)
        case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
            return replace(first, text=text)
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text))) if text:
            return replace(first, kind="thinking", text=text)
        case PartDeltaEvent(delta=ToolCallPartDelta(args_delta=str(text))) if text:
            return replace(first, kind="tool_call", text=text)
    return None
