"""B46: a yes lets exactly that run which a person was shown: these arguments, of this call, once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    Approval,
    CallTool,
    Decision,
    Envelope,
    Finish,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.errors import AnswerConflict, BadAnswer, BadArguments, KeyReused
from agent_es.legality import call_digest
from agent_es.testing import Crash, CrashingRunner, CrashPoint

RUN_ID = "run-1"
ASKED = Envelope(tools=("record", "edit"), limits={"edit.path": {"pattern": "[a-z./]+"}}, needs_approval=["*"])
AFTER_THE_DECISION = CrashPoint(1, "after")


@dataclass
class World:
    """What the bodies were called with."""

    recorded: list[tuple[str, str]] = field(default_factory=list)
    edited: list[str] = field(default_factory=list)


class Before(AgentRun):
    """Before the deploy."""

    agent_name = "Clerk"

    @tool(effect="idempotent")
    def record(self, ctx: ToolContext[World], message: str, level: str = "info") -> None:
        ctx.deps.recorded.append((message, level))

    @tool(effect="idempotent", key="{path}:edit")
    def edit(self, ctx: ToolContext[World], path: str) -> str:
        ctx.deps.edited.append(path)
        return path


class After(AgentRun):
    """After it: a default is another one."""

    agent_name = "Clerk"

    @tool(effect="idempotent")
    def record(self, ctx: ToolContext[World], message: str, level: str = "everybody") -> None:
        ctx.deps.recorded.append((message, level))

    @tool(effect="idempotent", key="{path}:edit")
    def edit(self, ctx: ToolContext[World], path: str) -> str:
        ctx.deps.edited.append(path)
        return path


class Script:
    """Says its lines, whatever came of the last one."""

    def __init__(self, *lines: CallTool) -> None:
        self.lines = lines
        self.asked: list[int] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        self.asked.append(run.turns)
        return self.lines[run.turns] if run.turns < len(self.lines) else Finish("done")


def record(message: str) -> CallTool:
    return CallTool("record", {"message": message})


def edit(path: str) -> CallTool:
    return CallTool("edit", {"path": path})


@pytest.fixture
def open_store(url: str) -> Iterator[Callable[[], RunStore]]:
    """Opens the store anew at each call, as a process that was restarted does."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(RunStore(url))


@pytest.fixture
def store(open_store: Callable[[], RunStore]) -> RunStore:
    return open_store()


@pytest.fixture
def world() -> World:
    return World()


def moved(
    store: RunStore,
    model: Script,
    world: World,
    *,
    agent: type[AgentRun] = Before,
    run_id: str = RUN_ID,
    envelope: Envelope = ASKED,
) -> RunState:
    return Runner(store, model, deps=world, agents=[agent]).run(agent, run_id=run_id, goal="edit", envelope=envelope)


# (a) The model would say something else.


def test_a_model_that_would_say_something_else_by_now_is_not_asked(
    open_store: Callable[[], RunStore], world: World
) -> None:
    moved(open_store(), Script(record("reviewed")), world)
    fickle = Script(record("changed"))

    open_store().approve(RUN_ID, 0, by="dana")
    state = moved(open_store(), fickle, world)

    assert (state.status, fickle.asked) == (Status.DONE, [1])
    assert world.recorded == [("reviewed", "info")]


def test_what_a_model_says_when_it_is_asked_again_is_asked_about_again(
    open_store: Callable[[], RunStore], world: World
) -> None:
    with suppress(Crash):  # the decision is nowhere yet, and nobody was asked about it
        dying = CrashingRunner(open_store(), Script(record("reviewed")), deps=world, at=AFTER_THE_DECISION)
        dying.run(Before, run_id=RUN_ID, goal="edit", envelope=ASKED)
    reviewed = call_digest("record", '{"level":"info","message":"reviewed"}', f"{RUN_ID}:0:record")

    state = moved(open_store(), Script(record("changed")), world)

    assert (state.waiting_for, world.recorded) == ("approval", [])
    with pytest.raises(AnswerConflict, match=reviewed):
        open_store().approve(RUN_ID, 0, by="dana", digest=reviewed)
    assert moved(open_store(), Script(), world).waiting_for == "approval"
    (asked,) = open_store().inbox()
    assert (asked.args, world.recorded) == ({"level": "info", "message": "changed"}, [])


# (b) A deploy changes the defaults.


def test_what_a_person_was_shown_runs_whatever_a_deploy_made_of_the_defaults(
    open_store: Callable[[], RunStore], world: World
) -> None:
    moved(open_store(), Script(record("reviewed")), world)
    (shown,) = open_store().inbox()
    assert shown.args == {"level": "info", "message": "reviewed"}

    moved(open_store(), Script(), world, agent=After)
    (still,) = open_store().inbox()
    open_store().approve(RUN_ID, 0, by="dana", digest=shown.digest)
    state = moved(open_store(), Script(), world, agent=After)

    assert (still, state.status) == (shown, Status.DONE)
    assert world.recorded == [("reviewed", "info")]
    assert (state.steps[0].args, state.steps[0].said_json) == (shown.args, '{"message":"reviewed"}')


def test_a_deploy_between_the_yes_and_the_start_changes_nothing_of_what_runs(
    open_store: Callable[[], RunStore], world: World
) -> None:
    moved(open_store(), Script(record("reviewed")), world)
    open_store().approve(RUN_ID, 0, by="dana")
    with suppress(Crash):  # with the start mark durable, and nothing called
        CrashingRunner(open_store(), Script(), deps=world, agents=[Before], at=AFTER_THE_DECISION).resume(RUN_ID)
    assert (open_store().load(RUN_ID).steps[0].status, world.recorded) == ("started", [])

    moved(open_store(), Script(), world, agent=After)

    assert world.recorded == [("reviewed", "info")]


# (c) A yes is to one call.


@pytest.mark.parametrize("later", ["/etc/x", "b.txt"])
def test_a_yes_to_one_path_is_none_to_another(later: str, store: RunStore, world: World) -> None:
    model, envelope = Script(edit("a.txt"), record("between"), edit(later)), Envelope(needs_approval=["edit"])
    moved(store, model, world, envelope=envelope)
    store.approve(RUN_ID, 0, by="dana")

    state = moved(store, model, world, envelope=envelope)

    assert [step.status for step in state.steps] == ["done", "done", "gated"]
    assert [(item.idx, item.args, item.approved_by) for item in store.inbox()] == [(2, {"path": later}, ())]
    assert world.edited == ["a.txt"]


def test_the_very_same_call_of_a_later_turn_or_another_run_is_asked_about_anew(store: RunStore, world: World) -> None:
    model = Script(record("reviewed"), record("reviewed"))
    moved(store, model, world)
    moved(store, model, world, run_id="run-2")
    store.approve(RUN_ID, 0, by="dana")

    state, other = moved(store, model, world), moved(store, model, world, run_id="run-2")

    assert [step.status for step in state.steps] == ["done", "gated"]
    assert [step.status for step in other.steps] == ["gated"]
    assert sorted((item.run_id, item.idx) for item in store.inbox()) == [(RUN_ID, 1), ("run-2", 0)]
    assert (
        len({item.digest for item in store.inbox()} | {state.steps[0].approval and state.steps[0].approval.digest})
        == 3
    )
    assert world.recorded == [("reviewed", "info")]


def test_the_digest_of_one_question_is_no_yes_to_another(store: RunStore, world: World) -> None:
    model = Script(record("reviewed"))
    moved(store, model, world)
    moved(store, model, world, run_id="run-2")
    digests = {item.run_id: item.digest for item in store.inbox()}

    with pytest.raises(AnswerConflict):
        store.approve("run-2", 0, by="dana", digest=digests[RUN_ID])

    assert moved(store, model, world, run_id="run-2").waiting_for == "approval"
    assert world.recorded == []


def test_a_call_that_has_no_key_is_asked_about_and_named_like_any_other(
    open_store: Callable[[], RunStore], world: World
) -> None:
    class Reader(AgentRun):
        @tool(effect="read")
        def read(self, ctx: ToolContext[World], path: str) -> str:
            ctx.deps.edited.append(path)
            return path

    model = Script(Reader.read.call(path="a.txt"), Reader.read.call(path="a.txt"))
    envelope = Envelope(needs_approval=["read"])
    moved(open_store(), model, world, agent=Reader, envelope=envelope)
    (asked,) = open_store().inbox()

    open_store().approve(RUN_ID, 0, by="dana", digest=asked.digest)
    state = moved(open_store(), model, world, agent=Reader, envelope=envelope)

    assert (asked.key, asked.digest) == (None, call_digest("read", '{"path":"a.txt"}', None))
    assert [step.status for step in state.steps] == ["done", "gated"]
    assert world.edited == ["a.txt"]


def test_the_journal_names_what_was_shown_and_what_was_said_yes_to(store: RunStore, world: World) -> None:
    moved(store, Script(record("reviewed")), world)
    store.approve(RUN_ID, 0, by="dana")
    moved(store, Script(), world)

    entries: dict[str, Any] = {entry.type: entry.event for entry in store.journal(RUN_ID)}

    shown = '{"level":"info","message":"reviewed"}'
    asked, granted = entries["approval_requested"], entries["approval_granted"]
    assert (asked.args, asked.digest) == (shown, call_digest("record", shown, f"{RUN_ID}:0:record"))
    assert (granted.idx, granted.tool, granted.by, granted.digest) == (0, "record", "dana", asked.digest)
    assert entries["llm_decided"].args == shown  # the mark of the start, which is the last of them


# (d) Other arguments.


def test_other_arguments_that_come_after_a_yes_are_refused_and_the_yes_stands(store: RunStore, world: World) -> None:
    moved(store, Script(edit("a.txt")), world)
    store.approve(RUN_ID, 0, by="dana")

    with pytest.raises(AnswerConflict, match="approved by dana"):
        store.approve(RUN_ID, 0, by="eve", args={"path": "b.txt"}, agent=Before)
    moved(store, Script(), world)
    with pytest.raises(AnswerConflict):
        store.approve(RUN_ID, 0, by="eve", args={"path": "b.txt"}, agent=Before)

    assert world.edited == ["a.txt"]


def test_other_arguments_run_as_the_person_gave_them_and_a_later_yes_to_the_old_ones_is_refused(
    store: RunStore, world: World
) -> None:
    moved(store, Script(edit("a.txt")), world)
    (shown,) = store.inbox()
    store.approve(RUN_ID, 0, by="eve", args={"path": "b.txt"}, agent=Before)

    with pytest.raises(AnswerConflict):
        store.approve(RUN_ID, 0, by="dana", digest=shown.digest)
    state = moved(store, Script(), world)

    assert world.edited == ["b.txt"]
    assert (state.steps[0].args, state.steps[0].key) == ({"path": "b.txt"}, "b.txt:edit")
    assert (state.steps[0].said_json, state.steps[0].result) == ('{"path":"a.txt"}', "b.txt")


def test_what_a_person_put_aside_for_other_arguments_may_be_asked_for_again(store: RunStore, world: World) -> None:
    model = Script(edit("a.txt"), edit("a.txt"))
    moved(store, model, world)
    store.approve(RUN_ID, 0, by="eve", args={"path": "b.txt"}, agent=Before)

    moved(store, model, world)
    (asked,) = store.inbox()
    store.approve(RUN_ID, 1, by="dana", digest=asked.digest)
    state = moved(store, model, world)

    assert (asked.idx, asked.args, state.status) == (1, {"path": "a.txt"}, Status.DONE)
    assert world.edited == ["b.txt", "a.txt"]


def test_other_arguments_whose_key_another_call_holds_are_refused_and_the_question_stands(
    store: RunStore, world: World
) -> None:
    model = Script(edit("a.txt"), edit("b.txt"))
    moved(store, model, world)
    store.approve(RUN_ID, 0, by="dana")
    moved(store, model, world)
    before = store.inbox()

    with pytest.raises(KeyReused, match="step 0 of run run-1"):
        store.approve(RUN_ID, 1, by="eve", args={"path": "a.txt"}, agent=Before)

    assert store.inbox() == before
    assert (moved(store, model, world).waiting_for, world.edited) == ("approval", ["a.txt"])


def test_of_four_eyes_those_that_saw_other_arguments_do_not_count(store: RunStore, world: World) -> None:
    four_eyes = Envelope(needs_approval=[Approval(call="edit", people=2)])
    moved(store, Script(edit("a.txt")), world, envelope=four_eyes)
    (shown,) = store.inbox()
    store.approve(RUN_ID, 0, by="dana", digest=shown.digest)
    store.approve(RUN_ID, 0, by="eve", args={"path": "b.txt"}, agent=Before)

    with pytest.raises(AnswerConflict, match="look at it again"):
        store.approve(RUN_ID, 0, by="fay", digest=shown.digest)
    state = moved(store, Script(), world)
    (now,) = store.inbox()
    assert (state.waiting_for, now.args, now.approved_by, now.edited_by) == (
        "approval",
        {"path": "b.txt"},
        ("eve",),
        "eve",
    )
    store.approve(RUN_ID, 0, by="dana", digest=now.digest)
    moved(store, Script(), world)

    assert world.edited == ["b.txt"]


@pytest.mark.parametrize(
    "args", [{}, {"path": 5}, {"path": "b.txt", "mode": "w"}, {"path": "B!"}], ids=["none", "type", "more", "limit"]
)
def test_other_arguments_that_do_not_fit_or_lie_outside_are_refused_and_the_question_stands(
    args: dict[str, object], store: RunStore, world: World
) -> None:
    moved(store, Script(edit("a.txt")), world)
    before = store.inbox()

    with pytest.raises((BadAnswer, BadArguments)):
        store.approve(RUN_ID, 0, by="eve", args=args, agent=Before)

    assert store.inbox() == before
    assert moved(store, Script(), world).waiting_for == "approval"
    assert world.edited == []
