"""A worker whose model is asked over HTTP dies at any place: what the model hears is what it would have heard.

Run as a program, this file is the worker that gets a SIGKILL.
"""

import signal
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agent_es import AgentRun, Effect, Runner, RunStore, ToolContext, tool
from agent_es.scratchpad import Memory
from agent_es.testing import (
    Crash,
    CrashingRunner,
    CrashPoint,
    Ending,
    FrozenClock,
    PaymentProvider,
    Scenario,
    sigkill,
    survives_every_crash,
)
from tests.models.client import decider_at
from tests.models.script import Answer, Asked, Call, Fault, Ill, Script, Turn
from tests.models.stub import Request, Stub, asked_again

ROOT = Path(__file__).parents[2]
RUN_ID, GOAL = "run-1", "Refund ORD-3300"
POLICY = Call("search_policy", '{"query": "window"}')
REFUND = Call("process_refund", '{"order_id": "ORD-3300", "amount": 180}')


def cut_first(asked: Asked) -> Answer:
    """Say a cut answer, a call, two calls of which one is odd, and an end."""
    if asked.turn == 0 and "could not be used" not in asked.body:
        return Answer("", finish="length")
    said = [Answer("First the policy.", (POLICY,)), Answer("", (REFUND, Call("search_policy", "[1]", "x")))]
    return [*said, Answer("Refunded.")][asked.turn]


OPAQUE = [Answer("", (POLICY,), reasoning="EqQB/+=="), Answer("", (REFUND,), reasoning="+/=="), Answer("Refunded.")]
FORMS: dict[str, Script] = {"chat": cut_first, "responses": OPAQUE}


class Refunder(AgentRun):
    """Refunds an order once."""

    @tool(effect=Effect.READ)
    def search_policy(self, query: str) -> str:
        """Look up the refund policy."""
        return f"{query}: thirty days"

    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:refund:{amount:.2f}")
    def process_refund(self, ctx: ToolContext[PaymentProvider], order_id: str, amount: Decimal) -> dict[str, str]:
        """Refund an order."""
        return ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)


def open_in(folder: Path) -> tuple[RunStore, PaymentProvider]:
    store = RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock())
    return store, PaymentProvider(folder / "provider.db")


def play(folder: Path, url: str, form: str, kind: Callable[..., Runner] = Runner, **life: Any) -> Runner:
    """Let one worker move the run as far as it comes."""
    folder.mkdir(exist_ok=True)
    store, provider = open_in(folder)
    runner = kind(store, decider_at(url, form), deps=provider, **life)
    try:
        runner.run(Refunder, run_id=RUN_ID, goal=GOAL)
    finally:
        store.close()
    return runner


def recorded(folder: Path) -> int:
    """Return how many answers of the model are durable, usable or not."""
    with open_in(folder)[0] as store:
        entries = [*store.journal(RUN_ID)] if store.runs() else []
    return sum(entry.type in {"llm_answered", "answer_unusable"} for entry in entries)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def whole(form: str, tmp_path: Path, new_stub: Callable[[Script], Stub]) -> list[Request]:
    """What the model hears where nobody dies."""
    stub = new_stub(FORMS[form])
    play(tmp_path / "whole", stub.url, form)
    return stub.requests


@pytest.mark.crash
def test_a_request_is_repeated_only_where_its_answer_was_not_durable(
    form: str, whole: list[Request], tmp_path: Path, new_stub: Callable[[Script], Stub]
) -> None:
    counted = play(tmp_path / "counted", new_stub(FORMS[form]).url, form, CrashingRunner)
    points = [CrashPoint(n, side) for n in range(1, counted.requests + 1) for side in ("before", "after")]
    repeats = list[int]()

    for point in points:
        stub, folder = new_stub(FORMS[form]), tmp_path / f"{point.n}-{point.side}"
        with pytest.raises(Crash):
            play(folder, stub.url, form, CrashingRunner, at=point)
        unheard = len(stub.requests) - recorded(folder)
        play(folder, stub.url, form)

        assert unheard in (0, 1), point
        assert len(asked_again(whole, stub.requests)) == unheard, point
        repeats.append(unheard)

    assert 0 < sum(repeats) < len(points)


@pytest.mark.parametrize(
    "crashes", [pytest.param(1, marks=pytest.mark.crash), pytest.param(2, marks=pytest.mark.exhaustive)]
)
def test_a_run_whose_model_is_asked_over_http_survives_every_crash(
    crashes: int, form: str, whole: list[Request], new_stub: Callable[[Script], Stub]
) -> None:
    stub = new_stub(FORMS[form])
    seen = 0

    def heard_the_same(ending: Ending) -> None:
        nonlocal seen
        found, seen = stub.requests[seen:], len(stub.requests)
        assert len(asked_again(whole, found)) <= crashes
        assert ending.world.ledger == {"ORD-3300": "180.00"}

    scenario = Scenario(
        agent=Refunder,
        decider=lambda: decider_at(stub.url, form),
        world=lambda folder: PaymentProvider(folder / "provider.db"),
        goal=GOAL,
        run_id=RUN_ID,
    )

    report = survives_every_crash(scenario, heard_the_same, crashes=crashes, sample=None if crashes == 1 else 40)

    assert report.runs > 30


@pytest.mark.parametrize(
    ("n", "side"),
    [
        pytest.param(n, side, marks=pytest.mark.crash if n in (3, 9) and side == "after" else pytest.mark.exhaustive)
        for n in (3, 6, 9, 12)
        for side in ("before", "after")
    ],
)
def test_the_model_hears_the_same_from_a_process_that_takes_over_from_one_that_was_killed(
    n: int, side: str, form: str, whole: list[Request], tmp_path: Path, new_stub: Callable[[Script], Stub]
) -> None:
    stub, folder = new_stub(FORMS[form]), tmp_path / "killed"

    worker = [sys.executable, "-m", "tests.models.test_model_crashes", folder, stub.url, form]

    killed = subprocess.run([*worker, str(n), side], cwd=ROOT, check=False, timeout=60)
    unheard = len(stub.requests) - recorded(folder)
    again = subprocess.run(worker, cwd=ROOT, check=False, timeout=60)

    assert (killed.returncode, again.returncode) == (-signal.SIGKILL, 0)
    assert len(asked_again(whole, stub.requests)) == unheard


@pytest.mark.crash
def test_what_breaks_on_the_way_does_not_show_in_what_comes_after_a_crash(
    form: str, tmp_path: Path, new_stub: Callable[[Script], Stub]
) -> None:
    faults = (Fault(Ill.CUT_STREAM), Fault(Ill.BROKEN))
    first, last = Answer("", (POLICY,)), Answer("Done.")
    calm, rough = new_stub([first, last]), new_stub([Turn((first,), faults), last])
    play(tmp_path / "calm", calm.url, form)

    with pytest.raises(Crash):
        play(tmp_path / "rough", rough.url, form, CrashingRunner, at=CrashPoint(2, "before"))
    play(tmp_path / "rough", rough.url, form)

    assert asked_again(calm.requests, rough.requests) == [0, 0, 0]


@pytest.mark.crash
def test_summaries_are_asked_for_in_the_same_words_whoever_dies(new_stub: Callable[[Script], Stub]) -> None:
    def says(asked: Asked) -> Answer:
        if "The goal of the work" in asked.body:
            return Answer("The policy was read.")
        if "policy was read" not in asked.body:
            return Answer("", (Call("search_policy", f'{{"query": "{"window " * 150}"}}'),))
        return Answer("Done.")

    whole = list[Request]()
    stub, seen = new_stub(says), 0

    def heard_the_same(ending: Ending) -> None:
        nonlocal seen
        found, seen = stub.requests[seen:], len(stub.requests)
        whole.extend(found if not whole else [])
        assert len(asked_again(whole, found)) <= 1
        assert [summary.text for summary in ending.state.summaries] == ["The policy was read."]

    def decider() -> Any:
        usual = decider_at(stub.url)
        usual.memory = Memory(cap=300, keep=0, summarizer=usual.memory.summarizer)
        return usual

    report = survives_every_crash(Scenario(agent=Refunder, decider=decider, goal=GOAL), heard_the_same)

    assert report.runs > 10


if __name__ == "__main__":
    where, url, spoken, *point = sys.argv[1:]
    if point:
        at = CrashPoint(int(point[0]), point[1])  # type: ignore[arg-type]  # before or after
        play(Path(where), url, spoken, CrashingRunner, at=at, die=sigkill)
    play(Path(where), url, spoken)
