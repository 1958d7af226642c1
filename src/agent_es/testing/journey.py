"""One journey: a run of a scenario from its start to its end, through as many workers as die on the way.

Rule: a schedule is the place where each worker dies, in order; the worker after the last of them dies nowhere.
"""

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_es.errors import AgentError, BadScenario
from agent_es.events import Parked, StepInDoubt
from agent_es.journal import JournalEntry
from agent_es.state import RunState
from agent_es.testing.audit import Audit, difference, effects_beside, problems_of
from agent_es.testing.crash import Crash, Life, Place
from agent_es.testing.scenario import Ending, Scenario

Schedule = tuple[int, ...]
Kill = Callable[[Path, Life], str | None]
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
    state: RunState | None = None
    """What the run came to; None where it never started."""
    shown: dict[int, str] = field(default_factory=dict)
    effects: Sequence[object] = ()
    double: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list)
    journal: Sequence[JournalEntry] = ()

    @property
    def in_doubt(self) -> bool:
        """Whether the run stopped and says that it does not know."""
        return self.state is not None and bool(self.state.doubts)


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

    def live(folder: Path, life: Life) -> str | None:
        nonlocal told
        try:
            told = scenario.live(folder, life, audit)
        except Crash:
            return str(life.places[-1])
        except BadScenario:
            raise
        except Exception as error:
            fate.problems.append(_stopped(error))
        return None

    for at in schedule:
        died_at = (kill or live)(folder, Life(at, seed=seed))
        if died_at is None:
            break
        fate.deaths.append(died_at)
    last = Life(seed=seed)
    fate.places = last.places
    if not fate.problems:
        live(folder, last)
    fate.shown = audit.shown
    fate.problems += audit.problems
    look_at(fate, scenario, folder, told, calm)
    return fate


def look_at(fate: Fate, scenario: Scenario, folder: Path, told: RunState | None, calm: Fate | None) -> None:
    """Note what is wrong with what a journey left behind."""
    with scenario.open_store(folder) as store:
        fate.problems += problems_of(store, scenario.run_id, told)
        try:
            fate.journal = store.journal(scenario.run_id)
            fate.state = store.load(scenario.run_id)
        except AgentError:
            return
        world = scenario.world(folder)
        try:
            fate.effects = [*scenario.effects(world)]
            if calm is not None:
                fate.problems += _beside(fate, scenario, fate.state, calm)
            _hold(fate, scenario, Ending(fate.state, fate.journal, world, store))
        finally:
            if hasattr(world, "close"):
                world.close()


def _beside(fate: Fate, scenario: Scenario, state: RunState, calm: Fate) -> Iterable[str]:
    """Yield where a journey differs from the one without a crash."""
    too_often, too_seldom = effects_beside(fate.effects, calm.effects)
    fate.double = too_often.total()
    for effect, times in too_often.items():
        yield f"double: {effect} happened {times} more than it does without a crash"
    if calm.state is None or any(map(_gave_up, fate.journal)):
        return  # a body that killed its worker at every attempt: the run says so, and goes another way
    if not fate.in_doubt:
        fate.lost = too_seldom.total()
        for effect, times in too_seldom.items():
            yield f"lost: {effect} happened {times} less than it does without a crash, and the run is not in doubt"
        if _where(state) != _where(calm.state):
            yield f"the run is {_where(state)}, and without a crash it is {_where(calm.state)}"
    if not any(isinstance(entry.event, StepInDoubt | Parked) for entry in fate.journal):
        # Else somebody settled a doubt, perhaps otherwise than the world would have.
        yield from _apart(fate, calm, scenario.same(state), scenario.same(calm.state))


def _apart(fate: Fate, calm: Fate, state: object, expected: object) -> Iterable[str]:
    if state != expected:
        yield f"the run came to another state than without a crash:\n{difference(repr(expected), repr(state))}"
    for turn in sorted(fate.shown.keys() & calm.shown.keys()):
        if fate.shown[turn] != calm.shown[turn]:
            yield (
                f"the decider was shown something else at turn {turn} than without a crash:\n"
                f"{difference(calm.shown[turn], fate.shown[turn])}"
            )


def _gave_up(entry: JournalEntry) -> bool:
    return entry.type == "tool_failed" and entry.data["error"]["type"] == "AttemptsExhausted"


def _hold(fate: Fate, scenario: Scenario, ending: Ending) -> None:
    try:
        if scenario.invariant(ending) is False:
            fate.problems.append(f"the invariant {_name(scenario.invariant)} does not hold")
    except Exception as error:
        fate.problems.append(f"the invariant {_name(scenario.invariant)} does not hold: {error or type(error)}")


def _where(state: RunState) -> str:
    return str(state.status) + (f" for {state.waiting_for}" if state.waiting_for else "")


def _stopped(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"a worker stopped with {type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


def _name(function: object) -> str:
    return getattr(function, "__name__", repr(function))
