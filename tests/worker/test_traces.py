"""Traces while runs are moved: what real workers export, which die, are slow, or speak to nobody.

Run as a program, this file is a worker that exports its spans to a file, and hangs in its tool where it is told.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_es import (
    AgentRun,
    CallTool,
    Effect,
    Envelope,
    Finish,
    Notice,
    Runner,
    RunStore,
    ScriptedDecider,
    Status,
    Worker,
    tool,
)
from agent_es.spans import Span, spans, trace_of
from agent_es.telemetry import Spans, readable

HERE = Path(__file__)
RUN_ID = "run-7f3a"
PATIENCE = 20.0


class Shop(AgentRun):
    """Looks, and pays."""

    decider = ScriptedDecider([CallTool("look"), CallTool("pay"), Finish("paid")])

    @tool(effect=Effect.READ)
    def look(self) -> str:
        return "in stock"

    @tool(effect=Effect.IDEMPOTENT)
    def pay(self) -> str:
        if (mark := os.environ.get("HANGS")) and not Path(mark).exists():
            Path(mark).touch()
            time.sleep(60)
        return "paid"


class ToFile(SpanExporter):
    """Writes each span as a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            file.writelines(f"{span.to_json(indent=None)}\n" for span in spans)
        return SpanExportResult.SUCCESS


class Raising(SpanExporter):
    """Raises."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise OSError("the line is dead")


class Hanging(SpanExporter):
    """Hangs until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.begun.set()
        self.let_go.wait(PATIENCE)
        return SpanExportResult.SUCCESS


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    with RunStore(url) as store:
        yield store


def told(found: Sequence[ReadableSpan]) -> list[dict[str, Any]]:
    """Spans as values, in the order of their ids."""
    return values(span.to_json() for span in found)


def values(lines: Iterable[str]) -> list[dict[str, Any]]:
    """What spans say, but for the process that exported them."""
    found = [{name: value for name, value in json.loads(line).items() if name != "resource"} for line in lines]
    return sorted(found, key=lambda span: str(span["context"]["span_id"]))


def after_the_fact(store: RunStore, run_id: str = RUN_ID) -> list[dict[str, Any]]:
    return told(readable(spans(store.journal(run_id))))


def work(store: RunStore, exporter: SpanExporter, **options: Any) -> Spans:
    """Let a worker move what is due, and export."""
    with Spans(store, exporter, every=0.05) as exporting:
        Worker(store, agents=[Shop], poll=0.05, on_event=exporting, **options).run(until_idle=True)
    return exporting


def test_what_a_worker_exports_is_what_the_journal_gives_afterwards(store: RunStore) -> None:
    store.start(Shop, run_id=RUN_ID, goal="sell")
    exporter = InMemorySpanExporter()

    exporting = work(store, exporter)

    live = exporter.get_finished_spans()
    assert told(live) == after_the_fact(store)
    assert [span.name for span in live] == [
        *["agent_es.decide", "execute_tool look", "agent_es.decide", "execute_tool pay", "agent_es.decide"],
        "invoke_agent Shop",
    ]
    assert (exporting.unsent, exporting.trouble) == (0, "")


def test_what_a_runner_moves_is_exported_too(store: RunStore) -> None:
    exporter, heard = InMemorySpanExporter(), list[Notice]()

    with Spans(store, exporter, then=heard.append) as exporting:
        Runner(store, on_event=exporting).run(Shop, run_id=RUN_ID, goal="sell")

    assert told(exporter.get_finished_spans()) == after_the_fact(store)
    assert [notice.kind for notice in heard][-1] == "finished"


def test_who_finds_a_run_as_another_left_it_exports_nothing_of_that(store: RunStore) -> None:
    Runner(store).run(Shop, run_id=RUN_ID, goal="sell")
    exporter = InMemorySpanExporter()

    with Spans(store, exporter) as exporting:
        Runner(store, on_event=exporting).run(Shop, run_id=RUN_ID)

    assert exporter.get_finished_spans() == ()


def test_workers_who_take_turns_export_each_span_once(store: RunStore) -> None:
    exporters = [InMemorySpanExporter(), InMemorySpanExporter()]
    store.start(Shop, run_id=RUN_ID, goal="sell")

    for turn in range(8):
        with Spans(store, exporters[turn % 2]) as exporting:
            Worker(store, agents=[Shop], moment=0, on_event=exporting).run(once=True, until_idle=True)

    assert store.load(RUN_ID).status is Status.DONE
    each = [exporter.get_finished_spans() for exporter in exporters]
    assert all(each)
    assert told([*each[0], *each[1]]) == after_the_fact(store)


def test_what_a_person_says_is_exported_by_the_next_worker(store: RunStore) -> None:
    asks = Envelope(needs_approval=("pay",))
    store.start(Shop, run_id=RUN_ID, goal="sell", envelope=asks)
    exporter = InMemorySpanExporter()

    work(store, exporter)
    store.approve(RUN_ID, 1, by="dana")
    work(store, exporter)

    assert "agent_es.approval" in [span.name for span in exporter.get_finished_spans()]
    assert told(exporter.get_finished_spans()) == after_the_fact(store)


def test_a_run_that_is_read_already_is_not_read_again_from_its_first_event(store: RunStore) -> None:
    store.start(Shop, run_id=RUN_ID, goal="sell")
    exporter, read = InMemorySpanExporter(), list[int]()

    class Watched(RunStore):
        def journal(self, run_id: str, *, after: int = -1) -> Any:
            read.append(after)
            return super().journal(run_id, after=after)

    with Watched(store.url) as watched, Spans(watched, exporter, every=0.01) as exporting:
        worker = Worker(watched, agents=[Shop], moment=0, on_event=exporting)
        while store.load(RUN_ID).status is not Status.DONE:
            worker.run(once=True)
            time.sleep(0.1)

    assert read[0] == -1
    assert len(read) > 1
    assert all(after >= 0 for after in read[1:])
    assert told(exporter.get_finished_spans()) == after_the_fact(store)


def test_a_run_whose_first_worker_was_killed_in_a_tool_is_one_trace(
    store: RunStore, url: str, tmp_path: Path
) -> None:
    store.start(Shop, run_id=RUN_ID, goal="sell")
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    mark = tmp_path / "in the tool"
    first = subprocess.Popen([sys.executable, HERE, url, files[0]], env={**os.environ, "HANGS": str(mark)})
    _until(mark.exists)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()

    done = subprocess.run([sys.executable, HERE, url, files[1]], check=False, timeout=PATIENCE)

    assert done.returncode == 0
    assert store.load(RUN_ID).status is Status.DONE
    lines = values(line for file in files if file.exists() for line in file.read_text().splitlines())
    exported = {line["context"]["span_id"]: line for line in lines}
    assert [*exported.values()] == after_the_fact(store)
    assert {line["context"]["trace_id"] for line in lines} == {f"0x{trace_of(RUN_ID).trace_hex}"}
    attempts = [line for line in exported.values() if line["name"] == "execute_tool pay"]
    assert sorted(
        (line["attributes"]["agent_es.attempt"], line["status"]["status_code"], line["attributes"].get("error.type"))
        for line in attempts
    ) == [(1, "ERROR", "lost"), (2, "UNSET", None)]


def _until(is_so: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_an_exporter_that_raises_stops_no_worker(store: RunStore) -> None:
    store.start(Shop, run_id=RUN_ID, goal="sell")

    exporting = work(store, Raising())

    assert store.load(RUN_ID).status is Status.DONE
    assert exporting.unsent == len(after_the_fact(store))
    assert "OSError: the line is dead" in exporting.trouble


def test_an_exporter_that_hangs_stops_no_worker(store: RunStore) -> None:
    store.start(Shop, run_id=RUN_ID, goal="sell")
    store.start(Shop, run_id="run-2", goal="sell")
    hanging = Hanging()
    exporting = Spans(store, hanging, every=0.0)
    worker = Worker(store, agents=[Shop], moment=0, on_event=exporting)
    worker.run(once=True)
    assert hanging.begun.wait(PATIENCE)

    worker.run(until_idle=True)
    began = time.monotonic()
    exporting.close(timeout=0.1)

    assert time.monotonic() - began < 5.0
    assert {store.load(run_id).status for run_id in (RUN_ID, "run-2")} == {Status.DONE}
    assert "did not end within" in exporting.trouble
    hanging.let_go.set()
    exporting.close(PATIENCE)


def test_what_the_store_cannot_give_keeps_nothing_else_from_being_exported(store: RunStore) -> None:
    exporter = InMemorySpanExporter()

    with Spans(store, exporter, every=0.01) as exporting:
        exporting(Notice("completed", "no-such-run", 3))
        Runner(store, on_event=exporting).run(Shop, run_id=RUN_ID, goal="sell")

    assert "no-such-run" in exporting.trouble
    assert told(exporter.get_finished_spans()) == after_the_fact(store)


def test_what_a_run_that_was_cancelled_meanwhile_came_to_is_exported(store: RunStore) -> None:
    class Stopped(Shop):
        """Is cancelled while it pays."""

        decider = ScriptedDecider([CallTool("stop"), Finish("paid")])

        @tool(effect=Effect.READ)
        def stop(self) -> str:
            store.cancel(RUN_ID, by="dana")
            return "stopped"

    exporter = InMemorySpanExporter()
    with Spans(store, exporter) as exporting:
        Runner(store, on_event=exporting).run(Stopped, run_id=RUN_ID, goal="sell")

    assert store.load(RUN_ID).status is Status.CANCELLED
    assert told(exporter.get_finished_spans()) == after_the_fact(store)


@contextmanager
def collecting() -> Iterator[tuple[str, list[tuple[str, ExportTraceServiceRequest]]]]:
    """Receive OTLP over HTTP on loopback; lend the URL, and what came."""
    came: list[tuple[str, ExportTraceServiceRequest]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", came
        finally:
            server.shutdown()


def received(came: Sequence[tuple[str, ExportTraceServiceRequest]]) -> list[tuple[str, str, str]]:
    """The names and ids of the spans that came."""
    return sorted(
        (span.name, span.trace_id.hex(), span.span_id.hex())
        for _, request in came
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    )


def expected(found: Sequence[Span]) -> list[tuple[str, str, str]]:
    return sorted((span.name, span.id.trace_hex, span.id.span_hex) for span in found)


def cli(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agent_es", *map(str, words)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]), **environment}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environ, timeout=60)


@pytest.mark.crash
def test_a_worker_of_the_command_line_sends_otlp_over_http(store: RunStore, url: str) -> None:
    store.start(Shop, run_id=RUN_ID, goal="sell")

    with collecting() as (endpoint, came):
        words = ["worker", "test_traces:Shop", "--trace", "--until-idle", "--store", url]
        done = cli(*words, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_SERVICE_NAME="shop")

    assert done.returncode == 0, done.stderr
    assert received(came) == expected(spans(store.journal(RUN_ID)))
    assert {path for path, _ in came} == {"/v1/traces"}
    (name,) = {
        attribute.value.string_value
        for _, request in came
        for resource in request.resource_spans
        for attribute in resource.resource.attributes
        if attribute.key == "service.name"
    }
    assert name == "shop"


@pytest.mark.crash
def test_a_run_is_sent_after_the_fact_as_often_as_one_likes(store: RunStore, url: str) -> None:
    Runner(store).run(Shop, run_id=RUN_ID, goal="sell")

    with collecting() as (endpoint, came):
        done = [cli("trace", RUN_ID, "--endpoint", endpoint, "--store", url) for _ in range(2)]

    assert [one.stdout for one in done] == [f"6 spans sent, trace {trace_of(RUN_ID).trace_hex}\n"] * 2
    assert received(came[:1]) == received(came[1:]) == expected(spans(store.journal(RUN_ID)))


@pytest.mark.crash
def test_where_nobody_listens_a_worker_says_at_its_end_that_spans_were_not_sent(store: RunStore, url: str) -> None:
    store.start(Shop, run_id=RUN_ID, goal="sell")

    done = cli(
        *["worker", "test_traces:Shop", "--trace", "--until-idle", "--json", "--store", url],
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_TIMEOUT="0.5",
    )

    assert done.returncode == 0
    assert store.load(RUN_ID).status is Status.DONE
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    (said,) = [line for line in lines if line["kind"] == "spans"]
    assert said["text"].startswith("6 spans could not be sent")


def test_a_person_sees_what_took_time(store: RunStore, url: str) -> None:
    Runner(store).run(Shop, run_id=RUN_ID, goal="sell")

    seen = cli("trace", RUN_ID, "--store", url).stdout.splitlines()

    assert seen[0].split() == ["span", "began", "took", "became"]
    assert [line.split("+")[0].rstrip() for line in seen[1:]] == [
        "invoke_agent Shop",
        *["  agent_es.decide", "  execute_tool look step 0 attempt 1"],
        *["  agent_es.decide", "  execute_tool pay step 1 attempt 1", "  agent_es.decide"],
    ]
    assert all(line.rstrip().endswith("done") for line in seen[1:])


@pytest.mark.crash
def test_of_a_run_that_is_not_over_what_has_ended_is_told(store: RunStore, url: str) -> None:
    store.start(Shop, run_id=RUN_ID, goal="sell", envelope=Envelope(needs_approval=("pay",)))
    Runner(store, agents=[Shop]).resume(RUN_ID)

    seen = cli("trace", RUN_ID, "--store", url).stdout.splitlines()
    lines = [json.loads(line) for line in cli("trace", RUN_ID, "--json", "--store", url).stdout.splitlines()]

    assert [line.split()[0] for line in seen if line.endswith("still open")] == ["invoke_agent", "agent_es.approval"]
    assert [line["name"] for line in lines] == ["agent_es.decide", "execute_tool look", "agent_es.decide"]
    assert lines == json.loads(json.dumps([span.as_json for span in spans(store.journal(RUN_ID))], default=_at))


def _at(value: Any) -> str:
    return f"{value.replace(tzinfo=None).isoformat()}Z"


def main(url: str, path: str) -> None:
    """Be a worker that exports to a file."""
    with RunStore(url) as store, Spans(store, ToFile(Path(path)), every=0.05) as exporting:
        worker = Worker(store, agents=[Shop], lease=0.5, poll=0.05, on_event=exporting)
        until = time.monotonic() + PATIENCE
        while store.load(RUN_ID).status is not Status.DONE and time.monotonic() < until:
            worker.run(until_idle=True)
            time.sleep(0.05)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
