"""Snapshots: a long run is read back from its last one; it says what the whole fold says, or it is not used."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, cast

import pytest
from eventsourcing.cipher import AESCipher
from hypothesis import given
from hypothesis import strategies as st

from agent_es import RunStore
from agent_es.bench.journals import BenchRun, begin, go_on
from agent_es.events import (
    AnyEvent,
    DoubtSettled,
    Event,
    Finished,
    LlmDecided,
    Parked,
    Requeued,
    RunStarted,
    SignalReceived,
    StepInDoubt,
    ToolFailed,
    ToolResult,
    WaitBegan,
    WaitEnded,
)
from agent_es.images import fold_name, image_of, state_of
from agent_es.run import AS_READ
from agent_es.state import RunState, evolve, fold
from agent_es.store.snapshots import FROM, KEPT, digest, is_milestone

Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    with closing(RunStore(url)) as store:
        yield store


def grow(store: RunStore, events: int, run_id: str = "run-1") -> RunState:
    """Record a run of so many events, in a few appends."""
    run = begin(store, run_id)
    while run.state.version < events:
        for _ in range(min(100, events - run.state.version)):
            go_on(run)
        store.save(run)
    return run.state


def folded(url: str, run_id: str = "run-1", version: int | None = None) -> RunState:
    """Return the state that the journal alone gives."""
    with closing(RunStore(url, snapshots=False)) as store:
        return store.load(run_id, version)


def versions(sql: Sql) -> list[int]:
    return [version for (version,) in sql("SELECT version FROM agent_es_snapshots ORDER BY version")]


NOW = datetime(2026, 7, 5, 9, 30, 0, 123_456, tzinfo=AS_READ)
LATER = NOW + timedelta(hours=1)
STORY: Sequence[tuple[type[Event], dict[str, Any]]] = (
    (
        RunStarted,
        {"run_id": "run-1", "agent": "A", "agent_version": "1", "goal": "g", "input": "{}", "tags": {"a": "b"}},
    ),
    (LlmDecided, {"idx": 0, "turn": 0, "tool": "pay", "args": "{}", "attempt": 1, "key": "k", "call_id": "c"}),
    (LlmDecided, {"idx": 1, "turn": 0, "tool": "look", "args": "{}", "attempt": 1}),
    (LlmDecided, {"idx": 2, "turn": 0, "tool": "wait", "args": "{}", "attempt": 0}),
    (WaitBegan, {"idx": 2, "wake_at": LATER, "signal": "paid"}),
    (SignalReceived, {"name": "seen", "payload": "[1]", "delivery_id": "d-1"}),
    (ToolFailed, {"idx": 1, "tool": "look", "attempt": 1, "error": '{"type":"E"}', "retry_at": LATER}),
    (StepInDoubt, {"idx": 0, "tool": "pay", "attempt": 1, "reason": "who knows"}),
    (WaitBegan, {"wake_at": LATER}),
    (WaitEnded, {"reason": "clock"}),
    (DoubtSettled, {"idx": 0, "tool": "pay", "attempt": 1, "outcome": "did_not_happen", "by": "me", "key": "k#2"}),
    (LlmDecided, {"idx": 0, "turn": 0, "tool": "pay", "args": "{}", "attempt": 2, "key": "k#2", "keyed_as": "p"}),
    (ToolResult, {"idx": 0, "tool": "pay", "attempt": 2, "result": '"\u2713"'}),
    (ToolFailed, {"idx": 1, "tool": "look", "attempt": 1, "error": '{"type":"E"}'}),
    (SignalReceived, {"name": "paid", "payload": "null", "delivery_id": "d-2"}),
    (WaitEnded, {"idx": 2, "reason": "signal", "received": 14}),
    (Parked, {"reason": "a person must look"}),
    (Requeued, {"by": "me"}),
    (LlmDecided, {"idx": 3, "turn": 1, "tool": "unpay", "args": "{}", "attempt": 1, "undoes": 0}),
    (ToolResult, {"idx": 3, "tool": "unpay", "attempt": 1, "result": "null"}),
    (Finished, {"answer": '{"all":"done"}'}),
)


EVENTS = [cast(AnyEvent, kind(timestamp=NOW, **values)) for kind, values in STORY]


def test_an_image_of_a_run_reads_back_as_the_state_that_it_was_made_of_wherever_the_run_is() -> None:
    state = RunState()
    statuses = set()

    for event in EVENTS:
        state = evolve(state, event)
        statuses |= {state.status, *(step.status for step in state.steps)}
        back = state_of(image_of(state))
        assert (back, repr(back)) == (state, repr(state))

    assert {"retrying", "waiting", "in_doubt", "failed", "done", "queued", "started"} < statuses


def test_an_image_is_of_a_state_and_not_of_those_that_went_on_from_it() -> None:
    state = fold(EVENTS[:18])
    fold(EVENTS[18:], state)  # the steps of its turn are now behind those of earlier ones, in a list that both share

    assert state_of(image_of(state)) == state


def test_what_was_taken_is_what_the_next_reader_goes_on_from(store: RunStore, sql: Sql) -> None:
    state = grow(store, 40)
    assert store.snapshot("run-1")
    sql("UPDATE agent_es_events SET topic = 'unknown' WHERE originator_version = 20")  # it is not looked at again

    assert store.load("run-1") == state


@pytest.mark.parametrize("version", [1, 39, 40, 41, 60])
def test_a_run_is_read_as_it_was_at_any_version_before_and_after_a_snapshot(
    store: RunStore, url: str, version: int
) -> None:
    run = begin(store, "run-1")
    for _ in range(39):
        go_on(run)
    store.save(run)
    assert store.snapshot("run-1")
    for _ in range(20):
        go_on(run)
    store.save(run)

    assert store.load("run-1", version) == folded(url, version=version)


def test_a_run_goes_on_from_a_snapshot_as_it_does_from_its_journal(store: RunStore, url: str) -> None:
    grow(store, 41)
    assert store.snapshot("run-1")

    run = store.aggregate(BenchRun, "run-1")
    go_on(run)
    store.save(run)

    assert store.load("run-1") == folded(url) == run.state


def test_a_run_that_grows_takes_them_by_itself_and_keeps_the_last_two(store: RunStore, url: str, sql: Sql) -> None:
    grow(store, 5 * FROM // 2)
    store.close()

    kept = versions(sql)

    assert 1 <= len(kept) <= KEPT
    assert kept[-1] >= FROM
    assert store.load("run-1") == folded(url)


def test_a_short_run_has_none(store: RunStore, sql: Sql) -> None:
    grow(store, FROM - 1)
    store.load("run-1")
    store.close()

    assert versions(sql) == []


def test_who_reads_a_long_run_that_has_none_leaves_one(url: str, sql: Sql) -> None:
    with closing(RunStore(url, snapshots=False)) as without:
        grow(without, FROM + 100)
    assert versions(sql) == []

    with closing(RunStore(url)) as store:
        store.load("run-1")

    assert versions(sql) == [FROM + 100]


def test_no_more_than_the_last_two_are_kept(store: RunStore, sql: Sql) -> None:
    run = begin(store, "run-1")
    for _ in range(4):
        go_on(run)
        store.save(run)
        assert store.snapshot("run-1")

    assert versions(sql) == [4, 5]


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE agent_es_snapshots SET fold = 'of yesterday'",
        "UPDATE agent_es_snapshots SET image = {nonsense}",
        "UPDATE agent_es_snapshots SET last_event = 'another'",
        "UPDATE agent_es_snapshots SET version = 39, last_event = '{other}'",
        "UPDATE agent_es_snapshots SET version = 47",
    ],
)
def test_one_that_cannot_be_believed_is_passed_over(store: RunStore, url: str, sql: Sql, harm: str) -> None:
    state = grow(store, 41)
    wrong = replace(state, goal="another one, to be seen where it is believed")
    assert store._snapshots.take(wrong)  # noqa: SLF001  # what only a fault would leave
    assert store.load("run-1") == wrong

    ((topic, data),) = sql("SELECT topic, state FROM agent_es_events WHERE originator_version = 39")
    other = digest((39, topic, bytes(data)))
    sql(harm.format(nonsense="X'00'" if url.startswith("sqlite") else r"'\x00'", other=other))

    assert store.load("run-1") == state
    assert store.snapshot("run-1")
    assert versions(sql) == ([39, 41] if "39" in harm else [41])
    assert store.load("run-1") == state


def test_the_snapshot_of_another_run_is_no_snapshot_of_this_one(store: RunStore, sql: Sql) -> None:
    state = grow(store, 41)
    grow(store, 41, "run-2")
    assert store.snapshot("run-2")
    sql("UPDATE agent_es_snapshots SET run_id = 'run-1'")

    assert store.load("run-1") == state


def test_a_rebuild_lets_go_of_all(store: RunStore, sql: Sql) -> None:
    grow(store, 41)
    assert store.snapshot("run-1")

    store.rebuild()

    assert versions(sql) == []


def test_a_snapshot_is_under_the_cipher_of_the_events(url: str, sql: Sql) -> None:
    env = {"CIPHER_TOPIC": "eventsourcing.cipher:AESCipher", "CIPHER_KEY": AESCipher.create_key(16)}
    with closing(RunStore(url, env=env)) as store:
        state = grow(store, 41)
        assert store.snapshot("run-1")
        sql("UPDATE agent_es_events SET topic = 'unknown' WHERE originator_version = 20")

        assert store.load("run-1") == state
        ((image,),) = sql("SELECT image FROM agent_es_snapshots")
        with pytest.raises(zlib.error):
            zlib.decompress(bytes(image))


def test_a_state_whose_events_are_not_there_is_no_snapshot(store: RunStore, sql: Sql) -> None:
    run = begin(store, "run-1")
    go_on(run)

    assert not store._snapshots.take(run.state)  # noqa: SLF001  # a thread that was late
    assert versions(sql) == []


def test_a_code_of_the_fold_has_a_name_and_milestones_are_a_quarter_apart() -> None:
    name = fold_name()
    places = [version for version in range(1, 40_000) if is_milestone(version - 1, version)]

    assert name is not None
    assert len(name) == 32
    assert all(after <= before * 1.26 for before, after in pairwise(places))


@given(st.integers(0, 5_000), st.integers(0, 5_000))
def test_however_far_a_run_grows_at_once_it_misses_no_milestone(before: int, more: int) -> None:
    one_by_one = any(is_milestone(version - 1, version) for version in range(before + 1, before + more + 1))

    assert is_milestone(before, before + more) or not one_by_one
