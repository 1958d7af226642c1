"""B30: a result whose class was moved, renamed or changed is an object of today's class, or parks its run by name.

Run as a program, this file is yesterday's worker: its classes live in ``__main__``.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, Field

from agent_es import AgentRun, CallTool, Decision, Finish, Runner, RunState, RunStore, Status, tool
from agent_es.errors import ResultDoesNotFit
from agent_es.testing import CrashingRunner, CrashPoint, FrozenClock, sigkill

RUN_ID = "run-1"
AFTER_THE_RESULT = CrashPoint(5, "after")  # decide, append, start, next done, append


class Order(BaseModel):
    """As it was when the result was recorded."""

    qty: int
    by: str


class Purchase(BaseModel):
    """The same, moved and renamed; the old field's name is read too."""

    quantity: int = Field(validation_alias=AliasChoices("quantity", "qty"))
    by: str


class Renamed(BaseModel):
    """The same, with another name for a field, and nothing that reads the old one."""

    quantity: int
    by: str


class Lenient(BaseModel):
    """The same, with a default where the old name stood."""

    quantity: int = 1
    by: str


@dataclass
class Box:
    """Computes one of its fields."""

    sides: tuple[int, int]
    area: int = field(init=False)

    def __post_init__(self) -> None:
        self.area = self.sides[0] * self.sides[1]


def shop(annotation: Any, value: Any = None) -> type[AgentRun]:
    """Return the agent of one deploy, whose tool is annotated like that."""

    def order(self: AgentRun) -> Any:
        if value is None:
            raise AssertionError("it was ordered before")
        return value

    order.__annotations__["return"] = annotation
    return type("Shop", (AgentRun,), {"agent_name": "Shop", "order": tool(effect="idempotent")(order)})


class Model:
    """Orders, then looks at what was ordered, as it is typed today."""

    def __init__(self, agent: type[AgentRun]) -> None:
        self.agent = agent
        self.seen: list[Any] = []

    def decide(self, run: RunState, tools: Any, /) -> Decision:
        if not run.turns:
            return CallTool("order")
        self.seen.append(self.agent.agent_tools["order"].result_of(run.steps[0]))
        return Finish("looked")


@pytest.fixture
def ordered(run_worker: Callable[..., int]) -> None:
    """Yesterday's worker recorded an ``Order`` of its ``__main__``, and is gone."""
    assert run_worker() < 0


@pytest.mark.usefixtures("ordered")
@pytest.mark.parametrize(
    ("annotation", "value"), [(Order, Order(qty=2, by="x")), (Purchase, Purchase(quantity=2, by="x"))]
)
def test_a_class_that_was_moved_and_renamed_reads_what_its_forebear_recorded(
    annotation: Any, value: Any, store: RunStore
) -> None:
    model = Model(shop(annotation))

    state = Runner(store, model).run(model.agent, run_id=RUN_ID)

    assert (state.status, model.seen) == (Status.DONE, [value])
    assert type(model.seen[0]) is annotation


@pytest.mark.usefixtures("ordered")
@pytest.mark.parametrize("annotation", [Renamed, dict[str, int], list[Order], int, None], ids=str)
def test_a_class_that_no_longer_fits_parks_its_run_by_name_and_no_other_run(annotation: Any, store: RunStore) -> None:
    model = Model(shop(annotation))

    parked = Runner(store, model).run(model.agent, run_id=RUN_ID)

    assert (parked.status, parked.waiting_for, model.seen) == (Status.WAITING, "person", [])
    name = getattr(annotation, "__name__", str(annotation)) if annotation in (Renamed, int) else ""
    assert f"step 0: the recorded result of order does not fit {name}" in (parked.parked or "")
    other = shop(Order, Order(qty=3, by="y"))
    assert Runner(store, Model(other)).run(other, run_id="run-2", goal="order").status is Status.DONE


@pytest.mark.usefixtures("ordered")
def test_a_run_that_was_parked_goes_on_where_the_class_fits_again(store: RunStore) -> None:
    Runner(store, Model(shop(Renamed))).run(shop(Renamed), run_id=RUN_ID)
    store.requeue(RUN_ID, by="ann")
    model = Model(shop(Purchase))

    state = Runner(store, model).run(model.agent, run_id=RUN_ID)

    assert (state.status, model.seen) == (Status.DONE, [Purchase(quantity=2, by="x")])


@pytest.mark.usefixtures("ordered")
def test_a_field_that_was_recorded_is_never_silently_left_out_for_a_default(store: RunStore) -> None:
    (step,) = store.load(RUN_ID).steps

    with pytest.raises(ResultDoesNotFit, match="order does not fit Lenient"):
        shop(Lenient).agent_tools["order"].result_of(step)


def test_a_field_that_is_computed_is_computed_again(open_store: Callable[[], RunStore]) -> None:
    agent = shop(Box, Box((2, 3)))
    Runner(open_store(), Model(agent)).run(agent, run_id=RUN_ID, goal="order")

    back = agent.agent_tools["order"].result_of(open_store().load(RUN_ID).steps[0])

    assert (type(back), back, back.area) == (Box, Box((2, 3)), 6)


def order_and_die(folder: Path) -> None:
    agent = shop(Order, Order(qty=2, by="x"))
    CrashingRunner(
        RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock()),
        Model(agent),
        at=AFTER_THE_RESULT,
        die=sigkill,
    ).run(agent, run_id=RUN_ID, goal="order")


if __name__ == "__main__":
    order_and_die(Path(sys.argv[1]))
