"""The crash lab's experiment: processes that are killed, what they leave, and the two ways to go on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agent_es.errors import ActOutOfOrder, BadName, BadScenario
from agent_es.inspector.experiment import Experiment, Moment, Spot, Stage
from agent_es.inspector.lives import MEMORY_PREFIX
from agent_es.inspector.panes import Panes, Word
from agent_es.testing.scenario import scratch

SHOP = '''
import os, subprocess, sys, time
from pathlib import Path
from agent_es import AgentRun, CallTool, Effect, Fail, Finish, ScriptedDecider, ToolContext, crash_point, tool
from agent_es.testing import Scenario, on_postgres


class Outbox:
    """A world that only lists what happened."""

    def __init__(self, folder):
        self.path = folder / "outbox"

    def write(self, line):
        with self.path.open("a") as file:
            file.write(line + "\\n")
        crash_point("it is written")

    def effects(self):
        return self.path.read_text().splitlines() if self.path.exists() else []


class Clerk(AgentRun):
    @tool(effect=Effect.AT_MOST_ONCE)
    def mail(self, ctx: ToolContext[Outbox]) -> str:
        print("what an agent prints")
        ctx.deps.write("a mail")
        return "sent"

    @tool(effect=Effect.READ)
    def rest(self) -> str:
        Path("resting").write_text(str(os.getpid()))
        time.sleep(600)

    @tool(effect=Effect.READ)
    def leave(self) -> str:
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path("left").write_text(str(sleeper.pid))
        return "left"

    @tool(effect=Effect.READ)
    def long(self) -> str:
        return "x" * 300_000


def scenario(*calls, **options):
    script = ScriptedDecider([*map(CallTool, calls), Finish("done")])
    return Scenario(**{"agent": Clerk, "decider": script, "world": Outbox, **options})


mails = scenario("mail")
silent = scenario("rest", world=lambda folder: None)
nothing_to_count = scenario("leave", world=lambda folder: None)
long = scenario("long")
elsewhere = scenario("mail", url=lambda folder: f"sqlite:///{folder}/other.db")
wrong = Scenario(agent=Clerk, decider=ScriptedDecider([CallTool("nowhere")]))
no_scenario = 7
'''


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that the scenarios of ``shop`` are imported from, and in which they leave notes."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def story() -> Iterator[Experiment]:
    """Return the story, whose process has imported it; each test begins it anew by ``fresh``."""
    with Experiment() as experiment:
        yield experiment


def panes(side: "Panes | None") -> Panes:
    assert side is not None
    return side


def place(spots: Sequence[Spot], what: str, of: str) -> int:
    (found,) = (spot.n for spot in spots if spot.what == what and of in spot.of)
    return found


def folders() -> set[Path]:
    return {*Path(scratch() or "/tmp").glob(f"{MEMORY_PREFIX}*")}  # noqa: S108  # where they are made


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def becomes_true(what: "object", within: float = 10.0) -> bool:
    until = time.monotonic() + within
    while not (found := what()) and time.monotonic() < until:  # type: ignore[operator]
        time.sleep(0.02)
    return bool(found)
