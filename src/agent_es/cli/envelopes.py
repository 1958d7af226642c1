"""The commands about what runs may do: ``audit`` says what an envelope would have, ``envelope`` gives another."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from agent_es.audit import Audited, audit, changed_since
from agent_es.cli.commands import load_agent, open_store, person, read_envelope, went_on
from agent_es.cli.exits import Exit
from agent_es.cli.output import out, progress, say, say_json, table_of, tell
from agent_es.errors import BadEnvelope, BadLimit
from agent_es.runtime import by_name


def moment(text: str) -> datetime:
    """Return the time that a text says, in UTC where it says no zone; raise ``BadEnvelope``."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadEnvelope(f"--since {text!r} is no time; write it as 2026-07-05 or 2026-07-05T10:00:00Z") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def audited(
    run_ids: Sequence[str], envelope: Path, since: str | None, agents: Sequence[str], store: str, *, as_json: bool
) -> int:
    """Show what an envelope would have said of runs."""
    judge = read_envelope(envelope)
    opened = open_store(store)
    tools = by_name(tool for name in agents for tool in load_agent(name).agent_tools.values())
    judge.check({name: tool.parameters for name, tool in tools.items()})
    wanted = [*run_ids] or changed_since(opened, None if since is None else moment(since))
    with progress("reading journals", len(wanted)) as advance:
        found = audit(opened, judge, run_ids=wanted, tools=tools, on_run=advance)
    if as_json:
        say_json(asdict(found) | {"envelope": judge.digest})
    else:
        show(found)
    return Exit.DONE


def show(found: Audited) -> None:
    """Print what was found, a line for each."""
    if found.findings:
        rows = [(it.run_id, it.seq, it.said, it.tool, it.rule, it.why) for it in found.findings]
        out.print(table_of(("run", "seq", "would be", "tool", "rule", "why"), rows))
    counted = Counter(it.said for it in found.findings)
    counts = ", ".join(f"{counted[said]} {said}" for said in ("refused", "asked", "stopped"))
    say(f"{found.calls} calls in {found.runs} runs: {counts}")
    if found.unreadable:
        tell(f"{len(found.unreadable)} runs cannot be read by this code: {', '.join(found.unreadable[:5])}")


def envelope(run_id: str, file: Path, by: str | None, reason: str, store: str, *, as_json: bool) -> int:
    """Give a run another envelope."""
    state = open_store(store).change_envelope(run_id, read_envelope(file), by=person(by), reason=reason)
    return went_on(state, "has another envelope", as_json=as_json)


def limit(
    tool: str | None, per_second: float | None, at_once: int | None, tag: str | None, store: str, *, as_json: bool
) -> int:
    """Keep a limit, and show all that there are."""
    opened = open_store(store)
    if tool is not None:
        opened.limit(tool, per_second=per_second, at_once=at_once, tag=tag)
    elif (per_second, at_once, tag) != (None, None, None):
        raise BadLimit("say of which tool: agent-es limit TOOL --per-second 5")
    limits = opened.limits()
    if as_json:
        say_json([it._asdict() for it in limits])
    elif limits:
        out.print(table_of(("tool", "apart by tag", "per second", "at once"), limits))
    else:
        say("no tool has a limit")
    return Exit.DONE
