"""Where runs are kept: events, one row per run, and the keys, in one database and one transaction."""

from agent_es.store.application import RunStore, check_same
from agent_es.store.clocks import system_clock
from agent_es.store.datastore import PATIENCE
from agent_es.store.records import MAX_SEARCH, OLDEST, Place, RunCounts, RunRecord
from agent_es.store.schedules import Schedule, Started
from agent_es.store.tables import SCHEMA_VERSION

__all__ = [
    "MAX_SEARCH",
    "OLDEST",
    "PATIENCE",
    "SCHEMA_VERSION",
    "Place",
    "RunCounts",
    "RunRecord",
    "RunStore",
    "Schedule",
    "Started",
    "check_same",
    "system_clock",
]
