"""The commands about schedules: what starts by the clock, and when next."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from agent_es.cli.commands import load_agent, open_store, tags_of, value_of
from agent_es.cli.exits import Exit
from agent_es.cli.output import age, out, say, say_json, table_of
from agent_es.errors import AgentError, BadSchedule
from agent_es.journal import timestamp
from agent_es.store import Schedule


def schedule(  # one per option
    name: str,
    cron: str,
    agent: str,
    goal: str,
    input_json: str,
    tags: Sequence[str],
    zone: str,
    catch_up: Any,
    store: str,
    *,
    as_json: bool,
) -> int:
    """Put a schedule in, or in the place of the one of that name."""
    value = value_of("--input", input_json, BadSchedule)
    cls = load_agent(agent)
    opened = open_store(store, create=True)
    made = opened.schedule(name, cron, cls, goal=goal, input=value, tags=tags_of(tags), zone=zone, catch_up=catch_up)
    if as_json:
        say_json(described(made))
    else:
        say(f"schedule {name} starts {made.agent} next at {shown(made.next_at)}, {wait(made, opened.clock(0))}")
    return Exit.DONE


def schedules(store: str, *, as_json: bool) -> int:
    """List schedules."""
    opened = open_store(store)
    found, now = opened.schedules(), opened.clock(0)
    if as_json:
        say_json([described(one) for one in found])
        return Exit.DONE
    rows = [(one.name, one.cron, one.zone, one.agent, shown(one.next_at), wait(one, now)) for one in found]
    out.print(table_of(("schedule", "cron", "zone", "agent", "next start", "when"), rows))
    return Exit.DONE


def unschedule(name: str, store: str, *, as_json: bool) -> int:
    """Take a schedule out."""
    if not open_store(store).unschedule(name):
        raise AgentError(f"there is no schedule {name!r}; see: agent-es schedules")
    if as_json:
        say_json({"unscheduled": name})
    else:
        say(f"schedule {name} starts nothing any more; the runs that it started stay")
    return Exit.DONE


def shown(at: datetime | None) -> str:
    """Return a time for people."""
    return "never" if at is None else timestamp(at)


def wait(schedule: Schedule, now: datetime) -> str:
    """Return in how long a schedule starts its next run, or for how long no worker did."""
    if schedule.next_at is None:
        return ""
    is_due = schedule.next_at <= now
    return f"due for {age(schedule.next_at, now)}" if is_due else f"in {age(now, schedule.next_at)}"


def described(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON shows it."""
    told = asdict(schedule)
    del told["input_json"]
    return {**told, "input": schedule.input}
