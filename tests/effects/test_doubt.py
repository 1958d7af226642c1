"""Where nobody knows whether an effect happened, the run waits and says so; a person, a probe or a policy goes on."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent_es import AgentRun, CallTool, Finish, RunState, RunStore, Status, ToolContext, tool
from agent_es.errors import BadSettlement, KeyMismatch, LeaseLost, NotApplied, OutcomeUnknown, StillHeld
from agent_es.owners import Owner
from agent_es.tools import DidNotHappen, Happened, Retry, Returned

Play = Callable[..., RunState]
SCRIPT = [CallTool("pay"), Finish("done")]


class Provider:
    """Says per call what happens: ``ok``, ``lost`` (paid, the answer is lost), ``no`` (it times out before)."""

    def __init__(self, *fates: str) -> None:
        self.fates = list(fates)
        self.paid: list[str] = []
        self.sent: list[str] = []

    def pay(self, key: str | None) -> str:
        self.sent.append(key or "")
        fate = self.fates.pop(0) if self.fates else "ok"
        if fate in ("ok", "lost"):
            self.paid.append(key or "")
        if fate != "ok":
            raise {"lost": TimeoutError, "no": TimeoutError, "unknown": OutcomeUnknown, "not applied": NotApplied}[
                fate
            ](fate)
        return f"receipt of {key}"


class Careful(AgentRun):
    """Pays where nothing protects a second call."""

    @tool(effect="at_most_once")
    def pay(self, ctx: ToolContext[Provider]) -> str:
        return ctx.deps.pay(ctx.idempotency_key)


@pytest.mark.parametrize("fate", ["lost", "no", "unknown"])
def test_an_at_most_once_tool_that_raises_is_in_doubt_and_never_called_again(
    fate: str, play: Play, types: Callable[[], list[str]]
) -> None:
    provider = Provider(fate)

    first, again = play(Careful, SCRIPT, provider), play(Careful, SCRIPT, provider)

    assert (first.status, first.waiting_for) == (again.status, again.waiting_for) == (Status.WAITING, "doubt")
    assert [(step.idx, step.tool) for step in again.doubts] == [(0, "pay")]
    assert "nobody can tell whether pay happened" in (again.doubts[0].doubt or "")
    assert len(provider.sent) == 1
    assert types() == ["llm_decided", "step_in_doubt"]


def test_not_applied_is_a_failure_that_the_decider_sees(play: Play) -> None:
    state = play(Careful, SCRIPT, Provider("not applied"))

    assert state.status is Status.DONE
    assert state.steps[0].error == {"applied": False, "message": "not applied", "type": "NotApplied"}


def test_a_doubt_that_happened_is_settled_with_what_it_gave(play: Play, store: RunStore) -> None:
    provider = Provider("lost")
    play(Careful, SCRIPT, provider)

    store.settle("run-1", 0, "happened", by="ann", result="receipt 5")
    state = play(Careful, SCRIPT, provider)

    assert (state.status, state.steps[0].result, state.steps[0].attempt) == (Status.DONE, "receipt 5", 1)
    assert len(provider.sent) == 1
    settled = [entry.data for entry in store.journal("run-1") if entry.type == "doubt_settled"]
    assert [(data["outcome"], data["by"]) for data in settled] == [("happened", "ann")]


def test_a_doubt_that_did_not_happen_starts_anew_under_another_key(play: Play, store: RunStore) -> None:
    provider = Provider("no")
    play(Careful, SCRIPT, provider)

    store.settle("run-1", 0, "did_not_happen", by="ann")
    state = play(Careful, SCRIPT, provider)

    assert (state.status, state.steps[0].attempt) == (Status.DONE, 2)
    assert provider.sent == ["run-1:0:pay", "run-1:0:pay#2"]


def test_did_not_happen_is_refused_while_the_last_holder_may_be_alive(play: Play, store: RunStore) -> None:
    play(Careful, SCRIPT, Provider("no"))
    store.leases.take("run-1", Owner.here(), 60.0)

    with pytest.raises(StillHeld, match="could still happen"):
        store.settle("run-1", 0, "did_not_happen", by="ann")

    assert store.settle("run-1", 0, "did_not_happen", by="ann", force=True).status is Status.RUNNING


def test_it_is_refused_while_one_who_lost_the_run_in_the_call_may_be_alive_though_nobody_holds_it(
    play: Play, store: RunStore
) -> None:
    play(Careful, SCRIPT, Provider("no"))
    store.leases.take("run-1", Owner.here("frozen"), 60.0)
    store.leases.release(store.leases.take("run-1", Owner.here(), 60.0, force=True))

    assert store.record("run-1").lease_owner is None
    with pytest.raises(StillHeld, match="frozen lost it in a call and may still be alive"):
        store.settle("run-1", 0, "did_not_happen", by="ann")

    assert store.settle("run-1", 0, "happened", by="ann", result="seen").doubts == ()


def test_one_who_gave_the_run_back_or_is_surely_dead_is_in_nobodys_way(play: Play, store: RunStore) -> None:
    play(Careful, SCRIPT, Provider("no"))
    store.leases.release(store.leases.take("run-1", Owner.here(), 60.0))
    gone = replace(Owner.here(), pid=2**22 + 1)
    store.leases.take("run-1", gone, 60.0)
    store.leases.release(store.leases.take("run-1", Owner.here(), 60.0))

    assert store.settle("run-1", 0, "did_not_happen", by="ann").doubts == ()


def test_with_the_next_turn_nobody_is_remembered_who_lost_the_run_in_an_earlier_one(
    play: Play, store: RunStore
) -> None:
    twice = [CallTool("pay"), CallTool("pay"), Finish("paid")]
    play(Careful, twice, Provider("no"))
    store.leases.take("run-1", Owner.here("frozen"), 60.0)
    store.leases.release(store.leases.take("run-1", Owner.here(), 60.0, force=True))
    store.settle("run-1", 0, "happened", by="ann")
    play(Careful, twice, Provider("no"))

    assert [step.idx for step in store.load("run-1").doubts] == [1]
    assert store.settle("run-1", 1, "did_not_happen", by="ann").doubts == ()


@pytest.mark.parametrize(("idx", "outcome"), [(1, "happened"), (0, "perhaps")])
def test_what_is_not_in_doubt_or_no_outcome_cannot_be_settled(
    idx: int, outcome: Any, play: Play, store: RunStore
) -> None:
    play(Careful, SCRIPT, Provider("no"))

    with pytest.raises(BadSettlement):
        store.settle("run-1", idx, outcome, by="ann")

    assert store.load("run-1").doubts


def test_a_settled_doubt_cannot_be_settled_again(play: Play, store: RunStore) -> None:
    play(Careful, SCRIPT, Provider("no"))
    store.settle("run-1", 0, "happened", by="ann", result="r")

    with pytest.raises(BadSettlement, match="step 0 is not in doubt; in doubt: none"):
        store.settle("run-1", 0, "did_not_happen", by="bob")


def test_on_doubt_resend_calls_again_skip_goes_on_and_tell_tells(play: Play) -> None:
    class Mailer(AgentRun):
        @tool(effect="at_most_once", on_doubt="resend", retry=Retry(max_attempts=3))
        def remind(self, ctx: ToolContext[Provider]) -> str:
            return ctx.deps.pay(None)

        @tool(effect="at_most_once", on_doubt="skip")
        def skip(self, ctx: ToolContext[Provider]) -> str:
            return ctx.deps.pay(None)

        @tool(effect="at_most_once", on_doubt="tell")
        def told(self, ctx: ToolContext[Provider]) -> str:
            return ctx.deps.pay(None)

    provider = Provider("no", "ok", "no", "no")
    state = play(Mailer, [CallTool("remind"), CallTool("skip"), CallTool("told"), Finish("done")], provider)

    remind, skip, told = state.steps
    assert (remind.status, remind.attempt, remind.result) == ("done", 2, "receipt of None")
    assert (skip.status, skip.attempt, skip.result) == ("done", 1, None)
    assert (told.status, told.attempt, (told.error or {})["type"]) == ("failed", 1, "OutcomeUnknown")
    assert (told.error or {})["applied"] is None
    assert state.status is Status.DONE


def test_resend_ends_in_doubt_when_its_attempts_are_used_up(play: Play) -> None:
    class Mailer(AgentRun):
        @tool(effect="at_most_once", on_doubt="resend", retry=Retry(max_attempts=2))
        def pay(self, ctx: ToolContext[Provider]) -> str:
            return ctx.deps.pay(None)

    provider = Provider("no", "no", "no")
    state = play(Mailer, SCRIPT, provider)

    assert (state.waiting_for, len(provider.sent)) == ("doubt", 2)


class Keyed(AgentRun):
    """Pays through a provider that honours keys, for an hour."""

    @tool(effect="idempotent", retry=Retry(max_attempts=3, initial=10), key_ttl=3600)
    def pay(self, ctx: ToolContext[Provider]) -> str:
        return ctx.deps.pay(ctx.idempotency_key)


def test_attempts_that_end_unknown_end_in_doubt_never_in_a_failure(play: Play, clock: Any) -> None:
    provider = Provider("no", "no", "no")

    state = play(Keyed, SCRIPT, provider, max_wait=60)

    assert (state.waiting_for, state.steps[0].status) == ("doubt", "in_doubt")
    assert provider.sent == ["run-1:0:pay"] * 3
    assert clock.slept == [10, 20]


def test_a_key_past_its_lifetime_is_not_sent_again(play: Play, clock: Any) -> None:
    provider = Provider("lost", "ok")
    waiting = play(Keyed, SCRIPT, provider)
    assert waiting.waiting_for == "retry"

    clock.now += timedelta(hours=1)
    state = play(Keyed, SCRIPT, provider)

    assert state.waiting_for == "doubt"
    assert "keeps a key for 3600 s only" in (state.doubts[0].doubt or "")
    assert len(provider.sent) == 1


def test_a_key_within_its_lifetime_is_sent_again(play: Play, clock: Any) -> None:
    provider = Provider("lost", "ok")
    play(Keyed, SCRIPT, provider)

    clock.now += timedelta(minutes=59)
    state = play(Keyed, SCRIPT, provider)

    assert (state.status, provider.sent) == (Status.DONE, ["run-1:0:pay"] * 2)


def test_a_provider_that_holds_the_key_with_other_parameters_is_not_asked_again(play: Play) -> None:
    class Wrong(AgentRun):
        @tool(effect="idempotent")
        def pay(self, ctx: ToolContext[list[int]]) -> str:
            ctx.deps.append(ctx.attempt)
            if ctx.attempt == ctx.deps[0] and len(ctx.deps) == 1 and ctx.run_id == "late":
                raise TimeoutError
            raise KeyMismatch("other parameters")

    first: list[int] = []
    late: list[int] = []
    at_once, later = play(Wrong, SCRIPT, first), play(Wrong, SCRIPT, late, run_id="late")

    assert (at_once.steps[0].status, first) == ("failed", [1])
    assert (later.steps[0].status, late) == ("in_doubt", [1, 2])


class Asked(AgentRun):
    """Pays through a provider that can be asked."""

    def find(self, ctx: ToolContext[Any], key: str) -> object:
        return ctx.deps.find(key)

    @tool(effect="probed", probe=find, settle_after=30)
    def pay(self, ctx: ToolContext[Any]) -> str:
        return ctx.deps.pay(ctx.idempotency_key)


class Findable(Provider):
    """A provider with a search that sees nothing for a while."""

    answers: list[object]

    def find(self, key: str) -> object:
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return Happened(f"found {key}") if key in self.paid else DidNotHappen()


def findable(*fates: str, answers: tuple[object, ...] = ()) -> Findable:
    provider = Findable(*fates)
    provider.answers = list(answers)
    return provider


def test_a_probe_is_asked_before_any_second_attempt_and_not_before_it_can_be_believed(
    play: Play, clock: Any, types: Callable[[], list[str]]
) -> None:
    provider = findable("lost")

    state = play(Asked, SCRIPT, provider, max_wait=60)

    assert (state.status, state.steps[0].result) == (Status.DONE, "found run-1:0:pay")
    assert len(provider.sent) == 1
    assert clock.slept == [30]
    assert types() == [
        "llm_decided", "tool_failed", "wait_began", "wait_ended", "doubt_settled", "tool_result", "finished",
    ]  # fmt: skip


def test_a_probe_that_says_no_lets_it_start_again(play: Play) -> None:
    provider = findable("no")

    state = play(Asked, SCRIPT, provider, max_wait=60)

    assert (state.status, state.steps[0].attempt, len(provider.paid)) == (Status.DONE, 2, 1)


def test_a_probe_that_says_no_for_ever_ends_in_a_failure_and_not_in_a_loop(play: Play) -> None:
    provider = findable(*["no"] * 20)

    state = play(Asked, SCRIPT, provider, max_wait=60)

    assert len(provider.sent) == 5
    assert (state.steps[0].error or {})["type"] == "AttemptsExhausted"


@pytest.mark.parametrize("answer", [None, "who knows", ConnectionError("down")])
def test_a_probe_that_cannot_tell_leaves_a_doubt_and_is_asked_again_at_the_next_resume(
    answer: object, play: Play
) -> None:
    provider = findable("lost", answers=(answer, answer))

    first = play(Asked, SCRIPT, provider, max_wait=60)
    second = play(Asked, SCRIPT, provider, max_wait=60)
    third = play(Asked, SCRIPT, provider, max_wait=60)

    assert (first.waiting_for, second.waiting_for) == ("doubt", "doubt")
    assert (third.status, third.steps[0].result) == (Status.DONE, "found run-1:0:pay")
    assert len(provider.sent) == 1


def test_a_late_result_settles_its_own_doubt_and_only_its_own(play: Play, store: RunStore) -> None:
    play(Careful, SCRIPT, Provider("no"))

    wrong = store.record_late("run-1", 0, 2, Returned('"late"'))
    right = store.record_late("run-1", 0, 1, Returned('"late"'))
    again = store.record_late("run-1", 0, 1, Returned('"later"'))

    assert (wrong, right, again) == (False, True, False)
    assert store.load("run-1").steps[0].result == "late"


def test_a_slow_worker_that_lost_its_run_still_delivers_its_result(play: Play, store: RunStore) -> None:
    class Slow(AgentRun):
        @tool(effect="at_most_once")
        def pay(self, ctx: ToolContext[None]) -> str:
            taken_over = store.aggregate(Slow, "run-1")
            taken_over.lease = store.leases.take("run-1", Owner.here("another"), 0.0, force=True)
            taken_over.record_doubt(0, "the worker was lost")
            store.save(taken_over)
            return "paid"

    with pytest.raises(LeaseLost):
        play(Slow, SCRIPT)

    state = play(Slow, SCRIPT)
    assert (state.status, state.steps[0].result, state.steps[0].attempt) == (Status.DONE, "paid", 1)


def test_a_doubt_in_one_call_leaves_its_siblings_alone(play: Play, store: RunStore) -> None:
    class Both(Careful):
        @tool(effect="read")
        def look(self, nth: int) -> int:
            return nth

    turn = [CallTool("look", {"nth": 1}), CallTool("pay"), CallTool("look", {"nth": 2})]
    state = play(Both, [turn, Finish("done")], Provider("no"))

    assert [step.status for step in state.steps] == ["done", "in_doubt", "done"]
    assert state.waiting_for == "doubt"
    store.settle("run-1", 1, "happened", by="ann", result="r")
    assert play(Both, [turn, Finish("done")], Provider()).answer == "done"


def test_the_journal_of_a_doubt_can_be_written_out_and_read_in(play: Play, store: RunStore) -> None:
    play(Careful, SCRIPT, Provider("no"))

    lines = [json.loads(str(entry)) for entry in store.journal("run-1")]

    assert lines[-1]["type"] == "step_in_doubt"
    assert lines[-1]["data"]["reason"].startswith("attempt 1 of 1: TimeoutError")
