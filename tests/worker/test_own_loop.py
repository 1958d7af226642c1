"""A loop of somebody's own, which decides and acts through an open run: by ``with``, and by ``async with``."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    Approval,
    Ask,
    Budget,
    CallTool,
    Effect,
    Envelope,
    Fail,
    Finish,
    Retry,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    StartChild,
    Status,
    ToolContext,
    Used,
    WaitFor,
    Worker,
    tool,
)
from agent_es.errors import BadAgent, BadDecision, LeaseLost, RunConflict, RunHeld, RunNotOpen, StoreBusy
from agent_es.own_loop import OpenRun
from agent_es.owners import Owner
from agent_es.testing import MovableClock

ACT = object()
Body = Callable[[OpenRun], Generator[Any, Any, Any]]
"""What is done with an open run: it yields what is to be asked, or ``ACT``, and is sent what that gives."""
In = Callable[..., Any]


def in_a_with(runner: Runner, body: Body, **options: Any) -> Any:
    with runner.open(Pays, run_id="run-1", **options) as run:
        steps, answer = body(run), None
        try:
            while True:
                said = steps.send(answer)
                answer = run.act() if said is ACT else run.decide(said)
        except StopIteration as end:
            return end.value


def in_an_async_with(runner: Runner, body: Body, **options: Any) -> Any:
    async def loop() -> Any:
        async with runner.open(Pays, run_id="run-1", **options) as run:
            steps, answer = body(run), None
            try:
                while True:
                    said = steps.send(answer)
                    answer = await (run.aact() if said is ACT else run.adecide(said))
            except StopIteration as end:
                return end.value

    return asyncio.run(loop())


@pytest.fixture(params=[in_a_with, in_an_async_with])
def within(request: pytest.FixtureRequest) -> In:
    """Opens run-1, and does with it what is given."""
    moved: In = request.param
    return moved


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def store(url: str, clock: MovableClock) -> Iterator[RunStore]:
    with RunStore(url, clock=clock) as store:
        yield store


class Pays(AgentRun):
    """Looks, and pays."""

    @tool(effect=Effect.READ)
    def look(self) -> str:
        return "in stock"

    @tool(effect=Effect.AT_MOST_ONCE, key="{order}")
    def pay(self, ctx: ToolContext[list[str]], order: str) -> str:
        ctx.deps.append(order)
        return f"paid {order}"

    @tool(effect=Effect.IDEMPOTENT, retry=Retry(max_attempts=3, initial=60))
    def remind(self, ctx: ToolContext[list[str]]) -> str:
        ctx.deps.append("reminded")
        if len(ctx.deps) < 2:
            raise TimeoutError("cut off")
        return "reminded"


LOOK = CallTool("look")
PAY = CallTool("pay", {"order": "A"})


class Asked:
    """Says the next of its lines, by the turns decided so far, and counts how often it was asked."""

    def __init__(self, *lines: Any) -> None:
        self.lines = lines
        self.turns: list[int] = []

    def __call__(self, state: RunState) -> Any:
        self.turns.append(state.turns)
        return self.lines[state.turns]


def to_the_end(asked: Callable[[RunState], Any]) -> Body:
    def body(run: OpenRun) -> Generator[Any, Any, RunState]:
        while not run.done:
            yield asked
            yield ACT
        return run.state

    return body


def once(asked: Callable[[RunState], Any]) -> Body:
    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        return (yield asked)

    return body


def never(state: RunState) -> Any:
    raise AssertionError(f"asked at turn {state.turns}")


def types(store: RunStore) -> list[str]:
    return [entry.type for entry in store.journal("run-1")]


# What a loop does.


def test_a_loop_decides_and_acts_to_the_end(store: RunStore, within: In) -> None:
    asked, paid = Asked(LOOK, PAY, Finish("paid")), list[str]()

    state = within(Runner(store, deps=paid), to_the_end(asked), goal="Pay A")

    assert (state.status, state.answer, paid, asked.turns) == (Status.DONE, "paid", ["A"], [0, 1, 2])
    assert [step.result for step in state.steps] == ["in stock", "paid A"]
    assert store.load("run-1") == state
    assert store.leases.holder("run-1") is None


def test_each_call_is_decided_before_it_is_marked_and_started(store: RunStore, within: In) -> None:
    within(Runner(store, deps=[]), to_the_end(Asked(PAY, Finish("paid"))), goal="Pay A")

    assert [(entry.type, entry.data.get("attempt")) for entry in store.journal("run-1")][1:-1] == [
        ("llm_decided", 0),
        ("llm_decided", 1),
        ("tool_result", 1),
    ]


def test_an_asynchronous_function_is_awaited(store: RunStore, within: In) -> None:
    async def ask(state: RunState) -> Finish:
        await asyncio.sleep(0)
        return Finish(state.goal)

    assert within(Runner(store), to_the_end(ask), goal="Pay A").answer == "Pay A"


def test_a_decision_that_is_open_is_given_back_and_nobody_is_asked(store: RunStore, within: In) -> None:
    asked = CallTool("pay", {"order": "A"}, call_id="call_1")

    decided = within(Runner(store, deps=[]), once(lambda _: [LOOK, asked]), goal="Pay A")
    again = within(Runner(store, deps=[]), once(never))

    assert decided == again == [LOOK, asked]


@pytest.mark.parametrize("said", [Finish({"paid": 1}), Fail("no money"), Used(Finish({"paid": 1}), tokens=3)])
def test_how_a_run_ended_is_given_back_once(said: Any, store: RunStore, within: In) -> None:
    decided = within(Runner(store), once(lambda _: said), goal="Pay A")
    again = within(Runner(store), once(never))

    assert decided == (said.decision if isinstance(said, Used) else said)
    assert again is None


def test_a_run_that_is_over_is_done_and_acting_on_it_does_nothing(store: RunStore, within: In) -> None:
    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        return run.done, (yield ACT)

    within(Runner(store), to_the_end(Asked(Finish("paid"))), goal="Pay A")
    is_done, state = within(Runner(store), body)

    assert (is_done, state.answer, types(store)) == (True, "paid", ["run_started", "finished"])


def test_what_a_model_may_be_offered_is_what_the_envelope_allows(store: RunStore, within: In) -> None:
    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        yield from ()
        return run.run_id, [spec.name for spec in run.tools]

    assert within(Runner(store), body, goal="Pay", envelope=Envelope(tools=("look",))) == ("run-1", ["look"])


def test_a_call_that_the_envelope_refuses_is_seen_by_the_next_question(store: RunStore, within: In) -> None:
    paid, seen = list[str](), list[Any]()

    def ask(state: RunState) -> Any:
        seen.append([step.error and step.error["type"] for step in state.steps])
        return PAY if not state.steps else Finish("not paid")

    within(Runner(store, deps=paid), to_the_end(ask), goal="Pay A", envelope=Envelope(tools=("look",)))

    assert (paid, seen) == ([], [[], ["Refused"]])


def test_a_run_whose_budget_is_spent_is_held_for_a_person(store: RunStore, within: In) -> None:
    asked = Asked(LOOK, LOOK)

    state = within(Runner(store), to_the_end(asked), goal="Pay A", envelope=Envelope(budget=Budget(turns=1)))

    assert (state.waiting_for, asked.turns) == ("person", [0])


def test_a_key_that_another_run_holds_is_seen_by_the_next_question(store: RunStore, within: In) -> None:
    Runner(store, ScriptedDecider([PAY, Finish("paid")]), deps=[]).run(Pays, run_id="run-0", goal="Pay A")
    paid = list[str]()

    state = within(Runner(store, deps=paid), to_the_end(Asked(PAY, Finish("again?"))), goal="Pay A")

    assert (paid, state.steps[0].error["type"]) == ([], "KeyReused")


def test_a_retry_is_waited_for_as_a_runner_does(store: RunStore, clock: MovableClock) -> None:
    reminded, slept = list[str](), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.sleep(seconds)

    runner = Runner(store, deps=reminded, max_wait=600, sleep=sleep, draw=lambda: 1.0)
    state = in_a_with(runner, to_the_end(Asked(CallTool("remind"), Finish("done"))), goal="Remind")

    assert (state.answer, len(reminded)) == ("done", 2)
    assert sum(slept) > 0


def test_a_retry_that_is_further_off_ends_the_loop_and_is_made_by_a_later_one(
    store: RunStore, clock: MovableClock, within: In
) -> None:
    reminded, asked = list[str](), Asked(CallTool("remind"), Finish("done"))

    early = within(Runner(store, deps=reminded, max_wait=0), to_the_end(asked), goal="Remind")
    clock.sleep(600)
    late = within(Runner(store, deps=reminded, max_wait=0), to_the_end(asked))

    assert (early.waiting_for, late.answer, len(reminded), asked.turns) == ("retry", "done", 2, [0, 1])


# Waits, people and children.


def test_a_wait_ends_the_loop_and_its_signal_lets_a_later_one_go_on(store: RunStore, within: In) -> None:
    asked = Asked(WaitFor("paid"), Finish("paid"))

    waiting = within(Runner(store), to_the_end(asked), goal="Wait")
    store.signal("run-1", "paid", {"sum": 1}, delivery_id="d-1")
    done = within(Runner(store), to_the_end(asked))

    assert (waiting.waiting_for, done.answer, asked.turns) == ("signal", "paid", [0, 1])


def test_a_signal_that_comes_while_the_run_is_open_is_seen(store: RunStore, within: In) -> None:
    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        yield lambda _: WaitFor("paid")
        waits = run.done
        store.signal("run-1", "paid", {"sum": 1}, delivery_id="d-1")
        yield ACT
        return waits, run.done, run.state.steps[0].woken

    waits, is_done, woken = within(Runner(store), body, goal="Wait")

    assert (waits, is_done, woken.payload) == (True, False, {"sum": 1})


def test_a_call_waits_for_a_persons_yes(store: RunStore, within: In) -> None:
    paid, asked = list[str](), Asked([LOOK, PAY], Finish("paid"))
    envelope = Envelope(needs_approval=(Approval(call="pay", by=("dana",)),))

    gated = within(Runner(store, deps=paid), to_the_end(asked), goal="Pay A", envelope=envelope)
    before = [*paid]
    store.approve("run-1", 1, by="dana")
    done = within(Runner(store, deps=paid), to_the_end(asked))

    assert (gated.waiting_for, before, asked.turns) == ("approval", [], [0, 1])
    assert (done.answer, paid) == ("paid", ["A"])


def test_a_yes_that_comes_while_the_run_is_open_is_acted_on(store: RunStore, within: In) -> None:
    paid = list[str]()

    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        yield lambda _: PAY
        yield ACT
        store.approve("run-1", 0, by="dana")
        return (yield ACT)

    envelope = Envelope(needs_approval=(Approval(call="pay", by=("dana",)),))
    state = within(Runner(store, deps=paid), body, goal="Pay A", envelope=envelope)

    assert (paid, state.steps[0].status) == (["A"], "done")


def test_a_question_to_a_person_is_answered(store: RunStore, within: In) -> None:
    asked = Asked(Ask("really?"), Finish("yes"))

    within(Runner(store), to_the_end(asked), goal="Ask")
    store.answer("run-1", 0, "yes", by="ann")
    state = within(Runner(store), to_the_end(asked))

    assert (state.answer, state.steps[0].answered.answer) == ("yes", "yes")


def test_what_a_person_says_between_decide_and_act_is_seen_by_the_next_question(store: RunStore, within: In) -> None:
    seen = list[list[str]]()

    def ask(state: RunState) -> Any:
        seen.append([message.text for message in state.messages])
        return Finish("done") if state.steps else LOOK

    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        yield ask
        store.steer("run-1", "be quick", by="ann")
        yield ACT
        yield ask

    within(Runner(store), body, goal="Look")

    assert seen == [[], ["be quick"]]


def test_what_a_person_says_while_the_function_thinks_has_it_asked_again(store: RunStore, within: In) -> None:
    seen = list[list[str]]()

    def ask(state: RunState) -> Any:
        seen.append([message.text for message in state.messages])
        if len(seen) == 1:
            store.steer("run-1", "do not pay", by="ann")
            return PAY
        return LOOK

    decided = within(Runner(store, deps=[]), once(ask), goal="Pay A")

    assert (seen, decided) == ([[], ["do not pay"]], [LOOK])


def test_a_pause_between_decide_and_act_starts_nothing(store: RunStore, within: In) -> None:
    paid = list[str]()

    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        yield lambda _: PAY
        store.pause("run-1", by="ann")
        yield ACT
        return run.done, (yield never)

    is_done, decided = within(Runner(store, deps=paid), body, goal="Pay A")
    store.resume("run-1", by="ann")
    state = within(Runner(store, deps=paid), to_the_end(Asked(PAY, Finish("paid"))))

    assert (is_done, decided, state.answer, paid) == (True, [PAY], "paid", ["A"])


def test_a_run_that_is_cancelled_between_decide_and_act_starts_nothing(store: RunStore, within: In) -> None:
    paid = list[str]()

    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        yield lambda _: PAY
        store.cancel("run-1", by="ann")
        yield ACT
        return run.done, (yield never)

    assert within(Runner(store, deps=paid), body, goal="Pay A") == (True, None)
    assert paid == []


def test_a_run_that_is_to_be_undone_is_undone_by_the_loop_and_nobody_is_asked(store: RunStore, within: In) -> None:
    did = list[str]()

    @tool(effect=Effect.IDEMPOTENT, key="{order}", compensate="release")
    def reserve(ctx: ToolContext[list[str]], order: str) -> str:
        did.append(f"reserve {order}")
        return order

    @tool(effect=Effect.IDEMPOTENT)
    def release(ctx: ToolContext[list[str]], result: str) -> None:
        did.append(f"release {result}")

    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        yield lambda _: CallTool("reserve", {"order": "A"})
        yield ACT
        store.cancel("run-1", by="ann", compensate=True)
        yield lambda _: LOOK  # asked before it was known
        while not run.done:
            yield ACT
            yield never
        return run.state

    state = within(Runner(store, deps=[], tools=[reserve, release]), body, goal="Reserve")

    assert (state.status, did) == (Status.CANCELLED, ["reserve A", "release A"])


class Child(AgentRun):
    """Is over at once."""

    decider = ScriptedDecider([Finish("grown")])


def test_a_run_that_it_starts_is_moved_too(store: RunStore, within: In) -> None:
    state = within(Runner(store), to_the_end(Asked(StartChild(Child, "grow"), Finish("done"))), goal="Start")

    assert (state.answer, state.steps[0].result["answer"]) == ("done", "grown")


def test_a_run_that_was_started_before_is_moved_by_a_later_loop(store: RunStore, within: In) -> None:
    asked = Asked(StartChild(Child, "grow"), Finish("done"))
    within(Runner(store), once(asked), goal="Start")

    state = within(Runner(store), to_the_end(asked))

    assert (state.answer, asked.turns) == ("done", [0, 1])


# Errors, and who holds the run.


def test_a_bad_decision_is_raised_and_the_loop_may_go_on(store: RunStore, within: In) -> None:
    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        try:
            run.decide(lambda _: "nonsense")  # type: ignore[arg-type,return-value]
        except BadDecision as error:
            return str(error), (yield lambda _: LOOK)

    error, decided = in_a_with(Runner(store), body, goal="Look")

    assert "the decider returned 'nonsense'" in error
    assert (decided, types(store)) == ([LOOK], ["run_started", "llm_decided"])


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()])
def test_where_the_body_of_the_with_raises_the_run_is_given_back(
    error: BaseException, store: RunStore, within: In
) -> None:
    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        yield lambda _: LOOK
        assert store.leases.holder("run-1") is not None
        raise error

    with pytest.raises(type(error)):
        within(Runner(store), body, goal="Look")

    assert store.leases.holder("run-1") is None
    assert Runner(store, ScriptedDecider([LOOK, Finish("seen")]), agents=[Pays]).resume("run-1").answer == "seen"


def test_what_the_function_raises_reaches_the_loop_and_nothing_is_recorded(store: RunStore, within: In) -> None:
    def ask(state: RunState) -> Any:
        raise TimeoutError("the model is away")

    with pytest.raises(TimeoutError, match="the model is away"):
        within(Runner(store), once(ask), goal="Look")

    assert types(store) == ["run_started"]
    assert store.leases.holder("run-1") is None


def test_after_an_append_that_failed_the_loop_goes_on_from_what_is_durable(tmp_path: Path) -> None:
    url, asked = tmp_path / "runs.db", list[int]()

    def ask(state: RunState) -> Any:
        asked.append(state.turns)
        if len(asked) == 1:
            blocker.execute("BEGIN IMMEDIATE")
        return LOOK

    with (
        RunStore(f"sqlite:///{url}", patience=0.2) as store,
        closing(sqlite3.connect(url, isolation_level=None)) as blocker,
        Runner(store).open(Pays, run_id="run-1", goal="Look") as run,
    ):
        with pytest.raises(StoreBusy):
            run.decide(ask)
        blocker.execute("ROLLBACK")
        decided = run.decide(ask)
        state = run.act()

        assert (decided, asked, state.steps[0].status) == ([LOOK], [0, 0], "done")
        assert types(store) == ["run_started", "llm_decided", "llm_decided", "tool_result"]


def test_a_run_that_another_worker_has_is_not_opened(store: RunStore, within: In) -> None:
    store.start(Pays, run_id="run-1", goal="Look")
    store.leases.take("run-1", Owner.here(), 30)

    with pytest.raises(RunHeld, match="run run-1 is held by"):
        within(Runner(store), once(never))


def test_while_it_is_open_no_other_worker_has_the_run_however_long_the_loop_thinks(
    store: RunStore, within: In
) -> None:
    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        yield lambda _: LOOK
        time.sleep(1.5)
        with pytest.raises(RunHeld):
            Runner(store, ScriptedDecider([LOOK]), agents=[Pays]).resume("run-1")
        return (yield ACT)

    state = within(Runner(store, lease=0.5), body, goal="Look")

    assert state.steps[0].status == "done"


def test_a_run_that_was_taken_over_is_decided_and_acted_on_no_more(store: RunStore, within: In) -> None:
    paid = list[str]()

    def body(run: OpenRun) -> Generator[Any, Any, Any]:
        yield lambda _: PAY
        store.leases.take("run-1", Owner.here(), 30, force=True)
        yield ACT

    with pytest.raises(LeaseLost):
        within(Runner(store, deps=paid), body, goal="Pay A")

    assert (paid, types(store)) == ([], ["run_started", "llm_decided"])


def test_a_run_is_moved_inside_its_with_statement_only(store: RunStore) -> None:
    opened = Runner(store).open(Pays, run_id="run-1", goal="Look")

    with pytest.raises(RunNotOpen, match=r"enter it: with runner\.open"):
        opened.decide(never)
    with opened as run:
        run.decide(lambda _: LOOK)
    with pytest.raises(RunNotOpen, match="run run-1: its with statement has ended"):
        run.act()
    with pytest.raises(RunNotOpen, match="run run-1: its with statement has ended"):
        asyncio.run(run.adecide(never))
    with pytest.raises(RunNotOpen, match="run run-1: it was opened before"):
        opened.__enter__()
    assert run.state.open_steps[0].status == "queued"


def test_a_run_is_started_as_by_run(store: RunStore, within: In) -> None:
    with pytest.raises(BadAgent, match="a new run needs a goal"), Runner(store).open(Pays):
        pass
    with Runner(store).open(Pays, goal="Look") as run:
        assert store.load(run.run_id).goal == "Look"
    within(Runner(store), once(lambda _: LOOK), goal="Look", input={"n": 1}, tags={"team": "a"})
    with pytest.raises(RunConflict):
        within(Runner(store), once(never), goal="Something else")
    state = store.load("run-1")
    assert (state.input, state.tags) == ({"n": 1}, {"team": "a"})


def test_a_task_that_is_cancelled_while_it_opens_a_run_gives_it_back(store: RunStore) -> None:
    taking, may_go_on = threading.Event(), threading.Event()

    class Slow(Runner):
        def hold(self, run: AgentRun) -> AgentRun:
            taking.set()
            assert may_go_on.wait(30)
            return super().hold(run)

    async def loop() -> None:
        async def work() -> None:
            async with Slow(store).open(Pays, run_id="run-1", goal="Look"):
                raise AssertionError("it was cancelled before")

        task = asyncio.create_task(work())
        assert await asyncio.to_thread(taking.wait, 30)
        task.cancel()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(loop())

    assert store.leases.holder("run-1") is None


def test_a_task_that_is_cancelled_gives_the_run_back(store: RunStore) -> None:
    async def loop() -> None:
        reached = asyncio.Event()

        async def ask(state: RunState) -> Any:
            reached.set()
            await asyncio.sleep(60)

        async def work() -> None:
            async with Runner(store).open(Pays, run_id="run-1", goal="Look") as run:
                await run.adecide(ask)

        task = asyncio.create_task(work())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(loop())

    assert store.leases.holder("run-1") is None
    assert types(store) == ["run_started"]


# Mixed use.


def test_a_decision_of_a_loop_is_acted_on_by_a_runner(store: RunStore, within: In) -> None:
    paid = list[str]()
    within(Runner(store, deps=paid), once(lambda _: PAY), goal="Pay A")

    state = Runner(store, ScriptedDecider([LOOK, Finish("paid")]), deps=paid, agents=[Pays]).resume("run-1")

    assert (state.answer, paid, [step.tool for step in state.steps]) == ("paid", ["A"], ["pay"])


def test_a_decision_of_a_loop_is_acted_on_by_a_worker(store: RunStore, within: In) -> None:
    paid = list[str]()
    within(Runner(store, deps=paid), once(lambda _: PAY), goal="Pay A")
    Worker(store, decider=ScriptedDecider([LOOK, Finish("paid")]), deps=paid, agents=[Pays]).run(until_idle=True)

    assert (store.load("run-1").answer, paid) == ("paid", ["A"])


def test_a_decision_of_a_runner_is_acted_on_by_a_loop(store: RunStore, within: In) -> None:
    paid, breaks_off = list[str](), [True]

    @tool(effect=Effect.READ)
    def count() -> int:
        if breaks_off.pop():
            raise KeyboardInterrupt
        return 3

    runner = Runner(store, ScriptedDecider([[CallTool("count"), PAY]]), deps=paid, tools=[count], at_once=1)
    with pytest.raises(KeyboardInterrupt):
        runner.run(Pays, run_id="run-1", goal="Pay A")
    breaks_off.append(False)
    asked = Asked(None, Finish("paid"))
    state = within(Runner(store, deps=paid, tools=[count]), to_the_end(asked))

    assert (state.answer, paid, asked.turns) == ("paid", ["A"], [1])
    assert [step.attempt for step in state.steps] == [2, 1]


PROGRAM = """
    import os, signal, sys
    from agent_es import AgentRun, CallTool, Effect, Runner, RunStore, tool

    class Pays(AgentRun):
        @tool(effect=Effect.AT_MOST_ONCE, key="{order}")
        def pay(self, order: str) -> str:
            os.kill(os.getpid(), signal.SIGKILL)

    store = RunStore(sys.argv[1])
    with Runner(store).open(Pays, run_id="run-1", goal="Pay A") as run:
        run.decide(lambda state: CallTool("pay", {"order": "A"}))
        if sys.argv[2] == "between":
            os.kill(os.getpid(), signal.SIGKILL)
        run.act()
"""


@pytest.mark.parametrize(("where", "status", "paid"), [("between", Status.DONE, ["A"]), ("body", Status.WAITING, [])])
def test_a_process_killed_between_decide_and_act_leaves_a_call_that_simply_runs_once(
    where: str, status: Status, paid: list[str], store: RunStore, url: str, within: In, tmp_path: Path
) -> None:
    program = tmp_path / "pays.py"
    program.write_text(dedent(PROGRAM))

    died = subprocess.run([sys.executable, str(program), url, where], check=False, timeout=60)
    did = list[str]()
    asked = Asked(None, Finish("paid"))
    state = within(Runner(store, deps=did), to_the_end(asked))

    assert died.returncode == -signal.SIGKILL
    assert (state.status, did, bool(state.doubts)) == (status, paid, where == "body")
