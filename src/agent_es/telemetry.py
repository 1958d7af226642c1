"""Traces: the spans of runs, given to OpenTelemetry while workers move them, or afterwards from the journal.

Rule 1: exporting is never in a worker's way: it has a thread of its own, and what it cannot do is left out.
Rule 2: a span is exported by whoever appended the event that ended it; what came in from outside, by the next one who
appends.  Whoever takes over from a worker that died also exports what that one may have had no time for.
Rule 3: what was left out can be exported later, from the journal: the ids are the same, so nothing is there twice.
Rule 4: the libraries are imported where spans are exported; where they are missing, an error says what to install.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from agent_es.errors import AgentError, RunNotFound, RunUnreadable
from agent_es.events import (
    ApprovalDenied,
    ApprovalGranted,
    Cancelled,
    CompensationBegan,
    DoubtSettled,
    EnvelopeChanged,
    Paused,
    QuestionAnswered,
    Requeued,
    Resumed,
    SignalReceived,
    Steered,
)
from agent_es.journal import JournalEntry
from agent_es.notices import Kind, Notice, OnEvent, ignore
from agent_es.spans import Span, SpanId, Trace, spans
from agent_es.store import RunStore

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["Span", "Spans", "otlp", "send", "spans"]

EVERY = 1.0
"""Seconds after which what has ended is exported."""

AT_ONCE = 512
"""How many spans are given to an exporter at once, at most."""

MOST_RUNS = 1_000
"""How many runs are remembered, so that they need not be read again from their first event."""

MOST_WAITING = 10_000
"""How many runs may wait to be exported; beyond that, those that wait longest are left out."""

PATIENCE = 5.0
"""Seconds for which a close waits for what is left."""

MAY_BE_UNSENT = timedelta(seconds=60)
"""What ended so long before the last sign of a worker that died, it has exported."""

NAME = "agent_es"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RETOLD: frozenset[Kind] = frozenset({"resumed", "already_over", "memoized"})
"""Notices of what was appended before."""

_OUTSIDE = (
    *(ApprovalDenied, ApprovalGranted, Cancelled, CompensationBegan, DoubtSettled, EnvelopeChanged),
    *(Paused, QuestionAnswered, Requeued, Resumed, SignalReceived, Steered),
)
"""What people and other programs append, who export nothing."""


class Spans:
    """Exports the spans of runs while they are moved: the ``on_event`` of a ``Worker`` or a ``Runner``.

    ``exporter`` is any of OpenTelemetry's, and is not shut down; by default it is the one that sends OTLP over HTTP
    to where the ``OTEL_*`` variables say.  With ``contents``, arguments, results, answers and reasons are exported
    too.  ``then`` is told each notice after it; what has ended is exported after ``every`` seconds.  Close it, or use
    it as a context, so that what ended last is exported.

    A run that a person cancels while no worker moves it is nobody's to export: ``agent-es trace RUN --otlp`` does.
    Raises ``AgentError`` where OpenTelemetry is not installed.
    """

    def __init__(
        self,
        store: RunStore,
        exporter: "SpanExporter | None" = None,
        *,
        contents: bool = False,
        then: OnEvent = ignore,
        every: float = EVERY,
    ) -> None:
        self._form = _Form()
        self._exporter = otlp() if exporter is None else exporter
        self._is_own = exporter is None
        self._store = store
        self._contents = contents
        self._then = then
        self._every = every
        self._waiting: OrderedDict[str, set[int]] = OrderedDict()
        """Which events of which runs were appended here, and are not looked at yet."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._traces: OrderedDict[str, Trace] = OrderedDict()
        self._unsent = 0
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="agent_es spans", daemon=True)
        self._thread.start()

    @property
    def unsent(self) -> int:
        """How many spans, and runs that waited for too long, could not be exported."""
        return self._unsent

    @property
    def trouble(self) -> str:
        """Why the last of them could not be; empty where all were."""
        return self._trouble

    def __call__(self, notice: Notice, /) -> None:
        """Note what was appended; it is read and exported elsewhere."""
        if notice.seq >= 0 and notice.kind not in _RETOLD and not self._over.is_set():
            with self._lock:
                self._waiting.setdefault(notice.run_id, set()).add(notice.seq)
                if len(self._waiting) > MOST_WAITING:
                    self._waiting.popitem(last=False)
                    self._left_out(1, "the exporter is too slow")
        self._then(notice)

    def close(self, timeout: float = PATIENCE) -> None:
        """Export what is left, for at most so many seconds."""
        self._over.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._left_out(0, f"the exporter did not end within {timeout:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._over.wait(self._every)
            with self._lock:
                waiting, self._waiting = self._waiting, OrderedDict()
            self._export(span for run_id, mine in waiting.items() for span in self._ended(run_id, mine))
        if self._waiting:
            self._left_out(len(self._waiting), "the store did not answer")
        if self._is_own:
            with suppress(Exception):
                self._exporter.shutdown()

    def _ended(self, run_id: str, mine: set[int]) -> list[Span]:
        """Return the spans that events of ours ended."""
        try:
            return self._read(run_id, mine)
        except (RunNotFound, RunUnreadable) as error:
            self._left_out(1, str(error))
        except AgentError:  # the store is busy: it is looked at again
            with self._lock:
                self._waiting.setdefault(run_id, set()).update(mine)
        except Exception as error:  # nothing keeps the others from being exported
            self._left_out(1, f"{type(error).__name__}: {error}")
        return []

    def _read(self, run_id: str, mine: set[int]) -> list[Span]:
        trace = self._traces.pop(run_id, None)
        if trace is None or trace.read >= min(mine):
            trace = Trace(contents=self._contents)
        entries = _up_to(max(mine), self._store.journal(run_id, after=trace.read))
        ours = _with_arrivals(mine, entries)
        found: list[Span] = []
        is_over = False
        for entry in entries:
            ended = trace.take(entry)
            is_over = any(span.parent is None for span in ended)
            found += ended if entry.seq in ours else ()
        if not is_over:
            self._traces[run_id] = trace
            while len(self._traces) > MOST_RUNS:
                self._traces.popitem(last=False)
        lost = [span for span in found if span.error == "lost"]
        return found if not lost else [*self._of_the_dead(run_id, lost, found), *found]

    def _of_the_dead(self, run_id: str, lost: Sequence[Span], found: Sequence[Span]) -> list[Span]:
        """Return what a worker that died may not have exported."""
        since = min(span.began_at for span in lost) - MAY_BE_UNSENT
        last, ours = max(span.ended_seq for span in lost), {span.id for span in found}
        before = self._store.journal(run_id)[: last + 1]
        return [
            span for span in spans(before, contents=self._contents) if span.ended_at >= since and span.id not in ours
        ]

    def _export(self, found: Iterable[Span]) -> None:
        batch: list[Span] = []
        for span in found:
            batch.append(span)
            if len(batch) == AT_ONCE:
                self._give(batch)
                batch = []
        self._give(batch)

    def _give(self, batch: Sequence[Span]) -> None:
        if not batch:
            return
        try:
            self._form.send(batch, self._exporter)
        except AgentError as error:
            self._left_out(len(batch), str(error))

    def _left_out(self, count: int, why: str) -> None:
        self._unsent += count
        self._trouble = why


def _up_to(last: int, entries: Sequence[JournalEntry]) -> list[JournalEntry]:
    """Return the entries up to the last that was appended here, and with them a cancelling that came after it."""
    upto = last
    for entry in entries:
        if entry.seq > last and not isinstance(entry.event, _OUTSIDE):
            break
        if isinstance(entry.event, Cancelled):
            upto = max(upto, entry.seq)
    return [entry for entry in entries if entry.seq <= upto]


def _with_arrivals(mine: set[int], entries: Sequence[JournalEntry]) -> set[int]:
    """Return which entries are ours: those appended here, and what came in before each of them, or ended the run."""
    ours = set(mine)
    for entry in reversed(entries):
        is_last = entry.seq >= max(mine)
        if isinstance(entry.event, _OUTSIDE) and (is_last or entry.seq + 1 in ours):
            ours.add(entry.seq)
    return ours


def send(found: Sequence[Span], exporter: "SpanExporter") -> None:
    """Export spans now, in this thread; raise ``AgentError`` where the exporter could not.

    Whoever made the exporter shuts it down.
    """
    form = _Form()
    for at in range(0, len(found), AT_ONCE):
        form.send(found[at : at + AT_ONCE], exporter)


def otlp(url: str | None = None) -> "SpanExporter":
    """Return an exporter that sends OTLP over HTTP: to that URL, or to where the ``OTEL_*`` variables say.

    A URL without a path is that of a collector: its traces go to ``/v1/traces``.  Raises ``AgentError`` where the
    URL is none, or OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415  # an optional extra
            OTLPSpanExporter,
        )
    except ImportError as error:
        raise _missing(error) from None
    if url is None:
        return OTLPSpanExporter()
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise AgentError(f"spans cannot be sent to {url!r}: write http://host:4318 or the whole URL")
    return OTLPSpanExporter(endpoint=url if parts.path.strip("/") else f"{url.rstrip('/')}/v1/traces")


def readable(found: Iterable[Span]) -> "list[ReadableSpan]":
    """Return spans as OpenTelemetry has them; raise ``AgentError`` where it is not installed."""
    form = _Form()
    return [form.of(span) for span in found]


@dataclass(frozen=True, slots=True)
class _Library:
    """What of OpenTelemetry is used."""

    api: Any
    sdk: Any
    export: Any


class _Form:
    """Turns spans into OpenTelemetry's."""

    def __init__(self) -> None:
        self._library = _library()
        sdk = self._library.sdk
        resource = sdk.resources.Resource.create()
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(sdk.resources.Resource({"service.name": NAME}))
        self._resource = resource
        self._scope = sdk.util.instrumentation.InstrumentationScope(NAME, _version())

    def send(self, found: Sequence[Span], exporter: "SpanExporter") -> None:
        """Give spans to an exporter; raise ``AgentError`` where it did not take them."""
        try:
            result = exporter.export([self.of(span) for span in found])
        except Exception as error:
            raise AgentError(f"{len(found)} spans were not sent: {type(error).__name__}: {error}") from error
        if result is not self._library.export.SpanExportResult.SUCCESS:
            raise AgentError(f"{len(found)} spans were not sent: the exporter says {result}; its log says why")

    def of(self, span: Span) -> "ReadableSpan":
        """Return a span as OpenTelemetry has it."""
        api, sdk = self._library.api, self._library.sdk
        code = api.StatusCode.UNSET if span.error is None else api.StatusCode.ERROR
        found: ReadableSpan = sdk.trace.ReadableSpan(
            name=span.name,
            context=self._context(span.id),
            parent=None if span.parent is None else self._context(span.parent),
            resource=self._resource,
            attributes=dict(span.attributes),
            links=[api.Link(self._context(link)) for link in span.links],
            kind=api.SpanKind.CLIENT if span.kind == "client" else api.SpanKind.INTERNAL,
            status=api.Status(code, span.said),
            start_time=_nanoseconds(span.began_at),
            end_time=_nanoseconds(span.ended_at),
            instrumentation_scope=self._scope,
        )
        return found

    def _context(self, where: SpanId) -> Any:
        api = self._library.api
        sampled = api.TraceFlags(api.TraceFlags.SAMPLED)
        return api.SpanContext(where.trace, where.span, is_remote=False, trace_flags=sampled)


def _library() -> _Library:
    try:
        import opentelemetry.sdk.resources  # noqa: PLC0415  # an optional extra
        import opentelemetry.sdk.trace.export  # noqa: PLC0415
        import opentelemetry.sdk.util.instrumentation  # noqa: PLC0415
        import opentelemetry.trace  # noqa: PLC0415
    except ImportError as error:
        raise _missing(error) from None
    sdk = opentelemetry.sdk
    return _Library(opentelemetry.trace, sdk, sdk.trace.export)


def _missing(error: ImportError) -> AgentError:
    return AgentError(f"traces need a library that is not here ({error}): pip install 'agent-es[otel]'")


def _version() -> str | None:
    try:
        return version("agent-es")
    except PackageNotFoundError:
        return None


def _nanoseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1) * 1_000
