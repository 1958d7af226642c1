"""B26: a time keeps its zone and its fold, so that a day after it is the same instant with a restart and without.

The library's statement: times are written as RFC 9557 does, with the name of their zone; a time whose meaning that
cannot keep is refused.  A time without a zone stays one.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from agent_es import AgentRun, CallTool, Decision, Finish, Runner, RunState, RunStore, Status, tool
from agent_es.testing import Crash, CrashingRunner, CrashPoint

RUN_ID = "run-1"
NEW_YORK = ZoneInfo("America/New_York")
BEFORE_THE_CLOCKS_CHANGE = datetime(2026, 3, 7, 9, tzinfo=NEW_YORK)
A_DAY = timedelta(days=1)
A_DAY_LATER = "2026-03-08T13:00:00+00:00"

NO_CRASH = None
AFTER_THE_FIRST_RESULT = CrashPoint(5, "after")  # decide, append, start, next done, append
IN_THE_SECOND_BODY = CrashPoint(9, "before")  # and decide, append, start, next done


class Calendar(AgentRun):
    """Gives a time, and computes with times."""

    @tool(effect="read")
    def meeting(self) -> datetime:
        return BEFORE_THE_CLOCKS_CHANGE

    @tool(effect="read")
    def wake_at(self, at: datetime) -> str:
        return at.astimezone(UTC).isoformat()

    @tool(effect="read")
    def wake_a_day_after(self, at: datetime) -> str:
        return (at + A_DAY).astimezone(UTC).isoformat()


MODELS: dict[str, Callable[[RunState], Decision]] = {
    "the model adds a day": lambda run: Calendar.wake_at.call(at=Calendar.meeting.result_of(run.steps[0]) + A_DAY),
    "the tool adds a day": lambda run: Calendar.wake_a_day_after.call(at=Calendar.meeting.result_of(run.steps[0])),
    "the tool adds a day to what the model was shown": lambda run: CallTool(
        "wake_a_day_after", {"at": run.steps[0].result}
    ),
}


class Model:
    """Asks for the meeting, then for the time a day after it."""

    def __init__(self, then: Callable[[RunState], Decision]) -> None:
        self.then = then

    def decide(self, run: RunState, tools: Any, /) -> Decision:
        match run.turns:
            case 0:
                return CallTool("meeting")
            case 1:
                return self.then(run)
            case _:
                return Finish(run.steps[1].result)


@pytest.mark.parametrize(
    "at", [NO_CRASH, AFTER_THE_FIRST_RESULT, IN_THE_SECOND_BODY], ids=["calm", "after the result", "in the body"]
)
@pytest.mark.parametrize("then", MODELS.values(), ids=MODELS.keys())
def test_a_day_after_a_time_is_the_same_instant_with_a_restart_and_without(
    then: Callable[[RunState], Decision], at: CrashPoint | None, open_store: Callable[[], RunStore]
) -> None:
    if at is not None:
        with pytest.raises(Crash):
            CrashingRunner(open_store(), Model(then), at=at).run(Calendar, run_id=RUN_ID, goal="wake")

    state = Runner(open_store(), Model(then)).run(Calendar, run_id=RUN_ID, goal="wake")

    assert (state.status, state.answer) == (Status.DONE, A_DAY_LATER)


def given_back(open_store: Callable[[], RunStore], value: datetime) -> datetime:
    """Return a time that a tool gave, as another life reads it."""

    class Giving(AgentRun):
        @tool(effect="read")
        def give(self) -> datetime:
            return value

    class Script:
        def decide(self, run: RunState, tools: Any, /) -> Decision:
            return Finish("given") if run.turns else CallTool("give")

    Runner(open_store(), Script()).run(Giving, run_id=RUN_ID, goal="give")
    (step,) = open_store().load(RUN_ID).steps
    assert step.status == "done", step.error
    back: datetime = Giving.give.result_of(step)
    return back


@pytest.mark.parametrize(
    ("value", "instant"),
    [
        (datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK), "05:30"),
        (datetime(2026, 11, 1, 1, 30, fold=1, tzinfo=NEW_YORK), "06:30"),
        (datetime(2026, 11, 1, 1, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))), "20:00"),
    ],
    ids=["first half past one", "second half past one", "+05:30"],
)
def test_a_time_is_the_instant_that_it_was(value: datetime, instant: str, open_store: Callable[[], RunStore]) -> None:
    back = given_back(open_store, value)

    assert f"{back.astimezone(UTC):%H:%M}" == instant
    assert (back + A_DAY).astimezone(UTC) == (value + A_DAY).astimezone(UTC)
    assert (back.utcoffset(), back.fold) == (value.utcoffset(), value.fold)


def test_a_time_without_a_zone_gets_none(open_store: Callable[[], RunStore]) -> None:
    back = given_back(open_store, datetime(2026, 3, 7, 9))  # noqa: DTZ001

    assert (back, back.tzinfo) == (datetime(2026, 3, 7, 9), None)  # noqa: DTZ001
