"""The command ``inspect``: serve the pages of a store, and say first where they are."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from agent_es.cli.commands import load_agent, open_store, person
from agent_es.cli.exits import Exit
from agent_es.cli.output import say, say_json, tell
from agent_es.errors import AgentError
from agent_es.testing.scenario import load_scenario


def inspect(
    store: str,
    port: int,
    agents: Sequence[str],
    scenarios: Sequence[str],
    by: str | None,
    *,
    read_only: bool,
    as_json: bool,
) -> int:
    """Serve until interrupted."""
    try:
        from agent_es.inspector import lab  # noqa: PLC0415  # an optional extra
        from agent_es.inspector.app import inspector  # noqa: PLC0415
        from agent_es.inspector.experiment import STORY, Experiment  # noqa: PLC0415
        from agent_es.inspector.serving import Served, serve  # noqa: PLC0415
    except ImportError as error:
        raise AgentError(
            f"the inspector needs a library that is not here ({error}): pip install 'agent-es[inspect]'"
        ) from None
    opened = open_store(store)
    known = {agent.agent_name: agent for agent in map(load_agent, agents)}
    for name in scenarios:
        load_scenario(name)  # what is wrong with it is better said now than in a page

    def told(served: Served) -> None:
        if as_json:
            say_json({"url": served.url})
        else:
            say(served.url)
            tell("open it in a browser; Ctrl+C ends it")

    def make(served: Served) -> Any:
        return inspector(
            opened,
            token=served.token,
            port=served.port,
            by=person(by),
            is_read_only=read_only,
            agents=known,
            more=lab.routes(*experiments),
        )

    with ExitStack() as left:
        experiments = [left.enter_context(Experiment(name)) for name in dict.fromkeys((STORY, *scenarios))]
        serve(make, port=port, told=told)
    return Exit.DONE
