"""The deploy night: workers are killed again and again while runs are in flight, and what it came to by the morning.

Rule 1: which worker is killed, and when, is drawn; it holds runs by then, and another starts at once in its place.
Rule 2: a body calls the provider, then it sleeps: who is killed there has moved money and told nobody.
Rule 3: no worker is asked what it did: the ledger, the rows and the journals are read when all is over.
Rule 4: no run is given up for being killed often.  So nothing is parked this night, and nothing runs out of attempts.

An hour ends with a kill.  A run looks until its own hour, refunds, and looks on until the last one has ended.  So all
of them are in flight all night, and there are refunds in every hour, on a fast machine and on a slow one.
"""

import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from decimal import Decimal
from enum import StrEnum
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from signal import SIGKILL, SIGTERM
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    Effect,
    Finish,
    Notice,
    Retry,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    tool,
)
from agent_es.bench.measure import Show
from agent_es.bench.payloads import url_of
from agent_es.bench.report import showing
from agent_es.notices import OnEvent
from agent_es.owners import Owner
from agent_es.testing import PaymentProvider
from agent_es.worker import Worker
from benchmarks.databases import serving

AMOUNT = Decimal("180.00")
BODY = 0.1, 0.5
"""How many seconds a body takes: drawn between these for each run."""
HITS = 0.1
"""The least part of the kills that must have hit a body which had moved money."""
LEASE = 1.0
"""Seconds after which a dead worker's runs are taken up by another."""
NEVER = 1_000
"""So many attempts and claims no run comes to, however often it is killed."""
STUCK = 60.0
"""Seconds without a run's end after which the morning is called off."""
PRELOADED = ["agent_es.testing.provider", "agent_es.worker", "agent_es.bench.report"]
Attempt = tuple[str, int]
"""The refund of a run, and which attempt at it."""

TROUBLE = ("lease_lost", "parked", "skipped", "step_failed", "store_failed")


class Database(StrEnum):
    """What a night can be spent on."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


@dataclass(frozen=True)  # no slots: the options of the command have its defaults
class Night:
    """How long a night is, in seconds, and who is up."""

    seconds: float = 60.0
    runs: int = 200
    workers: int = 4
    seed: int = 0
    kill_every: float = 0.3
    """Seconds between two kills, on average."""

    @property
    def kills(self) -> int:
        """How many there are."""
        return max(1, int(self.seconds / self.kill_every))


@dataclass(frozen=True, slots=True)
class Morning:
    """What a night came to."""

    runs: int
    in_flight: int
    """Runs that were not over when the last worker was killed."""
    done: int
    refunds: int
    double: int
    """Orders that were paid more than once."""
    lost: int
    """Orders that were not paid."""
    kills: int
    hits: int
    """Kills that hit at least one body between its call of the provider and the journal."""
    struck: int
    """Bodies that were hit there."""
    calls: int
    """Calls that reached the provider."""
    torn: int
    """Runs whose journal is no chain, is not what their row says, or has not exactly one result of the refund."""
    fell: int
    """Workers that ended by themselves."""
    troubles: int
    """Things that workers told which are no part of a quiet night, a lease that was lost above all."""
    seconds: float
    """How long it took until every run was over."""

    @property
    def problems(self) -> list[str]:
        """What is not as it must be."""
        least = int(self.kills * HITS)
        checks = {
            f"{self.in_flight} of {self.runs} runs were in flight to the end": self.in_flight == self.runs,
            f"{self.done} of {self.runs} runs are done": self.done == self.runs,
            f"{self.refunds} refunds for {self.runs} runs": self.refunds == self.runs,
            f"{self.double} orders were paid more than once": self.double == 0,
            f"{self.lost} orders were not paid": self.lost == 0,
            f"{self.torn} runs have a journal that is torn": self.torn == 0,
            f"{self.fell} workers ended by themselves": self.fell == 0,
            f"{self.hits} kills hit a body in flight, and {least} should": self.hits >= max(1, least),
            f"{self.struck} bodies were hit, and {self.calls - self.refunds} calls were made again": (
                self.calls - self.refunds >= self.struck
            ),
        }
        return [text for text, is_well in checks.items() if not is_well]


class Clerk:
    """Looks until the run's hour has struck, refunds once, looks on until the morning, and says so."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:  # noqa: ARG002  # a clerk knows them
        """Return what the hour asks for."""
        hour = Path(run.input["clock"]).stat().st_size
        if hour >= run.input["refund_at"] and all(step.tool != "refund" for step in run.steps):
            return CallTool("refund", {"order_id": run.run_id, "amount": str(AMOUNT)})
        return CallTool("look") if hour < run.input["morning_at"] else Finish("refunded")


class NightRun(AgentRun):
    """Refunds an order once, whatever the night is like."""

    decider = Clerk()
    retry = Retry(max_attempts=NEVER)

    @tool(effect=Effect.READ)
    def look(self) -> str:
        """Look up the order."""
        time.sleep(self.state.input["body"])
        return "it is there"

    @tool(effect=Effect.IDEMPOTENT, key="{order_id}:refund:{amount:.2f}")
    def refund(self, ctx: ToolContext[PaymentProvider], order_id: str, amount: Decimal) -> dict[str, str]:
        """Refund the order; the answer takes its time."""
        receipt = ctx.deps.refund(order_id, amount, key=ctx.idempotency_key)
        time.sleep(self.state.input["body"])
        return receipt


# A worker's process.


def work(url: str, provider: Path, told: Path) -> None:
    """Move runs until SIGTERM; a process's whole life."""
    with RunStore(url) as store:
        Worker(
            store,
            agents=[NightRun],
            deps=PaymentProvider(provider),
            lease=LEASE,
            poll=0.05,
            park_after=NEVER,
            on_event=noting(told),
        ).run()


def noting(told: Path) -> OnEvent:
    """Return what writes down what is no part of a quiet night."""

    def note(notice: Notice) -> None:
        if notice.kind in TROUBLE:
            with told.open("a", encoding="utf-8") as file:
                file.write(f"{' '.join(str(notice).split())}\n")

    return note


class Crew:
    """The processes, each in its place; whoever was killed is replaced at once."""

    def __init__(self, size: int, url: str, provider: Path, told: Path) -> None:
        # Forked from a process that has imported what a worker needs and opened nothing: a new one is there at once.
        self._forking = multiprocessing.get_context("forkserver")
        self._forking.set_forkserver_preload(PRELOADED)
        self._args = url, provider, told
        self._at_work = [self._start() for _ in range(size)]
        self.fell = 0

    def number(self, place: int) -> int:
        """Return the number of the process in a place."""
        pid = self._at_work[place].pid
        assert pid is not None
        return pid

    def kill(self, place: int) -> int:
        """Kill the process in a place; return its number."""
        pid, killed = self.number(place), self._at_work[place]
        killed.kill()
        killed.join()
        self.fell += killed.exitcode != -SIGKILL
        self._at_work[place] = self._start()
        return pid

    def see(self) -> None:
        """Replace who ended by itself."""
        for place, process in enumerate(self._at_work):
            if not process.is_alive():
                self.fell += 1
                self._at_work[place] = self._start()

    def dismiss(self) -> None:
        """Let all end in good order."""
        for process in self._at_work:
            process.terminate()
        for process in self._at_work:
            process.join(STUCK)
            # One that has only just begun does not listen to signals yet.
            self.fell += process.exitcode not in (0, -SIGTERM)
            process.kill()

    def _start(self) -> BaseProcess:
        process = self._forking.Process(target=work, args=self._args, daemon=True)
        process.start()
        return process


# The night.


def spend(night: Night, url: str, folder: Path, name: str, show: Show) -> Morning:
    """Spend a night on a database; return what it came to."""
    draw = Random(night.seed)  # noqa: S311  # chance, and no secret
    provider, told, clock = PaymentProvider(folder / "provider.db"), folder / "told", folder / "clock"
    began = time.monotonic()
    struck: list[set[Attempt]] = []
    in_flight = 0
    with RunStore(url) as store:
        crew = Crew(night.workers, url, provider.path, told)
        try:
            begin(store, night, draw, clock)
            moments = sorted(draw.uniform(0.0, night.seconds) for _ in range(night.kills))
            shown = (moments[n] for n in show(range(night.kills), f"{name}: killing"))
            for pid in killed(crew, store, night, draw, shown):
                struck.append(struck_in(store, provider, pid))
                in_flight = night.runs - over(store)
                strike(clock)
            finish(store, crew, night, show, name)
        finally:
            crew.dismiss()
        paid = Counter(order_id for order_id, _ in provider.effects())
        hit = {attempt for attempt in set().union(*struck) if was_made_again(store, attempt)}
        return Morning(
            runs=night.runs,
            in_flight=in_flight,
            done=len(store.runs(status=Status.DONE, limit=None)),
            refunds=provider.refunds,
            double=sum(times > 1 for times in paid.values()),
            lost=sum(not paid[name_of(n)] for n in range(night.runs)),
            kills=len(struck),
            # Who takes a run up and dies before it starts anything has hit nothing new.
            hits=sum(bool(hit & found.difference(*struck[:n])) for n, found in enumerate(struck)),
            struck=len(hit),
            calls=sum(provider.keystore.values()),
            torn=sum(not is_whole(store, name_of(n)) for n in range(night.runs)),
            fell=crew.fell,
            troubles=len(troubles(told)),
            seconds=time.monotonic() - began,
        )


def begin(store: RunStore, night: Night, draw: Random, clock: Path) -> None:
    """Start every run, each with what was drawn for it."""
    clock.touch()
    for n in range(night.runs):
        drawn = {
            "body": draw.uniform(*BODY),
            "clock": str(clock),
            "refund_at": draw.randrange(night.kills),
            "morning_at": night.kills,
        }
        store.start(NightRun, run_id=name_of(n), goal="Refund it once", input=drawn)


def strike(clock: Path) -> None:
    """Let the next hour begin: the clock is a file with a byte for each."""
    with clock.open("ab") as file:
        file.write(b".")


def killed(crew: Crew, store: RunStore, night: Night, draw: Random, moments: Iterable[float]) -> Iterator[int]:
    """Kill at those moments, each time somebody who is at work; yield the number of each process that was killed."""
    began = time.monotonic()
    for moment in moments:
        time.sleep(max(0.0, began + moment - time.monotonic()))
        place, until = draw.randrange(night.workers), time.monotonic() + STUCK
        while crew.number(place) not in held_by(store) and time.monotonic() < until:
            crew.see()
            time.sleep(0.02)
        yield crew.kill(place)


def held_by(store: RunStore) -> dict[int, list[str]]:
    """Return the runs that each process holds."""
    held: dict[int, list[str]] = {}
    for record in store.runs(limit=None):
        if holder := Owner.parse(record.lease_owner or ""):
            held.setdefault(holder.pid, []).append(record.run_id)
    return held


def struck_in(store: RunStore, provider: PaymentProvider, pid: int) -> set[Attempt]:
    """Return the refunds that a dead process had begun and had not recorded, after they had moved money."""
    calls = provider.keystore
    return {
        (run_id, step.attempt)
        for run_id in held_by(store).get(pid, [])
        for step in store.load(run_id).steps[-1:]
        # As many calls as attempts: so this attempt has made its own.
        if step.tool == "refund" and step.status == "started" and calls.get(step.key or "", 0) >= step.attempt
    }


def was_made_again(store: RunStore, struck: Attempt) -> bool:
    """Say whether another attempt followed: on a server, what a dead process had sent may still be recorded."""
    run_id, attempt = struck
    return any(step.tool == "refund" and step.attempt > attempt for step in store.load(run_id).steps)


def finish(store: RunStore, crew: Crew, night: Night, show: Show, name: str) -> None:
    """Let the workers finish what is left, as long as they get anywhere."""
    for n in show(range(night.runs), f"{name}: finishing"):
        until = time.monotonic() + STUCK
        while over(store) <= n:
            if time.monotonic() > until:
                return
            crew.see()
            time.sleep(0.05)


def over(store: RunStore) -> int:
    """Return how many runs are over."""
    return sum(record.status in (Status.DONE, Status.FAILED, Status.CANCELLED) for record in store.runs(limit=None))


def is_whole(store: RunStore, run_id: str) -> bool:
    """Say whether a journal is a chain that its row knows to the end, with one result of the refund."""
    journal = store.journal(run_id)
    results = [entry for entry in journal if entry.type == "tool_result" and entry.data["tool"] == "refund"]
    is_chain = [entry.seq for entry in journal] == [*range(store.record(run_id).cursor)]
    return is_chain and len(results) == 1


def troubles(told: Path) -> list[str]:
    """Return what workers told."""
    return told.read_text(encoding="utf-8").splitlines() if told.exists() else []


def name_of(n: int) -> str:
    """Return the run of that number, which is the order that it refunds too."""
    return f"run-{n:03}"


# The command.


@contextmanager
def opened(database: Database, folder: Path) -> Iterator[str]:
    """Lend the URL of an empty database."""
    if database is Database.SQLITE:
        yield url_of(folder / "runs.db")
        return
    with serving(folder / "postgres") as url:
        yield url


def main(
    *,
    seconds: Annotated[float, typer.Option(help="How long workers are killed.", min=1)] = Night.seconds,
    runs: Annotated[int, typer.Option(help="How many runs are in flight.", min=1)] = Night.runs,
    workers: Annotated[int, typer.Option(help="How many processes move them.", min=1)] = Night.workers,
    seed: Annotated[int, typer.Option(help="What bodies, moments and kills are drawn with.")] = Night.seed,
    database: Annotated[list[Database] | None, typer.Option(help="On this one; may be given again.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout.")] = False,
    folder: Annotated[Path, typer.Option(help="Where the databases are made: on a real disk.", exists=True)] = Path(),
) -> None:
    """Kill workers all night; exit with 1 where a run is lost, or money moved twice."""
    night = Night(seconds, runs, workers, seed)
    mornings: dict[Database, Morning] = {}
    with showing() as show:
        for each in database or Database:
            with TemporaryDirectory(prefix=".night-", dir=folder) as own, opened(each, Path(own).resolve()) as url:
                mornings[each] = spend(night, url, Path(own).resolve(), each, show)
                for text in troubles(Path(own) / "told")[:5]:
                    print(f"{each}: {text}", file=sys.stderr)
    if as_json:
        told = {each: {**asdict(morning), "problems": morning.problems} for each, morning in mornings.items()}
        json.dump({"night": asdict(night), "mornings": told}, sys.stdout, indent=2)
        print()
    else:
        Console(width=None if sys.stdout.isatty() else 140).print(as_table(mornings))
    problems = [f"{each}: {text}" for each, morning in mornings.items() for text in morning.problems]
    for text in problems:
        print(text, file=sys.stderr)
    raise typer.Exit(1 if problems else 0)


def as_table(mornings: dict[Database, Morning]) -> Table:
    """Return a line for each database."""
    shown: dict[str, Callable[[Morning], object]] = {
        "done": lambda it: it.done,
        "refunds": lambda it: it.refunds,
        "double": lambda it: it.double,
        "lost": lambda it: it.lost,
        "kills": lambda it: it.kills,
        "that hit": lambda it: it.hits,
        "bodies hit": lambda it: it.struck,
        "calls": lambda it: it.calls,
        "troubles": lambda it: it.troubles,
        "s": lambda it: f"{it.seconds:.0f}",
    }
    table = Table("database", *shown, title="the deploy night of agent_es", title_justify="left")
    for each, morning in mornings.items():
        row = [str(value(morning)) for value in shown.values()]
        table.add_row(each, *row, style="red" if morning.problems else "green")
    return table


if __name__ == "__main__":
    typer.run(main)
