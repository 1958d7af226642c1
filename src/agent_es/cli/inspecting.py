"""The command ``inspect``: serve the pages of a store, and say first where they are."""

import gc
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from agent_es.cli.commands import load_agent, open_store, person
from agent_es.cli.exits import Exit
from agent_es.cli.output import say, say_json, tell
from agent_es.errors import AgentError


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
    gc.disable()  # as for every command: what is imported stays
    try:
        from agent_es.inspector.app import inspector, later  # noqa: PLC0415  # an optional extra
        from agent_es.inspector.serving import Served, serve  # noqa: PLC0415
    except ImportError as error:
        raise AgentError(
            f"the inspector needs a library that is not here ({error}): pip install 'agent-es[inspect]'"
        ) from None
    finally:
        gc.freeze()
        gc.enable()
    opened = open_store(store)
    known = {agent.agent_name: agent for agent in map(load_agent, agents)}
    check(scenarios)

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
            more=later("/lab", lambda: lab_of(scenarios, left)),
            closing=served.closing,
        )

    with ExitStack() as left:
        serve(make, port=port, told=told)
    return Exit.DONE


def check(scenarios: Sequence[str]) -> None:
    """Raise ``BadScenario`` where a name is no scenario's: that is better said now than in a page."""
    if scenarios:
        from agent_es.testing.scenario import load_scenario  # noqa: PLC0415  # the kit is slow to come

        for name in scenarios:
            load_scenario(name)


def lab_of(scenarios: Sequence[str], left: ExitStack) -> Iterable[Any]:
    """Return where the pages of the crash lab are; its experiments end with what is left."""
    from agent_es.inspector import lab  # noqa: PLC0415  # the kit is slow to come, and few open the lab
    from agent_es.inspector.experiment import STORY, Experiment  # noqa: PLC0415

    return lab.routes(*[left.enter_context(Experiment(name)) for name in dict.fromkeys((STORY, *scenarios))])
