"""The pytest plugin: the fixture ``crash_kit``, ``--crash-points``, and a line that sums it up.

Rule: every pytest of whoever has the package installed loads it, so it imports the kit only where it is used.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import pytest

from agent_es import testing

if TYPE_CHECKING:
    from agent_es.testing import Ending, Report, Scenario

SAMPLE = 48
"""How many runs per number of crashes a sample takes."""

_PROPERTY = "agent_es_crash_kit"
"""Where a test notes its reports: properties travel with its result, out of the processes of pytest-xdist too."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("agent_es", "agents that survive")
    group.addoption(
        "--crash-points",
        choices=("sample", "all"),
        default="sample",
        help=f"where crash_kit kills: everywhere, or in {SAMPLE} runs per number of crashes (the default)",
    )
    group.addoption("--crash-seed", type=int, default=0, help="what the samples of crash_kit are drawn with")


@dataclass(frozen=True)
class CrashKit:
    """The crash kit with this session's options; each test's reports end in the summary."""

    points: Literal["sample", "all"]
    seed: int
    note: Callable[["Report"], object]
    size: int = SAMPLE
    """How many runs per number of crashes a sample takes: ``replace(crash_kit, size=12)`` for what is tried often."""

    def survives(
        self,
        scenario: "Scenario",
        invariant: "Callable[[Ending], object] | None" = None,
        *,
        crashes: int = 1,
        seconds: float | None = None,
    ) -> "Report":
        """Do what ``survives_every_crash`` does, at all places or at a sample of them."""
        __tracebackhide__ = True
        report = testing.fuzz(
            scenario, invariant, crashes=crashes, sample=self._sample, seconds=seconds, seed=self.seed
        )
        return self._noted(report)

    def survives_kills(self, name: str, *, crashes: int = 1, seconds: float | None = None) -> "Report":
        """Do what ``survives_every_kill`` does, at all places or at a sample of them."""
        __tracebackhide__ = True
        report = testing.fuzz_with_kills(name, crashes=crashes, sample=self._sample, seconds=seconds, seed=self.seed)
        return self._noted(report)

    @property
    def _sample(self) -> int | None:
        return None if self.points == "all" else self.size

    def _noted(self, report: "Report") -> "Report":
        __tracebackhide__ = True
        self.note(report)
        return testing.survived(report)


@pytest.fixture
def crash_kit(request: pytest.FixtureRequest) -> CrashKit:
    """Kill an agent at its crash points: ``crash_kit.survives(scenario)``."""

    def note(report: "Report") -> None:
        counted = {each.name: getattr(report, each.name) for each in fields(report) if each.type in (int, bool)}
        request.node.user_properties.append((_PROPERTY, counted))

    option = request.config.getoption
    return CrashKit(option("crash_points"), option("crash_seed"), note)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what the crash kit came to, in one line."""
    tests = [
        test for tests in terminalreporter.stats.values() for test in tests if isinstance(test, pytest.TestReport)
    ]
    noted = [
        counted
        for test in tests
        if test.when == "call"
        for name, counted in test.user_properties
        if name == _PROPERTY
    ]
    if noted:
        total = sum((testing.Report(**counted) for counted in noted), testing.Report())  # type: ignore[arg-type]
        terminalreporter.write_line(f"crash kit: {total}", bold=True)
