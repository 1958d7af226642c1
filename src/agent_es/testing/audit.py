"""What must hold of every run, whatever its agent does: the library's own invariants.

Rule 1: a problem is noted, not raised: an agent that catches everything must not hide it.
Rule 2: what is durable is read through the store again, never taken from the worker's memory.
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import select

from agent_es.decider import Answered, Decider
from agent_es.drivers import Body
from agent_es.errors import AgentError, IllegalEvent, LeaseLost, RunMoved, RunNotFound
from agent_es.events import (
    AnyEvent,
    ApprovalDenied,
    ApprovalGranted,
    ApprovalRequested,
    Cancelled,
    CompensationBegan,
    EnvelopeChanged,
    Finished,
    LlmDecided,
    Paused,
    QuestionAnswered,
    Resumed,
    RunFailed,
    SignalReceived,
    Steered,
    WaitBegan,
    WaitEnded,
)
from agent_es.journal import JournalEntry
from agent_es.legality import check_legal
from agent_es.run import AgentRun
from agent_es.runtime import memory_of
from agent_es.state import RunState, Status, ended
from agent_es.store import RunStore
from agent_es.store.tables import deliveries, inbox, keys, runs, tags
from agent_es.testing.crash import CrashingRunner, essence
from agent_es.testing.difference import difference
from agent_es.tools import ToolSpec

Question = tuple[int, int, int]
"""What names a question to a decider: the turn, its answers that could not be used, and the steps summarized."""

_PROJECTED = {table.name: str(select(table)) for table in (runs, keys, tags, deliveries, inbox)}
"""What reads each projection whole, in the SQL of every database: each store of a journey would compile it anew."""


@dataclass
class Audit:
    """What was seen of one run over the lives of all its workers.  ``alone``: one worker at a time moves it."""

    alone: bool = True
    same: Callable[[RunState], Any] = essence
    """What of a state must be the same with crashes as without."""
    shown: dict[Question, dict[str, Any]] = field(default_factory=dict)
    """What the decider was shown with each question: what of the state must be the same, and the tools."""
    tried: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Which stores tried to append at each version."""
    effects: list[Any] | None = None
    """What had happened in the world when the last worker left it."""
    started: set[tuple[int, int]] = field(default_factory=set)
    """The (idx, attempt) of every body that ran."""
    problems: list[str] = field(default_factory=list)
    _shown: dict[tuple[Question, int, str | None], dict[str, Any]] = field(default_factory=dict)
    """The same, for all that people may have said meanwhile."""
    heard: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """How many messages of people the decider was shown with each turn."""

    def decider_asked(self, store: RunStore, state: RunState, tools: Sequence[ToolSpec]) -> None:
        """Look at a question to the decider."""
        self.heard[state.turns].add(len(state.messages))
        shown = {"run": self.same(state), "tools": [*tools]}
        question = state.turns, len(state.unusable), state.summarized
        self.shown.setdefault(question, shown)
        said = question, len(state.messages), state.envelope_json
        before = self._shown.setdefault(said, shown)
        if repr(before) != repr(shown):
            self.problems.append(
                f"the decider was asked again about turn {state.turns} and shown something else:\n"
                f"{difference(before, shown)}"
            )
        durable = store.load(state.run_id)
        if self.alone and durable.turns > state.turns:
            self.problems.append(f"the decider was asked about turn {state.turns}, whose decision is in the journal")

    def body_begins(self, store: RunStore, body: Body) -> None:
        """Look at a body that is about to run."""
        start = (body.idx, body.step.attempt)
        if body.step.attempts_spent > body.retry.max_attempts:
            self.problems.append(
                f"the body of step {body.idx} ({body.tool.name}) ran at attempt {body.step.attempts_spent}, "
                f"and it may have {body.retry.max_attempts}"
            )
        what = f"the body of step {body.idx} ({body.tool.name}) ran at attempt {body.step.attempt}"
        if start in self.started:
            self.problems.append(f"{what} twice: the second start has no start mark of its own")
        self.started.add(start)
        with suppress(RunNotFound):
            steps = store.load(body.run_id).steps
            if len(steps) > body.idx:
                step = steps[body.idx]
                if step.attempt < body.step.attempt:
                    self.problems.append(f"{what}, and the journal knows of attempt {step.attempt} only")
                elif (step.tool, step.args_json) != (body.step.tool, body.step.args_json):
                    self.problems.append(f"{what} with {body.step.args_json}, and {step.args_json} was decided")
                elif step.attempt == body.step.attempt and step.key != body.step.key:
                    self.problems.append(f"{what} under the key {body.step.key}, and {step.key} is in the journal")
                return
        self.problems.append(f"{what}, and its decision is not in the journal")


class Watched(RunStore):
    """A worker's store, whose appends are noted: who is told that another was faster, was beaten by another."""

    def __init__(self, *args: Any, audit: Audit, **kwargs: Any) -> None:
        self._audit = audit
        super().__init__(*args, **kwargs)

    def transact(self, run: AgentRun, act: Callable[[Any], object]) -> None:
        """Note an append in a body's transaction."""
        with self._noted(run, run.version + 1):
            super().transact(run, act)

    def _append(self, run: AgentRun) -> None:
        with self._noted(run, run.pending_events[0].originator_version):
            super()._append(run)

    @contextmanager
    def _noted(self, run: AgentRun, version: int) -> Iterator[None]:
        tried = self._audit.tried[version]
        tried.add(id(self))
        try:
            yield
        except LeaseLost:
            raise
        except RunMoved as error:
            is_alone = tried == {id(self)} and version > 1
            if is_alone and self.load(run.state.run_id).status is not Status.CANCELLED:
                self._audit.problems.append(f"a worker was stopped by its own append: {error}")
            raise


class Overheard:
    """A decider whose questions are looked at."""

    def __init__(self, decider: Decider, audit: Audit, store: RunStore) -> None:
        self._decider = decider
        self._audit = audit
        self._store = store
        self.memory = memory_of(decider)

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered | Awaitable[Answered]:
        """Ask the decider."""
        self._audit.decider_asked(self._store, run, tools)
        return self._decider.decide(run, tools)


class Audited(CrashingRunner):
    """A worker whose bodies are looked at."""

    def __init__(self, *args: Any, audit: Audit, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._audit = audit

    def ask(self, run: AgentRun, decider: Decider | None = None) -> Answered | Awaitable[Answered]:
        """Ask a decider; one that is not the run's own is listened to as that is."""
        heard = None if decider is None else Overheard(decider, self._audit, self.store)
        return super().ask(run, heard)

    def before_body(self, body: Body) -> None:
        """Look at a body that is about to run."""
        self._audit.body_begins(self.store, body)


def wrong_row(store: RunStore, run_id: str) -> str | None:
    """Say what the row of a run says that its journal does not: workers go by the row."""
    with suppress(RunNotFound):
        state, record = store.load(run_id), store.record(run_id)
        says = record.status, record.waiting_for, record.cursor, _to_the_second(record.wake_at)
        holds = state.status, state.waiting_for, state.version, _to_the_second(state.wake_at)
        if says != holds:
            return f"the row of the run says {', '.join(map(str, says))}; its journal {', '.join(map(str, holds))}"
    return None


def _to_the_second(at: datetime | None) -> datetime | None:
    return at and at.replace(microsecond=0)


def problems_of(store: RunStore, run_id: str, told: RunState | None) -> Iterable[str]:
    """Yield what is wrong with a run on disk; ``told`` is the state that its last worker returned."""
    try:
        journal = store.journal(run_id)
        check_legal(run_id, [entry.event for entry in journal])
        yield from wrong_waits(journal)
        yield from wrong_approvals(journal)
        yield from wrong_pauses(journal)
        state = store.load(run_id)
        if told is not None and told != state:
            yield f"the worker returned another state than the journal folds to:\n{difference(state, told)}"
    except IllegalEvent as error:
        yield f"the journal is not legal: {error}"
    except AgentError as error:
        yield f"the journal cannot be read: {error}"
    try:
        before = _projected(store)
        store.rebuild()
        rebuilt = _projected(store)
    except Exception as error:
        yield f"the tables cannot be rebuilt: {error}"
    else:
        for name, rows in rebuilt.items():
            if rows != before[name]:
                yield f"the table {name} was {before[name]}, and its rebuild is {rows}"


def wrong_waits(journal: Sequence[JournalEntry]) -> Iterable[str]:
    """Yield where a delivery is there twice, or a wait was ended by something else than what came first for it."""
    came: dict[int, str] = {}
    """The names of the signals that nothing has waited for yet."""
    awaited: dict[int, str | None] = {}
    delivered: set[str] = set()
    for entry in journal:
        match entry.event:
            case SignalReceived(name=name, delivery_id=delivery_id):
                if delivery_id in delivered:
                    yield f"seq {entry.seq}: the delivery {delivery_id} of the signal {name!r} was recorded before"
                delivered.add(delivery_id)
                came[entry.seq] = name
            case WaitBegan(idx=int(idx), signal=signal, child=child):
                awaited[idx] = signal if child is None else ended(child)
            case WaitEnded(idx=int(idx), received=received):
                first = next((seq for seq, name in came.items() if name == awaited.get(idx)), None)
                if received != first:
                    ended_by, came_first = _by(received), _by(first)
                    yield f"seq {entry.seq}: {ended_by} ended the wait of step {idx}, and {came_first} came first"
                came.pop(-1 if received is None else received, None)


@dataclass
class _Asked:
    """A call that a person must say yes to, as the journal tells of it."""

    args: str
    digest: str
    people: int
    expires_at: datetime | None
    said_yes: set[str] = field(default_factory=set)
    is_denied: bool = False

    @property
    def is_answered(self) -> bool:
        return self.is_denied or len(self.said_yes) >= self.people

    def take(self, event: ApprovalGranted | ApprovalDenied) -> Iterable[str]:
        """Take in what a person says, and yield what is wrong with it."""
        if self.is_answered:
            yield f"{event.by} answered for step {event.idx}, which was answered before"
        if isinstance(event, ApprovalDenied):
            self.is_denied = True
            return
        if self.expires_at is not None and event.timestamp >= self.expires_at:
            yield f"{event.by} said yes to step {event.idx} after the time to answer was over"
        if event.args is not None:
            self.args, self.digest, self.said_yes = event.args, event.digest, set()
        if event.digest != self.digest:
            yield f"{event.by} said yes to something else than step {event.idx}"
        self.said_yes.add(event.by)

    def start(self, event: LlmDecided) -> Iterable[str]:
        """Yield what is wrong with a start."""
        if self.is_denied or not self.is_answered:
            yield f"step {event.idx} started, and nobody had said yes to it"
        elif event.args != self.args:
            yield f"step {event.idx} started with {event.args}, and {self.args} was approved"


def wrong_approvals(journal: Sequence[JournalEntry]) -> Iterable[str]:
    """Yield where a call started without the yes that it waits for, or with other arguments than that was to."""
    asked: dict[int, _Asked] = {}
    for entry in journal:
        event, wrong = entry.event, ()  # type: Any, Iterable[str]
        match event:
            case ApprovalRequested(idx=idx):
                wrong = [f"step {idx} was asked about before"] if idx in asked else ()
                asked[idx] = _Asked(event.args, event.digest, event.people, event.expires_at)
            case ApprovalGranted(idx=idx) | ApprovalDenied(idx=idx):
                wrong = asked[idx].take(event)
            case LlmDecided(idx=idx, attempt=attempt) if attempt and idx in asked:
                wrong = asked[idx].start(event)
        for problem in wrong:
            yield f"seq {entry.seq}: {problem}"


def wrong_pauses(journal: Sequence[JournalEntry]) -> Iterable[str]:
    """Yield where something was decided or began while the run was paused."""
    is_paused = False
    for entry in journal:
        if isinstance(entry.event, Paused | Resumed):
            is_paused = isinstance(entry.event, Paused)
        elif is_paused and isinstance(entry.event, LlmDecided | Finished | RunFailed):
            yield f"seq {entry.seq}: {entry.type} while the run was paused"


def unheard(journal: Sequence[JournalEntry], heard: Mapping[int, AbstractSet[int]]) -> Iterable[str]:
    """Yield where a turn was decided by who had not seen what people had said before; ``heard`` is what was seen."""
    said = turns = 0
    for entry in journal:
        match entry.event:
            case Steered():
                said += 1
            case LlmDecided(turn=turn) if turn >= turns:
                turns = turn + 1
                if said not in heard.get(turn, {said}):
                    yield f"seq {entry.seq}: turn {turn} was decided without the message that had come before"


def _by(received: int | None) -> str:
    return "the clock" if received is None else f"the signal of seq {received}"


def _projected(store: RunStore) -> dict[str, list[tuple[Any, ...]]]:
    with store.recorder.transaction(commit=False) as session:
        return {
            name: sorted(map(tuple, session.connection().exec_driver_sql(all_rows)), key=repr)
            for name, all_rows in _PROJECTED.items()
        }


def words_of(journal: Iterable[JournalEntry]) -> Sequence[object]:
    """Return what people said that may make a run another one, whenever they said it."""
    return sorted(filter(None, (_word_of(entry.event) for entry in journal)))


def _word_of(event: AnyEvent) -> tuple[str, ...] | None:
    match event:
        case ApprovalGranted(idx=idx, args=str(args)):
            return "edited", str(idx), args
        case ApprovalDenied(idx=idx):
            return "denied", str(idx)
        case QuestionAnswered(idx=idx, answer=said):
            return "answered", str(idx), said
        case Steered(text=text):
            return "steered", text
        case Cancelled() | CompensationBegan() | EnvelopeChanged():
            return (type(event).__name__,)
        case _:
            return None


def effects_beside(happened: Iterable[Any], expected: Iterable[Any]) -> tuple[Counter[Any], Counter[Any]]:
    """Return what happened too often, and what too seldom."""
    counted, wanted = Counter(map(hashable, happened)), Counter(map(hashable, expected))
    return counted - wanted, wanted - counted


def hashable(effect: Any) -> Any:
    """Return something to count an effect by."""
    try:
        hash(effect)
    except TypeError:
        return repr(effect)
    return effect
