"""What another envelope would have said of runs: nothing is called or recorded, and a thousand runs are quick."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_es import (
    AgentRun,
    Budget,
    CallTool,
    Envelope,
    Finish,
    Runner,
    RunState,
    RunStore,
    ScriptedDecider,
    ToolSpec,
    Usage,
    Used,
    tool,
)
from agent_es.audit import Finding, audit
from agent_es.bench.journals import begin, go_on
from agent_es.cli.app import app
from agent_es.decider import Answered
from agent_es.errors import RunNotFound

NOON = datetime(2026, 7, 5, 12, tzinfo=UTC)


class Shop(AgentRun):
    """Refunds and looks."""

    @tool(effect="idempotent")
    def refund(self, amount: int = 300) -> int:
        return amount

    @tool(effect="read")
    def look(self) -> int:
        return 1


SCRIPT = ScriptedDecider(
    [
        [CallTool("refund", {"amount": 50}), CallTool("look")],
        CallTool("refund", {"amount": 150}),
        CallTool("refund"),
        Finish("ok"),
    ]
)


@pytest.fixture
def store(url: str) -> RunStore:
    opened = RunStore(url, clock=lambda seq: NOON + timedelta(minutes=seq))
    Runner(opened, SCRIPT).run(Shop, run_id="run-1", goal="serve")
    return opened


def said(found: list[Finding]) -> list[tuple[Any, ...]]:
    return [(it.seq, it.said, it.tool, it.rule, it.why) for it in found]


def test_a_run_is_judged_by_an_envelope_that_it_did_not_have(store: RunStore) -> None:
    before = store.journal("run-1")
    envelope = Envelope(
        tools=("refund",), limits={"refund.amount": "<= 200"}, needs_approval=("refund.amount > 100",)
    )

    found = audit(store, envelope, tools=Shop.agent_tools)

    assert (found.runs, found.calls, found.unreadable) == (1, 4, [])
    assert said(found.findings) == [
        (2, "refused", "look", "tools", "look is outside of refund"),
        (5, "asked", "refund", "needs_approval: refund.amount > 100", "a person would have been asked"),
        (7, "refused", "refund", "limits: refund.amount", "300 is not <= 200"),
    ]
    assert store.journal("run-1") == before


def test_without_its_tools_a_call_is_judged_as_it_was_journaled(store: RunStore) -> None:
    found = audit(store, Envelope(limits={"refund.amount": "<= 200"}))

    assert found.findings == []


def test_what_a_run_read_of_its_own_results_is_outside_of_no_envelope(url: str) -> None:
    script = [CallTool("look"), CallTool("read_result", {"idx": 0}), Finish("ok")]
    with RunStore(url) as store:
        state = Runner(store, ScriptedDecider(script)).run(Shop, run_id="reads", goal="shop")

        found = audit(store, Envelope(tools=("look",)), run_ids=["reads"])

    assert (state.steps[1].result, found.findings) == ("1", [])


def test_a_budget_stops_a_run_once_and_refuses_what_is_beyond_it(store: RunStore) -> None:
    budget = Budget(turns=2, calls={"refund": 1}, deadline=timedelta(minutes=6))

    found = audit(store, Envelope(budget=budget))

    assert said(found.findings) == [
        (5, "refused", "refund", "budget", "1 of 1 calls of refund were made"),
        (7, "stopped", None, "budget", "2 of 2 turns"),
        (7, "refused", "refund", "budget", "1 of 1 calls of refund were made"),
    ]


def test_what_asking_took_would_have_stopped_a_run(url: str) -> None:
    class Paid:
        def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Answered:
            return Used(SCRIPT.script[run.turns], tokens=300, cost="0.02")

    with RunStore(url) as store:
        Runner(store, Paid()).run(Shop, run_id="run-1", goal="serve")

        def stops(**budget: Any) -> list[tuple[int, str]]:
            return [(it.seq, it.why) for it in audit(store, Envelope(budget=Budget(**budget))).findings]

        assert stops(tokens=1_500) == []
        assert stops(tokens=600) == [(9, "600 of 600 tokens, and asking once may take 0")]
        assert stops(tokens=600, each=Usage(tokens=301)) == [(6, "300 of 600 tokens, and asking once may take 301")]
        assert stops(cost="0.05", each=Usage(cost="0.02")) == [
            (9, "0.04 of 0.05 cost, and asking once may take 0.02")
        ]


def test_what_runs_did_under_an_envelope_the_same_envelope_would_have_refused_again(url: str) -> None:
    envelope = Envelope(tools=("refund",), limits={"refund.amount": "<= 100"}, budget=Budget(calls={"refund": 1}))
    with RunStore(url) as store:
        state = Runner(store, SCRIPT).run(Shop, run_id="run-1", goal="serve", envelope=envelope)

        found = audit(store, envelope, tools=Shop.agent_tools)

        refused = [(step.idx, step.error["rule"]) for step in state.steps if step.error]
        assert [(it.idx, it.rule) for it in found.findings] == refused
        assert len(refused) == 3


def test_only_runs_that_changed_since_then_are_judged_and_one_that_cannot_be_read_is_told(
    store: RunStore, sql: Any
) -> None:
    store.start(Shop, run_id="run-2", goal="serve")
    sql("UPDATE agent_es_runs SET updated_at = updated_at + 86400 WHERE run_id = 'run-2'")

    recent = audit(store, Envelope(), since=NOON + timedelta(hours=12))

    assert (recent.runs, recent.calls) == (1, 0)
    sql("UPDATE agent_es_events SET topic = 'agent_es:Unheard' WHERE originator_version = 5")
    assert audit(store, Envelope()).unreadable == ["run-1"]
    with pytest.raises(RunNotFound):
        audit(store, Envelope(), run_ids=["nobody"])


@pytest.mark.crash
def test_a_thousand_runs_of_fifty_events_are_judged_in_five_seconds(tmp_path: Path) -> None:
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}", snapshots=False) as store:
        for n in range(1_000):
            run = begin(store, f"run-{n}")
            while run.version < 50:
                go_on(run)
            store.save(run)
        began = time.process_time()  # what others do on this machine meanwhile is none of its

        found = audit(store, Envelope(limits={"*.page": "<= 3"}, budget=Budget(steps=20)))

        took = time.process_time() - began
    assert (found.runs, found.calls) == (1_000, 25_000)
    assert Counter(it.said for it in found.findings)["stopped"] == 1_000
    assert took < 5.0


def test_the_command_says_what_would_have_been(store: RunStore, url: str, tmp_path: Path) -> None:
    file = tmp_path / "stricter.json"
    file.write_text(json.dumps({"tools": ["refund"], "limits": {"refund.amount": "<= 100"}}))

    shown = CliRunner().invoke(app, ["audit", "run-1", "--envelope", str(file), "--store", url])
    told = CliRunner().invoke(
        app, ["audit", "--envelope", str(file), "--since", "2026-07-05", "--store", url, "--json"]
    )

    assert (shown.exit_code, told.exit_code) == (0, 0)
    assert "look is outside of refund" in shown.output
    assert "4 calls in 1 runs: 2 refused, 0 asked, 0 stopped" in shown.output
    assert [it["why"] for it in json.loads(told.output)["findings"]] == [
        "look is outside of refund",
        "150 is not <= 100",
    ]


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("{", [], "it is no envelope"),
        ('{"rate": 3}', [], "rate: Extra inputs are not permitted"),
        ("{}", ["--since", "yesterday"], "'yesterday' is no time"),
        (None, [], "stricter.json"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    store: RunStore, url: str, tmp_path: Path, text: str | None, more: list[str], says: str
) -> None:
    file = tmp_path / "stricter.json"
    if text is not None:
        file.write_text(text)

    done = CliRunner().invoke(app, ["audit", "--envelope", str(file), "--store", url, *more])

    assert done.exit_code == 1
    assert says in str(done.exception)


def test_a_run_is_given_another_envelope_by_the_command(store: RunStore, url: str, tmp_path: Path) -> None:
    file = tmp_path / "more.json"
    file.write_text('{"budget": {"turns": 40}}')
    store.start(Shop, run_id="run-2", goal="serve", envelope=Envelope(budget=Budget(turns=1)))

    done = CliRunner().invoke(
        app, ["envelope", "run-2", str(file), "--by", "ann", "--reason", "long", "--store", url]
    )

    assert done.exit_code == 0
    (changed,) = [entry.data for entry in store.journal("run-2") if entry.type == "envelope_changed"]
    assert changed == {"envelope": {"budget": {"turns": 40}}, "by": "ann", "reason": "long"}
