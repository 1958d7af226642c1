"""The tables beside the events: runs, what is found or counted by, snapshots, readers, schedules, and their version.

Rule 1: what is projected here can be made again from the events, and snapshots are taken again; leases, readers and
schedules cannot, and are left alone.
Rule 2: a change of these tables raises ``SCHEMA_VERSION``; stored events are never rewritten.
"""

from typing import Any

from eventsourcing_sqlalchemy.models import StoredEventRecord  # type: ignore[attr-defined]
from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

from agent_es.errors import SchemaMismatch

SCHEMA_VERSION = 7

metadata = MetaData()

IS_MOVABLE, IS_WAITING = "status IN ('pending', 'running')", "status = 'waiting'"
"""What those that look for work ask for, in the words of the indexes that they use."""
DUE_BY_TIME, DUE_BY_LEASE = "agent_es_runs_due", "agent_es_runs_movable"
"""These indexes."""


def _where(condition: str) -> dict[str, Any]:
    """Return the condition of a partial index, for every database."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


_LONG = Integer().with_variant(BigInteger(), "postgresql")

runs = Table(
    "agent_es_runs",
    metadata,
    Column("run_id", String(200), primary_key=True),
    Column("agent", Text, nullable=False),
    Column("goal", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("waiting_for", String(16)),
    Column("cursor", Integer, nullable=False, comment="how many events of the run are folded into this row"),
    Column("wake_at", Float, comment="seconds since 1970, UTC"),
    Column("tags", Text, nullable=False, comment="canonical JSON"),
    Column("envelope_id", String(64)),
    Column("tokens", _LONG, nullable=False, server_default="0", comment="that asking the decider took so far"),
    Column("cost", _LONG, nullable=False, server_default="0", comment="of asking it, in billionths"),
    Column("started_at", Float, nullable=False, comment="seconds since 1970, UTC"),
    Column("updated_at", Float, nullable=False, comment="the time of the last event"),
    Column("lease_owner", Text),
    Column("lease_token", _LONG, nullable=False, server_default="0", comment="it only ever grows"),
    Column("lease_until", Float, nullable=False, server_default="0", comment="by the database's clock"),
    Column("lapsed_owners", Text, comment="who lost the run in its present turn without giving it back"),
    Column("claims", Integer, nullable=False, server_default="0", comment="since the run last got anywhere"),
    Column("trouble", Text, comment="why its last worker could not move it"),
    Index("agent_es_runs_by_status", "status", "waiting_for"),
    Index(DUE_BY_LEASE, "agent", "lease_until", **_where(IS_MOVABLE)),
    Index(DUE_BY_TIME, "agent", "wake_at", **_where(f"{IS_WAITING} AND wake_at IS NOT NULL")),
)

keys = Table(
    "agent_es_keys",
    metadata,
    Column("tool", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("run_id", String(200), nullable=False),
    Column("idx", Integer, nullable=False),
    Column("digest", String(64), nullable=False, comment="of the journaled arguments"),
    sqlite_with_rowid=False,
)

tags = Table(
    "agent_es_tags",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("value", String(200), primary_key=True),
    Column("run_id", String(200), primary_key=True),
    sqlite_with_rowid=False,
)

deliveries = Table(
    "agent_es_deliveries",
    metadata,
    Column("run_id", String(200), primary_key=True),
    Column("delivery_id", String(200), primary_key=True),
    Column("seq", Integer, nullable=False, comment="of the event that records it"),
    Column("digest", String(64), nullable=False, comment="of what it brought"),
    sqlite_with_rowid=False,
)

inbox = Table(
    "agent_es_inbox",
    metadata,
    Column("run_id", String(200), primary_key=True),
    Column("idx", Integer, primary_key=True, autoincrement=False, comment="of the step; -1 is the whole run"),
    Column("kind", String(16), primary_key=True, comment="approval, doubt, question, parked or paused"),
    Column("since", Float, nullable=False, comment="seconds since 1970, UTC"),
    Column("told_at", Float, comment="when somebody was told, by the database's clock"),
    Column("telling_until", Float, nullable=False, server_default="0", comment="who tells it has it until then"),
    Index("agent_es_inbox_by_age", "since", "run_id", "idx"),
)

spending = Table(
    "agent_es_spending",
    metadata,
    Column("run_id", String(200), primary_key=True, comment="whose budget it is"),
    Column("what", String(80), primary_key=True),
    Column("amount", BigInteger, nullable=False, comment="with what is set aside; a cost in billionths"),
    sqlite_with_rowid=False,
)

rates = Table(
    "agent_es_rates",
    metadata,
    Column("tool", String(64), primary_key=True),
    Column("tag", String(200), primary_key=True, comment="its name; empty where the limit is for all runs together"),
    Column("per_second", Float),
    Column("at_once", Integer),
    sqlite_with_rowid=False,
)

rate_times = Table(
    "agent_es_rate_times",
    metadata,
    Column("tool", String(64), primary_key=True),
    Column("tag", String(200), primary_key=True),
    Column("value", String(200), primary_key=True, comment="of the tag"),
    Column("next_at", Float, nullable=False, comment="when the next call may start: seconds since 1970, UTC"),
    sqlite_with_rowid=False,
)

rate_holds = Table(
    "agent_es_rate_holds",
    metadata,
    Column("tool", String(64), primary_key=True),
    Column("tag", String(200), primary_key=True),
    Column("value", String(200), primary_key=True),
    Column("run_id", String(200), primary_key=True, comment="who has a place, for as long as its lease is fresh"),
    Column("idx", Integer, primary_key=True),
    sqlite_with_rowid=False,
)

tracking = Table(
    "agent_es_tracking",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("position", BigInteger, nullable=False, comment="of the last event that this reader has done with"),
)

schedules = Table(
    "agent_es_schedules",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("agent", Text, nullable=False),
    Column("cron", Text, nullable=False),
    Column("zone", Text, nullable=False),
    Column("goal", Text, nullable=False),
    Column("input", Text, nullable=False, comment="canonical JSON"),
    Column("tags", Text, nullable=False, comment="canonical JSON"),
    Column("catch_up", String(16), nullable=False),
    Column("made_at", Float, nullable=False, comment="by the database's clock; instants before that never count"),
    Column("next_at", Float, comment="the instant that comes next: seconds since 1970, UTC"),
    Column("last_at", Float, comment="the last instant whose run was started"),
    Index("agent_es_schedules_due", "next_at", "name"),
)

snapshots = Table(
    "agent_es_snapshots",
    metadata,
    Column("run_id", String(200), primary_key=True),
    Column("version", Integer, primary_key=True, comment="how many events are folded into it"),
    Column("fold", String(64), nullable=False, comment="the name of the code that folded them"),
    Column("image", LargeBinary, nullable=False, comment="the state, compressed, under the cipher of the events"),
    Column("last_event", String(64), nullable=False, comment="digest of the last of them"),
)

schema = Table("agent_es_schema", metadata, Column("version", Integer, nullable=False))


class EventRow(StoredEventRecord):  # type: ignore[misc]  # the library ships it untyped
    """A stored event whose position is never given out twice, whatever was deleted."""

    __abstract__ = True
    __table_args__ = (*StoredEventRecord.__table_args__, {"sqlite_autoincrement": True})


def is_present(found: int | None, *, migrate: bool) -> bool:
    """Say whether the schema that was found is this code's; raise ``SchemaMismatch`` where it cannot be."""
    if found is not None and found > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the store has schema {found} and this code knows {SCHEMA_VERSION}; upgrade agent-es to open it"
        )
    if found is not None and found < SCHEMA_VERSION and not migrate:
        raise SchemaMismatch(
            f"the store has schema {found} and this code needs {SCHEMA_VERSION}; bring it up: agent-es migrate"
        )
    return found == SCHEMA_VERSION
