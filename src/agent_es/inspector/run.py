"""The page of one run: what took its time, its state at any moment, what changed then, and its journal.

Rule 1: every moment has a URL of its own, which shows the same for ever: the state folded to that event.
Rule 2: a page that stands at the latest moment follows the run; one that stands at an earlier one stays there.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from agent_es.errors import RunNotFound
from agent_es.inspector.changes import changes
from agent_es.inspector.drawing import timeline_svg
from agent_es.inspector.live import Put, stream
from agent_es.inspector.pages import desk_of, fragment, page, run_url
from agent_es.inspector.view import envelope_of, event_of, state_of
from agent_es.journal import JournalEntry
from agent_es.state import RunState
from agent_es.store import RunStore
from agent_es.timeline import Timeline

RECENT = 200
"""Events that the page of a run shows at once: the last ones, or those around a moment."""


def latest(request: Request) -> Response:
    """Show a run as it is, and follow it."""
    run_id: str = request.path_params["run_id"]
    return _shown(request, run_id, None)


def at(request: Request) -> Response:
    """Show a run as it was after an event."""
    return _shown(request, request.path_params["run_id"], request.path_params["seq"])


def goto(request: Request) -> Response:
    """Go to the moment that a form asks for."""
    run_id: str = request.path_params["run_id"]
    said = request.query_params.get("seq", "")
    if not (said.isdecimal() and len(said) < 10):  # noqa: PLR2004  # digits
        raise RunNotFound(f"run {run_id} has no event {said!r:.40}: events count from 0")
    return RedirectResponse(f"{run_url(run_id)}/at/{said}", 303)
