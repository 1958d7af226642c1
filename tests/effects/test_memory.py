"""Memory in runs that go on: what is summarized, remembered and read, once, and never at the cost of an effect."""

import asyncio
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    ClosePhase,
    Decision,
    Finish,
    Memory,
    NotApplied,
    OutcomeUnknown,
    Retry,
    Runner,
    RunState,
    RunStore,
    Said,
    Status,
    ToolContext,
    ToolSpec,
    Unusable,
    Used,
    tool,
)
from agent_es.decider import Answered
from agent_es.envelope import Budget, Envelope, Usage
from agent_es.errors import BadDecision, BadTool, RunMoved
from agent_es.run import Planned
from agent_es.scratchpad import Entry, Phase, Written, active
from agent_es.tools import Returned

Play = Callable[..., RunState]


class Looks(AgentRun):
    """Reads long pages, and remembers a figure of each."""

    @tool(effect="read")
    def look(self, ctx: ToolContext[None], page: int) -> str:
        ctx.remember(f"figure {page}", Decimal(page) / 4)
        return "x" * 4_000

    @tool(effect="idempotent", retry=Retry(max_attempts=2, initial=0))
    def pay(self, ctx: ToolContext[None], fails: int = 0) -> str:
        ctx.remember("paid", ctx.attempt)
        if ctx.attempt <= fails:
            raise OutcomeUnknown("cut off")
        return "paid"

    @tool(effect="transactional")
    def book(self, ctx: ToolContext[None], period: str = "open") -> str:
        ctx.remember("booked", period)
        if period == "closed":
            raise NotApplied("the period is closed")
        return "booked"


class Counts:
    """A summarizer that counts its questions, and takes ten tokens for each."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []

    def summarize(self, phase: Phase) -> Written:
        self.phases.append(phase)
        return Written(f"pages {phase.first} to {phase.up_to - 1}", Usage(tokens=10))


class Reader:
    """Looks at page after page, and notes what it is shown."""

    def __init__(self, pages: int, **memory: Any) -> None:
        self.pages = pages
        self.summarizer = memory.setdefault("summarizer", Counts())
        self.memory = Memory(**{"cap": 4_000, "keep": 1, **memory})
        self.shown: list[list[Entry]] = []

    def decide(self, run: RunState, _tools: Sequence[ToolSpec], /) -> Answered:
        self.shown.append([*active(run, longest=self.memory.longest_result)])
        return CallTool("look", {"page": run.turns}) if run.turns < self.pages else Finish(run.facts)


def test_a_long_run_is_summarized_before_its_decider_reads_too_much_and_loses_no_fact(
    play: Play, types: Callable[..., list[str]]
) -> None:
    reader = Reader(20)

    state = play(Looks, [], decider=reader)

    read = [sum(len(entry.text) for entry in entries if entry.kind != "fact") for entries in reader.shown]
    assert max(read) <= 16_000
    assert len(reader.summarizer.phases) == types().count("summarized") > 3
    assert state.answer == {f"figure {page}": str(Decimal(page) / 4) for page in range(20)}
    assert state.fact("figure 3", Decimal) == Decimal("0.75")
    assert len(state.steps) == 20


def test_a_summary_is_made_once_and_read_back_on_resume(store: RunStore) -> None:
    reader = Reader(12)
    store.start(Looks, run_id="run-1", goal="read")
    while not store.load("run-1").is_over:
        Runner(store, reader, agents=[Looks]).step("run-1")  # each time another process would do

    spans = [(phase.first, phase.up_to) for phase in reader.summarizer.phases]

    assert spans == sorted(set(spans))
    assert [entry.data["up_to"] for entry in store.journal("run-1") if entry.type == "summarized"] == [
        up_to for _, up_to in spans
    ]


def test_no_run_reads_without_bounds_by_default(play: Play, types: Callable[..., list[str]]) -> None:
    class Plain:
        def decide(self, run: RunState, _tools: Sequence[ToolSpec], /) -> Decision:
            return CallTool("look", {"page": run.turns}) if run.turns < 40 else Finish("read")

    play(Looks, [], decider=Plain())

    assert "summarized" in types()


def test_a_summarizer_may_be_awaited(store: RunStore) -> None:
    class Slow:
        async def summarize(self, phase: Phase) -> str:
            await asyncio.sleep(0)
            return f"{phase.up_to} pages"

    async def both() -> tuple[RunState, RunState]:
        awaited = await Runner(store, Reader(6, summarizer=Slow())).arun(Looks, run_id="a", goal="read")
        blocking = await asyncio.to_thread(
            lambda: Runner(store, Reader(6, summarizer=Slow())).run(Looks, run_id="b", goal="read")
        )
        return awaited, blocking

    awaited, blocking = asyncio.run(both())

    assert awaited.summaries == blocking.summaries != ()


def test_what_a_summary_takes_is_set_aside_and_counted(store: RunStore) -> None:
    budget = Budget(tokens=1_000, each=Usage(tokens=50))

    state = Runner(store, Reader(6)).run(Looks, run_id="run-1", goal="read", envelope=Envelope(budget=budget))

    summaries = [entry.type for entry in store.journal("run-1")].count("summarized")
    assert summaries > 0
    assert (state.status, state.tokens) == (Status.DONE, 10 * summaries)


def test_a_summary_for_which_nothing_is_left_parks_the_run(store: RunStore) -> None:
    class Costly(Reader):
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
            decision = super().decide(run, tools)
            return decision if isinstance(decision, Used) else Used(decision, tokens=50)  # type: ignore[arg-type]

    reader = Costly(20)
    budget = Budget(tokens=230, each=Usage(tokens=50))

    state = Runner(store, reader).run(Looks, run_id="run-1", goal="read", envelope=Envelope(budget=budget))

    assert (state.status, state.waiting_for) == (Status.WAITING, "person")
    assert "its budget is spent" in (state.parked or "")
    assert (len(reader.shown), reader.summarizer.phases, state.tokens) == (4, [], 200)


def test_a_run_that_a_person_pauses_while_it_is_summarized_asks_nothing_more(store: RunStore) -> None:
    class Interrupted(Counts):
        def summarize(self, phase: Phase) -> Written:
            if not self.phases:
                store.pause("run-1", by="dana")
            return super().summarize(phase)

    reader = Reader(6, summarizer=Interrupted())
    paused = Runner(store, reader).run(Looks, run_id="run-1", goal="read")
    asked = len(reader.shown)
    assert (paused.paused, paused.summaries, len(reader.summarizer.phases)) == ("by dana", (), 1)

    store.resume("run-1", by="dana")
    state = Runner(store, reader, agents=[Looks]).resume("run-1")

    assert (state.status, len(reader.shown)) == (Status.DONE, 7)
    assert asked < len(reader.shown)
    assert state.summaries


# Phases.


def test_a_decider_closes_a_phase_with_its_own_words_or_lets_it_be_summarized(play: Play) -> None:
    script: list[Any] = [
        CallTool("look", {"page": 0}),
        ClosePhase("reading", "One page was read."),
        CallTool("look", {"page": 1}),
        ClosePhase("more"),
        Finish("read"),
    ]

    class Scripted(Reader):
        def decide(self, run: RunState, _tools: Sequence[ToolSpec], /) -> Answered:
            return script[len(run.steps) + len(run.summaries)]

    state = play(Looks, [], decider=Scripted(0))

    assert [(one.phase, one.first, one.up_to, one.text) for one in state.summaries] == [
        ("reading", 0, 1, "One page was read."),
        ("more", 1, 2, "pages 1 to 1"),
    ]
    assert state.status is Status.DONE


def test_a_phase_with_nothing_in_it_cannot_be_closed(play: Play) -> None:
    class Closes(Reader):
        def decide(self, _run: RunState, _tools: Sequence[ToolSpec], /) -> Answered:
            return ClosePhase("nothing")

    with pytest.raises(BadDecision, match="nothing in the phase 'nothing' to close"):
        play(Looks, [], decider=Closes(0))


def test_a_summarizer_that_gives_no_text_is_an_error_that_says_so(play: Play) -> None:
    class Silent:
        def summarize(self, _phase: Phase) -> Any:
            return None

    with pytest.raises(BadDecision, match="the summarizer returned None"):
        play(Looks, [], decider=Reader(9, summarizer=Silent()))


# Facts.


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (CallTool("pay"), {"paid": 1}),
        (CallTool("pay", {"fails": 1}), {"paid": 2}),
        (CallTool("book"), {"booked": "open"}),
        (CallTool("book", {"period": "closed"}), {}),
    ],
)
def test_a_fact_is_recorded_with_the_result_that_it_belongs_to(
    play: Play, types: Callable[..., list[str]], call: CallTool, facts: dict[str, Any]
) -> None:
    state = play(Looks, [call, Finish("ok")])

    assert state.facts == facts
    ends = ["fact_recorded", "tool_result"] if facts else ["llm_decided", "tool_failed"]
    assert types()[-3:] == [*ends, "finished"]


def test_a_result_that_comes_late_brings_its_facts(store: RunStore) -> None:
    run = Looks.of(store.start(Looks, run_id="run-1", goal="read"), store.clock)
    run.record_turn([Planned(CallTool("pay"), "{}", key="k")], at_once=1)
    store.save(run)

    assert store.record_late("run-1", 0, 1, Returned('"paid"', (("paid", "1"),)))

    state = store.load("run-1")
    assert (state.facts, state.steps[0].result) == ({"paid": 1}, "paid")


def test_a_result_whose_worker_had_lost_the_run_brings_its_facts_too(store: RunStore) -> None:
    run = Looks.of(store.start(Looks, run_id="run-1", goal="read"), store.clock)
    run.record_turn([Planned(CallTool("pay"), "{}", key="k")], at_once=1)
    store.save(run)
    other = Looks.of(run.state, store.clock)
    other.record_doubt(0, "the process died in it")
    store.save(other)

    run.record_outcome(0, Returned('"paid"', (("paid", "1"),)))
    with pytest.raises(RunMoved):
        Runner(store).save(run)

    state = store.load("run-1")
    assert (state.facts, state.steps[0].result) == ({"paid": 1}, "paid")


# Long results.


def test_a_result_that_is_cut_can_be_read_whatever_the_envelope_names(store: RunStore) -> None:
    offered: list[list[str]] = []

    class Curious(Reader):
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
            offered.append([spec.name for spec in tools])
            if run.turns == 1:
                return CallTool("read_result", {"idx": 0, "start": 3_990})
            return super().decide(run, tools)

    reader = Curious(1, longest_result=1_000)

    state = Runner(store, reader).run(Looks, run_id="run-1", goal="read", envelope=Envelope(tools=("look",)))

    assert offered == [["look"], ["look", "read_result"], ["look", "read_result"]]
    assert state.steps[1].result == "x" * 10
    assert reader.shown[-1][-3].text.startswith("x" * 1_000 + "\n[cut: 1,000 of 4,000 characters; go on with ")


def test_no_tool_of_an_agent_is_called_like_that_by_which_a_run_reads_its_results(store: RunStore) -> None:
    class Reads(AgentRun):
        @tool(effect="read")
        def read_result(self, idx: int) -> str:
            return "something else"

    with pytest.raises(BadTool, match="two tools are called 'read_result'"):
        Runner(store, Reader(1)).run(Reads, run_id="run-1", goal="read")


# Answers that cannot be used.


class Mumbles:
    """A model whose first answers are cut."""

    def __init__(self, cut: int) -> None:
        self.cut = cut
        self.heard: list[tuple[str, ...]] = []

    def decide(self, run: RunState, _tools: Sequence[ToolSpec], /) -> Answered:
        self.heard.append(run.unusable)
        said = Said("test", {"text": "The ref"}, finish_reason="length", tokens=30)
        if len(self.heard) <= self.cut:
            return Used(Unusable("it was cut"), tokens=5, said=said)
        return Used(Finish("The refund."), tokens=7, said=said)


def test_an_answer_that_cannot_be_used_is_recorded_and_asked_for_again(
    play: Play, types: Callable[..., list[str]]
) -> None:
    model = Mumbles(2)

    state = play(Looks, [], decider=model)

    assert model.heard == [(), ("it was cut",), ("it was cut", "it was cut")]
    assert types() == [*["usage_recorded", "answer_unusable"] * 2, "usage_recorded", "llm_answered", "finished"]
    assert (state.answer, state.tokens, len(state.steps)) == ("The refund.", 17, 0)


def test_after_too_many_of_them_the_run_is_parked_and_asks_again_when_it_is_sent_back(
    play: Play, store: RunStore
) -> None:
    model = Mumbles(3)
    state = play(Looks, [], decider=model)
    assert state.parked == "3 answers to one question could not be used, the last one since it was cut"

    store.requeue("run-1", by="ann")
    state = Runner(store, model, agents=[Looks]).resume("run-1")

    assert model.heard[-1] == ()
    assert state.answer == "The refund."
