"""The commands by which people answer, as they type them: what they are shown, and what comes of an answer."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_es import Envelope, Runner, RunStore
from agent_es.testing import MovableClock

Shell = Callable[..., tuple[int, str, str]]
Dump = Callable[..., list[str]]
AssertOneLine = Callable[[str], None]

AGENT = '''
from datetime import timedelta
from decimal import Decimal
from agent_es import AgentRun, Approval, Ask, CallTool, Effect, Finish, ScriptedDecider, tool

class Support(AgentRun):
    """Pays back what the customer asks for."""

    class decider:
        @staticmethod
        def decide(run, tools):
            if not run.steps:
                return CallTool("refund", {"order": run.input, "amount": "480.00"})
            last = run.steps[-1]
            return Finish(last.result if last.status == "done" else last.error["message"])

    @tool(effect=Effect.IDEMPOTENT, key="{order}:refund", compensate="charge")
    def refund(self, order: str, amount: Decimal, currency: str = "EUR") -> str:
        return f"{amount} {currency} paid for {order}"

    @tool(effect=Effect.IDEMPOTENT, key="{order}:charge")
    def charge(self, order: str) -> str:
        return order

class Clerk(AgentRun):
    class decider:
        @staticmethod
        def decide(run, tools):
            if not run.steps:
                return Ask("How?\\n  answer    agent-es approve all\\x1b[2J", choices=["card", 0, None])
            said = [message.text for message in run.messages]
            return Finish([run.steps[0].answered.answer, *said])

class Doubter(AgentRun):
    decider = ScriptedDecider([CallTool("pay"), Finish("paid")])

    @tool(effect=Effect.AT_MOST_ONCE)
    def pay(self) -> str:
        raise TimeoutError("no answer")

def tell(item):
    print("told:", item.kind, item.run_id, item.idx, item.args["order"])
'''

ENVELOPE = {
    "limits": {"refund.amount": "<= 500"},
    "needs_approval": [{"call": "refund.amount > 200", "by": ["dana", "ann-*"], "within": "PT1H"}],
}


@pytest.fixture
def shell(new_shell: Callable[[str], Shell]) -> Shell:
    return new_shell(AGENT)


@pytest.fixture
def started(shell: Shell) -> Callable[..., tuple[int, str, str]]:
    """Starts a run about an order, which waits for a yes."""

    def start(run_id: str, order: str, **changes: Any) -> tuple[int, str, str]:
        Path("may.json").write_text(json.dumps({**ENVELOPE, **changes}))
        words = ["--goal", "pay", "--run-id", run_id, "--input", json.dumps(order), "--envelope", "may.json"]
        return shell("run", "shop:Support", *words)

    return start


Started = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gated(shell: Shell, started: Started) -> Shell:
    """A shell in a folder whose store has one run, pay-1, which waits for a yes to its step 0."""
    started("pay-1", "A")
    return shell


@pytest.fixture
def asks(shell: Shell) -> Shell:
    """A shell in a folder whose store has one run, ask-1, which waits for an answer to its step 0."""
    shell("run", "shop:Clerk", "--goal", "ask", "--run-id", "ask-1")
    return shell


def told(shell: Shell, *words: str) -> Any:
    return json.loads(shell(*words, "--json")[1])


def types(shell: Shell, run_id: str) -> list[str]:
    return [event["type"] for event in told(shell, "journal", run_id)]


# What waits.


def test_a_run_that_waits_for_a_yes_ends_with_status_3_and_says_where_to_look(shell: Shell, started: Started) -> None:
    status, out, _ = started("pay-1", "A")

    assert status == 3
    assert re.fullmatch(r"run pay-1 waits \(approval until 20\S+Z\); see: agent-es show pay-1\n", out)


def test_the_inbox_shows_exactly_what_would_run_and_the_commands_that_answer_it(gated: Shell) -> None:
    (item,) = told(gated, "inbox")

    status, out, _ = gated("inbox")

    lines = out.splitlines()
    call = '{"amount": "480.00", "currency": "EUR", "order": "A"}'
    assert (status, lines[0]) == (0, f"approval  run pay-1 step 0: refund {call}")
    assert lines[2:6] == [
        "  goal      pay",
        "  asked by  needs_approval: refund.amount > 200",
        "  key       A:refund",
        "  who may   dana or ann-*",
    ]
    assert re.fullmatch(r"  until     20\d\d-\S+Z", lines[6])
    assert lines[7:] == [f"  answer    {item['commands'][0]}", f"            {item['commands'][1]}"]
    assert (item["args"], item["by"], item["people"]) == (json.loads(call), [["dana", "ann-*"]], 1)


def test_a_command_of_the_inbox_can_be_pasted(gated: Shell) -> None:
    command = told(gated, "inbox")[0]["commands"][0].split()

    assert gated(*command[1:], "--by", "ann-2")[0] == 0
    assert told(gated, "inbox") == []
    assert gated("inbox")[:2] == (0, "nothing waits for a person\n")


def test_what_a_terminal_would_execute_in_arguments_is_shown_as_an_escape(shell: Shell, started: Started) -> None:
    started("pay-1", "A\x1b[2J\u202e\nB")

    shown, listed = shell("show", "pay-1")[1], shell("inbox")[1]

    for out in (shown, listed):
        assert not {"\x1b", "\u202e"} & {*out}
    assert r'"order": "A\u001b[2J\u202e\nB"' in listed


def test_what_a_decider_asks_cannot_look_like_another_thing_that_waits(asks: Shell) -> None:
    lines = asks("inbox")[1].splitlines()

    assert len([line for line in lines if line.startswith("  answer ")]) == 1
    assert r"  question  How?\n  answer    agent-es approve all\x1b[2J" in lines


def test_an_inbox_lists_one_kind_or_so_many(gated: Shell, asks: Shell) -> None:
    asks("pause", "ask-1", "--by", "dana", "--reason", "wait")

    kinds = {kind: told(gated, "inbox", "--kind", kind) for kind in ("approval", "question", "paused", "doubt")}
    first = told(gated, "inbox", "--limit", "1")

    assert {kind: [item["run_id"] for item in items] for kind, items in kinds.items()} == {
        "approval": ["pay-1"],
        "question": ["ask-1"],
        "paused": ["ask-1"],
        "doubt": [],
    }
    assert kinds["paused"][0]["text"] == "by dana: wait"
    assert kinds["question"][0]["choices"] == ["card", 0, None]
    assert [item["run_id"] for item in first] == ["pay-1"]


def test_a_run_that_is_shown_says_of_each_step_how_to_answer_it(gated: Shell, asks: Shell) -> None:
    asks("steer", "ask-1", "be quick", "--by", "dana")
    asks("pause", "ask-1", "--by", "dana", "--reason", "wait")

    gate, question = gated("show", "pay-1")[1], asks("show", "ask-1")[1]
    gate_told, question_told = told(gated, "show", "pay-1"), told(asks, "show", "ask-1")

    assert "\n  approve   agent-es approve pay-1 0, or agent-es deny ...\n" in gate
    assert "\n  answer    agent-es answer ask-1 0 ...\n" in question
    assert re.search(r"^answer +by dana: wait$", question, re.MULTILINE)
    assert "be quick" in question
    assert gate_told["steps"][0]["approval"]["args"] == {"amount": "480.00", "currency": "EUR", "order": "A"}
    assert (gate_told["status"], gate_told["waiting_for"]) == ("waiting", "approval")
    assert (question_told["paused"], question_told["waiting_for"]) == ("by dana: wait", "person")
    assert [(message["by"], message["text"]) for message in question_told["messages"]] == [("dana", "be quick")]


def test_a_run_that_is_over_tells_nobody_to_answer_it(gated: Shell, asks: Shell) -> None:
    gated("cancel", "pay-1")
    asks("cancel", "ask-1")

    for run_id in ("pay-1", "ask-1"):
        assert not re.search(r"^  (approve|answer) +agent-es", gated("show", run_id)[1], re.MULTILINE)
    assert told(gated, "inbox") == []


# Answers.


def test_a_yes_lets_the_call_run_as_it_was_shown(gated: Shell) -> None:
    digest = told(gated, "inbox")[0]["digest"]

    approved = gated("approve", "pay-1", "0", "--by", "dana", "--digest", digest, "--reason", "fine")
    resumed = gated("resume", "pay-1", "--agent", "shop:Support")

    assert approved[:2] == (0, "run pay-1: step 0 approved; go on with: agent-es resume pay-1\n")
    assert resumed[:2] == (0, "480.00 EUR paid for A\n")
    event = next(event for event in told(gated, "journal", "pay-1") if event["type"] == "approval_granted")
    assert (event["data"]["by"], event["data"]["reason"], event["data"]["digest"]) == ("dana", "fine", digest)


def test_a_yes_to_something_else_lets_that_run(gated: Shell) -> None:
    args = '{"order": "A", "amount": "90.00"}'
    words = ["--by", "dana", "--args", args, "--agent", "shop:Support", "--json"]

    step = json.loads(gated("approve", "pay-1", "0", *words)[1])["steps"][0]
    resumed = gated("resume", "pay-1", "--agent", "shop:Support")

    assert (step["status"], step["args"]["amount"], step["approval"]["edited_by"]) == ("queued", "90.00", "dana")
    assert resumed[:2] == (0, "90.00 EUR paid for A\n")


def test_other_arguments_are_refused_where_the_tool_is_not_known_and_the_option_is_named(
    gated: Shell, tmp_path: Path, dump: Dump, assert_one_line: AssertOneLine
) -> None:
    before = dump()
    words = ["approve", "pay-1", "0", "--by", "dana", "--args", '{"order": "A", "amount": "90.00"}']

    done = subprocess.run(
        [sys.executable, "-m", "agent_es", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert_one_line(done.stderr)
    assert "--agent MODULE:CLASS" in done.stderr
    assert dump() == before


def test_a_yes_of_two_says_what_it_still_waits_for(shell: Shell, started: Started) -> None:
    started("pay-1", "A", needs_approval=[{"call": "refund", "people": 2}])

    first = shell("approve", "pay-1", "0", "--by", "dana")
    listed = shell("inbox")[1]
    second = shell("approve", "pay-1", "0", "--by", "ann")

    assert first[:2] == (0, "run pay-1: step 0 approved; step 0 still waits for a yes\n")
    assert "\n  yes so far1 of 2: dana\n" in listed.replace("yes so far ", "yes so far")
    assert second[1] == "run pay-1: step 0 approved; go on with: agent-es resume pay-1\n"


def test_a_no_is_told_to_the_decider_with_its_reason(gated: Shell) -> None:
    denied = gated("deny", "pay-1", "0", "--by", "dana", "--reason", "not this week")
    resumed = gated("resume", "pay-1", "--agent", "shop:Support")

    assert denied[:2] == (0, "run pay-1: step 0 denied; go on with: agent-es resume pay-1\n")
    assert resumed[:2] == (0, "not this week\n")
    assert "approval_denied" in types(gated, "pay-1")


@pytest.mark.parametrize(("typed", "meant"), [("card", "card"), ('"card"', "card"), ("0", 0), ("null", None)])
def test_an_answer_is_json_or_else_a_text(typed: str, meant: object, asks: Shell) -> None:
    asks("steer", "ask-1", "be quick", "--by", "dana")

    answered = asks("answer", "ask-1", "0", typed, "--by", "dana")
    resumed = asks("resume", "ask-1", "--agent", "shop:Clerk")

    assert answered[:2] == (0, "run ask-1: step 0 answered; go on with: agent-es resume ask-1\n")
    assert json.loads(resumed[1]) == [meant, "be quick"]


def test_who_says_so_is_the_user_unless_it_is_said(asks: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "kim")

    assert told(asks, "pause", "ask-1")["paused"] == "by kim"


def test_nobody_who_says_so_is_not_taken_for_the_user(
    asks: Shell, gated: Shell, dump: Dump, assert_one_line: AssertOneLine
) -> None:
    before = dump()

    for words in (["pause", "ask-1"], ["approve", "pay-1", "0"], ["cancel", "ask-1"], ["steer", "ask-1", "x"]):
        status, _, err = asks(*words, "--by", "")

        assert status == 1
        assert_one_line(err)
        assert "say who says so" in err
    assert dump() == before


def test_a_doubt_is_settled_and_a_run_that_is_parked_is_sent_back(shell: Shell) -> None:
    shell("run", "shop:Doubter", "--goal", "pay", "--run-id", "doubt-1")
    listed = shell("inbox", "--kind", "doubt")[1]
    settled = shell("settle", "doubt-1", "0", "--did-not-happen", "--by", "dana")
    store = RunStore("sqlite:///agent_es.db")
    run = store.aggregate(_agent("Doubter"), "doubt-1")
    run.record_parked("nobody got anywhere")
    store.save(run)
    store.close()
    parked = told(shell, "inbox")
    requeued = shell("requeue", "doubt-1", "--by", "dana")

    assert "agent-es settle doubt-1 0 --happened | --did-not-happen" in listed
    assert settled[:2] == (0, "run doubt-1: step 0 did not happen; go on with: agent-es resume doubt-1\n")
    assert [(item["kind"], item["idx"], item["text"]) for item in parked] == [("parked", None, "nobody got anywhere")]
    assert parked[0]["commands"] == ["agent-es requeue doubt-1", "agent-es cancel doubt-1"]
    assert requeued[:2] == (0, "run doubt-1: requeued; go on with: agent-es resume doubt-1\n")
    assert told(shell, "inbox") == []


def _agent(name: str) -> Any:
    return getattr(sys.modules["shop"], name)


def test_a_run_that_is_done_is_undone(gated: Shell) -> None:
    gated("approve", "pay-1", "0", "--by", "dana")
    gated("resume", "pay-1", "--agent", "shop:Support")

    undone = gated("cancel", "pay-1", "--compensate", "--by", "dana", "--reason", "a mistake")
    resumed = gated("resume", "pay-1", "--agent", "shop:Support")
    state = told(gated, "show", "pay-1")

    assert undone[:2] == (
        0,
        "run pay-1: its finished effects are undone next; go on with: agent-es resume pay-1\n",
    )
    assert resumed[0] == 4
    assert (state["status"], [step["tool"] for step in state["steps"]]) == ("cancelled", ["refund", "charge"])


# Pausing.


def test_a_run_that_is_paused_says_so_and_a_resume_lets_it_go_on_and_drives_it(gated: Shell) -> None:
    paused = gated("pause", "pay-1", "--by", "dana", "--reason", "the bank is down")
    approved = gated("approve", "pay-1", "0", "--by", "dana")
    resumed = gated("resume", "pay-1", "--agent", "shop:Support", "--by", "dana")

    assert paused[0] == approved[0] == 0
    assert paused[1].startswith("run pay-1: paused; step 0 still waits for a yes; it is paused by dana: the bank is")
    assert "; it is paused by dana: the bank is down; go on with: agent-es resume pay-1" in approved[1]
    assert resumed[:2] == (0, "480.00 EUR paid for A\n")
    assert types(gated, "pay-1").count("resumed") == 1


def test_a_paused_run_whose_agent_is_not_named_is_left_to_workers(gated: Shell) -> None:
    gated("pause", "pay-1")

    resumed = gated("resume", "pay-1", "--by", "dana")

    assert resumed[:2] == (0, "run pay-1: goes on; step 0 still waits for a yes\n")
    assert told(gated, "show", "pay-1")["paused"] is None


def test_a_resume_of_a_run_that_is_not_paused_drives_it(gated: Shell) -> None:
    gated("approve", "pay-1", "0", "--by", "dana")

    resumed = gated("resume", "pay-1", "--agent", "shop:Support")

    assert resumed[:2] == (0, "480.00 EUR paid for A\n")
    assert "resumed" not in types(gated, "pay-1")


def test_a_resume_with_a_wrong_agent_leaves_a_paused_run_paused(
    gated: Shell, dump: Dump, assert_one_line: AssertOneLine
) -> None:
    gated("pause", "pay-1")
    Path("shop.py").write_text(AGENT.replace("class Support", "class Other"))
    before = dump()

    done = subprocess.run(  # in this process the class was there before
        [sys.executable, "-m", "agent_es", "resume", "pay-1", "--agent", "shop:Other"],
        capture_output=True,
        text=True,
        check=False,
    )
    nobody = gated("resume", "pay-1", "--agent", "shop:Nobody")

    assert (done.returncode, done.stdout) == (1, "")
    assert_one_line(done.stderr)
    assert "run pay-1 is of the agent 'Support'" in done.stderr
    assert (nobody[0], "shop has no 'Nobody'" in nobody[2]) == (1, True)
    assert dump() == before


# What does not count.


CONFLICTS: dict[str, tuple[list[str], str]] = {
    "a second no": (["deny", "done-1", "0", "--by", "dana"], "step 0 was approved by dana; nothing was recorded"),
    "a second yes": (
        ["approve", "done-1", "0", "--by", "ann-1"],
        "step 0 was approved by dana; nothing was recorded",
    ),
    "a second answer": (["answer", "done-2", "0", "card"], "step 0 was answered by dana; nothing was recorded"),
    "a person who may not": (["approve", "pay-1", "0", "--by", "bob"], "bob may not answer; dana or ann-* may"),
    "a no of a person who may not": (["deny", "pay-1", "0", "--by", "bob"], "bob may not answer"),
    "another digest": (["approve", "pay-1", "0", "--by", "dana", "--digest", "5e1d"], "and not about '5e1d'"),
    "another digest of a no": (["deny", "pay-1", "0", "--by", "dana", "--digest", "5e1d"], "look at it again"),
    "no JSON": (["approve", "pay-1", "0", "--by", "dana", "--args", "{amount}"], "--args is no JSON"),
    "no object": (["approve", "pay-1", "0", "--by", "dana", "--args", '["90.00"]'], "is no object; write it as in"),
    "null": (["approve", "pay-1", "0", "--by", "dana", "--args", "null"], "--args null is no object"),
    "arguments that do not fit": (
        ["approve", "pay-1", "0", "--by", "dana", "--agent", "shop:Support", "--args", '{"amount": "x"}'],
        "refund: ",
    ),
    "more than may be": (
        [
            "approve",
            "pay-1",
            "0",
            "--by",
            "dana",
            "--agent",
            "shop:Support",
            "--args",
            '{"order":"A","amount":"900"}',
        ],
        "outside of its envelope (limits: refund.amount)",
    ),
    "an agent without the tool": (
        ["approve", "pay-1", "0", "--by", "dana", "--agent", "shop:Clerk", "--args", '{"order":"A","amount":"9"}'],
        "--agent MODULE:CLASS",
    ),
    "no choice": (["answer", "ask-1", "0", "cash"], '"cash" is none of "card", 0, null'),
    "an answer to a gate": (["answer", "pay-1", "0", "card"], "asks nobody anything; it is refund, gated"),
    "a yes to a question": (["approve", "ask-1", "0"], "asks for nobody's yes"),
    "an unknown step": (["deny", "pay-1", "9"], "run pay-1 has no step 9"),
    "an unknown run": (["deny", "pay-9", "0"], "no run 'pay-9'"),
    "what is over": (["steer", "done-1", "hello"], "run done-1 is done"),
    "a pause of what is over": (["pause", "done-1"], "run done-1 is done"),
    "what is not parked": (["requeue", "ask-1"], "run ask-1 waits for person, it is not parked"),
    "what is not in doubt": (["settle", "pay-1", "0", "--happened"], "in doubt: none"),
}


@pytest.fixture
def several(gated: Shell, asks: Shell, started: Started) -> Shell:
    """A shell whose store has runs that wait, and two that are done: done-1 was approved, done-2 was answered."""
    started("done-1", "B")
    gated("approve", "done-1", "0", "--by", "dana")
    gated("resume", "done-1", "--agent", "shop:Support")
    asks("run", "shop:Clerk", "--goal", "ask", "--run-id", "done-2")
    asks("answer", "done-2", "0", "card", "--by", "dana")
    return gated


def test_what_does_not_count_is_one_line_and_changes_nothing(
    several: Shell, dump: Dump, assert_one_line: AssertOneLine
) -> None:
    before = dump()

    for name, (words, says) in CONFLICTS.items():
        status, out, err = several(*words)

        assert (status, out) == (1, ""), name
        assert_one_line(err)
        assert says in err, name
        assert dump() == before, name


def test_an_answer_after_its_time_is_one_line_and_changes_nothing(
    gated: Shell, dump: Dump, assert_one_line: AssertOneLine
) -> None:
    past, may = MovableClock(), Envelope.read(Path("may.json").read_text())  # where its clock stands is long ago
    with RunStore("sqlite:///agent_es.db", clock=past) as store:
        Runner(store, max_wait=0).run(_agent("Support"), run_id="old-1", goal="pay", input="C", envelope=may)
    before = dump()

    for command in ("approve", "deny"):
        status, _, err = gated(command, "old-1", "0", "--by", "dana")

        assert status == 1
        assert_one_line(err)
        assert "run old-1 step 0: the time to answer was over at 20" in err
    assert dump() == before


# Watching.


@contextmanager
def watching(folder: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "agent_es", "inbox", "--watch", *words]
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with (
        (folder / "err.txt").open("w") as err,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=err, text=True, env=usual) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def test_a_worker_tells_a_function_of_each_thing_that_waits_once(started: Started, shell: Shell) -> None:
    started("pay-1", "A")

    first = shell("worker", "shop", "--until-idle", "--notify", "shop:tell")
    again = shell("worker", "shop", "--until-idle", "--notify", "shop:tell")

    assert first[1].splitlines()[0] == "told: approval pay-1 0 A"
    assert "told" not in again[1]
    assert shell("worker", "shop", "--until-idle", "--notify", "shop:nothing")[0] == 1


@pytest.mark.crash
def test_a_watch_in_a_pipe_tells_each_thing_once_as_it_comes_until_it_is_interrupted(
    gated: Shell, started: Started, tmp_path: Path
) -> None:
    with watching(tmp_path, "--json", "--limit", "1") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        started("pay-2", "B")
        second = json.loads(process.stdout.readline())
        time.sleep(1.2)  # it looks again
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=20)

    assert [first["run_id"], second["run_id"], rest] == ["pay-1", "pay-2", ""]
    assert second["args"]["order"] == "B"
    assert process.returncode == 130
    assert "Traceback" not in (tmp_path / "err.txt").read_text()


def test_a_watch_in_a_pipe_is_text_where_no_json_is_asked_for(gated: Shell, asks: Shell, tmp_path: Path) -> None:
    with watching(tmp_path, "--kind", "question") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        process.send_signal(signal.SIGINT)
        process.wait(20)

    assert lines[0].startswith("question  run ask-1 step 0: ask_person {")
    assert [line for line in lines if "agent-es answer ask-1 0" in line] == lines[-1:]
    assert process.returncode == 130
