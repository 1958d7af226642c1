"""Lives that end by a real SIGKILL, each in a process of its own.

Rule: a worker is forked from a process that has imported the scenario and opened nothing, so it is as good as new.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_es.errors import BadScenario
from agent_es.testing.audit import Audit
from agent_es.testing.crash import Life
from agent_es.testing.scenario import Ending, load_scenario
from agent_es.testing.survival import Report, fuzz, survived


class Killer:
    """Lives lives in child processes, which are killed where the lives end."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def __call__(self, folder: Path, life: Life, audit: Audit) -> str | None:
        """Live a life in a child; return where it was killed, or None where it came to its end.

        What the child saw that must not be goes into the audit.
        """
        assert self._server.stdin is not None  # noqa: S101  # for the type checker
        assert self._server.stdout is not None  # noqa: S101
        print(json.dumps([str(folder), life.at, life.seed]), file=self._server.stdin, flush=True)
        line = self._server.stdout.readline()
        if not line:
            raise BadScenario(f"the process that forks workers ended with status {self._server.wait()}")
        status, said = json.loads(line)
        died_at, problems = json.loads(said) if said else (None, [f"a worker said nothing, and ended with {status}"])
        audit.problems += problems
        is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return died_at if is_killed else None


@contextmanager
def killing(name: str) -> Iterator[Killer]:
    """Lend what kills the workers of the scenario that ``module:name`` names."""
    with subprocess.Popen(  # noqa: S603  # the module beside this one
        [sys.executable, "-m", "agent_es.testing.forked", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as server:
        yield Killer(server)
        assert server.stdin is not None  # noqa: S101  # for the type checker
        server.stdin.close()


def survives_every_kill(name: str, invariant: Callable[[Ending], object] | None = None, **options: Any) -> Report:
    """Do what ``survives_every_crash`` does, with processes that are killed.

    ``name`` is the ``module:name`` of the scenario, which the processes import.  Raises ``DidNotSurvive``, and
    ``BadName`` or ``BadScenario`` where there is none.
    """
    return survived(fuzz_with_kills(name, invariant, **options))


def fuzz_with_kills(name: str, invariant: Callable[[Ending], object] | None = None, **options: Any) -> Report:
    """Do what ``fuzz`` does, with processes that are killed."""
    scenario = load_scenario(name)
    with killing(name) as kill:
        return fuzz(scenario, invariant, kill=kill, **options)
