"""What people do to runs by the pages: the commands of the command line, in the name of who started the inspector.

Rule 1: a command says what it was shown: a yes is to the digest that the page had.
Rule 2: what cannot be done is said, and nothing is recorded.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agent_es.errors import AgentError, BadAnswer, BadSettlement, BadSignal
from agent_es.inspector.pages import Desk, desk_of, number_of, run_url

Form = Mapping[str, str]


def approve(desk: Desk, run_id: str, form: Form) -> None:
    """Say yes to exactly what was shown, or with other arguments."""
    said = form.get("args", "").strip()
    args = _json("other arguments", said, BadAnswer) if said else None
    if said and not isinstance(args, dict):
        raise BadAnswer('other arguments are an object, as in {"amount": "90.00"}')
    desk.store.approve(
        run_id,
        _idx(form),
        by=desk.by,
        args=args,
        digest=form.get("digest") or None,
        reason=form.get("reason", ""),
        agent=desk.agents.get(form.get("agent", "")),
    )


def deny(desk: Desk, run_id: str, form: Form) -> None:
    """Say no."""
    reason = form.get("reason", "")
    desk.store.deny(run_id, _idx(form), by=desk.by, reason=reason, digest=form.get("digest") or None)


def answer(desk: Desk, run_id: str, form: Form) -> None:
    """Answer a question: by a choice, which is JSON, or by a text."""
    value = _json("the choice", form["choice"], BadAnswer) if form.get("choice") else form.get("answer", "")
    desk.store.answer(run_id, _idx(form), value, by=desk.by)


def settle(desk: Desk, run_id: str, form: Form) -> None:
    """Say what became of an effect."""
    said = form.get("outcome")
    if said not in ("happened", "did_not_happen"):
        raise BadSettlement("say which: it happened, or it did not happen")
    outcome: Literal["happened", "did_not_happen"] = "happened" if said == "happened" else "did_not_happen"
    result = _json("the result", form.get("result", "").strip() or "null", BadSettlement)
    desk.store.settle(run_id, _idx(form), outcome, result=result, by=desk.by, force=form.get("force") == "yes")


def signal(desk: Desk, run_id: str, form: Form) -> None:
    """Tell a run that something came."""
    payload = _json("the payload", form.get("payload", "").strip() or "null", BadSignal)
    desk.store.signal(run_id, form.get("name", "").strip(), payload, delivery_id=form.get("delivery_id") or None)


def steer(desk: Desk, run_id: str, form: Form) -> None:
    """Tell a run's decider something."""
    desk.store.steer(run_id, form.get("text", ""), by=desk.by)


def pause(desk: Desk, run_id: str, form: Form) -> None:
    """Stop a run."""
    desk.store.pause(run_id, by=desk.by, reason=form.get("reason", ""))


def resume(desk: Desk, run_id: str, _: Form) -> None:
    """Let a paused run go on."""
    desk.store.resume(run_id, by=desk.by)


def requeue(desk: Desk, run_id: str, _: Form) -> None:
    """Send a parked or failed run back to work."""
    desk.store.requeue(run_id, by=desk.by)


def cancel(desk: Desk, run_id: str, form: Form) -> None:
    """End a run, and where that is asked for, let its finished effects be undone."""
    desk.store.cancel(run_id, by=desk.by, reason=form.get("reason", ""), compensate=form.get("compensate") == "yes")


COMMANDS: Mapping[str, Callable[[Desk, str, Form], None]] = {
    command.__name__: command
    for command in (approve, deny, answer, settle, signal, steer, pause, resume, requeue, cancel)
}


def routes() -> list[Route]:
    """Return where the commands are."""
    return [
        Route(f"/runs/{{run_id:path}}/{name}", _doing(command), methods=["POST"])
        for name, command in COMMANDS.items()
    ]


def _doing(command: Callable[[Desk, str, Form], None]) -> Callable[[Request], Any]:
    async def do(request: Request) -> Response:
        run_id: str = request.path_params["run_id"]
        form = dict(parse_qsl((await request.body()).decode(errors="replace"), keep_blank_values=True))
        await run_in_threadpool(command, desk_of(request), run_id, form)
        there = "/inbox" if form.get("then") == "inbox" else run_url(run_id)
        return RedirectResponse(there, 303)

    return do


def _idx(form: Form) -> int:
    idx = number_of(form.get("idx", ""))
    if idx is None:
        raise BadAnswer(f"idx={form.get('idx', '')!r:.80} is no step of a run; nothing was recorded")
    return idx


def _json(what: str, text: str, wrong: type[AgentError]) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise wrong(f"{what} is no JSON: {error}; a text is written in quotes; nothing was recorded") from None
