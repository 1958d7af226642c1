"""Figures of a store and of a worker, for whoever watches them; and a page of them, as Prometheus reads it.

Rule 1: a page is never in the worker's way, and the store never in the page's: what the store does not say in time
is left out, and what this worker did is still there.
Rule 2: labels are statuses and what is waited for, never a run's id: there are a dozen series, however many runs.
Rule 3: the library that writes the page is imported where a page is asked for.
"""

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, get_args

from agent_es.errors import AgentError
from agent_es.state import Status, WaitingFor
from agent_es.store import RunStore
from agent_es.worker import Worker

PATIENCE = 3.0
"""Seconds that a page waits for the store."""

LOOPBACK = "127.0.0.1"

OPEN = (
    (Status.PENDING.value, ""),
    (Status.RUNNING.value, ""),
    *((Status.WAITING.value, what) for what in get_args(WaitingFor)),
    (Status.FAILED.value, ""),
)
"""What is always shown, also where no run is there: a series that comes and goes cannot be watched."""

COUNTED = {
    "steps": ("steps", "Steps that came to their end"),
    "events": ("events", "Events appended"),
    "lost": ("leases_lost", "Claims that another worker took over"),
    "parked": ("parked", "Runs parked because no worker got anywhere with them"),
    "skipped": ("skipped", "Claims of runs that this code cannot act on"),
    "failed": ("failed", "Claims that ended in an error"),
    "handed_back": ("handed_back", "Runs handed back because their step outlasted the grace of a stop"),
}
"""Under which name a page shows what a worker's tally counts, and what that is."""


@dataclass(frozen=True, slots=True)
class Figures:
    """How the runs of a store stand."""

    oldest_due: float
    """Seconds for which the oldest run is due that no worker has claimed; 0 where none is due."""
    depth: Mapping[tuple[str, str], int]
    """How many runs have which status and wait for what (an empty text for nothing), but for done and cancelled."""

    @property
    def in_doubt(self) -> int:
        """How many runs wait for somebody to say what became of an effect."""
        return self.depth.get((Status.WAITING.value, "doubt"), 0)

    @property
    def waiting_for_person(self) -> int:
        """How many runs are parked or paused, or ask a person something."""
        return self.depth.get((Status.WAITING.value, "person"), 0)


def figures(store: RunStore) -> Figures:
    """Return how the runs of a store stand now: two statements that read indexes.  Raises ``StoreUnusable``."""
    found, oldest_due = store.backlog.look()
    return Figures(oldest_due, {**dict.fromkeys(OPEN, 0), **found})


class WorkerMetrics:
    """A collector for a registry of ``prometheus_client``: what a worker did, and how its store stands."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._kinds = _library().core
        self._asking = threading.Lock()

    def describe(self) -> list[Any]:
        """Return nothing, so that a registry which wants to know asks no store for it."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metrics, some seconds late at most."""
        tally = self._worker.tally
        for name, (shown, what) in COUNTED.items():
            yield self._kinds.CounterMetricFamily(f"agent_es_worker_{shown}", what, value=getattr(tally, name))
        found = self._figures()
        gauge = self._kinds.GaugeMetricFamily
        yield gauge("agent_es_store_up", "Whether the store answered", value=float(found is not None))
        told = "Whether the store tells this worker of due runs: else it finds them by polling"
        yield gauge("agent_es_worker_is_told", told, value=float(self._worker.store.bell.is_heard))
        if found is None:
            return
        yield gauge("agent_es_oldest_due_seconds", "For how long the oldest due run is due", value=found.oldest_due)
        yield gauge("agent_es_runs_in_doubt", "Runs of which nobody knows what happened", value=found.in_doubt)
        yield gauge(
            "agent_es_runs_waiting_for_person",
            "Runs that are parked or paused, or ask something",
            value=found.waiting_for_person,
        )
        depth = gauge("agent_es_runs", "Runs that are not done or cancelled", labels=("status", "waiting_for"))
        for labels, count in sorted(found.depth.items()):
            depth.add_metric(labels, count)
        yield depth

    def _figures(self) -> Figures | None:
        """Return the store's figures; None where it does not give them in time."""
        if not self._asking.acquire(timeout=PATIENCE):  # an earlier question still hangs: one is enough
            return None
        answer: queue.SimpleQueue[Figures | None] = queue.SimpleQueue()

        def ask() -> None:
            found = None
            try:
                with suppress(Exception):  # whatever it is, the page says that the store is not up
                    found = figures(self._worker.store)
            finally:
                self._asking.release()
                answer.put(found)

        threading.Thread(target=ask, name="agent_es metrics", daemon=True).start()
        with suppress(queue.Empty):
            return answer.get(timeout=PATIENCE)
        return None


@contextmanager
def serving(worker: Worker, address: str) -> Iterator[str]:
    """Serve a worker's page meanwhile; lend its URL.

    ``address`` is ``host:port``, or a port on loopback; port 0 takes a free one.  Raises ``AgentError`` where it
    cannot be served there, or ``prometheus_client`` is not installed.
    """
    library = _library()
    host, port = _parsed(address)
    registry = library.CollectorRegistry()
    registry.register(WorkerMetrics(worker))
    try:
        server, _ = library.start_http_server(port, host, registry)
    except OSError as error:
        raise AgentError(f"metrics cannot be served at {address}: {error.strerror or error}") from None
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def _library() -> ModuleType:
    try:
        import prometheus_client.core  # noqa: PLC0415  # an optional extra
    except ImportError as error:
        raise AgentError(
            f"metrics need a library that is not here ({error}): pip install 'agent-es[metrics]'"
        ) from None
    return prometheus_client


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (port.isdecimal() and int(port) < 2**16):
        raise AgentError(f"metrics cannot be served at {address!r}: write host:port, or a port on loopback")
    return host.strip("[]") or LOOPBACK, int(port)
