"""The page of one run: what took its time, its state at any moment, what changed then, and its journal.

Rule 1: every moment has a URL of its own, which shows the same for ever: the state folded to that event.
Rule 2: a page that stands at the latest moment follows the run; one that stands at an earlier one stays there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_es.errors import RunNotFound
from agent_es.inbox import WHOLE, InboxItem, item_of
from agent_es.inspector.changes import changes
from agent_es.inspector.drawing import timeline_svg
from agent_es.inspector.live import Put, stream
from agent_es.inspector.pages import desk_of, fragment, number_of, page, run_url
from agent_es.inspector.view import MOST, entry_view, envelope_view, journal_view, state_view, still
from agent_es.journal import JournalEntry
from agent_es.state import RunState
from agent_es.store import RunStore
from agent_es.store.items import open_in
from agent_es.timeline import Segment, Timeline


@dataclass
class Read:
    """What was read of a run, up to now."""

    store: RunStore
    run_id: str
    entries: list[JournalEntry] = field(default_factory=list)
    ended: list[Segment] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    state: RunState | None = None
    before: RunState | None = None
    """Its state before the last event."""

    def on(self) -> list[JournalEntry]:
        """Read on; return what is new.  Raises ``RunNotFound``."""
        new = self.store.journal(self.run_id, after=len(self.entries) - 1)
        for entry in new:
            self.entries.append(entry)
            self.ended += self.timeline.take(entry)
        if new:
            self.before, self.state = states_at(self.store, self.run_id, new[-1].seq, self.state)
        return new

    @property
    def last_state(self) -> RunState:
        """The run as it is."""
        assert self.state is not None  # noqa: S101  # for the type checker: at least one event was read
        return self.state

    @property
    def segments(self) -> list[Segment]:
        """What took time."""
        return [*self.ended, *self.timeline.open]


def states_at(
    store: RunStore, run_id: str, seq: int, known: RunState | None = None
) -> tuple[RunState | None, RunState]:
    """Return the state before an event, where one was, and the state after it; raise ``RunNotFound``.

    With a ``known`` state of before that, only what came since is read.
    """
    before = store.load(run_id, seq, known=known) if seq else None
    return before, store.load(run_id, seq + 1, known=before)


def latest(request: Request) -> Response:
    """Show a run as it is, and follow it."""
    return _shown(request, None)


def at(request: Request) -> Response:
    """Show a run as it was after an event."""
    return _shown(request, request.path_params["seq"])


def goto(request: Request) -> Response:
    """Go to the moment that a form asks for."""
    run_id: str = request.path_params["run_id"]
    return RedirectResponse(f"{run_url(run_id)}/at/{_seq(run_id, request.query_params.get('seq', ''))}", 303)


def _seq(run_id: str, said: str) -> int:
    seq = number_of(said)
    if seq is None:
        raise RunNotFound(f"run {run_id} has no event {said!r:.40}: events count from 0")
    return seq


def _shown(request: Request, seq: int | None) -> Response:
    read = Read(desk_of(request).store, request.path_params["run_id"])
    read.on()
    moment = _moment(read, seq)
    if "HX-Request" in request.headers:  # the slider was moved: the journal is there already
        return page(request, "_moment.html", headers={"HX-Replace-Url": request.url.path}, **moment)
    return page(
        request,
        "run.html",
        journal=journal_view(read.entries, most=MOST),
        since=len(read.entries) - 1,
        **_head(read),
        **moment,
    )


def _moment(read: Read, seq: int | None) -> Mapping[str, Any]:
    """Return what is shown of a moment; without one, of the latest, which is followed."""
    last = len(read.entries) - 1
    here = last if seq is None else seq
    if here > last:
        raise RunNotFound(f"run {read.run_id} has no event {here}: its last is {last}")
    before, state = (read.before, read.last_state) if here == last else states_at(read.store, read.run_id, here)
    now = datetime.now(UTC)
    until = state.updated_at or now
    return {
        "run_id": read.run_id,
        "seq": here,
        "last": last,
        "is_followed": seq is None,
        "entry": entry_view(read.entries[here], read.entries[0].at),
        "drawing": timeline_svg(
            read.segments, now=still(read.last_state, now), until_seq=None if here == last else here
        ),
        "changes": changes(before, state),
        "state": state_view(state),
        "envelope": envelope_view(state, now if here == last else until),
    }


def _head(read: Read) -> Mapping[str, Any]:
    """Return what is said of a run as it is now, wherever the page stands."""
    return {"record": read.store.record(read.run_id), "now_state": read.last_state, "items": [*asked(read)]}


def asked(read: Read) -> Iterator[InboxItem]:
    """Yield what of the run waits for a person."""
    state = read.last_state
    since = {(it.kind, WHOLE if it.idx is None else it.idx): it.began_at for it in read.timeline.open}
    for idx, kind in open_in(state):
        yield item_of(state, idx, kind, since.get((kind, idx), read.entries[-1].at))


def live(request: Request) -> Response:
    """Send what is new of a run."""
    run_id: str = request.path_params["run_id"]
    store = desk_of(request).store
    since = _seq(run_id, request.query_params.get("since", "0"))
    read = Read(store, run_id)
    sent: list[object] = []

    def look() -> Iterator[Put]:
        new = [entry for entry in read.on() if entry.seq > since]
        head = _head(read)
        if sent != [head["record"]] and (sent or new):
            yield Put("head", fragment(request, "_head.html", run_id=run_id, **head))
        sent[:] = [head["record"]]
        if not new:
            return
        moment = _moment(read, None)
        yield Put("slider", fragment(request, "_slider.html", **moment))
        yield Put("moment", fragment(request, "_moment_parts.html", **moment))
        began = read.entries[0].at
        rows = fragment(request, "_entries.html", run_id=run_id, entries=[entry_view(entry, began) for entry in new])
        yield Put("journal", rows, "beforeend", last=str(new[-1].seq))

    return stream(request, lambda: list(look()))


def download(request: Request) -> Response:
    """Give the journal as JSON lines: what ``agent-es journal`` prints."""
    run_id: str = request.path_params["run_id"]
    entries = desk_of(request).store.journal(run_id)
    if not entries:
        desk_of(request).store.record(run_id)
    return StreamingResponse(
        (f"{entry}\n".encode(errors="surrogatepass") for entry in entries),
        media_type="application/x-ndjson",
        headers={"Content-Disposition": 'attachment; filename="journal.jsonl"'},
    )


def compare(request: Request) -> Response:
    """Show two runs, or one at two moments, beside each other."""
    store, query = desk_of(request).store, request.query_params
    sides = []
    for side in ("left", "right"):
        run_id = query.get(side, "").strip()
        read = Read(store, run_id)
        read.on()
        said = query.get(f"{side}_at", "").strip()
        seq = _seq(run_id, said) if said else None
        sides.append({**_moment(read, seq), "folded": store.load(run_id, None if seq is None else seq + 1)})
    left, right = sides
    return page(request, "compare.html", sides=sides, difference=changes(left["folded"], right["folded"]))


def routes() -> list[Route]:
    """Return where these pages are; what a run's id may hold, a URL may."""
    one = "/runs/{run_id:path}"
    return [
        Route("/compare", compare),
        Route(f"{one}/at/{{seq:int}}", at),
        Route(f"{one}/at", goto),
        Route(f"{one}/journal.jsonl", download),
        Route(f"{one}/live", live),
        Route(one, latest),
    ]
