"""What a tool returns is recorded as it is or refused, never altered, and its body never runs twice for it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from typing_extensions import TypedDict

from agent_es import AgentRun, CallTool, Finish, RunState, RunStore, Status, tool
from agent_es.visible import visible

Play = Callable[..., RunState]


class Phase(Enum):
    QUERY = "query"
    DONE = "done"


class Line(BaseModel):
    price: Decimal
    at: datetime
    phase: Phase | None = None


@dataclass
class Parcel:
    id: UUID
    sizes: tuple[int, ...]
    tags: frozenset[str]


class Totals(TypedDict):
    total: Decimal
    lines: list[Line]


ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Pacific/Chatham"]
times = st.datetimes(
    min_value=datetime(1971, 1, 1),  # noqa: DTZ001  # the zone is drawn
    max_value=datetime(2090, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from(ZONES).map(ZoneInfo),
)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
lines = st.builds(Line, price=decimals, at=times, phase=st.none() | st.sampled_from(Phase))
parcels = st.builds(Parcel, id=st.uuids(), sizes=st.lists(st.integers()).map(tuple), tags=st.frozensets(st.text()))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TYPED: dict[Any, st.SearchStrategy[Any]] = {
    Line: lines,
    list[Line]: st.lists(lines, max_size=3),
    Parcel: parcels,
    dict[str, Parcel]: st.dictionaries(st.text(), parcels, max_size=2),
    Totals: st.fixed_dictionaries({"total": decimals, "lines": st.lists(lines, max_size=2)}),
    datetime: times,
    Decimal: decimals,
    bytes: st.binary(),
    set[int]: st.sets(st.integers()),
    tuple[str, int]: st.tuples(st.text(), st.integers()),
    timedelta: st.timedeltas(),
    Phase: st.sampled_from(Phase),
    UUID: st.uuids(),
    float: st.floats(),
    int: st.integers() | st.just(10**5000),
    str: st.text(st.characters(categories=["L", "Cc", "Cs", "So"])),
}


def returning(annotation: Any, value: Any, calls: list[Any]) -> type[AgentRun]:
    def give(self: Any) -> Any:
        calls.append(value)
        return value

    give.__annotations__["return"] = annotation
    return type("Giving", (AgentRun,), {"give": tool(effect="idempotent")(give)})


def run_once(play: Play, annotation: Any, value: Any) -> tuple[RunState, list[Any], Any]:
    calls: list[Any] = []
    agent = returning(annotation, value, calls)
    run_once.runs += 1  # type: ignore[attr-defined]
    state = play(agent, [CallTool("give"), Finish("done")], run_id=f"run-{run_once.runs}")  # type: ignore[attr-defined]
    return state, calls, agent.agent_tools["give"]


run_once.runs = 0  # type: ignore[attr-defined]


def told(value: Any) -> str:
    """Everything of a value, but for a fold that tells nothing apart."""
    return repr(value).replace(", fold=1", "")


def without_halves(value: Any) -> Any:
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_annotated_value_comes_back_as_it_was_or_is_one_failure(
    data: st.DataObject, play: Play, store: RunStore
) -> None:
    annotation = data.draw(st.sampled_from(list(TYPED)))
    value = data.draw(TYPED[annotation])

    state, calls, giving = run_once(play, annotation, value)

    assert len(calls) == 1
    assert state.status is Status.DONE
    (step,) = store.load(state.run_id).steps
    if step.status == "failed":
        assert step.error is not None
        assert (step.error["type"], step.error["applied"]) == ("NotRecordable", True)
        return
    back = giving.result_of(step)
    assert type(back) is type(value)
    assert back == without_halves(value)
    assert told(back) == told(without_halves(value)) or isinstance(value, set | dict | Parcel)


@pytest.mark.crash
@given(value=plain)
@example(value={"_type_": "decimal_str", "_data_": "1.5"})
@example(value="ok \ud83d")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_value_without_annotation_is_seen_as_json_on_the_first_run_and_ever_after(
    value: Any, play: Play, store: RunStore
) -> None:
    seen: list[Any] = []

    class Watching:
        def decide(self, run: RunState, tools: Any, /) -> Any:
            if run.turns:
                seen.append(repr(run.steps[0].result))
                return Finish("done")
            return CallTool("give")

    calls: list[Any] = []
    run_once.runs += 1  # type: ignore[attr-defined]
    state = play(returning(Any, value, calls), [], run_id=f"run-{run_once.runs}", decider=Watching())  # type: ignore[attr-defined]

    assert len(calls) == 1
    assert seen == [repr(store.load(state.run_id).steps[0].result)]


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


HOSTILE = {
    "10^5 deep": (lambda: deep(100_000), "NotRecordable"),
    "50 MB": (lambda: "x" * 50_000_000, "ResultTooLarge"),
    "a generator": (lambda: (n for n in range(3)), "NotRecordable"),
    "a socket": (lambda: __import__("socket").socket, "NotRecordable"),
    "bytes": (lambda: b"\x00\xff", "NotRecordable"),
    "a set": (lambda: {1, 2}, "NotRecordable"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_recorded_is_one_failure_that_names_it(name: str, play: Play, store: RunStore) -> None:
    make, kind = HOSTILE[name]

    state, calls, _ = run_once(play, Any, make())

    assert len(calls) == 1
    error = state.steps[0].error or {}
    assert (error["type"], error["applied"]) == (kind, True)
    assert "give ran and its effect has happened" in error["message"]
    assert store.load(state.run_id).status is Status.DONE


def test_a_result_of_just_the_allowed_size_is_recorded(play: Play) -> None:
    class Sized(AgentRun):
        @tool(effect="read", max_result_bytes=100)
        def give(self, size: int) -> str:
            return "x" * size

    state = play(Sized, [CallTool("give", {"size": 98}), CallTool("give", {"size": 99}), Finish("done")])

    assert [step.status for step in state.steps] == ["done", "failed"]


def test_escapes_and_markup_are_recorded_as_they_are_and_printed_so_that_nothing_happens(play: Play) -> None:
    value = "\x1b]0;title\x07\x1b[2J<script>alert(1)</script>\u202e"

    state, _, _ = run_once(play, str, value)

    assert state.steps[0].result == value
    assert visible(str(state.steps[0].result)).isprintable()


def test_the_second_half_past_one_of_a_night_stays_the_second(play: Play) -> None:
    second = datetime(2026, 11, 1, 1, 30, fold=1, tzinfo=ZoneInfo("America/New_York"))

    state, _, giving = run_once(play, datetime, second)
    back = giving.result_of(state.steps[0])

    assert back.fold == 1
    assert back.astimezone(ZoneInfo("UTC")).isoformat() == "2026-11-01T06:30:00+00:00"


def test_a_sleep_until_a_time_that_was_recorded_means_the_same_instant(play: Play) -> None:
    before = datetime(2026, 3, 7, 9, tzinfo=ZoneInfo("America/New_York"))

    state, _, giving = run_once(play, datetime, before)
    wake_at = giving.result_of(state.steps[0]) + timedelta(days=1)

    assert wake_at.astimezone(ZoneInfo("UTC")).isoformat() == "2026-03-08T13:00:00+00:00"
