"""A place where a test may kill the process: nothing in production, whatever the environment says."""

import subprocess
import sys
import threading

import pytest

from agent_es import crash_point
from agent_es.crashpoints import watching


def test_a_place_is_told_to_who_watches_and_to_nobody_afterwards() -> None:
    told: list[str] = []

    with watching(lambda name, kind: told.append(f"{kind} {name}")):
        crash_point("here")
    crash_point("there")

    assert told == ["mark here"]


def test_what_the_watcher_raises_happens_there() -> None:
    def refuse(name: str, kind: object) -> None:
        raise KeyboardInterrupt(name)

    with watching(refuse), pytest.raises(KeyboardInterrupt, match="here"):
        crash_point("here")
    crash_point("here")


def test_another_thread_is_not_watched() -> None:
    told: list[str] = []

    with watching(lambda name, _: told.append(name)):
        other = threading.Thread(target=crash_point, args=["in another thread"])
        other.start()
        other.join()

    assert told == []


def test_no_variable_of_the_environment_makes_a_production_process_die() -> None:
    story = "from agent_es import crash_point; [crash_point('anywhere') for _ in range(100)]"
    environment = {"AGENT_ES_CRASH_AT": "1", "AGENT_ES_KILL": "1"}

    done = subprocess.run([sys.executable, "-c", story], env=environment, check=False)

    assert done.returncode == 0
