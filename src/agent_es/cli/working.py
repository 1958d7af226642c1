"""The command ``worker``: a line on standard error for each thing that matters, a tally at the end."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from typing import Any

from agent_es.cli.commands import load_agent, open_store, runner_options
from agent_es.cli.exits import Exit
from agent_es.cli.output import say, say_json
from agent_es.errors import BadAgent
from agent_es.loading import load
from agent_es.run import AgentRun
from agent_es.telemetry import Notice
from agent_es.worker import Worker


def worker(  # one per option
    agents: list[str],
    concurrency: int,
    lease: float,
    poll: float,
    decider: str | None,
    deps: str | None,
    store: str,
    *,
    until_idle: bool,
    once: bool,
    as_json: bool,
) -> int:
    """Work, and say what was done."""
    known = [agent for name in agents for agent in named(name)]
    options: dict[str, Any] = runner_options(decider, deps, as_json=as_json)
    if as_json:
        options["on_event"] = log
    working = Worker(
        open_store(store, create=True), agents=known, concurrency=concurrency, lease=lease, poll=poll, **options
    )
    tally = working.run(until_idle=until_idle, once=once)
    if as_json:
        say_json(asdict(tally))
    else:
        say(", ".join(f"{count} {what}" for what, count in asdict(tally).items()))
    return Exit.DONE


def named(name: str) -> Iterator[type[AgentRun]]:
    """Yield the agents that a name stands for; raise ``BadAgent`` where there is none."""
    if ":" in name:
        yield load_agent(name)
        return
    load(f"{name}:__name__")  # from the working directory too
    module = import_module(name)
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, AgentRun) and value.__module__ == module.__name__
    ]
    if not found:
        raise BadAgent(f"{name} defines no subclass of AgentRun; name one: {name}:TheClass")
    yield from found


def log(notice: Notice) -> None:
    """Write a notice as a JSON line on standard error, for what collects logs."""
    said = {name: value for name, value in asdict(notice).items() if value not in (None, "")}
    sys.stderr.write(json.dumps(said, sort_keys=True) + "\n")
