"""What the commands of ``agent-es`` do.  Each returns its exit status."""

import json
import os
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_es.cli.exits import Exit
from agent_es.cli.output import age, err, say, say_json, say_table, tell
from agent_es.demo import PROVIDER_DB, RUNS_DB
from agent_es.demo import tell as tell_the_story
from agent_es.errors import AgentError, BadAgent, StoreUnusable
from agent_es.journal import timestamp
from agent_es.run import AgentRun
from agent_es.runtime import Runner
from agent_es.state import RunState, Status, Step
from agent_es.store import RunRecord, RunStore
from agent_es.telemetry import Notice

OUTCOMES = {"done": "result", "failed": "error", "in_doubt": "doubt"}
STYLES = {"act": "bold cyan", "line": "", "journal": "dim", "good": "bold green", "bad": "bold red"}


def demo(folder: Path | None, *, as_json: bool) -> int:
    """Tell the story in a folder that is kept, or in one that is not."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (RUNS_DB, PROVIDER_DB):
            if (folder / name).exists():
                raise StoreUnusable(f"{folder / name} is there already; name an empty folder for the demo")
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        waiting = err.status("the worker is on its way to the hard spot…") if err.is_terminal else nullcontext()

        def show_line(style: str, line: str) -> None:
            if not as_json:
                say(line if style == "act" else f"   {line}", STYLES[style])

        with waiting:
            told = tell_the_story(Path(place), show_line)
        if as_json:
            say_json(told.as_dict())
        elif folder is not None:
            say(f"The files are kept: agent-es journal run-7f3a --store {folder / RUNS_DB}")
    return Exit.DONE


def run(  # one per option
    agent: str,
    goal: str,
    run_id: str | None,
    input_json: str,
    decider: str | None,
    deps: str | None,
    store: str,
    *,
    as_json: bool,
) -> int:
    """Start or resume a run of the agent that was named."""
    try:
        value = json.loads(input_json)
    except ValueError as error:
        raise BadAgent(f"--input is no JSON: {error}") from None
    cls = load_agent(agent)
    runner = make_runner(open_store(store, create=True), decider, deps, as_json=as_json)
    return end(runner.run(cls, run_id=run_id, goal=goal, input=value), as_json=as_json)


def resume(
    run_id: str, agent: str | None, decider: str | None, deps: str | None, store: str, *, as_json: bool
) -> int:
    """Resume a run."""
    opened = open_store(store)
    if agent is not None:
        load_agent(agent)
    else:
        opened.load(run_id)
    return end(make_runner(opened, decider, deps, as_json=as_json).resume(run_id), as_json=as_json)


def runs(status: str | None, agent: str | None, limit: int, store: str, *, as_json: bool) -> int:
    """List runs."""
    try:
        wanted = None if status is None else Status(status)
    except ValueError:
        raise AgentError(f"--status {status!r} is none of {', '.join(Status)}") from None
    found = open_store(store).runs(status=wanted, agent=agent, limit=limit)
    if as_json:
        say_json([asdict(record) for record in found])
        return Exit.DONE
    now = datetime.now(UTC)
    say_table(
        ("run", "agent", "status", "waits for", "events", "age", "changed", "wakes", "goal"),
        [
            (
                record.run_id,
                record.agent,
                record.status,
                record.waiting_for,
                record.cursor,
                age(record.started_at, now),
                age(record.updated_at, now),
                record.wake_at and timestamp(record.wake_at),
                record.goal,
            )
            for record in found
        ],
    )
    return Exit.DONE


def show(run_id: str, store: str, *, as_json: bool) -> int:
    """Show a run."""
    opened = open_store(store)
    state = opened.load(run_id)
    record = opened.record(run_id)
    if as_json:
        say_json({**described(state), "record": asdict(record)})
        return Exit.DONE
    for name, value in fields_of(state, record):
        say(f"{name:<12}{value}")
    for step in state.steps:
        say(f"\nstep {step.idx} (turn {step.turn}): {step.tool} {step.status}, attempts {step.attempt}", "bold")
        say(f"  arguments {step.args_json}")
        if step.key is not None:
            say(f"  key       {step.key}")
        if step.value_json is not None:
            say(f"  {OUTCOMES[step.status]:<10}{step.value_json}")
    return Exit.DONE


def journal(run_id: str, store: str, *, as_json: bool) -> int:
    """Print a run's journal."""
    entries = open_store(store).journal(run_id)
    if as_json:
        say_json([json.loads(str(entry)) for entry in entries])
    else:
        for entry in entries:
            say(str(entry))
    return Exit.DONE


def open_store(store: str, *, create: bool = False) -> RunStore:
    """Open the store of that URL or path."""
    return RunStore(store if "://" in store else f"sqlite:///{store}", create=create)


def make_runner(store: RunStore, decider: str | None, deps: str | None, *, as_json: bool) -> Runner:
    """Return a runner with what the options name; it tells what happens on standard error."""
    needed = load(deps) if deps else None

    def trace(notice: Notice) -> None:
        if not as_json:
            tell(str(notice))

    return Runner(
        store,
        load(decider) if decider else None,
        deps=needed() if callable(needed) else needed,
        on_event=trace,
    )


def load(name: str) -> Any:
    """Import what ``module:name`` names, from the working directory too."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise BadAgent(f"{name!r} names nothing to import; write module:name, as in shop.agents:RefundRun")
    if os.getcwd() not in sys.path:  # noqa: PTH109  # sys.path holds text
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        module = import_module(module_name)
    except Exception as error:  # a module runs whatever it likes
        raise BadAgent(f"{name}: importing {module_name} failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise BadAgent(f"{name}: {module_name} has no {attribute!r}")
    return getattr(module, attribute)


def load_agent(name: str) -> type[AgentRun]:
    """Import an agent's class."""
    cls = load(name)
    if not (isinstance(cls, type) and issubclass(cls, AgentRun)):
        raise BadAgent(f"{name} is no subclass of AgentRun")
    return cls


def end(state: RunState, *, as_json: bool) -> int:
    """Say what a run came to, and return the status that says so too."""
    if as_json:
        say_json(described(state))
    elif state.status is Status.DONE:
        say(state.answer if isinstance(state.answer, str) else str(state.answer_json))
    elif state.status is Status.WAITING:
        say(f"run {state.run_id} waits for {state.waiting_for}; see: agent-es show {state.run_id}")
    else:
        say(f"run {state.run_id} {state.status}: {state.failure}; see: agent-es journal {state.run_id}")
    return {Status.DONE: Exit.DONE, Status.WAITING: Exit.WAITS}.get(state.status, Exit.FAILED)


def fields_of(state: RunState, record: RunRecord) -> list[tuple[str, object]]:
    """Return what ``show`` prints of a run, beside its steps."""
    return [
        ("run", state.run_id),
        ("agent", f"{state.agent} (version {state.agent_version})"),
        ("goal", state.goal),
        ("input", state.input_json),
        ("status", state.status + (f", waiting for {state.waiting_for}" if state.waiting_for else "")),
        ("answer", state.answer_json or state.failure or "-"),
        ("tags", json.dumps(dict(state.tags))),
        ("events", state.version),
        ("turns", state.turns),
        ("started", timestamp(record.started_at)),
        ("changed", timestamp(record.updated_at)),
        ("wakes", timestamp(record.wake_at) if record.wake_at else "-"),
        ("envelope", record.envelope_id or "-"),
        ("lease", f"{record.lease_owner or 'nobody'}, token {record.lease_token}"),
    ]


def described(state: RunState) -> dict[str, Any]:
    """Return a state as JSON shows it."""
    return {
        "agent": state.agent,
        "agent_version": state.agent_version,
        "answer": state.answer,
        "failure": state.failure,
        "goal": state.goal,
        "input": state.input,
        "resumed": state.resumed,
        "run_id": state.run_id,
        "started_at": state.started_at,
        "status": state.status,
        "steps": [described_step(step) for step in state.steps],
        "tags": dict(state.tags),
        "turns": state.turns,
        "updated_at": state.updated_at,
        "version": state.version,
        "waiting_for": state.waiting_for,
    }


def described_step(step: Step) -> dict[str, Any]:
    """Return a step as JSON shows it."""
    return {
        "args": step.args,
        "attempts": step.attempt,
        "call_id": step.call_id,
        "doubt": step.doubt,
        "error": step.error,
        "idx": step.idx,
        "key": step.key,
        "result": step.result,
        "status": step.status,
        "tool": step.tool,
        "turn": step.turn,
    }
