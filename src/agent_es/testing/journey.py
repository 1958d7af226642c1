"""One journey: a run of a scenario from its start to its end, through as many workers as die on the way.

Rule: a schedule is the place where each worker dies, in order; the worker after the last of them dies nowhere.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_es.errors import AgentError, BadScenario
from agent_es.events import DoubtSettled, Parked, StepInDoubt
from agent_es.journal import JournalEntry
from agent_es.state import RunState
from agent_es.testing.audit import Audit, Question, effects_beside, hashable, problems_of, words_of
from agent_es.testing.crash import Crash, Life, Place
from agent_es.testing.difference import difference
from agent_es.testing.scenario import Ending, Scenario

Schedule = tuple[int, ...]
Kill = Callable[[Path, Life, Audit], str | None]
"""Lives a life on what lies in a folder; returns where it died, or None where it came to its end."""


@dataclass
class Fate:
    """What one journey came to."""

    schedule: Schedule
    seed: int
    deaths: list[str] = field(default_factory=list)
    """Where each worker died that did."""
    places: Sequence[Place] = ()
    """What the last worker reached."""
    choices: int = 0
    """How often it could have run another body first."""
    state: RunState | None = None
    """What the run came to; None where it never started."""
    shown: dict[Question, dict[str, Any]] = field(default_factory=dict)
    effects: Sequence[object] = ()
    """What happened in the world."""
    counted: bool = True
    """Whether the world says so."""
    double: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list)
    journal: Sequence[JournalEntry] = ()

    @property
    def in_doubt(self) -> bool:
        """Whether the run stopped and says that it does not know."""
        return self.state is not None and bool(self.state.doubts)

    @property
    def gave_up(self) -> bool:
        """Whether a body killed its worker at every attempt: the run says so, and goes another way."""
        return any(
            entry.type == "tool_failed" and entry.data["error"]["type"] == "AttemptsExhausted"
            for entry in self.journal
        )

    @property
    def went_on(self) -> bool:
        """Whether the run says that it went on though nobody knew of an effect, as its tool has it."""
        return any(
            isinstance(entry.event, DoubtSettled) and entry.event.outcome in ("skipped", "told")
            for entry in self.journal
        )


def travel(
    scenario: Scenario,
    folder: Path,
    schedule: Schedule = (),
    *,
    seed: int = 0,
    calm: Fate | None = None,
    kill: Kill | None = None,
) -> Fate:
    """Live through a schedule in an empty folder, and look at what it came to; ``calm`` is it without a crash.

    ``kill`` lives the lives that are to end early.
    """
    fate, audit, told = Fate(schedule, seed), Audit(same=scenario.same), None

    def live(folder: Path, life: Life, audit: Audit) -> str | None:
        nonlocal told
        try:
            told = scenario.live(folder, life, audit)
        except Crash:
            return str(life.places[-1])
        except BadScenario:
            raise
        except Exception as error:
            fate.problems.append(stopped(error))
        if isinstance(life.at, int) and 1 <= life.at <= len(life.places):
            outlived = life.places[life.at - 1]
            fate.problems.append(f"a worker outlived its crash {outlived}: something catches BaseException")
        return None

    for at in schedule:
        died_at = (kill or live)(folder, Life(at, seed=seed), audit)
        if died_at is None:
            break
        fate.deaths.append(died_at)
    last = Life(seed=seed)
    fate.places = last.places
    if not fate.problems:
        live(folder, last, audit)
    fate.choices = last.choices
    fate.shown = audit.shown
    look_at(fate, scenario, folder, told, calm)
    fate.problems += audit.problems
    if audit.effects is not None and any(effects_beside(fate.effects, audit.effects)):
        raise BadScenario(
            f"the world had the effects {audit.effects} before its worker left, and {[*fate.effects]} when it "
            "was opened again: what happened must lie in the folder, not in a variable"
        )
    return fate


def look_at(fate: Fate, scenario: Scenario, folder: Path, told: RunState | None, calm: Fate | None) -> None:
    """Note what is wrong with what a journey left behind: what users care for first."""
    try:
        opened = scenario.open_store(folder, Audit())
    except AgentError as error:
        fate.problems.append(f"the store cannot be opened: {error}")
        return
    with opened as store:
        world = scenario.world(folder)
        try:
            fate.counted = hasattr(world, "effects")
            fate.effects = [*scenario.effects(world)]
            fate.journal = store.journal(scenario.run_id)
            fate.state = store.load(scenario.run_id)
            if calm is not None:
                fate.problems += _counted(fate, calm)
            _hold(fate, scenario, Ending(fate.state, fate.journal, world, store))
            if calm is not None and calm.state is not None:
                fate.problems += _beside(fate, calm, scenario.same(fate.state), scenario.same(calm.state))
        except AgentError:
            pass  # what cannot be read is told below
        finally:
            if hasattr(world, "close"):
                world.close()
        fate.problems += problems_of(store, scenario.run_id, told)


def _counted(fate: Fate, calm: Fate) -> Iterable[str]:
    """Count what happened too often, and what never did."""
    happened, expected = Counter(map(hashable, fate.effects)), Counter(map(hashable, calm.effects))
    is_other = is_another(fate.journal, calm)
    too_often = doubles(happened, expected, is_other=is_other)
    fate.double = too_often.total()
    if not (fate.in_doubt or fate.gave_up or fate.went_on or is_other):
        fate.lost = (expected - happened).total()
    for effect in too_often:
        yield f"double: {effect} happened {many(happened[effect], 'time')}, and {expected[effect]} without a crash"
    for effect in (expected - happened) if fate.lost else ():
        yield f"lost: {effect} happened {many(happened[effect], 'time')}, and {expected[effect]} without a crash"


def is_another(journal: Iterable[JournalEntry], calm: Fate) -> bool:
    """Say whether people made a run another one than that without a crash: they said something else."""
    return words_of(journal) != words_of(calm.journal)


def doubles(happened: Counter[Any], expected: Counter[Any], *, is_other: bool) -> Counter[Any]:
    """Return what happened too often; where people said something else, what nobody expected may happen once."""
    return happened - expected - Counter(set(happened) - set(expected) if is_other else ())


def _beside(fate: Fate, calm: Fate, same: object, expected: object) -> Iterable[str]:
    """Yield where a journey differs from the one without a crash."""
    if fate.gave_up or fate.state is None or calm.state is None or is_another(fate.journal, calm):
        return
    if not fate.in_doubt and where(fate.state) != where(calm.state):
        yield f"the run is {where(fate.state)}, and without a crash it is {where(calm.state)}"
    if any(isinstance(entry.event, StepInDoubt | DoubtSettled | Parked) for entry in fate.journal):
        return  # a doubt was settled: perhaps otherwise than the world would have, and under another key
    if same != expected:
        yield f"the run came to another state than without a crash:\n{difference(expected, same)}"
    for question in sorted(fate.shown.keys() & calm.shown.keys()):
        if repr(fate.shown[question]) != repr(calm.shown[question]):
            yield (
                f"the decider was shown something else at turn {question[0]} than without a crash:\n"
                f"{difference(calm.shown[question], fate.shown[question])}"
            )


def _hold(fate: Fate, scenario: Scenario, ending: Ending) -> None:
    try:
        if scenario.invariant(ending) is False:
            fate.problems.append(f"the invariant {_name(scenario.invariant)} does not hold")
    except Exception as error:
        fate.problems.append(f"the invariant {_name(scenario.invariant)} does not hold: {error or type(error)}")


def where(state: RunState) -> str:
    """Say where a run stands."""
    return str(state.status) + (f" for {state.waiting_for}" if state.waiting_for else "")


def many(count: int, what: str) -> str:
    """Say how many there are of something.

    >>> many(1, "crash"), many(1_412, "crash"), many(0, "run")
    ('1 crash', '1,412 crashes', '0 runs')
    """
    plural = f"{what}es" if what.endswith("sh") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"


def stopped(error: Exception) -> str:
    """Say what a worker stopped with, and where."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"a worker stopped with {type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


def _name(function: object) -> str:
    return getattr(function, "__name__", repr(function))
