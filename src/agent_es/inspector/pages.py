"""Pages out of templates, and what templates say of times, texts and states.

Rule 1: every value is escaped; what a model, a tool or a person wrote is shown as it is, and nothing in it acts.
Rule 2: a page is asked for once; what changes in it is sent to it, and takes the place that it had.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from threading import Event
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from agent_es.errors import RunError, RunNotFound, StoreBusy
from agent_es.journal import timestamp
from agent_es.store import RunStore
from agent_es.visible import in_a_line, visible

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
    closing: Event
    """Is set when the server is about to end."""


def desk_of(request: Request) -> Desk:
    """Return what the pages work with."""
    desk: Desk = request.app.state.desk
    return desk


def page(
    request: Request, name: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
) -> Response:
    """Return a page."""
    return HTMLResponse(fragment(request, name, **values), status, dict(headers or {}))


def fragment(request: Request, name: str, **values: Any) -> str:
    """Return a template's text."""
    desk = desk_of(request)
    return ENVIRONMENT.get_template(name).render(desk=desk, path=request.url.path, now=datetime.now(UTC), **values)


async def refused(request: Request, error: Exception) -> Response:
    """Say what is wrong, on a page of its own."""
    status = (
        404
        if isinstance(error, RunNotFound)
        else 409
        if isinstance(error, RunError)
        else 503
        if isinstance(error, StoreBusy)
        else 400
    )
    return page(request, "error.html", status=status, error=error)


def age(since: datetime, now: datetime) -> str:
    """Return how far apart two moments are, in the largest unit that fits.

    >>> from datetime import timedelta
    >>> noon = datetime(2026, 7, 5, 12, tzinfo=UTC)
    >>> age(noon - timedelta(minutes=90), noon), age(noon + timedelta(days=9), noon)
    ('1 h', '9 d')
    """
    seconds = abs((now - since).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def number_of(text: str) -> int | None:
    """Return the number from 0 on that a form or a URL says; None where it says none.

    >>> number_of("12"), number_of("-1"), number_of("9" * 40), number_of("\u0663")
    (12, None, None, None)
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None  # noqa: PLR2004  # digits


def pretty(value: Any) -> str:
    """Return a JSON value as people read it."""
    return visible(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True))


def words(value: Any) -> str:
    """Return a text as it is, and any other JSON value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def cut(text: str, longest: int = LONGEST) -> str:
    """Return the beginning of a text, and how much there is where that is not all.

    >>> cut("abcdefghij", 4)
    'abcd… (4 of 10 characters)'
    """
    return text if len(text) <= longest else f"{text[:longest]}… ({longest:,} of {len(text):,} characters)"


def line(text: str) -> str:
    """Return a text in one line of bounded length."""
    return cut(in_a_line(text), 500)


def money(cost: Decimal) -> str:
    """Return a cost without zeros that say nothing.

    >>> money(Decimal("0.012500000")), money(Decimal(0)), money(Decimal("120"))
    ('0.0125', '-', '120')
    """
    return f"{cost.normalize():f}" if cost else "-"


def run_url(run_id: str) -> str:
    """Return where a run's page is.

    >>> run_url("refunds/ORD 1")
    '/runs/refunds%2FORD%201'
    """
    return f"/runs/{quote(run_id, safe='')}"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("agent_es.inspector"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.globals["shapes"] = SHAPES
    for each in (age, cut, line, money, pretty, run_url, timestamp, visible, words):
        environment.filters[each.__name__] = each
    environment.filters["json_text"] = json.dumps
    return environment


ENVIRONMENT = _environment()
