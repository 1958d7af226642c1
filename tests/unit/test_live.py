"""What a worker keeps of the runs that it moved last: bounded, the latest, and nothing that is over."""

from dataclasses import replace

from agent_es.live import LiveRuns
from agent_es.state import RunState, Status


def run(run_id: str, version: int = 10) -> RunState:
    return RunState(run_id=run_id, version=version)


def test_what_was_put_is_taken_once() -> None:
    live = LiveRuns()
    live.put(run("a"))

    assert live.take("a") == run("a")
    assert live.take("a") is None


def test_what_was_used_longest_ago_goes_first() -> None:
    live = LiveRuns(most_events=30)
    for name in "abc":
        live.put(run(name))
    live.put(run("a", 11))

    assert [name for name in "abc" if live.take(name)] == ["a", "c"]


def test_a_run_that_is_longer_than_all_that_may_be_kept_is_not() -> None:
    live = LiveRuns(most_events=30)
    live.put(run("a"))
    live.put(run("long", 31))

    assert live.take("long") is None
    assert live.take("a") is not None


def test_a_run_that_grew_counts_once() -> None:
    live = LiveRuns(most_events=30)
    for version in range(1, 21):
        live.put(run("a", version))
    live.put(run("b"))

    assert len(live) == 2


def test_a_run_that_is_over_is_let_go() -> None:
    live = LiveRuns()
    live.put(run("a"))
    live.put(replace(run("a", 11), status=Status.DONE))

    assert live.take("a") is None
