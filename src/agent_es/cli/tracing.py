"""The command ``trace``: a run's spans for people, as JSON lines, or sent to where traces are collected."""

from datetime import datetime

from agent_es.cli.commands import open_store
from agent_es.cli.exits import Exit
from agent_es.cli.output import out, say, say_json, table_of
from agent_es.events import RunStarted
from agent_es.journal import JournalEntry
from agent_es.spans import Span, name_of, spans, trace_of
from agent_es.telemetry import otlp, send
from agent_es.timeline import Segment, segments


def trace(run_id: str, endpoint: str | None, store: str, *, contents: bool, sends: bool, as_json: bool) -> int:
    """Show what of a run took time, or send it."""
    journal = open_store(store).journal(run_id)
    found = spans(journal, contents=contents)
    if sends or endpoint is not None:
        exporter = otlp(endpoint)
        try:
            send(found, exporter)
        finally:
            exporter.shutdown()
        where = trace_of(run_id).trace_hex
        if as_json:
            say_json({"spans": len(found), "trace_id": where})
        else:
            say(f"{len(found)} spans sent, trace {where}")
    elif as_json:
        for span in found:
            say_json(span.as_json)
    else:
        show(journal, found, contents=contents)
    return Exit.DONE


def show(journal: list[JournalEntry], found: list[Span], *, contents: bool) -> None:
    """Print a run and, below it, what took time in it, in the order in which it began."""
    start = journal[0]
    name = f"invoke_agent {start.event.agent}" if isinstance(start.event, RunStarted) else start.run_id
    run = next((span for span in found if span.parent is None), None)
    status = "still open" if run is None else str(run.attributes["agent_es.status"])
    rows = [[name, *_when(start.at, start.at, None if run is None else run.ended_at), status, ""]]
    rows += [_row(start.at, segment) for segment in segments(journal)]
    columns = ["span", "began", "took", "became", "said"]
    out.print(table_of(columns, rows) if contents else table_of(columns[:-1], [row[:-1] for row in rows]))


def _row(start: datetime, segment: Segment) -> list[str]:
    step = "" if segment.idx is None else f" step {segment.idx}"
    attempt = "" if segment.kind != "attempt" else f" attempt {segment.attempt}"
    became = "still open" if segment.end == "open" else segment.end.replace("_", " ")
    times = _when(start, segment.began_at, segment.ended_at)
    return [f"  {name_of(segment)}{step}{attempt}", *times, became, segment.text]


def _when(start: datetime, began_at: datetime, ended_at: datetime | None) -> tuple[str, str]:
    """Return when something began after the run's start, and how long it took, in seconds."""
    took = "" if ended_at is None else f"{max(0.0, (ended_at - began_at).total_seconds()):.3f} s"
    return f"+{(began_at - start).total_seconds():.3f} s", took
