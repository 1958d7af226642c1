"""What promises of a store are told with: openings, runs and what happens to them, and what is seen of it.

Rule: nothing here looks at a run that somebody else started.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from itertools import count
from operator import methodcaller
from typing import Any, TypeVar
from uuid import uuid4

from eventsourcing.persistence import Notification
from sqlalchemy import Column, MetaData, String, Table

from agent_es.differences import NOTHING
from agent_es.journal import JournalEntry
from agent_es.owners import Lease, Owner
from agent_es.run import AgentRun, Planned
from agent_es.state import RunState
from agent_es.store import RunRecord, RunStore
from agent_es.tools import CallTool, Unknown
from agent_es.values import canonical

E = TypeVar("E", bound=Exception)
Command = Callable[[AgentRun], object]
"""Records something in a run; the store is not told yet."""

LONG = 60.0
"""Seconds of a lease that does not lapse meanwhile."""
RIVALS = 4
"""How many do the same at the same time, each with an opening of its own."""
PAST, FUTURE = datetime(2001, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC)


class Seen(Exception):  # becomes a part of NotAStore
    """Something else was seen than what should have been."""

    def __init__(self, what: str, seen: object, wanted: object) -> None:
        expected = wanted.__name__ if isinstance(wanted, type) else f"{wanted!r:.300}"
        super().__init__(f"seen: {what} {seen!r:.300}; should be: {expected}")


class Trial:
    """Openings of a store for one promise, and runs of an agent that nobody else has."""

    def __init__(self, open_store: Callable[[], RunStore], opened: ExitStack) -> None:
        self.name = f"check-{uuid4().hex}"
        self._open_store, self._opened, self._numbers = open_store, opened, count(1)

        class Checked(AgentRun):
            agent_name = self.name

        self.agent = Checked
        self.recorded: list[str] = []
        """The journal's lines of all that was saved at the start of runs."""
        self.store = self.open()

    def open(self) -> RunStore:
        """Open the store once more."""
        store = self._open_store()
        self._opened.callback(store.close)
        return store

    def begin(self, text: str = "check") -> AgentRun:
        """Return a new run that says the text everywhere; nothing of it is saved."""
        run_id = f"{self.name} {next(self._numbers)}"
        return self.agent.begin(run_id, text, canonical({text: [text]}), {text: text}, self.store.clock)

    def begin_long(self, events: int) -> AgentRun:
        """Return a new run with so many events, an even number; nothing of it is saved."""
        run = self.begin()
        for idx in range(events // 2 - 1):
            call(run)
            run.record_result(idx, canonical(idx))
        end(run)
        return run

    def start(self, *commands: Command, text: str = "check") -> AgentRun:
        """Start a run, and save what each of the commands records."""
        run = self.begin(text)
        for command in (lambda _: None, *commands):
            command(run)
            self.recorded += lines(run, run.pending_events)
            self.store.save(run)
        return run

    def again(self, run: AgentRun, *commands: Command) -> AgentRun:
        """Return a run as another worker finds it, to which so much happened then."""
        found = self.store.aggregate(self.agent, run.state.run_id)
        for command in commands:
            command(found)
        return found

    def take(self, run: AgentRun, *, force: bool = False) -> Lease:
        """Take the lease of a run for a worker that nobody else is."""
        return self.store.leases.take(run.state.run_id, Owner.here(), LONG, force=force)

    def claim(self, store: RunStore | None = None, seconds: float = LONG) -> Lease | None:
        """Claim one of the runs for a worker that nobody else is."""
        return (store or self.store).leases.claim([self.name], Owner.here(), seconds)

    def versions(self, runs: Iterable[AgentRun]) -> list[int]:
        """Return how many events the store has of each run."""
        return [self.store.load(run.state.run_id).version for run in runs]


# What may happen to a run.


def calls(*keys: str | None) -> Command:
    """Record a turn of calls that start at once."""
    turn = [Planned(CallTool("check"), "{}", key=key) for key in keys]
    return methodcaller("record_turn", turn, at_once=len(turn))


def late(until: datetime) -> Command:
    """Record that the first call failed and is made again then."""
    return methodcaller("record_retry", 0, Unknown("TimeoutError", "late"), until)


def wait(until: datetime) -> Command:
    """Record that nothing is done before then."""
    return methodcaller("record_rest", until)


call = calls(None)
once_more: Command = methodcaller("record_start", 0)
result: Command = methodcaller("record_result", 0, '{"found":[1,2.5,null]}')
doubt: Command = methodcaller("record_doubt", 0, "nobody knows")
settled: Command = methodcaller("record_settlement", 0, "happened", "check")
woken: Command = methodcaller("record_rest_ended")
parked: Command = methodcaller("record_parked", "nobody can move it")
end: Command = methodcaller("record_answer", "1")


# What is seen.


def equal(what: str, seen: Any, wanted: Any) -> None:
    """Compare; of two states, rows or lists, tell the first part that differs."""
    if seen == wanted:
        return
    parts, others = _parts(seen), _parts(wanted)
    for name in parts | others:
        part, other = parts.get(name, NOTHING), others.get(name, NOTHING)
        if part != other:
            raise Seen(f"{what}{name}:", part, other)
    raise Seen(f"{what}:", seen, wanted)


def _parts(value: Any) -> dict[str, object]:
    if isinstance(value, RunState | RunRecord):
        return {f".{field.name}": getattr(value, field.name) for field in fields(value)}
    return {f"[{n}]": part for n, part in enumerate(value)} if isinstance(value, list) else {"": value}


def refused(by: type[E], act: Callable[..., object], *given: Any, **options: Any) -> E:
    """Do what must raise such an error, and return it."""
    try:
        gave = act(*given, **options)
    except by as error:
        return error
    except Exception as error:
        raise Seen("it raised", error, by) from error
    raise Seen("it was not refused, and gave", gave, by)


def at_once(acts: Iterable[Callable[[], Any]], *, unless: type[Exception] | tuple[()] = ()) -> list[Any]:
    """Do all of it at the same time; return what each gave, or its error where that is one of ``unless``."""
    doing = [*acts]
    ready = threading.Barrier(len(doing))

    def do(act: Callable[[], Any]) -> Any:
        ready.wait()
        try:
            return act()
        except unless as error:
            return error

    with ThreadPoolExecutor(len(doing)) as threads:
        return [*threads.map(do, doing)]


def append(store: RunStore, run: AgentRun, times: int) -> None:
    """Append so many events, one after the other."""
    for _ in range(times):
        once_more(run)
        store.save(run)


@contextmanager
def own_table(store: RunStore) -> Iterator[Table]:
    """Lend a table beside the store's own."""
    table = Table(f"check_{uuid4().hex}", MetaData(), Column("run_id", String(200), primary_key=True))
    transaction = store.recorder.datastore.transaction
    with transaction(commit=True) as session:
        table.create(session.connection())
    try:
        yield table
    finally:
        with transaction(commit=True) as session:
            table.drop(session.connection())


def lines(run: AgentRun, events: Iterable[Any]) -> list[str]:
    """Return the lines of a journal of those events."""
    return [str(JournalEntry(run.state.run_id, event)) for event in events]


def journal(store: RunStore, run: AgentRun) -> list[str]:
    """Return the lines of the journal that the store has."""
    return [str(entry) for entry in store.journal(run.state.run_id)]


def notifications(store: RunStore, after: int) -> Iterator[Notification]:
    """Yield the events of all runs beyond a position, as the event store library tells them."""
    while page := store.recorder.select_notifications(start=after, limit=500, inclusive_of_start=False):
        yield from page
        if page[-1].id <= after:
            return
        after = page[-1].id
