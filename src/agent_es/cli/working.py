"""The command ``worker``: a line on standard error for each thing that matters, a tally at the end.

Rule: a line is one line, and short, whatever a model, a tool or an error said: what collects logs cuts long ones.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from agent_es.cli.commands import load_agent, open_store, runner_options
from agent_es.cli.exits import Exit
from agent_es.cli.output import say, say_json, tell
from agent_es.errors import BadAgent
from agent_es.journal import timestamp
from agent_es.loading import load, load_module
from agent_es.metrics import serving
from agent_es.notices import Notice, OnEvent
from agent_es.run import AgentRun
from agent_es.store import RunStore
from agent_es.telemetry import Spans
from agent_es.values import bounded
from agent_es.worker import Worker

LONGEST = 500
"""Characters of a text in a line."""


def worker(  # one per option
    agents: list[str],
    concurrency: int,
    lease: float,
    poll: float,
    grace: float,
    metrics: str | None,
    notify: str | None,
    decider: str | None,
    deps: str | None,
    store: str,
    *,
    trace: bool,
    until_idle: bool,
    once: bool,
    as_json: bool,
) -> int:
    """Work, and say what was done."""
    known = [agent for name in agents for agent in named(name)]
    options: dict[str, Any] = runner_options(decider, deps, as_json=as_json)
    options["on_event"] = log if as_json else show
    options["notify"] = None if notify is None else load(notify)
    opened = open_store(store, create=True)
    with ExitStack() as meanwhile:
        if trace:
            options["on_event"] = meanwhile.enter_context(tracing(opened, options["on_event"], as_json=as_json))
        working = Worker(
            opened,
            agents=known,
            concurrency=concurrency,
            lease=lease,
            poll=poll,
            grace=grace,
            **options,
        )
        if metrics is not None:
            url = meanwhile.enter_context(serving(working, metrics))
            write(kind="metrics", text=url) if as_json else tell(f"metrics: {url}")
        tally = working.run(until_idle=until_idle, once=once)
    if as_json:
        say_json(asdict(tally))
    else:
        say(", ".join(f"{count} {what.replace('_', ' ')}" for what, count in asdict(tally).items()))
    return Exit.DONE


@contextmanager
def tracing(store: RunStore, then: OnEvent, *, as_json: bool) -> Iterator[OnEvent]:
    """Export spans meanwhile, and say at the end how many could not be."""
    with Spans(store, then=then) as spans:
        yield spans
    if spans.unsent or spans.trouble:
        text = f"{spans.unsent} spans could not be sent: {spans.trouble}; send them with: agent-es trace RUN --otlp"
        write(kind="spans", text=text) if as_json else tell(text)


def named(name: str) -> Iterator[type[AgentRun]]:
    """Yield the agents that a name stands for; raise ``BadAgent`` where there is none."""
    if ":" in name:
        yield load_agent(name)
        return
    module = load_module(name)
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, AgentRun) and value.__module__ == module.__name__
    ]
    if not found:
        raise BadAgent(f"{name} defines no subclass of AgentRun; name one: {name}:TheClass")
    yield from found


def show(notice: Notice) -> None:
    """Write a notice as a line for people, on standard error; whoever collects it knows the time."""
    tell(" ".join(bounded(str(notice), LONGEST).split()))


def log(notice: Notice) -> None:
    """Write a notice as a JSON line on standard error, for what collects logs."""
    said = asdict(replace(notice, text=bounded(notice.text, LONGEST)))
    write(**{name: value for name, value in said.items() if value not in (None, "")})


def write(**said: object) -> None:
    """Write a JSON line, with the time."""
    sys.stderr.write(json.dumps({**said, "ts": timestamp(datetime.now(UTC))}, sort_keys=True) + "\n")
