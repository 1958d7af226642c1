"""The command line as people meet it: an error is one line and changes nothing; nothing is executed by a terminal."""

import json
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent_es.store.tables import SCHEMA_VERSION

AGENT = '''
import time
from datetime import timedelta
from agent_es import (
    AgentRun, Ask, CallTool, Effect, Fail, Finish, Retry, ScriptedDecider, StartChild, Used, WaitFor, tool
)

class Greeter(AgentRun):
    """Say hello."""

    decider = ScriptedDecider([CallTool("greet", {"name": "Ann"}), Finish({"said": "hello"})])

    @tool(effect=Effect.READ)
    def greet(self, name: str) -> str:
        """Greet somebody."""
        return f"hello {name}\\x1b[2J\\u202e"

class Quitter(Greeter):
    decider = ScriptedDecider([Fail("no use")])

class Babbler(Greeter):
    class decider:
        @staticmethod
        def decide(run, tools):
            return 42

class Doubter(AgentRun):
    decider = ScriptedDecider([CallTool("pay"), Finish("paid")])

    @tool(effect=Effect.AT_MOST_ONCE)
    def pay(self) -> str:
        raise TimeoutError("no answer")

class Sleeper(AgentRun):
    decider = ScriptedDecider([CallTool("sleep"), Finish("slept")])

    @tool(effect=Effect.READ)
    def sleep(self) -> None:
        print("asleep", flush=True)
        for _ in range(300):  # a signal that comes just before one long sleep would wait for its end
            time.sleep(0.1)

class Collector(AgentRun):
    class decider:
        @staticmethod
        def decide(run, tools):
            return Finish(run.steps[0].result) if run.steps else WaitFor("paid", timeout=timedelta(days=7))

class Asker(AgentRun):
    decider = ScriptedDecider([Ask("How?"), Finish("so")])

class Payer(AgentRun):
    class decider:
        @staticmethod
        def decide(run, tools):
            return Used(Finish("paid"), tokens=1200, cost="0.0125")

class Parent(AgentRun):
    decider = ScriptedDecider([StartChild(Collector, "collect"), Finish("collected")])

NOTHING = object()
'''


Shell = Callable[..., tuple[int, str, str]]
Dump = Callable[..., list[str]]
AssertOneLine = Callable[[str], None]


@pytest.fixture
def shell(new_shell: Callable[[str], Shell]) -> Shell:
    return new_shell(AGENT)


@pytest.fixture
def greeted(shell: Shell) -> Shell:
    """A shell in a folder whose store has one finished run, run-1."""
    assert shell("run", "shop:Greeter", "--goal", "greet", "--run-id", "run-1")[0] == 0
    return shell


def test_a_run_is_run_shown_and_listed(greeted: Shell) -> None:
    assert json.loads(greeted("show", "run-1", "--json")[1])["answer"] == {"said": "hello"}
    assert [record["run_id"] for record in json.loads(greeted("runs", "--json")[1])] == ["run-1"]
    assert len(greeted("journal", "run-1")[1].splitlines()) == 4
    assert re.search(r"step 0 .*greet done", greeted("show", "run-1")[1])
    scratchpad = json.loads(greeted("show", "run-1", "--json")[1])["scratchpad"]
    assert [(entry["kind"], entry["idx"]) for entry in scratchpad] == [("goal", None), ("call", 0), ("result", 0)]


def test_running_a_finished_id_again_executes_nothing_and_says_so(greeted: Shell) -> None:
    status, out, err = greeted("run", "shop:Greeter", "--goal", "greet", "--run-id", "run-1")

    assert (status, out.strip()) == (0, '{"said":"hello"}')
    assert "already over: done, nothing is executed" in err


@pytest.mark.parametrize(
    ("agent", "status", "says"),
    [("Quitter", 4, "failed: no use"), ("Doubter", 3, "waits (doubt)"), ("Babbler", 1, "the decider returned 42")],
)
def test_the_exit_status_says_what_a_run_came_to(agent: str, status: int, says: str, shell: Shell) -> None:
    ended, out, err = shell("run", f"shop:{agent}", "--goal", "try", "--run-id", "run-1")

    assert ended == status
    assert says in out + err


def test_a_doubt_is_found_shown_and_settled(shell: Shell) -> None:
    shell("run", "shop:Doubter", "--goal", "pay", "--run-id", "run-1")

    listed = shell("runs", "--in-doubt")[1]
    shown = shell("show", "run-1")[1]
    settled = shell("settle", "run-1", "0", "--happened", "--result", '"rf-1"', "--by", "ann")
    resumed = shell("resume", "run-1", "--agent", "shop:Doubter")

    assert "run-1" in listed
    assert "agent-es settle run-1 0 --happened | --did-not-happen" in shown
    assert settled[:2] == (0, "run run-1: step 0 happened; go on with: agent-es resume run-1\n")
    assert resumed[:2] == (0, "paid\n")


@pytest.fixture
def waiting(shell: Shell) -> Shell:
    """A shell in a folder whose store has one run, inv-1, which waits for ``paid`` and has a tag."""
    words = ["--goal", "collect", "--run-id", "inv-1", "--tag", "invoice=INV-1042", "--tag", "of=a=b"]
    assert shell("run", "shop:Collector", *words)[0] == 3
    return shell


def test_a_run_that_waits_says_for_what_and_goes_on_when_it_is_signalled(waiting: Shell) -> None:
    shown = waiting("show", "inv-1")[1]
    signalled = waiting("signal", "inv-1", "paid", "--payload", "0")
    resumed = waiting("resume", "inv-1", "--agent", "shop:Collector")

    assert re.search(r"^  waits     for the signal paid, until 20\d\d-\S+Z$", shown, re.MULTILINE)
    assert "\n  signal    agent-es signal inv-1 paid\n" in shown
    assert signalled[:2] == (0, "run inv-1: paid is recorded at seq 3\n")
    assert resumed[:2] == (0, '{"payload":0,"reason":"signal","signal":"paid"}\n')


def test_what_a_run_waits_for_is_there_for_programs(waiting: Shell) -> None:
    told = json.loads(waiting("show", "inv-1", "--json")[1])

    (step,) = told["steps"]
    assert (told["status"], told["waiting_for"], told["parent"], told["signals"]) == ("waiting", "signal", None, [])
    assert (step["status"], step["awaits"], step["child"]) == ("waiting", "paid", None)
    assert step["wake_at"] == told["wake_at"] == told["record"]["wake_at"]


def test_a_signal_that_nobody_waits_for_is_shown_until_it_is_used(waiting: Shell) -> None:
    (delivered,) = json.loads(waiting("signal", "inv-1", "called", "--delivery-id", "c-1", "--json")[1])
    (signal_,) = json.loads(waiting("show", "inv-1", "--json")[1])["signals"]

    assert delivered == {"run_id": "inv-1", "seq": 3, "is_new": True}
    assert (signal_["name"], signal_["payload"], signal_["delivery_id"], signal_["seq"]) == ("called", None, "c-1", 3)
    assert "\n  seq 3 called null\n    delivery c-1, at 20" in waiting("show", "inv-1")[1]


def test_runs_are_found_by_a_text_and_listed_page_by_page_with_what_they_cost(shell: Shell) -> None:
    for n in range(3):
        shell("run", "shop:Payer", "--run-id", f"run-{n}", "--goal", f"Refund ORD-{n}")

    found = json.loads(shell("runs", "--search", "ord-1", "--json")[1])
    first = json.loads(shell("runs", "--limit", "2", "--json")[1])
    second = json.loads(shell("runs", "--limit", "2", "--after", first[-1]["run_id"], "--json")[1])
    head, *rows = shell("runs")[1].splitlines()

    assert [(record["run_id"], record["cost"], record["tokens"]) for record in found] == [("run-1", "0.0125", 1200)]
    assert [record["run_id"] for record in (*first, *second)] == ["run-2", "run-1", "run-0"]
    assert "cost" in head
    assert all("0.0125" in row for row in rows)
    assert shell("runs", "--after", "run-9")[::2] == (
        1,
        "error: no run 'run-9' in sqlite:///agent_es.db; see: agent-es runs\n",
    )
    refused = shell("runs", "--search", "x" * 1001)
    assert refused[::2] == (1, "error: --search of 1,001 characters: it may have 1,000\n")


def test_runs_are_found_and_signalled_by_their_tag(waiting: Shell) -> None:
    words = ["--goal", "collect", "--tag", "invoice=INV-1042"]
    waiting("run", "shop:Collector", "--run-id", "inv-2", *words)
    waiting("run", "shop:Collector", "--run-id", "inv-3", "--goal", "collect", "--tag", "invoice=INV-2")

    found = json.loads(waiting("runs", "--tag", "invoice=INV-1042", "--json")[1])
    with_equals = json.loads(waiting("runs", "--tag", "of=a=b", "--json")[1])
    signalled = waiting("signal", "--tag", "invoice=INV-1042", "paid")

    assert sorted(record["run_id"] for record in found) == ["inv-1", "inv-2"]
    assert [record["run_id"] for record in with_equals] == ["inv-1"]
    assert signalled[:2] == (0, "run inv-1: paid is recorded at seq 3\nrun inv-2: paid is recorded at seq 3\n")
    assert json.loads(waiting("show", "inv-3", "--json")[1])["signals"] == []


def test_a_delivery_is_recorded_once_and_must_bring_the_same(waiting: Shell, dump: Dump) -> None:
    words = ["--tag", "invoice=INV-1042", "--delivery-id", "evt-77", "--payload"]
    waiting("signal", "paid", *words, '{"amount": "480.00"}')
    before = dump()

    again = waiting("signal", "paid", *words, '{"amount": "480.00"}')
    other = waiting("signal", "paid", *words, '{"amount": "999.00"}')

    assert again[:2] == (
        0,
        "run inv-1: paid is recorded at seq 3; it was brought before, and nothing is recorded again\n",
    )
    assert (other[0], "the delivery 'evt-77' brought something else before, at seq 3" in other[2]) == (1, True)
    assert dump() == before


@pytest.mark.crash
def test_a_run_that_is_resumed_moves_those_that_it_started(shell: Shell, tmp_path: Path) -> None:
    def typed(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "agent_es", *words]  # in this process the folder's module was there before
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False, timeout=60)
        return done.returncode, done.stdout

    waits = typed("run", "shop:Parent", "--goal", "collect", "--run-id", "all")
    child = json.loads(shell("show", "all.0", "--json")[1])
    shell("signal", "all.0", "paid")
    done = typed("resume", "all", "--agent", "shop:Parent")

    assert (waits[0], child["status"], child["parent"]) == (3, "waiting", "all")
    assert done == (0, "collected\n")


def test_a_run_is_cancelled_with_those_that_it_started(shell: Shell) -> None:
    shell("run", "shop:Parent", "--goal", "collect", "--run-id", "all")
    waits = shell("show", "all")[1]

    cancelled = shell("cancel", "all", "--by", "ann", "--reason", "no use")
    child = json.loads(shell("show", "all.0", "--json")[1])
    again = json.loads(shell("cancel", "all", "--by", "bob", "--json")[1])

    assert "\n  waits     for the end of run all.0\n" in waits
    assert cancelled[:2] == (0, "run all cancelled by ann: no use; with it all.0\n")
    assert (child["status"], child["failure"]) == ("cancelled", "cancelled by ann: run all was cancelled")
    assert again["failure"] == "cancelled by ann: no use"
    assert shell("cancel", "all")[:2] == (0, "run all is cancelled already, and stays as it is\n")


@pytest.mark.parametrize("words", [["inv-1"], ["a", "b", "c"], ["inv-1", "paid", "--tag", "a=b"], []])
def test_a_signal_for_nobody_in_particular_is_wrong_usage(words: list[str], waiting: Shell, dump: Dump) -> None:
    before = dump()

    status, _, err = waiting("signal", *words)

    assert (status, "RUN" in err) == (2, True)
    assert dump() == before


def test_a_run_is_shown_as_it_was(greeted: Shell) -> None:
    then = json.loads(greeted("show", "run-1", "--at", "1", "--json")[1])

    assert (then["status"], then["version"], then["steps"][0]["status"]) == ("running", 2, "started")


def test_a_schedule_is_put_in_listed_replaced_and_taken_out(shell: Shell) -> None:
    command = ["schedule", "greeting", "0 9 * * MON-FRI", "shop:Greeter", "--goal", "greet"]
    options = ["--zone", "Europe/Berlin", "--catch-up", "all", "--input", '{"n":1}', "--tag", "a=b=c", "--tag", "d="]

    status, out, _ = shell(*command, *options)
    listed = shell("schedules")[1].splitlines()
    (one,) = json.loads(shell("schedules", "--json")[1])
    again = json.loads(shell(*command, *options, "--json")[1])
    other = json.loads(shell(*command, "--json")[1])

    told = r"schedule greeting starts Greeter next at \d{4}-\d\d-\d\dT0[78]:00:00Z, in \d+[dhms]\n"
    assert (status, bool(re.fullmatch(told, out))) == (0, True), out
    assert listed[0].split() == ["schedule", "cron", "zone", "agent", "next", "start", "when"]
    assert re.split(r"  +", listed[1])[:4] == ["greeting", "0 9 * * MON-FRI", "Europe/Berlin", "Greeter"]
    said = {"agent": "Greeter", "cron": "0 9 * * MON-FRI", "goal": "greet", "name": "greeting"}
    said |= {"catch_up": "all", "input": {"n": 1}, "tags": {"a": "b=c", "d": ""}, "zone": "Europe/Berlin"}
    assert {name: one[name] for name in said} == said
    assert again == one
    assert (other["zone"], other["tags"], other["catch_up"]) == ("UTC", {}, "latest")
    assert shell("unschedule", "greeting", "--json")[1] == '{"unscheduled": "greeting"}\n'
    assert json.loads(shell("schedules", "--json")[1]) == []


def test_a_schedule_that_no_worker_was_there_for_is_listed_as_due_and_a_worker_starts_it(greeted: Shell) -> None:
    greeted("schedule", "greeting", "0 9 * * *", "shop:Greeter", "--goal", "greet")
    with sqlite3.connect("agent_es.db") as database:
        database.execute("UPDATE agent_es_schedules SET next_at = next_at - 9 * 86400")

    listed = greeted("schedules")[1].splitlines()
    worked = greeted("worker", "shop:Greeter", "--until-idle")

    assert re.search(r"due for 8d|due for 9d", listed[1])
    assert worked[0] == 0
    assert "greeting@" in worked[2]
    assert json.loads(greeted("runs", "--json")[1])[0]["run_id"].startswith("greeting@")
    assert "in " in greeted("schedules")[1].splitlines()[1]


def test_a_schedule_that_comes_never_again_is_listed_as_such(greeted: Shell) -> None:
    greeted("schedule", "greeting", "0 9 * * *", "shop:Greeter", "--goal", "greet")
    with sqlite3.connect("agent_es.db") as database:
        database.execute("UPDATE agent_es_schedules SET next_at = NULL")

    assert greeted("schedules")[1].splitlines()[1].split()[-2:] == ["Greeter", "never"]
    assert greeted("unschedule", "greeting")[1].startswith("schedule greeting starts nothing any more")


def test_what_goes_out_comes_in_again_with_the_same_digest(greeted: Shell, tmp_path: Path) -> None:
    out = json.loads(greeted("export", "-o", "out.jsonl", "--json")[1])
    back = json.loads(greeted("import", "out.jsonl", "--store", "copy.db", "--json")[1])

    assert out == back == {"digest": out["digest"], "events": 4, "runs": 1}
    assert greeted("export", "--store", "copy.db")[1] == (tmp_path / "out.jsonl").read_text()


def test_a_rebuild_and_a_migration_say_how_many_runs_there_are(greeted: Shell) -> None:
    assert json.loads(greeted("rebuild", "--json")[1]) == {"runs": 1, "schema": SCHEMA_VERSION}
    assert json.loads(greeted("migrate", "--json")[1]) == {"runs": 1, "schema": SCHEMA_VERSION}


def test_an_older_schema_is_brought_up_with_its_leases(greeted: Shell) -> None:
    with sqlite3.connect("agent_es.db") as database:
        database.execute("UPDATE agent_es_schema SET version = 0")
        database.execute("UPDATE agent_es_runs SET lease_token = 7, goal = 'damaged'")
        database.execute("DROP INDEX agent_es_runs_due")
        database.execute("ALTER TABLE agent_es_runs DROP COLUMN wake_at")

    refused, migrated = greeted("runs"), greeted("migrate")
    record = json.loads(greeted("show", "run-1", "--json")[1])["record"]

    assert (refused[0], "agent-es migrate" in refused[2]) == (1, True)
    assert migrated[0] == 0
    assert (record["lease_token"], record["goal"], record["wake_at"]) == (7, "greet", None)


def test_what_a_terminal_would_execute_is_made_visible(greeted: Shell) -> None:
    for command in (["show", "run-1"], ["journal", "run-1"]):
        out = greeted(*command)[1]

        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "\\u202e" in out


def make_foreign(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs (x)")


def make_newer(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE agent_es_schema (version INTEGER)")
        database.execute("INSERT INTO agent_es_schema VALUES (99)")


def make_truncated(path: Path) -> None:
    whole = Path("agent_es.db").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def make_corrupt(path: Path) -> None:
    whole = bytearray(Path("agent_es.db").read_bytes())
    whole[4096:] = b"\xff" * (len(whole) - 4096)
    path.write_bytes(whole)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing file": (lambda path: None, "is no file"),
    "an empty file": (lambda path: path.touch(), "without runs of agent_es"),
    "a text file": (lambda path: path.write_text("hello\n" * 999), "is not a database"),
    "a folder": (lambda path: path.mkdir(), "cannot be read"),
    "somebody else's database": (make_foreign, "without runs of agent_es"),
    "a schema that is too new": (make_newer, "upgrade agent-es"),
    "a truncated database": (make_truncated, "cannot be"),
    "a corrupt database": (make_corrupt, "cannot be"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("command", [["runs"], ["show", "run-1"], ["journal", "run-1"], ["rebuild"]])
def test_a_store_that_cannot_be_used_is_one_line_and_left_as_it_is(
    name: str, command: list[str], greeted: Shell, tmp_path: Path, assert_one_line: AssertOneLine
) -> None:
    make, says = BROKEN[name]
    path = tmp_path / "broken.db"
    make(path)
    before = path.read_bytes() if path.is_file() else path.exists()

    status, out, err = greeted(*command, "--store", str(path))

    assert (status, out) == (1, ""), err
    assert_one_line(err)
    assert says in err
    assert (path.read_bytes() if path.is_file() else path.exists()) == before


ERRORS = {
    "an unknown store URL": (["runs", "--store", "mongodb://x"], "keeps runs in SQLite"),
    "an unknown run": (["show", "run-2"], "no run 'run-2'"),
    "an unknown seq": (["show", "run-1", "--at", "99"], "its last is 4"),
    "no JSON as input": (["run", "shop:Greeter", "--goal", "g", "--input", "{"], "--input is no JSON"),
    "no module": (["run", "nowhere:Greeter", "--goal", "g"], "importing nowhere failed"),
    "no class": (["run", "shop:Nobody", "--goal", "g"], "shop has no 'Nobody'"),
    "no agent": (["run", "shop:NOTHING", "--goal", "g"], "no subclass of AgentRun"),
    "no colon": (["run", "shop", "--goal", "g"], "write module:name"),
    "another goal": (
        ["run", "shop:Greeter", "--goal", "other", "--run-id", "run-1"],
        "with goal 'greet', not 'other'",
    ),
    "an unknown status": (["runs", "--status", "asleep"], "is none of pending, running"),
    "no settlement": (["settle", "run-1", "0"], "--happened, or --did-not-happen"),
    "no doubt": (["settle", "run-1", "0", "--happened"], "not in doubt; in doubt: none"),
    "no result": (["settle", "run-1", "0", "--happened", "--result", "rf-1"], "--result is no JSON"),
    "nobody to signal": (["signal", "run-2", "paid"], "no run 'run-2': nothing waits for 'paid' there"),
    "a run that is over": (["signal", "run-1", "paid"], "run run-1 is done"),
    "nobody with the tag": (["signal", "--tag", "a=b", "paid"], "no run has the tag a=b"),
    "no JSON as payload": (["signal", "run-1", "paid", "--payload", "{"], "--payload is no JSON"),
    "no number in JSON": (["signal", "run-1", "paid", "--payload", "NaN"], "JSON cannot say it"),
    "a signal without a name": (["signal", "run-1", ""], "a signal cannot be called ''"),
    "no tag to signal": (["signal", "--tag", "invoice", "paid"], "--tag 'invoice' is no NAME=VALUE"),
    "no tag to list": (["runs", "--tag", "=b"], "--tag '=b' is no NAME=VALUE"),
    "a tag twice": (
        ["run", "shop:Greeter", "--goal", "g", "--tag", "a=1", "--tag", "a=2"],
        "one value for each name",
    ),
    "nobody to cancel": (["cancel", "run-2"], "no run 'run-2'"),
    "nothing to requeue": (["requeue", "run-1"], "Requeued cannot happen to it"),
    "nobody to approve": (["approve", "run-2", "0"], "no run 'run-2'"),
    "no step to approve": (["approve", "run-1", "7"], "run run-1 has no step 7; see: agent-es show run-1"),
    "nothing to approve": (["approve", "run-1", "0"], "step 0 asks for nobody's yes; it is greet, done"),
    "no JSON as arguments": (["approve", "run-1", "0", "--args", "{"], "--args is no JSON"),
    "arguments that are no object": (["approve", "run-1", "0", "--args", "[1]"], "--args [1] is no object"),
    "nothing to deny": (["deny", "run-1", "0"], "step 0 asks for nobody's yes; it is greet, done"),
    "nothing to answer": (["answer", "run-1", "0", "yes"], "step 0 asks nobody anything; it is greet, done"),
    "no number in JSON as an answer": (["answer", "run-1", "0", "NaN"], "step 0 asks nobody anything"),
    "nothing to say": (["steer", "run-1", ""], "a message is a text of 1 to 10,000 characters"),
    "nobody to steer": (["steer", "run-1", "hello"], "run run-1 is done"),
    "nobody to pause": (["pause", "run-1"], "run run-1 is done"),
    "nobody who says so": (["pause", "run-1", "--by", "\n"], "say who says so"),
    "an unknown kind": (["inbox", "--kind", "mail"], "is none of approval, doubt, question, parked, paused"),
    "no such import": (["import", "nowhere.jsonl"], "cannot be read: No such file"),
    "an unknown class": (["resume", "run-9"], "no run 'run-9'"),
    "a run that is there": (["import", "out.jsonl"], "already in"),
    "a run id without end": (["show", "x" * 201], "1 to 200 characters"),
    "no cron expression": (["schedule", "s", "9 * *", "shop:Greeter", "--goal", "g"], "write five fields"),
    "an hour that no day has": (["schedule", "s", "0 25 * * *", "shop:Greeter", "--goal", "g"], "bad hour"),
    "a day that no year has": (["schedule", "s", "0 9 30 2 *", "shop:Greeter", "--goal", "g"], "never comes"),
    "a zone that is none": (
        ["schedule", "s", "0 9 * * *", "shop:Greeter", "--goal", "g", "--zone", "Mars"],
        "'Mars' is no zone that is known here",
    ),
    "a tag without a value": (
        ["schedule", "s", "0 9 * * *", "shop:Greeter", "--goal", "g", "--tag", "team"],
        "--tag 'team' is no NAME=VALUE; write it as in --tag invoice=INV-1042",
    ),
    "no input of a schedule": (
        ["schedule", "s", "0 9 * * *", "shop:Greeter", "--goal", "g", "--input", "{"],
        "--input is no JSON",
    ),
    "no way to catch up": (
        ["schedule", "s", "0 9 * * *", "shop:Greeter", "--goal", "g", "--catch-up", "some"],
        "none of latest, all, none",
    ),
    "an unknown schedule": (["unschedule", "s"], "there is no schedule 's'; see: agent-es schedules"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_one_line_that_says_what_to_do(
    name: str, greeted: Shell, dump: Dump, assert_one_line: AssertOneLine
) -> None:
    words, says = ERRORS[name]
    greeted("export", "-o", "out.jsonl")
    before = dump()

    status, _, err = greeted(*words)

    assert status == 1
    assert_one_line(err)
    assert says in err
    assert dump() == before


def test_debug_shows_where_an_error_came_from(greeted: Shell) -> None:
    with pytest.raises(Exception, match="no run 'run-2'"):
        greeted("--debug", "show", "run-2")


words = st.text(max_size=12).filter(lambda text: "\0" not in text and not text.startswith("-"))
odd = words | st.sampled_from(
    [
        "run-1",
        "0",
        "{}",
        '"x"',
        "shop:Greeter",
        "gated-1",
        "asks-1",
        "[1]",
        "NaN",
        "\n",
        "sqlite://",
        "sqlite:///x/y.db",
        "a:b:c",
        "../x",
        "%00",
        "\ud800",
    ]
)


@pytest.fixture
def as_it_was(greeted: Shell) -> Iterator[Callable[[], None]]:
    """Makes the store again what it was: with runs that wait for a yes, for an answer, and that are paused."""
    Path("gated.json").write_text('{"needs_approval": ["greet"]}')
    greeted("run", "shop:Greeter", "--goal", "greet", "--run-id", "gated-1", "--envelope", "gated.json")
    greeted("run", "shop:Asker", "--goal", "ask", "--run-id", "asks-1")
    greeted("run", "shop:Asker", "--goal", "ask", "--run-id", "paused-1")
    greeted("pause", "paused-1")
    with closing(sqlite3.connect(":memory:")) as kept:
        with closing(sqlite3.connect("agent_es.db")) as there:
            there.backup(kept)

        def restore() -> None:
            with closing(sqlite3.connect("agent_es.db")) as there:
                kept.backup(there)

        yield restore


@given(command=st.sampled_from([
    ["show", "?"], ["journal", "?"], ["resume", "?"], ["resume", "?", "--agent", "?"], ["runs", "--status", "?"],
    ["runs", "--agent", "?"], ["runs", "--store", "?"], ["settle", "?", "0", "--happened", "--result", "?"],
    ["requeue", "?"], ["export", "?"], ["unschedule", "?"],
    ["schedule", "?", "?", "shop:Greeter", "--goal", "g", "--zone", "Mars"],
    ["schedule", "s", "0 9 * * *", "?", "--goal", "?", "--catch-up", "?"],
    ["signal", "?", "?"], ["signal", "--tag", "?", "?"], ["cancel", "?"],
    ["approve", "?", "0"], ["approve", "gated-1", "0", "--args", "?"], ["approve", "gated-1", "0", "--digest", "?"],
    ["approve", "gated-1", "0", "--args", "{}", "--agent", "?"], ["approve", "gated-1", "0", "--by", "?"],
    ["deny", "?", "0"], ["deny", "gated-1", "0", "--reason", "?"], ["deny", "gated-1", "?"],
    ["answer", "?", "0", "?"], ["answer", "asks-1", "0", "?"], ["answer", "asks-1", "?", "?"],
    ["steer", "?", "?"], ["steer", "asks-1", "?"], ["pause", "?"], ["pause", "asks-1", "--reason", "?", "--by", "?"],
    ["resume", "paused-1", "--agent", "?"], ["resume", "paused-1", "--decider", "?"], ["inbox", "--kind", "?"],
    ["cancel", "?", "--compensate"], ["inbox", "--store", "?"],
    ["runs", "--tag", "?"], ["runs", "--search", "?"], ["runs", "--after", "?"],
    ["signal", "run-1", "paid", "--payload", "?"],
    ["import", "?"], ["run", "?", "--goal", "?"], ["show", "run-1", "--store", "?"],
    ["run", "shop:Greeter", "--goal", "greet", "--run-id", "run-1", "--input", "?"],
]), given_words=st.lists(odd, min_size=3, max_size=3))  # fmt: skip
@example(command=["runs", "--store", "?"], given_words=["sqlite:///agent_es.db?mode=ro", "", ""])
@example(command=["run", "?", "--goal", "?"], given_words=["os:path", "g", ""])
@example(command=["signal", "?", "?"], given_words=["\ud800", "paid", ""])
@example(command=["steer", "asks-1", "?"], given_words=["\ud800", "", ""])
@example(command=["answer", "asks-1", "0", "?"], given_words=['"\ud800"', "", ""])
@example(command=["resume", "paused-1", "--agent", "?"], given_words=["shop:Greeter", "", ""])
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.crash
def test_no_word_on_the_command_line_is_a_traceback_or_changes_a_store(
    command: list[str],
    given_words: list[str],
    as_it_was: Callable[[], None],
    greeted: Shell,
    dump: Dump,
    assert_one_line: AssertOneLine,
) -> None:
    as_it_was()
    fill = iter(given_words)
    before = dump()

    status, _, err = greeted(*(next(fill) if word == "?" else word for word in command))

    assert status in (0, 1, 2, 3)
    assert "Traceback" not in err
    if status == 1:
        assert_one_line(err)
        assert dump() == before


def test_an_interrupted_run_says_how_it_goes_on(shell: Shell, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agent_es", "run", "shop:Sleeper", "--goal", "sleep", "--run-id", "run-1"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asleep\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)

    assert process.returncode == 130
    assert "go on with: agent-es resume run-1" in err
    assert "Traceback" not in err
    assert json.loads(shell("show", "run-1", "--json")[1])["status"] == "running"


def test_a_journal_is_followed_until_the_run_is_over(shell: Shell, tmp_path: Path) -> None:
    shell("run", "shop:Doubter", "--goal", "pay", "--run-id", "run-1")
    command = [sys.executable, "-m", "agent_es", "journal", "run-1", "--follow"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(3)]
        shell("settle", "run-1", "0", "--happened", "--by", "ann")
        shell("resume", "run-1", "--agent", "shop:Doubter")
        rest, _ = process.communicate(timeout=20)

    types = [json.loads(line)["type"] for line in [*first, *rest.splitlines()]]
    assert types == ["run_started", "llm_decided", "step_in_doubt", "doubt_settled", "tool_result", "finished"]


def test_help_is_fast_because_it_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['agent-es', '--help']\n"
        "from agent_es.cli import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", code]

    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "agent_es", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - started)

    assert "typer" in loaded
    heavy = {"sqlalchemy", "pydantic", "eventsourcing", "rich", "agent_es.cli.commands", "agent_es.bench.command"}
    assert not heavy & set(loaded)
    assert statistics.median(times) < 1.0, "far beyond what it takes on a quiet machine"
