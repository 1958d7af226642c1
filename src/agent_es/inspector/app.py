"""The inspector as an ASGI application: which page is where.

Rule: pages are read by GET, commands are POSTs; with ``is_read_only`` there are no commands.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Event
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from agent_es.errors import AgentError
from agent_es.inspector import acting, inbox, run, runs
from agent_es.inspector.guard import Guard
from agent_es.inspector.pages import Desk, page, refused
from agent_es.store import RunStore

STATIC = Path(__file__).parent / "static"


def inspector(
    store: RunStore,
    *,
    token: str,
    port: int,
    by: str,
    is_read_only: bool = False,
    agents: Mapping[str, Any] | None = None,
    more: Iterable[BaseRoute] = (),
    closing: Event | None = None,
) -> Starlette:
    """Return the application for a store, served on loopback at ``port`` to who has the ``token``.

    ``by`` is in whose name it acts.  ``agents`` are classes by the names of agents: what a yes with other arguments
    is checked against.  ``more`` are further pages.  What is live ends when ``closing`` is set.
    """
    commands = () if is_read_only else acting.routes()
    application = Starlette(
        routes=[
            Mount("/static", StaticFiles(directory=STATIC)),
            *more,
            *inbox.routes(),
            *commands,
            *run.routes(),
            *runs.routes(),
        ],
        middleware=[Middleware(Guard, token=token, port=port)],
        exception_handlers={AgentError: refused, HTTPException: _not_there},
    )
    application.state.desk = Desk(store, by, is_read_only, agents or {}, closing or Event())
    return application


async def _not_there(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    said = "there is no such page" if status == 404 else "that cannot be done here"  # noqa: PLR2004  # of HTTP
    return page(request, "error.html", status=status, error=said)
