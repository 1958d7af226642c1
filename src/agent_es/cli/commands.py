"""What the commands of ``agent-es`` do.  Each returns its exit status."""

import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from typing import Any, Literal, TextIO

import typer
from rich.live import Live
from rich.table import Table

from agent_es.cli.exits import Exit
from agent_es.cli.output import age, out, progress, say, say_json, table_of, tell
from agent_es.envelope import Envelope
from agent_es.errors import AgentError, AgentUnknown, BadAgent, BadEnvelope, BadJournal, BadSettlement, BadSignal
from agent_es.journal import timestamp
from agent_es.loading import load
from agent_es.notices import Notice
from agent_es.run import AgentRun
from agent_es.runtime import Runner, new_run_id
from agent_es.scratchpad import active
from agent_es.state import OVER, RunState, Signal, Status, Step
from agent_es.store import MAX_SEARCH, SCHEMA_VERSION, RunRecord, RunStore
from agent_es.transfer import Tally, Transferred, export_lines, read_journals

OUTCOMES = {"done": "result", "failed": "error", "retrying": "error", "in_doubt": "doubt", "gated": "gate"}
WATCH_EVERY = 1.0
FOLLOW_EVERY = 0.2
"""Seconds between two looks at the store."""


def run(  # one per option
    agent: str,
    goal: str,
    run_id: str | None,
    input_json: str,
    tags: list[str],
    envelope: Path | None,
    decider: str | None,
    deps: str | None,
    store: str,
    *,
    as_json: bool,
) -> int:
    """Start or resume a run of the agent that was named."""
    value, named = value_of("--input", input_json, BadAgent), tags_of(tags)
    may = None if envelope is None else read_envelope(envelope)
    cls = load_agent(agent)
    options = runner_options(decider, deps, as_json=as_json)
    runner = Runner(open_store(store, create=True), **options)
    run_id = run_id or new_run_id()
    with interruptible(run_id):
        state = runner.run(cls, run_id=run_id, goal=goal, input=value, tags=named, envelope=may)
        return end(state, as_json=as_json)


def read_envelope(file: Path) -> Envelope:
    """Return the envelope that a file holds; raise ``BadEnvelope``."""
    try:
        return Envelope.read(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, BadEnvelope) as error:
        raise BadEnvelope(f"{file}: {error}") from None


def resume(
    run_id: str,
    agent: str | None,
    decider: str | None,
    deps: str | None,
    by: str | None,
    store: str,
    *,
    as_json: bool,
) -> int:
    """Resume a run, and let it go on first where it was paused."""
    agents = None if agent is None else [*foremost(load_agent(agent))]
    options = runner_options(decider, deps, as_json=as_json)
    opened = open_store(store)
    runner = Runner(opened, agents=agents, **options)
    state = opened.load(run_id)
    try:
        if state.paused is not None:
            if agents is not None:
                runner.agent_of(state)  # who names another one lets nothing go on
            state = opened.resume(run_id, by=person(by))
            if agents is None:
                return went_on(state, "goes on", as_json=as_json)
        with interruptible(run_id):
            state = runner.resume(run_id)
    except AgentUnknown as unknown:
        raise AgentUnknown(f"{unknown.args[0].partition('; ')[0]}; name it: --agent MODULE:CLASS") from None
    return end(state, as_json=as_json)


def runs(  # one per option
    status: str | None,
    waiting_for: str | None,
    agent: str | None,
    tag: str | None,
    search: str | None,
    after: str | None,
    limit: int,
    store: str,
    *,
    watch: bool,
    as_json: bool,
) -> int:
    """List runs, once or each second."""
    try:
        wanted = None if status is None else Status(status)
    except ValueError:
        raise AgentError(f"--status {status!r} is none of {', '.join(Status)}") from None
    filters: dict[str, Any] = {"status": wanted, "waiting_for": waiting_for, "agent": agent, "search": search}
    if search is not None and len(search) > MAX_SEARCH:
        raise AgentError(f"--search of {len(search):,} characters: it may have {MAX_SEARCH:,}")
    tagged = None if tag is None else tag_of(tag)
    opened = open_store(store)
    place = None if after is None else opened.record(after).place

    def found() -> list[RunRecord]:
        return opened.runs(**filters, tag=tagged, after=place, limit=limit)

    if watch and not as_json and out.is_terminal:
        with Live(runs_table(found()), console=out, auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_EVERY)
                live.update(runs_table(found()), refresh=True)
    while True:
        if as_json:
            say_json([asdict(record) for record in found()])
        else:
            out.print(runs_table(found()))
        if not watch:
            return Exit.DONE
        time.sleep(WATCH_EVERY)


def runs_table(found: Sequence[RunRecord]) -> Table:
    """Return runs as a table; what kept their workers from moving them is in it where there is such a thing."""
    now = datetime.now(UTC)
    has_trouble = any(record.trouble for record in found)
    columns = ("run", "agent", "status", "waits for", "events", "cost", "age", "changed", "wakes", "goal")
    return table_of(
        (*columns, "trouble") if has_trouble else columns,
        [
            (
                record.run_id,
                record.agent,
                record.status,
                record.waiting_for,
                record.cursor,
                f"{record.cost:f}" if record.cost else None,
                age(record.started_at, now),
                age(record.updated_at, now),
                record.wake_at and timestamp(record.wake_at),
                record.goal,
                *([record.trouble] if has_trouble else []),
            )
            for record in found
        ],
    )


def show(run_id: str, at: int | None, store: str, *, as_json: bool) -> int:
    """Show a run, now or as it was."""
    opened = open_store(store)
    state = opened.load(run_id, None if at is None else at + 1)
    record = opened.record(run_id)
    if as_json:
        told = {"record": asdict(record), "scratchpad": [asdict(entry) for entry in active(state)]}
        kept = {"facts": state.facts, "summaries": [one._asdict() for one in state.summaries]}
        say_json({**described(state), **told, **kept})
        return Exit.DONE
    for name, value in fields_of(state, record if at is None else None):
        say(f"{name:<12}{value}")
    say("\nscratchpad", "bold")
    for entry in active(state):
        say(f"  {'' if entry.idx is None else f'step {entry.idx}':<8}{entry.kind:<8}{entry.text}")
    if state.summarized:
        say(f"  (the first {state.summarized} steps are summarized; agent-es journal has them whole)")
    for step in state.steps:
        show_step(state, step)
    if state.signals:
        say("\nsignals that are not used yet", "bold")
    for came in state.signals:
        say(f"  seq {came.seq} {came.name} {came.payload_json}")
        say(f"    delivery {came.delivery_id}, at {timestamp(came.received_at)}")
    return Exit.DONE


def show_step(state: RunState, step: Step) -> None:
    """Show a step, and where somebody else must act first, how."""
    say(f"\nstep {step.idx} (turn {step.turn}): {step.tool} {step.status}, attempts {step.attempt}", "bold")
    say(f"  arguments {step.args_json}")
    if step.key is not None:
        say(f"  key       {step.key}")
    if step.value_json is not None:
        say(f"  {OUTCOMES[step.status]:<10}{step.value_json}")
    if step.status == "in_doubt":
        say(f"  settle    agent-es settle {state.run_id} {step.idx} --happened | --did-not-happen")
    if step.status == "gated" and not state.is_over:
        say(f"  approve   agent-es approve {shlex.quote(state.run_id)} {step.idx}, or agent-es deny ...")
    if step.asks_person and step.status == "waiting":
        say(f"  answer    agent-es answer {shlex.quote(state.run_id)} {step.idx} ...")
    elif step.status == "waiting" and not state.is_over:
        say(f"  waits     {awaited(step)}")
        if step.awaits is not None and step.child is None:
            say(f"  signal    agent-es signal {shlex.quote(state.run_id)} {shlex.quote(step.awaits)}")


def awaited(step: Step) -> str:
    """Say what a waiting step waits for: the end of another run, or a signal and the clock, whichever comes first."""
    if step.child is not None:
        return f"for the end of run {step.child}"
    name = None if step.awaits is None else f"for the signal {step.awaits}"
    until = None if step.wake_at is None else f"until {timestamp(step.wake_at)}"
    return ", ".join(part for part in (name, until) if part is not None)


def journal(run_id: str, store: str, *, follow: bool, as_json: bool) -> int:
    """Print a run's journal, to where it is or until the run is over."""
    opened = open_store(store)
    entries = opened.journal(run_id)
    if as_json and not follow:
        say_json([json.loads(str(entry)) for entry in entries])
        return Exit.DONE
    seq = -1
    while True:
        for entry in entries:
            seq = entry.seq
            say(str(entry))
        if not follow or opened.record(run_id).status in OVER:
            return Exit.DONE
        time.sleep(FOLLOW_EVERY)
        entries = opened.journal(run_id, after=seq)


def settle(
    run_id: str,
    idx: int,
    happened: bool | None,  # noqa: FBT001  # a pair of flags, or neither
    result_json: str,
    by: str | None,
    store: str,
    *,
    force: bool,
    as_json: bool,
) -> int:
    """Settle a doubt."""
    if happened is None:
        raise BadSettlement("say which: --happened, or --did-not-happen")
    result = value_of("--result", result_json, BadSettlement)
    opened = open_store(store)
    outcome: Literal["happened", "did_not_happen"] = "happened" if happened else "did_not_happen"
    state = opened.settle(run_id, idx, outcome, result=result, by=person(by), force=force)
    return went_on(state, f"step {idx} {outcome.replace('_', ' ')}", as_json=as_json)


def requeue(run_id: str, by: str | None, store: str, *, as_json: bool) -> int:
    """Send a run back to work."""
    return went_on(open_store(store).requeue(run_id, by=person(by)), "requeued", as_json=as_json)


def signal(
    words: list[str],
    tag: str | None,
    payload_json: str,
    delivery_id: str | None,
    store: str,
    *,
    as_json: bool,
) -> int:
    """Tell a run, or all that have a tag, that something came."""
    if len(words) != (2 if tag is None else 1):
        raise typer.BadParameter("say which run and which signal: RUN NAME, or --tag NAME=VALUE and NAME")
    payload = value_of("--payload", payload_json, BadSignal)
    run_id = None if tag is not None else words[0]
    tagged = None if tag is None else tag_of(tag)
    delivered = open_store(store).signal(run_id, words[-1], payload, tag=tagged, delivery_id=delivery_id)
    if as_json:
        say_json([asdict(one) for one in delivered])
        return Exit.DONE
    for one in delivered:
        known = "" if one.is_new else "; it was brought before, and nothing is recorded again"
        say(f"run {one.run_id}: {words[-1]} is recorded at seq {one.seq}{known}")
    return Exit.DONE


def cancel(run_id: str, reason: str, by: str | None, store: str, *, compensate: bool, as_json: bool) -> int:
    """End a run from outside."""
    opened = open_store(store)
    before = opened.load(run_id)
    was_over, children = before.is_over, ", ".join(step.child for step in before.waits if step.child is not None)
    state = opened.cancel(run_id, by=person(by), reason=reason, compensate=compensate)
    if state.compensating:
        return went_on(state, "its finished effects are undone next", as_json=as_json)
    if as_json:
        say_json(described(state))
    elif was_over or state.status is not Status.CANCELLED:
        say(f"run {run_id} is {state.status} already, and stays as it is")
    else:
        say(f"run {run_id} {state.failure}" + (f"; with it {children}" if children else ""))
    return Exit.DONE


def person(by: str | None) -> str:
    """Return who says so: the user, unless it was said; who was said to be nobody is nobody, and is refused."""
    return getuser() if by is None else by


def tag_of(text: str) -> tuple[str, str]:
    """Return the name and the value that ``NAME=VALUE`` says."""
    name, is_there, value = text.partition("=")
    if not (name and is_there):
        raise AgentError(f"--tag {text!r} is no NAME=VALUE; write it as in --tag invoice=INV-1042")
    return name, value


def tags_of(words: Sequence[str]) -> dict[str, str]:
    """Return the tags that several ``NAME=VALUE`` say."""
    named = [tag_of(word) for word in words]
    if len(dict(named)) < len(named):
        raise AgentError(f"--tag {' --tag '.join(words)}: a run has one value for each name")
    return dict(named)


def value_of(option: str, text: str, wrong: type[AgentError]) -> Any:
    """Return what an option says in JSON; raise ``wrong`` where it is none."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise wrong(f"{option} is no JSON: {error}; quote it for the shell, as in {option} '\"rf-17\"'") from None


def went_on(state: RunState, what: str, *, as_json: bool) -> int:
    """Say what was recorded, and how the run goes on, or what it still waits for."""
    if as_json:
        say_json(described(state))
    else:
        still = [f"; step {step.idx} is still in doubt" for step in state.doubts]
        still += [f"; step {step.idx} still waits for a yes" for step in state.gated]
        still += [f"; step {step.idx} still waits for an answer" for step in state.questions]
        how = f"; go on with: agent-es resume {state.run_id}"
        if state.paused is not None:
            still.append(f"; it is paused {state.paused}{how}")
        say(f"run {state.run_id}: {what}{''.join(still) or how}")
    return Exit.DONE


def rebuild(store: str, *, as_json: bool) -> int:
    """Make what is projected again."""
    return rebuilt(open_store(store), as_json=as_json)


def migrate(store: str, *, as_json: bool) -> int:
    """Bring older tables up, and make what is projected again."""
    return rebuilt(open_store(store, migrate=True), as_json=as_json)


def rebuilt(store: RunStore, *, as_json: bool) -> int:
    """Rebuild with a progress bar, and say how many runs there are."""
    with progress("rebuilding", None if as_json else store.count()) as advance:
        count = store.rebuild(lambda _: advance())
    if as_json:
        say_json({"runs": count, "schema": SCHEMA_VERSION})
    else:
        say(f"{count} runs, schema {SCHEMA_VERSION}: rows and keys were made again from the events")
    return Exit.DONE


def export_runs(run_ids: list[str], output: Path | None, store: str, *, as_json: bool) -> int:
    """Write journals as JSON lines."""
    opened = open_store(store)
    ids = run_ids or sorted(record.run_id for record in opened.runs(limit=None))
    tally = Tally()
    for run_id in run_ids:
        opened.record(run_id)
    with (
        nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8") as target,
        progress("exporting", None if as_json or output is None else len(ids)) as advance,
    ):
        for run_id in ids:
            target.writelines(f"{line}\n" for line in export_lines(opened, [run_id], tally))
            advance()
    return transferred("exported", tally.result, to_stdout=output is not None, as_json=as_json)


def import_runs(file: Path, store: str, *, as_json: bool) -> int:
    """Store the runs that JSON lines tell of."""
    tally = Tally()
    with nullcontext(sys.stdin) if str(file) == "-" else readable(file) as source:
        journals = read_journals(source, tally)
    open_store(store, create=True).put_journals(journals)
    return transferred("imported", tally.result, to_stdout=True, as_json=as_json)


def readable(file: Path) -> TextIO:
    """Open a text file to read it."""
    try:
        return file.open(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise BadJournal(f"{file} cannot be read: {error.strerror}") from None


def transferred(what: str, result: Transferred, *, to_stdout: bool, as_json: bool) -> int:
    """Say what went over; beside the lines themselves, on standard error."""
    if as_json:
        line = json.dumps(asdict(result), sort_keys=True)
    else:
        line = f"{what} {result.runs} runs, {result.events} events, sha256 {result.digest}"
    (say if to_stdout else tell)(line)
    return Exit.DONE


def open_store(store: str, *, create: bool = False, migrate: bool = False) -> RunStore:
    """Open the store of that URL or path."""
    return RunStore(store if "://" in store else f"sqlite:///{store}", create=create, migrate=migrate)


def runner_options(decider: str | None, deps: str | None, *, as_json: bool) -> dict[str, Any]:
    """Return what the options name, for a runner; it tells what happens on standard error."""
    needed = load(deps) if deps else None

    def trace(notice: Notice) -> None:
        if not as_json:
            tell(str(notice))

    return {
        "decider": load(decider) if decider else None,
        "deps": needed() if callable(needed) else needed,
        "on_event": trace,
    }


@contextmanager
def interruptible(run_id: str) -> Iterator[None]:
    """Say how an interrupted run goes on."""
    try:
        yield
    except KeyboardInterrupt:
        tell(f"interrupted; what was recorded is kept, go on with: agent-es resume {run_id}", style="")
        raise typer.Exit(Exit.INTERRUPTED) from None


def load_agent(name: str) -> type[AgentRun]:
    """Import an agent's class."""
    cls = load(name)
    if not (isinstance(cls, type) and issubclass(cls, AgentRun)):
        raise BadAgent(f"{name} is no subclass of AgentRun")
    return cls


def foremost(agent: type[AgentRun]) -> Iterator[type[AgentRun]]:
    """Yield an agent, and of all that the program has those with another name: its runs may have started theirs."""
    yield agent
    classes: list[type[AgentRun]] = [AgentRun]
    while classes:
        classes += (found := classes.pop()).__subclasses__()
        if found.agent_name != agent.agent_name:
            yield found


def end(state: RunState, *, as_json: bool) -> int:
    """Say what a run came to, and return the status that says so too."""
    if as_json:
        say_json(described(state))
    elif state.status is Status.DONE:
        say(state.answer if isinstance(state.answer, str) else str(state.answer_json))
    elif state.status is Status.WAITING:
        until = f" until {timestamp(state.wake_at)}" if state.wake_at else ""
        say(f"run {state.run_id} waits ({state.waiting_for}{until}); see: agent-es show {state.run_id}")
    else:
        say(f"run {state.run_id} {state.status}: {state.failure}; see: agent-es journal {state.run_id}")
    return {Status.DONE: Exit.DONE, Status.WAITING: Exit.WAITS}.get(state.status, Exit.FAILED)


def fields_of(state: RunState, record: RunRecord | None) -> list[tuple[str, object]]:
    """Return what ``show`` prints of a run, beside its steps; the row says only how it stands now."""
    told: list[tuple[str, object]] = [
        ("run", state.run_id),
        ("agent", f"{state.agent} (version {state.agent_version})"),
        ("goal", state.goal),
        ("input", state.input_json),
        ("status", state.status + (f" ({state.waiting_for})" if state.waiting_for else "")),
        ("answer", state.answer_json or state.failure or state.parked or state.paused or "-"),
        ("tags", json.dumps(dict(state.tags))),
        ("parent", state.parent or "-"),
        ("events", state.version),
        ("turns", state.turns),
        ("started", timestamp(state.started_at) if state.started_at else "-"),
        ("changed", timestamp(state.updated_at) if state.updated_at else "-"),
        ("wakes", timestamp(state.wake_at) if state.wake_at else "-"),
    ]
    if record is not None:
        told += [
            ("envelope", record.envelope_id or "-"),
            ("lease", f"{record.lease_owner or 'nobody'}, token {record.lease_token}"),
            ("trouble", record.trouble or "-"),
        ]
    return told


def described(state: RunState) -> dict[str, Any]:
    """Return a state as JSON shows it."""
    return {
        "agent": state.agent,
        "agent_version": state.agent_version,
        "answer": state.answer,
        "failure": state.failure,
        "goal": state.goal,
        "input": state.input,
        "parent": state.parent,
        "resumed": state.resumed,
        "run_id": state.run_id,
        "signals": [described_signal(signal) for signal in state.signals],
        "started_at": state.started_at,
        "status": state.status,
        "steps": [described_step(step) for step in state.steps],
        "tags": dict(state.tags),
        "turns": state.turns,
        "updated_at": state.updated_at,
        "version": state.version,
        "waiting_for": state.waiting_for,
        "wake_at": state.wake_at,
        "parked": state.parked,
        "paused": state.paused,
        "messages": [message._asdict() for message in state.messages],
    }


def described_step(step: Step) -> dict[str, Any]:
    """Return a step as JSON shows it."""
    return {
        "approval": step.approval and {**step.approval._asdict(), "args": step.approval.args},
        "args": step.args,
        "attempts": step.attempt,
        "awaits": step.awaits,
        "call_id": step.call_id,
        "child": step.child,
        "doubt": step.doubt,
        "error": step.error,
        "idx": step.idx,
        "key": step.key,
        "result": step.result,
        "status": step.status,
        "tool": step.tool,
        "turn": step.turn,
        "wake_at": step.wake_at,
    }


def described_signal(signal: Signal) -> dict[str, Any]:
    """Return a signal as JSON shows it."""
    return {
        "delivery_id": signal.delivery_id,
        "name": signal.name,
        "payload": signal.payload,
        "received_at": signal.received_at,
        "seq": signal.seq,
    }
