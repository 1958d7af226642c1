"""The page of what waits for a person: exactly what would run, and the buttons that answer it."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_es.inbox import InboxItem
from agent_es.inspector.live import Put, stream
from agent_es.inspector.pages import desk_of, fragment, page

AT_ONCE = 100
"""What is shown at most, the oldest first."""


def listed(request: Request) -> Response:
    """Show what waits."""
    items = desk_of(request).store.inbox(limit=AT_ONCE)
    return page(request, "inbox.html", items=items, at_once=AT_ONCE)


def live(request: Request) -> Response:
    """Send it again whenever something came or was answered; who is writing an answer keeps the page."""
    store = desk_of(request).store
    sent: Sequence[InboxItem] | None = None
    looked = ""

    def look() -> list[Put]:
        nonlocal sent, looked
        before, looked = looked, store.moment()
        if looked == before:
            return []
        items = store.inbox(limit=AT_ONCE)
        if items == sent:
            return []
        sent = items
        return [Put("inbox", fragment(request, "_inbox.html", items=items, at_once=AT_ONCE))]

    return stream(request, look)


def routes() -> list[Route]:
    """Return where this page is."""
    return [Route("/inbox", listed), Route("/inbox/live", live)]
