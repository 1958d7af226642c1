"""The fold: the same events give the same state, folded at once, in parts, or from a shared past."""

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_es.errors import RunHasFailed, RunUnfinished
from agent_es.events import (
    AnyEvent,
    CompensationBegan,
    CompensationEnded,
    DoubtSettled,
    Finished,
    LlmDecided,
    Parked,
    Requeued,
    RunFailed,
    RunStarted,
    Settlement,
    StepInDoubt,
    ToolFailed,
    ToolResult,
    WaitBegan,
    WaitEnded,
)
from agent_es.state import BY_PROBE, RunState, Status, Step, Steps, evolve, fold
from agent_es.testing import FrozenClock

at = FrozenClock()


def started() -> RunStarted:
    return RunStarted(
        timestamp=at(0),
        run_id="run-7f3a",
        agent="Refund",
        agent_version="2",
        goal="Refund ORD-3300",
        input='{"order_id":"ORD-3300"}',
        tags={"team": "support"},
    )


def decided(
    idx: int,
    *,
    turn: int | None = None,
    attempt: int = 1,
    tool: str = "search",
    key: str | None = None,
    seq: int | None = None,
    undoes: int | None = None,
) -> LlmDecided:
    return LlmDecided(
        timestamp=at(idx if seq is None else seq),
        idx=idx,
        turn=idx if turn is None else turn,
        tool=tool,
        args=f'{{"query":{idx}}}',
        attempt=attempt,
        key=key or f"key-{idx}",
        call_id="call_1",
        undoes=undoes,
    )


def gave(idx: int, value: str = '"ok"') -> ToolResult:
    return ToolResult(timestamp=at(idx), idx=idx, tool="search", attempt=1, result=value)


ERROR = '{"applied":false,"message":"no such order","type":"ValueError"}'


def failed(idx: int) -> ToolFailed:
    return ToolFailed(timestamp=at(idx), idx=idx, tool="search", attempt=1, error=ERROR)


def retrying(idx: int, *, at_seq: int = 60) -> ToolFailed:
    return ToolFailed(timestamp=at(idx), idx=idx, tool="search", attempt=1, error=ERROR, retry_at=at(at_seq))


def doubted(idx: int) -> StepInDoubt:
    return StepInDoubt(timestamp=at(idx), idx=idx, tool="search", attempt=1, reason="time-out")


def settled(
    idx: int, outcome: Settlement = "did_not_happen", *, by: str = "ann", key: str | None = None
) -> DoubtSettled:
    new = key or f"key-{idx}#2" if outcome == "did_not_happen" else None
    return DoubtSettled(timestamp=at(9), idx=idx, tool="search", attempt=1, outcome=outcome, by=by, key=new)


WAITING = WaitBegan(timestamp=at(9), wake_at=at(60))
WOKEN = WaitEnded(timestamp=at(60), reason="clock")
PARKED = Parked(timestamp=at(9), reason="this program has no tool 'search'")
REQUEUED = Requeued(timestamp=at(9), by="ann")
UNDOING = CompensationBegan(timestamp=at(9), by="ann")
UNDONE = CompensationEnded(timestamp=at(9))
FINISHED = Finished(timestamp=at(9), answer='{"refunded":"180.00"}')
GAVE_UP = RunFailed(timestamp=at(9), reason="no such order")


@st.composite
def histories(draw: st.DrawFn) -> list[AnyEvent]:
    """Draw the events of a run: some turns of some calls, retried, waited for, doubted or not, ended in any way."""
    events: list[AnyEvent] = [started()]
    first = 0
    for turn in range(draw(st.integers(0, 4))):
        calls = range(first, first := first + draw(st.integers(1, 3)))
        events += [decided(idx, turn=turn, attempt=draw(st.integers(0, 1))) for idx in calls]
        for idx in draw(st.permutations(calls)):
            for n in range(2, 2 + draw(st.integers(0, 2))):
                events += draw(st.sampled_from([[], [retrying(idx)], [retrying(idx), WAITING, WOKEN]]))
                events += draw(st.sampled_from([[], [doubted(idx), settled(idx)], [PARKED, REQUEUED]]))
                events.append(decided(idx, turn=turn, attempt=n))
            events += draw(st.sampled_from([[], [doubted(idx)], [doubted(idx), settled(idx, "happened")]]))
            events.append(gave(idx) if draw(st.booleans()) else failed(idx))
    events += draw(
        st.sampled_from(
            [
                [decided(first, attempt=0)],
                [decided(first), decided(first + 1, turn=first), doubted(first)],
                [decided(first), retrying(first), WAITING],
                [decided(first), retrying(first), WAITING, PARKED],
                [decided(first), doubted(first), settled(first)],
                [FINISHED],
                [GAVE_UP],
                [GAVE_UP, REQUEUED],
                [FINISHED, UNDOING, decided(first, undoes=0), gave(first)],
                [FINISHED, UNDOING, decided(first, undoes=0), gave(first), UNDONE],
            ]
        )
    )
    return events


# What a history comes to.


@pytest.mark.parametrize(
    ("events", "status", "waiting_for"),
    [
        ([], Status.PENDING, None),
        ([started()], Status.PENDING, None),
        ([started(), decided(0, attempt=0)], Status.RUNNING, None),
        ([started(), decided(0)], Status.RUNNING, None),
        ([started(), decided(0), gave(0)], Status.RUNNING, None),
        ([started(), decided(0), failed(0)], Status.RUNNING, None),
        ([started(), decided(0), doubted(0)], Status.WAITING, "doubt"),
        ([started(), decided(0), decided(1, turn=0), doubted(0)], Status.RUNNING, None),
        ([started(), decided(0), decided(1, turn=0, attempt=0), doubted(0)], Status.RUNNING, None),
        ([started(), decided(0), decided(1, turn=0), doubted(0), gave(1)], Status.WAITING, "doubt"),
        ([started(), decided(0), decided(1, turn=0), gave(1), doubted(0)], Status.WAITING, "doubt"),
        ([started(), decided(0), decided(1, turn=0), doubted(1), failed(0)], Status.WAITING, "doubt"),
        ([started(), decided(0), doubted(0), decided(0, attempt=2)], Status.RUNNING, None),
        ([started(), decided(0), doubted(0), gave(0)], Status.RUNNING, None),
        ([started(), decided(0), gave(0), FINISHED], Status.DONE, None),
        ([started(), FINISHED], Status.DONE, None),
        ([started(), decided(0), failed(0), GAVE_UP], Status.FAILED, None),
        ([started(), decided(0), retrying(0)], Status.RUNNING, None),
        ([started(), decided(0), retrying(0), WAITING], Status.WAITING, "retry"),
        ([started(), decided(0), retrying(0), WAITING, WOKEN], Status.RUNNING, None),
        ([started(), decided(0), retrying(0), WAITING, gave(0)], Status.RUNNING, None),
        ([started(), decided(0), retrying(0), WAITING, doubted(0)], Status.WAITING, "doubt"),
        ([started(), decided(0), decided(1, turn=0), doubted(0), retrying(1), WAITING], Status.WAITING, "retry"),
        (
            [started(), decided(0), decided(1, turn=0), doubted(0), retrying(1), WAITING, failed(1)],
            Status.WAITING,
            "doubt",
        ),
        ([started(), decided(0), doubted(0), settled(0)], Status.RUNNING, None),
        ([started(), decided(0), doubted(0), settled(0, "happened")], Status.WAITING, "doubt"),
        ([started(), decided(0), doubted(0), settled(0, "happened"), gave(0)], Status.RUNNING, None),
        ([started(), decided(0), doubted(0), settled(0, "told"), failed(0)], Status.RUNNING, None),
        ([started(), PARKED], Status.WAITING, "person"),
        ([started(), decided(0), PARKED], Status.WAITING, "person"),
        ([started(), decided(0), PARKED, gave(0)], Status.WAITING, "person"),
        ([started(), decided(0), doubted(0), PARKED], Status.WAITING, "person"),
        ([started(), decided(0), doubted(0), PARKED, REQUEUED], Status.WAITING, "doubt"),
        ([started(), decided(0), retrying(0), WAITING, PARKED], Status.WAITING, "person"),
        ([started(), PARKED, REQUEUED], Status.PENDING, None),
        ([started(), decided(0), failed(0), GAVE_UP, REQUEUED], Status.RUNNING, None),
        ([started(), decided(0), gave(0), FINISHED, UNDOING], Status.RUNNING, None),
        ([started(), decided(0), gave(0), GAVE_UP, UNDOING], Status.RUNNING, None),
        ([started(), FINISHED, UNDOING, decided(0, undoes=0), doubted(0)], Status.WAITING, "doubt"),
        ([started(), FINISHED, UNDOING, PARKED], Status.WAITING, "person"),
        ([started(), FINISHED, UNDOING, UNDONE], Status.CANCELLED, None),
    ],
)
def test_a_run_is_where_its_last_events_left_it(
    events: list[AnyEvent], status: Status, waiting_for: str | None
) -> None:
    state = fold(events)

    assert (state.status, state.waiting_for) == (status, waiting_for)


def test_a_run_is_what_it_was_started_as() -> None:
    state = fold([started()])

    assert (state.run_id, state.agent, state.agent_version) == ("run-7f3a", "Refund", "2")
    assert (state.goal, state.input, state.tags) == (
        "Refund ORD-3300",
        {"order_id": "ORD-3300"},
        {"team": "support"},
    )
    assert (state.started_at, state.updated_at, state.version, state.turns) == (at(0), at(0), 1, 0)


def test_every_event_counts_and_the_last_one_gives_the_time() -> None:
    state = fold([started(), decided(0), gave(0), decided(1), gave(1), FINISHED])

    assert (state.version, state.turns, state.started_at, state.updated_at) == (6, 2, at(0), at(9))


def test_a_step_that_gave_something_is_done() -> None:
    (step,) = fold([started(), decided(0), gave(0, '["14 days"]')]).steps

    assert (step.status, step.result, step.error, step.doubt) == ("done", ["14 days"], None, None)
    assert (step.args, step.key, step.attempt, step.call_id) == ({"query": 0}, "key-0", 1, "call_1")
    assert not step.is_open


def test_a_step_that_gave_nothing_is_done_too() -> None:
    (step,) = fold([started(), decided(0), gave(0, "null")]).steps

    assert (step.status, step.result, step.is_open) == ("done", None, False)


def test_a_step_that_failed_has_an_error() -> None:
    (step,) = fold([started(), decided(0), failed(0)]).steps

    assert (step.status, step.result) == ("failed", None)
    assert step.error == {"type": "ValueError", "message": "no such order", "applied": False}
    assert not step.is_open


def test_a_step_that_will_be_tried_again_is_open_and_says_why_and_when() -> None:
    (step,) = fold([started(), decided(0), retrying(0)]).steps

    assert (step.status, step.is_open, step.retry_at, step.result) == ("retrying", True, at(60), None)
    assert step.error == {"type": "ValueError", "message": "no such order", "applied": False}


def test_a_step_that_is_tried_again_waits_no_more() -> None:
    (step,) = fold([started(), decided(0), retrying(0), WAITING, WOKEN, decided(0, attempt=2)]).steps

    assert (step.status, step.attempt, step.retry_at, step.error) == ("started", 2, None, None)


def test_a_run_that_waits_says_until_when_and_a_run_that_goes_on_does_not() -> None:
    events: list[AnyEvent] = [started(), decided(0), retrying(0), WAITING]

    assert fold(events).wake_at == at(60)
    for goes_on in (WOKEN, gave(0), failed(0), doubted(0)):
        assert fold([*events, goes_on]).wake_at is None


def test_a_run_that_a_person_must_see_to_waits_for_no_clock() -> None:
    state = fold([started(), decided(0), retrying(0), WAITING, PARKED])

    assert (state.parked, state.wake_at) == ("this program has no tool 'search'", None)


def test_a_run_that_was_requeued_is_neither_parked_nor_failed() -> None:
    for ended in (PARKED, GAVE_UP):
        state = fold([started(), decided(0), gave(0), ended, REQUEUED])

        assert (state.parked, state.failure, state.is_over, state.can_move) == (None, None, False, True)


@pytest.mark.parametrize(
    ("events", "can_move"),
    [
        ([], True),
        ([decided(0)], True),
        ([decided(0), doubted(0)], False),
        ([decided(0), retrying(0), WAITING], False),
        ([PARKED], False),
        ([FINISHED], False),
        ([GAVE_UP], False),
        ([FINISHED, UNDOING], True),
        ([FINISHED, UNDOING, UNDONE], False),
    ],
)
def test_a_run_can_move_where_it_is_neither_over_nor_waits(events: list[AnyEvent], can_move: bool) -> None:  # noqa: FBT001
    assert fold([started(), *events]).can_move is can_move


def test_a_run_whose_effects_were_undone_keeps_its_answer_and_says_what_happened() -> None:
    undoing = fold([started(), decided(0), gave(0), FINISHED, UNDOING])
    undone = fold([decided(1, undoes=0), gave(1), UNDONE], undoing)

    assert (undoing.compensating, undone.compensating) == (True, False)
    assert [step.undoes for step in undone.steps] == [None, 0]
    assert (undone.answer, undone.failure) == (
        {"refunded": "180.00"},
        "compensated: its finished effects were undone",
    )


# What became of a doubt.


def only_step(*events: AnyEvent) -> Step:
    (step,) = fold([started(), *events]).steps
    return step


def test_a_step_that_did_not_happen_waits_for_its_next_attempt_under_its_new_key() -> None:
    step = only_step(decided(0), doubted(0), settled(0))

    assert (step.status, step.key, step.attempt, step.doubt) == ("queued", "key-0#2", 1, None)
    assert fold([started(), decided(0), doubted(0), settled(0)]).doubts == ()


@pytest.mark.parametrize("outcome", ["happened", "skipped", "told"])
def test_a_step_that_was_settled_otherwise_stays_in_doubt_until_its_result_or_failure(outcome: Settlement) -> None:
    step = only_step(decided(0), doubted(0), settled(0, outcome))

    assert (step.status, step.key) == ("in_doubt", "key-0")


def test_the_attempts_count_anew_from_where_a_person_said_that_it_did_not_happen() -> None:
    by_person = only_step(decided(0), decided(0, attempt=2), doubted(0), settled(0), decided(0, attempt=3))

    assert (by_person.attempt, by_person.settled, by_person.attempts_spent) == (3, 2, 1)


def test_what_a_probe_says_gives_no_further_attempts() -> None:
    by_probe = only_step(decided(0), decided(0, attempt=2), settled(0, by=BY_PROBE), decided(0, attempt=3))

    assert (by_probe.attempt, by_probe.settled, by_probe.attempts_spent) == (3, 0, 3)


def test_a_step_knows_when_its_latest_attempt_started_and_when_its_key_was_first_sent() -> None:
    queued = only_step(decided(0, attempt=0, seq=1))
    first = only_step(decided(0, attempt=0, seq=1), decided(0, seq=2))
    again = only_step(decided(0, seq=2), retrying(0), decided(0, attempt=2, seq=5))
    other_key = only_step(decided(0, seq=2), doubted(0), settled(0), decided(0, attempt=2, seq=5, key="key-0#2"))

    assert (queued.started_at, queued.keyed_at) == (None, None)
    assert (first.started_at, first.keyed_at) == (at(2), at(2))
    assert (again.started_at, again.keyed_at) == (at(5), at(2))
    assert (other_key.started_at, other_key.keyed_at) == (at(5), at(5))


def test_what_a_step_came_to_does_not_change_when_it_started() -> None:
    for ended in (gave(0), failed(0), doubted(0), retrying(0)):
        step = only_step(decided(0, seq=2), decided(0, attempt=2, seq=5), ended)

        assert (step.started_at, step.keyed_at, step.attempt) == (at(5), at(2), 2)


def test_a_step_in_doubt_is_open_and_says_why() -> None:
    state = fold([started(), decided(0), doubted(0)])

    (step,) = state.doubts
    assert (step.status, step.doubt, step.result, step.error) == ("in_doubt", "time-out", None, None)
    assert state.open_steps == (step,)


def test_a_step_that_is_decided_again_is_the_same_step_at_another_attempt() -> None:
    state = fold([started(), decided(0, attempt=0), decided(0), decided(0, attempt=2)])

    assert [(step.idx, step.attempt, step.status) for step in state.steps] == [(0, 2, "started")]
    assert state.turns == 1


def test_the_calls_of_a_turn_stand_in_the_order_of_decision_whatever_order_they_end_in() -> None:
    calls: list[AnyEvent] = [decided(0), decided(1, turn=0), decided(2, turn=0)]

    state = fold([started(), *calls, gave(2), failed(0), decided(1, turn=0, attempt=2)])

    assert [(step.idx, step.status) for step in state.steps] == [(0, "failed"), (1, "started"), (2, "done")]
    assert [step.idx for step in state.open_steps] == [1]


def test_only_the_latest_turn_has_open_steps() -> None:
    state = fold([started(), decided(0), gave(0), decided(1, attempt=0)])

    assert [step.idx for step in state.open_steps] == [1]
    assert [(step.idx, step.status) for step in state.open_steps] == [(1, "queued")]


# Folding.


@given(histories())
def test_folding_in_two_parts_is_folding_at_once_wherever_the_cut_is(events: list[AnyEvent]) -> None:
    whole = fold(events)

    for cut in range(len(events) + 1):
        assert fold(events[cut:], fold(events[:cut])) == whole


@given(histories())
def test_folding_one_event_after_another_is_folding_at_once(events: list[AnyEvent]) -> None:
    state = RunState()
    for event in events:
        state = evolve(state, event)

    assert state == fold(events)


@given(histories(), st.data())
def test_going_on_from_a_state_never_changes_it_nor_what_else_went_on_from_it(
    events: list[AnyEvent], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(events)))
    shared = fold(events[:cut])
    before = (shared, tuple(shared.steps))

    branches = [[*events[cut:-1], decided(90 + n, turn=9), gave(90 + n, f'"{n}"'), decided(99)] for n in range(3)]
    states = [fold(branch, shared) for branch in branches]

    assert states == [fold([*events[:cut], *branch]) for branch in branches]
    assert (shared, tuple(shared.steps)) == before == (fold(events[:cut]), tuple(fold(events[:cut]).steps))


def test_two_states_that_go_on_from_one_do_not_see_each_others_steps() -> None:
    one = fold([started(), decided(0), gave(0), decided(1)])

    left = fold([gave(1, '"left"'), decided(2), gave(2), decided(3)], one)
    right = fold([gave(1, '"right"'), decided(2), failed(2), decided(3)], one)

    assert [step.value_json for step in left.steps] == ['"ok"', '"left"', '"ok"', None]
    assert [step.status for step in right.steps] == ["done", "done", "failed", "started"]
    assert right.steps[1].result == "right"
    assert [step.status for step in one.steps] == ["done", "started"]


def test_a_history_that_no_command_would_write_folds_the_same_in_parts_too() -> None:
    events: list[AnyEvent] = [
        started(),
        decided(0),
        doubted(0),
        decided(1),
        gave(1),
    ]  # a turn after one that is in doubt

    whole = fold(events)

    assert [fold(events[cut:], fold(events[:cut])) == whole for cut in range(6)] == [True] * 6


def test_a_state_is_frozen() -> None:
    state = fold([started()])

    with pytest.raises(FrozenInstanceError):
        state.status = Status.DONE  # type: ignore[misc]


def test_that_a_call_found_the_run_there_is_not_part_of_its_state() -> None:
    state = fold([started()])

    assert replace(state, resumed=True) == state


# The steps, as a sequence.

TWO_TURNS: list[AnyEvent] = [started(), decided(0), decided(1, turn=0), gave(1), failed(0), decided(2, turn=1)]


def test_steps_are_a_sequence() -> None:
    steps = fold(TWO_TURNS).steps

    assert len(steps) == 3
    assert [step.idx for step in steps] == [0, 1, 2]
    assert [steps[0].idx, steps[2].idx, steps[-1].idx, steps[-3].idx] == [0, 2, 2, 0]
    assert [step.idx for step in reversed(steps)] == [2, 1, 0]
    assert steps.index(steps[1]) == 1
    assert steps[1] in steps


@pytest.mark.parametrize("index", [3, -4])
def test_there_is_no_step_beyond_the_ends(index: int) -> None:
    steps = fold(TWO_TURNS).steps

    with pytest.raises(IndexError, match=f"step {index} of 3"):
        steps[index]


@pytest.mark.parametrize(
    "part", [slice(1, None), slice(None, -1), slice(None, None, -1), slice(0, 9, 2), slice(3, None), slice(-2, None)]
)
def test_a_slice_of_steps_is_the_slice_of_their_tuple(part: slice) -> None:
    steps = fold(TWO_TURNS).steps

    assert steps[part] == tuple(steps)[part]


def test_steps_are_equal_where_their_steps_are() -> None:
    closed = fold(TWO_TURNS).steps
    same = Steps([], 0, tuple(map(tuple, closed)))  # type: ignore[arg-type]
    other = fold([*TWO_TURNS[:-1], decided(2, turn=1, attempt=0)]).steps

    assert closed == same
    assert hash(closed) == hash(same)
    assert closed != other
    assert closed != tuple(closed)


# The answer.


def test_the_result_of_a_done_run_is_its_answer() -> None:
    state = fold([started(), FINISHED])

    assert state.result() == state.answer == {"refunded": "180.00"}


@pytest.mark.parametrize("answer", ["null", "0", '""', "[]"])
def test_an_empty_answer_is_an_answer(answer: str) -> None:
    state = fold([started(), Finished(timestamp=at(1), answer=answer)])

    assert state.result() in (None, 0, "", [])


@pytest.mark.parametrize(
    ("events", "error", "says"),
    [
        ([], RunUnfinished, "run run-7f3a is pending; go on with: agent-es resume run-7f3a"),
        ([decided(0)], RunUnfinished, "run run-7f3a is running; go on with: agent-es resume run-7f3a"),
        ([decided(0), doubted(0)], RunUnfinished, "run run-7f3a waits for doubt; see: agent-es show run-7f3a"),
        (
            [decided(0), retrying(0), WAITING],
            RunUnfinished,
            "run run-7f3a waits for retry until 2026-07-05T10:01:00Z; see: agent-es show run-7f3a",
        ),
        ([PARKED], RunUnfinished, "run run-7f3a waits for person; see: agent-es show run-7f3a"),
        (
            [decided(0), retrying(0), WAITING, PARKED],
            RunUnfinished,
            "run run-7f3a waits for person; see: agent-es show run-7f3a",
        ),
        (
            [FINISHED, UNDOING, UNDONE],
            RunHasFailed,
            "run run-7f3a cancelled: compensated: its finished effects were undone; see: agent-es journal run-7f3a",
        ),
        ([GAVE_UP], RunHasFailed, "run run-7f3a failed: no such order; see: agent-es journal run-7f3a"),
    ],
)
def test_a_run_without_an_answer_names_the_next_command(
    events: list[AnyEvent], error: type[Exception], says: str
) -> None:
    state = fold([started(), *events])

    with pytest.raises(error) as caught:
        state.result()

    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("last", "over"),
    [(decided(0), False), (doubted(0), False), (PARKED, False), (FINISHED, True), (GAVE_UP, True), (UNDONE, True)],
)
def test_a_run_is_over_where_nothing_can_happen_to_it_any_more(last: AnyEvent, over: bool) -> None:  # noqa: FBT001
    assert fold([started(), decided(0), last]).is_over is over
