"""The commands by which people answer: ``inbox`` lists what waits for them, the others say what they want."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from rich.console import Group
from rich.live import Live
from rich.text import Text

from agent_es.cli.commands import WATCH_EVERY, load_agent, open_store, person, value_of, went_on
from agent_es.cli.exits import Exit
from agent_es.cli.output import age, out, say_json
from agent_es.errors import BadAnswer
from agent_es.inbox import InboxItem, ItemKind
from agent_es.journal import timestamp
from agent_es.visible import in_a_line

LATE = timedelta(minutes=1)
"""By how much what comes may be older than what came before it: clocks differ."""


def approve(
    run_id: str,
    idx: int,
    args_json: str | None,
    digest: str | None,
    reason: str,
    agent: str | None,
    by: str | None,
    store: str,
    *,
    as_json: bool,
) -> int:
    """Say yes to a call."""
    args = None if args_json is None else value_of("--args", args_json, BadAnswer)
    if args_json is not None and not isinstance(args, dict):
        raise BadAnswer(f'--args {args_json} is no object; write it as in --args \'{{"amount": "90.00"}}\'')
    cls = None if agent is None else load_agent(agent)
    state = open_store(store).approve(run_id, idx, by=person(by), args=args, digest=digest, reason=reason, agent=cls)
    return went_on(state, f"step {idx} approved", as_json=as_json)


def deny(run_id: str, idx: int, reason: str, digest: str | None, by: str | None, store: str, *, as_json: bool) -> int:
    """Say no to a call."""
    state = open_store(store).deny(run_id, idx, by=person(by), reason=reason, digest=digest)
    return went_on(state, f"step {idx} denied", as_json=as_json)


def answer(run_id: str, idx: int, value: str, by: str | None, store: str, *, as_json: bool) -> int:
    """Answer a question."""
    state = open_store(store).answer(run_id, idx, meant(value), by=person(by))
    return went_on(state, f"step {idx} answered", as_json=as_json)


def meant(text: str) -> Any:
    """Return what a text says in JSON, or the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def steer(run_id: str, text: str, by: str | None, store: str, *, as_json: bool) -> int:
    """Tell a decider something."""
    return went_on(open_store(store).steer(run_id, text, by=person(by)), "steered", as_json=as_json)


def pause(run_id: str, reason: str, by: str | None, store: str, *, as_json: bool) -> int:
    """Stop a run."""
    return went_on(open_store(store).pause(run_id, by=person(by), reason=reason), "paused", as_json=as_json)


def inbox(kind: str | None, limit: int, store: str, *, watch: bool, as_json: bool) -> int:
    """List what waits for a person; with ``watch``, on a terminal each second again, else what is new."""
    opened = open_store(store)

    def found(since: datetime | None = None) -> Sequence[InboxItem]:
        return opened.inbox(kind=cast(ItemKind | None, kind), since=since, limit=None if since else limit)

    if not watch:
        items = found()
        if as_json:
            say_json([told(item) for item in items])
        else:
            out.print(shown(items))
        return Exit.DONE
    if not as_json and out.is_terminal:
        with Live(shown(found()), console=out, auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_EVERY)
                live.update(shown(found()), refresh=True)
    seen: set[tuple[str, int | None, str, datetime]] = set()
    since: datetime | None = None
    while True:
        for item in found(since and since - LATE):
            since = max(since or item.since, item.since)
            if (which := (item.run_id, item.idx, item.kind, item.since)) not in seen:
                seen.add(which)
                if as_json:
                    say_json(told(item))
                else:
                    out.print(shown([item]))
        time.sleep(WATCH_EVERY)


def told(item: InboxItem) -> dict[str, Any]:
    """Return what waits, as JSON shows it."""
    return {**asdict(item), "commands": item.commands}


def shown(items: Sequence[InboxItem]) -> Group:
    """Return what waits, for people: what would run, to the letter, and how to answer."""
    now = datetime.now(UTC)
    lines: list[Text] = []
    for item in items:
        where = f"run {item.run_id}" if item.idx is None else f"run {item.run_id} step {item.idx}"
        call = "" if item.tool is None else f": {item.tool} {json.dumps(item.args, sort_keys=True)}"
        lines.append(Text(in_a_line(f"{item.kind}  {where}{call}"), style="bold"))
        lines += [Text(in_a_line(f"  {name:<10}{value}")) for name, value in details(item, now)]
    return Group(*(lines or [Text("nothing waits for a person")]))


def details(item: InboxItem, now: datetime) -> list[tuple[str, str]]:
    """Return the lines about what waits."""
    what = {"approval": "asked by", "question": "question"}.get(item.kind, "why")
    lines = [("since", f"{age(item.since, now)} ago"), ("goal", item.goal), (what, item.text)]
    if item.key is not None:
        lines.append(("key", item.key))
    if item.choices is not None:
        lines.append(("choices", json.dumps(item.choices)))
    if item.by:
        lines.append(("who may", " and ".join(" or ".join(group) for group in item.by)))
    if item.people > 1:
        lines.append(
            ("yes so far", f"{len(item.approved_by)} of {item.people}: {', '.join(item.approved_by) or '-'}")
        )
    if item.edited_by is not None:
        lines.append(("edited by", item.edited_by))
    if item.expires_at is not None:
        lines.append(("until", timestamp(item.expires_at)))
    return lines + [("answer" if n == 0 else "", command) for n, command in enumerate(item.commands)]
