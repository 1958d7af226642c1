"""A small week of idle, and what makes the figures of a whole one mean something.

`python -m benchmarks --only idle` measures a whole one.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent_es import AgentRun, CallTool, Effect, Finish, Runner, RunStore, ScriptedDecider, Status, tool
from agent_es.bench.measure import Bar, Figure, Report
from agent_es.bench.report import as_markdown
from benchmarks.idle import QUICK, noted, spend, went_on
from benchmarks.sleepers import MODEL, SIGNAL, IdleRun, Sleepers

WAKES_AT = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "database",
    [pytest.param("sqlite", marks=pytest.mark.crash), pytest.param("postgres", marks=pytest.mark.postgres)],
    indirect=True,
)
def test_a_small_week_goes_by_and_all_that_was_due_goes_on_once(
    database: str, new_url: Callable[[Path], str], tmp_path: Path
) -> None:
    def new_database(name: str) -> str:
        folder = tmp_path / name
        folder.mkdir()
        return new_url(folder)

    found = spend(database, new_database, QUICK, lambda rounds, _: rounds)

    bars = {bar.name.removeprefix(f"{database}, "): bar for bar in found.bars}
    figures = {figure.name.removeprefix(f"{database}, "): figure.value for figure in found.figures}
    assert bars["of 400 due at once, went on once"].value == 400
    assert bars["went on again"].value == 0
    assert bars["threads, 1,000 asleep against 100, % more"].value == 0
    assert figures["idle worker, 1,000 asleep, threads"] == 2  # the loop and the bell: no sleeper has one
    assert figures["claims of worker 1"] + figures["claims of worker 2"] >= 400


def test_a_run_that_was_put_to_sleep_is_as_the_library_writes_one(url: str) -> None:
    with RunStore(url) as store:
        Sleepers(store).put({"copy": WAKES_AT.timestamp()})
        made, copied = ([stripped(entry.data) for entry in store.journal(name)] for name in (MODEL, "copy"))
        row = store.record("copy")

        store.rebuild()

        assert store.record("copy") == row
        assert (row.status, row.waiting_for, row.wake_at) == (Status.WAITING, "signal", WAKES_AT)
        assert copied == made


def test_a_run_that_was_put_to_sleep_is_woken_as_any_other(url: str) -> None:
    with RunStore(url) as store:
        Sleepers(store).put({"copy": WAKES_AT.timestamp()})
        store.signal("copy", SIGNAL)

        run = Runner(store, agents=[IdleRun]).resume("copy")

        assert (run.status, run.answer) == (Status.DONE, "awake")
        assert noted(store.journal("copy")) == {"copy": [run.steps[1].result]}


class TwiceRun(AgentRun):
    """Does twice what an idle run does once."""

    decider = ScriptedDecider([CallTool("note"), CallTool("note"), Finish("awake")])

    @tool(effect=Effect.READ)
    def note(self) -> float:
        return 1.5


def test_a_run_that_went_on_twice_or_not_at_all_is_seen(url: str) -> None:
    with RunStore(url) as store:
        Runner(store).run(TwiceRun, run_id="twice", goal="note")

        starts = {**noted(store.journal("twice")), "once": [1.0]}

    assert starts["twice"] == [1.5, 1.5]
    assert went_on(starts, ["once", "twice", "never"]) == (1, 1)


def test_a_table_for_the_docs_has_a_column_for_each_database_and_says_what_was_missed() -> None:
    report = Report(
        (Figure("sqlite, threads", 2, ""), Figure("postgres, threads", 3, "")),
        Bar("sqlite, claim, ms", 0.25, "at most", 1),
        (Bar("postgres, claim, ms", 1.5, "at most", 1),),
    )

    assert as_markdown(report).splitlines() == [
        "|   | SQLite | PostgreSQL |",
        "| --- | --- | --- |",
        "| claim, ms | 0.25 (met: at most 1) | 1.50 (MISSED: at most 1) |",
        "| threads | 2.00 | 3.00 |",
    ]


def stripped(data: dict[str, Any]) -> dict[str, Any]:
    """Return what an event says beside its run and its times."""
    return {name: value for name, value in data.items() if name not in ("run_id", "wake_at")}
