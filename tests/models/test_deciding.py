"""What a model is asked, and what its answers mean: with a function in place of a model."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from agent_es import (
    AgentRun,
    Ask,
    CallTool,
    Effect,
    Envelope,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    Sleep,
    Status,
    ToolContext,
    WaitFor,
    tool,
)
from agent_es.envelope import Budget
from agent_es.errors import BadDecider, BadDecision, OutcomeUnknown
from agent_es.integrations.pydantic_ai import ModelDecider
from agent_es.scratchpad import Memory
from agent_es.testing import FrozenClock

Said = ModelResponse | Sequence[Any]


class Librarian(AgentRun):
    """Knows books."""

    @tool(effect=Effect.READ)
    def look_up(self, ctx: ToolContext[None], title: str) -> str:
        """Look up a book."""
        ctx.remember("last title", title)
        return f"{title} is on shelf {len(title)}"

    @tool(effect=Effect.READ)
    def count(self) -> int:
        """Count the books."""
        return 7

    @tool(effect=Effect.AT_MOST_ONCE, on_doubt="tell")
    def lend(self) -> str:
        """Lend a book, and lose the answer."""
        raise OutcomeUnknown("The line is dead.")

    @tool(effect=Effect.READ)
    def read_all(self, times: int) -> str:
        """Read much."""
        return "word " * times


class Lines:
    """A model that says one line after the other, and remembers what it was asked."""

    def __init__(self, *lines: Said) -> None:
        self.lines = [*lines]
        self.asked: list[list[ModelMessage]] = []
        self.infos: list[AgentInfo] = []

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(messages)
        self.infos.append(info)
        line = self.lines.pop(0)
        return line if isinstance(line, ModelResponse) else ModelResponse(parts=[*line])

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self, model_name="lines")

    def told(self, nth: int = -1) -> list[str]:
        """Return what the user said, in one of the requests."""
        requests = [message for message in self.asked[nth] if isinstance(message, ModelRequest)]
        return [part.content for request in requests for part in request.parts if isinstance(part, UserPromptPart)]

    def returned(self, nth: int = -1) -> list[tuple[str, str, str, str]]:
        """Return what became of calls, as one of the requests says."""
        requests = [message for message in self.asked[nth] if isinstance(message, ModelRequest)]
        parts = [part for request in requests for part in request.parts if isinstance(part, ToolReturnPart)]
        return [(part.tool_name, part.tool_call_id, part.content, part.outcome) for part in parts]

    def called(self, nth: int = -1) -> list[tuple[str, Any, str]]:
        """Return the calls that one of the requests gives back."""
        answers = [message for message in self.asked[nth] if isinstance(message, ModelResponse)]
        return [(call.tool_name, call.args, call.tool_call_id) for one in answers for call in one.tool_calls]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}", clock=FrozenClock()) as store:
        yield store


@pytest.fixture
def run(store: RunStore) -> Callable[..., RunState]:
    def run(model: Lines, *, envelope: Envelope | None = None, **options: Any) -> RunState:
        decider = ModelDecider(model.model, **options)
        return Runner(store, decider).run(
            Librarian, run_id="run-1", goal="Find it", input={"of": "Eco"}, envelope=envelope
        )

    return run


def call(name: str, args: Any = None, call_id: str = "") -> ToolCallPart:
    return ToolCallPart(name, args, call_id)


def cut(*parts: Any) -> ModelResponse:
    return ModelResponse(parts=[*parts], finish_reason="length")


DONE = [TextPart("It is there.")]


# What it is asked.


def test_a_model_is_told_the_goal_and_the_input_and_may_call_the_tools_of_the_agent(run: Any) -> None:
    model = Lines(DONE)

    state = run(model, instructions="Whisper.")

    assert (state.status, state.answer) == (Status.DONE, "It is there.")
    assert model.told() == ['Find it\n\nInput: {"of":"Eco"}']
    assert model.infos[0].instructions == "Whisper."
    look_up = model.infos[0].function_tools[0]
    assert (look_up.name, look_up.description) == ("look_up", "Look up a book.")
    assert look_up.parameters_json_schema["properties"] == {"title": {"title": "Title", "type": "string"}}


def test_calls_come_back_with_what_became_of_them_in_decision_order(run: Any) -> None:
    model = Lines([TextPart("Wait."), call("count", "{}", "a"), call("look_up", '{"title": "Eco"}', "b")], DONE)

    run(model)

    assert model.called() == [("count", "{}", "a"), ("look_up", '{"title":"Eco"}', "b")]
    assert model.returned() == [("count", "a", "7", "success"), ("look_up", "b", "Eco is on shelf 3", "success")]
    assert model.asked[1][1].parts[0] == TextPart("Wait.")


def test_a_failed_call_is_an_error_that_the_model_can_read(run: Any) -> None:
    model = Lines([call("look_up", "[1]", "a"), call("burn", "{}", "b")], DONE)

    run(model)

    assert model.returned() == [
        ("look_up", "a", "BadArguments: look_up: the arguments are [1], no object", "failed"),
        (
            "burn",
            "b",
            "ToolUnknown: no tool 'burn'; there are: count, lend, look_up, read_all, read_result",
            "failed",
        ),
    ]


def test_a_doubt_that_is_told_is_an_error_that_ends_with_what_nobody_knows(run: Any) -> None:
    model = Lines([call("lend", "{}", "a")], DONE)

    run(model)

    ((_, _, content, outcome),) = model.returned()
    assert content.startswith("OutcomeUnknown: attempt 1 of 1: ")
    assert content.endswith("nobody can tell whether lend happened. Nobody knows whether it happened.")
    assert outcome == "failed"


def test_ids_that_are_repeated_or_left_out_become_unique_and_the_first_of_a_kind_stays(run: Any) -> None:
    model = Lines(
        [call("count", "{}", "same"), call("count", "{}", "same"), call("count", "{}", "")],
        [call("count", "{}", "same"), call("count", "{}", "call_4")],
        DONE,
    )

    run(model)

    ids = [call_id for _, call_id, _, _ in model.returned()]
    assert ids == ["same", "call_1", "call_2", "call_3", "call_4"]
    assert [call_id for _, _, call_id in model.called()] == ids


def test_what_a_person_says_comes_at_its_place(store: RunStore) -> None:
    model = Lines([call("count", "{}", "b")], DONE)
    store.start(Librarian, run_id="run-1", goal="Find it")
    store.steer("run-1", "The red one.", by="dana")
    Runner(store, ModelDecider(model.model), agents=[Librarian]).step("run-1")
    store.steer("run-1", "No, the blue one.", by="sam")

    Runner(store, ModelDecider(model.model), agents=[Librarian]).resume("run-1")

    opening, first_answer, second = model.asked[1]
    assert [part.content for part in opening.parts][1:] == ["dana says: The red one."]
    assert [type(part) for part in second.parts] == [ToolReturnPart, UserPromptPart]
    assert second.parts[1].content == "sam says: No, the blue one."
    assert isinstance(first_answer, ModelResponse)


def test_a_turn_that_nobody_but_a_script_decided_is_told_as_plain_calls(store: RunStore) -> None:
    store.start(Librarian, run_id="run-1", goal="Find it")
    Runner(store, ScriptedDecider([CallTool("count", {})]), agents=[Librarian]).step("run-1")
    model = Lines(DONE)

    Runner(store, ModelDecider(model.model), agents=[Librarian]).resume("run-1")

    assert model.called() == [("count", "{}", "call_0")]
    assert model.returned() == [("count", "call_0", "7", "success")]


def test_a_long_result_is_cut_and_can_be_read_on(run: Any) -> None:
    model = Lines([call("read_all", {"times": 100}, "a")], [call("read_result", {"idx": 0, "start": 490}, "b")], DONE)

    run(model, memory=Memory(longest_result=40))

    texts = [content for _, _, content, _ in model.returned()]
    assert texts[0].startswith("word " * 8 + "\n[cut: 40 of 500 characters; go on with read_result(idx=0, start=40")
    assert texts[1] == "word word "
    assert "read_result" in {tool.name for tool in model.infos[1].function_tools}


def test_the_same_run_is_asked_about_in_the_same_words_by_every_process(store: RunStore) -> None:
    opaque = ThinkingPart("hm", signature="EqQB/+==", provider_name="function", provider_details={"a": [1.0, None]})
    first = Lines([opaque, call("look_up", '{"title": "Eco"}'), call("count", "")])
    store.start(Librarian, run_id="run-1", goal="Find it")
    Runner(store, ModelDecider(first.model), agents=[Librarian]).step("run-1")
    one, other = Lines(DONE), Lines(DONE)

    for lines in (one, other):
        asyncio.run(ModelDecider(lines.model).decide(store.load("run-1"), []))

    assert one.asked == other.asked
    assert one.asked[0][1].parts[0] == opaque


# What its answers mean.


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ([], "the answer is empty"),
        ([TextPart("  \n")], "the answer is empty"),
        ([ThinkingPart("Let me see")], "the answer is empty"),
        (cut(TextPart("It is on sh")), "the answer was cut: it was too long"),
        (cut(call("count", "")), "the answer was cut in the middle of a call: it was too long"),
        (
            ModelResponse(parts=[TextPart("I can't.")], finish_reason="content_filter"),
            "the model refused, or its answer was filtered",
        ),
        (ModelResponse(parts=[], finish_reason="error"), "the model ended with an error"),
        (ModelResponse(parts=[TextPart("…")], state="suspended"), "the answer is suspended"),
    ],
)
def test_an_answer_that_is_no_use_is_recorded_and_the_model_is_told_why_and_asked_again(
    line: Said, reason: str, store: RunStore, run: Any
) -> None:
    model = Lines(line, DONE)

    state = run(model)

    assert state.answer == "It is there."
    unusable = [entry.data for entry in store.journal("run-1") if entry.type == "answer_unusable"]
    assert [data["reason"] for data in unusable] == [reason]
    assert model.told()[-1] == f"Your last answer could not be used: {reason}. Answer again."


def test_a_run_whose_model_says_nothing_of_use_is_parked_after_so_many_answers(run: Any) -> None:
    model = Lines([], [], DONE)

    state = run(model, asks=2)

    assert (state.status, state.waiting_for) == (Status.WAITING, "person")
    assert len(model.asked) == 2


def test_calls_of_a_cut_answer_are_made_where_all_of_their_arguments_came(run: Any) -> None:
    half_thought = ThinkingPart("so I", signature=None)
    model = Lines(cut(half_thought, call("look_up", '{"title": "Eco"}', "a"), call("look_up", '{"titl', "b")), DONE)

    state = run(model)

    assert [step.status for step in state.steps] == ["done", "failed"]
    assert state.steps[1].error["type"] == "BadArguments"
    assert model.called()[1][1] == '{"unusable":"{\\"titl"}'
    assert half_thought not in model.asked[1][1].parts


def test_the_final_answer_is_of_the_type_that_is_asked_for(run: Any) -> None:
    class Place(BaseModel):
        shelf: int
        price: Decimal

    model = Lines(
        [TextPart("Shelf three.")],
        [call("final_result", '{"shelf": "three", "price": "1.50"}')],
        [call("final_result", '{"shelf": 3, "price": "1.50"}')],
    )

    state = run(model, output_type=Place)

    assert state.answer == {"shelf": 3, "price": "1.50"}
    assert model.told()[-2:] == [
        f"Your last answer could not be used: {why}. Answer again."
        for why in (
            "the answer is text; call final_result to give the final answer",
            "final_result: shelf: Input should be a valid integer, unable to parse string as an integer",
        )
    ]
    assert [tool.name for tool in model.infos[0].output_tools] == ["final_result"]


def test_a_final_answer_need_not_be_an_object(run: Any) -> None:
    state = run(Lines([call("final_result", {"response": [1, 2]})]), output_type=list[int])

    assert state.answer == [1, 2]


def test_nothing_is_answered_beside_calls(run: Any) -> None:
    both = [call("count", "{}", "a"), call("final_result", {"response": [1]}, "b")]
    model = Lines(both, [call("final_result", {"response": [7]})])

    state = run(model, output_type=list[int])

    assert (state.answer, len(state.steps)) == ([7], 0)


def test_a_model_may_wait_and_ask_where_that_is_offered(store: RunStore, run: Any) -> None:
    model = Lines(
        [call("sleep", '{"seconds": 0}', "a")],
        [call("ask_person", '{"question": "Which?", "choices": ["red", "blue"]}', "b")],
        [call("wait_for", '{"signal": "paid", "seconds": 60}', "c")],
        DONE,
    )
    decider = ModelDecider(model.model, offers=(Sleep, Ask, WaitFor))
    runner = Runner(store, decider)

    asked = runner.run(Librarian, run_id="run-1", goal="Find it")
    (question,) = store.inbox()
    store.answer("run-1", question.idx, "blue", by="dana")
    waits = runner.resume("run-1")
    store.signal("run-1", "paid", {"amount": 3}, delivery_id="d-1")
    state = runner.resume("run-1")

    assert (asked.waiting_for, waits.waiting_for) == ("person", "signal")
    assert state.answer == "It is there."
    assert [call_id for _, _, call_id in model.called()] == ["a", "b", "c"]
    assert [args for _, args, _ in model.called()] == [
        '{"seconds":0.0}',
        '{"choices":["red","blue"],"question":"Which?"}',
        '{"seconds":60.0,"signal":"paid"}',
    ]
    assert [content for _, _, content, _ in model.returned()] == [
        '{"payload":null,"reason":"clock","signal":null}',
        '{"answer":"blue","by":"dana","reason":"answered"}',
        '{"payload":{"amount":3},"reason":"signal","signal":"paid"}',
    ]


def test_a_wait_that_nobody_can_keep_is_refused_and_asked_for_again(run: Any) -> None:
    model = Lines([call("sleep", "{}")], [call("sleep", '{"until": "2026-07-05T10:00"}')], DONE)

    run(model, offers=[Sleep])

    assert [told.partition(": ")[2] for told in model.told()[1:]] == [
        "sleep: say seconds or until. Answer again.",
        "sleep: until: Input should have timezone info. Answer again.",
    ]


def test_a_model_closes_a_phase_and_reads_its_summary_from_then_on(store: RunStore, run: Any) -> None:
    model = Lines(
        [call("close_phase", {"name": "x", "summary": "y"})],
        [call("look_up", {"title": "Eco"})],
        [call("close_phase", {"name": "search", "summary": "It is on shelf 3."})],
        DONE,
    )

    state = run(model, phases=True)

    assert [summary.text for summary in state.summaries] == ["It is on shelf 3."]
    assert model.told() == [
        'Find it\n\nInput: {"of":"Eco"}',
        "What was done so far, in summary:\n\nsearch: It is on shelf 3.",
        'What is known:\nlast title = "Eco"',
    ]
    assert "nothing was done in this phase" in model.told(1)[-1]
    assert len(model.asked[-1]) == 1


def test_over_the_cap_the_model_itself_sums_up_what_is_older(run: Any) -> None:
    model = Lines(
        [call("read_all", {"times": 300})],
        [TextPart("Much was read.")],
        [call("count", "{}")],
        DONE,
    )

    state = run(model, memory=Memory(cap=200, keep=0, summarizer=ModelDecider(model.model).memory.summarizer))

    assert state.summaries[0].text == "Much was read."
    assert model.infos[1].instructions.startswith("You sum up a part of the work")
    assert "call: read_all" in model.told(1)[0]


def test_an_outline_stands_for_a_phase_where_the_model_has_nothing_to_say(run: Any) -> None:
    model = Lines([call("read_all", {"times": 900})], [], [], [], DONE)

    state = run(model, memory=Memory(cap=800, keep=0, summarizer=ModelDecider(model.model).memory.summarizer))

    assert state.summaries[0].text.startswith('- read_all {"times":900}')
    assert state.status is Status.DONE


def test_usage_and_the_length_of_the_conversation_are_recorded(store: RunStore, run: Any) -> None:
    answer = ModelResponse(parts=DONE, usage=RequestUsage(input_tokens=100, output_tokens=11, cost=Decimal("0.25")))

    state = run(Lines(answer), envelope=Envelope(budget=Budget(tokens=1_000)))

    assert (state.tokens, state.cost) == (111, Decimal("0.25"))
    assert (state.answers[-1].tokens, state.answers[-1].model) == (111, "lines")


def test_an_answer_that_the_journal_cannot_hold_is_no_use(run: Any) -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    odd = ModelResponse(parts=DONE, provider_details={"deep": deep})

    state = run(Lines(odd, DONE))

    assert state.answer == "It is there."


def test_the_test_model_of_the_model_layer_comes_through_a_run(store: RunStore) -> None:
    state = Runner(store, ModelDecider(TestModel())).run(Librarian, goal="Find it")

    assert state.status is Status.DONE
    assert {step.tool for step in state.steps} == {"look_up", "count", "lend", "read_all"}


# How it is set up.


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ModelDecider("no such model"), "cannot be had"),
        (lambda: ModelDecider("openai:gpt-5"), "OPENAI_API_KEY"),
        (lambda: ModelDecider(TestModel(), offers=[timedelta]), "what can be offered"),
        (lambda: ModelDecider(TestModel(), output_type=FunctionModel), "output_type="),
        (lambda: ModelDecider(TestModel(), asks=0), "asks=0"),
    ],
)
def test_what_cannot_work_is_refused_before_anybody_is_asked(
    make: Callable[[], object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    with pytest.raises(BadDecider, match=why):
        make()


def test_a_tool_with_the_name_of_an_offer_is_refused(store: RunStore) -> None:
    class Sleeper(AgentRun):
        @tool(effect=Effect.READ)
        def sleep(self) -> None:
            """Sleep."""

    with pytest.raises(BadDecision, match="sleep: a tool has the name of what is offered"):
        Runner(store, ModelDecider(TestModel(), offers=[Sleep])).run(Sleeper, goal="rest")


def test_the_usual_memory_fits_the_window_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    small, large = ModelDecider("openai-chat:gpt-3.5-turbo"), ModelDecider("openai-chat:gpt-5")

    assert small.memory.cap < large.memory.cap == Memory().cap
    assert ModelDecider(TestModel(), memory=None).memory is None
