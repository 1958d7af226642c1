"""An agent of pydantic-ai, made durable by one line, in processes that get a real SIGKILL at each place."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.models.dying_agent import RUN, Place, mails_of, provider_of, run, store_of

TOLD = [
    "refund policy window: 30 days",
    {"amount": "180.00", "order_id": "ORD-3300", "refund_id": "rf-1"},
    "fees: 30 days",
    "sent",
]


class Processes:
    """Runs the agent, each time in a process of its own."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def live(self, folder: Path, at: Place | None = None) -> tuple[bool, dict[str, Any]]:
        """Run the agent in a new process; return whether it was killed, and what it said."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([str(folder), at]), file=self._server.stdin, flush=True)
        is_killed, said = json.loads(self._server.stdout.readline())
        return is_killed, said

    def survives(self, folder: Path, *places: Place) -> list[str]:
        """Kill the process at those places, one life after the other, and let it end; return where it died.

        Whoever settles a doubt looks into the outbox, and says what happened.
        """
        folder.mkdir()
        died, lives = [], [*places]
        for _ in range(len(places) + 3):
            is_killed, said = self.live(folder, lives.pop(0) if lives else None)
            if is_killed:
                died.append(said["died"])
            elif "doubt" in said:
                self.settle(folder)
            else:
                assert json.loads(said["output"]) == TOLD, said
                return died
        raise AssertionError(f"killed at {places}, the agent does not come to its end")

    @staticmethod
    def settle(folder: Path) -> None:
        store = store_of(folder)
        (item,) = store.inbox()
        assert (item.kind, item.run_id) == ("doubt", RUN)
        assert store.load(RUN).steps[item.idx].tool == "mail"
        if mails_of(folder):
            store.settle(RUN, item.idx, "happened", by="ann", result="sent")
        else:
            store.settle(RUN, item.idx, "did_not_happen", by="ann")


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.models.dying_agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as server:
        yield Processes(server)
        assert server.stdin is not None
        server.stdin.close()


def check(folder: Path) -> None:
    """Check that all effects happened once, and that the journal says so."""
    assert (provider_of(folder).ledger, provider_of(folder).refunds) == ({"ORD-3300": "180.00"}, 1)
    assert mails_of(folder) == ["ann"]
    state = store_of(folder).load(RUN)
    assert (state.status, json.loads(state.answer)) == ("done", TOLD)
    assert [step.tool for step in state.steps] == ["search", "refund", "search", "mail"]


def places_of(processes: Processes, folder: Path) -> list[Place]:
    folder.mkdir()
    is_killed, said = processes.live(folder)
    assert (is_killed, json.loads(said["output"])) == (False, TOLD)
    return [(what, n) for what, often in said["places"].items() for n in range(1, often + 1)]


def killed_at(
    processes: Processes, folder: Path, choose: Callable[[list[Place]], Iterable[tuple[Place, ...]]]
) -> set[str]:
    """Kill the agent at each of those places, in a world of its own; return what it was doing."""
    died: set[str] = set()
    for n, at in enumerate(choose(places_of(processes, folder / "whole"))):
        world = folder / f"world-{n}"
        died |= {*processes.survives(world, *at)}
        check(world)
    return died


HARD = {"the money has moved", "before the money moves", "before the mail is sent", "the mail is sent"}
ALWAYS = ("before the commit", "after the commit")


def test_an_agent_killed_at_some_places_goes_on_as_if_nothing_had_happened(
    processes: Processes, tmp_path: Path
) -> None:
    died = killed_at(processes, tmp_path, lambda places: [(at,) for at in places[8::37]])

    assert died


@pytest.mark.crash
def test_an_agent_killed_at_any_place_goes_on_as_if_nothing_had_happened(
    processes: Processes, tmp_path: Path
) -> None:
    died = killed_at(processes, tmp_path, lambda places: [(at,) for at in places])

    assert died >= HARD | {*ALWAYS, "the model is asked", "it is searched"}


@pytest.mark.exhaustive
def test_an_agent_killed_twice_goes_on_as_if_nothing_had_happened(processes: Processes, tmp_path: Path) -> None:
    again = [(what, n) for what in ALWAYS for n in (1, 2, 4)]
    died = killed_at(processes, tmp_path, lambda places: [*product(places[::5], again)])

    assert died >= {*ALWAYS}


def test_the_line_that_was_killed_is_a_line_that_runs(tmp_path: Path) -> None:
    outputs = [run(tmp_path), run(tmp_path)]

    assert [json.loads(output) for output in outputs] == [TOLD, TOLD]
    check(tmp_path)
