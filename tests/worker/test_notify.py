"""Who is told of what waits for a person, and how often; and who may do what, as the program's own hook says."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    Approval,
    Ask,
    CallTool,
    Decision,
    Effect,
    Envelope,
    Finish,
    InboxItem,
    Runner,
    RunState,
    RunStore,
    ToolSpec,
    tool,
)
from agent_es.errors import NotAllowed
from agent_es.testing import MovableClock
from agent_es.worker import Worker

Sql = Callable[..., list[tuple[Any, ...]]]
Open = Callable[..., RunStore]

ONE_YES = Envelope(needs_approval=["wipe"])
HASTY = Envelope(needs_approval=[Approval(call="wipe", within=timedelta(minutes=5))])


class Desk(AgentRun):
    """Wipes, or asks, as its goal says."""

    @tool(effect=Effect.IDEMPOTENT)
    def wipe(self) -> str:
        """Wipe."""
        return "wiped"


class Clerk:
    """Does what the goal says, once."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        if run.turns:
            return Finish([step.result for step in run.steps])
        return Ask("How?") if run.goal == "ask" else CallTool("wipe")


class Told:
    """Keeps what it is told; raises, or takes its time, where a test says so."""

    def __init__(self, also: Callable[[InboxItem], object] = lambda _: None) -> None:
        self._also = also
        self.items: list[InboxItem] = []

    def __call__(self, item: InboxItem) -> None:
        self.items.append(item)
        self._also(item)

    @property
    def runs(self) -> list[str]:
        return sorted(item.run_id for item in self.items)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def open_store(url: str, clock: MovableClock) -> Iterator[Open]:
    with ExitStack() as opened:
        yield lambda **settings: opened.enter_context(RunStore(url, clock=clock, **settings))


@pytest.fixture
def store(open_store: Open) -> RunStore:
    return open_store()


def wait(store: RunStore, run_id: str, goal: str = "wipe", envelope: Envelope = ONE_YES) -> RunState:
    """Bring a run to where it waits for a person."""
    return Runner(store, Clerk(), max_wait=0).run(Desk, run_id=run_id, goal=goal, envelope=envelope)


def working(store: RunStore, tell: Callable[[InboxItem], object], **options: Any) -> Worker:
    return Worker(store, agents=[Desk], decider=Clerk(), notify=tell, **{"poll": 0.02, "grace": 5.0, **options})


def comes(what: Callable[[], object]) -> None:
    """Wait until something is so."""
    until = time.monotonic() + 20
    while not what():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


# Once.


def test_two_workers_on_one_store_tell_each_thing_once_also_what_waited_before_they_came(
    store: RunStore, open_store: Open
) -> None:
    for n in range(5):
        wait(store, f"before-{n}", "ask" if n % 2 else "wipe")
    store.pause("before-0", by="ann")
    told = Told()
    workers = [working(open_store(), told) for _ in range(2)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()

    for n in range(5):
        store.start(Desk, run_id=f"while-{n}", goal="wipe", envelope=ONE_YES)
    comes(lambda: len(told.items) >= 11)
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join(20)

    asked = sorted([*(f"before-{n}" for n in range(5)), "before-0", *(f"while-{n}" for n in range(5))])
    assert told.runs == asked
    assert store.notify_people(told) == 0
    assert not any(thread.is_alive() for thread in threads)


def test_a_worker_that_ends_when_nothing_is_due_has_told_of_what_it_left_waiting(store: RunStore) -> None:
    told = Told()
    store.start(Desk, run_id="run-1", goal="wipe", envelope=ONE_YES)

    working(store, told, poll=30.0).run(until_idle=True)

    assert [(item.kind, item.run_id, item.tool, item.idx) for item in told.items] == [
        ("approval", "run-1", "wipe", 0)
    ]


def test_what_raises_is_told_again_later_and_keeps_no_other_from_being_told(store: RunStore, sql: Sql) -> None:
    wait(store, "run-1")
    wait(store, "run-2", "ask")
    fails = True

    def break_down(item: InboxItem) -> None:
        if fails and item.run_id == "run-1":
            raise ConnectionError("the mail server is away")

    told = Told(break_down)

    first = store.notify_people(told)
    at_once = store.notify_people(told)
    fails = False
    sql("UPDATE agent_es_inbox SET telling_until = 0")
    later = store.notify_people(told)

    assert (first, at_once, later) == (1, 0, 1)
    assert told.runs == ["run-1", "run-1", "run-2"]
    assert store.notify_people(told) == 0


def test_a_worker_whose_teller_raises_goes_on_moving_runs_and_telling(store: RunStore, sql: Sql) -> None:
    def break_down(_: InboxItem) -> None:
        raise ConnectionError("the mail server is away")

    told = Told(break_down)
    worker = working(store, told)
    thread = threading.Thread(target=worker.run)
    thread.start()

    store.start(Desk, run_id="run-1", goal="wipe", envelope=ONE_YES)
    comes(lambda: told.runs == ["run-1"])
    sql("UPDATE agent_es_inbox SET telling_until = 0")
    comes(lambda: told.runs == ["run-1", "run-1"])
    store.start(Desk, run_id="run-2", goal="wipe")
    comes(lambda: store.load("run-2").is_over)
    worker.stop()
    thread.join(20)

    assert not thread.is_alive()
    assert sql("SELECT told_at FROM agent_es_inbox") == [(None,)]


def test_what_was_answered_or_has_expired_is_told_to_nobody_any_more(
    store: RunStore, clock: MovableClock, sql: Sql
) -> None:
    def break_down(_: InboxItem) -> None:
        raise ConnectionError("the mail server is away")

    for run_id, envelope in (("answered", ONE_YES), ("expired", HASTY), ("still", ONE_YES)):
        wait(store, run_id, envelope=envelope)
    store.notify_people(Told(break_down))
    store.approve("answered", 0, by="dana")
    clock.move(301)
    Runner(store, Clerk(), agents=[Desk]).resume("expired")
    sql("UPDATE agent_es_inbox SET telling_until = 0")

    told = Told()
    store.notify_people(told)

    assert told.runs == ["still"]


def test_who_was_told_is_not_told_again_when_a_run_moves_on_to_its_end(store: RunStore, clock: MovableClock) -> None:
    told = Told()
    wait(store, "expires", envelope=HASTY)
    wait(store, "approved")
    assert store.notify_people(told) == 2

    clock.move(301)
    store.approve("approved", 0, by="dana")
    working(store, told).run(until_idle=True)

    assert [store.load(run_id).is_over for run_id in ("expires", "approved")] == [True, True]
    assert told.runs == ["approved", "expires"]


def test_what_is_answered_while_another_is_told_is_not_told(
    store: RunStore, open_store: Open, clock: MovableClock
) -> None:
    wait(store, "run-1")
    clock.move(1)
    wait(store, "run-2")
    wait(store, "run-3", "ask")
    beside = open_store()

    def answer_the_others(_: InboxItem) -> None:
        beside.approve("run-2", 0, by="dana")
        beside.answer("run-3", 0, "so", by="dana")

    told = Told(answer_the_others)

    assert store.notify_people(told) == 1
    assert told.runs == ["run-1"]


def test_other_arguments_are_another_question_and_are_told_as_such(store: RunStore) -> None:
    class Payer(Desk):
        @tool(effect=Effect.IDEMPOTENT, key="{order}:pay")
        def pay(self, order: str) -> str:
            return order

    told = Told()
    script = type("Pays", (), {"decide": lambda *_: CallTool("pay", {"order": "A"})})()
    four_eyes = Envelope(needs_approval=[Approval(call="pay", people=2)])
    Runner(store, script, max_wait=0).run(Payer, run_id="run-1", goal="pay", envelope=four_eyes)
    store.notify_people(told)

    store.approve("run-1", 0, by="dana", args={"order": "B"}, agent=Payer)
    store.notify_people(told)
    store.notify_people(told)

    assert [item.args for item in told.items] == [{"order": "A"}, {"order": "B"}]
    assert [item.edited_by for item in told.items] == [None, "dana"]


def test_a_doubt_that_was_told_is_not_told_again_when_its_run_is_cancelled(store: RunStore) -> None:
    class Lost(Desk):
        @tool(effect=Effect.AT_MOST_ONCE)
        def mail(self) -> None:
            raise TimeoutError("no answer")

    told = Told()
    script = type("Mails", (), {"decide": lambda *_: CallTool("mail")})()
    Runner(store, script).run(Lost, run_id="run-1", goal="mail")
    store.notify_people(told)

    store.cancel("run-1", by="dana")

    assert [(item.kind, item.run_id) for item in store.inbox()] == [("doubt", "run-1")]
    assert store.notify_people(told) == 0


def test_a_rebuild_tells_nobody_again(store: RunStore) -> None:
    for n in range(3):
        wait(store, f"run-{n}", "ask" if n else "wipe")
    store.pause("run-2", by="ann")
    told = Told()
    assert store.notify_people(told) == 4

    store.rebuild()

    assert store.notify_people(told) == 0
    assert [item.run_id for item in store.inbox()] == ["run-0", "run-1", "run-2", "run-2"]


def test_a_rebuild_while_somebody_tells_lets_nobody_else_tell_the_same(store: RunStore, open_store: Open) -> None:
    wait(store, "run-1")
    beside, others = open_store(), Told()

    def meanwhile(_: InboxItem) -> None:
        beside.rebuild()
        beside.notify_people(others)

    told = Told(meanwhile)
    store.notify_people(told)

    assert (told.runs, others.runs) == (["run-1"], [])
    assert store.notify_people(told) == 0


def test_a_worker_that_is_stopped_ends_although_who_tells_hangs(store: RunStore) -> None:
    hangs, may_go = threading.Event(), threading.Event()

    def hang(_: InboxItem) -> None:
        hangs.set()
        may_go.wait(30)

    wait(store, "run-1")
    worker = working(store, hang, grace=0.2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert hangs.wait(20)

    stopped = time.monotonic()
    worker.stop()
    thread.join(20)
    took = time.monotonic() - stopped
    may_go.set()

    assert not thread.is_alive()
    assert 0.15 < took < 5
    for teller in [thread for thread in threading.enumerate() if thread.name == "agent_es notify"]:
        teller.join(20)


# Who may.


ACTIONS: Sequence[tuple[str, str, Callable[[RunStore], object]]] = [
    ("approve", "wipe", lambda store: store.approve("run-1", 0, by="dana")),
    ("edit", "wipe", lambda store: store.approve("run-1", 0, by="dana", args={}, agent=Desk)),
    ("deny", "wipe", lambda store: store.deny("run-1", 0, by="dana")),
    ("answer", "ask", lambda store: store.answer("run-1", 0, "so", by="dana")),
    ("steer", "ask", lambda store: store.steer("run-1", "look", by="dana")),
    ("pause", "ask", lambda store: store.pause("run-1", by="dana")),
    ("resume", "paused", lambda store: store.resume("run-1", by="dana")),
    ("cancel", "ask", lambda store: store.cancel("run-1", by="dana")),
    ("compensate", "ask", lambda store: store.cancel("run-1", by="dana", compensate=True)),
    ("settle", "doubt", lambda store: store.settle("run-1", 0, "happened", by="dana")),
    ("requeue", "parked", lambda store: store.requeue("run-1", by="dana")),
    ("change_envelope", "ask", lambda store: store.change_envelope("run-1", Envelope(), by="dana")),
]


def bring(store: RunStore, goal: str) -> RunState:
    """Bring run-1 to where somebody can do something to it."""
    state = wait(store, "run-1", "ask" if goal in ("ask", "paused") else "wipe")
    if goal == "paused":
        return store.pause("run-1", by="ann")
    if goal in ("doubt", "parked"):
        store.approve("run-1", 0, by="ann")
        run = store.aggregate(Desk, "run-1")
        if goal == "parked":
            run.record_parked("for a test")
        else:
            run.record_start(0)
            run.record_doubt(0, "for a test")
        store.save(run)
        return run.state
    return state


@pytest.mark.parametrize(("action", "goal", "act"), ACTIONS, ids=[action for action, *_ in ACTIONS])
def test_a_hook_is_asked_before_anything_that_a_person_does_and_its_yes_is_needed(
    action: str, goal: str, act: Callable[[RunStore], object], store: RunStore, open_store: Open
) -> None:
    before = bring(store, goal)
    asked: list[tuple[str, str, int]] = []
    answers = iter([None, False, 0, "", RuntimeError("the directory is away"), True])

    def may(by: str, action: str, state: RunState) -> object:
        asked.append((by, action, state.version))
        says = next(answers)
        if isinstance(says, Exception):
            raise says
        return says

    guarded = open_store(authorize=may)

    for _ in range(4):
        with pytest.raises(NotAllowed, match=f"run run-1: dana may not {action.replace('_', ' ')}; nothing was rec"):
            act(guarded)
    with pytest.raises(RuntimeError, match="the directory is away"):
        act(guarded)
    assert store.load("run-1") == before
    assert store.record("run-1").cursor == before.version

    act(guarded)

    assert asked == [("dana", action, before.version)] * 6
    assert store.load("run-1").version > before.version


def test_a_hook_may_let_one_person_do_what_another_may_not(store: RunStore, open_store: Open) -> None:
    bring(store, "wipe")
    guarded = open_store(authorize=lambda by, action, state: (by, action) in {("dana", "approve"), ("ann", "pause")})

    for by, act in (("ann", guarded.approve), ("dana", guarded.deny)):
        with pytest.raises(NotAllowed):
            act("run-1", 0, by=by)
    guarded.pause("run-1", by="ann")
    state = guarded.approve("run-1", 0, by="dana")

    assert (state.paused, state.steps[0].status) == ("by ann", "queued")
