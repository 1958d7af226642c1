"""A model to test against: a real HTTP server, as strict as the API whose two forms it speaks, that follows a script.

Rule 1: a request is in the transcript, and on disk where there is a file, before a byte of its answer is sent.
Rule 2: a malformed request is refused with 400 and moves nothing: it counts for no turn.
Rule 3: what is said is a function of the script, the request, and how many requests came before at its turn of a
conversation with its opening; a stub that is started on a file goes on from what that one holds.
Rule 4: a script that raises is no fault that a client could survive: it is answered 400 too.

As a process of its own, which prints its URL first: ``python -m tests.models.stub --script FILE --log FILE``.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path
from socketserver import BaseServer
from threading import Event as Flag
from threading import Lock, Thread
from typing import Any, Self

from tests.models.script import Asked, Fault, Ill, Script, read_script, turn_of
from tests.models.strict import CHAT, RESPONSES, Json, Refused, canonical, check, opening_of, parse, turns_in
from tests.models.wire import Event, Reply

SECONDS_FOR_A_REQUEST = 10
REFUSED = "refused"
STATUSES = {
    Ill.RATE_LIMITED: (429, "rate_limit_exceeded"),
    Ill.BROKEN: (500, "server_error"),
    Ill.OVERLOADED: (503, "overloaded"),
}


@dataclass(frozen=True)
class Request:
    """A request that came in, and what it got.

    ``body`` is its canonical JSON text, whole; ``got`` is ``answer 0`` and so on, the ``Ill`` of a fault, or why it
    was refused; ``output`` is what a good answer sent, as items.
    """

    path: str
    body: str
    turn: int = -1
    opening: str = ""
    got: str = REFUSED
    output: tuple[Json, ...] = ()


class Transcript:
    """All requests in order; in a file too, of a line each, which a SIGKILL leaves whole."""

    def __init__(self, path: Path | None = None) -> None:
        self.requests = read_transcript(path) if path and path.exists() else []
        self._file = path and os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, request: Request) -> None:
        """Keep a request: its line is one write, so that it is there or not."""
        if self._file is not None:
            os.write(self._file, json.dumps(asdict(request)).encode() + b"\n")
        self.requests.append(request)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


def read_transcript(path: Path) -> list[Request]:
    """Return what is in the file of a stub, whether that one lives or not."""
    lines = map(json.loads, path.read_text().splitlines())
    return [Request(**{**line, "output": tuple(line["output"])}) for line in lines]


def asked_again(whole: Iterable[Request], found: Iterable[Request]) -> list[int]:
    """Return the turns of the requests that came again in ``found``, once for each time.

    Raises ``AssertionError`` where the two are not, byte for byte, the same requests in the same order otherwise.
    """
    expected = [key for key, _ in groupby(whole, key=_bytes_of)]
    groups = [[*same] for _, same in groupby(found, key=_bytes_of)]
    got = [_bytes_of(group[0]) for group in groups]
    for at, (one, other) in enumerate(zip(expected, got, strict=False)):
        assert other == one, f"request {at} differs:\n{other}\ninstead of\n{one}"
    assert len(got) == len(expected), f"{len(got)} requests instead of {len(expected)}"
    return [again.turn for group in groups for again in group[1:]]


def _bytes_of(request: Request) -> tuple[str, str]:
    return request.path, request.body


class Stub:
    """Listens on loopback from when it is made until ``close``; ``url`` is what a client takes as ``base_url``."""

    def __init__(self, script: Script, log: Path | None = None, *, port: int = 0) -> None:
        self._script = script
        self._transcript = Transcript(log)
        self._lock = Lock()
        self._closing = Flag()
        self._server = _Server(("127.0.0.1", port), self)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def requests(self) -> list[Request]:
        """All requests so far, in order."""
        with self._lock:
            return [*self._transcript.requests]

    def close(self) -> None:
        """Stop, once; answers that take their time are not waited for."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._transcript.close()

    def join(self) -> None:
        """Wait until it is closed."""
        self._thread.join()

    def wait(self, seconds: float) -> bool:
        """Wait; return whether the time has passed, rather than the stub been closed."""
        return not self._closing.wait(seconds)

    def take(self, path: str, raw: bytes) -> tuple[Reply, Fault | None]:
        """Keep a request and return what it gets; raise ``Refused``."""
        with self._lock:
            try:
                body = parse(raw)
            except Refused as refused:
                text = raw.decode(errors="backslashreplace")
                self._transcript.add(Request(path, text, got=f"{REFUSED}: {refused}"))
                raise
            try:
                return self._say(path, body)
            except Refused as refused:
                self._transcript.add(Request(path, canonical(body), got=f"{REFUSED}: {refused}"))
                raise

    def _say(self, path: str, body: Json) -> tuple[Reply, Fault | None]:
        before = self._transcript.requests
        parts = check(path, body, [request.output for request in before])
        asked = Asked(path, turns_in(parts), opening_of(parts), canonical(body))
        turn = turn_of(self._script, asked)
        if turn is None:
            raise Refused("messages", f"The script of this stub has no turn {asked.turn}")
        same = [request for request in before if (request.turn, request.opening) == (asked.turn, asked.opening)]
        fault, nth = turn.at(len(same))
        reply = Reply(path, body, turn.answers[nth], asked.turn, nth)
        is_good = fault is None or fault.ill is Ill.SLOW
        got = f"answer {nth}" if fault is None else fault.ill
        output = tuple(reply.items()) if is_good and path == RESPONSES else ()
        self._transcript.add(Request(path, asked.body, asked.turn, asked.opening, got, output))
        return reply, fault

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for them
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], stub: Stub) -> None:
        self.stub = stub
        super().__init__(address, _Connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away; show what else goes wrong."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SECONDS_FOR_A_REQUEST

    def __init__(self, request: Any, client_address: Any, server: BaseServer) -> None:
        assert isinstance(server, _Server)
        self.stub = server.stub
        super().__init__(request, client_address, server)

    def do_POST(self) -> None:
        """Answer one request; the connection ends with it."""
        self.close_connection = True
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path not in {CHAT, RESPONSES}:
            self._error(404, "not_found", f"Invalid URL (POST {self.path})")
            return
        try:
            reply, fault = self.stub.take(self.path, raw)
        except Refused as refused:
            self._error(400, "invalid_request_error", str(refused), refused.param)
            return
        except Exception as error:
            self._error(400, "stub_failed", repr(error))
            raise
        self._answer(reply, fault or Fault(Ill.SLOW))

    def _answer(self, reply: Reply, fault: Fault) -> None:
        if fault.ill in STATUSES:
            status, code = STATUSES[fault.ill]
            headers = {"retry-after": f"{fault.seconds:g}"} if fault.ill is Ill.RATE_LIMITED else {}
            self._error(status, code, "Not now", **headers)
            return
        if fault.ill is Ill.CUT_BEFORE or (fault.seconds and not self.stub.wait(fault.seconds)):
            return
        if reply.body.get("stream"):
            self._stream(reply, fault.ill)
        else:
            self._whole(reply, fault.ill)

    def _whole(self, reply: Reply, ill: Ill) -> None:
        said = reply.whole()
        if ill is Ill.EMPTY_CHOICES:
            said["choices" if reply.path == CHAT else "output"] = []
        if ill is Ill.NO_FINISH and reply.path == CHAT:
            said["choices"][0]["finish_reason"] = None
        if ill is Ill.NO_FINISH and reply.path == RESPONSES:
            said["status"] = None
        body = b"" if ill is Ill.EMPTY_BODY else canonical(said).encode()
        half = body[: len(body) // 2]
        self._head(200, "application/json", {"content-length": str(len(half if ill is Ill.MALFORMED else body))})
        self.wfile.write(half if ill in {Ill.MALFORMED, Ill.CUT_BODY, Ill.CUT_STREAM} else body)

    def _stream(self, reply: Reply, ill: Ill) -> None:
        self._head(200, "text/event-stream", {"transfer-encoding": "chunked"})
        lines = [*_lines(reply.path, _spoiled([*reply.events()], ill))]
        if ill is Ill.MALFORMED:
            lines[1:] = [b'data: {"id": \n\n']
        if ill is Ill.CUT_BODY:
            body = b"".join(lines)
            lines = [body[: len(body) // 2]]
        for line in [] if ill is Ill.EMPTY_BODY else lines:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        if ill not in {Ill.CUT_BODY, Ill.CUT_STREAM}:
            self.wfile.write(b"0\r\n\r\n")

    def _error(self, status: int, code: str, message: str, param: str | None = None, **headers: str) -> None:
        error = {"message": message, "type": code, "param": param, "code": code}
        body = canonical({"error": error}).encode()
        self._head(status, "application/json", {"content-length": str(len(body)), **headers})
        self.wfile.write(body)

    def _head(self, status: int, content_type: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"content-type": content_type, "connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
        """Say nothing: the transcript does."""


def _spoiled(events: list[Event], ill: Ill) -> list[Event]:
    match ill:
        case Ill.NO_FINISH:
            return [event for event in events if event.kind != "finish"]
        case Ill.EMPTY_CHOICES:
            return [
                _emptied(event) for event in events if event.kind == "done" or {"choices", "response"} & {*event.data}
            ]
        case Ill.CUT_STREAM:
            deltas = [at for at, event in enumerate(events) if event.kind == "delta"]
            return events[: deltas[-1] if deltas else len(events) // 2]
    return events


def _emptied(event: Event) -> Event:
    data = {**event.data}
    if "choices" in data:
        data["choices"] = []
    if "response" in data:
        data["response"] = {**data["response"], "output": []}
    return Event(event.kind, data)


def _lines(path: str, events: Sequence[Event]) -> Iterator[bytes]:
    """Yield the events as they are sent, each in its bytes."""
    for number, event in enumerate(events):
        if path == CHAT:
            yield f"data: {canonical(event.data) if event.data else '[DONE]'}\n\n".encode()
        else:
            data = canonical({**event.data, "sequence_number": number})
            yield f"event: {event.data['type']}\ndata: {data}\n\n".encode()


def main() -> None:
    """Be a stub until the process ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0, help="where the stub listened that it takes the place of")
    options = parser.parse_args()
    with closing(Stub(read_script(options.script), options.log, port=options.port)) as stub:
        sys.stdout.write(f"{stub.url}\n")
        sys.stdout.flush()
        stub.join()


if __name__ == "__main__":
    main()
