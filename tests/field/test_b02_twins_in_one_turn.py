"""B02: the same call twice in one turn runs twice, at once or one by one, and each call gets its own answer.

Run as a program, this file is the worker that dies when the first of the two results is in the journal.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    Notice,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.testing import CrashingRunner, FrozenClock

RUN_ID = "run-1"
TWIN_SEATS = (CallTool("add_seat", {"flight": "X1"}, "c1"), CallTool("add_seat", {"flight": "X1"}, "c2"))
TWO_SEARCHES = (CallTool("search", {"q": "X"}, "c1"), CallTool("search", {"q": "Y"}, "c2"))


@dataclass
class Airline:
    """Writes each body down in a file, as it starts."""

    file: Path
    second_booked: threading.Event = field(default_factory=threading.Event)

    def book(self, idx: int, flight: str) -> None:
        with self.file.open("a") as lines:
            lines.write(f"{idx} {flight}\n")

    @property
    def bookings(self) -> list[str]:
        return sorted(self.file.read_text().splitlines())


class Travel(AgentRun):
    """Books seats."""

    @tool(effect=Effect.IDEMPOTENT)
    def add_seat(self, ctx: ToolContext[Airline], flight: str) -> str:
        ctx.deps.book(ctx.idx, flight)
        return f"seat of step {ctx.idx}"

    @tool(effect=Effect.IDEMPOTENT)
    def add_seat_slowly(self, ctx: ToolContext[Airline], flight: str) -> str:
        """Book; the second seat is booked before the first one."""
        if ctx.idx == 0:
            assert ctx.deps.second_booked.wait(timeout=5)
        ctx.deps.book(ctx.idx, flight)
        return f"seat of step {ctx.idx}"

    @tool(effect=Effect.READ)
    def search(self, ctx: ToolContext[Airline], q: str) -> str:
        ctx.deps.book(ctx.idx, q)
        return f"found {q}"


class Model:
    """Makes its calls in one turn, and keeps what it is shown afterwards."""

    def __init__(self, *calls: CallTool) -> None:
        self.calls = calls
        self.shown: list[tuple[str | None, Any]] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        if run.turns == 0:
            return self.calls
        self.shown = [(step.call_id, step.result) for step in run.steps]
        return Finish("booked")


@pytest.fixture
def airline(tmp_path: Path) -> Airline:
    return Airline(tmp_path / "bookings.txt")


@pytest.fixture(params=["blocking", "awaiting"])
def drive(request: pytest.FixtureRequest) -> Callable[[Runner], RunState]:
    """Drives the run with the one loop, and with the other."""
    if request.param == "blocking":
        return lambda runner: runner.run(Travel, run_id=RUN_ID, goal="fly")
    return lambda runner: asyncio.run(runner.arun(Travel, run_id=RUN_ID, goal="fly"))


@pytest.mark.parametrize("at_once", [8, 1])
def test_twin_calls_of_one_turn_both_run(
    at_once: int, drive: Callable[[Runner], RunState], store: RunStore, airline: Airline
) -> None:
    model = Model(*TWIN_SEATS)

    state = drive(Runner(store, model, deps=airline, at_once=at_once))

    assert airline.bookings == ["0 X1", "1 X1"]
    assert model.shown == [("c1", "seat of step 0"), ("c2", "seat of step 1")]
    assert [step.key for step in state.steps] == ["run-1:0:add_seat", "run-1:1:add_seat"]
    assert [entry.type for entry in store.journal(RUN_ID)].count("tool_result") == 2


@pytest.mark.parametrize("at_once", [8, 1])
def test_two_calls_of_one_tool_with_other_arguments_both_run(
    at_once: int, drive: Callable[[Runner], RunState], store: RunStore, airline: Airline
) -> None:
    model = Model(*TWO_SEARCHES)

    drive(Runner(store, model, deps=airline, at_once=at_once))

    assert airline.bookings == ["0 X", "1 Y"]
    assert model.shown == [("c1", "found X"), ("c2", "found Y")]


def test_results_are_shown_in_decision_order_though_the_second_call_ended_first(
    drive: Callable[[Runner], RunState], store: RunStore, airline: Airline
) -> None:
    model = Model(*(CallTool("add_seat_slowly", call.args, call.call_id) for call in TWIN_SEATS))

    def let_the_first_go_on(notice: Notice) -> None:
        if notice.kind == "completed":
            airline.second_booked.set()

    drive(Runner(store, model, deps=airline, on_event=let_the_first_go_on))

    ended = [entry.data["idx"] for entry in store.journal(RUN_ID) if entry.type == "tool_result"]
    assert ended == [1, 0]
    assert model.shown == [("c1", "seat of step 0"), ("c2", "seat of step 1")]


@pytest.mark.parametrize("at_once", [8, 1])
@pytest.mark.parametrize("calls", ["seats", "searches"])
def test_after_a_kill_between_the_two_results_exactly_one_more_body_runs(
    calls: str, at_once: int, run_worker: Callable[..., int], store: RunStore, airline: Airline
) -> None:
    twins = TWIN_SEATS if calls == "seats" else TWO_SEARCHES
    exit_status = run_worker(calls, str(at_once))
    assert exit_status == -signal.SIGKILL
    assert len(airline.bookings) == 1
    assert [entry.type for entry in store.journal(RUN_ID)].count("tool_result") == 1
    model = Model(*twins)

    state = Runner(store, model, deps=airline, at_once=at_once).run(Travel, run_id=RUN_ID)

    assert state.status is Status.DONE
    assert airline.bookings == (["0 X1", "1 X1"] if calls == "seats" else ["0 X", "1 Y"])
    assert [call_id for call_id, _ in model.shown] == ["c1", "c2"]
    assert [entry.type for entry in store.journal(RUN_ID)].count("tool_result") == 2


def die_after_the_first_result(folder: Path, calls: str, at_once: str) -> None:
    def die(notice: Notice) -> None:
        if notice.kind == "completed":
            os.kill(os.getpid(), signal.SIGKILL)

    store = RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock())
    CrashingRunner(
        store,
        Model(*(TWIN_SEATS if calls == "seats" else TWO_SEARCHES)),
        deps=Airline(folder / "bookings.txt"),
        at_once=int(at_once),
        on_event=die,
    ).run(Travel, run_id=RUN_ID, goal="fly")


if __name__ == "__main__":
    die_after_the_first_result(Path(sys.argv[1]), *sys.argv[2:])
