"""Whether an agent survives: every place a worker can die in, tried.

Rule 1: exhaustive over the places of one worker at a time; what is beyond that is drawn, and counted.
Rule 2: schedules are tried in the order of their crashes, so the first that fails is a smallest one.
Rule 3: the same seed tries the same schedules.
"""

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agent_es.errors import BadScenario
from agent_es.testing.journey import Fate, Kill, Schedule, many, travel, where
from agent_es.testing.scenario import Ending, Scenario, scratch

NOT_COUNTED = "effects not counted (the world has no effects())"
DEEP = 5
"""At most so many crashes has a schedule that is drawn once all the others were tried."""

OnRun = Callable[[int, int], object]
"""Is told how many runs are done, and how many there will be as far as is known."""


@dataclass(frozen=True)
class Failure:
    """A run in which something broke."""

    schedule: Schedule
    seed: int
    deaths: Sequence[str]
    problems: Sequence[str]
    journal: Sequence[str]

    def __str__(self) -> str:
        lines = [
            f"  worker {n} dies at place {at}: {death}"
            for n, (at, death) in enumerate(zip(self.schedule, self.deaths, strict=False), start=1)
        ]
        again = ",".join(map(str, self.schedule)) + (f" --seed {self.seed}" if self.seed else "")
        if lines:
            lines.append(f"  lived through again by: --at {again}")
        lines = lines or [f"  {death}" for death in self.deaths] or ["  no worker dies"]
        lines += [f"  * {problem}" for problem in self.problems]
        lines += ["  its journal:", *(f"    {line}" for line in self.journal)]
        return "\n".join(lines)


@dataclass
class Report:
    """What living through a scenario came to."""

    points: int = 0
    """Places in which the worker of a run without a crash can die."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """How many of them are around requests, around commits, and marked in bodies."""
    runs: int = 0
    """Runs that were lived through, each from its start to its end."""
    crashes: int = 0
    """Workers that died."""
    double: int = 0
    """Effects that happened more often than without a crash."""
    lost: int = 0
    """Effects that never happened though the run ended, and is not in doubt."""
    in_doubt: int = 0
    """Runs that stopped and said that they do not know."""
    counted: bool = True
    """Whether the world says what happened in it."""
    calm: str = ""
    """Where the run stands without a crash."""
    broken: int = 0
    """Runs in which an invariant broke."""
    drawn: int = 0
    """Runs of which something was drawn: a sample, another order of bodies, a schedule deeper than all others."""
    of: int = 0
    """Schedules that the samples were drawn from; 0 where nothing was left out."""
    all_of: int = 0
    """Every schedule of up to so many crashes was tried."""
    seed: int = 0
    seconds: float = 0.0
    smallest: Failure | None = None
    """The failing run with the fewest crashes, the earliest of them."""

    def __str__(self) -> str:
        counts = f"{self.double:,} double, {self.lost:,} lost" if self.counted else NOT_COUNTED
        return f"{many(self.crashes, 'crash')} in {many(self.runs, 'run')}: {counts}, {self.in_doubt:,} in doubt"

    def told(self) -> str:
        """Return the whole report, for people."""
        around = {"request": "around requests", "commit": "around commits", "mark": "marked"}
        kinds = ", ".join(f"{self.kinds.get(kind, 0)} {how}" for kind, how in around.items())
        lines = [str(self)]
        if self.kinds:
            places = f"{many(self.points, 'place')} to die in ({kinds})"
            lines.append(f"{places}; {self._tried()}; {self.seconds:.1f} s")
        if self.calm not in ("", "done"):
            lines.append(f"without a crash the run is {self.calm}")
        if self.smallest is not None:
            lines.append(f"BROKEN in {self.broken:,} of {many(self.runs, 'run')}; one with the fewest crashes:")
            lines.append(str(self.smallest))
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the report, for programs."""
        return asdict(self)

    def __add__(self, other: "Report") -> "Report":
        """Add up two reports, for a summary."""
        names = ("points", "runs", "crashes", "double", "lost", "in_doubt", "broken", "drawn", "of", "seconds")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        counted = self.counted and other.counted
        return replace(self, **sums, counted=counted, smallest=self.smallest or other.smallest)

    def _tried(self) -> str:
        if self.of:
            return f"{self.drawn:,} of {self.of:,} schedules tried, drawn with seed {self.seed}"
        deep = {0: "none tried" if self.broken else "not each tried", 1: "each tried"}
        deep[2] = "each tried, and each of every recovery"
        more = f"; {self.drawn:,} further ones drawn with seed {self.seed}" if self.drawn else ""
        return deep.get(self.all_of, f"each tried, {self.all_of} crashes deep") + more


class DidNotSurvive(AssertionError):
    """An agent did not survive; ``report`` says where."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.told())
        self.report = report


def survives_every_crash(
    scenario: Scenario,
    invariant: Callable[[Ending], object] | None = None,
    *,
    crashes: int = 1,
    sample: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    on_run: OnRun = lambda _, __: None,
) -> Report:
    """Run a scenario once without a crash, then once for each place in which its worker can die.

    ``crashes=2`` kills each recovery at each of its places too.  ``sample`` bounds the runs per number of crashes.
    ``seconds`` bounds the time; where some is left once everything was tried, deeper schedules are drawn with
    ``seed``.  Returns the report; raises ``DidNotSurvive`` with it where an invariant of the scenario or of the
    library broke.
    """
    return survived(
        fuzz(scenario, invariant, crashes=crashes, sample=sample, seconds=seconds, seed=seed, on_run=on_run)
    )


def survived(report: Report) -> Report:
    """Return the report; raise ``DidNotSurvive`` where something broke."""
    __tracebackhide__ = True
    if report.broken:
        raise DidNotSurvive(report)
    return report


def fuzz(
    scenario: Scenario,
    invariant: Callable[[Ending], object] | None = None,
    *,
    crashes: int = 1,
    only: Schedule | None = None,
    sample: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    kill: Kill | None = None,
    on_run: OnRun = lambda _, __: None,
) -> Report:
    """Do what ``survives_every_crash`` does, and return the report whatever broke.

    It goes no deeper once something broke: with fewer crashes there is less to understand.  ``kill`` lives the lives
    that are to end early, where a process of their own is to be killed.
    """
    if crashes < 1:
        raise BadScenario(f"crashes={crashes}: a worker must be allowed to die once")
    if invariant is not None:
        scenario = replace(scenario, invariant=invariant)
    trial = _Trial(scenario, seed, seconds, kill, on_run)
    with tempfile.TemporaryDirectory(prefix="agent-es-fuzz-", dir=scratch()) as folder:
        trial.folder = Path(folder)
        if only is not None:
            trial.try_one(only)
        else:
            trial.try_up_to(crashes, sample)
    trial.report.seconds = time.monotonic() - trial.began
    return trial.report


class _Trial:
    """One scenario on trial."""

    folder: Path

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        seconds: float | None,
        kill: Kill | None,
        on_run: OnRun,
    ) -> None:
        self.report = Report(seed=seed)
        self.began = time.monotonic()
        self._scenario = scenario
        self._random = random.Random(seed)  # noqa: S311  # schedules to reproduce, not a secret
        self._until = None if seconds is None else self.began + seconds
        self._kill = kill
        self._on_run = on_run
        self._calm: Fate | None = None
        self._recoveries: dict[Schedule, int] = {}
        """How many places the last worker of a schedule reached, for the schedules tried last."""

    def try_one(self, schedule: Schedule) -> None:
        """Try one schedule, beside the run without a crash."""
        self._travel((), self.report.seed)
        fate = self._travel(schedule, self.report.seed)
        if len(fate.deaths) < len(schedule) and not fate.problems:
            died = len(fate.deaths)
            raise BadScenario(
                f"worker {died + 1} came to its end before its place {schedule[died]}; "
                f"a worker that nobody kills has {self.report.points} places, the first is 1"
            )

    def try_up_to(self, crashes: int, sample: int | None) -> None:
        """Try the schedules of up to so many crashes; where a time was given and is left, draw deeper ones."""
        for depth in range(crashes + 1):
            if not ((depth == 0 or self._goes_on) and self._try_all(depth, sample)):
                break
            if depth == 1 and sample is None and self._calm is not None and self._calm.choices:
                self._try_in_another_order()
        if self._until is not None:
            self._draw()

    @property
    def _goes_on(self) -> bool:
        return not self.report.broken and (self._until is None or time.monotonic() < self._until)

    def _try_all(self, depth: int, sample: int | None) -> bool:
        """Try every schedule of that many crashes, or a sample; say whether that was all of them."""
        schedules = [*self._schedules(depth)]
        complete = sample is None or len(schedules) <= sample
        if not complete:
            self.report.of += len(schedules)
            schedules = sorted(self._random.sample(schedules, sample or 0))
            self.report.drawn += len(schedules)
        self._recoveries = {}
        total = self.report.runs + len(schedules)
        for schedule in schedules:
            if depth and self._until is not None and time.monotonic() > self._until:
                return False
            self._recoveries[schedule] = len(self._travel(schedule, self.report.seed).places)
            self._on_run(self.report.runs, total)
        if complete and depth:
            self.report.all_of = depth
        return complete or sample is not None

    def _try_in_another_order(self) -> None:
        """Try each schedule of one crash again, where bodies of one turn could have ended in another order."""
        for schedule in [*self._recoveries]:
            if not self._goes_on:
                return
            self.report.drawn += 1
            self._travel(schedule, self.report.seed + 1)
            self._on_run(self.report.runs, self.report.runs)

    def _draw(self) -> None:
        """Draw schedules, and orders of bodies, until the time is over or something breaks."""
        while self._goes_on:
            crashes = self._random.randint(1, DEEP)
            schedule = tuple(self._random.randint(1, self.report.points) for _ in range(crashes))
            seed = self._random.randrange(1 << 16)
            self.report.drawn += 1
            fate = self._travel(schedule, seed)
            self._on_run(self.report.runs, self.report.runs)
            if fate.problems:
                self._shrink(schedule, seed)

    def _shrink(self, schedule: Schedule, seed: int) -> None:
        """Leave out crashes for as long as it fails without them."""
        for left_out in range(len(schedule)):
            shorter = schedule[:left_out] + schedule[left_out + 1 :]
            fate = self._travel(shorter, seed)
            if fate.problems:
                self.report.smallest = _failure(fate)
                self._shrink(shorter, seed)
                return

    def _schedules(self, depth: int) -> Iterator[Schedule]:
        if depth == 0:
            yield ()
        for schedule, places in self._recoveries.items():
            yield from ((*schedule, at) for at in range(1, places + 1))

    def _travel(self, schedule: Schedule, seed: int) -> Fate:
        report = self.report
        folder = self.folder / str(report.runs)
        folder.mkdir()
        fate = travel(self._scenario, folder, schedule, seed=seed, calm=self._calm, kill=self._kill)
        if self._calm is None:
            self._calm = fate
            report.points = len(fate.places)
            report.kinds = dict(Counter(place.kind for place in fate.places))
            report.calm = "" if fate.state is None else where(fate.state)
            report.counted = fate.counted
        shutil.rmtree(folder)
        report.runs += 1
        report.crashes += len(fate.deaths)
        report.double += fate.double
        report.lost += fate.lost
        report.in_doubt += fate.in_doubt
        if fate.problems:
            report.broken += 1
            if report.smallest is None:
                report.smallest = _failure(fate)
        return fate


def _failure(fate: Fate) -> Failure:
    return Failure(fate.schedule, fate.seed, fate.deaths, fate.problems, [str(entry) for entry in fate.journal])
