"""What a decider reads, and what is summarized first: values only."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_es import AgentRun, Memory
from agent_es.errors import BadMemory, NotApplied, NotRecordable
from agent_es.events import (
    AnyEvent,
    FactRecorded,
    LlmAnswered,
    LlmDecided,
    RunStarted,
    Steered,
    Summarized,
    ToolResult,
)
from agent_es.images import image_of, state_of
from agent_es.scratchpad import (
    LEAST_CAP,
    PIECE,
    Entry,
    Outline,
    active,
    cut_summary,
    entries,
    estimated,
    read_result,
    shown,
)
from agent_es.state import Fact, RunState, fold
from agent_es.tools import ToolContext
from agent_es.values import canonical

NOON = datetime(2026, 7, 5, 12, tzinfo=UTC)
STARTED = RunStarted(timestamp=NOON, run_id="r", agent="A", agent_version="1", goal="Look", input="null")


def turn(number: int, *results: str, tokens: int | None = None) -> list[AnyEvent]:
    """Return the events of a turn with a call for each result; with ``tokens``, a model said it."""
    said = LlmAnswered(timestamp=NOON, turn=number, model="test", answer="{}", tokens=tokens)
    first = number * len(results)
    return [
        *([said] if tokens is not None else []),
        *(
            LlmDecided(timestamp=NOON, idx=first + at, turn=number, tool="look", args="{}", attempt=1)
            for at, _ in enumerate(results)
        ),
        *(
            ToolResult(timestamp=NOON, idx=first + at, tool="look", attempt=1, result=canonical(text))
            for at, text in enumerate(results)
        ),
    ]


def run(turns: int, length: int = 400) -> RunState:
    """Return a run of so many turns with one result of so many characters each."""
    return fold([STARTED, *(event for number in range(turns) for event in turn(number, "x" * length))])


def summarized(state: RunState, up_to: int, first: int = 0, text: str = "It was looked.") -> RunState:
    return fold([Summarized(timestamp=NOON, first=first, up_to=up_to, text=text)], state)


def test_a_short_run_is_read_whole_and_one_over_the_cap_is_summarized_but_for_its_last_turns() -> None:
    memory = Memory(cap=1_000, keep=2)

    assert memory.due(run(8)) is None  # 8 results of 100 tokens
    phase = memory.due(run(12))

    assert phase is not None
    assert (phase.first, phase.up_to, phase.name, phase.longest) == (0, 10, "", 125)
    assert [entry.idx for entry in phase.entries] == [idx for idx in range(10) for _ in range(2)]


def test_what_is_summarized_leaves_the_active_entries_and_stays_in_the_others() -> None:
    state = summarized(run(3), 2)

    assert [*active(state)] == [
        Entry("goal", "Look"),
        Entry("summary", "It was looked."),
        Entry("call", "look {}", 2),
        Entry("result", "x" * 400, 2),
    ]
    assert len([*entries(state)]) == 7


def test_facts_and_what_people_said_are_never_summarized() -> None:
    said = Steered(timestamp=NOON, text="No refund over 100.", by="dana")
    fact = FactRecorded(timestamp=NOON, idx=0, name="limit", value="100")
    state = summarized(fold([STARTED, said, *turn(0, "a")[:1], fact, *turn(0, "a")[1:], *turn(1, "b")]), 2)

    assert [*active(state)] == [
        Entry("goal", "Look"),
        Entry("fact", "limit = 100"),
        Entry("summary", "It was looked."),
        Entry("message", "dana: No refund over 100."),
    ]


def test_a_turn_is_never_cut_in_two() -> None:
    state = fold([STARTED, *(event for number in range(4) for event in turn(number, "x" * 400, "y" * 400))])

    phase = Memory(cap=600, keep=1).due(state)

    assert phase is not None
    assert phase.up_to == 6


def test_where_the_last_turns_alone_are_too_long_they_are_summarized_too() -> None:
    state = summarized(run(4, length=4_000), 1)

    phase = Memory(cap=1_000, keep=3).due(state)

    assert phase is not None
    assert (phase.first, phase.up_to) == (1, 4)


def test_a_run_of_which_all_is_summarized_has_nothing_to_summarize() -> None:
    assert Memory(cap=LEAST_CAP, keep=0).due(summarized(run(4, length=4_000), 4)) is None


def test_a_model_that_counts_is_believed_and_what_came_since_is_estimated() -> None:
    state = fold([STARTED, *turn(0, "x" * 400, tokens=900)])
    memory = Memory(cap=1_000, keep=0)

    measured = memory.measured(state)

    assert (measured.tokens, measured.is_estimate) == (1_000, False)
    assert memory.due(state) is None
    assert memory.due(fold([Steered(timestamp=NOON, text="And hurry.", by="dana")], state)) is not None


def test_what_a_model_counted_before_a_summary_counts_no_more() -> None:
    state = fold([STARTED, *turn(0, "a", tokens=900), *turn(1, "b", tokens=5_000)])

    after = summarized(state, 1)

    assert [(answer.turn, answer.tokens) for answer in after.answers] == [(1, None)]
    assert Memory(cap=1_000).due(after) is None


def test_what_is_only_estimated_says_so() -> None:
    assert Memory().measured(run(2)).is_estimate


def test_summaries_that_have_grown_long_are_taken_into_the_next_one() -> None:
    state = run(6)
    state = summarized(state, 2, text="a" * 600)
    state = summarized(state, 4, first=2, text="b" * 600)
    memory = Memory(cap=1_000)

    phase = memory.phase(state, "search")

    assert (phase.first, phase.up_to, [one.text[0] for one in phase.summaries]) == (0, 6, ["a", "b"])
    assert [entry.idx for entry in phase.entries] == [4, 4, 5, 5]
    assert [one.text for one in summarized(state, 6, text="c").summaries] == ["c"]


def test_a_rule_closes_a_phase_once() -> None:
    memory = Memory(closes=lambda run: "search" if run.turns == 2 else None)

    phase = memory.due(run(2))

    assert phase is not None
    assert (phase.name, phase.up_to) == ("search", 2)
    assert memory.due(summarized(run(2), 2)) is None
    assert memory.due(run(3)) is None


@pytest.mark.parametrize("wrong", [{"cap": LEAST_CAP - 1}, {"keep": -1}, {"longest_result": 0}])
def test_a_memory_that_bounds_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadMemory, match="the cap is at least 200 tokens"):
        Memory(**wrong)  # type: ignore[arg-type]


# Long results.


def test_a_long_result_is_shown_cut_and_says_how_the_rest_is_read() -> None:
    step = run(1, length=20_000).steps[0]

    text = shown(step, 16_000)

    assert text.startswith("x" * 16_000 + "\n[cut: 16,000 of 20,000 characters; go on with ")
    assert text.endswith("read_result(idx=0, start=16000, end=20000)]")


@given(st.text(max_size=40_000), st.integers(1, 12_000))
def test_the_pieces_that_are_read_make_the_whole_result(text: str, longest: int) -> None:
    state = fold([STARTED, *turn(0, text)])
    view = AgentRun.of(state)

    read, at = shown(state.steps[0], longest).partition("\n[cut: ")[0], longest
    if len(text) <= longest:
        read = text
    while at < len(text):
        read += read_result(view, 0, at)
        at += PIECE

    assert read == text


def test_a_result_that_is_no_text_is_read_as_json() -> None:
    state = fold(
        [STARTED, *turn(0, "a")[:1], ToolResult(timestamp=NOON, idx=0, tool="look", attempt=1, result='{"a":[1,2]}')]
    )

    assert read_result(AgentRun.of(state), 0, 1, 4) == '"a"'


@pytest.mark.parametrize(("idx", "start", "end"), [(1, 0, None), (-1, 0, None), (0, 2, None), (0, 1, 0), (0, -1, 1)])
def test_what_is_not_there_cannot_be_read(idx: int, start: int, end: int | None) -> None:
    view = AgentRun.of(fold([STARTED, *turn(0, "a")]))

    with pytest.raises(NotApplied, match=r"has no result|there is nothing"):
        read_result(view, idx, start, end)


def test_only_a_run_with_a_long_result_is_offered_to_read_more_of_it() -> None:
    memory = Memory(longest_result=500)

    assert not memory.cuts(run(3, length=400))
    assert memory.cuts(run(3, length=600))
    assert not memory.cuts(summarized(run(3, length=600), 3))


# Summaries.


def test_an_outline_has_a_line_for_each_call_and_leaves_out_what_people_said() -> None:
    said = Steered(timestamp=NOON, text="Hurry.", by="dana")
    phase = Memory().phase(fold([STARTED, said, *turn(0, "a\nb" * 200)]), "search")

    lines = Outline(clip=20).summarize(phase).splitlines()

    assert lines[0] == "- look {}"
    assert lines[1].startswith('  result: "a\\nba')
    assert lines[1].endswith("…")


@given(st.integers(1, 200), st.integers(LEAST_CAP, 4_000))
def test_an_outline_is_never_longer_than_it_may_be(turns: int, cap: int) -> None:
    phase = Memory(cap=cap).phase(run(turns), "search")

    text = Outline().summarize(phase)

    assert estimated(text) <= phase.longest
    if len(text.splitlines()) < 2 * turns:
        assert "earlier lines are left out" in text.splitlines()[0]


def test_a_summary_that_is_too_long_is_cut() -> None:
    assert cut_summary("ä" * 100, 10) == "ä" * 20 + "…"
    assert cut_summary("ä" * 20, 10) == "ä" * 20


# The fold.


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.data())
def test_a_state_is_the_same_however_it_is_folded_and_as_heavy_as_what_no_summary_stands_for(
    calls: list[int], data: st.DataObject
) -> None:
    journal: list[AnyEvent] = [STARTED]
    state, idx = fold(journal), 0
    for number, count in enumerate(calls):
        journal += [LlmAnswered(timestamp=NOON, turn=number, model="m", answer="{}", tokens=number)]
        for at in range(count):
            journal.append(LlmDecided(timestamp=NOON, idx=idx + at, turn=number, tool="look", args="{}", attempt=1))
        for at in range(count):
            fact = FactRecorded(timestamp=NOON, name=f"f{at}", value=str(number), idx=idx + at)
            journal += [fact, ToolResult(timestamp=NOON, idx=idx + at, tool="look", attempt=1, result="1" * number)]
        idx += count
        if data.draw(st.booleans()):
            journal.append(Summarized(timestamp=NOON, first=fold(journal).summarized, up_to=idx, text="s"))
    for event in journal[1:]:
        state = fold([event], state)

    whole = fold(journal)

    assert whole == state
    assert whole == state_of(image_of(whole))
    kept = whole.steps[whole.summarized :]
    assert whole.weight == sum(len(one.tool) + len(one.args_json) + len(one.value_json or "") for one in kept)
    assert {answer.first for answer in whole.answers} <= {step.idx for step in kept}
    assert whole.facts["f0"] == len(calls) - 1


# Facts.


def ctx(kept: dict[str, str]) -> ToolContext[None]:
    return ToolContext(None, "r", 0, 1, None, _facts=kept)


def test_a_fact_keeps_its_type_and_the_last_value_of_a_name_counts() -> None:
    kept: dict[str, str] = {}
    here = ctx(kept)
    here.remember("total", Decimal("1.0"))
    here.remember("total", Decimal("180.00"))
    here.remember("due", NOON)

    state = RunState(remembered={name: Fact(value, 0) for name, value in kept.items()})

    assert state.fact("total", Decimal) == Decimal("180.00")
    assert state.fact("due", datetime) == NOON
    assert state.facts == {"total": "180.00", "due": "2026-07-05T12:00:00Z"}
    with pytest.raises(KeyError):
        state.fact("nothing")


def test_of_two_steps_the_later_one_is_believed_whichever_ended_first() -> None:
    def fact(idx: int, value: str) -> FactRecorded:
        return FactRecorded(timestamp=NOON, name="total", value=value, idx=idx)

    assert fold([STARTED, fact(1, "1"), fact(0, "0")]).facts == {"total": 1}
    assert fold([STARTED, fact(0, "0"), fact(1, "1"), fact(1, "2")]).facts == {"total": 2}


def test_facts_are_read_in_one_order_whatever_ended_first() -> None:
    facts = [FactRecorded(timestamp=NOON, name=name, value="1", idx=0) for name in "ba"]

    assert [entry.text for entry in active(fold([STARTED, *facts]))][1:] == ["a = 1", "b = 1"]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("", 1, "names no fact"),
        ("a\nb", 1, "names no fact"),
        ("n" * 65, 1, "names no fact"),
        ("long", "x" * 16_000, "may have 16,000"),
        ("socket", object(), "object"),
    ],
)
def test_what_cannot_be_remembered_is_refused_where_it_is_said(name: str, value: object, why: str) -> None:
    kept: dict[str, str] = {}

    with pytest.raises(NotRecordable, match=why):
        ctx(kept).remember(name, value)

    assert kept == {}
