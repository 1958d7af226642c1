"""The runs as their rows show them: looked for, page by page, and counted, without a fold.

Rule 1: a page is found by where the one before it ended, never by how many runs come before: runs move while somebody
reads, and what a database skips it must sort first.
Rule 2: no index keeps the order of changes: each append would write it.  What is looked at is one table.
"""

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from agent_es.state import Status
from agent_es.store.projection import plain, tag_of
from agent_es.store.recorder import RunRecorder
from agent_es.store.spending import NANOS
from agent_es.store.tables import runs
from agent_es.values import canonical, decode, valid_unicode
from agent_es.waits import check_tag

Place = tuple[datetime, str]
"""Where a run stands among all: when it changed, and its id."""
OLDEST: Place = (datetime.min.replace(tzinfo=UTC), "")
"""Before this is the last page."""
MAX_SEARCH = 1_000
"""Characters."""
MANY = 1_000
"""So many runs with a tag are no longer looked up one by one: to look at all is faster."""
_ALL = 2**31 - 1
_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as its row shows it: what a user would query, without a fold.  Times are UTC."""

    run_id: str
    agent: str
    goal: str
    status: Status
    waiting_for: str | None
    cursor: int
    """How many events the run has."""
    wake_at: datetime | None
    tags: Mapping[str, str]
    envelope_id: str | None
    tokens: int
    """What asking the decider took so far."""
    cost: Decimal
    """What that cost, in the currency of whoever says so; parts of a billionth are rounded up."""
    started_at: datetime
    updated_at: datetime
    lease_owner: str | None
    lease_token: int
    lease_until: datetime | None
    claims: int
    """How many workers had the run since it last got anywhere."""
    trouble: str | None
    """Why its last worker could not move it; None where it could, or somebody has it again."""

    @property
    def place(self) -> Place:
        """Where it stands among all: ``store.runs(after=record.place)`` goes on there."""
        return self.updated_at, self.run_id


@dataclass(frozen=True, slots=True)
class RunCounts:
    """How many runs there are of each status, and what those that wait are waiting for."""

    by_status: Mapping[Status, int]
    """Every status is there, also one that no run has."""
    waiting_for: Mapping[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_status.values())


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs are looked for; what is None is not asked for."""

    status: Status | str | None = None
    waiting_for: str | None = None
    agent: str | None = None
    tag: tuple[str, str] | None = None
    search: str | None = None


class Records:
    """Looks for runs, and counts them.  All of it raises ``StoreUnusable``."""

    def __init__(self, recorder: RunRecorder) -> None:
        self._recorder = recorder
        self._dialect = recorder.datastore.dialect
        self._names = ", ".join(column.name for column in runs.columns)

    def one(self, run_id: str) -> RunRecord | None:
        """Return a run's record, where there is one."""
        found = self._select(f"SELECT {self._names} FROM {runs.name} WHERE run_id = ?", [run_id])
        return _record(found[0]) if found else None

    def page(self, wanted: Wanted, after: Place | None, before: Place | None, limit: int | None) -> list[RunRecord]:
        """Return those that are wanted, next to a place; the one that changed last is first.

        Raises ``ValueError`` for what cannot be asked.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"limit={limit}: write how many, or None for all")
        if after is not None and before is not None:
            raise ValueError("after and before: a page lies next to one place; give one of the two")
        conditions, values = self._conditions(wanted)
        order = "updated_at DESC, run_id"
        if after is not None:
            conditions.append("(updated_at < ? OR (updated_at = ? AND run_id > ?))")
            values += _spread(after)
        if before is not None:
            conditions.append("(updated_at > ? OR (updated_at = ? AND run_id < ?))")
            values += _spread(before)
            order = "updated_at, run_id DESC"
        sql = f"SELECT {self._names} FROM {runs.name} {_where(conditions)} ORDER BY {order} LIMIT ?"
        found = [_record(row) for row in self._select(sql, [*values, _ALL if limit is None else limit])]
        return found if before is None else found[::-1]

    def count(self, wanted: Wanted) -> int:
        """Return how many are wanted."""
        conditions, values = self._conditions(wanted)
        ((count,),) = self._select(f"SELECT count(*) FROM {runs.name} {_where(conditions)}", values)
        return int(count)

    def counts(self) -> RunCounts:
        """Return how many there are of each kind."""
        by_status, waiting_for = Counter(dict.fromkeys(Status, 0)), Counter[str]()
        for status, what, count in self._select(
            f"SELECT status, waiting_for, count(*) FROM {runs.name} GROUP BY status, waiting_for", []
        ):
            by_status[Status(status)] += count
            if what is not None:
                waiting_for[what] += count
        return RunCounts(dict(by_status), dict(waiting_for))

    def moment(self) -> str:
        """Return a text that is another one after each append."""
        ((moment,),) = self._select(self._dialect.moment(self._recorder.events_table_name), [])
        return str(moment)

    def _conditions(self, wanted: Wanted) -> tuple[list[str], list[Any]]:
        """Return what must be true of a row that is wanted, and the values of that."""
        status = None if wanted.status is None else Status(wanted.status).value
        columns = {"status": status, "waiting_for": wanted.waiting_for, "agent": wanted.agent}
        given = {f"{name} = ?": plain(valid_unicode(it)) for name, it in columns.items() if it is not None}
        conditions, values = [*given], [*given.values()]
        if wanted.tag is not None:
            condition, of_tag = self._tagged(check_tag(wanted.tag))
            conditions.append(condition)
            values += of_tag
        if wanted.search:
            conditions.append(f"({self._dialect.occurs('run_id')} OR {self._dialect.occurs('goal')})")
            values += [self._dialect.sought(_searched(wanted.search))] * 2
        return conditions, values

    def _tagged(self, tag: tuple[str, str]) -> tuple[str, list[str]]:
        """Return what finds the runs with a tag: by the table of tags, or where many have it, by their own rows."""
        name, value, _ = tag_of(*tag)
        tagged = self._recorder.tagged
        some = f"SELECT count(*) FROM (SELECT run_id FROM ({tagged}) AS tagged LIMIT {MANY}) AS first_ones"
        ((count,),) = self._select(some, [name, value])
        if count < MANY:
            return f"run_id IN ({tagged})", [name, value]
        pair = canonical(dict([tag]))[
            1:-1
        ]  # it begins an object, or follows a comma: nothing within a text does that
        return f"({self._dialect.position('tags')} OR {self._dialect.position('tags')})", ["{" + pair, "," + pair]

    def _select(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._recorder.select(self._dialect.sql(sql), values)


def _searched(text: str) -> str:
    """Return a text as rows may have it; raise ``ValueError`` where it is too long."""
    if len(text) > MAX_SEARCH:
        raise ValueError(f"search of {len(text):,} characters: it may have {MAX_SEARCH:,}")
    return plain(valid_unicode(text)).translate(_ASCII_LOWER)


def _where(conditions: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""


def _spread(place: Place) -> tuple[float, float, str]:
    changed_at, run_id = place
    return changed_at.timestamp(), changed_at.timestamp(), plain(valid_unicode(run_id))


def _record(row: tuple[Any, ...]) -> RunRecord:
    values = dict(zip(runs.columns.keys(), row, strict=True))
    del values["lapsed_owners"]  # whoever settles a doubt is told of them
    values["cost"] = Decimal(values["cost"]) / NANOS
    values["lease_until"] = values["lease_until"] or None  # 0 is long ago: nobody has it
    for name in ("wake_at", "started_at", "updated_at", "lease_until"):
        values[name] = None if values[name] is None else datetime.fromtimestamp(values[name], UTC)
    return RunRecord(**{**values, "status": Status(values["status"]), "tags": decode(values["tags"])})
