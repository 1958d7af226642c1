"""The commands of ``agent-es`` as they are typed: names, options, help.  What they do is in ``commands``.

Rule: nothing heavy is imported here, so that ``--help`` is fast; ``_work`` is the one place that imports late.
"""

import gc
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_es.bench import Workload
from agent_es.cli.exits import Exit

EXIT_CODES = """Exit status: 0 done; 1 an error, told in one line; 2 wrong usage; 3 the run waits for something;
4 the run ended in a failure; 130 interrupted, and the run can be resumed."""

app = typer.Typer(
    name="agent-es",
    help="Agents that survive: run them, kill them, resume them, read what happened.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # to import what draws boxes takes as long as all the rest
    context_settings={"max_content_width": 100},
)

Store = Annotated[
    str,
    typer.Option(envvar="AGENT_ES_STORE", help="The store: a SQLAlchemy URL, or the path of a SQLite file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Idx = Annotated[int, typer.Argument(metavar="IDX", help="The step.")]
Agent = Annotated[
    str | None,
    typer.Option(envvar="AGENT_ES_AGENT", metavar="MODULE:CLASS", help="The class that the run was started with."),
]
Deciding = Annotated[
    str | None, typer.Option(metavar="MODULE:NAME", help="The decider, where the agent has none of its own.")
]
Deps = Annotated[
    str | None, typer.Option(metavar="MODULE:NAME", help="What tools get as ctx.deps; a callable is called for it.")
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="NAME=VALUE", help="By which a run is found again; may be given again."),
]
Tag = Annotated[str | None, typer.Option(metavar="NAME=VALUE", help="Only those with this tag.")]
By = Annotated[str | None, typer.Option(help="Who says so; the user's name by default.")]
DEFAULT_STORE = "sqlite:///agent_es.db"


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Keep what holds for every command."""
    _OPTIONS["debug"] = debug


_OPTIONS = {"debug": False}


def _work(module: str, name: str, /, **arguments: Any) -> None:
    """Do what the command of that name does, and end with its status."""
    gc.disable()  # what is imported stays: to look for garbage among it takes a sixth of a start
    command = getattr(import_module(f"agent_es.cli.{module}"), name)
    gc.freeze()
    gc.enable()
    raise typer.Exit(command(**arguments))


@app.command()
def demo(
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Keep the files here: runs.db and provider.db.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Kill a worker at the worst moment, and watch a naive restart pay twice and the durable resume pay once.

    Example: agent-es demo --dir /tmp/story
    """
    _work("story", "demo", folder=folder, as_json=as_json)


@app.command()
def run(
    agent: Annotated[str, typer.Argument(metavar="MODULE:CLASS", help="The agent's class.")],
    goal: Annotated[str, typer.Option(help="What the run is to reach.")],
    run_id: Annotated[str | None, typer.Option(help="The run's id; a new one is made where it is left out.")] = None,
    input_json: Annotated[str, typer.Option("--input", metavar="JSON", help="The run's input.")] = "null",
    tags: Tags = None,
    envelope: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What the run may do, and what it may spend, as JSON.")
    ] = None,
    decider: Deciding = None,
    deps: Deps = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Start a run, or resume the one of that id, and drive it until it is over or waits.

    Example: agent-es run shop.agents:RefundRun --goal "Refund ORD-3300" --run-id refund-3300
    """
    _work(
        "commands",
        "run",
        agent=agent,
        goal=goal,
        run_id=run_id,
        input_json=input_json,
        tags=tags or [],
        envelope=envelope,
        decider=decider,
        deps=deps,
        store=store,
        as_json=as_json,
    )


@app.command()
def approve(
    run_id: RunId,
    idx: Idx,
    args_json: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="Other arguments than those that are asked about.")
    ] = None,
    digest: Annotated[str | None, typer.Option(help="Only if it is about exactly this.")] = None,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the journal.")] = "",
    agent: Agent = None,
    by: By = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Say yes to a call that waits for it, as it was shown, or with other arguments.

    Example: agent-es approve refund-3300 1 --by dana
    """
    _work(
        "answering",
        "approve",
        run_id=run_id,
        idx=idx,
        args_json=args_json,
        digest=digest,
        reason=reason,
        agent=agent,
        by=by,
        store=store,
        as_json=as_json,
    )


@app.command()
def deny(
    run_id: RunId,
    idx: Idx,
    reason: Annotated[str, typer.Option(help="Why; the decider sees it.")] = "",
    digest: Annotated[str | None, typer.Option(help="Only if it is about exactly this.")] = None,
    by: By = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Say no to a call that waits for a yes: it is not made, and the decider sees why.

    Example: agent-es deny refund-3300 1 --reason "the order was returned"
    """
    _work(
        "answering",
        "deny",
        run_id=run_id,
        idx=idx,
        reason=reason,
        digest=digest,
        by=by,
        store=store,
        as_json=as_json,
    )


@app.command()
def answer(
    run_id: RunId,
    idx: Idx,
    value: Annotated[str, typer.Argument(metavar="ANSWER", help="JSON; what is none is taken as a text.")],
    by: By = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Answer a question of a run's decider.

    Example: agent-es answer refund-3300 2 "to the card that was charged"
    """
    _work("answering", "answer", run_id=run_id, idx=idx, value=value, by=by, store=store, as_json=as_json)


@app.command()
def steer(
    run_id: RunId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the decider is to know.")],
    by: By = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Tell a run's decider something before it decides again.

    Example: agent-es steer refund-3300 "the customer wants a voucher instead"
    """
    _work("answering", "steer", run_id=run_id, text=text, by=by, store=store, as_json=as_json)


@app.command()
def pause(
    run_id: RunId,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the journal.")] = "",
    by: By = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Stop a run until somebody resumes it: what is under way is recorded, and nothing else begins.

    Example: agent-es pause refund-3300 --reason "we look into it"
    """
    _work("answering", "pause", run_id=run_id, reason=reason, by=by, store=store, as_json=as_json)


@app.command()
def inbox(
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Only approval, doubt, question, parked or paused.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    watch: Annotated[bool, typer.Option("--watch", help="Tell what comes, until interrupted.")] = False,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """List what waits for a person, over all runs, the oldest first, with the commands that answer it.

    Example: agent-es inbox --watch
    """
    _work("answering", "inbox", kind=kind, limit=limit, watch=watch, store=store, as_json=as_json)


@app.command()
def resume(
    run_id: RunId,
    agent: Agent = None,
    decider: Deciding = None,
    deps: Deps = None,
    by: By = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Drive a run that was started before until it is over or waits; let one go on that was paused.

    A paused run whose agent is not named is left to workers.  Example: agent-es resume refund-3300 --agent
    shop.agents:RefundRun
    """
    _work(
        "commands",
        "resume",
        run_id=run_id,
        agent=agent,
        decider=decider,
        deps=deps,
        by=by,
        store=store,
        as_json=as_json,
    )


@app.command()
def worker(
    agents: Annotated[
        list[str],
        typer.Argument(metavar="MODULE[:CLASS]...", help="The agents; a module stands for all that it defines."),
    ],
    concurrency: Annotated[int, typer.Option(min=1, help="So many runs are moved at once.")] = 8,
    lease: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which a worker that is gone is replaced.")
    ] = 30.0,
    poll: Annotated[float, typer.Option(min=0.01, help="Seconds that a due run may wait to be noticed.")] = 0.5,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that a stop waits for what is under way.")] = 10.0,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve figures for Prometheus there; on loopback without a host."),
    ] = None,
    notify: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="A function that is told of each thing that waits for a person."),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Send spans by OTLP over HTTP, to where the OTEL_* variables say.")
    ] = False,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when nothing is due.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End after one step.")] = False,
    decider: Deciding = None,
    deps: Deps = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Move the due runs of some agents, step by step, until it is stopped; many may share one store.

    SIGTERM ends what is under way, or hands it back.  Example: agent-es worker shop.agents --concurrency 4
    """
    _work(
        "working",
        "worker",
        agents=agents,
        concurrency=concurrency,
        lease=lease,
        poll=poll,
        grace=grace,
        metrics=metrics,
        notify=notify,
        trace=trace,
        until_idle=until_idle,
        once=once,
        decider=decider,
        deps=deps,
        store=store,
        as_json=as_json,
    )


@app.command()
def schedule(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")],
    cron: Annotated[
        str, typer.Argument(metavar="CRON", help="Five fields: minute, hour, day of month, month, day of week.")
    ],
    agent: Annotated[str, typer.Argument(metavar="MODULE:CLASS", help="The class of the agent.")],
    goal: Annotated[str, typer.Option(help="What each run is to reach.")],
    input_json: Annotated[str, typer.Option("--input", metavar="JSON", help="The input of each run.")] = "null",
    tags: Tags = None,
    zone: Annotated[str, typer.Option(metavar="ZONE", help="Whose clocks are meant, as in Europe/Berlin.")] = "UTC",
    catch_up: Annotated[
        str, typer.Option(metavar="latest|all|none", help="What is started of what no worker was there for.")
    ] = "latest",
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Let workers start a run at each time that a cron expression names; the same name again replaces it.

    Example: agent-es schedule dunning "0 9 * * MON-FRI" shop.agents:CollectionsRun --goal "Remind who is overdue"
    --zone Europe/Berlin
    """
    _work(
        "scheduling",
        "schedule",
        name=name,
        cron=cron,
        agent=agent,
        goal=goal,
        input_json=input_json,
        tags=tags or [],
        zone=zone,
        catch_up=catch_up,
        store=store,
        as_json=as_json,
    )


@app.command()
def schedules(store: Store = DEFAULT_STORE, as_json: Json = False) -> None:
    """List schedules, the one that starts a run next first.

    Example: agent-es schedules
    """
    _work("scheduling", "schedules", store=store, as_json=as_json)


@app.command()
def unschedule(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")],
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Start no further runs by a schedule; those that it started stay.

    Example: agent-es unschedule dunning
    """
    _work("scheduling", "unschedule", name=name, store=store, as_json=as_json)


@app.command()
def runs(
    status: Annotated[str | None, typer.Option(help="Only those pending, running, waiting, done, failed...")] = None,
    waiting_for: Annotated[str | None, typer.Option(help="Only those that wait for this, such as doubt.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    tag: Tag = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those with this text in their id or goal.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Only those below this one: what follows a list that ends with it."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    in_doubt: Annotated[
        bool, typer.Option("--in-doubt", help="Only those of which nobody knows what happened.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show them again each second, until interrupted.")] = False,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """List runs, the one that changed last first.

    Example: agent-es runs --status waiting --watch
    """
    _work(
        "commands",
        "runs",
        status=status,
        waiting_for="doubt" if in_doubt else waiting_for,
        agent=agent,
        tag=tag,
        search=search,
        after=after,
        limit=limit,
        watch=watch,
        store=store,
        as_json=as_json,
    )


@app.command()
def show(
    run_id: RunId,
    at: Annotated[
        int | None, typer.Option(min=0, metavar="SEQ", help="As it was after the event of that seq.")
    ] = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Show a run: its record, its scratchpad, and each step with its attempts, key and state.

    Example: agent-es show refund-3300 --at 3
    """
    _work("commands", "show", run_id=run_id, at=at, store=store, as_json=as_json)


@app.command()
def inspect(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where on loopback; 0 takes a free port.")] = 0,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, change nothing.")] = False,
    agents: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="MODULE:CLASS", help="An agent whose calls may get other arguments."),
    ] = None,
    scenarios: Annotated[
        list[str] | None,
        typer.Option("--scenario", metavar="MODULE:NAME", help="A scenario for the crash lab, beside the story."),
    ] = None,
    by: By = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Open a local page on a store: its runs, one run at any moment, what waits for a person, a crash lab.

    The first line is the URL, with the token that opens it.  Example: agent-es inspect --store runs.db
    """
    _work(
        "inspecting",
        "inspect",
        port=port,
        read_only=read_only,
        agents=agents or [],
        scenarios=scenarios or [],
        by=by,
        store=store,
        as_json=as_json,
    )


@app.command()
def journal(
    run_id: RunId,
    follow: Annotated[bool, typer.Option("--follow", help="Go on printing until the run is over.")] = False,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Print a run's journal, one JSON line per event.

    Example: agent-es journal refund-3300 --follow
    """
    _work("commands", "journal", run_id=run_id, follow=follow, store=store, as_json=as_json)


@app.command()
def report(
    run_id: RunId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here; else RUN.html in this folder.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write its timeline there too, as a picture.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Write a run as one HTML file that needs nothing else: timeline, steps, envelope, journal, digest.

    Example: agent-es report refund-3300 -o refund.html --png refund.png
    """
    _work("reporting", "report", run_id=run_id, output=output, png=png, store=store, force=force, as_json=as_json)


@app.command()
def trace(
    run_id: RunId,
    sends: Annotated[
        bool, typer.Option("--otlp", help="Send the spans by OTLP over HTTP, to where the OTEL_* variables say.")
    ] = False,
    endpoint: Annotated[str | None, typer.Option(metavar="URL", help="Send them there instead.")] = None,
    contents: Annotated[
        bool, typer.Option("--contents", help="With arguments, results, answers and reasons.")
    ] = False,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Show what of a run took time, as OpenTelemetry's spans, or send them; of a run that goes on, what has ended.

    Example: agent-es trace refund-3300 --otlp
    """
    _work(
        "tracing",
        "trace",
        run_id=run_id,
        sends=sends,
        endpoint=endpoint,
        contents=contents,
        store=store,
        as_json=as_json,
    )


@app.command()
def settle(
    run_id: RunId,
    idx: Annotated[int, typer.Argument(metavar="IDX", help="The step that is in doubt.")],
    happened: Annotated[
        bool | None, typer.Option("--happened/--did-not-happen", help="What became of its effect.")
    ] = None,
    result_json: Annotated[str, typer.Option("--result", metavar="JSON", help="What the step gave.")] = "null",
    by: By = None,
    force: Annotated[bool, typer.Option("--force", help="Even while its worker may still be alive.")] = False,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Say what became of a step in doubt; the run goes on at its next resume.

    Example: agent-es settle refund-3300 1 --happened --result '"rf-17"'
    """
    _work(
        "commands",
        "settle",
        run_id=run_id,
        idx=idx,
        happened=happened,
        result_json=result_json,
        by=by,
        force=force,
        store=store,
        as_json=as_json,
    )


@app.command()
def requeue(
    run_id: RunId,
    by: By = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Send a run that is parked, or has failed, back to work.

    Example: agent-es requeue refund-3300
    """
    _work("commands", "requeue", run_id=run_id, by=by, store=store, as_json=as_json)


@app.command()
def signal(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[RUN] NAME", help="The run's id, unless --tag says which; the signal's name."),
    ],
    tag: Annotated[
        str | None, typer.Option(metavar="NAME=VALUE", help="For every run with this tag that is not over.")
    ] = None,
    payload_json: Annotated[str, typer.Option("--payload", metavar="JSON", help="What it brings.")] = "null",
    delivery_id: Annotated[
        str | None, typer.Option(help="The sender's id of it: each run records that once, however often it comes.")
    ] = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Tell a run that something came: whoever waits for it goes on, else it is kept until a step does.

    Example: agent-es signal --tag invoice=INV-1042 paid --payload '{"amount": "480.00"}' --delivery-id evt-77
    """
    _work(
        "commands",
        "signal",
        words=words,
        tag=tag,
        payload_json=payload_json,
        delivery_id=delivery_id,
        store=store,
        as_json=as_json,
    )


@app.command()
def cancel(
    run_id: RunId,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the journal.")] = "",
    compensate: Annotated[
        bool, typer.Option("--compensate", help="Undo its finished effects, of a run that is over too.")
    ] = False,
    by: By = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """End a run from outside, and the runs that it started; what is over stays as it is.

    Example: agent-es cancel refund-3300 --reason "the order was returned"
    """
    _work(
        "commands",
        "cancel",
        run_id=run_id,
        reason=reason,
        compensate=compensate,
        by=by,
        store=store,
        as_json=as_json,
    )


@app.command()
def envelope(
    run_id: RunId,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The envelope, as JSON.")],
    reason: Annotated[str, typer.Option(help="Why, for the journal.")] = "",
    by: By = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Give a run another envelope; it counts for what is decided from then on.

    Example: agent-es envelope refund-3300 more.json --reason "the order is large"
    """
    _work("envelopes", "envelope", run_id=run_id, file=file, by=by, reason=reason, store=store, as_json=as_json)


@app.command()
def audit(
    envelope: Annotated[Path, typer.Option(metavar="FILE", help="The envelope that they are judged by, as JSON.")],
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="All runs, where left out.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only runs that changed since then.")] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:CLASS", help="An agent, for the defaults of its tools; may be given again."),
    ] = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Say what an envelope would have refused, asked or stopped in runs that are there; nothing is called.

    Example: agent-es audit refund-3300 --envelope stricter.json
    """
    _work(
        "envelopes",
        "audited",
        run_ids=run_ids or [],
        envelope=envelope,
        since=since,
        agents=agent or [],
        store=store,
        as_json=as_json,
    )


@app.command()
def limit(
    tool: Annotated[str | None, typer.Argument(metavar="[TOOL]", help="All limits are shown without it.")] = None,
    per_second: Annotated[float | None, typer.Option(help="So many calls may start in a second.")] = None,
    at_once: Annotated[int | None, typer.Option(help="So many calls may go on at once.")] = None,
    tag: Annotated[str | None, typer.Option(help="Hold each value of this tag to it apart.")] = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Hold the calls of a tool to a rate, or to so many at once, over all workers; without numbers, to neither.

    Example: agent-es limit send_mail --per-second 5 --tag tenant
    """
    _work(
        "envelopes",
        "limit",
        tool=tool,
        per_second=per_second,
        at_once=at_once,
        tag=tag,
        store=store,
        as_json=as_json,
    )


@app.command()
def fuzz(
    scenario: Annotated[
        str, typer.Argument(metavar="MODULE:SCENARIO", help="The scenario to live through; demo is the built-in one.")
    ],
    crashes: Annotated[int, typer.Option(min=1, help="Try every schedule of up to so many crashes.")] = 1,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill processes with SIGKILL, not workers inside this one.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="Stop then; until then, go on with deeper schedules that are drawn."),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="At most so many runs per number of crashes; all by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="What is drawn is drawn with this.")] = 0,
    at: Annotated[
        str | None, typer.Option(metavar="N,N...", help="Only this schedule: the places where the workers die.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Kill an agent's workers at every place where one can die, and see whether the agent survives.

    Exit status 1 where an invariant broke.  Example: agent-es fuzz shop.scenarios:refund --crashes 2
    """
    _work(
        "fuzzing",
        "fuzz",
        scenario=scenario,
        crashes=crashes,
        with_kills=kill,
        seconds=seconds,
        sample=sample,
        seed=seed,
        at=at,
        as_json=as_json,
    )


@app.command()
def bench(
    only: Annotated[list[Workload] | None, typer.Option(help="Only this workload; may be given again.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: see that it works, not how fast.")] = False,
    folder: Annotated[
        Path,
        typer.Option(exists=True, file_okay=False, help="Where the databases are made: on the disk that is meant."),
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Measure how fast it is here: appends, loads and starts, each against its floor.

    Exit status 1 where a bar is missed.  Example: agent-es bench --only append --folder /var/lib/shop
    """
    _work("benching", "bench", only=only or [], quick=quick, folder=folder, as_json=as_json)


@app.command()
def rebuild(store: Store = DEFAULT_STORE, as_json: Json = False) -> None:
    """Make the runs table and the keys again from the events; leases are left alone.

    Example: agent-es rebuild --store runs.db
    """
    _work("commands", "rebuild", store=store, as_json=as_json)


@app.command()
def migrate(store: Store = DEFAULT_STORE, as_json: Json = False) -> None:
    """Bring the tables of an older version up to this one; events are never rewritten.

    Example: agent-es migrate --store runs.db
    """
    _work("commands", "migrate", store=store, as_json=as_json)


@app.command(name="export")
def export_runs(
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="RUN", help="These runs; all by default.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here; else standard output.")] = None,
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Write journals as JSON lines, and say how many and their digest.

    Example: agent-es export refund-3300 -o refund.jsonl
    """
    _work("commands", "export_runs", run_ids=run_ids or [], output=output, store=store, as_json=as_json)


@app.command(name="import")
def import_runs(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON lines, as export wrote them; - for standard input.")
    ],
    store: Store = DEFAULT_STORE,
    as_json: Json = False,
) -> None:
    """Store the runs that JSON lines tell of: all of them, or none and an error.

    Example: agent-es import refund.jsonl --store copy.db
    """
    _work("commands", "import_runs", file=file, store=store, as_json=as_json)


def main() -> None:
    """Run the command line; every error becomes one line and an exit status."""
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("interrupted; what was recorded is kept", err=True)
        sys.exit(Exit.INTERRUPTED)
    except Exception as error:
        if _OPTIONS["debug"]:
            raise
        message, status = import_module("agent_es.cli.output").explain(error)
        typer.echo(message, err=True)
        sys.exit(status)
