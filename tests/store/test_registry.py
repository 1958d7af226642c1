"""What is read back: through a closed registry, old versions brought up, newer ones and damaged ones refused."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
from eventsourcing.persistence import JSONTranscoder

from agent_es import AgentRun, Finish, Runner, RunStore, ScriptedDecider
from agent_es.errors import RunNotFound, RunUnreadable
from agent_es.events import REGISTRY, Event, Finished, JsonText, stream_id
from agent_es.store.mapper import EventMapper

Sql = Callable[..., list[tuple[Any, ...]]]


class Refund(AgentRun):
    pass


@pytest.fixture
def two_runs(store: RunStore) -> RunStore:
    """A store with two runs that are done: one for the tests to damage, one that must not notice."""
    for run_id in ("damaged", "other"):
        Runner(store, ScriptedDecider([Finish("refunded")])).run(Refund, run_id=run_id, goal="Refund ORD-3300")
    return store


def damage(sql: Sql, column: str, value: object, *, version: int = 2) -> None:
    statement = {"topic": "UPDATE agent_es_events SET topic = ?", "state": "UPDATE agent_es_events SET state = ?"}
    where = " WHERE originator_id = ? AND originator_version = ?"
    sql(statement[column] + where, (value, stream_id("damaged"), version))


READS: dict[str, Callable[[RunStore], object]] = {
    "load": lambda store: store.load("damaged"),
    "journal": lambda store: store.journal("damaged"),
    "aggregate": lambda store: store.aggregate(Refund, "damaged"),
    "start": lambda store: store.start(Refund, run_id="damaged", goal="Refund ORD-3300"),
    "repository": lambda store: store.repository.get(stream_id("damaged")),
}
every_read = pytest.mark.parametrize("read", READS.values(), ids=READS.keys())


# Topics.

HOSTILE_TOPICS = [
    "antigravity:fly",
    "this:s",
    "idlelib.idle:main",
    "turtledemo.clock:main",
    "os:system",
    "agent_es.events:Finished",
    "agent_es.demo:RefundRun",
    "Finished",
    "",
    "agent_es:finished",
]


@every_read
@pytest.mark.parametrize("topic", HOSTILE_TOPICS)
@pytest.mark.parametrize("version", [1, 2], ids=["first", "last"])
def test_a_stored_topic_imports_nothing_and_makes_its_run_unreadable(
    two_runs: RunStore, sql: Sql, read: Callable[[RunStore], object], topic: str, version: int
) -> None:
    damage(sql, "topic", topic, version=version)
    loaded = set(sys.modules)

    with pytest.raises(RunUnreadable, match="unknown type"):
        read(two_runs)

    assert set(sys.modules) == loaded


def test_a_stored_event_names_no_class_in_its_text_either(two_runs: RunStore, sql: Sql) -> None:
    loaded = set(sys.modules)
    text = b'{"timestamp":"2026-07-05T10:00:01Z","answer":"{\\"_type_\\":\\"antigravity:fly\\",\\"_data_\\":1}"}'

    damage(sql, "state", text)

    assert two_runs.load("damaged").answer == {"_type_": "antigravity:fly", "_data_": 1}
    assert set(sys.modules) == loaded


# Damage.

DAMAGED_STATES: dict[str, object] = {
    "nothing": b"",
    "cut": b'{"timestamp":"2026-07-05T10:00:01Z","ans',
    "no UTF-8": b"\xff\xfe",
    "a list": b"[]",
    "a number": b"1",
    "nested without end": b"[" * 100_000,
    "a field too few": b'{"timestamp":"2026-07-05T10:00:01Z"}',
    "a field too many": b'{"timestamp":"2026-07-05T10:00:01Z","answer":"1","colour":"red"}',
    "a field of another type": b'{"timestamp":"2026-07-05T10:00:01Z","answer":1}',
    "no time": b'{"timestamp":"yesterday","answer":"1"}',
    "a newer version": b'{"class_version":2,"timestamp":"2026-07-05T10:00:01Z","answer":"1"}',
    "no version yet": b'{"class_version":0,"timestamp":"2026-07-05T10:00:01Z","answer":"1"}',
    "a version that is no number": b'{"class_version":"2","timestamp":"2026-07-05T10:00:01Z","answer":"1"}',
}


@every_read
@pytest.mark.parametrize("state", DAMAGED_STATES.values(), ids=DAMAGED_STATES.keys())
def test_a_damaged_event_makes_its_run_unreadable(
    two_runs: RunStore, sql: Sql, read: Callable[[RunStore], object], state: object
) -> None:
    damage(sql, "state", state)

    with pytest.raises(RunUnreadable):
        read(two_runs)


@pytest.mark.parametrize("state", DAMAGED_STATES.values(), ids=DAMAGED_STATES.keys())
def test_beside_a_damaged_run_every_other_run_lives_on(two_runs: RunStore, sql: Sql, state: object) -> None:
    damage(sql, "state", state)

    two_runs.rebuild()

    assert two_runs.load("other").answer == "refunded"
    assert {record.run_id for record in two_runs.runs()} == {"damaged", "other"}


def test_an_unreadable_run_says_where_and_what_to_do(two_runs: RunStore, sql: Sql) -> None:
    damage(sql, "topic", "agent_es:Newer")

    with pytest.raises(RunUnreadable) as caught:
        two_runs.load("damaged")

    assert str(caught.value) == (
        "run damaged cannot be read at seq 1: it holds an event of the unknown type 'agent_es:Newer'; "
        "read it with the code that wrote it"
    )


def test_a_run_that_lost_an_event_in_the_middle_is_unreadable(two_runs: RunStore, sql: Sql) -> None:
    sql("DELETE FROM agent_es_events WHERE originator_version = 1")

    with pytest.raises(RunUnreadable):
        two_runs.load("damaged")


def test_up_to_the_damage_a_run_can_be_read(two_runs: RunStore, sql: Sql) -> None:
    damage(sql, "state", b"")

    assert two_runs.load("damaged", version=1).goal == "Refund ORD-3300"


def test_an_unreadable_run_is_not_taken_for_one_that_is_not_there(two_runs: RunStore, sql: Sql) -> None:
    damage(sql, "topic", "agent_es:Newer", version=1)

    with pytest.raises(RunUnreadable):
        two_runs.load("damaged")
    with pytest.raises(RunNotFound):
        two_runs.load("never started")


# Versions.


class Ended(Event):
    """What ``Finished`` might become: its second version says by whom."""

    class_version: ClassVar[int] = 2

    answer: JsonText
    by: str

    @staticmethod
    def upcast_v1_v2(values: dict[str, Any]) -> None:
        values["by"] = "the agent"


class EndedTwiceOver(Ended):
    """What that might become: its third version writes the name with a capital."""

    class_version: ClassVar[int] = 3

    @staticmethod
    def upcast_v2_v3(values: dict[str, Any]) -> None:
        values["by"] = values["by"].capitalize()


def reading(cls: type[Event]) -> type[RunStore]:
    """Return the store of later code, in which this class has taken the place of ``Finished``."""

    class LaterMapper(EventMapper):
        registry: Mapping[str, type[Event]] = {**REGISTRY, "agent_es:Finished": cls}

    class LaterStore(RunStore):
        def construct_mapper(self) -> EventMapper:
            mapper = self.factory.mapper(transcoder=JSONTranscoder(), mapper_class=LaterMapper)
            assert isinstance(mapper, EventMapper)
            return mapper

    return LaterStore


@pytest.mark.parametrize(("later", "by"), [(Ended, "the agent"), (EndedTwiceOver, "The agent")])
def test_an_event_of_an_older_version_is_brought_up_and_stays_stored_as_it_was(
    two_runs: RunStore, sql: Sql, open_store: Callable[..., RunStore], later: type[Event], by: str
) -> None:
    before = sql("SELECT * FROM agent_es_events")

    event: Any = open_store(reading(later)).journal("other")[-1].event

    assert (type(event), event.answer, event.by) == (later, '"refunded"', by)
    assert (event.originator_id, event.originator_version) == (stream_id("other"), 2)
    assert sql("SELECT * FROM agent_es_events") == before


def test_an_event_of_the_version_between_is_brought_up_from_there(
    two_runs: RunStore, sql: Sql, open_store: Callable[..., RunStore]
) -> None:
    damage(sql, "state", b'{"class_version":2,"timestamp":"2026-07-05T10:00:01Z","answer":"1","by":"ann"}')

    event: Any = open_store(reading(EndedTwiceOver)).journal("damaged")[-1].event

    assert event.by == "Ann"


def test_what_later_code_writes_it_reads_again_and_this_code_refuses(
    two_runs: RunStore, open_store: Callable[..., RunStore]
) -> None:
    later = open_store(reading(Ended))
    header: dict[str, Any] = {
        "originator_id": stream_id("other"),
        "originator_version": 2,
        "timestamp": later.clock(1),
    }
    event = Ended(**header, answer='"refunded"', by="ann")

    stored = later.mapper.to_stored_event(event)

    again: Any = later.mapper.to_domain_event(stored)
    assert again == event
    with pytest.raises(RunUnreadable, match="Finished was written as version 2, this code reads up to 1"):
        two_runs.mapper.to_domain_event(stored)


def test_an_event_of_an_older_version_folds_as_one_of_this_version(
    two_runs: RunStore, open_store: Callable[..., RunStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    def upcast(values: dict[str, Any]) -> None:
        values["answer"] = '{"was":' + values["answer"] + "}"

    monkeypatch.setattr(Finished, "class_version", 2)
    monkeypatch.setattr(Finished, "upcast_v1_v2", upcast, raising=False)

    later = open_store()
    state = Runner(later, ScriptedDecider([Finish("now")])).run(Refund, run_id="new", goal="Refund ORD-3300")

    assert later.load("other").answer == {"was": "refunded"}
    assert (state.answer, later.load("new").answer) == ("now", "now")
