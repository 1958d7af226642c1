"""Where a mutant must prove itself: scenarios that are crashed everywhere, and a machine; a program of its own.

    PYTHONPATH=COPY python -m benchmarks.proving_ground COPY [TRIAL ...]

Rule 1: it judges the package that lies in COPY, and refuses to judge another.
Rule 2: it stops at the first trial in which the kit reports that something broke.
Rule 3: an error that is not of the library's own is no report of the kit: whoever meets it is broken, not killed.
"""

import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import agent_es
from agent_es import RunStore, Step, errors
from agent_es.demo import scenario as demo
from agent_es.testing import (
    DidNotSurvive,
    RunMachine,
    Scenario,
    survives_every_act,
    survives_every_crash,
    survives_every_fault,
    survives_every_signal,
    survives_overtaking,
)
from examples.approving import approved, edited, expired, given, late, only_with_a_yes
from examples.every_effect import bad_day, crowd, errands, glance, moody, twins
from examples.remembering import remembering
from examples.waiting import asking, instalments, one_booking, reminder

DEEP_RUNS = 100
"""How many runs with two crashes are drawn, where one crash is not enough."""

FEW = settings(
    max_examples=30,
    stateful_step_count=25,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)

STOPPED = re.compile(r"(?:.*: )?a worker stopped with (\w+)|the last worker, alone, stopped with (\w+)")


class Crowd(RunMachine):
    """Several workers on one run, whose stores fail."""

    scenario = crowd


class Reminded(RunMachine):
    """The same, while a payment comes or does not, and time goes by."""

    scenario = replace(reminder, invariant=one_booking)  # the clock may go back here


class Instalments(RunMachine):
    """The same, while signals come in any order."""

    scenario = instalments


class Approvals(RunMachine):
    """The same, while people say yes, no and other things about a refund."""

    scenario = replace(approved, invariant=only_with_a_yes)
    says_no = True

    def given(self, step: Step) -> Mapping[str, Any]:
        """Return the arguments with a smaller sum."""
        return given(step)


def steers(store: RunStore, run_id: str) -> None:
    """Tell the decider something."""
    store.steer(run_id, "be careful", by="ann")


def pauses(store: RunStore, run_id: str) -> None:
    """Stop the run."""
    store.pause(run_id, by="ann")


def resumes(store: RunStore, run_id: str) -> None:
    """Let it go on."""
    store.resume(run_id, by="ann")


class Broke(NamedTuple):
    """What the kit reported: a problem, and the crashes that it took, where they were counted."""

    problem: str
    crashes: int | None


Trial = Callable[[], Broke | None]


@dataclass(frozen=True)
class Verdict:
    """What became of the package: killed by what the kit reports, broken by an error of another kind, or alive."""

    kind: Literal["alive", "killed", "broken", "hung"]
    by: str = ""
    crashes: int | None = None
    problem: str = ""
    seconds: float = 0.0


def tried(survives: Callable[..., object], scenario: Scenario, **options: Any) -> Broke | None:
    """Try whether a scenario survives something."""
    try:
        survives(scenario, **options)
    except DidNotSurvive as error:
        smallest = error.report.smallest
        assert smallest is not None
        return Broke(smallest.problems[0], len(smallest.schedule))
    return None


def played(machine: type[RunMachine]) -> Broke | None:
    """Play a machine a few times."""
    try:
        run_state_machine_as_test(machine, settings=FEW)
    except AssertionError as error:
        return Broke(str(error).removeprefix("* "), None)
    return None


crashed = partial(tried, survives_every_crash)
failing = partial(tried, survives_every_fault)
overtaken = partial(tried, survives_overtaking)
signalled = partial(tried, survives_every_signal)
acted = partial(tried, survives_every_act)

TRIALS: Mapping[str, Trial] = {
    "demo": partial(crashed, demo),
    "twins": partial(crashed, twins),
    "errands": partial(crashed, errands),
    "moody": partial(crashed, moody),
    "bad_day": partial(crashed, bad_day),
    "crowd, its store failing": partial(failing, crowd),
    "Crowd, a machine": partial(played, Crowd),
    "remembering": partial(crashed, remembering),
    "approved": partial(crashed, approved),
    "edited": partial(crashed, edited),
    "expired": partial(crashed, expired),
    "late": partial(crashed, late),
    "approved, steered at each place": partial(acted, approved, act=steers, invariant=only_with_a_yes),
    "approved, paused at each place": partial(acted, approved, act=pauses, then=resumes),
    "Approvals, a machine": partial(played, Approvals),
    "reminder": partial(crashed, reminder),
    "instalments": partial(crashed, instalments),
    "asking": partial(crashed, asking),
    "reminder, its signal at each place": partial(signalled, reminder),
    "Reminded, a machine": partial(played, Reminded),
    "Instalments, a machine": partial(played, Instalments),
    "glance, overtaken": partial(overtaken, glance),
    "crowd, overtaken": partial(overtaken, crowd),
    "bad_day, two crashes": partial(crashed, bad_day, crashes=2, sample=DEEP_RUNS),
    "crowd": partial(crashed, crowd),
}
"""What is tried, in this order."""


def judge(names: Iterable[str] = TRIALS) -> Verdict:
    """Hold the trials, up to the first in which something broke."""
    began = time.monotonic()
    for name in names:
        try:
            broke = TRIALS[name]()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            return Verdict("broken", name, None, _line(problem), time.monotonic() - began)
        if broke is not None:
            kind: Literal["killed", "broken"] = "broken" if is_foreign(broke.problem) else "killed"
            return Verdict(kind, name, broke.crashes, _line(broke.problem), time.monotonic() - began)
    return Verdict("alive", seconds=time.monotonic() - began)


def is_foreign(problem: str) -> bool:
    """Whether all that is reported is an error that the library never raises: a mutant that only stumbles."""
    stopped = STOPPED.match(problem)
    return stopped is not None and not hasattr(errors, stopped[1] or stopped[2])


def _line(problem: str) -> str:
    return problem.partition("\n")[0]


def main(copy: str, *names: str) -> None:
    """Judge the package in a folder, and print the verdict."""
    judged = Path(agent_es.__file__ or "").resolve()
    if not judged.is_relative_to(Path(copy).resolve()):
        raise SystemExit(f"the package that would be judged is {judged}, not the one in {copy}")
    print(json.dumps(asdict(judge(names or TRIALS))))


if __name__ == "__main__":
    main(*sys.argv[1:])
