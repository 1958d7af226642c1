"""What people do to a run at the moment at which its runner appends: a cancellation, a pause, a message.

Who moves the run and who acts on it have stores of their own, and meet a few milliseconds apart, each before the
other and both at once.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, TypeVar

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    DidNotHappen,
    Effect,
    Envelope,
    Finish,
    Retry,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    WaitFor,
    tool,
)
from agent_es.decider import Answered, Used
from agent_es.envelope import Budget, Usage
from agent_es.errors import IllegalEvent, OutcomeUnknown
from agent_es.events import ToolResult
from agent_es.run import Planned
from agent_es.tools import Returned

T = TypeVar("T")

OFFSETS = (-0.005, 0.0, 0.005)
"""Seconds by which a person is later than what the run does."""
LEAD = 0.008
"""Seconds before the moment at which both sides know it."""
ENDS = {"finished", "run_failed", "cancelled", "compensation_ended"}
SURE = {"done", "failed", "in_doubt"}
"""What may be known of a call that is not under way."""


class Moment:
    """When the run does what a person is to meet."""

    def __init__(self) -> None:
        self._is_set = threading.Event()
        self._at = 0.0

    def comes(self) -> None:
        """Say that it is about to come, and return when it has; one that was is over."""
        if not self._is_set.is_set():
            self._at = time.perf_counter() + LEAD
            self._is_set.set()
            self.await_it(0.0)

    def await_it(self, offset: float) -> None:
        """Wait until so many seconds after it."""
        assert self._is_set.wait(30)
        time.sleep(max(0.0, self._at + offset - time.perf_counter()))


def settles(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not ready() and time.monotonic() < until:
        time.sleep(0.005)


class MomentAfter(Moment):
    """One that comes when something is so."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        super().__init__()
        self._ready = ready

    def comes(self) -> None:
        settles(self._ready)


@dataclass
class World:
    """What bodies did, in order; the moment may be in one of them."""

    moment: Moment = field(default_factory=Moment)
    at: str = ""
    """In which body the moment is."""
    after: str = ""
    """Which body ends a little later than that."""
    begun: list[str] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)

    def do(self, what: str) -> str:
        self.begun.append(what)
        if what == self.at:
            self.moment.comes()
        if what == self.after:
            self.moment.await_it(0.003)
        self.happened.append(what)
        return what


class Race:
    """A runner in a thread of its own, and a person; each has a store."""

    def __init__(self, runners: RunStore, persons: RunStore, pool: ThreadPoolExecutor) -> None:
        self.runners, self.store, self._pool = runners, persons, pool

    def between(self, run: Callable[[], T], moment: Moment, offset: float, act: Callable[[], Any]) -> tuple[T, Any]:
        """Return what the run comes to, and what the person is told, who acts so many seconds after the moment."""
        moves = self._pool.submit(run)
        moment.await_it(offset)
        told = act()
        return moves.result(30), told


@pytest.fixture
def race(url: str) -> Iterator[Race]:
    with ExitStack() as opened:
        stores = [opened.enter_context(RunStore(url)) for _ in range(2)]
        yield Race(stores[0], stores[1], opened.enter_context(ThreadPoolExecutor(1)))


def types(store: RunStore, run_id: str) -> list[str]:
    return [entry.type for entry in store.journal(run_id)]


# Cancelled as it finishes.


class Answers:
    """Decides at the moment: it finishes."""

    def __init__(self) -> None:
        self.moment = Moment()

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
        self.moment.comes()
        return Finish("done")


def test_a_run_that_is_cancelled_as_it_finishes_ends_once_and_who_cancels_it_is_told_how(race: Race) -> None:
    ends = Counter[Status]()
    for number, offset in zip(range(200), cycle(OFFSETS), strict=False):
        run_id, answers = f"run-{number}", Answers()
        runner = Runner(race.runners, answers)

        returned, told = race.between(
            lambda: runner.run(AgentRun, run_id=run_id, goal="end"),  # noqa: B023  # it is run in this round
            answers.moment,
            offset,
            lambda: race.store.cancel(run_id, by="ann"),  # noqa: B023
        )

        stored = race.store.load(run_id)
        assert [kind for kind in types(race.store, run_id) if kind in ENDS] == [
            "finished" if stored.status is Status.DONE else "cancelled"
        ]
        assert told == stored
        assert returned == stored
        ends[stored.status] += 1
    assert {*ends} == {Status.DONE, Status.CANCELLED}


# Cancelled while bodies are under way.


class Trips(AgentRun):
    """Books, and can undo that; mails, and cannot."""

    @tool(effect=Effect.IDEMPOTENT, compensate="unbook")
    def book(self, ctx: ToolContext[World], name: str, price: int = 1) -> str:
        return ctx.deps.do(f"book {name}")

    @tool(effect=Effect.IDEMPOTENT)
    async def abook(self, ctx: ToolContext[World], name: str) -> str:
        return ctx.deps.do(f"book {name}")

    @tool(effect=Effect.IDEMPOTENT)
    def unbook(self, ctx: ToolContext[World], name: str) -> str:
        return ctx.deps.do(f"unbook {name}")

    @tool(effect=Effect.AT_MOST_ONCE)
    def mail(self, ctx: ToolContext[World], name: str) -> str:
        return ctx.deps.do(f"mail {name}")

    @tool(effect=Effect.READ, retry=Retry(initial=0))
    def look(self, ctx: ToolContext[World]) -> None:
        ctx.deps.do("look")
        raise ValueError

    def never(self) -> DidNotHappen:
        return DidNotHappen()

    @tool(effect=Effect.PROBED, probe=never)
    def dies(self, ctx: ToolContext[World]) -> None:
        ctx.deps.do("dies")
        raise SystemExit

    @tool(effect=Effect.IDEMPOTENT)
    def lose(self, ctx: ToolContext[World]) -> None:
        ctx.deps.do("lose")
        raise OutcomeUnknown("the connection was lost")


class Script:
    """Says line after line."""

    def __init__(self, *lines: Answered) -> None:
        self.lines = lines

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
        return self.lines[run.turns]


def test_of_calls_that_are_under_way_when_their_run_is_cancelled_it_is_known_what_they_come_to(race: Race) -> None:
    third = Counter[str]()
    for number, offset in zip(range(30), cycle(OFFSETS), strict=False):
        run_id, world = f"run-{number}", World(at="book left", after="mail right")
        turn = [Trips.book.call(name="left"), Trips.mail.call(name="right"), Trips.book.call(name="third")]
        runner = Runner(race.runners, Script(turn, Finish("all")), deps=world, at_once=2)

        returned, told = race.between(
            lambda: runner.run(Trips, run_id=run_id, goal="travel"),  # noqa: B023  # it is run in this round
            world.moment,
            offset,
            lambda: race.store.cancel(run_id, by="ann", reason="enough"),  # noqa: B023
        )

        assert {returned.status, told.status} <= {Status.CANCELLED, Status.DONE}
        assert {step.status for state in (returned, told) for step in state.steps} <= SURE
        settles(lambda: not race.store.load(run_id).doubts)  # noqa: B023  # what nobody waits for comes late
        steps = race.store.load(run_id).steps
        assert [(step.status, step.result) for step in steps[:2]] == [("done", "book left"), ("done", "mail right")]
        assert [steps[2].status == "done", "book third" in world.happened] in ([True, True], [False, False])
        assert len({*world.begun}) == len(world.begun)
        third[steps[2].status] += 1
    assert third["failed"] > 0


class Slow(RunStore):
    """A store through which the first result comes late: when the run is cancelled, and its other body has ended."""

    def save(self, *objs: Any, **kwargs: Any) -> Any:
        (run,) = objs
        if any(isinstance(event, ToolResult) and event.idx == 0 for event in run.pending_events):
            self.before()
        return super().save(run, **kwargs)

    before: Callable[[], object]


@pytest.mark.parametrize("tool", ["book", "abook"])
@pytest.mark.parametrize("how", ["run", "arun"])
def test_a_result_that_nobody_has_asked_for_yet_when_its_run_is_cancelled_is_recorded(
    how: str, tool: str, url: str
) -> None:
    world = World()
    turn = [CallTool(tool, {"name": name}) for name in ("left", "right")]

    with Slow(url) as store:

        def before() -> None:
            settles(lambda: len(world.happened) == len(turn))
            time.sleep(0.05)  # its outcome is at hand by now
            store.cancel("run-1", by="ann")

        store.before = before
        runner = Runner(store, Script(turn, Finish("all")), deps=world)
        if how == "run":
            state = runner.run(Trips, run_id="run-1", goal="travel")
        else:
            state = asyncio.run(runner.arun(Trips, run_id="run-1", goal="travel"))

        assert state.status is Status.CANCELLED
        assert [step.result for step in store.load("run-1").steps] == ["book left", "book right"]


def test_a_call_of_which_nobody_knows_whether_it_happened_stays_in_doubt_when_its_run_was_cancelled(
    race: Race,
) -> None:
    world = World(at="lose")
    runner = Runner(race.runners, Script(Trips.lose.call(), Finish("?")), deps=world)

    _, told = race.between(
        lambda: runner.run(Trips, run_id="run-1", goal="travel"),
        world.moment,
        -0.005,
        lambda: race.store.cancel("run-1", by="ann"),
    )

    (before,), (after,) = told.steps, race.store.load("run-1").steps
    assert (before.status, after.status) == ("in_doubt", "in_doubt")
    assert "the connection was lost" in (after.doubt or "")
    assert [(item.kind, item.idx) for item in race.store.inbox()] == [("doubt", 0)]
    assert world.begun == ["lose"]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_run_that_is_to_be_undone_ends_what_is_under_way_begins_nothing_and_undoes_each_effect_once(
    race: Race, at_once: int
) -> None:
    book = Trips.book.call
    turn = [book(name="b"), book(name="c"), book(name="d", price=200), WaitFor("never"), book(name="e")]
    envelope = Envelope(needs_approval=("book.price > 100",))
    undone_of = Counter[int]()
    for number, offset in zip(range(24), cycle(OFFSETS), strict=False):
        run_id, world = f"run-{number}", World(at="book b", after="book c")
        runner = Runner(race.runners, Script(book(name="a"), turn), deps=world, at_once=at_once, max_wait=0.0)

        _, told = race.between(
            lambda: runner.run(Trips, run_id=run_id, goal="travel", envelope=envelope),  # noqa: B023  # in this round
            world.moment,
            offset,
            lambda: race.store.cancel(run_id, by="ann", compensate=True),  # noqa: B023
        )
        begun = [what for what in world.begun if what.startswith("book")]
        state = runner.resume(run_id)  # where it waited for a person before it was cancelled

        assert told.compensating
        assert (state.status, state.compensating) == (Status.CANCELLED, False)
        assert race.store.load(run_id) == state
        assert [kind for kind in types(race.store, run_id) if kind in ENDS] == ["compensation_ended"]
        booked = [what for what in world.happened if what.startswith("book")]
        ended = [step.args["name"] for step in state.steps if step.tool == "book" and step.status == "done"]
        assert sorted(booked) == sorted(begun) == [f"book {name}" for name in ended]
        assert world.happened[len(booked) :] == [f"unbook {name}" for name in reversed(ended)]
        assert {(s.status, (s.error or {}).get("type")) for s in (state.steps[3], state.steps[4])} == {
            ("failed", "Cancelled")
        }
        undone_of[len(booked)] += 1
    assert undone_of[1 + at_once] > 0, "nothing was cancelled before it had begun"


def test_what_surely_did_not_happen_is_not_begun_again_in_a_run_that_is_to_be_undone(url: str) -> None:
    world = World()
    turn = [CallTool("book", {"name": "left"}), CallTool("look")]

    with Slow(url) as store:
        store.before = lambda: store.cancel("run-1", by="ann", compensate=True)
        world.at = "look"
        world.moment = MomentAfter(lambda: store.load("run-1").steps[0].status == "done")
        state = Runner(store, Script(turn), deps=world).run(Trips, run_id="run-1", goal="travel")

    assert (state.status, [step.status for step in state.steps]) == (Status.CANCELLED, ["done", "failed", "done"])
    assert sorted(world.begun) == ["book left", "look", "unbook left"]


def test_what_a_probe_says_did_not_happen_is_not_begun_in_a_run_that_is_to_be_undone(race: Race) -> None:
    world = World()
    with pytest.raises(SystemExit):  # the worker dies in its body
        Runner(race.runners, Script(CallTool("dies")), deps=world).run(Trips, run_id="run-1", goal="travel")
    race.store.cancel("run-1", by="ann", compensate=True)

    state = Runner(race.runners, Script(), deps=world).resume("run-1")

    assert (state.status, state.steps[0].status) == (Status.CANCELLED, "failed")
    assert world.begun == ["dies"]


def test_late_results_that_come_at_the_same_moment_are_all_recorded(url: str) -> None:
    count = 8
    with RunStore(url) as store, ThreadPoolExecutor(count) as pool:
        store.start(Trips, run_id="run-1", goal="travel")
        run = store.aggregate(Trips, "run-1")
        plan = [Planned(Trips.book.call(name=str(idx)), "{}", key=str(idx)) for idx in range(count)]
        run.record_turn(plan, at_once=count)
        store.save(run)
        together = threading.Barrier(count)

        def come(idx: int) -> bool:
            together.wait(30)
            return store.record_late("run-1", idx, 1, Returned(str(idx)))

        told = [*pool.map(come, range(count))]

        assert told == [True] * count
        assert [step.result for step in store.load("run-1").steps] == [*range(count)]


# Something is said as a decision is appended.


class Notes(AgentRun):
    """Notes."""

    at_once = 1

    @tool(effect=Effect.IDEMPOTENT)
    def note(self, ctx: ToolContext[World], said: list[str], number: int) -> None:
        ctx.deps.do(f"note {number}")


class Listens:
    """Decides a turn of two notes, and an answer, each with all that it was told; one of both at the moment."""

    def __init__(self, at: int) -> None:
        self.moment = Moment()
        self.asked = 0
        self._at = at

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
        self.asked += 1
        said = [message.text for message in run.messages]
        if run.turns == self._at:
            self.moment.comes()
        notes = [CallTool("note", {"said": said, "number": number}) for number in range(2)]
        return Used(Finish(said) if run.turns else notes, tokens=TOKENS)


TOKENS = 7
BUDGET = Envelope(budget=Budget(tokens=1_000, each=Usage(tokens=10)))


def decided(store: RunStore, run_id: str) -> Iterator[tuple[int, list[str]]]:
    """Yield where each decision stands in the journal, with what its decider was told before."""
    known = set[int]()
    for entry in store.journal(run_id):
        if entry.type == "llm_decided" and entry.data["idx"] not in known:
            known.add(entry.data["idx"])
            yield entry.seq, entry.data["args"]["said"]
        elif entry.type == "finished":
            yield entry.seq, entry.data["answer"]


def used(store: RunStore, run_id: str) -> int:
    return sum(entry.data["tokens"] for entry in store.journal(run_id) if entry.type == "usage_recorded")


def tries(count: int) -> Iterator[tuple[str, int, float]]:
    """Yield run ids, the turn that is decided at the moment, and by how much the person is later."""
    for number, offset in zip(range(count), cycle(OFFSETS), strict=False):
        yield f"run-{number}", number // len(OFFSETS) % 2, offset


def test_a_decision_that_was_made_before_somebody_said_something_is_made_again_with_it_in_sight(race: Race) -> None:
    asked = Counter[int]()
    for run_id, turn, offset in tries(50):
        listens, world = Listens(turn), World()
        runner = Runner(race.runners, listens, deps=world)

        def steer() -> RunState | None:
            try:
                return race.store.steer(run_id, "be brief", by="ann")  # noqa: B023  # it is run in this round
            except IllegalEvent:
                return None

        returned, told = race.between(
            lambda: runner.run(Notes, run_id=run_id, goal="note", envelope=BUDGET),  # noqa: B023
            listens.moment,
            offset,
            steer,
        )

        came = [entry.seq for entry in race.store.journal(run_id) if entry.type == "steered"]
        assert len(came) == (told is not None)
        assert (returned.status, returned) == (Status.DONE, race.store.load(run_id))
        for seq, said in decided(race.store, run_id):
            assert said == (["be brief"] if came and seq > came[0] else [])
        assert world.begun == ["note 0", "note 1"]
        assert used(race.store, run_id) == returned.tokens == listens.asked * TOKENS
        asked[listens.asked] += 1
    assert {*asked} == {2, 3}


def test_nothing_begins_while_a_run_is_paused_and_it_ends_well_once_it_is_resumed(race: Race) -> None:
    asked = Counter[int]()
    for run_id, turn, offset in tries(50):
        listens, world = Listens(turn), World()
        runner = Runner(race.runners, listens, deps=world)

        def pause() -> RunState | None:
            try:
                return race.store.pause(run_id, by="ann", reason="lunch")  # noqa: B023  # it is run in this round
            except IllegalEvent:
                return None

        returned, told = race.between(
            lambda: runner.run(Notes, run_id=run_id, goal="note", envelope=BUDGET),  # noqa: B023
            listens.moment,
            offset,
            pause,
        )
        stands = race.store.load(run_id)
        assert returned == stands
        if told is None:
            assert stands.status is Status.DONE
        else:
            assert (stands.waiting_for, stands.paused) == ("person", "by ann: lunch")
            starts = [entry for entry in race.store.journal(run_id) if (entry.data or {}).get("attempt") == 1]
            assert len(world.begun) == len([entry for entry in starts if entry.type == "llm_decided"])
            assert runner.resume(run_id) == stands
            race.store.resume(run_id, by="ann")

        ended = runner.resume(run_id)

        assert (ended.status, ended.answer) == (Status.DONE, [])
        assert world.begun == ["note 0", "note 1"]
        assert used(race.store, run_id) == ended.tokens == listens.asked * TOKENS
        kinds = types(race.store, run_id)
        if told is not None:
            meanwhile = kinds[kinds.index("paused") + 1 : kinds.index("resumed")]
            assert {*meanwhile} <= {"tool_result", "usage_recorded"}
        asked[listens.asked] += 1
    assert {*asked} == {2, 3}
