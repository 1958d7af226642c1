"""The inspector's pages of a store that is full: each is asked for over HTTP, of the command, as a browser would.

A page is what a person waits for: the answer's last byte, for a connection that is open.  What scripts do then is not
in it.  A start is a process from its first instruction to the line with the URL, which it prints when it answers.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter
from urllib.parse import parse_qs, quote, urlsplit

from agent_es import RunStore
from agent_es.bench.measure import Bar, Figure, Report, Show, Side, alternate
from agent_es.bench.startup import python
from benchmarks.databases import Databases, every_kind
from benchmarks.many_runs import fill

PAGE_AT_MOST = 200.0
"""Milliseconds."""
START_AT_MOST = 1.5
"""Seconds."""

GROUND = (
    "import typer, rich.table, pydantic, sqlalchemy.orm, eventsourcing.application, "
    "eventsourcing_sqlalchemy.recorders, starlette.applications, jinja2, uvicorn"
)
"""The libraries that a start cannot do without."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    runs: int = 100_000
    rounds: int = 15
    starts: int = 9


FULL, QUICK = Scale(), Scale(500, 3, 2)


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return how long pages take, and how long a start."""
    scale = QUICK if quick else FULL
    libraries = python("-c", GROUND, folder=folder)
    ground = [libraries() for _ in show(range(scale.starts), "libraries")]
    with every_kind(folder) as kinds:
        first, *more = [bar for kind in kinds for bar in compare(kind, scale, show)]
    return Report((Figure("what it stands on, imported alone", median(ground), "s"),), first, tuple(more))


def compare(kind: Databases, scale: Scale, show: Show) -> Iterator[Bar]:
    """Yield what was found on one kind of database: starts first, then each page."""
    url = kind.new("full")
    with RunStore(url) as store:
        fill(store, scale.runs)
        last = quote(f"{store.runs()[-1].updated_at.isoformat()},")
    started: list[float] = []
    for _ in show(range(scale.starts), f"starts, {kind.name}"):
        with inspected(url) as (_, seconds):
            started.append(seconds)
    yield Bar(f"{kind.name}, a start, s", median(started), "at most", START_AT_MOST)
    with inspected(url) as (where, _):
        parts = urlsplit(where)
        token = parse_qs(parts.query)["token"][0]
        with closing(HTTPConnection(parts.hostname or "", parts.port)) as connection:
            sides: Mapping[str, Side] = {
                name: partial(answered, connection, token, path) for name, path in pages(scale, last).items()
            }
            samples = alternate(sides, show(range(scale.rounds), f"pages, {kind.name}"))
    for name in samples.sides:
        yield Bar(f"{kind.name}, {name}, ms", samples.micros(name) / 1e3, "at most", PAGE_AT_MOST)


def pages(scale: Scale, last: str) -> Mapping[str, str]:
    """Return what is looked at, and where it is."""
    one = f"run-{scale.runs // 2:06}"
    return {
        "the first page": "/",
        "a later page": f"/?after={last}",
        "the last page": "/?before=last",
        "those that wait": "/?status=waiting",
        "the last of those that are done": "/?status=done&before=last",
        "a tag that one has": f"/?tag=invoice%3DINV-{scale.runs // 2:06}",
        "a tag that all have": "/?tag=team%3Dsupport",
        "a text that one has": f"/?q=ORD-{scale.runs // 2:06}",
        "a text that all have, the last": "/?q=refund&before=last",
        "a text that none has": "/?q=nothing+has+this",
        "the inbox": "/inbox",
        "one run": f"/runs/{one}",
    }


def answered(connection: HTTPConnection, token: str, path: str) -> float:
    """Return the seconds that a page took."""
    began = perf_counter()
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    response.read()
    seconds = perf_counter() - began
    assert response.status == 200, (path, response.status)  # noqa: PLR2004  # of HTTP
    return seconds


@contextmanager
def inspected(url: str) -> Iterator[tuple[str, float]]:
    """Lend the URL of an inspector in a process of its own, and the seconds until it was told."""
    command = [sys.executable, "-m", "agent_es", "inspect", "--json", "--store", url]
    began = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        seconds = perf_counter() - began
        try:
            yield json.loads(line)["url"], seconds
        finally:
            server.send_signal(signal.SIGINT)
