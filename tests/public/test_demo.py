"""The demo, as a newcomer and as a program see it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def demo(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "agent_es", "demo", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    done = demo("--json")
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_a_naive_restart_pays_twice_and_the_durable_resume_once(told: dict[str, Any]) -> None:
    assert told["killed_by"] == 9
    assert told["naive"]["ledger"] == {"ORD-3300": "360.00"}
    assert told["durable"]["ledger"] == {"ORD-3300": "180.00"}
    assert told["durable"]["refunds"] == 1
    assert told["durable"]["keystore"] == {"ORD-3300:refund:180.00": 2}


def test_the_dead_worker_leaves_four_events_and_the_money_moved(told: dict[str, Any]) -> None:
    left = told["crashed"]
    assert [event["type"] for event in left["journal"]] == [
        "run_started",
        "llm_decided",
        "tool_result",
        "llm_decided",
    ]
    assert left["ledger"] == {"ORD-3300": "180.00"}


def test_the_journal_ends_at_seq_6_with_step_1_decided_twice(told: dict[str, Any]) -> None:
    journal = told["durable"]["journal"]
    assert [event["seq"] for event in journal] == list(range(7))
    assert [event["ts"] for event in journal] == [f"2026-07-05T10:00:0{n}Z" for n in range(7)]
    assert [event["seq"] for event in journal if event["data"].get("args") and event["data"]["idx"] == 1] == [3, 4]
    assert journal[:4] == told["crashed"]["journal"]


@pytest.mark.crash
def test_the_journals_of_two_demos_are_byte_identical(told: dict[str, Any], tmp_path: Path) -> None:
    kept = demo("--dir", str(tmp_path / "kept"))
    assert kept.returncode == 0, kept.stderr

    command = [sys.executable, "-m", "agent_es", "journal", "run-7f3a", "--store", str(tmp_path / "kept/runs.db")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    assert lines == [json.dumps(event, sort_keys=True, ensure_ascii=False) for event in told["durable"]["journal"]]


def test_the_demo_refuses_a_folder_that_holds_another_story(tmp_path: Path) -> None:
    (tmp_path / "runs.db").touch()

    done = demo("--dir", str(tmp_path))

    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "name an empty folder" in done.stderr


def test_the_readme_shows_what_the_demo_prints() -> None:
    shown = (ROOT / "README.md").read_text().split("```text\n")[1].split("```")[0]

    assert demo().stdout == shown
