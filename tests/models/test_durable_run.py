"""``DurableRun``: an agent of pydantic-ai whose runs go on where they stopped."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.usage import RequestUsage

from agent_es import Envelope, Happened, NotApplied, Retry, RunStore, Status
from agent_es.errors import BadTool, InDoubt, RequestDiverged, RunConflict, RunHasFailed, RunHeld, RunUnfinished
from agent_es.integrations.pydantic_ai import DurableRun, effect, idempotency_key

RUN = "run-7f3a"
PROMPT = "Refund ORD-3300"


class Script:
    """A model that says one line after the other, by the answers that it sees; it counts how often it is asked."""

    def __init__(self, *lines: Sequence[ModelResponsePart]) -> None:
        self.lines = lines
        self.asked = 0
        self.seen: list[list[ModelMessage]] = []

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked += 1
        self.seen.append(messages)
        said = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(parts=[*self.lines[said]])

    @property
    def told(self) -> list[Any]:
        """What the tools have told it last."""
        return [part.content for part in self.seen[-1][-1].parts if isinstance(part, ToolReturnPart)]


def call(name: str, **args: Any) -> ToolCallPart:
    return ToolCallPart(name, args, tool_call_id=f"call-{name}")


SEARCH, REFUND, MAIL = (
    call("search", query="refunds"),
    call("refund", order="ORD-3300", amount=180.0),
    call("mail", to="ann"),
)
DONE = [TextPart("done")]


class Died(BaseException):
    """The process died."""


class World:
    """What outlives a process: the store, and what tools have done; and the agent as a new process makes it."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'runs.db'}"
        self.did: list[Any] = []
        self.dies_in: str | None = None
        self.raises: dict[str, list[Exception]] = {}

    @property
    def store(self) -> RunStore:
        return RunStore(self.url)

    def act(self, name: str, *said: Any) -> None:
        """Do what a tool does, or raise what it is to raise; die after it, where the process is to die there."""
        if errors := self.raises.get(name):
            raise errors.pop(0)
        self.did.append((name, *said))
        if self.dies_in == name:
            raise Died

    def agent(self, model: Any, *, instructions: str = "Be kind.", **options: Any) -> Agent[None, Any]:
        made = options.pop("agent", {})
        durable = DurableRun(self.store, **options)
        agent: Agent[None, Any] = Agent(
            FunctionModel(model), name="refunds", instructions=instructions, capabilities=[durable], **made
        )

        @agent.tool_plain(metadata=effect("read"))
        def search(query: str) -> str:
            """Search the policy."""
            self.act("search", query)
            return "30 days"

        @agent.tool_plain(metadata=effect("idempotent", key="{order}:refund:{amount:.2f}"))
        def refund(order: str, amount: float) -> dict[str, Any]:
            """Refund an order."""
            self.act("refund", order, idempotency_key())
            return {"id": "rf-1", "amount": Decimal(amount)}

        @agent.tool_plain
        def mail(to: str) -> str:
            """Send a mail."""
            self.act("mail", to)
            return f"sent to {to}"

        return agent

    def count(self, name: str) -> int:
        return sum(did[0] == name for did in self.did)


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """The loop that ``run_sync`` finds, and that nobody else closes."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(None)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def dead(act: Callable[[], object]) -> None:
    """Do what dies on its way."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # asyncio may wrap it
        act()
    assert isinstance(caught.value, Died), repr(caught.value)


def run_of(world: World) -> Any:
    return world.store.load(RUN)


def test_a_run_is_recorded_and_replayed_to_its_result_without_model_or_tools(world: World) -> None:
    model = Script([SEARCH], [REFUND], DONE)
    first = world.agent(model).run_sync(PROMPT, run_id=RUN)

    again = world.agent(model).run_sync(PROMPT, run_id=RUN)

    assert (first.output, again.output) == ("done", "done")
    assert model.asked == 3
    assert world.did == [("search", "refunds"), ("refund", "ORD-3300", "ORD-3300:refund:180.00")]
    state = run_of(world)
    assert (state.status, state.agent, state.goal, state.answer) == (Status.DONE, "refunds", PROMPT, "done")
    assert [(step.tool, step.status) for step in state.steps] == [("search", "done"), ("refund", "done")]
    assert again.all_messages()[1:] == [*again.new_messages()[1:]]
    assert [message.parts[0].part_kind for message in again.all_messages()] == [
        message.parts[0].part_kind for message in first.all_messages()
    ]
    assert first.usage.requests == again.usage.requests == 3


def test_without_a_run_id_the_agent_is_as_it_was(world: World) -> None:
    model = Script([SEARCH], [REFUND], DONE)
    agent = world.agent(model)

    results = [agent.run_sync(PROMPT) for _ in range(2)]

    assert [result.output for result in results] == ["done", "done"]
    assert (model.asked, world.count("refund"), world.store.count()) == (6, 2, 0)
    assert world.did[-1] == ("refund", "ORD-3300", None)
    assert len({message.run_id for result in results for message in result.all_messages()}) == 2


@pytest.mark.parametrize("name", ["search", "refund"])
def test_what_reads_runs_again_and_what_has_a_key_is_sent_again_with_it(world: World, name: str) -> None:
    model = Script([SEARCH], [REFUND], DONE)
    world.dies_in = name
    dead(lambda: world.agent(model).run_sync(PROMPT, run_id=RUN))
    asked = model.asked
    world.dies_in = None

    result = world.agent(model).run_sync(PROMPT, run_id=RUN)

    assert result.output == "done"
    assert world.count(name) == 2
    assert len({did for did in world.did if did[0] == name}) == 1
    assert model.asked == 3
    assert asked == (1 if name == "search" else 2)


def test_a_tool_of_which_nothing_is_said_is_in_doubt_until_a_person_settles_it(world: World) -> None:
    model = Script([MAIL], DONE)
    world.dies_in = "mail"
    dead(lambda: world.agent(model).run_sync(PROMPT, run_id=RUN))
    world.dies_in = None

    with pytest.raises(InDoubt, match=rf"run {RUN} step 0 \(mail\).*agent-es settle {RUN} 0 --happened"):
        world.agent(model).run_sync(PROMPT, run_id=RUN)

    (item,) = world.store.inbox()
    assert (item.kind, item.idx, run_of(world).waiting_for) == ("doubt", 0, "doubt")
    with pytest.raises(InDoubt):
        world.agent(model).run_sync(PROMPT, run_id=RUN)
    world.store.settle(RUN, 0, "happened", by="ann", result="sent, said the server")
    result = world.agent(model).run_sync(PROMPT, run_id=RUN)
    assert (result.output, world.count("mail"), model.told) == ("done", 1, ["sent, said the server"])


def test_what_did_not_happen_is_done_under_a_new_key(world: World) -> None:
    model = Script([MAIL], DONE)
    world.dies_in = "mail"
    dead(lambda: world.agent(model).run_sync(PROMPT, run_id=RUN))
    world.dies_in = None
    with pytest.raises(InDoubt):
        world.agent(model).run_sync(PROMPT, run_id=RUN)

    world.store.settle(RUN, 0, "did_not_happen", by="ann", force=True)
    result = world.agent(model).run_sync(PROMPT, run_id=RUN)

    assert (result.output, world.count("mail")) == ("done", 2)
    assert run_of(world).steps[0].key == f"{RUN}:0:mail#2"


def test_a_probe_says_what_became_of_a_call(world: World) -> None:
    model = Script([MAIL], DONE)
    asked: list[Any] = []

    def was_sent(key: str, args: dict[str, Any]) -> Happened:
        asked.append((key, args))
        return Happened("found in the outbox")

    effects = {"mail": effect("probed", probe=was_sent)}
    world.dies_in = "mail"
    dead(lambda: world.agent(model, effects=effects).run_sync(PROMPT, run_id=RUN))
    world.dies_in = None

    result = world.agent(model, effects=effects).run_sync(PROMPT, run_id=RUN)

    assert (result.output, model.told, world.count("mail")) == ("done", ["found in the outbox"], 1)
    assert asked == [(f"{RUN}:0:mail", {"to": "ann"})]


def test_the_value_that_the_agent_goes_on_with_is_what_the_journal_gives_back(world: World) -> None:
    model = Script([REFUND], DONE)

    world.agent(model).run_sync(PROMPT, run_id=RUN)

    assert model.told == [{"amount": "180", "id": "rf-1"}]
    assert run_of(world).steps[0].result == {"amount": "180", "id": "rf-1"}


def test_a_value_that_cannot_be_recorded_is_a_failure_and_its_body_runs_once(world: World) -> None:
    model = Script([call("odd")], DONE)
    agent = world.agent(model)

    @agent.tool_plain
    def odd() -> Any:
        world.act("odd")
        return object()

    agent.run_sync(PROMPT, run_id=RUN)

    assert (world.count("odd"), run_of(world).steps[0].error["type"]) == (1, "NotRecordable")
    assert "its effect has happened" in model.told[0]


def test_a_tool_return_is_kept_with_its_content_and_its_metadata(world: World) -> None:
    image = BinaryContent(b"\x89PNG\xff", media_type="image/png")
    model = Script([call("look")], [call("see")], DONE)
    results = []
    for _ in range(2):
        agent = world.agent(model)

        @agent.tool_plain(metadata=effect("read"))
        def look() -> ToolReturn:
            world.act("look")
            return ToolReturn({"n": 1}, content=["this is it", image], metadata={"from": Decimal("1.50")})

        @agent.tool_plain(metadata=effect("read"))
        def see() -> Any:
            return [image, {"agent_es:tool_return": 1}]

        results.append(agent.run_sync(PROMPT, run_id=RUN))

    for result in results:
        returned, prompted = result.all_messages()[2].parts
        assert (returned.content, returned.metadata) == ({"n": 1}, {"from": "1.50"})
        assert (prompted.content[0], prompted.content[1].data) == ("this is it", image.data)
        seen, plain = result.all_messages()[4].parts[0].content
        assert (seen.data, plain) == (image.data, {"agent_es:tool_return": 1})
    assert world.count("look") == 1


def test_a_retry_that_a_tool_asks_the_model_for_is_the_same_after_a_resume(world: World) -> None:
    model = Script([SEARCH], [SEARCH], [MAIL], DONE)
    world.raises["search"] = [ModelRetry("say which policy")]
    world.dies_in = "mail"
    dead(lambda: world.agent(model).run_sync(PROMPT, run_id=RUN))
    world.dies_in = None
    with pytest.raises(InDoubt):
        world.agent(model).run_sync(PROMPT, run_id=RUN)
    world.store.settle(RUN, 2, "happened", by="ann", result="sent")

    result = world.agent(model).run_sync(PROMPT, run_id=RUN)

    retried = result.all_messages()[2].parts[0]
    assert (retried.outcome, "say which policy" in str(retried.content)) == ("retried", True)
    assert run_of(world).steps[0].error == {"applied": False, "message": "say which policy", "type": "ModelRetry"}
    assert (model.asked, world.count("search")) == (4, 1)


def test_retries_past_the_bound_end_the_agents_run_the_same_way_each_time(world: World) -> None:
    model = Script([SEARCH], [SEARCH], DONE)
    world.raises["search"] = [ModelRetry("which?"), ModelRetry("which?")]

    for _ in range(2):
        with pytest.raises(Exception, match="exceeded max retries"):
            world.agent(model).run_sync(PROMPT, run_id=RUN)

    assert (model.asked, world.raises["search"], len(run_of(world).steps)) == (2, [], 2)


def test_what_a_tool_knows_not_to_have_happened_is_told_to_the_model(world: World) -> None:
    model = Script([MAIL], DONE)
    world.raises["mail"] = [NotApplied("no such mailbox")]

    result = world.agent(model).run_sync(PROMPT, run_id=RUN)

    assert (result.output, world.count("mail")) == ("done", 0)
    assert result.all_messages()[2].parts[0].outcome == "failed"
    assert "no such mailbox" in str(model.told[0])


def test_any_other_error_of_a_call_at_most_once_leaves_a_doubt(world: World) -> None:
    model = Script([MAIL], DONE)
    world.raises["mail"] = [TimeoutError("no answer")]

    with pytest.raises(InDoubt, match="TimeoutError: no answer"):
        world.agent(model).run_sync(PROMPT, run_id=RUN)

    assert run_of(world).steps[0].status == "in_doubt"


def test_a_call_with_a_key_is_retried_with_it(world: World) -> None:
    model = Script([REFUND], DONE)
    world.raises["refund"] = [TimeoutError("no answer")]

    result = world.agent(model).run_sync(PROMPT, run_id=RUN)

    assert (result.output, run_of(world).steps[0].attempt) == ("done", 2)


def test_a_retry_that_is_too_far_off_is_left_to_a_later_run_of_the_agent(world: World) -> None:
    model = Script([REFUND], DONE)
    world.raises["refund"] = [TimeoutError("no answer")]
    effects = {"refund": effect("idempotent", retry=Retry(initial=0.3, jitter=0))}

    with pytest.raises(RunUnfinished, match="is tried again at"):
        world.agent(model, effects=effects, max_wait=0.1).run_sync(PROMPT, run_id=RUN)

    assert (run_of(world).status, run_of(world).waiting_for) == (Status.WAITING, "retry")
    assert world.agent(model, effects=effects, max_wait=1).run_sync(PROMPT, run_id=RUN).output == "done"
    assert model.asked == 2


def test_calls_of_one_answer_run_beside_each_other_and_each_is_a_step(world: World) -> None:
    model = Script([call("wait", n=0), ToolCallPart("wait", {"n": 1}, tool_call_id="b"), MAIL], DONE)
    agent = world.agent(model)
    meet = asyncio.Barrier(2)

    @agent.tool_plain
    async def wait(n: int) -> int:
        await meet.wait()  # each waits for the other
        return n

    agent.run_sync(PROMPT, run_id=RUN)

    assert [step.result for step in run_of(world).steps] == [0, 1, "sent to ann"]
    assert model.told == [0, 1, "sent to ann"]


def test_a_doubt_lets_the_calls_beside_it_come_to_their_end(world: World) -> None:
    model = Script([MAIL, call("slow")], DONE)
    world.raises["mail"] = [TimeoutError("no answer")]
    agent = world.agent(model)

    @agent.tool_plain
    async def slow() -> str:
        await asyncio.sleep(0.2)
        return "slept"

    with pytest.raises(InDoubt):
        agent.run_sync(PROMPT, run_id=RUN)

    assert [step.status for step in run_of(world).steps] == ["in_doubt", "done"]


def test_calls_that_have_one_id_are_two_steps(world: World) -> None:
    twins = [ToolCallPart("mail", {"to": to}, tool_call_id="x") for to in ("ann", "bob")]
    model = Script(twins, DONE)

    world.agent(model).run_sync(PROMPT, run_id=RUN)
    world.agent(model).run_sync(PROMPT, run_id=RUN)

    assert sorted(world.did) == [("mail", "ann"), ("mail", "bob")]
    assert [step.result for step in run_of(world).steps] == ["sent to ann", "sent to bob"]


def test_calls_that_pydantic_ai_does_not_make_have_the_outcome_that_it_tells(world: World) -> None:
    bad = ToolCallPart("mail", {"whom": "ann"}, tool_call_id="bad")
    model = Script([bad, call("nobody_knows")], DONE)

    result = world.agent(model).run_sync(PROMPT, run_id=RUN)

    assert result.output == "done"
    assert [(step.status, step.error["type"]) for step in run_of(world).steps] == [
        ("failed", "NotValid"),
        ("failed", "ToolUnknown"),
    ]
    assert world.did == []
    assert world.agent(model).run_sync(PROMPT, run_id=RUN).output == "done"


class Receipt(BaseModel):
    order: str
    amount: Decimal


def test_an_output_of_a_type_is_recorded_and_is_no_step(world: World) -> None:
    final = ToolCallPart("final_result", {"order": "ORD-3300", "amount": "180.00"}, tool_call_id="f")
    model = Script([REFUND], [final, MAIL])
    made = {"agent": {"output_type": Receipt, "end_strategy": "early"}}

    outputs = [world.agent(model, **made).run_sync(PROMPT, run_id=RUN).output for _ in range(2)]

    assert outputs == [Receipt(order="ORD-3300", amount=Decimal("180.00"))] * 2
    assert run_of(world).answer == {"order": "ORD-3300", "amount": "180.00"}
    assert [(step.tool, step.status) for step in run_of(world).steps] == [("refund", "done"), ("mail", "failed")]
    assert run_of(world).steps[1].error["type"] == "NotExecuted"
    assert world.count("mail") == 0


def test_a_call_that_waits_for_a_yes_is_not_made_where_the_run_ends_beside_it(world: World) -> None:
    final = ToolCallPart("final_result", {"order": "ORD-3300", "amount": "180.00"}, tool_call_id="f")
    model = Script([REFUND, final])
    options = {"agent": {"output_type": Receipt}, "envelope": Envelope(needs_approval=("refund",))}

    outputs = [world.agent(model, **options).run_sync(PROMPT, run_id=RUN).output for _ in range(2)]

    assert outputs == [Receipt(order="ORD-3300", amount=Decimal("180.00"))] * 2
    (step,) = run_of(world).steps
    assert (step.status, step.error["type"], world.did) == ("failed", "Denied", [])


def test_a_call_that_was_started_is_not_passed_over_by_another_program(world: World) -> None:
    model = Script([MAIL], DONE)
    world.dies_in = "mail"
    dead(lambda: world.agent(model).run_sync(PROMPT, run_id=RUN))
    world.dies_in = None
    changed: Agent[None, Any] = world.agent(model)

    @changed.tool_plain(name="mail2")
    def mail2() -> None: ...

    with pytest.raises(RequestDiverged, match=r"\+tools: search, refund, mail, mail2"):
        changed.run_sync(PROMPT, run_id=RUN)

    assert run_of(world).steps[0].status == "started"


@pytest.mark.parametrize(
    ("changed", "shows"),
    [
        ({"prompt": "Refund ORD-3301"}, ["-user-prompt: Refund ORD-3300", "+user-prompt: Refund ORD-3301"]),
        ({"instructions": "Be quick."}, ["-instructions: Be kind.", "+instructions: Be quick."]),
    ],
)
def test_a_run_that_would_ask_something_else_stops_before_anything_acts(
    world: World, changed: dict[str, str], shows: list[str]
) -> None:
    model = Script([SEARCH], [MAIL], DONE)
    world.dies_in = "search"
    dead(lambda: world.agent(model).run_sync(PROMPT, run_id=RUN))
    world.dies_in = None
    given = {"instructions": "Be kind.", "prompt": PROMPT, **changed}
    before = run_of(world)

    with pytest.raises(RequestDiverged) as error:
        world.agent(model, instructions=given["instructions"]).run_sync(given["prompt"], run_id=RUN)

    assert all(line in str(error.value).splitlines() for line in shows)
    assert (model.asked, world.count("search"), run_of(world)) == (1, 1, before)
    assert world.agent(model).run_sync(PROMPT, run_id=RUN).output == "done"


def test_another_description_or_another_order_of_tools_is_another_request(world: World) -> None:
    def agent(model: Any, names: Sequence[str], description: str) -> Agent[None, str]:
        made: Agent[None, str] = Agent(FunctionModel(model), name="a", capabilities=[DurableRun(world.store)])
        for name in names:
            made.tool_plain(lambda: name, name=name, description=description, metadata=effect("read"))  # noqa: B023
        return made

    model = Script([call("one")], DONE)
    agent(model, ["one", "two"], "Look.").run_sync(PROMPT, run_id=RUN)

    with pytest.raises(RequestDiverged, match=r"-tools: one, two\n(.*\n)*\+tools: two, one"):
        agent(model, ["two", "one"], "Look.").run_sync(PROMPT, run_id=RUN)
    with pytest.raises(RequestDiverged, match=r"-tool one: Look\.\n(.*\n)*\+tool one: Look again\."):
        agent(model, ["one", "two"], "Look again.").run_sync(PROMPT, run_id=RUN)


def test_a_request_is_told_by_what_is_new_in_it(world: World) -> None:
    turns = 12
    model = Script(*[[call("search", query=f"policy {n}")] for n in range(turns)], DONE)

    world.agent(model).run_sync(PROMPT, run_id=RUN)

    sizes = [len(answer.request_json or "") for answer in run_of(world).answers]
    assert len(sizes) == turns + 1
    assert max(sizes[1:]) < 200 < sizes[0]
    assert max(sizes[1:]) - min(sizes[1:]) <= 2


def test_a_run_that_was_not_answered_yet_is_one_prompts_alone(world: World) -> None:
    def down(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ConnectionError("no answer")

    with pytest.raises(ConnectionError):
        world.agent(down).run_sync(PROMPT, run_id=RUN)

    with pytest.raises(RunConflict, match="was started with goal 'Refund ORD-3300'"):
        world.agent(Script(DONE)).run_sync("Refund ORD-3301", run_id=RUN)
    assert world.agent(Script(DONE)).run_sync(PROMPT, run_id=RUN).output == "done"


def test_a_call_that_needs_a_yes_waits_for_it_over_a_restart(world: World) -> None:
    def agent(model: Any) -> Agent[None, Any]:
        made = world.agent(model)

        @made.tool_plain(requires_approval=True)
        def pay(to: str, amount: int = 5) -> str:
            world.act("pay", to, amount)
            return f"paid {amount}"

        return made

    model = Script([call("pay", to="ann"), SEARCH], DONE)
    for _ in range(2):
        with pytest.raises(RunUnfinished, match=rf"a yes to step 0 \(pay\): agent-es approve {RUN} 0"):
            agent(model).run_sync(PROMPT, run_id=RUN)

    (item,) = world.store.inbox()
    assert (item.kind, item.idx, run_of(world).waiting_for) == ("approval", 0, "approval")
    assert run_of(world).steps[0].approval.args == {"amount": 5, "to": "ann"}
    assert world.did == [("search", "refunds")]
    world.store.approve(RUN, 0, by="ann")
    results = [agent(model).run_sync(PROMPT, run_id=RUN) for _ in range(2)]
    assert [result.output for result in results] == ["done", "done"]
    assert (world.count("pay"), model.told, model.asked) == (1, ["paid 5", "30 days"], 2)


def test_a_no_is_told_to_the_model(world: World) -> None:
    def agent(model: Any) -> Agent[None, Any]:
        made = world.agent(model)
        made.tool_plain(requires_approval=True, name="pay")(lambda: world.act("pay"))
        return made

    model = Script([call("pay")], DONE)
    with pytest.raises(RunUnfinished):
        agent(model).run_sync(PROMPT, run_id=RUN)

    world.store.deny(RUN, 0, by="ann", reason="too late")
    results = [agent(model).run_sync(PROMPT, run_id=RUN) for _ in range(2)]

    assert [result.all_messages()[2].parts[0].outcome for result in results] == ["denied", "denied"]
    assert (model.told, world.did) == (["too late"], [])


def test_a_body_may_ask_for_a_yes_before_it_does_anything(world: World) -> None:
    def agent(model: Any) -> Agent[None, Any]:
        made = world.agent(model)

        @made.tool
        def pay(ctx: RunContext[None], amount: int) -> str:
            if amount > 100 and not ctx.tool_call_approved:
                raise ApprovalRequired
            world.act("pay", amount, idempotency_key())
            return "paid"

        return made

    model = Script([call("pay", amount=180)], DONE)
    for _ in range(2):
        with pytest.raises(RunUnfinished, match="a yes to step 0"):
            agent(model).run_sync(PROMPT, run_id=RUN)

    assert world.did == []
    world.store.approve(RUN, 0, by="ann")
    assert agent(model).run_sync(PROMPT, run_id=RUN).output == "done"
    assert agent(model).run_sync(PROMPT, run_id=RUN).output == "done"
    assert world.did == [("pay", 180, f"{RUN}:0:pay#2")]


def test_a_tool_that_reads_says_that_it_needs_a_yes_where_it_is_declared(world: World) -> None:
    agent = world.agent(Script([call("look")], DONE))

    @agent.tool_plain(metadata=effect("read"))
    def look() -> None:
        raise ApprovalRequired

    with pytest.raises(BadTool, match="tool look: it reads, and raised ApprovalRequired"):
        agent.run_sync(PROMPT, run_id=RUN)


def test_a_person_may_say_yes_to_other_arguments(world: World) -> None:
    durable = DurableRun[None](world.store, effects={"pay": effect("idempotent", key="{to}:{amount}")})

    def agent(model: Any) -> Agent[None, Any]:
        made: Agent[None, Any] = Agent(FunctionModel(model), name="pays", capabilities=[durable])

        @made.tool_plain(requires_approval=True)
        def pay(to: str, amount: int = 5) -> str:
            world.act("pay", to, amount, idempotency_key())
            return "paid"

        return made

    model = Script([call("pay", to="ann", amount=500)], DONE)
    with pytest.raises(RunUnfinished, match="a yes to step 0"):
        agent(model).run_sync(PROMPT, run_id=RUN)

    world.store.approve(RUN, 0, by="dana", args={"to": "ann", "amount": 50}, tools=durable.tools("pay"))

    assert [agent(model).run_sync(PROMPT, run_id=RUN).output for _ in range(2)] == ["done", "done"]
    assert world.did == [("pay", "ann", 50, "ann:50")]


def test_a_call_that_is_made_elsewhere_is_a_wait_for_a_signal(world: World) -> None:
    def agent(model: Any) -> Agent[None, Any]:
        made = world.agent(model)

        @made.tool_plain
        def report(year: int) -> str:
            world.act("report", year)
            raise CallDeferred

        return made

    model = Script([call("report", year=2026), SEARCH], DONE)
    for _ in range(2):
        with pytest.raises(RunUnfinished, match=rf"what step 0 \(report\) gives: agent-es signal {RUN} report:0"):
            agent(model).run_sync(PROMPT, run_id=RUN)

    assert (run_of(world).waiting_for, world.count("report")) == ("signal", 1)
    world.store.signal(RUN, "report:0", {"pages": 3}, delivery_id="d1")
    results = [agent(model).run_sync(PROMPT, run_id=RUN) for _ in range(2)]
    assert [result.output for result in results] == ["done", "done"]
    assert (model.told, world.count("report")) == ([{"pages": 3}, "30 days"], 1)


def test_an_envelope_refuses_and_asks(world: World) -> None:
    envelope = Envelope(tools=("search", "refund"), needs_approval=("refund.amount > 100",))
    model = Script([MAIL], [REFUND], DONE)

    with pytest.raises(RunUnfinished, match="a yes to step 1"):
        world.agent(model, envelope=envelope).run_sync(PROMPT, run_id=RUN)

    assert "mail" in str(model.told[0])
    assert run_of(world).steps[0].error["type"] == "Refused"
    world.store.approve(RUN, 1, by="ann")
    assert world.agent(model, envelope=envelope).run_sync(PROMPT, run_id=RUN).output == "done"
    assert world.did == [("refund", "ORD-3300", "ORD-3300:refund:180.00")]


def test_a_run_that_another_process_has_is_left_alone(world: World) -> None:
    model = Script([MAIL], DONE)
    outcomes: list[Any] = []

    async def twice() -> None:
        agent = world.agent(model)
        begun, may_end = asyncio.Event(), asyncio.Event()

        @agent.tool_plain(name="mail2")
        async def mail2() -> str:
            begun.set()
            await may_end.wait()
            return "sent"

        model.lines = ([call("mail2")], DONE)
        first = asyncio.create_task(agent.run(PROMPT, run_id=RUN))
        await begun.wait()
        with pytest.raises(RunHeld):
            await agent.run(PROMPT, run_id=RUN)
        may_end.set()
        outcomes.append((await first).output)

    asyncio.run(twice())

    assert (outcomes, model.asked) == (["done"], 2)


def test_an_agent_inside_of_a_tool_has_a_run_of_its_own_or_none(world: World) -> None:
    inner_model = Script([MAIL], DONE)
    outer_model = Script([call("ask", run_id="inner"), ToolCallPart("ask", {"run_id": None}, tool_call_id="n")], DONE)
    keys: list[Any] = []
    inner = world.agent(inner_model)

    @inner.tool_plain(name="note")
    def note() -> None:
        keys.append(idempotency_key())

    inner_model.lines = ([call("note")], DONE)
    outer: Agent[None, Any] = Agent(FunctionModel(outer_model), name="outer", capabilities=[DurableRun(world.store)])

    @outer.tool_plain(sequential=True)
    async def ask(run_id: str | None) -> str:
        return str((await inner.run("Write", run_id=run_id)).output) + str(idempotency_key())

    result = outer.run_sync(PROMPT, run_id=RUN)

    assert result.output == "done"
    assert outer_model.told == [f"done{RUN}:0:ask", f"done{RUN}:1:ask"]
    assert keys == ["inner:0:note", None]
    assert sorted(record.run_id for record in world.store.runs()) == ["inner", RUN]
    assert [len(world.store.load(name).steps) for name in (RUN, "inner")] == [2, 1]


def test_a_stream_is_recorded_and_replayed(world: World) -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        model.asked += 1
        if len(messages) == 1:
            yield {0: DeltaToolCall(name="search", json_args='{"query": "refunds"}', tool_call_id="s")}
        else:
            yield "do"
            yield "ne"

    model = Script()

    async def run() -> tuple[list[str], Any]:
        durable = DurableRun[None](world.store)
        agent: Agent[None, str] = Agent(FunctionModel(stream_function=stream), name="s", capabilities=[durable])

        @agent.tool_plain(metadata=effect("read"))
        def search(query: str) -> str:
            world.act("search", query)
            return "30 days"

        async with agent.run_stream(PROMPT, run_id=RUN) as streamed:
            texts = [text async for text in streamed.stream_text(delta=True)]
        return texts, await streamed.get_output()

    first, again = asyncio.run(run()), asyncio.run(run())

    assert ("".join(first[0]), first[1]) == ("done", "done") == ("".join(again[0]), again[1])
    assert (model.asked, world.count("search"), run_of(world).answer) == (2, 1, "done")


def test_the_nodes_of_a_run_can_be_gone_through_one_by_one_and_left(world: World) -> None:
    model = Script([SEARCH], [REFUND], DONE)

    async def some(most: int) -> Any:
        async with world.agent(model).iter(PROMPT, run_id=RUN) as run:
            n = 0
            async for _ in run:
                n += 1
                if n == most:
                    break
        return run.result

    assert asyncio.run(some(3)) is None
    assert (run_of(world).status, world.store.record(RUN).lease_owner) == (Status.RUNNING, None)
    assert asyncio.run(some(99)).output == "done"
    assert (model.asked, world.count("search"), world.count("refund")) == (3, 1, 1)


def test_a_run_that_somebody_cancelled_does_not_go_on(world: World) -> None:
    model = Script([MAIL], DONE)
    world.dies_in = "mail"
    dead(lambda: world.agent(model).run_sync(PROMPT, run_id=RUN))
    world.store.cancel(RUN, by="ann", reason="never mind")

    with pytest.raises(RunHasFailed, match="cancelled"):
        world.agent(model).run_sync(PROMPT, run_id=RUN)

    assert (model.asked, world.count("mail")) == (1, 1)


def test_a_paused_run_goes_on_when_it_may(world: World) -> None:
    model = Script([SEARCH], DONE)
    agent = world.agent(model)

    @agent.tool_plain(metadata=effect("read"))
    def pause() -> None:
        world.store.pause(RUN, by="ann")

    model.lines = ([call("pause")], DONE)
    with pytest.raises(RunUnfinished):
        agent.run_sync(PROMPT, run_id=RUN)
    with pytest.raises(RunUnfinished):
        agent.run_sync(PROMPT, run_id=RUN)
    world.store.resume(RUN, by="ann")

    assert agent.run_sync(PROMPT, run_id=RUN).output == "done"
    assert model.asked <= 3


def test_effects_are_said_by_name_or_pattern_before_what_a_tool_says_itself(world: World) -> None:
    model = Script([SEARCH, MAIL, REFUND], DONE)
    effects = {"mail": "read", "re*": effect("at_most_once"), "*": "idempotent"}

    world.agent(model, effects=effects).run_sync(PROMPT, run_id=RUN)

    keys = {step.tool: step.key for step in run_of(world).steps}
    assert keys == {"search": f"{RUN}:0:search", "mail": None, "refund": f"{RUN}:2:refund"}


@pytest.mark.parametrize(
    ("effects", "why"),
    [
        ({"pay": "transactional"}, "tool pay: it cannot be TRANSACTIONAL"),
        ({"pay": "sometimes"}, "tool pay: effect='sometimes' is none of 'read'"),
        ({"pay": {"effect": "read", "keys": "{a}"}}, "tool pay: keys is nothing that can be said of it"),
        ({"pay": {"effect": "probed"}}, "needs `probe=`"),
    ],
)
def test_effects_that_cannot_be_are_refused_where_they_are_declared(world: World, effects: Any, why: str) -> None:
    with pytest.raises(BadTool, match=why):
        DurableRun(world.store, effects=effects)


def test_an_agent_has_one_journal(world: World) -> None:
    with pytest.raises(UserError, match="an agent has one DurableRun, not 2"):
        Agent(FunctionModel(Script()), capabilities=[DurableRun(world.store), DurableRun(world.store)])


def test_runs_of_two_agents_are_not_mixed_up(world: World) -> None:
    world.agent(Script(DONE)).run_sync(PROMPT, run_id=RUN)
    other: Agent[None, str] = Agent(FunctionModel(Script(DONE)), name="other", capabilities=[DurableRun(world.store)])

    with pytest.raises(RunConflict, match="was started with agent 'refunds', not 'other'"):
        other.run_sync(PROMPT, run_id=RUN)


def test_what_the_model_took_counts_for_the_budget_of_the_run(world: World) -> None:
    def says(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=DONE, usage=RequestUsage(input_tokens=40, output_tokens=2, cost=Decimal("0.03")))

    world.agent(says).run_sync("Refund", run_id=RUN)

    state = world.store.load(RUN)
    assert (state.tokens, state.cost) == (42, Decimal("0.03"))
