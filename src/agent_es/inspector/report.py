"""One run as one file, for a ticket or an audit: it needs nothing else, and nothing in it acts.

Rule 1: the file loads nothing and runs nothing, and its own policy forbids both: one style, by its hash, is all.
Rule 2: what it tells is folded from one reading of the journal, whose digest it gives.
Rule 3: the same journal at the same ``now`` gives the same bytes.
"""

import shlex
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent_es.inspector.drawing import timeline_svg
from agent_es.inspector.view import envelope_view, journal_view, line_of, state_view, still
from agent_es.journal import JournalEntry, timestamp
from agent_es.state import RunState, Status, fold
from agent_es.store import RunStore
from agent_es.timeline import segments
from agent_es.transfer import Tally

HERE = Path(__file__).parent
STYLES = ("base.css", "timeline.css")

_ENVIRONMENT = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


def report(store: RunStore, run_id: str, *, now: datetime | None = None) -> str:
    """Return a run's report, as the text of an HTML file; ``now`` is until when it tells what is still going on.

    Raises ``RunNotFound``, ``RunUnreadable``.
    """
    return report_of(store.journal(run_id), now=now)


def report_of(entries: Sequence[JournalEntry], *, now: datetime | None = None) -> str:
    """Return the report of a journal that is at hand; it has at least one event."""
    now = datetime.now(UTC) if now is None else now
    state = fold(entry.event for entry in entries)
    tally = Tally()
    for entry in entries:
        tally.add(entry)
    style = style_of(STYLES)
    return _ENVIRONMENT.get_template("report.html").render(
        allowed=envelope_view(state, now),
        came_to=line_of(came_to(state)),
        drawing=timeline_svg(segments(entries), now=still(state, now)),
        events=journal_view(entries),
        quoted=line_of(shlex.quote(state.run_id)),
        state=state_view(state),
        style=style,
        style_hash=f"sha256-{b64encode(sha256(style.encode()).digest()).decode()}",
        tally=tally.result,
        version=version("agent-es"),
        written_at=timestamp(now.replace(microsecond=0)),
    )


def came_to(state: RunState) -> str:
    """Say in a line what a run came to, or why it stands."""
    match state.status:
        case Status.DONE:
            return state.answer if isinstance(state.answer, str) else state.answer_json or ""
        case Status.FAILED | Status.CANCELLED:
            return state.failure or ""
    held = [f"parked: {state.parked}"] if state.parked is not None else []
    held += [f"paused {state.paused}"] if state.paused is not None else []
    open_steps = [f"step {step.idx} {step.tool} is {step.status.replace('_', ' ')}" for step in state.open_steps]
    until = [f"until {timestamp(state.wake_at)} at the latest"] if state.wake_at is not None else []
    return "; ".join([*held, *open_steps, *until])


def style_of(names: Sequence[str]) -> str:
    """Return the styles of these files as one text."""
    return "\n".join((HERE / "static" / name).read_text(encoding="utf-8") for name in names)
