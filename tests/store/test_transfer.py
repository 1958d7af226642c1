"""Journals out of one store and into another: the same lines, the same runs; what cannot have happened is refused."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Finish,
    NotApplied,
    Retry,
    Runner,
    RunStore,
    ScriptedDecider,
    Status,
    ToolContext,
    tool,
)
from agent_es.errors import BadJournal, IllegalEvent, RunConflict, RunNotFound
from agent_es.testing import FrozenClock
from agent_es.tools import DidNotHappen
from agent_es.transfer import Tally, export_lines, read_journals


def never() -> DidNotHappen:
    return DidNotHappen()


class Desk(AgentRun):
    """Has a tool of every effect, and what each of them may come to."""

    retry = Retry(max_attempts=2, initial=0)

    @tool(effect="read")
    def look(self) -> str:
        raise OSError("down")

    @tool(effect="idempotent", key="{order}:pay", compensate="pay_back")
    def pay(self, order: str) -> str:
        return order

    @tool(effect="idempotent", key="{order}:pay back")
    def pay_back(self, order: str) -> str:
        return order

    @tool(effect="idempotent", retry=Retry(initial=60))
    def lag(self) -> str:
        raise TimeoutError

    @tool(effect="transactional")
    def book(self, ctx: ToolContext[Any]) -> int:
        if ctx.attempt == 1:
            raise OSError("down")
        return ctx.attempt

    @tool(effect="probed", probe=never)
    def ask(self) -> str:
        raise TimeoutError

    @tool(effect="at_most_once", key="{order}:call")
    def call(self, order: str) -> str:
        raise NotApplied(order) if order == "A" else TimeoutError

    @tool(effect="at_most_once", on_doubt="tell")
    def told(self) -> str:
        raise TimeoutError

    @tool(effect="at_most_once", on_doubt="skip")
    def skip(self) -> str:
        raise TimeoutError


PAID = CallTool("pay", {"order": "A"})
RUNS: dict[str, list[Decision]] = {
    "failures": [[CallTool("look"), PAID, PAID, CallTool("nowhere")], Finish("done")],
    "transactions": [CallTool("book"), Finish("booked")],
    "probes": [CallTool("ask"), Finish("asked")],
    "doubts told and skipped": [[CallTool("told"), CallTool("skip")], Finish("done")],
    "a doubt": [CallTool("call", {"order": "B"})],
    "a wait": [[CallTool("lag"), CallTool("call", {"order": "A"})]],
    "a renewed key": [CallTool("call", {"order": "A"}), Finish("done")],
}


@pytest.fixture
def full(store: RunStore) -> RunStore:
    """A store with a run for all that may happen to one."""
    for run_id, script in RUNS.items():
        Runner(store, ScriptedDecider(script), max_wait=1).run(Desk, run_id=run_id, goal=run_id)
    store.settle("a doubt", 0, "did_not_happen", by="ann")
    Runner(store, ScriptedDecider([]), agents=[Desk]).compensate("failures")
    parked = store.aggregate(Desk, "a wait")
    parked.record_parked("no such tool")
    store.save(parked)
    store.requeue("a wait", by="ann")
    return store


@pytest.fixture
def other(tmp_path: Path) -> Iterator[RunStore]:
    """Another store, which is empty."""
    with RunStore(f"sqlite:///{tmp_path / 'other.db'}", clock=FrozenClock()) as opened:
        yield opened


@pytest.mark.parametrize("run_id", RUNS)
def test_a_run_that_this_code_recorded_goes_over_as_it_is(full: RunStore, other: RunStore, run_id: str) -> None:
    out, back, again = Tally(), Tally(), Tally()
    lines = [*export_lines(full, [run_id], out)]

    other.put_journals(read_journals(lines, back))

    assert [*export_lines(other, [run_id], again)] == lines
    assert out.result == back.result == again.result
    assert other.load(run_id) == full.load(run_id)
    held = {"lease_owner": None, "lease_token": 0, "lease_until": None, "claims": 0}  # no event knows of leases
    assert replace(other.record(run_id), **held) == replace(full.record(run_id), **held)


def test_a_store_that_went_over_holds_the_same_keys_and_goes_on(
    full: RunStore, other: RunStore, sql: Callable[..., list[tuple[Any, ...]]]
) -> None:
    lines = [*export_lines(full, RUNS, Tally())]
    other.put_journals(read_journals(lines, Tally()))

    script = ScriptedDecider([PAID, Finish("done")])
    state = Runner(other, script).run(Desk, run_id="new", goal="pay A again")
    doubted = Runner(other, ScriptedDecider([])).run(Desk, run_id="a doubt")

    assert (state.steps[0].error or {})["type"] == "KeyReused"
    assert (doubted.steps[0].attempt, doubted.steps[0].key) == (2, "B:call#2")
    assert other.count() == full.count() + 1


def test_what_is_there_already_is_not_imported_and_nothing_else_is(full: RunStore, other: RunStore) -> None:
    lines = [*export_lines(full, ["a doubt", "probes"], Tally())]
    other.start(Desk, run_id="probes", goal="another")

    with pytest.raises(RunConflict, match="probes: already in"):
        other.put_journals(read_journals(lines, Tally()))

    assert [record.run_id for record in other.runs()] == ["probes"]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (
            lambda lines: lines[1:],
            BadJournal,
            "line 1: run probes has seq 1 where 0 comes next; nothing was imported",
        ),
        (lambda lines: [lines[0], lines[2]], BadJournal, "line 2: run probes has seq 2 where 1 comes next"),
        (lambda lines: [lines[0], "{"], BadJournal, "line 2: .*; nothing was imported"),
        (lambda lines: [lines[0], lines[0].replace('"seq": 0', '"seq": 1')], IllegalEvent, "run probes seq 1"),
        (
            lambda lines: [line.replace('"tool": "ask"', '"tool": "pay"', 1) for line in lines[:2]] + lines[2:],
            IllegalEvent,
            "seq 2",
        ),
    ],
    ids=["without its first", "without its second", "cut", "begun twice", "another tool"],
)
def test_lines_that_no_store_of_ours_wrote_are_refused(
    full: RunStore, change: Callable[[list[str]], list[str]], error: type[Exception], says: str
) -> None:
    lines = [*export_lines(full, ["probes"], Tally())]

    with pytest.raises(error, match=says):
        read_journals(change(lines), Tally())


def test_a_run_that_is_not_there_is_told_by_name(full: RunStore) -> None:
    with pytest.raises(RunNotFound, match="no run 'run-0'"):
        [*export_lines(full, ["run-0"], Tally())]


def test_the_runs_that_go_over_come_to_all_that_there_is(full: RunStore) -> None:
    states = {run_id: full.load(run_id) for run_id in RUNS}

    assert {run_id: (state.status, state.waiting_for) for run_id, state in states.items()} == {
        "failures": (Status.CANCELLED, None),
        "transactions": (Status.DONE, None),
        "probes": (Status.DONE, None),
        "doubts told and skipped": (Status.DONE, None),
        "a doubt": (Status.RUNNING, None),
        "a wait": (Status.RUNNING, None),
        "a renewed key": (Status.DONE, None),
    }
    assert states["a renewed key"].steps[0].key == "A:call#2"
