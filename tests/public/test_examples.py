"""The examples run as they are, offline, and print what a reader can follow."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text())
SLOW = {"durable_agent"}
"""What starts many processes, each of which imports a framework."""
RUN = [pytest.param(path, id=path.stem, marks=[pytest.mark.crash] if path.stem in SLOW else []) for path in PROGRAMS]
A_SCREEN = 60


@cache
def said_twice(name: str) -> tuple[list[str], list[str]]:
    """What an example says, and what it says when it runs again on the same files."""
    with TemporaryDirectory() as folder:
        return run(name, folder), run(name, folder)


def run(name: str, folder: str) -> list[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_an_example_fits_on_a_screen_and_says_how_to_run_it(program: Path) -> None:
    text = program.read_text()

    assert len(text.splitlines()) < A_SCREEN
    assert f"Run it: python examples/{program.name} [FOLDER]" in text


@pytest.mark.crash
@pytest.mark.parametrize("program", RUN)
def test_an_example_comes_to_the_same_when_it_runs_again_on_its_files(program: Path) -> None:
    first, again = said_twice(program.name)

    assert again[-1] == first[-1]


def test_the_refund_is_killed_and_paid_once() -> None:
    said, _ = said_twice("refund.py")

    assert said[0] == "the worker ended with -9; its last event is llm_decided"
    assert said[1] == "ledger: {'ORD-3300': '180.00'}"
    assert said[-1] == "ledger: {'ORD-3300': '180.00'}, keys sent: {'ORD-3300:refund:180.00': 2}"


def test_the_research_starts_all_three_and_tells_them_in_the_order_of_the_questions() -> None:
    said, _ = said_twice("research.py")

    did = [line.split(": ")[1] for line in said[:6]]
    assert did[:3] == ["step 0 attempted", "step 1 attempted", "step 2 attempted"]
    assert sorted(did[3:]) == ["step 0 completed", "step 1 completed", "step 2 completed"]
    assert said[-1].startswith("done, 3 steps: The light was lit in 1871. The keeper")


@pytest.mark.crash
def test_the_loop_takes_a_run_up_where_an_earlier_shift_left_it() -> None:
    said, _ = said_twice("own_loop.py")

    assert [line for line in said if line.startswith("a shift")] == [
        "a shift finds the run pending, with 0 steps",
        "a shift finds the run running, with 3 steps",
    ]
    assert [line for line in said if "asked" in line] == [f"  asked what comes after {n} tickets" for n in range(4)]
    assert said[-1] == "done: printer on fire, please reset my password, thank you"


@pytest.mark.crash
def test_the_read_model_adds_each_refund_once() -> None:
    first, again = said_twice("refund_totals.py")

    assert first == ["applied 18 events", "refunded: 600.00"]
    assert again == ["applied 0 events", "refunded: 600.00"]


@pytest.mark.crash
def test_an_agent_of_pydantic_ai_is_killed_and_goes_on_by_the_same_line() -> None:
    first, again = said_twice("durable_agent.py")

    asked = [line for line in first if "asked" in line]
    assert asked == [f"the model is asked for line {n}" for n in range(4)]
    assert "the first process ended with -9" in first
    assert first[-1] == "ledger: {'ORD-3300': '180.00'}, notes: 'ORD-3300 is refunded\\n'"
    assert not [line for line in again if "asked" in line]
