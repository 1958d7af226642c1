"""The crash lab's experiment: processes that are killed, what they leave, and the two ways to go on."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from agent_es.errors import ActOutOfOrder, AgentError, BadScenario
from agent_es.inspector.experiment import Act, Experiment, Moment, Stage
from agent_es.inspector.lives import PREFIX
from agent_es.inspector.panes import Panes, Word

SHOP = '''
import os, subprocess, sys, time
from pathlib import Path
from agent_es import AgentRun, CallTool, Effect, Finish, ScriptedDecider, ToolContext, crash_point, tool
from agent_es.testing import Scenario


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
        if Path("tired").exists():
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
rests = scenario("rest", world=lambda folder: None)
leaves = scenario("leave", world=lambda folder: None)
long = scenario("long")
elsewhere = scenario("mail", url=lambda folder: f"sqlite:///{folder}/other.db")
wrong = Scenario(agent=Clerk, decider=lambda: None)
no_scenario = 7
'''


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the scenarios of ``shop`` are imported from, and in which they leave notes."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "made").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "made"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Story(NamedTuple):
    """The story, act by act, and where the experiment stood after each."""

    fresh: Moment
    crash: Act
    crashed: Moment
    restart: Act
    restarted: Moment
    resume: Act
    resumed: Moment


@pytest.fixture(scope="module")
def story() -> Story:
    with Experiment() as lab:
        fresh = lab.moment
        crash, crashed = lab.crash(fresh.hard_spot.n), lab.moment
        restart, restarted = lab.restart_naively(), lab.moment
        resume, resumed = lab.resume(), lab.moment
    return Story(fresh, crash, crashed, restart, restarted, resume, resumed)


@pytest.fixture(scope="module")
def lab() -> Iterator[Experiment]:
    """The story, which each test begins anew."""
    with Experiment() as opened:
        yield opened


@pytest.fixture
def anew(lab: Experiment) -> Experiment:
    lab.reset()
    return lab


def naive(moment: Moment) -> Panes:
    assert moment.naive.panes is not None
    return moment.naive.panes


def durable(moment: Moment) -> Panes:
    assert moment.durable.panes is not None
    return moment.durable.panes


def place(lab: Experiment, what: str, of: str) -> int:
    (found,) = (spot.n for spot in lab.places() if spot.what == what and of in spot.of)
    return found


def folders(shop: Path) -> list[Path]:
    return [*(shop / "made").glob(f"{PREFIX}*")]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def comes_true(what: Callable[[], object], within: float = 30.0) -> bool:
    until = time.monotonic() + within
    while not (found := what()) and time.monotonic() < until:
        time.sleep(0.02)
    return bool(found)


# The story.


def test_the_worker_of_the_story_is_killed_by_sigkill_when_the_money_has_moved(story: Story) -> None:
    assert story.crash.killed_by == 9
    assert str(story.crash.spot) == "the money has moved, in the body of step 1 (process_refund)"
    assert story.crashed.stage is Stage.DEAD
    assert not is_alive(story.crash.pid)


def test_it_leaves_four_events_a_refund_and_a_key_that_was_sent_once(story: Story) -> None:
    left = durable(story.crashed)

    assert [line.type for line in left.journal] == ["run_started", "llm_decided", "tool_result", "llm_decided"]
    assert [(key.kept_by, key.key, key.told) for key in left.keys] == [
        ("store", "ORD-3300:refund:180.00", "held by step 1 process_refund"),
        ("provider", "ORD-3300:refund:180.00", "sent once"),
    ]
    assert [(total.account, total.amount) for total in left.totals] == [("ORD-3300", "180.00")]
    assert left.verdict.word is Word.SO_FAR
    assert all(row.is_new for row in [*left.journal, *left.keys, *left.happened])
    assert naive(story.crashed) == left


def test_the_naive_restart_pays_again_under_a_new_key_and_reads_no_journal(story: Story) -> None:
    found = naive(story.restarted)

    assert (found.verdict.word, found.verdict.figure, found.verdict.right) == (Word.DOUBLE, "360.00", "180.00")
    assert "360.00 where 180.00 is right" in found.verdict.told
    assert [each.is_double for each in found.happened] == [False, True]
    assert [(total.amount, total.right) for total in found.totals] == [("360.00", "180.00")]
    assert [line.text for line in found.journal] == [line.text for line in durable(story.crashed).journal]
    (new,) = (key for key in found.keys if key.is_new)
    assert new.key.startswith("naive-")
    assert (new.kept_by, new.told) == ("provider", "sent once")
    assert sum("called from the top" in line for line in story.restart.said) == 2


def test_the_durable_resume_pays_once_and_sends_the_same_key_again(story: Story) -> None:
    found = durable(story.resumed)

    assert (found.verdict.word, found.verdict.figure) == (Word.ONCE, "180.00")
    assert [(key.kept_by, key.told, key.is_new) for key in found.keys] == [
        ("store", "held by step 1 process_refund", False),
        ("provider", "sent 2 times", True),
    ]
    assert not any(each.is_double or each.is_new for each in found.happened)
    assert story.resume.killed_by is None
    assert "step 0 search_policy: not called; its result is read from the journal" in story.resume.said


def test_the_journal_ends_at_seq_6_with_step_1_decided_twice(story: Story) -> None:
    journal = durable(story.resumed).journal

    assert [line.seq for line in journal if line.is_new] == [4, 5, 6]
    assert [line.text for line in journal[:4]] == [line.text for line in durable(story.crashed).journal]
    decided = [json.loads(line.text)["data"] for line in journal if line.type == "llm_decided"]
    assert [(data["idx"], data["attempt"]) for data in decided] == [(0, 1), (1, 1), (1, 2)]
    assert durable(story.resumed).status == "done"


def test_it_has_the_places_that_the_crash_kit_has_and_says_what_each_means(story: Story) -> None:
    assert len(story.fresh.spots) == 42
    assert [spot.n for spot in story.fresh.spots] == [*range(1, 43)]
    assert all(spot.meaning for spot in story.fresh.spots)
    assert story.fresh.hard_spot.meaning == "what the body did so far has happened; its result is not in the journal"


# Other places, and other orders.


def test_before_the_money_moves_a_naive_restart_pays_once_too(anew: Experiment) -> None:
    anew.crash(place(anew, "before the money moves", "process_refund"))
    assert durable(anew.moment).verdict.figure == "0.00"

    anew.restart_naively()
    anew.resume()

    for found in (naive(anew.moment), durable(anew.moment)):
        assert (found.verdict.word, found.verdict.figure) == (Word.ONCE, "180.00")


def test_a_recovery_that_dies_too_is_survived(anew: Experiment) -> None:
    anew.crash(anew.moment.hard_spot.n)
    first = len(anew.places())
    again = anew.crash(anew.moment.hard_spot.n)
    assert again.killed_by == 9
    assert "attempt 2, under the same key" in "".join(again.said)

    anew.resume()

    found = durable(anew.moment)
    assert first < 42
    assert (found.verdict.word, found.verdict.figure) == (Word.ONCE, "180.00")
    assert [key.told for key in found.keys if key.kept_by == "provider"] == ["sent 3 times"]
    assert [act.name for act in anew.moment.durable.acts] == ["crash", "crash", "resume"]


@pytest.mark.crash
def test_a_worker_that_dies_before_the_store_is_there_leaves_nothing_and_is_survived(anew: Experiment) -> None:
    anew.crash(1)
    assert (durable(anew.moment).journal, durable(anew.moment).status) == ([], "not started")
    assert len(anew.places()) == 42  # looking at it has made nothing

    anew.resume()

    assert durable(anew.moment).verdict.word is Word.ONCE


def test_acts_out_of_order_are_refused_and_change_nothing(anew: Experiment) -> None:
    for act in (anew.resume, anew.restart_naively):
        with pytest.raises(ActOutOfOrder, match="no worker has died yet: crash one first"):
            act()
    for n in (0, 43):
        with pytest.raises(BadScenario, match=f"place {n}: this worker has the places 1 to 42"):
            anew.crash(n)
    assert anew.moment.stage is Stage.FRESH

    anew.crash(20)
    anew.restart_naively()
    with pytest.raises(ActOutOfOrder, match="it was restarted naively before; reset the lab"):
        anew.restart_naively()
    anew.resume()
    over = anew.moment
    with pytest.raises(ActOutOfOrder, match="the run was gone on with before; reset the lab"):
        anew.resume()
    with pytest.raises(ActOutOfOrder, match="nobody is left to crash"):
        anew.crash(1)
    assert anew.moment is over


@pytest.mark.crash
def test_of_two_resumes_at_once_one_comes_too_late(anew: Experiment) -> None:
    anew.crash(31)
    came_to: list[object] = []

    def resume() -> None:
        try:
            came_to.append(anew.resume().name)
        except AgentError as error:
            came_to.append(type(error))

    both = [threading.Thread(target=resume) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()

    assert sorted(map(str, came_to)) == [str(ActOutOfOrder), "resume"]
    assert durable(anew.moment).verdict.word is Word.ONCE


# Other scenarios.


def test_a_world_that_only_lists_its_effects_is_counted_by_them(shop: Path) -> None:
    with Experiment("shop:mails") as lab:
        lab.crash(lab.moment.hard_spot.n)
        lab.restart_naively()
        lab.resume()
        twice, once = naive(lab.moment), durable(lab.moment)

    assert (twice.verdict.word, twice.verdict.figure) == (Word.DOUBLE, "2 effects")
    assert [(each.what, each.is_double) for each in twice.happened] == [("a mail", False), ("a mail", True)]
    assert (once.verdict.word, once.verdict.figure) == (Word.IN_DOUBT, "1 effect")
    assert once.status == "waiting for doubt"
    assert once.totals == []


@pytest.mark.crash
def test_an_agent_with_a_bug_is_shown_to_pay_twice_by_its_own_resume() -> None:
    with Experiment("examples.broken_agents:no_key") as lab:
        lab.crash(lab.moment.hard_spot.n)
        lab.resume()

        assert durable(lab.moment).verdict.word is Word.DOUBLE
        assert durable(lab.moment).verdict.figure == "360.00"


@pytest.mark.crash
def test_every_effect_beside_a_person_who_settles_doubts_happens_once() -> None:
    with Experiment("examples.every_effect:errands") as lab:
        lab.crash(lab.moment.hard_spot.n)
        lab.restart_naively()
        lab.resume()

        assert naive(lab.moment).verdict.word is Word.DOUBLE
        assert durable(lab.moment).verdict.word is Word.ONCE


@pytest.mark.crash
def test_what_a_world_does_not_list_is_not_counted(shop: Path) -> None:
    with Experiment("shop:long") as lab:
        lab.crash(len(lab.places()) - 1)
        lab.resume()
        counted = durable(lab.moment)

    assert len(max((line.text for line in counted.journal), key=len)) > 300_000
    assert (counted.verdict.word, counted.verdict.figure) == (Word.ONCE, "0 effects")
    with Experiment("shop:rests") as lab:
        lab.crash(lab.moment.hard_spot.n)
        assert durable(lab.moment).verdict.word is Word.NOT_COUNTED


@pytest.mark.crash
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("shop:nothing", "shop has no 'nothing'"),
        ("no_shop:mails", "importing no_shop failed"),
        ("shop:no_scenario", "no Scenario"),
        ("shop:elsewhere", "keeps its runs elsewhere"),
        ("shop:wrong", "cannot be lived through: a worker stopped with AttributeError"),
    ],
)
def test_what_is_no_scenario_for_it_is_said_and_leaves_nothing(shop: Path, name: str, why: str) -> None:
    with Experiment(name) as lab, pytest.raises(BadScenario, match=why):
        lab.places()

    assert folders(shop) == []


@pytest.mark.crash
def test_a_reset_imports_the_scenario_as_it_is_then(shop: Path) -> None:
    with Experiment("shop:mails") as lab:
        assert lab.moment.about.agent == "Clerk"
        (shop / "shop.py").write_text(SHOP.replace("Clerk", "Postman"))

        lab.reset()

        assert lab.moment.about.agent == "Postman"


# Nothing is left.


@pytest.mark.crash
def test_a_worker_that_is_not_done_in_its_time_is_killed_and_said_to_be(shop: Path) -> None:
    with Experiment("shop:rests", within=2.0) as lab:
        lab.crash(lab.moment.hard_spot.n)
        (shop / "tired").touch()

        act = lab.resume()

        assert act.killed_by == 9
        assert act.spot is None
        assert act.said[-1] == "it was not done within 2 s, and was killed"
        assert not is_alive(int((shop / "resting").read_text()))
        assert lab.moment.stage is Stage.DEAD
        (shop / "tired").unlink()
        assert lab.resume().killed_by is None


@pytest.mark.crash
def test_what_a_worker_started_ends_with_it(shop: Path) -> None:
    with Experiment("shop:leaves") as lab:
        lab.crash(len(lab.places()))

        assert not is_alive(int((shop / "left").read_text()))


@pytest.mark.crash
def test_closing_it_ends_an_act_that_is_under_way_and_removes_the_folder(shop: Path) -> None:
    lab = Experiment("shop:rests")
    lab.crash(lab.moment.hard_spot.n)
    assert len(folders(shop)) == 1
    (shop / "tired").touch()
    came_to: list[str] = []

    def resume() -> None:
        with pytest.raises(BadScenario) as raised:
            lab.resume()
        came_to.append(str(raised.value))

    acting = threading.Thread(target=resume)
    acting.start()
    assert comes_true((shop / "resting").exists)
    assert lab.moment.stage is Stage.DEAD  # it is told while an act is under way
    lab.close()
    acting.join()

    assert "has ended" in came_to[0]
    assert comes_true(lambda: not is_alive(int((shop / "resting").read_text())))
    assert folders(shop) == []


@pytest.mark.crash
def test_a_server_that_is_killed_leaves_no_process_and_no_folder(shop: Path) -> None:
    (shop / "server.py").write_text(
        "from pathlib import Path\n"
        "from agent_es.inspector.experiment import Experiment\n"
        "lab = Experiment('shop:rests')\n"
        "lab.crash(lab.moment.hard_spot.n)\n"
        "Path('tired').touch()\n"
        "lab.resume()\n"
    )
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "server.py"], env={**os.environ, **path}) as server:
        assert comes_true(lambda: (shop / "resting").exists() and (shop / "resting").read_text())
        assert len(folders(shop)) == 1
        server.kill()

    resting = int((shop / "resting").read_text())
    assert comes_true(lambda: not is_alive(resting))
    assert comes_true(lambda: not folders(shop))
