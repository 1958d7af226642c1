"""The conformance suite: our store keeps every promise, and a store with one fault is told which promise it broke."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import eventsourcing.persistence as es
import pytest
from eventsourcing.persistence import InfrastructureFactory, StoredEvent
from eventsourcing.utils import Environment

from agent_es import AgentRun, RunState, RunStore
from agent_es.errors import LeaseLost, RunNotFound, StoreUnusable
from agent_es.journal import JournalEntry
from agent_es.owners import Lease, Owner
from agent_es.store import RunRecord
from agent_es.store.leases import Leases
from agent_es.store.projection import Change, Claim
from agent_es.store.recorder import Factory, RunRecorder
from agent_es.testing import FrozenClock, NotAStore, check_store
from agent_es.testing.conformance import PROMISES

Sql = Callable[..., list[tuple[Any, ...]]]
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
SECONDS = {"sqlite": 5.0, "postgres": 10.0}
"""What the whole of it may take of a core, whoever else is busy."""


def sentences(*names: str) -> list[str]:
    return [name.strip("_").replace("_", " ") for name in names]


EVERY = sentences(*(promise.__name__ for promise in PROMISES))
REBUILD = "rows and keys that are made again are what they were"


# A store that is one.


def test_our_store_keeps_every_promise_within_seconds(url: str, database: str) -> None:
    began, worked = time.monotonic(), time.process_time()

    held = check_store(lambda: RunStore(url))

    took, work = time.monotonic() - began, time.process_time() - worked
    print(f"{len(held)} promises of {database}: {took:.1f} s, {work:.1f} s of them work")  # noqa: T201
    assert held == [*EVERY, REBUILD]
    assert work < SECONDS[database]


def test_a_store_is_checked_again_and_again_beside_runs_that_are_left_as_they_are(
    open_store: Callable[..., RunStore], tables: Callable[[], list[str]], sql: Sql
) -> None:
    store = open_store()
    store.start(AgentRun, run_id="run-1", goal="stay")
    lease = store.leases.take("run-1", Owner.here(), 60)
    before = store.load("run-1"), store.record("run-1"), tables()

    check_store(open_store)
    assert (store.load("run-1"), store.record("run-1"), tables()) == before

    sql("UPDATE agent_es_runs SET goal = 'wrong' WHERE run_id = 'run-1'")
    held = check_store(open_store, rebuild=False)
    assert held == EVERY
    assert store.record("run-1").goal == "wrong"
    store.leases.renew(lease)


@on_sqlite
def test_a_store_that_cannot_be_opened_is_not_checked(tmp_path: Path, database: str) -> None:
    with pytest.raises(StoreUnusable, match="there is no folder"):
        check_store(lambda: RunStore(f"sqlite:///{tmp_path / 'nowhere' / 'runs.db'}"))


# Stores with a fault.


class Renumbers(RunRecorder):
    """Appends behind whatever is there."""

    def append(self, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim] = ()) -> None:
        try:
            super().append(stored, row, claims)
        except es.IntegrityError:
            if stored[0].originator_version == 1:
                raise
            there = len(self.rows(UUID(str(stored[0].originator_id))))
            behind = [replace(event, originator_version=there + n) for n, event in enumerate(stored, start=1)]
            cursor = there + len(stored)
            super().append(behind, row._replace(values=(*row.values[:-3], cursor, *row.values[-2:])), claims)


class KeepsWhatWasOverwritten(RunRecorder):
    """Says that it appended where the version was taken."""

    def append(self, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim] = ()) -> None:
        try:
            super().append(stored, row, claims)
        except es.IntegrityError:
            if stored[0].originator_version == 1:
                raise


class IgnoresTheToken(RunRecorder):
    def append(self, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim] = ()) -> None:
        super().append(stored, row._replace(token=None), claims)


class DropsTheLastOfABatch(RunRecorder):
    def append(self, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim] = ()) -> None:
        super().append(stored[:-1] or stored, row, claims)


class CommitsOneByOne(RunRecorder):
    """Makes a transaction of each event; the last one claims the keys."""

    def append(self, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim] = ()) -> None:
        for event in stored:
            values = (*row.values[:-3], event.originator_version, *row.values[-2:])
            super().append([event], row._replace(values=values), claims if event is stored[-1] else ())


class ClaimsNoKeys(RunRecorder):
    def append(self, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim] = ()) -> None:
        super().append(stored, row)


class LooksForKeysFirst(RunRecorder):
    """Looks whether a key is held, and claims it then, in no transaction with what it saw."""

    def append(self, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim] = ()) -> None:
        look = "SELECT 1 FROM agent_es_keys WHERE tool = ? AND key = ?"
        held = [claim for claim in claims if self._rows_of(look, (claim.tool, claim.key))]
        if claims:
            time.sleep(0.02)
        super().append(stored, row, held)
        with self.datastore.writing() as connection:
            for claim in claims:
                connection.execute(
                    "INSERT OR IGNORE INTO agent_es_keys VALUES (?, ?, ?, ?, ?)",
                    (claim.tool, claim.key, claim.run_id, claim.idx, claim.digest),
                )


class KeepsNoNul(RunRecorder):
    def append(self, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim] = ()) -> None:
        kept = [replace(event, state=event.state.replace(rb"\u0000", b"")) for event in stored]
        super().append(kept, row, claims)


class WritesAnotherTime(RunRecorder):
    """Writes the time of the append into a row, and not the event's."""

    def append(self, stored: Sequence[StoredEvent], row: Change, claims: Sequence[Claim] = ()) -> None:
        super().append(stored, row._replace(values=(*row.values[:-2], time.time(), row.values[-1])), claims)


class ReadsAPage(RunRecorder):
    def read(self, stream: UUID, take: Callable[..., Any], *, after: int = 0, upto: int | None = None) -> Any:
        return super().read(stream, take, after=after, upto=min(upto or 1_000, 1_000))


class CountsPositionsPerRun(RunRecorder):
    """Gives the last of a page its own position, so that a reader gets on."""

    def select_notifications(self, *args: Any, **kwargs: Any) -> list[es.Notification]:
        told = super().select_notifications(*args, **kwargs)
        return [*(replace(it, id=it.originator_version) for it in told[:-1]), *told[-1:]]


class NeverLapsing(Leases):
    def _claims(self, agents: int) -> Iterator[str]:
        for statement in super()._claims(agents):
            yield statement.replace(f"lease_until <= (SELECT {self._datastore.dialect.now})", "lease_owner IS NULL")


class LapsingEarly(Leases):
    def claim(self, agents: Sequence[str], owner: Owner, seconds: float) -> Lease | None:
        return super().claim(agents, owner, seconds / 4)


class ClaimedTwice(Leases):
    """Looks which run is free, and takes it then, in no transaction with what it saw."""

    def claim(self, agents: Sequence[str], owner: Owner, seconds: float) -> Lease | None:
        (statement, movable), values = self._claims(len(agents)), (str(owner), str(owner), 0.0, *agents)
        looks = [it[it.index("(SELECT") + 1 : it.index(") RETURNING")] for it in (statement, movable)]
        with self._datastore.raw() as connection:
            found = [row for look in looks for row in connection.execute(look, values[3:]).fetchall()]
        time.sleep(0.005)
        return self.take(found[0][0], owner, seconds, force=True) if found else None


class ClaimedTooEarly(Leases):
    def _claims(self, agents: int) -> Iterator[str]:
        for statement in super()._claims(agents):
            yield statement.replace(f"wake_at <= (SELECT {self._datastore.dialect.now})", "wake_at IS NOT NULL")


class RenewedForNothing(Leases):
    def renew(self, lease: Lease) -> None:
        super().renew(replace(lease, seconds=0.05))


class RenewedByAnybody(Leases):
    def renew(self, lease: Lease) -> None:
        with suppress(LeaseLost):
            super().renew(lease)


class NeverGivenBack(Leases):
    def release(self, lease: Lease) -> None:
        lease.is_lost = True


class CountsWhatWasGivenBack(Leases):
    def release(self, lease: Lease) -> None:
        self.defer(lease, 0.0, counts=True)


class CommitsWhatRaised(RunStore):
    def transact(self, run: AgentRun, act: Callable[[Any], object]) -> None:
        raised: list[Exception] = []

        def swallowing(session: Any) -> None:
            try:
                act(session)
            except Exception as error:
                raised.append(error)

        super().transact(run, swallowing)
        for error in raised:
            raise error


class CommitsTwice(RunStore):
    """Commits what the body wrote, and then what happened."""

    def transact(self, run: AgentRun, act: Callable[[Any], object]) -> None:
        try:
            with self.recorder.datastore.transaction(commit=True) as session:
                act(session)
            self.save(run)
        except Exception:
            run.discard()
            raise


class StartsWithoutLooking(RunStore):
    """Says that a run was started where one of that id is there."""

    def start(self, agent: type[AgentRun], **given: Any) -> RunState:
        state = super().start(agent, **given)
        return replace(state, resumed=False)


class IgnoresTheVersion(RunStore):
    def load(self, run_id: str, version: int | None = None) -> RunState:
        return super().load(run_id)


class FindsWhatIsNotThere(RunStore):
    def journal(self, run_id: str, *, after: int = -1) -> list[JournalEntry]:
        with suppress(RunNotFound):
            return super().journal(run_id, after=after)
        return []


class PutsInOneByOne(RunStore):
    def put_journals(self, journals: Any) -> None:
        for run_id, events in journals.items():
            super().put_journals({run_id: events})


class FindsAll(RunStore):
    def runs(self, *, status: Any = None, **options: Any) -> list[RunRecord]:
        return super().runs(**options)


class EndsWhenClosed(RunStore):
    closed = False

    def close(self) -> None:
        super().close()
        self.closed = True

    def load(self, run_id: str, version: int | None = None, *, known: RunState | None = None) -> RunState:
        if self.closed:
            raise StoreUnusable("it was closed")
        return super().load(run_id, version, known=known)


class SkipsInTheFeed(RunStore):
    def feed(self, **options: Any) -> Iterator[Any]:
        first, _, *others = *super().feed(**options), None, None  # type: ignore[misc]
        return (entry for entry in (first, *others) if entry is not None)


class TakesLeasesAwayInARebuild(RunStore):
    def rebuild(self, on_run: Callable[[str], object] = lambda _: None) -> int:
        count = super().rebuild(on_run)
        with self.recorder.datastore.writing() as connection:
            connection.execute("UPDATE agent_es_runs SET lease_owner = NULL, lease_until = 0")
        return count


class ForgetsKeysInARebuild(RunStore):
    def rebuild(self, on_run: Callable[[str], object] = lambda _: None) -> int:
        count = super().rebuild(on_run)
        with self.recorder.datastore.writing() as connection:
            connection.execute("DELETE FROM agent_es_keys")
        return count


VERSION = "of those who append at one version one wins and the others leave nothing"
BATCH = "an append of several events is all or none"
FENCE = "an append under a token that was taken over leaves nothing though its version fits"
KEY = "of those who claim a key one has it and the others leave nothing"
TEXT = "a text is read back to the letter whatever it holds"
BODY = "what a body writes commits with its result or neither does"
LAPSE = "a lease that is not renewed lapses after its time and not before"
CLAIM = "a run is claimed by one however many claim at once"
RENEWED = "a lease that was renewed is kept from then on"
HELD_BY_ONE = "a lease is held by one and is no more once it was taken by force"
GIVEN_BACK = "a run that was given back is claimed at once and nothing was used up"

FAULTS: dict[type, str] = {
    Renumbers: VERSION,
    IgnoresTheToken: FENCE,
    DropsTheLastOfABatch: BATCH,
    CommitsOneByOne: BATCH,
    ClaimsNoKeys: KEY,
    NeverLapsing: LAPSE,
    ClaimedTwice: CLAIM,
    RenewedForNothing: RENEWED,
    CommitsWhatRaised: BODY,
    KeepsNoNul: TEXT,
}
"""Which promise each of them breaks."""
MORE_FAULTS: dict[type, str] = {
    KeepsWhatWasOverwritten: VERSION,
    LooksForKeysFirst: KEY,
    LapsingEarly: LAPSE,
    ClaimedTooEarly: "what is due is claimed and nothing else",
    RenewedByAnybody: HELD_BY_ONE,
    NeverGivenBack: GIVEN_BACK,
    CountsWhatWasGivenBack: GIVEN_BACK,
    CommitsTwice: BODY,
    WritesAnotherTime: "a row says what the events of its run say",
    ReadsAPage: "a journal of 1200 events is put in as a whole and read back in order",
    PutsInOneByOne: "a journal of 1200 events is put in as a whole and read back in order",
    CountsPositionsPerRun: "what many append at once is all there at positions that are distinct and in order",
    StartsWithoutLooking: "a run that is started again is the one that is there and no other",
    IgnoresTheVersion: "a run is read by another opening as it was recorded",
    FindsWhatIsNotThere: "a run that was never started is not found",
    FindsAll: "runs are found by what they are and the one that changed last first",
    EndsWhenClosed: "a store that was closed is used again",
    SkipsInTheFeed: "the feed gives each event once and in order also while many append",
}


def with_fault(fault: type) -> type[RunStore]:
    """A store of our own, but for one part."""
    if issubclass(fault, RunStore):
        return fault

    class Its(Factory):
        application_recorder_class = fault if issubclass(fault, RunRecorder) else RunRecorder

    class Faulty(RunStore):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if issubclass(fault, Leases):
                self.leases = fault(self.recorder.datastore)

        def construct_factory(self, env: Environment) -> InfrastructureFactory[Any]:
            return Its(env)

    return Faulty


def checked(fault: type, folder: Path, *, rebuild: bool) -> NotAStore:
    url = f"sqlite:///{folder / 'runs.db'}"
    with pytest.raises(NotAStore) as caught:
        check_store(lambda: with_fault(fault)(url, clock=FrozenClock()), rebuild=rebuild)
    return caught.value


@pytest.mark.crash
@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        *FAULTS.items(),
        *(pytest.param(*it, marks=pytest.mark.crash) for it in MORE_FAULTS.items()),
    ],
    ids=lambda it: it.__name__ if isinstance(it, type) else "",
)
def test_a_fault_is_told_by_the_promise_that_it_breaks_and_by_no_other(
    fault: type, promise: str, tmp_path: Path
) -> None:
    error = checked(fault, tmp_path, rebuild=False)

    assert [*error.broken] == [promise]
    assert sorted([*error.held, promise]) == sorted(EVERY)


@pytest.mark.parametrize("fault", [TakesLeasesAwayInARebuild, ForgetsKeysInARebuild])
def test_a_rebuild_with_a_fault_is_told(fault: type, tmp_path: Path) -> None:
    error = checked(fault, tmp_path, rebuild=True)

    assert [*error.broken] == [REBUILD]
    assert [*error.held] == EVERY


def test_every_promise_can_be_broken() -> None:
    assert {*FAULTS.values(), *MORE_FAULTS.values()} == {*EVERY}


def test_all_that_broke_is_told_with_what_was_seen(tmp_path: Path) -> None:
    class Both(EndsWhenClosed, CommitsWhatRaised):
        """Two faults."""

    error = checked(Both, tmp_path, rebuild=False)

    closed = "a store that was closed is used again"
    assert [*error.broken] == [closed, BODY]
    assert error.broken[closed] == "seen: StoreUnusable('it was closed')"
    assert re.fullmatch(r"seen: rows\[1\]: 'check-\w+ 2'; should be: nothing", error.broken[BODY])
    assert str(error).startswith(f"2 of {len(EVERY)} promises are broken:\n* {closed}\n  seen: StoreUnusable")
    assert isinstance(error.__cause__, ExceptionGroup)
    assert isinstance(error.__cause__.exceptions[0], StoreUnusable)
