"""B02, B23, B35, B46, B50, B56: whatever became of its calls, a model reads one answer to each, in decision order.

The model is asked over HTTP, by an API that refuses a request with a call too few, too many, or out of its place.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent_es import AgentRun, Ask, Effect, Envelope, Runner, RunState, RunStore, Status, ToolContext, WaitFor, tool
from agent_es.testing import Crash, CrashingRunner, CrashPoint
from tests.models.client import decider_at
from tests.models.script import Answer, Call, Script
from tests.models.strict import Part, check
from tests.models.stub import Request, Stub

RUN_ID = "run-1"
DONE = Answer("Done.")
QUICK = Call("quick", "{}", "c1")
UNPROTECTED = Call("unprotected", "{}", "c2")
IN_THE_SECOND_BODY = CrashPoint(8, "after")  # decide, append, start, done, append twice, start, done
NOBODY_KNOWS = "happened. Nobody knows whether it happened."

NewStub = Callable[[Script], Stub]
OpenStore = Callable[[], RunStore]


@dataclass
class World:
    """How long each call takes, in seconds; what is to fail, and what was done."""

    seconds: dict[str, float] = field(default_factory=dict)
    fails: frozenset[str] = frozenset()
    done: list[str] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None

    def do(self, what: str) -> str:
        time.sleep(self.seconds.get(what, 0))
        self.done.append(what)
        if what in self.fails:
            raise ValueError(f"no {what}")
        return what


class Desk(AgentRun):
    """Has tools of several kinds."""

    @tool(effect=Effect.READ)
    def quick(self, ctx: ToolContext[World]) -> str:
        """Do nothing that lasts."""
        return ctx.deps.do("quick")

    @tool(effect=Effect.READ)
    def look_up(self, ctx: ToolContext[World], name: str) -> str:
        """Look something up."""
        return ctx.deps.do(name)

    @tool(effect=Effect.IDEMPOTENT)
    def add_seat(self, ctx: ToolContext[World], flight: str) -> str:
        """Book one seat more."""
        return f"{flight}: {ctx.deps.do(ctx.idempotency_key or '')}"

    @tool(effect=Effect.IDEMPOTENT)
    def edit(self, ctx: ToolContext[World], path: str) -> str:
        """Edit a file."""
        return ctx.deps.do(path)

    @tool(effect=Effect.AT_MOST_ONCE, on_doubt="tell")
    def unprotected(self, ctx: ToolContext[World]) -> str:
        """Do what nobody can find out about later."""
        ctx.deps.meanwhile()
        return ctx.deps.do("unprotected")

    @tool(effect=Effect.AT_MOST_ONCE, on_doubt="tell")
    async def waits(self, ctx: ToolContext[World]) -> str:
        """Wait for long."""
        ctx.deps.meanwhile()
        await asyncio.sleep(60)
        return "waited"


def moved(store: RunStore, stub: Stub, world: World, *, form: str = "chat", **options: Any) -> RunState:
    """Let a worker start the run, or go on with it, as far as it comes."""
    envelope, agent = options.pop("envelope", None), options.pop("agent", Desk)
    offers = options.pop("offers", ())
    runner = Runner(store, decider_at(stub.url, form, offers=offers), deps=world, **options)
    return runner.run(agent, run_id=RUN_ID, goal="work", envelope=envelope)


def parts_of(request: Request) -> list[Part]:
    return check(request.path, json.loads(request.body), ())


def called(request: Request) -> list[tuple[str, str, Any]]:
    """Return the id, the tool and the arguments of each call in a request."""
    calls = [part.data for part in parts_of(request) if part.kind == "call"]
    return [(call["call_id"], call["name"], json.loads(call["arguments"])) for call in calls]


def answered(request: Request) -> list[tuple[str, str]]:
    """Return the id and the content of each answer to a call in a request; of an error, what it says."""
    answers = [part.data for part in parts_of(request) if part.kind == "answer"]
    contents = [answer.get("content") or answer["output"] for answer in answers]
    told = [json.loads(text)["error"] if text.startswith('{"error"') else text for text in contents]
    return [(answer["call_id"], text) for answer, text in zip(answers, told, strict=True)]


def kinds(request: Request) -> list[str]:
    return [part.kind for part in parts_of(request) if part.kind != "spoke"]


def said(request: Request) -> list[str]:
    return [part.data["content"] for part in parts_of(request) if part.kind == "said"]


def got(stub: Stub) -> list[str]:
    return [request.got for request in stub.requests]


@pytest.fixture(params=["chat", pytest.param("responses", marks=pytest.mark.crash)])
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def world() -> World:
    return World()


# B02, B35, B50: several calls of one turn.


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize(
    ("given", "ids"),
    [(("c1", "c2"), ["c1", "c2"]), (("same", "same"), ["same", "call_1"]), (("", ""), ["call_0", "call_1"])],
    ids=["own ids", "one id twice", "no ids"],
)
def test_twins_of_one_turn_are_both_made_and_answered_each_under_its_own_id(
    given: Sequence[str], ids: list[str], at_once: int, store: RunStore, new_stub: NewStub, world: World
) -> None:
    calls = tuple(Call("add_seat", '{"flight": "X1"}', call_id) for call_id in given)
    stub = new_stub([Answer("", calls), DONE])
    world.seconds = {"run-1:0:add_seat": 0.03}

    state = moved(store, stub, world, at_once=at_once)

    assert (state.status, len(world.done)) == (Status.DONE, 2)
    assert called(stub.requests[1]) == [(call_id, "add_seat", {"flight": "X1"}) for call_id in ids]
    assert answered(stub.requests[1]) == [(call_id, f"X1: run-1:{idx}:add_seat") for idx, call_id in enumerate(ids)]


def test_a_call_of_the_same_tool_with_other_arguments_is_not_dropped(
    form: str, store: RunStore, new_stub: NewStub, world: World
) -> None:
    calls = (Call("look_up", '{"name": "X"}', "c1"), Call("look_up", '{"name": "Y"}', "c2"))
    stub = new_stub([Answer("", calls), Answer("", calls), DONE])

    moved(store, stub, world, form=form)

    assert answered(stub.requests[2]) == [("c1", "X"), ("c2", "Y"), ("call_2", "X"), ("call_3", "Y")]


@pytest.mark.parametrize("fails", [frozenset[str](), frozenset({"b"})], ids=["all end well", "the middle one fails"])
def test_the_next_request_is_the_same_whatever_order_three_calls_end_in(
    fails: frozenset[str], store: RunStore, open_store: OpenStore, new_stub: NewStub
) -> None:
    calls = tuple(Call("look_up", f'{{"name": "{name}"}}', f"c-{name}") for name in "abc")
    ends, bodies = set[str](), set[str]()

    for number, order in enumerate(["cab", "abc", "bca"]):
        stub = new_stub([Answer("", calls), DONE])
        world = World({name: at * 0.03 for at, name in enumerate(order)}, fails)
        decider = decider_at(stub.url)
        Runner(open_store(), decider, deps=world).run(Desk, run_id=f"run-{number}", goal="work")
        ends.add("".join(world.done))
        bodies.add(stub.requests[1].body)

        middle = "ValueError: no b" if fails else "b"
        assert answered(stub.requests[1]) == [("c-a", "a"), ("c-b", middle), ("c-c", "c")]

    assert len(ends) > 1
    assert len(bodies) == 1


# B23: what was left in the middle.


def test_a_call_whose_worker_died_in_it_is_answered_with_the_doubt(
    form: str, open_store: OpenStore, new_stub: NewStub, world: World
) -> None:
    stub = new_stub([Answer("", (QUICK, UNPROTECTED)), DONE])
    dying = CrashingRunner(open_store(), decider_at(stub.url, form), deps=world, at=IN_THE_SECOND_BODY, at_once=1)
    with pytest.raises(Crash):
        dying.run(Desk, run_id=RUN_ID, goal="work")
    assert world.done == ["quick", "unprotected"]

    state = moved(open_store(), stub, world, form=form)

    assert (state.status, world.done) == (Status.DONE, ["quick", "unprotected"])
    first, (call_id, doubt) = answered(stub.requests[1])
    assert (first, call_id) == (("c1", "quick"), "c2")
    assert doubt.endswith(NOBODY_KNOWS)


def test_a_person_who_interrupts_a_call_and_says_something_else_is_heard_after_both_answers(
    form: str, store: RunStore, new_stub: NewStub, world: World
) -> None:
    stub = new_stub([Answer("", (QUICK, Call("waits", "{}", "c2"))), DONE])

    async def interrupt() -> None:
        runner = Runner(store, decider_at(stub.url, form), deps=world, at_once=1)
        task = asyncio.create_task(runner.arun(Desk, run_id=RUN_ID, goal="work"))
        world.meanwhile = task.cancel
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupt())
    store.steer(RUN_ID, "never mind, do X", by="ann")
    state = moved(store, stub, world, form=form)

    assert (state.status, got(stub)) == (Status.DONE, ["answer 0", "answer 0"])
    assert kinds(stub.requests[1]) == ["said", "call", "call", "answer", "answer", "said"]
    assert answered(stub.requests[1])[0] == ("c1", "quick")
    assert answered(stub.requests[1])[1][1].endswith(NOBODY_KNOWS)
    assert said(stub.requests[1])[-1] == "ann says: never mind, do X"


@pytest.mark.parametrize(
    ("call", "envelope", "why"),
    [
        (Call("burn", "{}", "c2"), None, "ToolUnknown: no tool 'burn'"),
        (Call("edit", '{"path": 5}', "c2"), None, "BadArguments: edit: path"),
        (Call("edit", '{"path": "a"}', "c2"), Envelope(tools=("quick",)), "Refused: edit is outside of quick"),
    ],
    ids=["unknown", "bad arguments", "outside the envelope"],
)
def test_a_call_that_is_refused_is_answered_with_the_reason(
    call: Call, envelope: Envelope | None, why: str, form: str, store: RunStore, new_stub: NewStub, world: World
) -> None:
    stub = new_stub([Answer("", (QUICK, call, replaced(QUICK, "c3"))), DONE])

    state = moved(store, stub, world, form=form, envelope=envelope)

    assert state.status is Status.DONE
    assert [call_id for call_id, _ in answered(stub.requests[1])] == ["c1", "c2", "c3"]
    assert answered(stub.requests[1])[1][1].startswith(why)
    assert world.done == ["quick", "quick"]


def test_a_call_that_a_person_denies_is_answered_with_her_reason(
    form: str, store: RunStore, new_stub: NewStub, world: World
) -> None:
    stub = new_stub([Answer("", (Call("edit", '{"path": "a"}', "c1"), replaced(QUICK, "c2"))), DONE])
    moved(store, stub, world, form=form, envelope=Envelope(needs_approval=["edit"]))

    store.deny(RUN_ID, 0, by="ann", reason="not that file")
    state = moved(store, stub, world, form=form, envelope=Envelope(needs_approval=["edit"]))

    assert (state.status, world.done) == (Status.DONE, ["quick"])
    (first, denial), second = answered(stub.requests[1])
    assert (first, second) == ("c1", ("c2", "quick"))
    assert "not that file" in denial


def replaced(call: Call, call_id: str) -> Call:
    return Call(call.name, call.arguments, call_id)


# B46: other arguments than those that the model gave.


def test_a_call_that_ran_with_a_persons_arguments_is_shown_as_the_model_said_it_with_what_came_of_it(
    form: str, open_store: OpenStore, new_stub: NewStub, world: World
) -> None:
    stub = new_stub([Answer("", (Call("edit", '{"path": "a.txt"}', "c1"),)), DONE])
    envelope = Envelope(needs_approval=["edit"])
    moved(open_store(), stub, world, form=form, envelope=envelope)

    open_store().approve(RUN_ID, 0, by="ann", args={"path": "b.txt"}, agent=Desk)
    moved(open_store(), stub, world, form=form, envelope=envelope)

    assert world.done == ["b.txt"]
    assert called(stub.requests[1]) == [("c1", "edit", {"path": "a.txt"})]
    assert answered(stub.requests[1]) == [("c1", "b.txt")]


# B56: a tool is gone, or has another name.


class Renamed(AgentRun):
    """The desk after a deploy: what looked up has another name, and nothing else is there."""

    agent_name = "Desk"

    @tool(effect=Effect.READ, aliases=["look_up"])
    def search(self, ctx: ToolContext[World], name: str) -> str:
        """Search."""
        return ctx.deps.do(f"search {name}")


class Gone(AgentRun):
    """The desk after another one: nothing looks up."""

    agent_name = "Desk"

    @tool(effect=Effect.READ)
    def quick(self, ctx: ToolContext[World]) -> str:
        """Do nothing that lasts."""
        return ctx.deps.do("quick")


LOOK_UP = Answer("", (Call("look_up", '{"name": "x"}', "c1"),))
ASKED = Envelope(needs_approval=["look_up"])


def tools_in(request: Request) -> list[str]:
    return [(tool.get("function") or tool)["name"] for tool in json.loads(request.body)["tools"]]


@pytest.mark.parametrize("after", [Gone, Renamed])
def test_a_call_of_a_tool_that_is_gone_since_stays_in_the_conversation_with_its_answer(
    after: type[AgentRun], form: str, open_store: OpenStore, new_stub: NewStub, world: World
) -> None:
    stub = new_stub([LOOK_UP, DONE])
    store = open_store()
    store.start(Desk, run_id=RUN_ID, goal="work")
    Runner(store, decider_at(stub.url, form), deps=world, agents=[Desk]).step(RUN_ID)

    state = moved(open_store(), stub, world, form=form, agent=after)

    assert state.status is Status.DONE
    assert called(stub.requests[1]) == [("c1", "look_up", {"name": "x"})]
    assert answered(stub.requests[1]) == [("c1", "x")]
    assert "look_up" not in tools_in(stub.requests[1])


def test_a_pending_call_that_runs_under_a_new_name_is_shown_under_that_which_the_model_said(
    form: str, open_store: OpenStore, new_stub: NewStub, world: World
) -> None:
    stub = new_stub([LOOK_UP, DONE])
    moved(open_store(), stub, world, form=form, envelope=ASKED)
    open_store().approve(RUN_ID, 0, by="ann")

    state = moved(open_store(), stub, world, form=form, envelope=ASKED, agent=Renamed)

    assert (state.status, world.done) == (Status.DONE, ["search x"])
    assert called(stub.requests[1]) == [("c1", "look_up", {"name": "x"})]
    assert answered(stub.requests[1]) == [("c1", "search x")]


def test_a_model_is_not_asked_over_a_pending_call_whose_tool_is_gone_and_a_denial_answers_it(
    form: str, open_store: OpenStore, new_stub: NewStub, world: World
) -> None:
    stub = new_stub([LOOK_UP, DONE])
    moved(open_store(), stub, world, form=form, envelope=ASKED)

    waits = moved(open_store(), stub, world, form=form, envelope=ASKED, agent=Gone)
    assert (waits.status, len(stub.requests)) == (Status.WAITING, 1)
    open_store().deny(RUN_ID, 0, by="ann", reason="nobody looks up any more")
    state = moved(open_store(), stub, world, form=form, envelope=ASKED, agent=Gone)

    assert (state.status, world.done) == (Status.DONE, [])
    ((call_id, denial),) = answered(stub.requests[1])
    assert (call_id, "nobody looks up any more" in denial) == ("c1", True)


# What people say meanwhile.


def test_what_a_person_says_in_the_middle_of_a_turn_comes_after_the_answers_of_that_turn(
    form: str, store: RunStore, open_store: OpenStore, new_stub: NewStub, world: World
) -> None:
    stub = new_stub([Answer("", (UNPROTECTED, replaced(QUICK, "c3"))), Answer("", (QUICK,)), DONE])
    elsewhere = open_store()
    world.meanwhile = lambda: elsewhere.steer(RUN_ID, "the blue one", by="ann")

    moved(store, stub, world, form=form, at_once=1)

    one_turn = ["said", "call", "call", "answer", "answer", "said"]
    assert [kinds(request) for request in stub.requests[1:]] == [one_turn, [*one_turn, "call", "answer"]]
    assert [said(request) for request in stub.requests] == [["work"], *[["work", "ann says: the blue one"]] * 2]


def test_questions_and_waits_are_answered_in_their_place_beside_a_call_and_a_word_of_a_person(
    form: str, open_store: OpenStore, new_stub: NewStub, world: World
) -> None:
    ask = Call("ask_person", '{"question": "Which?", "choices": ["red", "blue"]}', "c1")
    wait = Call("wait_for", '{"signal": "paid"}', "c3")
    stub, offers = new_stub([Answer("One moment.", (ask, replaced(QUICK, "c2"), wait)), DONE]), (Ask, WaitFor)

    moved(open_store(), stub, world, form=form, offers=offers)
    store = open_store()
    store.signal(RUN_ID, "paid", {"amount": 3}, delivery_id="d-1")
    store.steer(RUN_ID, "hurry", by="ann")
    still = moved(open_store(), stub, world, form=form, offers=offers)
    assert (still.status, len(stub.requests)) == (Status.WAITING, 1)
    (question,) = store.inbox()
    store.answer(RUN_ID, question.idx, "blue", by="ann")
    state = moved(open_store(), stub, world, form=form, offers=offers)

    assert (state.status, world.done) == (Status.DONE, ["quick"])
    assert kinds(stub.requests[1]) == ["said", *["call"] * 3, *["answer"] * 3, "said"]
    assert said(stub.requests[1]) == ["work", "ann says: hurry"]
    (one, red_or_blue), two, (three, paid) = answered(stub.requests[1])
    assert (one, two, three) == ("c1", ("c2", "quick"), "c3")
    assert json.loads(red_or_blue)["answer"] == "blue"
    assert json.loads(paid)["payload"] == {"amount": 3}
