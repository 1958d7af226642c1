"""Pages out of templates, and what templates say of times, texts and states.

Rule 1: every value is escaped; what a model, a tool or a person wrote is shown as it is, and nothing in it acts.
Rule 2: a page is asked for once; what changes in it is sent to it, and takes the place that it had.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from agent_es.errors import RunConflict, RunError, RunNotFound, StoreBusy
from agent_es.journal import timestamp
from agent_es.store import RunStore

LONGEST = 4_000
"""Characters of a text that a page shows at once."""

SHAPES = {
    "pending": "○",
    "running": "▶",
    "waiting": "◷",
    "done": "✓",
    "failed": "✕",
    "cancelled": "⊘",
    "doubt": "?",
}
"""What stands before a status: its colour is not all that tells it."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What the pages work with."""

    store: RunStore
    by: str
    """In whose name they act."""
    is_read_only: bool
    agents: Mapping[str, Any]
    """The classes of agents that the program has loaded, for whoever says yes with other arguments."""


def desk_of(request: Request) -> Desk:
    """Return what the pages work with."""
    desk: Desk = request.app.state.desk
    return desk


def page(request: Request, name: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any) -> Response:
    """Return a page."""
    return HTMLResponse(fragment(request, name, **values), status, dict(headers or {}))


def fragment(request: Request, name: str, **values: Any) -> str:
    """Return a template's text."""
    desk = desk_of(request)
    return ENVIRONMENT.get_template(name).render(desk=desk, path=request.url.path, now=datetime.now(UTC), **values)


async def refused(request: Request, error: Exception) -> Response:
    """Say what is wrong, on a page of its own."""
    status = 404 if isinstance(error, RunNotFound) else 409 if isinstance(error, RunError) else 503 if isinstance(error, StoreBusy) else 400
    return page(request, "error.html", status=status, error=error)


def age(since: datetime, now: datetime) -> str:
    """Return how long something lasts, or lasted, in its largest unit.

    >>> from datetime import timedelta
    >>> noon = datetime(2026, 7, 5, 12, tzinfo=UTC)
    >>> age(noon - timedelta(minutes=90), noon), age(noon, noon + timedelta(days=9))
    ('1 h', '9 d')
    """
    seconds = abs((now - since).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def pretty(value: Any) -> str:
    """Return a JSON value as people read it."""
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
