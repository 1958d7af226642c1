"""The page of all runs: found by status, agent, tag and text, some at a time, the one that changed last first.

Rule: what a page asks of the store does not grow with the runs that it does not show, and a page that stays open asks
for little until something was recorded.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_es.errors import AgentError
from agent_es.inspector.live import Put, stream
from agent_es.inspector.pages import desk_of, fragment, page
from agent_es.state import Status
from agent_es.store import MAX_SEARCH, OLDEST, Place, RunStore

AT_ONCE = 50
"""Runs of a page."""
ANYHOW = 5.0
"""Seconds after which a page looks though nothing was recorded: who has a run, and why one does not move."""

_TEXTS = ("status", "waiting_for", "agent", "tag", "q")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs a page shows, as its URL says it."""

    status: str = ""
    waiting_for: str = ""
    agent: str = ""
    tag: str = ""
    q: str = ""
    """A text that occurs in the run's id or its goal."""
    after: str = ""
    """The place of the run before the first."""
    before: str = ""
    """The place of the run after the last."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Wanted":
        """Return what a URL asks for; raise ``AgentError`` where it asks for what cannot be."""
        said = {name: query.get(name, "").strip() for name in _TEXTS}
        if said["status"] and said["status"] not in list(Status):
            raise AgentError(f"no run is {said['status']!r:.80}; a run is {', '.join(Status)}")
        if said["tag"] and "=" not in said["tag"]:
            raise AgentError(f"{said['tag']!r:.80} is no tag; write it as in invoice=INV-1042")
        if len(said["q"]) > MAX_SEARCH:
            raise AgentError(f"a text of {len(said['q']):,} characters is not looked for; it may have {MAX_SEARCH:,}")
        return cls(**said, after=query.get("after", ""), before=query.get("before", ""))

    def url(self, **changed: Any) -> str:
        """Return where runs are shown that differ in that from these, from the first of them on.

        >>> Wanted(status="done", after="2026-07-05T10:00:00+00:00,run-1").url(q="refund")
        '/?status=done&q=refund'
        """
        other = replace(self, **{"after": "", "before": "", **changed})
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


def named(place: Place) -> str:
    """Return a place as a URL has it."""
    return f"{place[0].isoformat()},{place[1]}"


def place_of(text: str) -> Place:
    """Return the place that a URL has; raise ``AgentError``."""
    at, _, run_id = text.partition(",")
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise AgentError(f"{text!r:.80} is no place among the runs; begin with the first page") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC), run_id


def shown(store: RunStore, wanted: Wanted) -> Mapping[str, Any]:
    """Return what the page says: the counts, the runs, and where more of them are."""
    if wanted.before:
        later = OLDEST if wanted.before == "last" else place_of(wanted.before)
        found = store.runs(**wanted.filters, before=later, limit=AT_ONCE + 1)
        records, is_first, is_last = found[-AT_ONCE:], len(found) <= AT_ONCE, wanted.before == "last"
    else:
        earlier = place_of(wanted.after) if wanted.after else None
        found = store.runs(**wanted.filters, after=earlier, limit=AT_ONCE + 1)
        records, is_first, is_last = found[:AT_ONCE], not wanted.after, len(found) <= AT_ONCE
    return {
        "wanted": wanted,
        "counts": store.counts(),
        "records": records,
        "newer": None if is_first or not records else wanted.url(before=named(records[0].place)),
        "older": None if is_last or not records else wanted.url(after=named(records[-1].place)),
    }


def listed(request: Request) -> Response:
    """Show the runs."""
    wanted = Wanted.of(request.query_params)
    live_url = f"/live{wanted.url(after=wanted.after, before=wanted.before)[1:]}"
    return page(request, "runs.html", live=live_url, **shown(desk_of(request).store, wanted))


def live(request: Request) -> Response:
    """Send what the page says again whenever something in it changed."""
    wanted = Wanted.of(request.query_params)
    store = desk_of(request).store
    sent: Mapping[str, Any] = {}
    looked: tuple[str, float] = ("", 0.0)

    def look() -> list[Put]:
        nonlocal sent, looked
        moment, now = store.moment(), time.monotonic()
        if moment == looked[0] and now - looked[1] < ANYHOW:
            return []
        looked = moment, now
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
