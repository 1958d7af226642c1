"""The demo and the collection with a model: real processes, which ask a stub by its name and its URL."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.models.script import Answer, Call, Script
from tests.models.stub import Stub

ROOT = Path(__file__).parents[2]
POLICY = Answer("", (Call("search_policy", '{"query": "refund"}'),))
REFUND = Answer("", (Call("process_refund", '{"order_id": "ORD-3300", "amount": 180}'),))
DONE = Answer("It is refunded.")


def program(stub: Stub, *command: str, form: str = "openai-chat") -> "subprocess.CompletedProcess[str]":
    speaks = {"AGENT_ES_MODEL": f"{form}:gpt-5", "OPENAI_BASE_URL": stub.url, "OPENAI_API_KEY": "none"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", *command],
        cwd=ROOT,
        env={**os.environ, **speaks},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.crash
@pytest.mark.parametrize("form", ["openai-chat", "openai-responses"])
def test_the_demo_tells_its_story_with_a_model(form: str, new_stub: Callable[[Script], Stub]) -> None:
    stub = new_stub([POLICY, REFUND, DONE])

    done = program(stub, "agent_es", "demo", "--json", form=form)

    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["naive"]["ledger"] == {"ORD-3300": "360.00"}
    assert told["durable"]["ledger"] == {"ORD-3300": "180.00"}
    assert (told["durable"]["answer"], told["durable"]["refunds"]) == ("It is refunded.", 1)
    assert [request.got for request in stub.requests] == ["answer 0"] * 3


@pytest.mark.crash
def test_a_model_that_refunds_nothing_is_no_story(new_stub: Callable[[Script], Stub]) -> None:
    done = program(new_stub([Answer("I would rather not.")]), "agent_es", "demo")

    assert done.returncode == 1
    assert "the model openai-chat:gpt-5 did not call process_refund" in done.stderr
    assert "I would rather not." in done.stderr


@pytest.mark.crash
def test_a_model_that_cannot_be_had_is_told_before_anything_begins(new_stub: Callable[[Script], Stub]) -> None:
    done = program(new_stub([]), "agent_es", "demo", form="nobody")

    assert done.returncode == 1
    assert "error: the model 'nobody:gpt-5' cannot be had" in done.stderr


@pytest.mark.crash
def test_a_model_collects_an_invoice(new_stub: Callable[[Script], Stub], tmp_path: Path) -> None:
    remind = Call("remind", '{"address": "ann@example.com", "text": "Please pay 480.00."}')
    wait = Call("wait_for", '{"signal": "paid", "seconds": 604800}')
    book = Call("book_payment", '{"number": "INV-1042", "paid": {"event_id": "evt-77", "amount": "480.00"}}')
    calls = [Call("find_overdue", '{"number": "INV-1042"}'), remind, wait, remind, wait, book]
    stub = new_stub([*(Answer("", (call,)) for call in calls), Answer("It is paid.")])

    played = program(stub, "examples.collections", str(tmp_path), "--killed")

    assert played.returncode == 0, played.stderr
    assert played.stdout.splitlines()[-2:] == ["2 mails, booked: evt-77", "done: It is paid."]
    assert [request.got for request in stub.requests] == ["answer 0"] * 7
