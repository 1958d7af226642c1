"""B53: what a run stores, and what its next step takes, grow with its turns and not with their square."""

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Effect,
    Finish,
    Memory,
    OpenRun,
    Runner,
    RunState,
    RunStore,
    Said,
    ToolSpec,
    Used,
    tool,
)
from agent_es.decider import Answered
from agent_es.scratchpad import active

TURNS, EVERY = 100, 25
MESSAGE = 2_000
IMAGE = 3_000_000


class Chats(AgentRun):
    """Looks at a picture once, then talks on."""

    @tool(effect=Effect.READ, max_result_bytes=2 * IMAGE)
    def look(self) -> str:
        return os.urandom(IMAGE // 2).hex()

    @tool(effect=Effect.READ)
    def talk(self, turn: int) -> str:
        return f"{turn:06} ".ljust(MESSAGE // 2, "x")


class Model:
    """Says something long each turn, and reads what a model would."""

    memory = Memory(cap=8_000, longest_result=2_000)

    def __init__(self, turns: int, *, has_image: bool = False) -> None:
        self.turns = turns
        self.has_image = has_image
        self.read: list[int] = []

    def decide(self, run: RunState, _tools: Sequence[ToolSpec], /) -> Answered:
        self.read.append(sum(len(entry.text) for entry in active(run, longest=self.memory.longest_result)))
        if run.turns == self.turns:
            return Finish("done")
        decision = CallTool("look") if self.has_image and not run.turns else CallTool("talk", {"turn": run.turns})
        return Used(decision, said=Said("test", f"{run.turns:06} ".ljust(MESSAGE // 2, "y")))


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def talked(folder: Path, turns: int, *, has_image: bool = False) -> tuple[int, Model]:
    """Return what a run of so many turns takes on the disk, with a snapshot every so often."""
    folder.mkdir()
    model = Model(turns, has_image=has_image)
    with RunStore(f"sqlite:///{folder / 'runs.db'}") as store, opened(store, model) as run:
        while not run.done:
            run.decide(lambda state: model.decide(state, ()))
            if run.act().turns % EVERY == 0:
                store.snapshot("run-1")
    return size_of(folder), model


def opened(store: RunStore, model: Model) -> OpenRun:
    return Runner(store, agents=[Chats]).open(Chats, run_id="run-1", goal="talk", memory=model.memory)


def test_twice_the_turns_take_about_twice_the_bytes(tmp_path: Path) -> None:
    once, _ = talked(tmp_path / "once", TURNS)
    twice, _ = talked(tmp_path / "twice", 2 * TURNS)

    assert twice <= 2.3 * once


def test_what_a_turn_reads_does_not_grow_with_the_run(tmp_path: Path) -> None:
    _, model = talked(tmp_path / "run", 2 * TURNS)

    assert max(model.read[TURNS:]) <= 1.1 * max(model.read[:TURNS])
    assert max(model.read) <= model.memory.cap * 4


def test_an_image_is_stored_with_its_result_and_with_the_snapshots_that_are_kept_not_with_each_turn(
    tmp_path: Path,
) -> None:
    without, _ = talked(tmp_path / "without", TURNS)
    with_image, model = talked(tmp_path / "with", TURNS, has_image=True)

    assert IMAGE < with_image - without < 3.5 * IMAGE  # the journal, and two snapshots
    assert max(model.read) < IMAGE


@pytest.mark.crash
def test_the_next_step_of_a_run_that_stays_open_takes_no_longer_for_its_length(tmp_path: Path) -> None:
    model, times = Model(2_000), list[float]()
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as store, opened(store, model) as run:
        while not run.done:
            began = time.perf_counter()
            run.decide(lambda state: model.decide(state, ()))
            run.act()
            times.append(time.perf_counter() - began)

    early, late = statistics.median(times[100:400]), statistics.median(times[-300:])
    assert late <= 1.5 * early, (early, late)
