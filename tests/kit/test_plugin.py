"""The pytest plugin, in a project of somebody who has agent_es installed: options, a report, one line in sum."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_es.testing.plugin import SAMPLE

SHOP = """
from decimal import Decimal

from agent_es import AgentRun, CallTool, Effect, Finish, ScriptedDecider, ToolContext, tool
from agent_es.testing import PaymentProvider, Scenario


class Honest(AgentRun):
    decider = ScriptedDecider([CallTool("refund", {"order_id": "ORD-3300", "amount": 180}), Finish("refunded")])

    @tool(effect=Effect.IDEMPOTENT)
    def refund(self, ctx: ToolContext[PaymentProvider], order_id: str, amount: Decimal) -> dict[str, str]:
        return ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)


class Forgetful(Honest):
    @tool(effect=Effect.IDEMPOTENT)
    def refund(self, ctx: ToolContext[PaymentProvider], order_id: str, amount: Decimal) -> dict[str, str]:
        return ctx.deps.refund(order_id, amount, key=None)


def world(folder):
    return PaymentProvider(folder / "provider.db")


honest = Scenario(agent=Honest, world=world)
forgetful = Scenario(agent=Forgetful, world=world)
"""
SURVIVES = """
from shop import honest

def test_it_survives(crash_kit):
    report = crash_kit.survives(honest)
    print("tried", report.runs, "of", report.points, "drawn with", report.seed)
"""
PLACES = 28
"""Places to die in of the shop's run."""
SUM = "crash kit: "


@dataclass(frozen=True)
class Said:
    """What a pytest of their own printed."""

    status: int
    lines: list[str]

    @property
    def sums(self) -> list[str]:
        return [line.removeprefix(SUM) for line in self.lines if line.startswith(SUM)]

    def one(self, pattern: str) -> re.Match[str]:
        """The one line that matches."""
        (found,) = (match for line in self.lines if (match := re.search(pattern, line)))
        return found


Theirs = Callable[..., Said]


@pytest.fixture
def theirs(tmp_path: Path) -> Theirs:
    """Run pytest on a test module in a project of its own, beside ``shop.py``."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "shop.py").write_text(SHOP)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    def run(text: str, *options: str) -> Said:
        (tmp_path / "test_shop.py").write_text(text)
        without = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
        command = [sys.executable, "-m", "pytest", "-q", "-rP", *without, *options]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
        return Said(done.returncode, done.stdout.splitlines())

    return run


@pytest.mark.crash
def test_by_itself_it_takes_a_sample_of_each_depth_and_sums_it_up_in_one_line(theirs: Theirs) -> None:
    said = theirs(SURVIVES.replace("survives(honest)", "survives(honest, crashes=2)"))

    runs = int(said.one(rf"tried (\d+) of {PLACES} drawn with 0")[1])
    assert said.status == 0
    assert runs == 1 + PLACES + SAMPLE
    assert said.sums == [f"{PLACES + 2 * SAMPLE} crashes in {runs} runs: 0 double, 0 lost, 0 in doubt"]


@pytest.mark.crash
def test_all_crash_points_are_tried_where_that_is_asked_for_and_a_seed_reaches_the_kit(theirs: Theirs) -> None:
    said = theirs(SURVIVES, "--crash-points=all", "--crash-seed=7")

    assert said.status == 0
    assert said.one(f"tried {PLACES + 1} of {PLACES} drawn with 7")
    assert said.sums == [f"{PLACES} crashes in {PLACES + 1} runs: 0 double, 0 lost, 0 in doubt"]


@pytest.mark.crash
def test_a_failing_test_shows_the_report_and_is_summed_up_with_the_others(theirs: Theirs) -> None:
    said = theirs(
        """
        from shop import forgetful, honest

        def test_it_does_not_survive(crash_kit):
            crash_kit.survives(forgetful)

        def test_it_survives(crash_kit):
            crash_kit.survives(honest)
        """.replace("\n        ", "\n"),
        "--crash-points=all",
    )

    assert said.status == 1
    assert said.one(rf"^E .*DidNotSurvive: {PLACES} crashes in {PLACES + 1} runs: (\d+) double")
    assert said.one(r"^E +worker 1 dies at place \d+: the money has moved, in the body of step 0 \(refund\)")
    assert said.one(r"^E .*double: \('ORD-3300', '180.00'\)")
    assert said.one('^E .*"type": "run_started"')
    (total,) = said.sums
    assert re.match(rf"{2 * PLACES} crashes in {2 * PLACES + 2} runs: [1-9]\d* double, 0 lost", total)


def test_an_invariant_of_the_test_takes_the_place_of_the_scenarios(theirs: Theirs) -> None:
    said = theirs(
        """
        from shop import honest

        def never(ending):
            return False

        def test_it_survives(crash_kit):
            crash_kit.survives(honest, never)
        """.replace("\n        ", "\n")
    )

    assert said.status == 1
    assert said.one("^E .*the invariant never does not hold")
    assert said.sums == ["0 crashes in 1 run: 0 double, 0 lost, 0 in doubt"]


@pytest.mark.crash
def test_processes_are_killed_through_it_too(theirs: Theirs) -> None:
    said = theirs(
        """
        from dataclasses import replace

        def test_it_survives(crash_kit):
            replace(crash_kit, size=1).survives_kills("shop:honest")
        """.replace("\n        ", "\n")
    )

    assert said.status == 0
    assert said.sums == ["1 crash in 2 runs: 0 double, 0 lost, 0 in doubt"]


def test_a_session_that_does_not_use_it_is_told_nothing_and_imports_nothing_of_the_kit(theirs: Theirs) -> None:
    said = theirs(
        """
        import sys

        def test_nothing():
            heavy = ("sqlalchemy", "pydantic", "agent_es.testing.survival")
            print("loaded", [name for name in heavy if name in sys.modules])
        """.replace("\n        ", "\n")
    )

    assert said.one(r"^loaded \[\]$")
    assert (said.status, said.sums) == (0, [])


def test_another_choice_of_crash_points_is_wrong_usage(theirs: Theirs) -> None:
    said = theirs(SURVIVES, "--crash-points=some")

    assert said.status == pytest.ExitCode.USAGE_ERROR
    assert said.sums == []
