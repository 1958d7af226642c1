"""Limits that all workers share: so many calls a second, so many at once, and who must wait is a row."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_es import (
    AgentRun,
    CallTool,
    Finish,
    Runner,
    RunStore,
    ScriptedDecider,
    Status,
    ToolContext,
    tool,
)
from agent_es.cli.app import app
from agent_es.errors import BadLimit
from agent_es.owners import Owner
from agent_es.worker import Worker

PER_SECOND, PROCESSES, CALLS = 5.0, 4, 40


Sql = Callable[..., list[tuple[Any, ...]]]


class Caller(AgentRun):
    """Calls a service, and notes when."""

    decider = ScriptedDecider([CallTool("ask"), Finish("asked")])

    @tool(effect="read")
    def ask(self, ctx: ToolContext[Path]) -> None:
        began = time.time()
        time.sleep(0.02)
        with ctx.deps.open("a") as file:
            file.write(f"{began} {time.time()}\n")


def calls_in(file: Path) -> list[tuple[float, float]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return sorted((float(began), float(ended)) for began, ended in map(str.split, lines))


def busiest(calls: Sequence[tuple[float, float]]) -> int:
    """Return how many calls went on at once, at most."""
    moments = sorted([(began, 1) for began, _ in calls] + [(ended, -1) for _, ended in calls])
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


@pytest.mark.crash
def test_a_rate_holds_over_four_processes(url: str, tmp_path: Path) -> None:
    notes = tmp_path / "calls"
    with RunStore(url) as store:
        store.limit("ask", per_second=PER_SECOND)
        for n in range(CALLS):
            store.start(Caller, run_id=f"run-{n}", goal="ask")

    processes = [subprocess.Popen([sys.executable, __file__, url, str(notes)]) for _ in range(PROCESSES)]
    with RunStore(url) as store:
        until = time.monotonic() + 60
        while len(store.runs(status=Status.DONE, limit=None)) < CALLS and time.monotonic() < until:
            time.sleep(0.1)
    for process in processes:
        process.terminate()
        process.wait(20)

    began = [began for began, _ in calls_in(notes)]
    rate = (CALLS - 1) / (began[-1] - began[0])
    assert len(began) == CALLS
    assert 0.9 * PER_SECOND <= rate <= 1.1 * PER_SECOND
    busiest_seconds = max(sum(start <= other < start + 3.0 for other in began) for start in began)
    assert busiest_seconds <= 3.0 * 1.1 * PER_SECOND + 2  # of those that a busy machine was late with


def test_a_call_that_must_wait_makes_its_run_wait_as_a_row_and_starts_at_its_time(url: str, tmp_path: Path) -> None:
    with RunStore(url) as store:
        store.limit("ask", per_second=2.0)
        runner = Runner(store, deps=tmp_path / "calls", max_wait=0.0)
        first = runner.run(Caller, run_id="run-1", goal="ask")
        second = runner.run(Caller, run_id="run-2", goal="ask")
        third = runner.run(Caller, run_id="run-3", goal="ask")

        assert [state.status for state in (first, second, third)] == [Status.DONE, Status.WAITING, Status.WAITING]
        assert store.record("run-2").wake_at is not None
        delays = [
            (entry.at, entry.data)
            for run_id in ("run-2", "run-3")
            for entry in store.journal(run_id)
            if entry.type == "call_delayed"
        ]
        assert [delay["is_given"] for _, delay in delays] == [True, True]
        assert second.wake_at is not None
        assert third.wake_at is not None
        assert (third.wake_at - second.wake_at).total_seconds() == pytest.approx(0.5, abs=0.01)
        done = Runner(store, deps=tmp_path / "calls").resume("run-3")
        assert done.status is Status.DONE
        assert calls_in(tmp_path / "calls")[-1][0] >= third.wake_at.timestamp()


def test_so_many_calls_at_once_over_all_workers_and_a_dead_one_holds_no_place(
    url: str, sql: Sql, tmp_path: Path
) -> None:
    notes = tmp_path / "calls"
    with RunStore(url) as store:
        store.limit("ask", at_once=2)
        for n in range(12):
            store.start(Caller, run_id=f"run-{n}", goal="ask")
        for n in range(2):  # of dead workers, whose leases nobody holds
            store.start(Caller, run_id=f"dead-{n}", goal="ask")
            sql("INSERT INTO agent_es_rate_holds VALUES ('ask', '', '', ?, 0)", (f"dead-{n}",))

        Worker(store, agents=[Caller], deps=notes, concurrency=8).run(until_idle=True)
        until = time.monotonic() + 30
        while len(store.runs(status=Status.DONE)) < 14 and time.monotonic() < until:
            Worker(store, agents=[Caller], deps=notes, concurrency=8).run(until_idle=True)
            time.sleep(0.05)

        assert len(calls_in(notes)) == 14
        assert busiest(calls_in(notes)) <= 2
        assert store.recorder.select("SELECT run_id FROM agent_es_rate_holds", ()) == []


def test_a_call_whose_time_has_come_still_needs_a_place_and_keeps_its_time(
    url: str, sql: Sql, tmp_path: Path
) -> None:
    notes = tmp_path / "calls"
    with RunStore(url) as store:
        store.limit("ask", per_second=4.0, at_once=1)
        runner = Runner(store, deps=notes, max_wait=0.0)
        assert runner.run(Caller, run_id="run-1", goal="ask").status is Status.DONE
        assert runner.run(Caller, run_id="run-2", goal="ask").status is Status.WAITING
        store.start(Caller, run_id="busy", goal="ask")
        store.leases.take("busy", Owner.here(), 30.0)
        sql("INSERT INTO agent_es_rate_holds VALUES ('ask', '', '', 'busy', 0)")
        time.sleep(0.3)

        held_up = runner.resume("run-2")
        sql("DELETE FROM agent_es_rate_holds")
        done = Runner(store, deps=notes).resume("run-2")

        delays = [entry.data["is_given"] for entry in store.journal("run-2") if entry.type == "call_delayed"]
        assert (held_up.status, delays) == (Status.WAITING, [True, True])
        assert done.status is Status.DONE
        assert len(calls_in(notes)) == 2
        assert store.recorder.select("SELECT run_id FROM agent_es_rate_holds", ()) == []


def test_each_value_of_a_tag_is_held_to_a_limit_apart(url: str, tmp_path: Path) -> None:
    with RunStore(url) as store:
        store.limit("ask", per_second=1.0, tag="tenant")
        runner = Runner(store, deps=tmp_path / "calls", max_wait=0.0)
        found = [
            runner.run(Caller, run_id=f"run-{n}", goal="ask", tags=tags).status
            for n, tags in enumerate([{"tenant": "a"}, {"tenant": "b"}, {"tenant": "a"}, {}, {}])
        ]

    assert Counter(found) == {Status.DONE: 4, Status.WAITING: 1}
    assert found[2] is Status.WAITING


def test_a_limit_that_is_taken_away_holds_nobody(url: str, tmp_path: Path) -> None:
    with RunStore(url) as store:
        store.limit("ask", per_second=0.001)
        store.limit("ask")
        runner = Runner(store, deps=tmp_path / "calls", max_wait=0.0)

        assert [runner.run(Caller, run_id=f"run-{n}", goal="ask").status for n in range(3)] == [Status.DONE] * 3
        assert store.rates.listed() == []


def test_a_limit_that_is_no_number_is_refused(url: str) -> None:
    with RunStore(url) as store:
        for wrong in ({"per_second": 0.0}, {"per_second": float("inf")}, {"at_once": 0}):
            with pytest.raises(BadLimit, match="ask"):
                store.limit("ask", **wrong)


def test_the_command_keeps_a_limit_and_shows_all(url: str) -> None:
    def said(*words: str) -> str:
        return CliRunner().invoke(app, ["limit", *words, "--store", url], catch_exceptions=False).output

    assert "no tool has a limit" in (RunStore(url).close() or said())
    said("ask", "--per-second", "5", "--tag", "tenant")
    told = json.loads(said("mail", "--at-once", "2", "--json"))
    assert told == [
        {"tool": "ask", "tag": "tenant", "per_second": 5.0, "at_once": None},
        {"tool": "mail", "tag": "", "per_second": None, "at_once": 2},
    ]
    assert [*map(str.split, said("mail").splitlines())][1:] == [["ask", "tenant", "5.0"]]


if __name__ == "__main__":
    _, told_url, told_notes = sys.argv
    with RunStore(told_url) as opened:
        Worker(opened, agents=[Caller], deps=Path(told_notes), concurrency=4).run()
