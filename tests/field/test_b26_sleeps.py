"""B26, the part that sleeps: a run wakes at the instant that was meant, with a restart and without.

The library's statement: what is slept until is an instant, kept in UTC; a time without a zone names none and is
refused.  A time that the clocks of a zone leave out is read by the offset before they change, and with `fold` after.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Finish,
    Runner,
    RunState,
    RunStore,
    Sleep,
    Status,
    ToolContext,
    WaitFor,
    tool,
)
from agent_es.errors import BadWait
from agent_es.testing import Crash, CrashingRunner, MovableClock

RUN_ID = "run-1"
NEW_YORK = ZoneInfo("America/New_York")
BEFORE_THE_CLOCKS_CHANGE = datetime(2026, 3, 7, 9, tzinfo=NEW_YORK)
A_DAY = timedelta(days=1)
WAKE_AT = datetime(2026, 3, 8, 13, tzinfo=UTC)
NAIVE = datetime(2026, 3, 8, 9)  # noqa: DTZ001  # that is the case

OpenStore = Callable[[], RunStore]


class Calendar(AgentRun):
    """Gives a time, and sleeps until a day after it."""

    @tool(effect="read")
    def meeting(self) -> datetime:
        return BEFORE_THE_CLOCKS_CHANGE

    @tool(effect="read")
    def sleep_a_day_after(self, ctx: ToolContext, at: datetime) -> Sleep:
        return ctx.sleep(at + A_DAY)

    @tool(effect="read")
    def wait_a_day_after(self, ctx: ToolContext, at: datetime) -> WaitFor:
        return ctx.wait_for("moved", timeout=at + A_DAY)


def meeting(run: RunState) -> datetime:
    at: datetime = Calendar.meeting.result_of(run.steps[0])
    return at


WAYS: dict[str, Callable[[RunState], Decision]] = {
    "the model sleeps": lambda run: Sleep(meeting(run) + A_DAY),
    "the model waits until then": lambda run: WaitFor("moved", timeout=meeting(run) + A_DAY),
    "the tool sleeps": lambda run: Calendar.sleep_a_day_after.call(at=meeting(run)),
    "the tool waits until then": lambda run: Calendar.wait_a_day_after.call(at=meeting(run)),
}


class Model:
    """Asks for the meeting, then sleeps until a day after it."""

    def __init__(self, then: Callable[[RunState], Decision]) -> None:
        self.then = then

    def decide(self, run: RunState, tools: Any, /) -> Decision:
        match run.turns:
            case 0:
                return CallTool("meeting")
            case 1:
                return self.then(run)
            case _:
                return Finish("met")


@pytest.fixture
def clock() -> MovableClock:
    """An hour after the first meeting."""
    return MovableClock(datetime(2026, 3, 7, 15, tzinfo=UTC))


@pytest.fixture
def open_store(url: str, clock: MovableClock) -> Iterator[OpenStore]:
    """Opens the store anew at each call, as a process that was restarted does."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(RunStore(url, clock=clock))


def resumed(open_store: OpenStore, model: Model) -> RunState:
    """Return the run as a process leaves it that waits for no clock."""
    return Runner(open_store(), model, max_wait=0).run(Calendar, run_id=RUN_ID, goal="meet")


@pytest.mark.parametrize("then", WAYS.values(), ids=WAYS.keys())
def test_a_run_wakes_at_the_hour_that_the_clocks_on_the_wall_will_show(
    then: Callable[[RunState], Decision], clock: MovableClock, open_store: OpenStore
) -> None:
    model = Model(then)

    states = [resumed(open_store, model) for _ in range(2)]
    clock.move((WAKE_AT - clock.now()).total_seconds() - 1)
    states.append(resumed(open_store, model))
    clock.move(1)
    woken = resumed(open_store, model)

    assert {(state.status, state.wake_at, state.version) for state in states} == {
        (Status.WAITING, WAKE_AT, states[0].version)
    }
    assert (woken.status, woken.steps[1].woken and woken.steps[1].woken.reason) == (Status.DONE, "clock")


@pytest.mark.parametrize("then", WAYS.values(), ids=WAYS.keys())
def test_it_does_so_wherever_a_process_died_before(
    then: Callable[[RunState], Decision], clock: MovableClock, url: str
) -> None:
    model, at = Model(then), 0

    while True:
        at += 1
        run_id = f"run-{at}"
        with RunStore(url, clock=clock) as store:
            try:
                CrashingRunner(store, model, at=at, max_wait=0).run(Calendar, run_id=run_id, goal="meet")
            except Crash:
                clock.move(60)
            else:
                break
        with RunStore(url, clock=clock) as store:
            state = Runner(store, model, max_wait=0).run(Calendar, run_id=run_id, goal="meet")
        assert (state.status, state.wake_at) == (Status.WAITING, WAKE_AT), f"killed at place {at}"

    assert at > 20


@pytest.mark.parametrize(
    ("until", "wake_at"),
    [
        (datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK), "2026-11-01T05:30"),
        (datetime(2026, 11, 1, 1, 30, fold=1, tzinfo=NEW_YORK), "2026-11-01T06:30"),
        (datetime(2026, 3, 8, 2, 30, tzinfo=NEW_YORK), "2026-03-08T07:30"),
        (datetime(2026, 3, 8, 2, 30, fold=1, tzinfo=NEW_YORK), "2026-03-08T06:30"),
        (datetime(2026, 11, 1, 1, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))), "2026-10-31T20:00"),
    ],
    ids=["first half past one", "second half past one", "left out", "left out, as after", "+05:30"],
)
def test_a_time_to_wake_at_is_the_instant_that_it_was(until: datetime, wake_at: str, open_store: OpenStore) -> None:
    resumed(open_store, Model(lambda _: Sleep(until)))

    state, record = open_store().load(RUN_ID), open_store().record(RUN_ID)
    assert state.wake_at == record.wake_at
    assert f"{state.wake_at:%Y-%m-%dT%H:%M}" == wake_at
    assert state.wake_at.utcoffset() == timedelta(0)  # type: ignore[union-attr]


def test_a_time_without_a_zone_is_refused_where_it_is_written_and_the_run_stays_as_it_was(
    open_store: OpenStore,
) -> None:
    for wait in (lambda: Sleep(NAIVE), lambda: WaitFor("moved", timeout=NAIVE)):
        with pytest.raises(BadWait, match=re.escape("2026-03-08T09:00:00 names no instant: it has no zone")):
            wait()

    for _ in range(2):
        with pytest.raises(BadWait):
            resumed(open_store, Model(lambda _: Sleep(NAIVE)))

    assert [entry.type for entry in open_store().journal(RUN_ID)] == ["run_started", "llm_decided", "tool_result"]
    assert resumed(open_store, Model(WAYS["the model sleeps"])).wake_at == WAKE_AT


def test_a_tool_that_sleeps_until_a_time_without_a_zone_fails_and_says_so(open_store: OpenStore) -> None:
    class Naive(AgentRun):
        @tool(effect="read")
        def nap(self, ctx: ToolContext) -> Sleep:
            return ctx.sleep(NAIVE)

    class Script:
        def decide(self, run: RunState, tools: Any, /) -> Decision:
            return Finish(run.steps[0].error) if run.turns else CallTool("nap")

    state = Runner(open_store(), Script()).run(Naive, run_id=RUN_ID, goal="nap")

    assert state.answer["type"] == "BadWait"
    assert "it has no zone" in state.answer["message"]
