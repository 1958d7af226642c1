"""The inspector's server: on loopback, for as long as it is looked at.

Rule: the URL is told when it answers, so that whoever reads it can open it.
"""

import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event

import uvicorn
from starlette.types import ASGIApp

from agent_es.errors import AgentError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Served:
    """Where an inspector is, and what opens it."""

    port: int
    token: str
    closing: Event = field(default_factory=Event)
    """Is set when it is about to end: what is live ends then."""

    @property
    def url(self) -> str:
        """What a browser opens first."""
        return f"http://{LOOPBACK}:{self.port}/?token={self.token}"


def serve(make: Callable[[Served], ASGIApp], *, port: int, told: Callable[[Served], object]) -> None:
    """Serve the application until it is interrupted; port 0 takes a free one.  Raises ``AgentError``."""
    listening = _bound(port)
    served = Served(listening.getsockname()[1], secrets.token_urlsafe(24))
    config = uvicorn.Config(
        make(served),
        access_log=False,
        log_level="warning",
        server_header=False,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        timeout_graceful_shutdown=3,
    )
    _Server(config, served, told).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Says when it answers, and when it is about to end: a page that is live would stay open for ever."""

    def __init__(self, config: uvicorn.Config, served: Served, told: Callable[[Served], object]) -> None:
        super().__init__(config)
        self._served = served
        self._told = told

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets)
        self._told(self._served)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what is live, then the rest."""
        self._served.closing.set()
        await super().shutdown(sockets)


def _bound(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        raise AgentError(f"port {port} of {LOOPBACK} cannot be served: {error}; --port 0 takes a free one") from None
    return listening
