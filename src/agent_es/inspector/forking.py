"""The process that has imported a scenario and forks its workers, seen from the side of who gives the orders.

Rule: nothing of the scenario is imported here; what comes of an order is what was said.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from agent_es.errors import BadScenario
from agent_es.inspector.lives import ASIDE
from agent_es.inspector.panes import Seen

STARTS_WITHIN = 60.0
"""Seconds that a scenario has to be imported in."""
SLACK = 10.0
"""Seconds beyond a worker's time after which the process that forks workers is given up."""


@dataclass(frozen=True)
class About:
    """What a scenario is about."""

    agent: str
    goal: str
    run_id: str
    told: str
    """What the agent says of itself."""


@dataclass(frozen=True)
class Spot:
    """Where a worker may die, in words."""

    n: int
    """Counted from 1 over the life of a worker."""
    what: str
    of: str
    """What the worker is doing."""
    kind: Literal["request", "commit", "mark"]
    meaning: str
    """What has happened by then, and what is in the journal."""

    def __str__(self) -> str:
        return f"{self.what} {self.of}" if self.kind == "request" else f"{self.what}, in {self.of}"


@dataclass(frozen=True)
class Lived:
    """How a worker ended, and what it said."""

    pid: int
    status: int
    is_late: bool
    at: str | None
    said: Sequence[str]
    told: Mapping[str, Any]


class Forks:
    """The process that has imported the scenario, and forks a worker for each order.  Raises ``BadScenario``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = subprocess.Popen(  # noqa: S603  # the module beside this one
            [sys.executable, "-m", "agent_es.inspector.lives", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # what is typed to stop the server is not for it: it ends with its orders
        )
        self.about = About(**self._answer(STARTS_WITHIN)["about"])

    def copy(self, source: str, target: str) -> None:
        """Let one folder be as another is."""
        self._order(SLACK, "copy", source, target)

    def places(self, within: float) -> Sequence[Spot]:
        """Count where the worker that goes on with what lies aside may die; it does."""
        return [Spot(*place) for place in self._told("places", ASIDE, within)]

    def look(self, folder: str, within: float) -> Seen:
        """Return what lies in a folder; of any other than that aside, a copy is looked at."""
        if folder != ASIDE:
            self.copy(folder, ASIDE)
        return Seen(**self._told("look", ASIDE, within, kind="seen"))

    def live(self, act: str, folder: str, within: float, *more: Any) -> Lived:
        """Let a worker live."""
        ended = self._order(within, act, within, folder, *more)
        said: list[str] = []
        told: dict[str, Any] = {}
        for kind, value in ended["lines"]:
            if kind in ("said", "failed"):
                said.append(value)
            told[kind] = value
        return Lived(ended["pid"], ended["status"], ended["late"], told.get("place"), said, told)

    def end(self) -> None:
        """End it, and what it started."""
        assert self._process.stdin is not None  # noqa: S101  # for the type checker
        assert self._process.stdout is not None  # noqa: S101
        with suppress(OSError):  # it is gone
            self._process.stdin.close()
        try:
            self._process.wait(SLACK)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _told(self, act: str, folder: str, within: float, kind: str | None = None) -> Any:
        life = self.live(act, folder, within)
        if (kind or act) not in life.told:
            why = "; ".join(life.said) or f"its worker took more than {within:g} s"
            raise BadScenario(f"{self._name} cannot be lived through: {why}")
        return life.told[kind or act]

    def _order(self, within: float, *order: Any) -> Mapping[str, Any]:
        assert self._process.stdin is not None  # noqa: S101  # for the type checker
        try:
            print(json.dumps(order), file=self._process.stdin, flush=True)
        except (OSError, ValueError):
            raise self._gone() from None
        return self._answer(within + SLACK)

    def _answer(self, within: float) -> Mapping[str, Any]:
        assert self._process.stdout is not None  # noqa: S101  # for the type checker
        too_late = threading.Timer(within, self._process.kill)
        too_late.start()
        try:
            line = self._process.stdout.readline()
        except ValueError:  # it was closed meanwhile
            line = ""
        finally:
            too_late.cancel()
        if not line:
            raise self._gone()
        answer: Mapping[str, Any] = json.loads(line)
        if "failed" in answer:
            self.end()
            raise BadScenario(answer["failed"])
        return answer

    def _gone(self) -> BadScenario:
        self.end()
        return BadScenario(
            f"the process that lives {self._name} has ended (status {self._process.returncode}); reset the lab"
        )
