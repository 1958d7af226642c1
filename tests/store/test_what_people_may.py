"""What a yes may be to, and how often somebody is told that one is wanted."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    Approval,
    CallTool,
    Effect,
    Envelope,
    Finish,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    StartChild,
    tool,
)
from agent_es.errors import BadAnswer, NotAllowed
from agent_es.inbox import InboxItem
from agent_es.store import inbox


class PayRun(AgentRun):
    """Looks, then pays."""

    decider = ScriptedDecider([CallTool("look"), CallTool("pay", {"amount": "200"}), Finish("paid")])

    @tool(effect=Effect.READ)
    def look(self) -> str:
        """Look."""
        return "seen"

    @tool(effect=Effect.IDEMPOTENT)
    def pay(self, amount: Decimal) -> str:
        """Pay."""
        return str(amount)


def asked(store: RunStore, *rules: str | Approval, run_id: str = "pay-1") -> RunState:
    return Runner(store).run(PayRun, run_id=run_id, goal="Pay", envelope=Envelope(needs_approval=rules))


def test_a_call_without_a_key_that_waits_for_a_yes_is_read_back_by_another_process(
    open_store: Callable[..., RunStore],
) -> None:
    asked(open_store(), "look")

    (item,) = open_store().inbox()
    state = open_store().approve("pay-1", 0, by="dana", digest=item.digest)

    assert (item.key, state.steps[0].status) == (None, "queued")


@pytest.mark.parametrize(
    ("more", "wrong", "says"),
    [
        (Approval(call="pay.amount > 1000", by=("cfo",)), NotAllowed, "dana may not answer; cfo may"),
        (Approval(call="pay.amount > 1000", people=2), BadAnswer, "2 people must say yes, and 1 was asked for"),
    ],
    ids=["other people", "more people"],
)
def test_other_arguments_that_need_other_people_or_more_of_them_are_no_way_around_these(
    store: RunStore, more: Approval, wrong: type[Exception], says: str
) -> None:
    before = asked(store, Approval(call="pay.amount > 100"), more)

    with pytest.raises(wrong, match=f"run pay-1 step 1: .*{says}"):
        store.approve("pay-1", 1, by="dana", args={"amount": "5000"})
    assert store.load("pay-1").version == before.version

    assert store.approve("pay-1", 1, by="dana", args={"amount": "900"}).steps[1].args == {"amount": "900"}


def test_who_says_yes_to_arguments_that_another_gave_must_be_one_of_those_whom_these_need(store: RunStore) -> None:
    asked(store, Approval(call="pay", people=2), Approval(call="pay.amount > 1000", by=("cfo", "ceo")))
    store.approve("pay-1", 1, by="cfo", args={"amount": "5000"})

    with pytest.raises(NotAllowed, match="dana may not answer; cfo or ceo may"):
        store.approve("pay-1", 1, by="dana")

    assert store.approve("pay-1", 1, by="ceo").steps[1].status == "queued"


def test_the_start_of_another_run_that_a_rule_asks_about_is_refused_for_it_cannot_wait_for_a_yes(
    store: RunStore,
) -> None:
    parent = ScriptedDecider([StartChild(PayRun, "Pay"), Finish("started")])

    state = Runner(store, parent).run(
        PayRun, run_id="parent", goal="Start", envelope=Envelope(needs_approval=("start_child",))
    )

    assert state.steps[0].error == {
        "applied": False,
        "message": "nobody can say yes to the start of another run; ask it of that run's calls",
        "rule": "needs_approval: start_child",
        "type": "Refused",
    }
    assert [record.run_id for record in store.runs()] == ["parent"]


def test_who_tells_slowly_leaves_the_rest_to_others_instead_of_telling_it_twice(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        asked(store, "look", run_id=f"pay-{number}")
    now = [0.0]
    monkeypatch.setattr(inbox.time, "monotonic", lambda: now[0])
    told: list[Any] = []

    def slowly(item: InboxItem) -> None:
        told.append(item.run_id)
        now[0] += inbox.TELLING

    assert store.notify_people(slowly) == 1
    assert told == ["pay-0"]
    assert store.notify_people(slowly) == 0, "the others are somebody's for a while"


def test_the_inbox_tells_what_began_to_wait_since_then(store: RunStore) -> None:
    for run_id in ("pay-1", "pay-2", "pay-3"):
        asked(store, "look", run_id=run_id)
        store.pause(run_id, by="ann")
    first, *_ = every = store.inbox(kind="approval")
    last = every[-1].since

    assert [item.run_id for item in every] == ["pay-1", "pay-2", "pay-3"]
    assert store.inbox(kind="approval", since=first.since) == every
    assert [item.run_id for item in store.inbox(kind="approval", since=last)] == [
        item.run_id for item in every if item.since >= last
    ]
    assert store.inbox(since=last + timedelta(hours=1)) == []
    assert [item.kind for item in store.inbox(limit=1)] == ["approval"]
