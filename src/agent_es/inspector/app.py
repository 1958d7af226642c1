"""The inspector as an ASGI application: which page is where.

Rule: pages are read by GET, commands are POSTs; with ``is_read_only`` there are no commands.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Event
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

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


def later(path: str, make: Callable[[], Iterable[BaseRoute]]) -> list[BaseRoute]:
    """Return pages at a path and below it, which are made when somebody opens the first of them."""
    pages = _Later(make)
    return [Route(path, pages), Route(f"{path}/{{rest:path}}", pages)]


class _Later:
    """An application that is made when it is first asked."""

    def __init__(self, make: Callable[[], Iterable[BaseRoute]]) -> None:
        self._make = make
        self._made: Router | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if self._made is None:  # no other request comes between: nothing is awaited
            self._made = Router([*self._make()])
        await self._made(scope, receive, send)


async def _not_there(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    said = "there is no such page" if status == 404 else "that cannot be done here"  # noqa: PLR2004  # of HTTP
    return page(request, "error.html", status=status, error=said)
