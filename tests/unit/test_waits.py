"""Waits: instants, what ends a wait, what is kept for one, and what comes to a run while it is moved."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from agent_es import AgentRun, CallTool, Sleep, Status, WaitFor, Woken, tool
from agent_es.errors import BadSignal, BadWait, IllegalEvent
from agent_es.events import MAX_RUN_ID, AnyEvent, Cancelled, SignalReceived
from agent_es.legality import check_legal, child_id
from agent_es.run import Planned
from agent_es.state import fold
from agent_es.testing import FrozenClock
from agent_es.waits import LAST, instant

NOW = datetime(2026, 3, 7, 14, tzinfo=UTC)
NEW_YORK = ZoneInfo("America/New_York")
WEEK = timedelta(days=7)


class Collect(AgentRun):
    @tool(effect="read")
    def look(self) -> str: ...  # type: ignore[empty-body]


def begun() -> Collect:
    run = Collect.begin("run-1", "collect", "null", {}, FrozenClock())
    run.mark_recorded()
    return run


def waits(*wanted: Sleep | WaitFor, run: Collect | None = None) -> Collect:
    run = run or begun()
    run.record_turn([Planned(CallTool(it.tool, it.args), "{}", wait=it) for it in wanted], at_once=8)
    return run


def came(name: str, payload: str = "null", seq: int = 1, delivery_id: str = "d-1") -> SignalReceived:
    values: dict[str, Any] = {"name": name, "payload": payload, "delivery_id": delivery_id}
    return SignalReceived(originator_version=seq + 1, timestamp=FrozenClock()(seq), **values)


# Instants.


@pytest.mark.parametrize(
    ("until", "means"),
    [
        (timedelta(hours=6), datetime(2026, 3, 7, 20, tzinfo=UTC)),
        (timedelta(0), NOW),
        (timedelta(days=-1), NOW),
        (timedelta.min, NOW),
        (timedelta.max, LAST),
        (timedelta(days=400 * 365), datetime(2425, 11, 30, 14, tzinfo=UTC)),
        (datetime(2026, 3, 8, 9, tzinfo=NEW_YORK), datetime(2026, 3, 8, 13, tzinfo=UTC)),  # the clock went forward
        (datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK), datetime(2026, 11, 1, 5, 30, tzinfo=UTC)),
        (datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1), datetime(2026, 11, 1, 6, 30, tzinfo=UTC)),
        (datetime(2026, 3, 9, 0, 0, tzinfo=timezone(timedelta(hours=5.5))), datetime(2026, 3, 8, 18, 30, tzinfo=UTC)),
        (datetime(1999, 1, 1, tzinfo=UTC), NOW),
        (datetime.max.replace(tzinfo=UTC), LAST),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), LAST),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=12))), NOW),
    ],
    ids=str,
)
def test_a_time_means_an_instant_and_never_one_that_has_passed(until: Any, means: datetime) -> None:
    assert instant(until, NOW) == means
    assert instant(until, NOW).timestamp() <= LAST.timestamp()
    assert Sleep(until).args


@pytest.mark.parametrize("make", [Sleep, lambda until: WaitFor("paid", until)], ids=["sleep", "wait_for"])
@pytest.mark.parametrize(
    ("until", "says"),
    [
        (datetime(2026, 3, 8, 9), "2026-03-08T09:00:00 names no instant: it has no zone"),  # noqa: DTZ001  # refused
        (3600, "3600 is no time to wait for; give a timedelta, or a datetime with a zone"),
        ("tomorrow", "'tomorrow' is no time"),
        (True, "True is no time"),
    ],
    ids=str,
)
def test_what_names_no_instant_is_refused_where_it_is_written(
    make: Callable[[Any], Any], until: Any, says: str
) -> None:
    with pytest.raises(BadWait, match=says):
        make(until)


@pytest.mark.parametrize("name", ["", "a\0b", "a" * 201, "cut \ud83d", 7, None])
def test_what_no_signal_is_called_is_refused(name: Any) -> None:
    with pytest.raises(BadSignal):
        WaitFor(name)


# Waiting, and going on.


def test_a_run_that_waits_for_several_wakes_at_the_first_and_waits_for_signals_first_of_all() -> None:
    alone, both = waits(Sleep(WEEK)), waits(Sleep(WEEK), WaitFor("paid", timedelta(days=1)), WaitFor("called"))

    assert (alone.state.status, alone.state.waiting_for) == (Status.WAITING, "clock")
    assert (both.state.status, both.state.waiting_for) == (Status.WAITING, "signal")
    assert both.state.wake_at == both.state.steps[1].wake_at
    assert [step.awaits for step in both.state.waits] == [None, "paid", "called"]
    assert waits(WaitFor("called")).state.wake_at is None


def test_a_wait_beside_a_body_lets_the_run_go_on_until_the_body_has_ended() -> None:
    run = begun()
    sleep = Sleep(WEEK)
    run.record_turn([Planned(CallTool("look"), "{}"), Planned(CallTool("sleep"), "{}", wait=sleep)], at_once=1)
    assert run.state.status is Status.RUNNING

    run.record_result(0, '"seen"')

    assert (run.state.status, run.state.waiting_for) == (Status.WAITING, "clock")


@pytest.mark.parametrize("payload", ["null", "0", "false", '""', "[]", '{"amount":18000}'])
def test_a_signal_that_comes_early_is_kept_and_one_that_says_no_is_an_answer(payload: str) -> None:
    run = begun()
    run.record_signal("paid", payload, "d-1")
    assert [(it.seq, it.name, it.payload_json) for it in run.state.signals] == [(1, "paid", payload)]

    waits(WaitFor("paid", WEEK), run=run)
    assert run.state.status is Status.RUNNING
    signal = run.state.signal_for(run.state.steps[0])
    assert signal is not None
    run.record_wait_ended(0, signal.seq)

    assert run.state.signals == ()
    assert run.state.steps[0].woken == Woken("signal", "paid", signal.payload)
    assert run.state.steps[0].result == {"payload": signal.payload, "reason": "signal", "signal": "paid"}


def test_of_several_signals_the_first_is_used_first_and_each_once() -> None:
    run = waits(WaitFor("paid"), WaitFor("paid"))
    for n in range(3):
        run.record_signal("paid", str(n), f"d-{n}")

    for idx in (0, 1):
        signal = run.state.signal_for(run.state.steps[idx])
        assert signal is not None
        run.record_wait_ended(idx, signal.seq)

    assert [step.woken.payload for step in run.state.steps if step.woken] == [0, 1]
    assert [signal.payload for signal in run.state.signals] == [2]
    check_legal("run-1", _journal(run))


def test_a_wait_that_the_clock_ends_says_so() -> None:
    run = waits(WaitFor("paid", WEEK))

    run.record_wait_ended(0)

    assert run.state.steps[0].woken == Woken("clock", "paid", None)
    assert run.state.status is Status.RUNNING


def test_a_doubt_beside_a_wait_is_what_people_are_told_of() -> None:
    run = begun()
    run.record_turn([Planned(CallTool("look"), "{}"), Planned(CallTool("sleep"), "{}", wait=Sleep(WEEK))], at_once=1)

    run.record_doubt(0, "time-out")

    assert (run.state.status, run.state.waiting_for) == (Status.WAITING, "doubt")
    assert run.state.wake_at == run.state.steps[1].wake_at


def test_a_body_that_asks_to_wait_waits_once() -> None:
    run = begun()
    run.record_turn([Planned(CallTool("look"), "{}")], at_once=1)

    run.record_wait_of(0, WaitFor("reply"), attempt=1)

    assert run.state.steps[0].status == "waiting"
    with pytest.raises(IllegalEvent):
        run.record_wait_of(0, WaitFor("reply"), attempt=1)
    with pytest.raises(IllegalEvent):
        run.record_result(0, "1")


def test_the_id_of_a_child_is_the_same_each_time_and_is_one() -> None:
    deep = "r" * MAX_RUN_ID

    assert child_id(deep, 1) == child_id(deep, 1) != child_id(deep, 2)
    assert len(child_id(deep, 1)) <= MAX_RUN_ID


def test_a_state_that_goes_on_from_another_has_its_waits_and_signals() -> None:
    run = waits(WaitFor("paid", WEEK), WaitFor("called"))
    run.record_signal("other", "1", "d-1")
    run.record_signal("called", "2", "d-2")
    journal = _journal(run)

    for cut in range(1, len(journal)):
        assert fold(journal[cut:], fold(journal[:cut])) == run.state


# What comes meanwhile.


def test_what_came_meanwhile_stands_before_what_was_pending() -> None:
    run = begun()
    run.record_turn([Planned(CallTool("look"), "{}")], at_once=1)
    run.mark_recorded()
    run.record_result(0, '"seen"')

    run.catch_up([came("paid", seq=2)])

    assert [event.originator_version for event in run.pending_events] == [4]
    assert [signal.name for signal in run.state.signals] == ["paid"]
    assert run.state.steps[0].result == "seen"
    assert run.recorded.version == 3


def test_a_signal_that_came_before_the_end_of_a_wait_was_recorded_has_come_first() -> None:
    run = waits(WaitFor("paid", WEEK))
    run.mark_recorded()
    run.record_wait_ended(0)

    run.catch_up([came("paid", "0", seq=3)])

    assert run.state.steps[0].woken == Woken("signal", "paid", 0)
    assert run.state.signals == ()


def test_what_cannot_happen_any_more_is_refused() -> None:
    run = begun()
    run.record_turn([Planned(CallTool("look"), "{}")], at_once=1)

    with pytest.raises(IllegalEvent):
        run.catch_up([Cancelled(originator_version=2, timestamp=FrozenClock()(1), by="ann", reason="")])

    assert run.state.status is Status.CANCELLED
    assert not run.pending_events


def test_what_was_under_way_when_a_run_was_cancelled_is_still_recorded() -> None:
    run = begun()
    run.record_turn([Planned(CallTool("look"), "{}")], at_once=1)
    run.record_cancelled("ann", "no longer needed")

    run.record_result(0, '"seen"')

    assert run.state.status is Status.CANCELLED
    assert run.state.failure == "cancelled by ann: no longer needed"
    assert run.state.steps[0].result == "seen"


def _journal(run: AgentRun) -> list[AnyEvent]:
    """Return the events of a run whose start was recorded."""
    start = Collect.begin("run-1", "collect", "null", {}, FrozenClock()).pending_events
    return [*start, *run.pending_events]  # type: ignore[list-item]  # triggered by AgentRun
