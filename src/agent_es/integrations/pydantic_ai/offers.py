"""What a model may call beside the tools of its agent: to wait, to ask a person, to close a phase, to answer.

Rule: the arguments of such a call are those that its step has in the journal, so that both read alike.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_ai.tools import ToolDefinition

from agent_es.decider import ClosePhase
from agent_es.errors import AgentError, BadDecider
from agent_es.values import what_is_wrong
from agent_es.waits import Ask, Sleep, WaitFor

Offered = type[Sleep] | type[WaitFor] | type[Ask]
Offer = Sleep | WaitFor | Ask | ClosePhase

CLOSE_PHASE = "close_phase"
FINAL_RESULT = "final_result"


class Unreadable(Exception):  # never leaves this package
    """The arguments of a call are not those that it takes."""


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class _Timed(_Arguments):
    seconds: NonNegativeFloat | None = None
    """How long at most, in seconds."""
    until: AwareDatetime | None = None
    """Until when at the latest, in place of seconds: a date and time with its zone."""

    @property
    def limit(self) -> timedelta | datetime | None:
        """How long, or until when."""
        if self.seconds is None:
            return self.until
        try:
            return timedelta(seconds=self.seconds)
        except OverflowError:
            return timedelta.max


class _Sleep(_Timed):
    def __call__(self) -> Sleep:
        if self.limit is None:
            raise Unreadable("say seconds or until")
        return Sleep(self.limit)


class _WaitFor(_Timed):
    signal: str
    """The name of what is waited for."""

    def __call__(self) -> WaitFor:
        return WaitFor(self.signal, timeout=self.limit)


class _Ask(_Timed):
    question: str
    choices: Annotated[list[Any] | None, Field(min_length=1)] = None
    """What may be answered, where that is not free."""

    def __call__(self) -> Ask:
        return Ask(self.question, self.choices, timeout=self.limit)


class _ClosePhase(_Arguments):
    name: str
    """What the phase is called."""
    summary: str
    """All that must be remembered of it: it is what you will read from now on, instead of the calls and results."""

    def __call__(self) -> ClosePhase:
        return ClosePhase(self.name, self.summary)


_FORMS: Mapping[Any, tuple[str, str, type[_Sleep | _WaitFor | _Ask | _ClosePhase]]] = {
    Sleep: (Sleep.tool, "Wait for some time; nothing else happens meanwhile.", _Sleep),
    WaitFor: (WaitFor.tool, "Wait until something comes that has this name, or the time is over.", _WaitFor),
    Ask: (Ask.tool, "Ask a person, and wait for the answer, or until the time is over.", _Ask),
    ClosePhase: (CLOSE_PHASE, "Say that a phase of the work is over, and sum it up.  Call it alone.", _ClosePhase),
}  # fmt: skip


class Offers:
    """What is offered, by its name.  Raises ``BadDecider``."""

    def __init__(self, offered: Iterable[Offered | type[ClosePhase]]) -> None:
        self._forms = dict[str, type[_Sleep | _WaitFor | _Ask | _ClosePhase]]()
        self.definitions = list[ToolDefinition]()
        for kind in offered:
            if kind not in _FORMS:
                raise BadDecider(f"offers={kind!r:.80}: what can be offered to a model is Sleep, WaitFor and Ask")
            name, description, form = _FORMS[kind]
            self._forms[name] = form
            self.definitions.append(
                ToolDefinition(name=name, parameters_json_schema=form.model_json_schema(), description=description)
            )

    def __contains__(self, name: str) -> bool:
        return name in self._forms

    def read(self, name: str, arguments: str) -> Offer:
        """Return what a call of an offer means; raise ``Unreadable``."""
        try:
            return self._forms[name].model_validate_json(arguments or "{}")()
        except ValidationError as error:
            raise Unreadable(what_is_wrong(error)) from None
        except AgentError as error:
            raise Unreadable(str(error)) from None


class Final:
    """The answer of a run, where it is to be of a type.  Raises ``BadDecider`` where JSON has no such type."""

    def __init__(self, output_type: Any) -> None:
        try:
            plain = TypeAdapter(output_type)
            self._is_wrapped = plain.json_schema().get("type") != "object"  # the arguments of a call are an object
            wrapped = create_model("Answer", response=(output_type, ...)) if self._is_wrapped else output_type
            self._adapter: TypeAdapter[Any] = TypeAdapter(wrapped)
            schema = self._adapter.json_schema()
        except PydanticUserError as error:
            raise BadDecider(f"output_type={output_type!r:.80}: {error.message}") from None
        self.definition = ToolDefinition(
            name=FINAL_RESULT, parameters_json_schema=schema, description="Give the final answer.", kind="output"
        )
        """The call by which a model answers."""

    def read(self, arguments: str) -> Any:
        """Return an answer as JSON data; raise ``Unreadable``."""
        try:
            value = self._adapter.validate_json(arguments)
        except ValidationError as error:
            raise Unreadable(what_is_wrong(error)) from None
        data = self._adapter.dump_python(value, mode="json")
        return data["response"] if self._is_wrapped else data
