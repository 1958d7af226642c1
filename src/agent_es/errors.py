"""Every error that agent_es raises.

Rule 1: a class's docstring is its default message; a message names the thing, what happened, what to do.
Rule 2: errors are raised where something is refused, before anything is lost.

::

    AgentError
    ├── DefinitionError       the program is wrong
    │   ├── BadTool
    │   ├── BadAgent
    │   ├── BadArguments
    │   ├── BadDecider
    │   ├── BadDecision
    │   ├── BadWait
    │   ├── BadSignal
    │   ├── BadTag
    │   ├── BadEnvelope
    │   ├── BadMemory
    │   ├── BadLimit
    │   ├── BadSettlement
    │   ├── BadAnswer
    │   ├── BadRunId
    │   ├── BadName
    │   ├── BadScenario
    │   ├── BadSchedule
    │   └── AgentUnknown
    ├── RunError              this run cannot do that now
    │   ├── RunNotFound
    │   ├── RunConflict
    │   ├── SignalConflict
    │   ├── AnswerConflict
    │   ├── NotAllowed
    │   ├── RunMoved
    │   │   └── LeaseLost
    │   ├── RunHeld
    │   ├── RunNotOpen
    │   ├── RunUnreadable
    │   ├── RequestDiverged
    │   ├── RunUnfinished
    │   │   └── InDoubt
    │   ├── RunHasFailed
    │   ├── StepUnplayable
    │   │   └── ResultDoesNotFit
    │   ├── StillHeld
    │   ├── IllegalEvent
    │   ├── BudgetSpent
    │   └── KeyReused
    ├── StoreError            the database
    │   ├── StoreUnusable
    │   ├── StoreReentered
    │   ├── StoreBusy
    │   ├── AppendUnknown
    │   └── SchemaMismatch
    ├── ModelError            whoever answers as a model
    │   ├── ModelUnavailable
    │   └── ModelRefused
    ├── ActOutOfOrder         the crash lab cannot do that now
    ├── BadJournal            a line that is no journal line
    ├── NotRecordable         a value that JSON cannot say
    └── EffectError           raised by the body of a tool
        ├── NotApplied
        ├── KeyMismatch
        └── OutcomeUnknown
"""


class AgentError(Exception):
    """Something went wrong inside agent_es."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class DefinitionError(AgentError):
    """The program that uses agent_es is wrong."""


class BadTool(DefinitionError):
    """A tool is declared in a way that cannot work."""


class BadAgent(DefinitionError):
    """A subclass of AgentRun is declared in a way that cannot work."""


class BadArguments(DefinitionError):
    """The arguments of a call do not fit its tool; the body was not called."""


class BadDecider(DefinitionError):
    """A decider is set up in a way that cannot work."""


class BadDecision(DefinitionError):
    """A decider returned something that is not a decision; nothing was recorded."""


class BadWait(DefinitionError):
    """What is to be waited for names no instant."""


class BadSignal(DefinitionError):
    """The name of a signal, and the id of its delivery, is a text of 1 to 200 characters, without NUL."""


class BadTag(DefinitionError):
    """A tag is a name and its value, both of them texts."""


class BadEnvelope(DefinitionError):
    """An envelope says what cannot be kept; nothing was recorded."""


class BadMemory(DefinitionError):
    """A memory bounds what cannot be bounded so."""


class BadLimit(DefinitionError):
    """A limit of a tool is no number that calls can be held to; nothing was stored."""


class BadSettlement(DefinitionError):
    """A doubt cannot be settled like that; nothing was recorded."""


class BadAnswer(DefinitionError):
    """A person's answer answers nothing that was asked, or cannot be kept; nothing was recorded."""


class BadRunId(DefinitionError):
    """A run id is a text of 1 to 200 characters, without NUL and without halves of characters."""


class BadName(DefinitionError):
    """What is to be imported by its name cannot be."""


class BadScenario(DefinitionError):
    """A scenario for the crash kit cannot be lived through."""


class BadSchedule(DefinitionError):
    """A schedule is written in a way that starts nothing; nothing was stored."""


class AgentUnknown(DefinitionError):
    """No class of that agent is known to this program; import it, or pass it as agents=."""


class RunError(AgentError):
    """A run cannot do that now."""


class RunNotFound(RunError):
    """No run has that id."""


class RunConflict(RunError):
    """A run of that id was started with something else."""


class SignalConflict(RunError):
    """A delivery of that id brought something else to this run; nothing was recorded."""


class AnswerConflict(RunError):
    """Somebody has answered before, or the time for it is over; nothing was recorded."""


class NotAllowed(RunError):
    """This person may not do that to this run; nothing was recorded."""


class RunMoved(RunError):
    """Another worker appended to this run first; this execution stopped and recorded nothing more."""


class LeaseLost(RunMoved):
    """The lease on this run was lost: another worker may move it now, and this execution stopped."""


class RunHeld(RunError):
    """Another worker holds this run."""


class RunNotOpen(RunError):
    """The run is moved outside of the with statement that opens it; open it to go on."""


class RunUnreadable(RunError):
    """The journal holds an event that this code cannot read; the run is left untouched."""


class RequestDiverged(RunError):
    """What a model is asked is not what it was asked before this run was resumed; nothing was done."""


class RunUnfinished(RunError):
    """The run has no answer yet."""


class InDoubt(RunUnfinished):
    """Nobody knows whether the effect of a step happened; find out, and settle it."""


class RunHasFailed(RunError):
    """The run ended in a failure."""


class StepUnplayable(RunError):
    """A step that was decided cannot be acted on by this code; its run is parked."""


class ResultDoesNotFit(StepUnplayable):
    """A recorded result is not of the type that its tool is annotated with today."""


class StillHeld(RunError):
    """The worker that started the step may still be alive; wait for it, or settle with force."""


class IllegalEvent(RunError):
    """That cannot happen to a run in this status."""


class BudgetSpent(RunError):
    """What runs may spend together is spent; nothing was recorded."""


class KeyReused(RunError):
    """A key stands for one intent in the whole store, and another step holds it."""

    def __init__(
        self, message: str | None = None, *, idx: int = 0, first: str | None = None, is_free: bool = False
    ) -> None:
        super().__init__(message)
        self.idx = idx
        """The step, of the run that is refused, whose key another step holds."""
        self.first = first
        """What that other step gave, where it had the same arguments and is done."""
        self.is_free = is_free
        """Whether that other step surely did not happen: then a renewed key stands for the intent."""


class StoreError(AgentError):
    """The store cannot do that."""


class StoreUnusable(StoreError):
    """The store cannot be opened."""


class StoreReentered(StoreError):
    """The body of a TRANSACTIONAL tool called the store; it may only write through ctx.session."""


class StoreBusy(StoreError):
    """The database was busy for longer than the bound; nothing was recorded."""


class AppendUnknown(StoreError):
    """An append failed and nobody could read back whether it is there; resume the run to find out."""


class SchemaMismatch(StoreError):
    """The store was written by another version of agent_es."""


class ModelError(AgentError):
    """A model was asked, and gave no answer; nothing was recorded."""

    def __init__(self, message: str | None = None, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status of the last attempt, where there was one."""


class ModelUnavailable(ModelError):
    """A model gave no answer within the bound; resume the run later."""


class ModelRefused(ModelError):
    """A model refused the request: to ask again as it is cannot help."""


class ActOutOfOrder(AgentError):
    """The crash lab cannot do that now; nothing was done."""


class BadJournal(AgentError, ValueError):
    """A line is no line of a journal."""


class NotRecordable(AgentError, ValueError):
    """A value cannot be written to the journal."""


class EffectError(AgentError):
    """Raised by the body of a tool to say what became of its effect."""


class NotApplied(EffectError):
    """The effect surely did not happen."""


class KeyMismatch(EffectError):
    """The provider holds this key with other parameters; sending it again cannot help."""


class OutcomeUnknown(EffectError):
    """Nobody can tell whether the effect happened."""
