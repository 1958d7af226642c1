"""How a model is asked over real HTTP: what breaks on the way, in which bounds it is asked again, and streams."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.models.test import TestModel

from agent_es import AgentRun, Effect, Runner, RunState, RunStore, Status, tool
from agent_es.errors import ModelRefused, ModelUnavailable
from agent_es.integrations.pydantic_ai import Delta, Deltas, ModelDecider, Patience, asking
from agent_es.testing import FrozenClock
from tests.models.client import decider_at, model_at
from tests.models.script import Answer, Call, Fault, Ill, Script, Turn
from tests.models.stub import Stub

FORMS = ["chat", "responses"]
SEARCH = Answer("Let me see.", (Call("search", '{"query": "x"}'), Call("ping", "")))
DONE = Answer("It is done.")
TRANSPORT = [
    Fault(Ill.RATE_LIMITED, seconds=0.01),
    Fault(Ill.BROKEN, times=2),
    Fault(Ill.OVERLOADED),
    Fault(Ill.CUT_BEFORE),
    Fault(Ill.CUT_BODY),
    Fault(Ill.CUT_STREAM),
]
UNREADABLE = [Fault(Ill.MALFORMED), Fault(Ill.EMPTY_BODY), Fault(Ill.EMPTY_CHOICES)]


class Searcher(AgentRun):
    """Searches."""

    @tool(effect=Effect.READ)
    def search(self, query: str) -> str:
        """Search."""
        return f"found {query}"

    @tool(effect=Effect.READ)
    def ping(self) -> str:
        """Ping."""
        return "pong"


class Naps:
    """Sleeps that take no time, and are remembered."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}", clock=FrozenClock()) as store:
        yield store


@pytest.fixture
def run(store: RunStore) -> Callable[..., RunState]:
    def run(decider: ModelDecider) -> RunState:
        return Runner(store, decider).run(Searcher, run_id="run-1", goal="Search")

    return run


def script_with(*faults: Fault) -> Script:
    return [Turn((SEARCH,), faults), Turn((DONE,), faults)]


def types(store: RunStore) -> list[str]:
    return [entry.type for entry in store.journal("run-1")]


@pytest.mark.parametrize("streamed", ["whole", "streamed"])
@pytest.mark.parametrize("fault", TRANSPORT, ids=lambda fault: fault.ill.name.lower())
@pytest.mark.parametrize("form", FORMS)
def test_what_breaks_on_the_way_is_asked_again_in_the_same_words_and_leaves_no_trace(
    form: str, fault: Fault, streamed: str, new_stub: Callable[[Script], Stub], store: RunStore, run: Any
) -> None:
    stub = new_stub(script_with(fault))
    heard: list[Delta] = []

    state = run(decider_at(stub.url, form, on_delta=heard.append if streamed == "streamed" else None))

    assert (state.status, state.answer) == (Status.DONE, "It is done.")
    assert [request.got for request in stub.requests] == [*[fault.ill] * fault.times, "answer 0"] * 2
    assert len({request.body for request in stub.requests}) == 2
    assert "answer_unusable" not in types(store)
    assert [step.result for step in state.steps] == ["found x", "pong"]


@pytest.mark.parametrize("streamed", ["whole", "streamed"])
@pytest.mark.parametrize("fault", UNREADABLE, ids=lambda fault: fault.ill.name.lower())
@pytest.mark.parametrize("form", FORMS)
def test_an_answer_that_nobody_can_read_is_recorded_as_such_and_asked_for_again(
    form: str, fault: Fault, streamed: str, new_stub: Callable[[Script], Stub], store: RunStore, run: Any
) -> None:
    stub = new_stub(script_with(fault))

    state = run(decider_at(stub.url, form, on_delta=print if streamed == "streamed" else None))

    assert state.answer == "It is done."
    assert [request.got for request in stub.requests] == [fault.ill, "answer 0"] * 2
    assert types(store).count("answer_unusable") == 2
    assert "Your last answer could not be used: " in stub.requests[1].body


def test_a_model_that_asks_to_wait_is_waited_for(new_stub: Callable[[Script], Stub], run: Any) -> None:
    stub, naps = new_stub(script_with(Fault(Ill.RATE_LIMITED, seconds=7))), Naps()

    run(decider_at(stub.url, patience=Patience(sleep=naps)))

    assert naps.taken == [7.0, 7.0]


def test_the_waits_grow_twofold_up_to_a_bound(new_stub: Callable[[Script], Stub], run: Any) -> None:
    stub, naps = new_stub([Turn((DONE,), (Fault(Ill.BROKEN, times=4),))]), Naps()

    run(decider_at(stub.url, patience=Patience(first_wait=1, longest_wait=3, sleep=naps, draw=lambda: 1.0)))

    assert naps.taken == [1, 2, 3, 3]


@pytest.mark.parametrize(
    ("fault", "patience", "requests", "status"),
    [
        (Fault(Ill.BROKEN, times=9), Patience(attempts=3, first_wait=0), 3, 500),
        (Fault(Ill.CUT_BEFORE, times=9), Patience(attempts=2, first_wait=0), 2, None),
        (Fault(Ill.OVERLOADED, times=9), Patience(within=0.5, first_wait=1, sleep=Naps(), draw=lambda: 1), 1, 503),
        (Fault(Ill.RATE_LIMITED, times=9, seconds=61), Patience(longest_wait=60, sleep=Naps()), 1, 429),
    ],
    ids=["attempts", "no connection", "seconds", "asked to wait for too long"],
)
def test_past_the_bound_nothing_is_recorded_and_the_run_can_be_resumed(
    fault: Fault,
    patience: Patience,
    requests: int,
    status: int | None,
    new_stub: Callable[[Script], Stub],
    store: RunStore,
    run: Any,
) -> None:
    stub = new_stub([Turn((DONE,), (fault,))])

    with pytest.raises(ModelUnavailable, match="run run-1: the model gpt-5 gave no answer in") as raised:
        run(decider_at(stub.url, patience=patience))

    assert (len(stub.requests), raised.value.status) == (requests, status)
    assert types(store) == ["run_started"]
    assert (
        run(decider_at(stub.url, patience=Patience(attempts=9, longest_wait=61, within=999, sleep=Naps()))).answer
        == "It is done."
    )


def test_a_request_that_is_refused_is_not_sent_again(
    new_stub: Callable[[Script], Stub], store: RunStore, run: Any
) -> None:
    stub = new_stub([])

    with pytest.raises(ModelRefused, match=r"run run-1: the model gpt-5 refused the request.*400") as raised:
        run(decider_at(stub.url))

    assert (len(stub.requests), raised.value.status) == (1, 400)
    assert types(store) == ["run_started"]


def test_nobody_listens(store: RunStore, run: Any) -> None:
    with pytest.raises(ModelUnavailable, match="in 2 attempts"):
        run(decider_at("http://127.0.0.1:9/v1", patience=Patience(attempts=2, first_wait=0)))


@pytest.mark.parametrize("form", FORMS)
def test_deltas_of_a_broken_stream_can_be_told_from_those_of_the_next(
    form: str, new_stub: Callable[[Script], Stub], run: Any
) -> None:
    stub = new_stub([Turn((SEARCH,), (Fault(Ill.CUT_STREAM),)), DONE])
    heard: list[Delta] = []

    run(decider_at(stub.url, form, on_delta=heard.append))

    cut, good = ([one for one in heard if (one.turn, one.attempt) == (0, attempt)] for attempt in (1, 2))
    for deltas in (cut, good):
        assert [delta.index for delta in deltas] == [*range(len(deltas))]
        assert {delta.run_id for delta in deltas} == {"run-1"}
    assert "".join(delta.text for delta in good if delta.kind == "text") == "Let me see."
    assert [delta.tool for delta in good if delta.tool] == ["search", "ping"]
    assert "".join(delta.text for delta in good if delta.kind == "tool_call") == '{"query": "x"}'
    assert len(cut) < len(good)
    assert "".join(delta.text for delta in heard if delta.turn == 1) == "It is done."


def test_a_stream_that_ends_before_its_answer_does_is_asked_for_again(
    new_stub: Callable[[Script], Stub], run: Any
) -> None:
    stub = new_stub([Turn((DONE,), (Fault(Ill.NO_FINISH),))])

    state = run(decider_at(stub.url, "responses", on_delta=lambda _: None))

    assert (state.answer, len(stub.requests), state.misheard) == ("It is done.", 2, ())


def test_a_decider_counts_the_requests_of_the_runs_that_it_asked_about_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "COUNTED", 2)
    heard: list[Delta] = []
    decider = ModelDecider(TestModel(custom_output_text="done"), on_delta=heard.append)

    for run_id in "abcba":
        asyncio.run(decider.decide(RunState(run_id=run_id), ()))

    counted = [(one.run_id, one.attempt) for one in heard if one.index == 0]
    assert counted == [("a", 1), ("b", 1), ("c", 1), ("b", 2), ("a", 1)]


def test_what_hears_deltas_may_be_awaited(new_stub: Callable[[Script], Stub], run: Any) -> None:
    heard: list[str] = []

    async def hear(delta: Delta) -> None:
        await asyncio.sleep(0)
        heard.append(delta.text)

    run(decider_at(new_stub([DONE]).url, on_delta=hear))

    assert "".join(heard) == "It is done."


def test_deltas_are_read_while_a_run_goes_on_in_another_thread(
    new_stub: Callable[[Script], Stub], run: Any, store: RunStore
) -> None:
    deltas = Deltas()
    decider = decider_at(new_stub([SEARCH, DONE]).url, on_delta=deltas)

    async def read() -> list[tuple[int, str]]:
        def work() -> None:
            run(decider)
            deltas.close()

        thread = threading.Thread(target=work)
        thread.start()
        found = [(delta.turn, delta.text) async for delta in deltas]
        thread.join()
        return found

    found = asyncio.run(read())

    assert "".join(text for turn, text in found if turn == 1) == "It is done."


@pytest.mark.parametrize("shared", ["made for each", "one for all"])
def test_a_model_is_asked_from_several_threads_and_event_loops_at_once(
    shared: str, new_stub: Callable[[Script], Stub], store: RunStore
) -> None:
    make = model_at(new_stub([Turn((SEARCH,), (Fault(Ill.SLOW, times=9, seconds=0.05),)), DONE]).url)
    runner = Runner(store, ModelDecider(make() if shared == "one for all" else make))
    ends: list[str] = []

    def work(nth: int) -> None:
        ends.append(runner.run(Searcher, run_id=f"run-{nth}", goal=f"Search {nth}").answer)

    async def together() -> list[RunState]:
        return await asyncio.gather(
            *(runner.arun(Searcher, run_id=f"run-{nth}", goal=f"Search {nth}") for nth in (7, 8))
        )

    threads = [threading.Thread(target=work, args=[nth]) for nth in range(4)]
    for thread in threads:
        thread.start()
    states = asyncio.run(together())
    for thread in threads:
        thread.join()

    assert ends == ["It is done."] * 4
    assert [state.answer for state in states] == ["It is done."] * 2
