"""The page of all runs: found by status, agent, tag and text, some at a time, the one that changed last first.

Rule: what a page asks of the store does not grow with the runs that it does not show.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_es.errors import AgentError
from agent_es.inspector.live import Put, stream
from agent_es.inspector.pages import desk_of, fragment, page
from agent_es.state import Status
from agent_es.store import RunStore

AT_ONCE = 50
"""Runs of a page."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs a page shows."""

    status: str = ""
    waiting_for: str = ""
    agent: str = ""
    tag: str = ""
    q: str = ""
    """A text that occurs in the run's id or its goal."""
    skip: int = 0

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Wanted":
        """Return what a URL asks for; raise ``AgentError`` where it asks for what cannot be."""
        said = {name: query.get(name, "").strip() for name in ("status", "waiting_for", "agent", "tag", "q")}
        if said["status"] and said["status"] not in list(Status):
            raise AgentError(f"no run is {said['status']!r:.80}; a run is {', '.join(Status)}")
        if said["tag"] and "=" not in said["tag"]:
            raise AgentError(f"{said['tag']!r:.80} is no tag; write it as in invoice=INV-1042")
        skip = query.get("skip", "0")
        return cls(**said, skip=int(skip) if skip.isdecimal() and len(skip) < 10 else 0)  # noqa: PLR2004  # digits

    def url(self, **changed: Any) -> str:
        """Return where runs are shown that differ in that from these; other runs begin with the first."""
        other = replace(self, **{"skip": 0, **changed})
        asked = {name: value for name in self.__slots__ if (value := getattr(other, name))}
        return f"/?{urlencode(asked)}" if asked else "/"

    @property
    def filters(self) -> Mapping[str, Any]:
        """What the store is asked for."""
        name, _, value = self.tag.partition("=")
        return {
            "status": self.status or None,
            "waiting_for": self.waiting_for or None,
            "agent": self.agent or None,
            "tag": (name, value) if self.tag else None,
            "search": self.q or None,
        }


def shown(store: RunStore, wanted: Wanted) -> Mapping[str, Any]:
    """Return what the page says: the counts, the runs, and where more of them are."""
    records = store.runs(**wanted.filters, offset=wanted.skip, limit=AT_ONCE + 1)
    return {
        "wanted": wanted,
        "counts": store.counts(),
        "records": records[:AT_ONCE],
        "earlier": wanted.url(skip=max(0, wanted.skip - AT_ONCE)) if wanted.skip else None,
        "later": wanted.url(skip=wanted.skip + AT_ONCE) if len(records) > AT_ONCE else None,
    }


def listed(request: Request) -> Response:
    """Show the runs."""
    wanted = Wanted.of(request.query_params)
    live_url = wanted.url(skip=wanted.skip).replace("/", "/live", 1)
    return page(request, "runs.html", live=live_url, **shown(desk_of(request).store, wanted))


def live(request: Request) -> Response:
    """Send the table again whenever something in it changed."""
    wanted = Wanted.of(request.query_params)
    store = desk_of(request).store
    sent: Mapping[str, Any] = {}

    def look() -> list[Put]:
        nonlocal sent
        before, sent = sent, shown(store, wanted)
        parts = {"counts": "counts", "table": "records"}
        return [
            Put(part, fragment(request, f"_{part}.html", **sent))
            for part, told in parts.items()
            if before.get(told) != sent[told]
        ]

    return stream(request, look)


def routes() -> list[Route]:
    """Return where these pages are."""
    return [Route("/", listed), Route("/live", live)]
