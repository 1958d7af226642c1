"""Server-sent events: what changed in a page is sent to it, as the element's new content.

Rule 1: a stream looks at the store some times a second, and says something only where something changed.
Rule 2: who lost the connection says what it had last, and goes on from there.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from agent_es.errors import StoreError
from agent_es.inspector.pages import desk_of

EVERY = 0.4
"""Seconds between two looks."""
LEISURE = 4
"""How many times as long as a look took it is until the next one, at least: pages leave the store to others."""
ALIVE_EVERY = 10.0
"""Seconds after which a stream that has nothing to say shows that it is there."""


@dataclass(frozen=True, slots=True)
class Put:
    """New content for an element of the page, in place of the old or after it."""

    id: str
    html: str
    how: Literal["innerHTML", "beforeend"] = "innerHTML"
    last: str = ""
    """What a page that has this says when it comes back."""


def stream(request: Request, look: Callable[[], Iterable[Put]]) -> StreamingResponse:
    """Answer with what ``look`` finds, again and again, for as long as the page is open."""
    closing = desk_of(request).closing

    async def messages() -> AsyncIterator[str]:
        said_at = time.monotonic()
        yield "retry: 1000\n\n"
        while not (closing.is_set() or await request.is_disconnected()):
            began = time.monotonic()
            try:
                found = [*await run_in_threadpool(look)]
            except StoreError:
                found = []  # the database is busy or away: it is asked again
            for put in found:
                yield message(put)
            if found:
                said_at = time.monotonic()
            elif time.monotonic() - said_at > ALIVE_EVERY:
                said_at = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(max(EVERY, LEISURE * (time.monotonic() - began)))

    return StreamingResponse(messages(), media_type="text/event-stream")


def message(put: Put) -> str:
    r"""Return what is sent.

    >>> message(Put("journal", "<li>3</li>", "beforeend", "3"))
    'id: 3\ndata: {"how": "beforeend", "html": "<li>3</li>", "id": "journal"}\n\n'
    """
    data = json.dumps({"how": put.how, "html": put.html, "id": put.id}, sort_keys=True)
    return (f"id: {put.last}\n" if put.last else "") + f"data: {data}\n\n"
