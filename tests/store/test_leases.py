"""Leases where the database fails, or its answer is lost; what they are worth is in `worker/`."""

import sqlite3
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from agent_es import AgentRun, RunStore
from agent_es.crashpoints import AFTER_COMMIT, BEFORE_COMMIT, watching
from agent_es.errors import LeaseLost, RunHeld, StoreUnusable
from agent_es.owners import Owner


@pytest.fixture
def me() -> Owner:
    return Owner.here()


@pytest.fixture
def another() -> Owner:
    return Owner.here()


class Job(AgentRun):
    """Something to do."""


@contextmanager
def failing(place: str, *, times: int = 1) -> Any:
    """Let the driver fail at a commit, before it or after it, so often."""
    left = times

    def fail(reached: str, _: object) -> None:
        nonlocal left
        if reached == place and left:
            left -= 1
            raise sqlite3.OperationalError("disk I/O error")

    with watching(fail):
        yield
    assert left == 0


@pytest.mark.parametrize("place", [BEFORE_COMMIT, AFTER_COMMIT])
def test_a_claim_whose_answer_is_lost_is_found_again(store: RunStore, me: Owner, another: Owner, place: str) -> None:
    store.start(Job, run_id="run-1", goal="work")
    store.start(Job, run_id="run-2", goal="work")

    with failing(place):
        lease = store.leases.claim(["Job"], me, 60.0)

    assert lease is not None
    assert (lease.token, lease.claims) == (1, 1)
    other = store.leases.claim(["Job"], me, 60.0)
    assert other is not None
    assert {lease.run_id, other.run_id} == {"run-1", "run-2"}
    assert store.leases.claim(["Job"], me, 60.0) is None


@pytest.mark.parametrize("place", [BEFORE_COMMIT, AFTER_COMMIT])
def test_a_taking_whose_answer_is_lost_is_ours(store: RunStore, me: Owner, another: Owner, place: str) -> None:
    store.start(Job, run_id="run-1", goal="work")

    with failing(place):
        lease = store.leases.take("run-1", me, 60.0)

    assert store.record("run-1").lease_token == lease.token
    store.leases.renew(lease)
    with pytest.raises(RunHeld):
        store.leases.take("run-1", another, 60.0)


def test_what_could_not_be_given_back_may_be_taken_again_by_this_process(
    store: RunStore, open_store: Callable[..., RunStore], me: Owner, another: Owner
) -> None:
    store.start(Job, run_id="run-1", goal="work")
    lease = store.leases.take("run-1", me, 60.0)

    with failing(BEFORE_COMMIT, times=5), pytest.raises(StoreUnusable):
        store.leases.release(lease)

    assert open_store().leases.take("run-1", another, 60.0).token == lease.token + 1


def test_one_owner_does_not_take_its_own_run_twice(store: RunStore, me: Owner) -> None:
    store.start(Job, run_id="run-1", goal="work")
    store.leases.take("run-1", me, 60.0)

    with pytest.raises(RunHeld):
        store.leases.take("run-1", me, 60.0)


def test_who_holds_a_run_is_judged_by_the_databases_clock(store: RunStore, me: Owner) -> None:
    store.start(Job, run_id="run-1", goal="work")
    assert store.leases.holder("run-1") is None

    store.leases.take("run-1", me, 60.0)
    held = store.leases.holder("run-1")
    assert held is not None
    assert held.by == str(me)

    with store.recorder.datastore.writing() as connection:
        connection.execute("UPDATE agent_es_runs SET lease_until = 0")
    assert store.leases.holder("run-1") is None
    assert store.leases.holder("run-2") is None


def test_a_renewal_that_comes_after_the_run_was_given_back_keeps_nobody_from_it(
    store: RunStore, me: Owner, another: Owner
) -> None:
    store.start(Job, run_id="run-1", goal="work")
    lease = store.leases.take("run-1", me, 60.0)
    under_way = replace(lease)  # as the heart has it, which is about to renew it
    store.leases.release(lease)

    with pytest.raises(LeaseLost):
        store.leases.renew(under_way)

    assert store.leases.claim(["Job"], another, 60.0) is not None
