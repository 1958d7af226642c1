"""Runs looked for by what their rows say: page by page, by a text, by a tag; counted; and whether anything changed."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from agent_es import AgentRun, Effect, Finish, Runner, RunState, RunStore, Status, ToolSpec, Used, tool
from agent_es.owners import Owner
from agent_es.store import MAX_SEARCH, OLDEST, RunRecord, records
from agent_es.testing import FrozenClock
from agent_es.tools import CallTool
from benchmarks.many_runs import KINDS, fill, name_of

Sql = Callable[..., list[tuple[Any, ...]]]
Ids = list[str]
RUNS = 137
"""No whole number of pages."""


@pytest.fixture
def many(store: RunStore) -> RunStore:
    """A store of 137 runs, some of every kind."""
    fill(store, RUNS)
    return store


@pytest.fixture
def alike(store: RunStore) -> RunStore:
    """A store of twelve runs that all changed at the same time but for two."""
    for n in range(12):
        store.clock = FrozenClock(datetime(2026, 7, 5, 10, tzinfo=UTC) + timedelta(seconds={3: 1, 7: -1}.get(n, 0)))
        store.start(AgentRun, run_id=f"run-{n:02}", goal="wait")
    return store


def ids(found: Sequence[RunRecord]) -> Ids:
    return [record.run_id for record in found]


def pages(store: RunStore, limit: int, **filters: Any) -> Iterator[list[RunRecord]]:
    """Yield page after page, from the first one on."""
    found = store.runs(limit=limit, **filters)
    while found:
        yield found
        found = store.runs(limit=limit, after=found[-1].place, **filters)


# Pages.

FILTERS: list[dict[str, Any]] = [
    {},
    {"status": "done"},
    {"status": "waiting", "waiting_for": "clock"},
    {"agent": "ManyRun"},
    {"tag": ("team", "support")},
    {"search": "ord-00001"},
    {"status": "done", "agent": "ManyRun", "tag": ("team", "support"), "search": "refund"},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_page_after_page_is_every_run_once_in_the_order_of_all(many: RunStore, filters: dict[str, Any]) -> None:
    whole = ids(many.runs(limit=None, **filters))

    found = [run_id for page in pages(many, 10, **filters) for run_id in ids(page)]

    assert found == whole
    assert many.count(**filters) == len(whole) > 0


def test_runs_that_changed_at_the_same_time_have_an_order_too(alike: RunStore) -> None:
    order = ["run-03", *(f"run-{n:02}" for n in range(12) if n not in (3, 7)), "run-07"]

    assert ids(alike.runs()) == order
    assert [ids(page) for page in pages(alike, 5)] == [order[:5], order[5:10], order[10:]]


def test_the_page_before_a_place_ends_right_before_it(alike: RunStore) -> None:
    first, second, third = pages(alike, 5)

    assert alike.runs(limit=5, before=third[0].place) == second
    assert alike.runs(limit=5, before=second[0].place) == first
    assert alike.runs(limit=5, before=first[0].place) == []
    assert alike.runs(limit=5, before=first[3].place) == first[:3]


def test_before_the_oldest_is_the_last_page(alike: RunStore) -> None:
    assert ids(alike.runs(limit=5, before=OLDEST)) == ids(alike.runs())[-5:]
    assert alike.runs(after=OLDEST) == []


def test_a_run_that_changes_while_somebody_reads_moves_no_other_to_another_page(alike: RunStore) -> None:
    first, second, third = pages(alike, 5)
    alike.clock = FrozenClock(datetime(2026, 7, 6, tzinfo=UTC))

    alike.cancel(third[0].run_id, by="dana")

    assert alike.runs(limit=5, after=first[-1].place) == second
    assert ids(alike.runs(limit=5, after=second[-1].place)) == ids(third[1:])
    assert ids(alike.runs(limit=1)) == ids(third[:1])


def test_a_page_lies_next_to_one_place(store: RunStore) -> None:
    with pytest.raises(ValueError, match="give one of the two"):
        store.runs(after=OLDEST, before=OLDEST)


# A text.


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("", ["a", "b", "c_d", "e"]),
        ("REFUND", ["a"]),
        ("refund 50", ["a"]),
        ("50%", ["a"]),
        ("%", ["a"]),
        ("_", ["c_d"]),
        ("C_D", ["c_d"]),
        ("\\", ["b"]),
        ("back\\slash", ["b"]),
        ("'", ["b"]),
        ("\N{LATIN SMALL LETTER E WITH ACUTE}", ["e"]),
        ("\N{LATIN CAPITAL LETTER E WITH ACUTE}", []),
        ("CAF\N{LATIN SMALL LETTER E WITH ACUTE}", ["e"]),
        ("nul\0here", ["e"]),
        ("half \ud83d", []),
        ("support", []),
        ("x" * MAX_SEARCH, []),
        ("%" * MAX_SEARCH, []),
    ],
    ids=ascii,
)
def test_a_text_is_found_in_ids_and_goals_as_it_is_written(store: RunStore, search: str, found: Ids) -> None:
    goals = {"a": "Refund 50% of it", "b": "it's a back\\slash", "c_d": "none", "e": "caf\u00e9 nul\0here"}
    for run_id, goal in goals.items():
        store.start(AgentRun, run_id=run_id, goal=goal, tags={"team": "support"})

    assert sorted(ids(store.runs(search=search))) == found
    assert store.count(search=search) == len(found)


def test_a_text_that_nobody_would_look_for_is_refused(store: RunStore) -> None:
    with pytest.raises(ValueError, match="search of 1,001 characters: it may have 1,000"):
        store.runs(search="x" * (MAX_SEARCH + 1))


# A tag.

ODD_TAGS = [
    {"team": "support"},
    {'x"team': "support"},
    {"x,team": "support"},
    {"team": 'support"'},
    {"team": "Support"},
    {"other": '{"team":"support"'},
    {"a": "b", "team": "support", "z": "z"},
    {"team": "support", "zone": "eu"},
    {"long": "x" * 300},
]


@pytest.mark.parametrize("many_from", [0, 2, 1_000])
def test_a_tag_finds_the_same_runs_however_many_have_it(
    store: RunStore, many_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MANY", many_from)
    for n, tags in enumerate(ODD_TAGS):
        store.start(AgentRun, run_id=str(n), goal="wait", tags=tags)

    for tags in ODD_TAGS:
        for tag in tags.items():
            having = [str(n) for n, its in enumerate(ODD_TAGS) if tag in its.items()]
            assert sorted(ids(store.runs(tag=tag))) == having
            assert store.count(tag=tag) == len(having)
    assert store.runs(tag=("team", "nobody")) == []


# Counts.


def test_runs_are_counted_by_what_they_are(many: RunStore) -> None:
    counts = many.counts()

    assert (counts.total, many.count()) == (RUNS, RUNS)
    for status in Status:
        assert counts.by_status[status] == many.count(status=status) == len(many.runs(status=status, limit=None))
    assert sum(counts.waiting_for.values()) == counts.by_status[Status.WAITING]
    for what, count in counts.waiting_for.items():
        assert count == many.count(waiting_for=what) > 0


def test_every_status_is_counted_where_there_is_no_run(store: RunStore) -> None:
    counts = store.counts()

    assert counts.by_status == dict.fromkeys(Status, 0)
    assert (counts.waiting_for, counts.total) == ({}, 0)


# What was used.


class Looker(AgentRun):
    @tool(effect=Effect.READ)
    def look(self) -> str:
        return "seen"


class Paid:
    def __init__(self, *costs: str) -> None:
        self.costs = costs

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Used:
        is_last = run.turns == len(self.costs) - 1
        return Used(Finish("seen") if is_last else CallTool("look"), tokens=10, cost=self.costs[run.turns])


@pytest.mark.parametrize(
    ("costs", "cost"),
    [
        (["0.1", "0.2", "0.0125"], "0.3125"),
        (["0", "0"], "0"),
        (["0.0000000011", "0"], "0.000000002"),  # rounded up
        (["1000000000"] * 9, "9000000000"),
        (["1000000000"] * 10, "9223372036.854775807"),  # what a column holds
    ],
    ids=str,
)
def test_a_record_says_what_asking_the_decider_took(store: RunStore, sql: Sql, costs: list[str], cost: str) -> None:
    state = Runner(store, Paid(*costs)).run(Looker, run_id="run-1", goal="look")

    record = store.record("run-1")

    assert (record.tokens, record.cost) == (state.tokens, Decimal(cost))
    rows = sql("SELECT tokens, cost FROM agent_es_runs")
    store.rebuild()
    assert sql("SELECT tokens, cost FROM agent_es_runs") == rows


def test_a_cost_is_in_the_row_with_the_event_that_records_it(store: RunStore) -> None:
    runner = Runner(store, Paid("0.5", "0.25", "0.125"))
    store.start(Looker, run_id="run-1", goal="look")
    seen = [store.record("run-1").cost]
    for _ in range(3):
        runner.step("run-1")
        seen.append(store.record("run-1").cost)
        assert seen[-1] == store.load("run-1").cost

    assert seen == [0, Decimal("0.5"), Decimal("0.75"), Decimal("0.875")]


# Whether anything changed.


def test_a_moment_is_another_one_after_each_append_of_whoever_it_is(open_store: Callable[..., RunStore]) -> None:
    store, other = open_store(), open_store()
    moments = [store.moment()]

    other.start(AgentRun, run_id="run-1", goal="wait")
    moments.append(store.moment())
    store.start(AgentRun, run_id="run-2", goal="wait")
    moments.append(store.moment())
    other.cancel("run-1", by="dana")
    moments.append(store.moment())

    assert len(set(moments)) == 4
    assert store.moment() == moments[-1] or any(store.moment() == store.moment() for _ in range(100))


def test_a_moment_is_another_one_where_who_was_first_commits_last(
    open_store: Callable[..., RunStore], database: str
) -> None:
    if database == "sqlite":
        pytest.skip("whoever writes is alone")
    store, slow, fast = open_store(), open_store(), open_store()
    with slow.recorder.datastore.engine.connect() as connection:
        from sqlalchemy.orm import Session  # noqa: PLC0415

        with Session(bind=connection) as session, session.begin():
            slow.start(AgentRun, run_id="slow", goal="wait", session=session)
            fast.start(AgentRun, run_id="fast", goal="wait")
            before = store.moment()

    assert store.moment() != before
    assert {record.run_id for record in store.runs()} == {"slow", "fast"}


# A store that was filled.


def test_a_store_that_was_filled_is_what_its_events_say_and_goes_on(many: RunStore, sql: Sql) -> None:
    tables = {
        "agent_es_runs": "run_id",
        "agent_es_tags": "name, value, run_id",
        "agent_es_keys": "tool, key",
        "agent_es_inbox": "run_id, idx, kind",
    }
    rows = {table: sql(f"SELECT * FROM {table} ORDER BY {order}") for table, order in tables.items()}

    assert many.rebuild() == RUNS

    assert {table: sql(f"SELECT * FROM {table} ORDER BY {order}") for table, order in tables.items()} == rows
    for record in many.runs(limit=None):
        state = many.load(record.run_id)
        assert (state.status, state.waiting_for, state.cost) == (record.status, record.waiting_for, record.cost)
    doubt = many.runs(waiting_for="doubt")[0]
    assert many.settle(doubt.run_id, 0, "happened", by="dana").doubts == ()


def test_a_store_is_filled_with_runs_of_every_kind(store: RunStore) -> None:
    filled = fill(store, 500)

    assert [*filled] == [*KINDS]
    assert sorted(run_id for its in filled.values() for run_id in its) == [name_of(n) for n in range(500)]
    for kind, its in filled.items():
        record = store.record(its[0])
        assert kind in (record.status, record.waiting_for)
    assert len({record.updated_at for record in store.runs(limit=None)}) == 500
    assert store.leases.take(filled["pending"][0], Owner.here(), 1.0).run_id == filled["pending"][0]
    assert {item.kind for item in store.inbox(limit=None)} == {"approval", "doubt", "paused"}
