"""The command ``agent-es bench``: what it prints, what it takes, and what it says where a bar is missed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent_es.bench.command import perform
from agent_es.bench.measure import Bar, Figure, Report, Show

LATE = Report(
    (Figure("a step", 12.0, "ms"),),
    Bar("a step / floor", 3.0, "at most", 1.6),
    (Bar("steps/s", 9.0, "at least", 5.0),),
)


def bench(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "agent_es", "bench", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def late(folder: Path, show: Show, *, quick: bool) -> Report:
    """A workload that leaves a file, and misses one of its two bars."""
    assert list(folder.iterdir()) == []
    for n in show(range(2), "late"):
        (folder / f"{n}.db").touch()
    return LATE


@pytest.mark.crash
def test_one_workload_is_measured_as_json_and_leaves_no_file(tmp_path: Path) -> None:
    done = bench("--quick", "--only", "help", "--json", cwd=tmp_path)

    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    (bar,) = found["workloads"]["help"]["bars"]
    assert [*found["workloads"]] == ["help"]
    assert found["quick"]
    assert bar["value"] > found["workloads"]["help"]["figures"][0]["value"] > 0
    assert done.returncode == (0 if bar["is_met"] else 1)
    assert "help" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_workload_or_no_folder_is_wrong_usage(tmp_path: Path) -> None:
    unknown = bench("--only", "nothing", cwd=tmp_path)
    nowhere = bench("--only", "help", "--folder", "nowhere", cwd=tmp_path)

    assert (unknown.returncode, nowhere.returncode) == (2, 2)
    assert "'append', 'replay'" in unknown.stderr
    assert "nowhere" in nowhere.stderr


def test_a_bar_that_is_missed_is_named_on_stderr_and_ends_it_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = perform({"late": late}, tmp_path, quick=True)

    out, err = capsys.readouterr()
    assert status == 1
    assert err.splitlines()[-1] == "missed: late: a step / floor is 3.00, wanted at most 1.6"
    assert "MISSED: at most 1.6" in out
    assert "met: at least 5" in out
    assert list(tmp_path.iterdir()) == []


def test_a_report_says_of_which_commit_the_code_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[2]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)  # noqa: S607

    perform({"late": late}, tmp_path, quick=True, as_json=True)

    commit = json.loads(capsys.readouterr().out)["commit"]
    expected = head.stdout.strip() or None  # what was unpacked from an archive is of none
    assert (commit and commit.removesuffix("+changes")) == expected
