"""What a store promises about leases: held by one, fenced by their token, and free again in time, not before.

Rule: the checks are those of ``conformance``, and keep its rules.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import islice

from agent_es.errors import LeaseLost, RunHeld
from agent_es.owners import Owner
from agent_es.testing.trial import (
    FUTURE,
    LONG,
    PAST,
    RIVALS,
    Trial,
    append,
    at_once,
    call,
    doubt,
    end,
    equal,
    late,
    once_more,
    parked,
    refused,
    wait,
)

BRIEF = 0.2
"""Seconds of a lease that is to lapse."""
TICK = 0.02
"""Seconds by which two clocks may differ meanwhile."""
LATE = 2.0
"""Seconds after which a lease that lapsed must be free."""


def _an_append_under_a_token_that_was_taken_over_leaves_nothing_though_its_version_fits(trial: Trial) -> None:
    run = trial.start()
    run.lease = trial.take(run)
    call(run)
    trial.store.save(run)
    newer = trial.again(run)
    newer.lease = trial.take(run, force=True)

    once_more(run)
    refused(LeaseLost, trial.store.save, run)

    equal("version", trial.versions([run]), [2])
    append(trial.open(), newer, 1)


def _a_lease_is_held_by_one_and_is_no_more_once_it_was_taken_by_force(trial: Trial) -> None:
    run = trial.start()
    lease = trial.take(run)
    refused(RunHeld, trial.open().leases.take, run.state.run_id, Owner.here(), LONG)
    newer = trial.take(run, force=True)
    equal("whether the token grew", newer.token > lease.token, wanted=True)

    refused(LeaseLost, trial.store.leases.renew, lease)
    trial.store.leases.release(lease)

    row = trial.store.record(run.state.run_id)
    equal("who holds it", (row.lease_owner, row.lease_token), (newer.holder, newer.token))


def _a_lease_that_is_not_renewed_lapses_after_its_time_and_not_before(trial: Trial) -> None:
    run, other = trial.start(), trial.open()
    asked_at = time.monotonic()
    lease = trial.claim(seconds=BRIEF)
    equal("claimed", lease and lease.run_id, run.state.run_id)

    while (taken := trial.claim(other)) is None and time.monotonic() < asked_at + BRIEF + LATE:
        time.sleep(TICK)

    took = time.monotonic() - asked_at
    equal(f"claimed after {took:.2f} s", taken and taken.run_id, run.state.run_id)
    equal(f"whether {took:.2f} s of {BRIEF:g} s had passed", took > BRIEF - TICK, wanted=True)


def _a_lease_that_was_renewed_is_kept_from_then_on(trial: Trial) -> None:
    lease = trial.store.leases.take(trial.start().state.run_id, Owner.here(), BRIEF)
    lease.seconds = LONG
    trial.store.leases.renew(lease)

    time.sleep(BRIEF + TICK)

    equal("claimed", trial.claim(trial.open()), None)


def _a_run_that_was_given_back_is_claimed_at_once_and_nothing_was_used_up(trial: Trial) -> None:
    run = trial.start()
    lease = trial.take(run)
    trial.store.leases.release(lease)

    claimed = trial.claim(trial.open())

    equal("claimed", claimed and claimed.run_id, run.state.run_id)
    equal("claims", claimed and claimed.claims, 1)
    equal("whether the token grew", claimed and claimed.token > lease.token, wanted=True)


def _a_run_is_claimed_by_one_however_many_claim_at_once(trial: Trial) -> None:
    started = sorted(trial.start().state.run_id for _ in range(4 * RIVALS))
    claims = [iter(partial(trial.claim, trial.open()), None) for _ in range(RIVALS)]

    claimed = at_once(partial(list, islice(claim, 2 * len(started))) for claim in claims)

    equal("claimed", sorted(lease.run_id for leases in claimed for lease in leases), started)


def _what_is_due_is_claimed_and_nothing_else(trial: Trial) -> None:
    due = [trial.start(), trial.start(call), trial.start(call, late(PAST), wait(PAST))]
    for commands in ((end,), (call, doubt), (call, late(FUTURE), wait(FUTURE)), (parked,)):
        trial.start(*commands)

    claimed = islice(iter(trial.claim, None), 2 * len(due))

    equal("claimed", sorted(lease.run_id for lease in claimed if lease), sorted(run.state.run_id for run in due))


PROMISES_OF_LEASES: tuple[Callable[[Trial], None], ...] = (
    _an_append_under_a_token_that_was_taken_over_leaves_nothing_though_its_version_fits,
    _a_lease_is_held_by_one_and_is_no_more_once_it_was_taken_by_force,
    _a_lease_that_is_not_renewed_lapses_after_its_time_and_not_before,
    _a_lease_that_was_renewed_is_kept_from_then_on,
    _a_run_that_was_given_back_is_claimed_at_once_and_nothing_was_used_up,
    _a_run_is_claimed_by_one_however_many_claim_at_once,
    _what_is_due_is_claimed_and_nothing_else,
)
