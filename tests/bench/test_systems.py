"""Each system does its work as a program, and leaves what it should; a small workload tells all that it measured."""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_es import RunStore
from agent_es.bench import replay
from agent_es.bench.journals import begin, go_on
from agent_es.bench.measure import Samples
from agent_es.bench.payloads import url_of
from benchmarks import step
from benchmarks.databases import Files, Server, path_of
from benchmarks.systems.floor import decision, result
from benchmarks.systems.process import (
    FLOOR,
    NAMES,
    OURS,
    STEPS,
    STOCK,
    WARM_STEPS,
    Failure,
    Job,
    System,
    about,
    call,
    chosen,
    share,
    system,
)
from benchmarks.turns import AT_LEAST, Found, take_turns

pytestmark = pytest.mark.crash  # programs, one after the other

EVENTS = {OURS: "agent_es_events", FLOOR: "events", STOCK: "stock_events"}
ENDS = 2
"""Events of a run beside its steps: its start and its end."""

those_of_ours = pytest.mark.parametrize("name", EVENTS)
peers = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(not system(name).is_installed, reason="of the extra `bench`"))
        for name in NAMES
        if name not in EVENTS
    ],
)


def at_once(rounds: range, _: str) -> range:
    return rounds


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def events_in() -> Callable[[str, str], list[int]]:
    """Returns the number of events that each stream has, the longest first."""

    def count(url: str, name: str) -> list[int]:
        with closing(sqlite3.connect(path_of(url))) as database:
            streams = database.execute(f"SELECT originator_id FROM {EVENTS[name]}").fetchall()  # noqa: S608
        return [events for _, events in Counter(streams).most_common()]

    return count


@those_of_ours
def test_runs_are_recorded_from_their_start_to_their_end_by_one_process_and_by_two(
    name: str, files: Files, events_in: Callable[[str, str], list[int]]
) -> None:
    url = files.new("steps")

    alone = call(system(name), "steps", Job(url, 8))
    shared = share(system(name), "runs", Job(url, 5), 2)

    warm, each = 2 * WARM_STEPS + ENDS, 2 * STEPS + ENDS
    assert events_in(url, name) == [2 * 8 + ENDS, *[warm] * 3, *[each] * 5]
    assert alone.ended < shared.began < shared.ended


@those_of_ours
def test_a_run_that_was_left_unfinished_goes_on_with_its_next_step(
    name: str, files: Files, events_in: Callable[[str, str], list[int]]
) -> None:
    url = files.new("filled")
    call(system(name), "fill", Job(url, 4))
    left = events_in(url, name)

    copy = files.copy(url, "copy")
    call(system(name), "resume", Job(copy, 4))

    finished = 1 if name == OURS else 0  # off the clock; a step that was started anew would be one more
    assert left == [1 + 2 * 4]
    assert events_in(url, name) == left
    assert events_in(copy, name) == [1 + 2 * 5 + finished]


@pytest.mark.postgres
@those_of_ours
def test_what_is_resumed_on_a_server_is_a_copy(name: str, server: Any) -> None:
    kind = Server(server.url)
    filled, copied = (f"{name}_{part}" for part in ("filled", "copied"))
    url = kind.new(filled)
    call(system(name), "fill", Job(url, 4))

    copy = kind.copy(url, copied)
    went_on = call(system(name), "resume", Job(copy, 4))

    events = f"SELECT count(*) FROM {EVENTS[name]}"  # noqa: S608  # our own
    before, after = (server.execute(events, url=there)[0][0] for there in (url, copy))
    assert went_on.seconds > 0
    assert before == 1 + 2 * 4
    assert after >= before + 2
    assert kind.size(copy) > 0
    for there in (url, copy):
        kind.drop(there)


@peers
def test_a_peer_does_the_same_work(name: str, files: Files) -> None:
    empty, filled, shared = (files.new(work) for work in ("steps", "fill", "runs"))

    call(system(name), "steps", Job(empty, 2))
    call(system(name), "fill", Job(filled, 2))
    went_on = call(system(name), "resume", Job(filled, 2))
    runs = share(system(name), "runs", Job(shared, 2), 1)

    assert went_on.seconds > 0
    assert runs.seconds > 0
    assert about(name)


def test_the_floor_writes_the_bytes_that_the_library_writes(tmp_path: Path) -> None:
    def told(event: bytes) -> dict[str, object]:
        values: dict[str, object] = json.loads(event)
        assert values.pop("timestamp")
        return values

    with RunStore(url_of(tmp_path / "runs.db")) as store:
        run = begin(store, "run")
        for _ in range(4):
            go_on(run)
        stored = [store.mapper.to_stored_event(event).state for event in run.pending_events]

    ours = [decision(0), result(0), decision(1), result(1)]
    assert [*map(told, ours)] == [*map(told, stored)]
    assert [*map(len, ours)] == [*map(len, stored)]


def test_a_program_that_fails_is_told_with_what_it_said() -> None:
    with pytest.raises(Failure, match=r"(?s)gone failed at steps \(1\): .*No module named benchmarks.systems.gone"):
        call(System("gone", "gone"), "steps", Job("sqlite://", 1))


def test_ours_and_the_floor_take_part_whatever_is_chosen() -> None:
    assert chosen(["eventsourcing"]) == [OURS, FLOOR, STOCK]
    assert chosen(["floor"]) == [OURS, FLOOR]
    assert not System("gone", "gone", packages=("no-such-package-of-ours",)).is_installed


def test_sides_take_turns_and_the_slow_ones_rest_in_the_last_rounds() -> None:
    turns: list[str] = []

    def side(name: str) -> Callable[[], float]:
        return lambda: turns.append(name) or float(len(turns))  # type: ignore[func-returns-value]

    samples = take_turns({"a": side("a"), "b": side("b")}, at_once, "turns", AT_LEAST + 1, slow=["b"])

    assert turns == ["a", "b", "b", "a", "a", "b", "a"]
    assert (samples.of("a"), samples.of("b")) == ([1.0, 4.0, 5.0, 7.0], [2.0, 3.0, 6.0])
    assert samples.spread("b", "a") == (3 / 4, 2.0)


def test_a_bar_is_left_out_where_its_other_side_is_not_there() -> None:
    samples = Samples(["agent_es", "dbos"])
    for side, seconds in {"agent_es": 1.0, "dbos": 30.0}.items():
        samples.add(side, seconds)
    found = Found("sqlite", samples, "ms")

    found.at_least("agent_es", "dbos", 20)
    found.at_most("agent_es", found.fastest("langgraph", "langgraph, delta"), 1)

    assert [str(bar) for bar in found.bars] == ["sqlite, agent_es / dbos is 30.00, wanted at least 20"]


def test_a_small_workload_tells_what_each_system_needed(files: Files) -> None:
    scale = step.Scale((1, 3), rounds=1, judged=3)

    found = step.compare(files, scale, [OURS, FLOOR], at_once)

    assert [(it.system, it.database, it.size, it.unit, it.rounds) for it in found.measured] == [
        (name, "sqlite", size, "ms/step", 1) for name in (OURS, FLOOR) for size in (1, 3)
    ]
    assert all(0 < it.low <= it.value <= it.high for it in found.measured)
    assert [bar.name for bar in found.bars] == [
        "sqlite, agent_es, 3 steps / floor, 3 steps",
        "sqlite, agent_es, 3 steps / agent_es, 1 steps",
    ]
    assert [*files.folder.iterdir()] == []


def test_a_small_replay_tells_what_each_side_needed(tmp_path: Path) -> None:
    report = replay.compare(tmp_path, replay.Scale(1, (50, 100), judged=50, shortest=50, enough=100), at_once)

    assert [(it.system, it.size) for it in report.measured] == [
        *((OURS, 50), (OURS, 100)),
        (STOCK, 50),
        *((FLOOR, 50), (FLOOR, 100)),
    ]
    assert len(report.bars) == 3
