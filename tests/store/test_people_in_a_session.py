"""What a person does in the caller's own transaction is there with the caller's commit; else nothing of it is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from agent_es import (
    AgentRun,
    AnswerConflict,
    Approval,
    Ask,
    CallTool,
    Decision,
    Effect,
    Envelope,
    Fail,
    Finish,
    Runner,
    RunState,
    RunStore,
    StartChild,
    ToolSpec,
    WaitFor,
    tool,
)
from agent_es.errors import AgentError, BadAnswer, IllegalEvent, KeyReused, NotAllowed, RunNotFound, RunUnreadable
from agent_es.events import stream_id

Sql = Callable[..., list[tuple[Any, ...]]]

RUN_ID = "run-1"
ENVELOPE = Envelope(needs_approval=[Approval(call="refund", by=("dana", "ann"), people=1)])


class Desk(AgentRun):
    """Pays back, and is told by its goal what to do first."""

    @tool(effect=Effect.IDEMPOTENT, key="{order}:refund", compensate="charge")
    def refund(self, order: str, amount: Decimal = Decimal(1)) -> str:
        """Pay back."""
        return f"{amount} for {order}"

    @tool(effect=Effect.IDEMPOTENT, key="{order}:charge")
    def charge(self, order: str) -> str:
        """Take it again."""
        return order

    @tool(effect=Effect.AT_MOST_ONCE)
    def mail(self) -> str:
        """Lose the answer."""
        raise TimeoutError("no answer")


class ByGoal:
    """Decides once, as the goal says, and then ends."""

    decisions: Mapping[str, Decision] = {
        "refund": CallTool("refund", {"order": "A"}),
        "mail": CallTool("mail"),
        "ask": Ask("How?", choices=["card", "credit"]),
        "wait": WaitFor("paid"),
        "fail": Fail("no use"),
        "start": StartChild(Desk, "wait"),
    }

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        return Finish("done") if run.turns else self.decisions[run.goal]


Act = Callable[..., RunState]

ACTS: Mapping[str, tuple[str, Act]] = {
    "approve": ("refund", lambda store, **how: store.approve(RUN_ID, 0, by="dana", **how)),
    "approve with other arguments": (
        "refund",
        lambda store, **how: store.approve(RUN_ID, 0, by="dana", args={"order": "B"}, agent=Desk, **how),
    ),
    "deny": ("refund", lambda store, **how: store.deny(RUN_ID, 0, by="dana", reason="no", **how)),
    "answer": ("ask", lambda store, **how: store.answer(RUN_ID, 0, "card", by="dana", **how)),
    "steer": ("wait", lambda store, **how: store.steer(RUN_ID, "look again", by="dana", **how)),
    "pause": ("wait", lambda store, **how: store.pause(RUN_ID, by="dana", reason="stop", **how)),
    "resume": ("paused", lambda store, **how: store.resume(RUN_ID, by="dana", **how)),
    "cancel": ("refund", lambda store, **how: store.cancel(RUN_ID, by="dana", **how)),
    "cancel a doubt": ("mail", lambda store, **how: store.cancel(RUN_ID, by="dana", **how)),
    "cancel with a child": ("start", lambda store, **how: store.cancel(RUN_ID, by="dana", **how)),
    "undo": ("paid", lambda store, **how: store.cancel(RUN_ID, by="dana", compensate=True, **how)),
    "settle": ("mail", lambda store, **how: store.settle(RUN_ID, 0, "happened", by="dana", result="sent", **how)),
    "settle to try again": ("mail", lambda store, **how: store.settle(RUN_ID, 0, "did_not_happen", by="dana", **how)),
    "requeue": ("fail", lambda store, **how: store.requeue(RUN_ID, by="dana", **how)),
    "change the envelope": (
        "wait",
        lambda store, **how: store.change_envelope(RUN_ID, Envelope(tools=("mail",)), by="dana", **how),
    ),
}
"""What a person does, and to which run."""


def begin(store: RunStore, goal: str, run_id: str = RUN_ID) -> RunState:
    """Bring a run to where a person is needed."""
    runner = Runner(store, ByGoal(), max_wait=0)
    if goal == "paused":
        begin(store, "wait", run_id)
        return store.pause(run_id, by="ann")
    if goal == "paid":
        return runner.run(Desk, run_id=run_id, goal="refund")
    return runner.run(Desk, run_id=run_id, goal=goal, envelope=ENVELOPE)


@pytest.fixture
def engine(url: str, store: RunStore) -> Iterator[Engine]:
    """The caller's own engine, with a table of notes."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (note VARCHAR(20) PRIMARY KEY)"))
    yield engine
    engine.dispose()


def note(session: Session, what: str) -> None:
    session.execute(text("INSERT INTO notes VALUES (:what)"), {"what": what})


@pytest.fixture
def notes(sql: Sql) -> Callable[[], list[str]]:
    return lambda: [what for (what,) in sql("SELECT note FROM notes ORDER BY note")]


KEPT: Mapping[str, str] = {
    "events": "SELECT originator_id, originator_version, topic, state FROM agent_es_events ORDER BY 1, 2",
    "runs": "SELECT * FROM agent_es_runs ORDER BY run_id",
    "keys": "SELECT * FROM agent_es_keys ORDER BY 1, 2",
    "inbox": "SELECT run_id, idx, kind, since, told_at FROM agent_es_inbox ORDER BY 1, 2, 3",
    "deliveries": "SELECT * FROM agent_es_deliveries ORDER BY 1, 2",
}


@pytest.fixture
def kept(sql: Sql) -> Callable[[], Mapping[str, list[tuple[Any, ...]]]]:
    """Returns what the store keeps of its runs, as others see it."""
    return lambda: {name: sql(statement) for name, statement in KEPT.items()}


Kept = Callable[[], Mapping[str, list[tuple[Any, ...]]]]


def assert_consistent(store: RunStore, kept: Kept) -> None:
    """Rows are where their journals are, and say what these say."""
    for record in store.runs():
        assert record.cursor == store.load(record.run_id).version == len(store.journal(record.run_id))
    before = kept()
    store.rebuild()
    assert kept() == before


@pytest.mark.parametrize("act", ACTS)
def test_what_a_person_does_is_seen_by_nobody_before_the_caller_commits(
    act: str, store: RunStore, engine: Engine, kept: Kept, notes: Callable[[], list[str]]
) -> None:
    goal, do = ACTS[act]
    version = begin(store, goal).version
    before = kept()

    with Session(engine) as session, session.begin():
        note(session, act[:20])
        state = do(store, session=session)
        meanwhile = kept()

    assert meanwhile == before
    assert state.version > version
    assert store.load(RUN_ID) == state
    assert notes() == [act[:20]]
    assert_consistent(store, kept)


@pytest.mark.parametrize("act", ACTS)
def test_where_the_caller_rolls_back_nothing_of_it_is_there_and_it_can_be_done_again(
    act: str, store: RunStore, engine: Engine, kept: Kept, notes: Callable[[], list[str]]
) -> None:
    goal, do = ACTS[act]
    begin(store, goal)
    before = kept()

    with Session(engine) as session:
        note(session, "of this")
        do(store, session=session)
        session.rollback()

    assert (kept(), notes()) == (before, [])
    again = do(store)
    assert store.load(RUN_ID) == again
    assert_consistent(store, kept)


def late(store: RunStore, session: Session) -> object:
    return store.deny(RUN_ID, 0, by="ann", session=session)


def other_digest(store: RunStore, session: Session) -> object:
    return store.approve(RUN_ID, 0, by="ann", digest="5e1d", session=session)


def held_key(store: RunStore, session: Session) -> object:
    return store.approve(RUN_ID, 0, by="ann", args={"order": "held"}, agent=Desk, session=session)


def stranger(store: RunStore, session: Session) -> object:
    return store.approve(RUN_ID, 0, by="bob", session=session)


def no_step(store: RunStore, session: Session) -> object:
    return store.answer(RUN_ID, 0, "card", by="ann", session=session)


def not_paused(store: RunStore, session: Session) -> object:
    return store.resume(RUN_ID, by="ann", session=session)


def no_run(store: RunStore, session: Session) -> object:
    return store.steer("run-9", "hello", by="ann", session=session)


REFUSALS: Mapping[str, tuple[Callable[[RunStore, Session], object], type[AgentError]]] = {
    "another digest": (other_digest, AnswerConflict),
    "a key that is held": (held_key, KeyReused),
    "who may not": (stranger, NotAllowed),
    "what asks nobody": (no_step, BadAnswer),
    "what is not paused": (not_paused, IllegalEvent),
    "an unknown run": (no_run, RunNotFound),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_after_a_refusal_the_caller_still_commits_its_own_and_the_run_is_as_it_was(
    name: str, store: RunStore, engine: Engine, kept: Kept, notes: Callable[[], list[str]]
) -> None:
    act, error = REFUSALS[name]
    begin(store, "refund")
    holder = Envelope(needs_approval=["refund"])
    script = type("Holds", (), {"decide": lambda *_: CallTool("refund", {"order": "held"})})()
    Runner(store, script, max_wait=0).run(Desk, run_id="run-2", goal="hold it", envelope=holder)
    before = kept()

    with Session(engine) as session, session.begin():
        note(session, "before")
        with pytest.raises(error):
            act(store, session)
        note(session, "after")

    assert kept() == before
    assert notes() == ["after", "before"]
    assert_consistent(store, kept)


def test_who_comes_second_in_one_transaction_is_refused_and_the_first_answer_counts(
    store: RunStore, engine: Engine, kept: Kept, notes: Callable[[], list[str]]
) -> None:
    begin(store, "refund")

    with Session(engine) as session, session.begin():
        approved = store.approve(RUN_ID, 0, by="dana", session=session)
        with pytest.raises(AnswerConflict, match="was approved by dana"):
            late(store, session)
        note(session, "twice")

    assert store.load(RUN_ID) == approved
    assert notes() == ["twice"]
    assert_consistent(store, kept)


def test_several_runs_can_be_acted_on_in_one_transaction(store: RunStore, engine: Engine, kept: Kept) -> None:
    begin(store, "refund")
    Runner(store, ByGoal(), max_wait=0).run(Desk, run_id="run-2", goal="ask")
    store.start(Desk, run_id="run-3", goal="refund")

    with Session(engine) as session, session.begin():
        state = store.approve(RUN_ID, 0, by="dana", args={"order": "B"}, agent=Desk, session=session)
        answered = store.answer("run-2", 0, "credit", by="dana", session=session)
        paused = store.pause("run-3", by="dana", session=session)

    assert (state.steps[0].key, state.steps[0].status) == ("B:refund", "queued")
    assert [store.load(each.run_id) for each in (state, answered, paused)] == [state, answered, paused]
    assert_consistent(store, kept)


def test_a_person_whom_a_hook_does_not_allow_leaves_the_transaction_as_it_was(
    open_store: Callable[..., RunStore], store: RunStore, engine: Engine, kept: Kept, notes: Callable[[], list[str]]
) -> None:
    begin(store, "refund")
    before = kept()
    guarded = open_store(authorize=lambda by, action, state: by != "dana")

    with Session(engine) as session, session.begin():
        for act in ("approve", "approve with other arguments", "deny", "cancel"):
            with pytest.raises(NotAllowed, match="dana may not"):
                ACTS[act][1](guarded, session=session)
        note(session, "refused")

    assert (kept(), notes()) == (before, ["refused"])


def test_a_signal_for_several_runs_of_which_one_cannot_be_read_reaches_none(
    store: RunStore, engine: Engine, notes: Callable[[], list[str]], sql: Sql
) -> None:
    for run_id in ("a", "b"):
        store.start(AgentRun, run_id=run_id, goal="wait", tags={"invoice": "INV-1042"})
    newer = "UPDATE agent_es_events SET topic = 'from_tomorrow' WHERE originator_id = ?"
    sql(newer, (stream_id("b"),))

    with Session(engine) as session, session.begin():
        with pytest.raises(RunUnreadable):
            store.signal(name="paid", tag=("invoice", "INV-1042"), session=session)
        note(session, "refused")

    assert (store.record("a").cursor, notes()) == (1, ["refused"])
    assert [entry.type for entry in store.journal("a")] == ["run_started"]


def test_a_run_whose_child_cannot_be_read_is_not_half_cancelled(
    store: RunStore, engine: Engine, kept: Kept, notes: Callable[[], list[str]], sql: Sql
) -> None:
    begin(store, "start")
    newer = "UPDATE agent_es_events SET topic = 'from_tomorrow' WHERE originator_version = 2 AND originator_id = ?"
    sql(newer, (stream_id(f"{RUN_ID}.0"),))
    before = kept()

    with Session(engine) as session, session.begin():
        with pytest.raises(RunUnreadable):
            store.cancel(RUN_ID, by="dana", session=session)
        note(session, "refused")

    assert (kept(), notes()) == (before, ["refused"])
