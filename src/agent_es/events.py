"""The events of a run.  This file is the schema: nothing else is stored.

Rule 1: names are past tense, and a name never changes its meaning; a default never changes its value.
Rule 2: a topic is a fixed string, so a class may move and old journals still load.
Rule 3: only what stands in ``REGISTRY`` can be read back; a stored name imports nothing.
Rule 4: to change a shape, raise ``class_version`` and write ``upcast_v1_v2``; stored events stay as they are.
Rule 5: what JSON says of a value lies in an event as one canonical text (a ``JsonText``).
"""

from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Protocol, final
from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.domain import CanMutateAggregate
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from agent_es.errors import BadRunId
from agent_es.values import valid_unicode

NOWHERE = UUID(int=0)

JsonText = Annotated[str, "json"]
"""A value of a tool, a model or a person, as one canonical JSON text."""


Settlement = Literal["happened", "did_not_happen", "skipped", "told"]
"""What became of a doubt; the last two are what a tool's ``on_doubt`` does about it."""

MAX_RUN_ID = 200


@lru_cache(maxsize=4096)
def stream_id(run_id: str) -> UUID:
    """Return the id of the stream that holds a run's events; raise ``BadRunId``."""
    if not 1 <= len(run_id) <= MAX_RUN_ID or "\0" in run_id or valid_unicode(run_id) != run_id:
        raise BadRunId(f"{run_id!r:.80} has {len(run_id)} characters: {BadRunId.__doc__}")
    return uuid5(NAMESPACE_URL, f"agent_es/runs/{run_id}")


class Folds(Protocol):
    """An aggregate that takes in an event."""

    def take_in(self, event: Any) -> None:
        """Fold the event into the state."""
        ...


class Event(BaseModel, CanMutateAggregate[UUID]):
    """One thing that happened to one run: frozen, and closed to fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    class_version: ClassVar[int] = 1

    originator_id: UUID = Field(default=NOWHERE, exclude=True)  # columns of their own, set when read back
    originator_version: int = Field(default=0, exclude=True)
    timestamp: AwareDatetime

    def apply(self, aggregate: Folds) -> None:
        """Hand the event to the aggregate's fold."""
        aggregate.take_in(self)


@final
class RunStarted(Event):
    """Someone set a goal."""

    run_id: str
    agent: str
    agent_version: str
    goal: str
    input: JsonText
    tags: Mapping[str, str] = Field(default_factory=dict)
    parent: str | None = None
    """The run that started this one, and waits for its end."""
    envelope: JsonText | None = None
    """What the run may do, and what it may spend; None for a run that may do anything."""


@final
class BudgetReserved(Event):
    """So much is set aside before the decider is asked: what asking it may take at most."""

    turn: int
    tokens: int
    cost: Decimal


@final
class UsageRecorded(Event):
    """What asking the decider took; what was set aside for it is free again.

    Where the process died while it was asked, nobody knows, and what was set aside counts as spent.
    """

    turn: int
    tokens: int
    cost: Decimal
    is_known: bool = True


@final
class LlmDecided(Event):
    """A step was decided, and again before every further start of its body: the intent and the start mark.

    ``attempt`` is 0 for a step that is decided and queued, n where attempt n starts with this append.
    """

    idx: int
    turn: int
    tool: str
    args: JsonText
    attempt: int
    key: str | None = None
    call_id: str | None = None
    undoes: int | None = None
    """The step whose effect this one undoes."""
    keyed_as: str | None = None
    """The name under which the key is held, where the tool has had another: one intent, whatever it is called."""


@final
class LlmAnswered(Event):
    """A model answered; the calls of its turn, or the end of the run, were read from what it said."""

    turn: int
    model: str
    answer: JsonText
    """The whole message in the form of whoever asked: what later requests give back to the byte lies in it."""
    finish_reason: str | None = None
    tokens: int | None = None
    """How long the conversation was then, this answer with it, as the model counted; None where it did not say."""
    request: JsonText | None = None
    """What the model was asked, where whoever asks must be able to tell that it asks the same again."""


@final
class AnswerUnusable(Event):
    """A model answered, and nothing could be done with that: it was cut, empty or refused.  It is asked again."""

    turn: int
    model: str
    answer: str
    """What it said, bounded: for people."""
    reason: str
    finish_reason: str | None = None


@final
class FactRecorded(Event):
    """A step found something that is to be remembered by its name, whatever is summarized."""

    idx: int
    name: str
    value: JsonText


@final
class Summarized(Event):
    """A phase is closed: what it has in the journal stays there, and the decider reads this instead."""

    first: int
    """The first step that the summary stands for: 0 where it stands for those before it too."""
    up_to: int
    """The first step after it."""
    text: str
    phase: str = ""
    """What the phase is called; empty where it grew too long."""


@final
class StepRefused(Event):
    """The run's envelope does not allow a call: its body was not called, and the decider sees why."""

    idx: int
    tool: str
    rule: str
    """Which rule of the envelope it was."""
    reason: str


@final
class CallDelayed(Event):
    """A call is held to a limit that all workers share: it starts no earlier than then."""

    idx: int
    tool: str
    attempt: int
    until: AwareDatetime
    is_given: bool
    """Whether that time is its own; else it asks again then."""


@final
class ApprovalRequested(Event):
    """A person must say yes to exactly this call before its body is called."""

    idx: int
    tool: str
    args: JsonText
    """What the body would get, with the defaults of the code that asked: what a person is shown, and what runs."""
    key: str | None = None
    digest: str
    """Of the tool, these arguments and the key: what is approved is this, and nothing else."""
    rule: str
    """Which rules of the envelope ask for it."""
    by: tuple[tuple[str, ...], ...] = ()
    """Who may answer: a person whom each of these groups names, by a pattern."""
    people: int = 1
    """How many different people must say yes."""
    expires_at: AwareDatetime | None = None
    then: Literal["deny", "park"] = "deny"
    """What happens then: the decider sees that nobody answered, and with ``park``, a person must see to the run."""


@final
class ApprovalGranted(Event):
    """A person said yes to a call, to its arguments as they were shown or to those that the person gave instead."""

    idx: int
    tool: str
    digest: str
    """Of what the person said yes to."""
    by: str
    args: JsonText | None = None
    """The arguments that the person gave; what others said yes to before counts no more."""
    key: str | None = None
    """The key that those have."""
    keyed_as: str | None = None
    """The name under which that key is held, where the tool has had another."""
    reason: str = ""


@final
class ApprovalDenied(Event):
    """A person said no to a call, or nobody answered in time: its body is not called, and the decider sees why."""

    idx: int
    tool: str
    digest: str
    by: str
    reason: str
    is_expired: bool = False


@final
class QuestionAnswered(Event):
    """A person answered what the decider had asked."""

    idx: int
    answer: JsonText
    by: str


@final
class Steered(Event):
    """A person has something to say, which the decider sees before it decides again."""

    text: str
    by: str


@final
class Paused(Event):
    """A person stopped the run: what is under way is recorded, and nothing else begins."""

    by: str
    reason: str


@final
class Resumed(Event):
    """A person let a paused run go on."""

    by: str


@final
class ToolResult(Event):
    """The step's result, as the decider sees it, now and after every resume."""

    idx: int
    tool: str
    attempt: int
    result: JsonText


@final
class ToolFailed(Event):
    """An attempt failed.  With ``retry_at`` another one follows; without it the decider sees the error."""

    idx: int
    tool: str
    attempt: int
    error: JsonText
    retry_at: AwareDatetime | None = None


@final
class StepInDoubt(Event):
    """Nobody knows whether the effect of the step happened."""

    idx: int
    tool: str
    attempt: int
    reason: str


@final
class DoubtSettled(Event):
    """A probe, a person or the tool's own ``on_doubt`` says what became of a step in doubt, or what is done about it.

    ``key`` is the new key of a step that did not happen: a provider may have stored a failure under the old one.
    """

    idx: int
    tool: str
    attempt: int
    outcome: Settlement
    by: str
    key: str | None = None


@final
class WaitBegan(Event):
    """The run waits: it is one row and no process.

    With ``idx`` it is that step which waits; without it, the steps whose next attempt is not due yet.
    """

    wake_at: AwareDatetime | None = None
    idx: int | None = None
    attempt: int | None = None
    """The attempt whose body asked to wait; None where the decider did."""
    signal: str | None = None
    """The name of the signal that ends the wait."""
    child: str | None = None
    """The run that was started with this event, whose end ends the wait."""


@final
class WaitEnded(Event):
    """The run goes on."""

    reason: str
    idx: int | None = None
    received: int | None = None
    """The ``seq`` of the signal that ended the wait: it is used up."""


@final
class SignalReceived(Event):
    """Something that the run may wait for came, and is kept until it does."""

    name: str
    payload: JsonText
    delivery_id: str


@final
class Cancelled(Event):
    """Somebody ended the run."""

    by: str
    reason: str


@final
class EnvelopeChanged(Event):
    """A person gave the run another envelope."""

    envelope: JsonText
    by: str
    reason: str


@final
class Parked(Event):
    """This code cannot act on the run; a person must see to it."""

    reason: str


@final
class Requeued(Event):
    """A person sent the run back to work."""

    by: str


@final
class CompensationBegan(Event):
    """The finished effects of the run are to be undone, the last one first."""

    by: str
    reason: str = ""


@final
class CompensationEnded(Event):
    """Every finished effect that can be undone was undone."""


@final
class Finished(Event):
    """The goal is met."""

    answer: JsonText


@final
class RunFailed(Event):
    """The decider gave up."""

    reason: str


AnyEvent = (
    RunStarted
    | BudgetReserved
    | UsageRecorded
    | LlmDecided
    | LlmAnswered
    | AnswerUnusable
    | FactRecorded
    | Summarized
    | StepRefused
    | CallDelayed
    | ApprovalRequested
    | ApprovalGranted
    | ApprovalDenied
    | QuestionAnswered
    | Steered
    | Paused
    | Resumed
    | ToolResult
    | ToolFailed
    | StepInDoubt
    | DoubtSettled
    | WaitBegan
    | WaitEnded
    | SignalReceived
    | EnvelopeChanged
    | Parked
    | Requeued
    | CompensationBegan
    | CompensationEnded
    | Finished
    | RunFailed
    | Cancelled
)
"""All of them, so that the type checker can say which one a fold forgot."""

REGISTRY: Mapping[str, type[Event]] = {f"agent_es:{cls.__name__}": cls for cls in AnyEvent.__args__}
TOPICS: Mapping[type[Event], str] = {cls: topic for topic, cls in REGISTRY.items()}
