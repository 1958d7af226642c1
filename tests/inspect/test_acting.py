from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agent_es import RunStore, Status
from agent_es.inspector.acting import COMMANDS
from tests.inspect.conftest import PORT, TOKEN
from tests.inspect.zoo import HOSTILE, ShopRun, tell

Made = Callable[[str], None]


@pytest.fixture
def made(store: RunStore) -> Made:
    return lambda run_id: tell(store, run_id)


def test_a_yes_is_recorded_as_the_commands_would_in_the_name_of_who_started_the_inspector(
    client: httpx.Client, store: RunStore, made: Made
) -> None:
    made("approval-1")
    (item,) = store.inbox()
    page = client.get("/inbox").text
    assert f'name="digest" value="{item.digest}"' in page
    assert "480.00" in page

    answer = client.post("/runs/approval-1/approve", data={"idx": 1, "digest": item.digest, "reason": "it is right"})

    assert answer.status_code == 200
    assert answer.url.path == "/runs/approval-1"
    granted = store.journal("approval-1")[-1]
    assert (granted.type, granted.data["by"], granted.data["reason"]) == ("approval_granted", "dana", "it is right")


def test_a_yes_to_something_else_than_was_shown_records_nothing(
    client: httpx.Client, store: RunStore, made: Made
) -> None:
    made("approval-1")
    before = store.journal("approval-1")

    answer = client.post("/runs/approval-1/approve", data={"idx": 1, "digest": "0" * 64})

    assert answer.status_code in (400, 409)
    assert store.journal("approval-1") == before


def test_a_yes_with_other_arguments_is_the_persons(client: httpx.Client, store: RunStore, made: Made) -> None:
    made("approval-1")

    client.post(
        "/runs/approval-1/approve",
        data={"idx": 1, "args": '{"order_id": "ORD-3300", "amount": "90.00"}', "agent": ShopRun.agent_name},
    )

    assert store.load("approval-1").steps[1].args["amount"] == "90.00"


def test_a_no_is_told_to_the_decider_with_its_reason(client: httpx.Client, store: RunStore, made: Made) -> None:
    made("approval-1")
    (item,) = store.inbox()

    client.post("/runs/approval-1/deny", data={"idx": 1, "digest": item.digest, "reason": "not this one"})

    assert store.load("approval-1").steps[1].status == "failed"
    assert "not this one" in str(store.load("approval-1").steps[1].error)


@pytest.mark.parametrize(("outcome", "status"), [("happened", "done"), ("did_not_happen", "queued")])
def test_a_doubt_is_settled(client: httpx.Client, store: RunStore, made: Made, outcome: str, status: str) -> None:
    made("doubt-1")

    answer = client.post(
        "/runs/doubt-1/settle",
        data={"idx": 0, "outcome": outcome, "result": '"m-17"', "force": "yes", "then": "inbox"},
    )

    assert (answer.status_code, answer.url.path) == (200, "/inbox")
    (settled,) = [entry.data for entry in store.journal("doubt-1") if entry.type == "doubt_settled"]
    assert (settled["by"], settled["outcome"]) == ("dana", outcome)
    assert store.load("doubt-1").steps[0].status == status


@pytest.mark.parametrize(
    ("said", "value"), [({"choice": '"the new one"'}, "the new one"), ({"answer": "the old one"}, "the old one")]
)
def test_a_question_is_answered(
    client: httpx.Client, store: RunStore, made: Made, said: dict[str, str], value: str
) -> None:
    made("asking-1")

    client.post("/runs/asking-1/answer", data={"idx": 0, **said})

    assert store.load("asking-1").steps[0].result["answer"] == value


def test_a_signal_a_word_a_pause_and_a_cancel_are_recorded(client: httpx.Client, store: RunStore, made: Made) -> None:
    made("awaits-1")

    for command, data in [
        ("steer", {"text": HOSTILE.replace("\0", "")}),
        ("pause", {"reason": "we look into it"}),
        ("resume", {}),
        ("signal", {"name": "paid", "payload": '{"amount": "180.00"}', "delivery_id": "evt-1"}),
        ("cancel", {"reason": "enough"}),
    ]:
        assert client.post(f"/runs/awaits-1/{command}", data=data).status_code == 200, command

    said = [entry.type for entry in store.journal("awaits-1")]
    assert [kind for kind in said if kind in ("steered", "paused", "resumed", "signal_received", "cancelled")] == [
        "steered", "paused", "resumed", "signal_received", "cancelled",
    ]  # fmt: skip
    assert store.load("awaits-1").status is Status.CANCELLED


@pytest.mark.parametrize(
    ("command", "data"),
    [
        ("approve", {"idx": "0"}),
        ("approve", {"idx": "-1"}),
        ("approve", {"idx": "9" * 40}),
        ("approve", {"idx": "0", "args": "[1]"}),
        ("approve", {"idx": "0", "args": "{"}),
        ("approve", {}),
        ("deny", {"idx": "x"}),
        ("answer", {"idx": "7", "answer": "x"}),
        ("settle", {"idx": "0"}),
        ("settle", {"idx": "0", "outcome": "perhaps"}),
        ("settle", {"idx": "0", "outcome": "happened", "result": "{"}),
        ("signal", {"name": ""}),
        ("signal", {"name": "paid", "payload": "{"}),
        ("signal", {"name": "ended:x"}),
        ("steer", {"text": ""}),
        ("resume", {}),
        ("requeue", {}),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_recorded(
    client: httpx.Client, store: RunStore, made: Made, command: str, data: dict[str, Any]
) -> None:
    made("awaits-1")
    before = store.journal("awaits-1")

    answer = client.post(f"/runs/awaits-1/{command}", data=data)

    assert answer.status_code in (400, 404, 409)
    assert "That did not work" in answer.text
    assert store.journal("awaits-1") == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_that_is_not_there_is_not_found(client: httpx.Client, store: RunStore, command: str) -> None:
    data = {"idx": 0, "text": "x", "name": "x", "reason": "x", "outcome": "happened", "answer": "x"}

    answer = client.post(f"/runs/nobody/{command}", data=data)

    assert answer.status_code == 404
    assert store.count() == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_an_inspector_that_only_reads_has_no_commands_and_shows_no_buttons(
    stranger: Callable[..., httpx.Client], store: RunStore, made: Made, command: str
) -> None:
    made("approval-1")
    before = store.journal("approval-1")
    reader = stranger(is_read_only=True)
    reader.headers.update({"Authorization": f"Bearer {TOKEN}", "Origin": f"http://127.0.0.1:{PORT}"})

    answer = reader.post(f"/runs/approval-1/{command}", data={"idx": 1, "text": "x"})
    pages = reader.get("/inbox").text + reader.get("/runs/approval-1").text

    assert answer.status_code in (404, 405)
    assert 'method="post"' not in pages
    assert "agent-es approve approval-1 1" in pages
    assert store.journal("approval-1") == before


@pytest.mark.parametrize("run_id", ["refunds/2026/ORD 1", "a?b#c", "ünï", "50%", "run 1"])
def test_any_run_id_has_a_page_and_commands(client: httpx.Client, store: RunStore, run_id: str) -> None:
    store.start(ShopRun, run_id=run_id, goal="g")
    listed = client.get("/").text
    link = listed.split('href="/runs/', 1)[1].split('"', 1)[0]

    page = client.get(f"/runs/{link}")
    client.post(f"/runs/{link}/steer", data={"text": "hurry"})

    assert page.status_code == 200
    assert store.load(run_id).messages[0].text == "hurry"
