"""B08: what was done before a wait is done again at each wake-up.

A question to a person is one that the envelope asks, or a mail whose answer is a signal.  Each answer comes to a
process that knows of nothing but the journal.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Envelope,
    Finish,
    Runner,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    WaitFor,
    Woken,
    tool,
)
from agent_es.testing import Crash, CrashingRunner

RUN_ID = "run-1"
ANSWERS = ("not yet", "not like that", "no", "yes")


class Office:
    """A world: what was sent, asked and wiped, in a file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "office"
        self._path.touch()

    def note(self, line: str, *, once: bool = False) -> None:
        if not (once and line in self.lines()):
            with self._path.open("a") as file:
                file.write(f"{line}\n")

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines()


class Clerk(AgentRun):
    """Mails, asks and wipes."""

    @tool(effect=Effect.IDEMPOTENT)
    def send_mail(self, ctx: ToolContext[Office], to: str) -> None:
        ctx.deps.note(f"mail {to}")

    @tool(effect=Effect.IDEMPOTENT)
    def ask(self, ctx: ToolContext[Office], question: str) -> WaitFor:
        """Ask a person, then wait for the answer: an effect and a wait in one body."""
        ctx.deps.note(f"ask {question}", once=True)
        return ctx.wait_for(f"answer to {question}")

    @tool(effect=Effect.IDEMPOTENT)
    def wipe(self, ctx: ToolContext[Office], table: str) -> None:
        ctx.deps.note(f"wipe {table}", once=True)


class Model:
    """Sends a mail and asks, beside each other; asks again for as long as the answer is no; then wipes."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        self.asked.append(run.turns)
        question = Clerk.ask.call(question=f"may I wipe? ({run.turns})")
        if run.turns == 0:
            return [Clerk.send_mail.call(to="a@x"), question]
        last = run.steps[-1]
        if last.tool == "ask":
            return Clerk.wipe.call(table="t") if last.result["payload"] == "yes" else question
        return Finish("wiped")


class Archive(AgentRun):
    """Mails, and wipes what a person says may be wiped, each table once in the whole store."""

    @tool(effect=Effect.IDEMPOTENT)
    def send_mail(self, ctx: ToolContext[Office], to: str) -> None:
        ctx.deps.note(f"mail {to}")

    @tool(effect=Effect.IDEMPOTENT)
    def wipe(self, ctx: ToolContext[Office], table: str) -> None:
        ctx.deps.note(f"wipe {table}")

    @tool(effect=Effect.IDEMPOTENT, key="{table}:wipe", name="wipe_once")
    def wipe_by_name(self, ctx: ToolContext[Office], table: str) -> None:
        ctx.deps.note(f"wipe {table}")


class Persistent:
    """Sends a mail and wants to wipe, beside each other; wants it again for as long as a person says no."""

    def __init__(self, wipe: str) -> None:
        self.wipe = wipe
        self.asked: list[int] = []
        self.heard: list[str] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        self.asked.append(run.turns)
        wipe = CallTool(self.wipe, {"table": "t"})
        if run.turns == 0:
            return [Archive.send_mail.call(to="a@x"), wipe]
        last = run.steps[-1]
        if last.error is not None:
            self.heard.append(last.error["message"])
            return wipe
        return Finish("wiped")


@pytest.fixture
def open_store(url: str) -> Iterator[Callable[[], RunStore]]:
    """Opens the store anew at each call, as a process that was restarted does."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(RunStore(url))


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


def answer(store: RunStore, turn: int, text: str) -> None:
    store.signal(RUN_ID, f"answer to may I wipe? ({turn})", text)


def test_a_mail_is_sent_once_and_each_question_is_put_once_however_often_the_run_wakes(
    open_store: Callable[[], RunStore], office: Office
) -> None:
    model = Model()

    def restarted() -> RunState:
        return Runner(open_store(), model, deps=office).run(Clerk, run_id=RUN_ID, goal="wipe")

    for turn, text in enumerate(ANSWERS):
        assert [restarted().waiting_for for _ in range(2)] == ["signal", "signal"]
        answer(open_store(), turn, text)
    state = restarted()

    assert (state.status, state.turns) == (Status.DONE, 5)
    assert sorted(office.lines()) == [*(f"ask may I wipe? ({turn})" for turn in range(4)), "mail a@x", "wipe t"]
    assert model.asked == [0, 1, 2, 3, 4, 5]  # each turn once, and the end
    assert [step.attempt for step in state.steps] == [1] * 6
    assert [step.woken.payload for step in state.steps if step.woken is not None] == list(ANSWERS)


@pytest.mark.parametrize("wipe", ["wipe", "wipe_once"])
def test_three_times_no_and_then_yes_are_one_mail_one_deletion_and_four_questions(
    wipe: str, open_store: Callable[[], RunStore], office: Office
) -> None:
    model, envelope = Persistent(wipe), Envelope(needs_approval=[wipe])
    told: list[int | None] = []

    def restarted() -> RunStore:
        store = open_store()
        state = Runner(store, model, deps=office).run(Archive, run_id=RUN_ID, goal="wipe", envelope=envelope)
        store.notify_people(lambda item: told.append(item.idx))
        assert (state.waiting_for, office.lines()) == ("approval", ["mail a@x"])
        return store

    for idx, comment in enumerate(ANSWERS[:3], start=1):
        restarted()
        store = restarted()
        assert [(item.kind, item.idx, item.args) for item in store.inbox()] == [("approval", idx, {"table": "t"})]
        store.deny(RUN_ID, idx, by="dana", reason=comment)
    restarted().approve(RUN_ID, 4, by="dana")
    store = open_store()
    state = Runner(store, model, deps=office, agents=[Archive]).resume(RUN_ID)

    assert (state.status, state.turns) == (Status.DONE, 4)
    assert sorted(office.lines()) == ["mail a@x", "wipe t"]
    assert told == [1, 2, 3, 4]
    assert store.notify_people(told.append) == 0
    assert model.asked == [0, 1, 2, 3, 4]  # each turn once, and the end
    assert model.heard == list(ANSWERS[:3])
    assert [step.attempt for step in state.steps] == [1, 0, 0, 0, 1]


@pytest.mark.parametrize("text", ["yes", "no"])
def test_a_body_that_does_something_and_then_waits_is_not_called_again_wherever_its_process_dies(
    text: str, url: str, tmp_path: Path
) -> None:
    at = 0

    while True:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        office, run_id = Office(folder), f"run-{at}"
        with RunStore(url) as store:
            try:
                CrashingRunner(store, Model(), deps=office, at=at).run(Clerk, run_id=run_id, goal="wipe")
            except Crash:
                pass
            else:
                break
        with RunStore(url) as store:
            between = Runner(store, Model(), deps=office).run(Clerk, run_id=run_id, goal="wipe")
            waiting = [step for step in between.steps if step.tool == "ask"]
            store.signal(run_id, "answer to may I wipe? (0)", text)
            state = Runner(store, Model(), deps=office, agents=[Clerk]).resume(run_id)

        assert [step.status for step in waiting] == ["waiting"], f"killed at place {at}"
        assert state.steps[1].attempt == waiting[0].attempt  # none was added after the wait began
        assert state.steps[1].woken == Woken("signal", "answer to may I wipe? (0)", text)
        assert office.lines().count("ask may I wipe? (0)") == 1
        assert office.lines().count("wipe t") == (text == "yes")

    assert at > 20
