"""The process that forks workers: it has imported a scenario, and opened nothing.

Rule: the hook that kills is set in the child alone; no setting of a production process can set it.
"""

import json
import os
import sys
from pathlib import Path
from typing import Never

from agent_es.testing.audit import Audit
from agent_es.testing.crash import Life, Place, sigkill
from agent_es.testing.journey import stopped
from agent_es.testing.scenario import Scenario, load_scenario


def serve(name: str) -> None:
    """Fork a worker for each line of standard input; answer with its wait status and what it said."""
    scenario = load_scenario(name)
    for line in sys.stdin:
        folder, at, seed = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)  # what the agent prints is no answer of ours
            _live(scenario, Path(folder), at, seed, write)
        os.close(write)
        with os.fdopen(read) as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        print(json.dumps([status, said]), flush=True)  # noqa: T201  # the parent reads it


def _live(scenario: Scenario, folder: Path, at: int, seed: int, tell: int) -> Never:
    """Live a life; say where it was killed, or None, and what was seen that must not be."""
    audit = Audit(same=scenario.same)

    def say(died_at: str | None) -> None:
        os.write(tell, json.dumps([died_at, audit.problems]).encode())

    def die(place: Place) -> Never:
        say(str(place))
        sigkill(place)

    try:
        scenario.live(folder, Life(at, seed=seed, die=die), audit)
    except Exception as error:
        audit.problems.append(stopped(error))
    say(None)
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
