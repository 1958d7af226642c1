"""Who may move a run now: leases, with a token that fences.

Rule 1: every expiry is judged by the database's clock, the only one that all workers share.
Rule 2: the token grows with every taking; an append under another token than the row's is refused, whatever its
holder believes.  So a worker that froze and thawed can do no harm here.
Rule 3: a row that is gone is a lease that is lost.
Rule 4: who was overtaken may be frozen in a call: it is remembered until the turn of that call is over.
Rule 5: what this process wanted to give back and could not, it may take again at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeVar

from agent_es.errors import AgentError, LeaseLost, RunHeld, RunNotFound
from agent_es.events import stream_id
from agent_es.journal import timestamp
from agent_es.owners import Lease, Owner, elapsed
from agent_es.store.datastore import Datastore
from agent_es.store.projection import plain
from agent_es.store.tables import DUE_BY_LEASE, DUE_BY_TIME, IS_MOVABLE, IS_WAITING, runs
from agent_es.values import valid_unicode

T = TypeVar("T")

APART = "|"
"""What stands between the owners that a row names; a name that it splits is nobody's who is surely dead."""

AHEAD = 32
"""How many of the runs that wait for the clock are looked at: the first of them may be held, or left alone."""

_given_up: set[tuple[str, str, int]] = set()
"""Leases that this process does not use any more, and whose rows do not say so: holder, run, token."""


@dataclass(frozen=True, slots=True)
class Held:
    """Who holds a run, and until when."""

    by: str
    until: datetime


class Leases:
    """Takes, claims, renews and releases leases."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        dialect, table = datastore.dialect, runs.name
        now = dialect.now
        until = f"lease_until = {now} + ?"
        was_lost = (
            "lapsed_owners = CASE WHEN lease_owner IS NULL OR lease_owner = ? THEN lapsed_owners "
            f"ELSE COALESCE(lapsed_owners || '{APART}', '') || lease_owner END"
        )
        taken = f"lease_owner = ?, {was_lost}, lease_token = lease_token + 1, {until}"
        self._taken = f"{taken}, claims = claims + 1, trouble = NULL"
        look = (
            f"SELECT lease_owner, lease_until, {now}, lease_token FROM {table} WHERE run_id = ?{dialect.for_update}"
        )
        take = f"UPDATE {table} SET {self._taken} WHERE run_id = ? RETURNING lease_token, claims"
        ours = "WHERE run_id = ? AND lease_token = ?"
        renew = f"UPDATE {table} SET {until} {ours} AND lease_owner IS NOT NULL"
        uncounted = "claims = CASE WHEN claims > 0 THEN claims - ? ELSE 0 END"
        defer = f"UPDATE {table} SET lease_owner = NULL, {until}, {uncounted}, trouble = ? {ours}"
        find = f"SELECT run_id, lease_token, claims FROM {table} WHERE lease_owner = ?"
        self._look, self._take, self._renew = map(dialect.sql, (look, take, renew))
        self._defer, self._find = map(dialect.sql, (defer, find))
        self._lapsed = dialect.sql(f"SELECT lapsed_owners FROM {table} WHERE run_id = ?")
        self._claimed = count(1)

    def take(self, run_id: str, owner: Owner, seconds: float, *, force: bool = False) -> Lease:
        """Take a run, from nobody or from who is surely dead; ``force`` takes it from anybody.

        Raises ``RunHeld``, ``RunNotFound``, ``StoreBusy``, ``StoreUnusable``.
        """
        stream_id(run_id)  # what no run is called is asked of no database
        is_again = False

        def take(connection: Any) -> Lease:
            nonlocal is_again
            asked_at = elapsed()
            found = connection.execute(self._look, (run_id,)).fetchone()
            if found is None:
                raise RunNotFound(f"no run {run_id!r}")
            is_ours = is_again and found[0] == str(owner)
            held = None if is_ours else _held(run_id, *found)
            if held and not force:
                raise RunHeld(
                    f"run {run_id} is held by {held.by} until {timestamp(held.until)}; "
                    "wait until then, stop that worker, or take it over with force_takeover"
                )
            is_again = True  # if the answer to this is lost, it may be ours
            token, claims = connection.execute(self._take, (str(owner), str(owner), seconds, run_id)).fetchone()
            return Lease(run_id, token, seconds, claims, str(owner), _fresh_at=asked_at)

        return self._written(take)

    def holder(self, run_id: str) -> Held | None:
        """Return who holds a run, by the database's clock; None where nobody does, or one who is surely dead."""
        found = self._written(lambda connection: connection.execute(self._look, (run_id,)).fetchone())
        return found and _held(run_id, *found)

    def holder_in(self, connection: Any, run_id: str) -> Held | None:
        """Return what ``holder`` does, inside a transaction that somebody else commits."""
        found = connection.execute(self._look, (run_id,)).fetchone()
        return found and _held(run_id, *found)

    def lapsed_in(self, connection: Any, run_id: str) -> list[str]:
        """Return who lost a run in its present turn, without giving it back, and is not surely dead.

        What it was about may still happen: it may have frozen in the middle of a call.
        """
        (text,) = connection.execute(self._lapsed, (run_id,)).fetchone()
        known = [(name, Owner.parse(name)) for name in (text or "").split(APART) if name]
        return [name for name, owner in known if owner is None or not owner.is_surely_dead]

    def renew(self, lease: Lease) -> None:
        """Renew a lease; raise ``LeaseLost`` where it is another's by now, or was given back."""
        asked_at = elapsed()
        values = (lease.seconds, lease.run_id, lease.token)
        if self._written(lambda connection: connection.execute(self._renew, values).rowcount) != 1:
            lease.is_lost = True
            raise LeaseLost(f"run {lease.run_id}: the lease {lease.token} was taken over; this execution stopped")
        lease.refresh(asked_at)

    def release(self, lease: Lease) -> None:
        """Give a run back, in good order: that uses up nothing.  One that is lost or given back is left alone."""
        self.defer(lease, 0.0, counts=False)

    def defer(self, lease: Lease, seconds: float, *, counts: bool, trouble: str | None = None) -> None:
        """Give a run back and leave it alone for so long; ``counts`` lets the claim count as one that got nowhere.

        ``trouble`` is shown with the run until somebody takes it again.
        """
        if lease.is_lost:
            return
        shown = None if trouble is None else plain(valid_unicode(trouble))
        values = (seconds, int(not counts), shown, lease.run_id, lease.token)
        lease.is_lost = True
        try:
            self._written(lambda connection: connection.execute(self._defer, values))
        except AgentError:
            _given_up.add((lease.holder, lease.run_id, lease.token))
            raise

    def claim(self, agents: Sequence[str], owner: Owner, seconds: float) -> Lease | None:
        """Take the run that is due longest, of one of the agents; None where none is.

        It is by turns one that the clock wakes and one that can move, where there are both: neither waits for all of
        the others.
        """
        if not agents:
            return None

        number = next(self._claimed)
        holder = f"{owner}#{number}"  # by which it is found again where its answer is lost
        statements = [*self._claims(len(agents))][:: 1 if number % 2 else -1]
        is_again = False

        def claim(connection: Any) -> Lease | None:
            nonlocal is_again
            asked_at = elapsed()
            found = connection.execute(self._find, (holder,)).fetchone() if is_again else None
            is_again = True
            for statement in statements:
                found = found or connection.execute(statement, (holder, holder, seconds, *agents)).fetchone()
            return found and Lease(found[0], found[1], seconds, found[2], holder, _fresh_at=asked_at)

        return self._written(claim)

    def due_in(self, agents: Sequence[str]) -> float | None:
        """Return in how many seconds a run of one of the agents may be claimed, as far as is known now: 0.0 at once.

        None where no run waits for the clock, nor for the end of a lease.  Nothing is written: on a database with one
        writer, nobody waits for who looks.  Raises ``StoreUnusable``.
        """
        if not agents:
            return None
        select = self._datastore.dialect.select

        def look(connection: Any) -> float | None:
            found = [row[0] for sql in self._looks(len(agents)) for row in select(connection, sql, agents)]
            return min((max(0.0, seconds) for seconds in found if seconds is not None), default=None)

        with self._datastore.usable("what is due cannot be looked for"):
            return self._datastore.reading(look)

    def _looks(self, agents: int) -> Iterator[str]:
        """Yield the statements that say in how many seconds something is due: by the clock, and by leases."""
        dialect = self._datastore.dialect
        by_time = f"{IS_WAITING} AND wake_at IS NOT NULL", "wake_at", DUE_BY_TIME, AHEAD
        for is_open, order, index, ahead in (by_time, (IS_MOVABLE, "lease_until", DUE_BY_LEASE, 1)):
            due_at = f"CASE WHEN lease_until > {order} THEN lease_until ELSE {order} END"
            of_one = (
                f"SELECT * FROM (SELECT {due_at} AS due_at FROM {runs.name}{dialect.using(index)} "
                f"WHERE {is_open} AND agent = ? ORDER BY {order} LIMIT {ahead}) AS soonest"
            )
            yield dialect.sql(f"SELECT min(due_at) - {dialect.now} FROM ({_of_each(of_one, agents)}) AS of_all")

    def _written(self, act: Callable[[Any], T]) -> T:
        return self._datastore.repeatable(act, "a lease could not be written")

    def _claims(self, agents: int) -> Iterator[str]:
        """Yield the statements that claim: what is due by the clock, and what can move.

        The agent is found first whose run is due longest, since an index has the runs of each in their order.
        """
        dialect, table = self._datastore.dialect, runs.name
        now = f"(SELECT {dialect.now})"  # asked for once: a clock that may move on is compared with every row
        by_time = f"{IS_WAITING} AND wake_at <= {now}", "wake_at", DUE_BY_TIME
        for is_due, order, index in (by_time, (IS_MOVABLE, "lease_until", DUE_BY_LEASE)):
            free = f"FROM {table}{dialect.using(index)} WHERE {is_due} AND lease_until <= {now}"
            of_one = f"SELECT * FROM (SELECT agent, {order} AS since {free} AND agent = ? ORDER BY 2 LIMIT 1) AS due"
            of_all = f"(SELECT agent FROM ({_of_each(of_one, agents)}) AS of_all ORDER BY since LIMIT 1)"
            whose = "?" if agents == 1 else of_all
            first = f"SELECT run_id {free} AND agent = {whose} ORDER BY {order} LIMIT 1{dialect.skip_locked}"
            yield dialect.sql(
                f"UPDATE {table} SET {self._taken} WHERE run_id = ({first}) RETURNING run_id, lease_token, claims"
            )


def _of_each(select: str, agents: int) -> str:
    """Return a statement about one agent as one about so many."""
    return " UNION ALL ".join([select] * agents)


def _held(run_id: str, by: str | None, until: float, now: float, token: int) -> Held | None:
    """Return who holds a run whose row says this; None where it is free."""
    if by is None or until <= now or (by, run_id, token) in _given_up:
        return None
    owner = Owner.parse(by)
    if owner is not None and owner.is_surely_dead:
        return None
    return Held(by, datetime.fromtimestamp(until, UTC))
