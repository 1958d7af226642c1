"""B06: half of a surrogate pair in what a tool, a model or a caller says does not brick the run.

The library's statement: in what is recorded a lone surrogate is U+FFFD and a split pair is its character;
what is recorded is what everybody sees, on the first run and on every replay.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Fail,
    Finish,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.testing import Crash, CrashingRunner, CrashPoint

RUN_ID = "run-1"
EMOJI = "\U0001f600"
LONG = 1_500 * "x"
CUT_IN_THE_MIDDLE = (LONG + EMOJI).encode("utf-16-le")[:-2].decode("utf-16-le", "surrogatepass")

BEFORE_THE_RESULT = CrashPoint(4, "after")  # decide, append, start, next done
AFTER_THE_RESULT = CrashPoint(5, "after")  # append of the result


@dataclass
class Site:
    """Gives a text, takes texts, and counts both."""

    text: str = ""
    scraped: int = 0
    posted: list[bytes] = field(default_factory=list)


class Clerk(AgentRun):
    """Reads and writes texts."""

    @tool(effect=Effect.READ)
    def scrape(self, ctx: ToolContext[Site]):  # type: ignore[no-untyped-def]  # noqa: ANN201  # any JSON
        ctx.deps.scraped += 1
        return ctx.deps.text

    @tool(effect=Effect.READ)
    def scrape_annotated(self, ctx: ToolContext[Site]) -> str:
        ctx.deps.scraped += 1
        return ctx.deps.text

    @tool(effect=Effect.READ)
    def scrape_in_a_dict(self, ctx: ToolContext[Site]) -> dict[str, list[str]]:
        ctx.deps.scraped += 1
        return {"pages": [ctx.deps.text]}

    @tool(effect=Effect.READ)
    def scrape_and_raise(self, ctx: ToolContext[Site]) -> str:
        ctx.deps.scraped += 1
        raise ValueError(ctx.deps.text)

    @tool(effect=Effect.IDEMPOTENT, key="{job}")
    def post(self, ctx: ToolContext[Site], job: str) -> str:
        ctx.deps.posted.append(job.encode())
        return job


class Model:
    """Makes its call, and sends what it is shown to its provider, as UTF-8."""

    def __init__(self, call: CallTool) -> None:
        self.call = call
        self.requests: list[bytes] = []

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        shown = [[step.args, step.result, step.error] for step in run.steps]
        self.requests.append(json.dumps(shown, ensure_ascii=False).encode())
        return Finish("done") if run.turns else self.call


@pytest.fixture
def live_twice(open_store: Callable[[], RunStore]) -> Callable[..., RunState]:
    """Runs until the process dies there, and then to the end in another one."""

    def live(model: Model, site: Site, at: CrashPoint) -> RunState:
        with pytest.raises(Crash):
            CrashingRunner(open_store(), model, deps=site, at=at).run(Clerk, run_id=RUN_ID, goal="scrape")
        return Runner(open_store(), model, deps=site).run(Clerk, run_id=RUN_ID)

    return live


@pytest.mark.parametrize("tool_name", ["scrape", "scrape_annotated", "scrape_in_a_dict", "scrape_and_raise"])
@pytest.mark.parametrize(
    ("said", "recorded"),
    [
        ("ok \ud83d", "ok \ufffd"),
        ("\ude00 ok", "\ufffd ok"),
        ("\ud83d\ude00", EMOJI),
        (CUT_IN_THE_MIDDLE, LONG + "\ufffd"),
    ],
    ids=["high", "low", "split pair", "cut long text"],
)
def test_a_text_with_half_a_pair_is_recorded_once_and_shown_alike_before_and_after_a_crash(
    said: str,
    recorded: str,
    tool_name: str,
    open_store: Callable[[], RunStore],
    live_twice: Callable[..., RunState],
) -> None:
    calm, uncrashed = Model(CallTool(tool_name)), Site(said)
    first = Runner(open_store(), calm, deps=uncrashed).run(Clerk, run_id="run-0", goal="scrape")
    model, site = Model(CallTool(tool_name)), Site(said)

    replayed = live_twice(model, site, AFTER_THE_RESULT)

    assert (first.status, replayed.status) == (Status.DONE, Status.DONE)
    assert json.dumps(recorded, ensure_ascii=False).encode() in calm.requests[-1]
    assert model.requests == calm.requests
    assert (uncrashed.scraped, site.scraped) == (1, 1)


@pytest.mark.parametrize(
    ("job", "recorded", "key"),
    [("x \ud800", "x \ufffd", "x%20%EF%BF%BD"), ("\ud83d\ude00", EMOJI, "%F0%9F%98%80")],
    ids=["lone", "split pair"],
)
def test_arguments_with_half_a_pair_make_one_key_and_reach_every_attempt_alike(
    job: str, recorded: str, key: str, open_store: Callable[[], RunStore], live_twice: Callable[..., RunState]
) -> None:
    model, site = Model(CallTool("post", {"job": job})), Site()

    state = live_twice(model, site, BEFORE_THE_RESULT)

    (step,) = state.steps
    assert (state.status, step.status, step.result) == (Status.DONE, "done", recorded)
    assert site.posted == [recorded.encode(), recorded.encode()]
    keys = {entry.data["key"] for entry in open_store().journal(RUN_ID) if entry.type == "llm_decided"}
    assert keys == {key}


@pytest.mark.parametrize(
    ("decision", "status", "recorded"),
    [
        (CallTool("scrape", call_id="c\ud83d"), Status.DONE, "c\ufffd"),
        (CallTool("scr\ud83d"), Status.DONE, "scr\ufffd"),
        (CallTool("scrape", {"\ud83d": 1}), Status.DONE, "\ufffd"),
        (Finish("ok \ud83d"), Status.DONE, "ok \ufffd"),
        (Fail("no \ud83d"), Status.FAILED, "no \ufffd"),
    ],
    ids=["call id", "tool name", "argument name", "answer", "reason"],
)
def test_half_a_pair_anywhere_in_a_decision_lets_the_run_end(
    decision: Decision, status: Status, recorded: str, store: RunStore
) -> None:
    script = ScriptedDecider([decision, Finish("done")])

    state = Runner(store, script, deps=Site("page")).run(Clerk, run_id=RUN_ID, goal="scrape")

    assert state.status is status
    assert store.load(RUN_ID) == state
    assert recorded in "".join(map(str, store.journal(RUN_ID)))


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ({"goal": "g\ud83d"}, "g\ufffd"),
        ({"goal": "g", "input": {"text": "i\ud83d"}}, "i\ufffd"),
        ({"goal": "g", "tags": {"team": "t\ud83d"}}, "t\ufffd"),
    ],
    ids=["goal", "input", "tag"],
)
def test_half_a_pair_in_what_a_run_is_started_with_lets_it_start_and_be_found_again(
    given: dict[str, Any], recorded: str, store: RunStore
) -> None:
    runner = Runner(store, ScriptedDecider([Finish("done")]))

    first = runner.run(Clerk, run_id=RUN_ID, **given)
    again = runner.run(Clerk, run_id=RUN_ID, **given)

    assert (first.status, again.resumed) == (Status.DONE, True)
    assert recorded in str(store.journal(RUN_ID)[0])
