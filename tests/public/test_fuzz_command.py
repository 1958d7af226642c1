"""The command ``agent-es fuzz``: what it prints, what it takes, and what it says where there is nothing to try."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_es.cli import main

SHOP = """
import sys
from pathlib import Path

from agent_es import AgentRun, CallTool, Effect, Finish, ScriptedDecider, ToolContext, crash_point, tool
from agent_es.testing import Scenario


class Outbox:
    def __init__(self, folder: Path) -> None:
        self._sent = folder / "sent"

    def send(self, to: str) -> None:
        crash_point("nothing is sent")
        with self._sent.open("a") as file:
            file.write(f"{to}\\n")
        crash_point("the mail is sent")

    def effects(self) -> list[str]:
        return self._sent.read_text().splitlines() if self._sent.exists() else []


class Forgetful(AgentRun):
    decider = ScriptedDecider([CallTool("mail", {"to": "ann"}), Finish("mailed")])

    @tool(effect=Effect.IDEMPOTENT)
    def mail(self, ctx: ToolContext[Outbox], to: str) -> None:
        ctx.deps.send(to)


class Careful(Forgetful):
    @tool(effect=Effect.AT_MOST_ONCE)
    def mail(self, ctx: ToolContext[Outbox], to: str) -> None:
        ctx.deps.send(to)


def frail(folder):
    if getattr(sys.modules["__main__"].__spec__, "name", "") == "agent_es.testing.forked":
        raise ConnectionError("no outbox in a process of its own")
    return Outbox(folder)


broken = Scenario(agent=Forgetful, world=Outbox)
alone = Scenario(agent=Careful, world=frail)
careful = Scenario(agent=Careful, world=Outbox)
"""


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    status: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """The one object on the one line of standard output."""
        assert (len(self.out.splitlines()), self.err) == (1, "")
        value: dict[str, Any] = json.loads(self.out)
        return value


Fuzz = Callable[..., Done]


@pytest.fixture
def fuzz(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Fuzz]:
    """Type ``agent-es fuzz …`` in a folder that holds ``shop.py``."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("shop", None)

    def typed(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["agent-es", "fuzz", *words])
        capfd.readouterr()
        status: Any = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code
        return Done(status or 0, *capfd.readouterr())

    yield typed
    sys.modules.pop("shop", None)


def test_the_story_survives_and_says_so_in_one_object(fuzz: Fuzz) -> None:
    done = fuzz("demo", "--json")

    report = done.report
    assert done.status == 0
    assert (report["double"], report["lost"], report["in_doubt"], report["broken"]) == (0, 0, 0, 0)
    assert report["points"] == sum(report["kinds"].values()) > 0
    assert (report["runs"], report["crashes"]) == (report["points"] + 1, report["points"])
    assert (report["all_of"], report["drawn"], report["smallest"]) == (1, 0, None)


def test_people_are_told_the_counts_the_places_and_a_smallest_failure(fuzz: Fuzz) -> None:
    done = fuzz("shop:broken")

    first, second, third, *rest = done.out.splitlines()
    assert (done.status, done.err) == (1, "")
    assert " crashes in " in first
    assert first.endswith(" double, 0 lost, 0 in doubt")
    assert " places to die in (" in second
    assert third.startswith("BROKEN in ")
    assert "the mail is sent, in the body of step 0 (mail)" in rest[0]
    assert rest[1].startswith("  lived through again by: --at ")
    assert "double: ann " in rest[2]


def test_a_run_that_says_that_it_does_not_know_is_counted_and_is_no_failure(fuzz: Fuzz) -> None:
    done = fuzz("shop:careful", "--json")

    report = done.report
    assert done.status == 0
    assert report["in_doubt"] > 0
    assert (report["double"], report["lost"], report["broken"]) == (0, 0, 0)


def test_a_schedule_that_broke_is_relived_alone(fuzz: Fuzz) -> None:
    smallest = fuzz("shop:broken", "--json").report["smallest"]
    (place,) = smallest["schedule"]

    done = fuzz("shop:broken", "--json", "--at", str(place))

    report = done.report
    assert done.status == 1
    assert (report["runs"], report["crashes"], report["double"]) == (2, 1, 1)
    assert report["smallest"] == smallest


def test_a_schedule_of_two_kills_the_recovery_too(fuzz: Fuzz) -> None:
    report = fuzz("demo", "--at", "23,4", "--json").report

    assert (report["runs"], report["crashes"], report["broken"]) == (2, 2, 0)


@pytest.mark.crash
def test_kills_come_to_what_crashes_come_to(fuzz: Fuzz) -> None:
    smallest = fuzz("shop:broken", "--json").report["smallest"]
    (place,) = smallest["schedule"]

    done = fuzz("shop:broken", "--kill", "--at", str(place), "--json")

    report = done.report
    assert done.status == 1
    assert (report["crashes"], report["double"]) == (1, 1)
    assert report["smallest"]["deaths"] == smallest["deaths"]
    assert report["smallest"]["journal"] == smallest["journal"]


@pytest.mark.crash
def test_what_stops_a_process_that_was_to_be_killed_is_reported(fuzz: Fuzz) -> None:
    done = fuzz("shop:alone", "--kill", "--sample", "1", "--json")

    (problem,) = done.report["smallest"]["problems"]
    assert done.status == 1
    assert problem.startswith("a worker stopped with ConnectionError: no outbox in a process of its own (shop.py:")


def test_a_sample_bounds_the_runs_of_each_number_of_crashes_and_a_seed_draws_another(fuzz: Fuzz) -> None:
    report = fuzz("demo", "--crashes", "2", "--sample", "3", "--seed", "7", "--json").report

    assert (report["runs"], report["drawn"], report["all_of"], report["seed"]) == (7, 6, 0, 7)


BAD = {
    "no colon": (["nowhere"], "write module:name"),
    "no module": (["nowhere:scenario"], "importing nowhere failed: ModuleNotFoundError"),
    "no such name": (["shop:nothing"], "shop has no 'nothing'"),
    "an agent": (["shop:Forgetful"], "no Scenario(agent=..., decider=...)"),
    "a place that is no number": (["demo", "--at", "x"], "write their numbers, as in --at 23,4"),
    "no place at all": (["demo", "--at", ""], "write their numbers, as in --at 23,4"),
    "a place left out": (["demo", "--at", "3,,4"], "write their numbers, as in --at 23,4"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_tried_is_one_line_that_says_why(name: str, fuzz: Fuzz) -> None:
    words, says = BAD[name]

    done = fuzz(*words)

    assert (done.status, done.out) == (1, "")
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    assert says in line


@pytest.mark.parametrize("option", ["--crashes", "--sample"])
def test_none_of_something_is_wrong_usage(option: str, fuzz: Fuzz) -> None:
    done = fuzz("demo", option, "0")

    assert (done.status, done.out) == (2, "")
    assert option in done.err
    assert "Traceback" not in done.err
