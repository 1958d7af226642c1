"""B05, B06, B07, B31, B53: what a model is asked comes from the journal, the same bytes whoever asks.

The model is asked over HTTP; what is compared are whole bodies of requests, as they came in.
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agent_es import AgentRun, Effect, Envelope, Memory, Runner, RunState, RunStore, Status, ToolContext, tool
from agent_es.errors import StoreBusy
from agent_es.testing import Crash, CrashingRunner, CrashPoint, PaymentProvider
from tests.models.client import decider_at
from tests.models.script import Answer, Asked, Call, Script, Turn
from tests.models.strict import CHAT
from tests.models.stub import Request, Stub, asked_again

RUN_ID = "run-1"
DONE = Answer("Done.")
NewStub = Callable[[Script], Stub]
OpenStore = Callable[[], RunStore]


def texts_of(request: Request) -> tuple[list[Any], list[str]]:
    """Return the arguments of the calls in a request, parsed, and what was answered to them."""
    body = json.loads(request.body)
    if request.path == CHAT:
        calls = [call["function"] for message in body["messages"] for call in message.get("tool_calls", [])]
        answers = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    else:
        calls = [item for item in body["input"] if item.get("type") == "function_call"]
        answers = [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]
    return [json.loads(call["arguments"]) for call in calls], answers


@pytest.fixture(params=["chat", pytest.param("responses", marks=pytest.mark.crash)])
def form(request: pytest.FixtureRequest) -> str:
    return request.param


# B05: the result cannot be written.


class Charges:
    """What the provider saw, and what happens elsewhere while its first answer is on its way."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.keys: list[str | None] = []
        self.meanwhile = meanwhile

    def charge(self, key: str | None) -> str:
        self.keys.append(key)
        if len(self.keys) == 1:
            self.meanwhile()
        return "receipt-5"


class Shop(AgentRun):
    """Charges, and gets a receipt."""

    @tool(effect=Effect.IDEMPOTENT)
    def charge(self, ctx: ToolContext[Charges]) -> str:
        """Charge."""
        return ctx.deps.charge(ctx.idempotency_key)


class Accountant:
    """A script that notes at each request whether it has the receipt, and whether the journal had it before."""

    def __init__(self, journal: RunStore) -> None:
        self.journal = journal
        self.noted: list[tuple[bool, bool]] = []

    def __call__(self, asked: Asked) -> Answer:
        is_durable = any(entry.type == "tool_result" for entry in self.journal.journal(RUN_ID))
        self.noted.append(("receipt-5" in asked.body, is_durable))
        return DONE if asked.turn else Answer("", (Call("charge"),))


@pytest.fixture
def lock(store: RunStore, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of somebody else."""
    connection = sqlite3.connect(tmp_path / "runs.db", isolation_level=None, check_same_thread=False)
    with closing(connection):
        yield connection


def test_a_model_is_not_asked_with_a_result_that_could_not_be_written(
    form: str, store: RunStore, open_store: OpenStore, lock: sqlite3.Connection, new_stub: NewStub
) -> None:
    script, charges = Accountant(open_store()), Charges(lambda: lock.execute("BEGIN IMMEDIATE"))
    stub = new_stub(script)
    store.recorder.datastore.patience = 0.05
    runner = Runner(store, decider_at(stub.url, form), deps=charges)

    with pytest.raises(StoreBusy):
        runner.run(Shop, run_id=RUN_ID, goal="charge")
    assert script.noted == [(False, False)]
    lock.execute("ROLLBACK")
    state = runner.run(Shop, run_id=RUN_ID)

    assert state.status is Status.DONE
    assert script.noted == [(False, False), (True, True)]
    assert charges.keys == ["run-1:0:charge"] * 2


def test_a_model_is_asked_no_sooner_than_a_result_that_waits_for_the_lock_is_written(
    store: RunStore, open_store: OpenStore, lock: sqlite3.Connection, new_stub: NewStub
) -> None:
    def hold_for_a_moment() -> None:
        lock.execute("BEGIN IMMEDIATE")
        threading.Timer(0.3, lambda: lock.execute("ROLLBACK")).start()

    script, charges = Accountant(open_store()), Charges(hold_for_a_moment)
    store.recorder.datastore.patience = 30.0

    Runner(store, decider_at(new_stub(script).url), deps=charges).run(Shop, run_id=RUN_ID, goal="charge")

    assert script.noted == [(False, False), (True, True)]
    assert charges.keys == ["run-1:0:charge"]


# B06: half of a surrogate pair.


class Scraper(AgentRun):
    """Reads and writes texts."""

    @tool(effect=Effect.READ)
    def scrape(self) -> str:
        """Read a page that was cut in the middle of a character."""
        return "ok \ud83d"

    @tool(effect=Effect.READ)
    def stumble(self) -> str:
        """Fail over it."""
        raise ValueError("no \ude00")

    @tool(effect=Effect.IDEMPOTENT)
    def post(self, job: str) -> str:
        """Post."""
        return job


def test_half_of_a_pair_goes_out_as_valid_text_and_alike_after_each_restart(
    form: str, store: RunStore, open_store: OpenStore, new_stub: NewStub
) -> None:
    calls = (Call("scrape"), Call("stumble"), Call("post", r'{"job": "x \ud800"}'), Call("post", r'{"job\udc00": 1}'))
    script = [Answer("", calls), Answer("", (Call("scrape"),)), DONE]
    whole, stepwise = new_stub(script), new_stub(script)
    goal, word = "read \ud83d", "hurry \ud83d"

    store.start(Scraper, run_id=RUN_ID, goal=goal)
    store.steer(RUN_ID, word, by="ann")
    state = Runner(store, decider_at(whole.url, form), agents=[Scraper]).resume(RUN_ID)
    store.start(Scraper, run_id="run-2", goal=goal)
    store.steer("run-2", word, by="ann")
    while not (moved := open_store().load("run-2")).is_over:
        Runner(open_store(), decider_at(stepwise.url, form), agents=[Scraper]).step(moved.run_id)

    assert state.status is Status.DONE
    arguments, answers = texts_of(whole.requests[-1])
    assert arguments[2] == {"job": "x \ufffd"}
    assert (answers[0], answers[2], answers[4]) == ("ok \ufffd", "x \ufffd", "ok \ufffd")
    assert "no \ufffd" in answers[1]
    json.dumps([arguments, answers, json.loads(whole.requests[-1].body)], ensure_ascii=False).encode()
    assert asked_again(whole.requests, stepwise.requests) == []


# B07: the same question has another answer.


class Payer(AgentRun):
    """Pays somebody."""

    @tool(effect=Effect.IDEMPOTENT)
    def pay(self, ctx: ToolContext[PaymentProvider], to: str, amount: Decimal) -> dict[str, str]:
        """Pay."""
        return ctx.deps.refund(to, amount, key=ctx.idempotency_key)


FIRST, OTHER = (Answer("", (Call("pay", f'{{"to": "{to}", "amount": 10}}'),)) for to in ("acct-1", "acct-2"))
FICKLE = [Turn((FIRST, OTHER)), DONE]


@pytest.mark.parametrize(
    "at",
    [CrashPoint(2, "after"), CrashPoint(4, "before"), CrashPoint(4, "after"), CrashPoint(5, "after")],
    ids=["decision is durable", "before the tool", "after the effect", "result is durable"],
)
def test_a_model_that_would_say_something_else_now_is_not_asked_again(
    at: CrashPoint, open_store: OpenStore, new_stub: NewStub, provider: PaymentProvider
) -> None:
    stub = new_stub(FICKLE)
    with pytest.raises(Crash):
        CrashingRunner(open_store(), decider_at(stub.url), deps=provider, at=at).run(Payer, run_id=RUN_ID, goal="pay")

    state = Runner(open_store(), decider_at(stub.url), deps=provider).run(Payer, run_id=RUN_ID)

    assert state.status is Status.DONE
    assert [request.turn for request in stub.requests] == [0, 1]
    assert texts_of(stub.requests[1])[0] == [{"amount": 10, "to": "acct-1"}]
    assert provider.ledger == {"acct-1": "10.00"}


def test_an_answer_that_was_not_recorded_was_acted_on_by_nobody(
    open_store: OpenStore, new_stub: NewStub, provider: PaymentProvider
) -> None:
    stub = new_stub(FICKLE)
    with pytest.raises(Crash):
        CrashingRunner(open_store(), decider_at(stub.url), deps=provider, at=CrashPoint(1, "after")).run(
            Payer, run_id=RUN_ID, goal="pay"
        )

    Runner(open_store(), decider_at(stub.url), deps=provider).run(Payer, run_id=RUN_ID)

    assert [(request.turn, request.got) for request in stub.requests] == [
        *((0, "answer 0"), (0, "answer 1"), (1, "answer 0"))
    ]
    assert stub.requests[0].body == stub.requests[1].body
    assert provider.ledger == {"acct-2": "10.00"}


def test_what_waits_for_a_yes_is_what_the_model_said_first(
    open_store: OpenStore, new_stub: NewStub, provider: PaymentProvider
) -> None:
    stub, envelope = new_stub(FICKLE), Envelope(needs_approval=["pay"])

    def moved() -> RunState:
        runner = Runner(open_store(), decider_at(stub.url), deps=provider)
        return runner.run(Payer, run_id=RUN_ID, goal="pay", envelope=envelope)

    moved()
    moved()
    open_store().approve(RUN_ID, 0, by="dana")
    state = moved()

    assert (state.status, provider.ledger) == (Status.DONE, {"acct-1": "10.00"})
    assert [request.turn for request in stub.requests] == [0, 1]


# B31: odd values.


class Name(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"Name({self!s})"


@dataclass
class Shelf:
    books: dict[int, str] = field(default_factory=dict)
    pair: tuple[str, int] = ("a", 1)


class Lab(AgentRun):
    """Gives odd values."""

    @tool(effect=Effect.READ)
    def a_tuple(self):  # type: ignore[no-untyped-def]  # noqa: ANN201  # any JSON
        """Give a tuple."""
        return ("a", 1)

    @tool(effect=Effect.READ)
    def unsorted(self):  # type: ignore[no-untyped-def]  # noqa: ANN201
        """Give a dict whose keys are in no order."""
        return {"b": 1, "a": 2}

    @tool(effect=Effect.READ)
    def a_name(self):  # type: ignore[no-untyped-def]  # noqa: ANN201
        """Give a text of a class of its own."""
        return Name("ann")

    @tool(effect=Effect.READ)
    def a_shelf(self) -> Shelf:
        """Give a structure with numbers as keys."""
        return Shelf({10: "ten", 2: "two"})


ODD = [
    Answer("First.", (Call("a_tuple"), Call("unsorted", "{ }"), Call("a_name"))),
    Answer("", (Call("a_shelf"),)),
    Answer("", (Call("a_tuple", "", "c-1"), Call("a_shelf", "", ""))),
    DONE,
]


def test_a_model_reads_the_recorded_form_of_a_result_on_the_first_run_too(
    form: str, store: RunStore, new_stub: NewStub
) -> None:
    stub = new_stub(ODD)

    Runner(store, decider_at(stub.url, form)).run(Lab, run_id=RUN_ID, goal="odd")

    shelf = '{"books":{"10":"ten","2":"two"},"pair":["a",1]}'
    assert texts_of(stub.requests[3])[1] == ['["a",1]', '{"a":2,"b":1}', "ann", shelf, '["a",1]', shelf]


def test_a_run_that_is_moved_by_another_process_after_each_step_asks_the_same_bytes(
    form: str, store: RunStore, open_store: OpenStore, new_stub: NewStub
) -> None:
    whole, stepwise = new_stub(ODD), new_stub(ODD)
    Runner(store, decider_at(whole.url, form)).run(Lab, run_id=RUN_ID, goal="odd")

    store.start(Lab, run_id="run-2", goal="odd")
    while not open_store().load("run-2").is_over:
        Runner(open_store(), decider_at(stepwise.url, form), agents=[Lab]).step("run-2")

    assert len(whole.requests) == len(ODD)
    assert asked_again(whole.requests, stepwise.requests) == []


@pytest.mark.crash
def test_a_run_that_crashes_anywhere_asks_the_same_bytes(
    store: RunStore, open_store: OpenStore, new_stub: NewStub
) -> None:
    whole = new_stub(ODD)
    counted = CrashingRunner(store, decider_at(whole.url))
    counted.run(Lab, run_id="whole", goal="odd")

    for n in range(1, counted.requests + 1):
        stub, run_id = new_stub(ODD), f"crash-{n}"
        with pytest.raises(Crash):
            CrashingRunner(open_store(), decider_at(stub.url), at=CrashPoint(n, "after")).run(
                Lab, run_id=run_id, goal="odd"
            )
        Runner(open_store(), decider_at(stub.url), force_takeover=True).run(Lab, run_id=run_id)

        assert len(asked_again(whole.requests, stub.requests)) <= 1


# B53: a long conversation.


class Talker(AgentRun):
    """Talks on."""

    @tool(effect=Effect.READ)
    def talk(self, about: str) -> str:
        """Talk."""
        return about.ljust(2_000, "x")


def test_what_is_sent_does_not_grow_with_the_turns(store: RunStore, new_stub: NewStub) -> None:
    turns = 20
    talks = iter([Answer("y" * 500, (Call("talk", f'{{"about": "{turn:03}"}}'),)) for turn in range(turns)])

    def says(_: Asked) -> Answer:
        return next(talks, DONE)

    stub = new_stub(says)
    memory = Memory(cap=6_000)

    state = Runner(store, decider_at(stub.url, memory=memory)).run(Talker, run_id=RUN_ID, goal="talk")

    sizes = [len(request.body) for request in stub.requests]
    assert (state.status, len(sizes)) == (Status.DONE, turns + 1)
    assert max(sizes) <= 1.2 * max(sizes[: turns // 2])
