"""Signals and waits, wherever they meet and whoever dies there: a wait ends by its signal, and each is used once.

Run as a program, this file is a worker, or somebody who sends signals.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from agent_es import (
    AgentRun,
    Decision,
    Effect,
    Finish,
    Notice,
    RunState,
    RunStore,
    Status,
    ToolContext,
    ToolSpec,
    WaitFor,
    Worker,
    tool,
)
from agent_es.errors import RunMoved, RunNotFound, StoreBusy, StoreUnusable
from agent_es.testing import Life, Scenario, SteppedWorker, on_postgres, survives_every_signal
from agent_es.testing.audit import Audit, wrong_waits
from examples import waiting
from examples.every_effect import World

A_WEEK = timedelta(days=7)

SCENARIOS: Mapping[str, Scenario] = {
    name: value for name, value in vars(waiting).items() if isinstance(value, Scenario)
}

Move = Callable[[Scenario], Scenario]


@pytest.fixture(scope="module")
def moved(database: str, request: pytest.FixtureRequest) -> Move:
    """Returns a scenario with its runs on the database that the test is for."""
    if database == "sqlite":
        return lambda scenario: scenario
    url = on_postgres(request.getfixturevalue("server").url)
    return lambda scenario: replace(scenario, url=url, world=partial(World, url=url))


# The crash kit.


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_that_waits_survives_a_crash(name: str, moved: Move, crash_kit: Any) -> None:
    report = replace(crash_kit, size=12).survives(moved(SCENARIOS[name]))

    assert report.crashes
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)
    assert report.calm == "done"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.crash if name == "reminder" else pytest.mark.exhaustive)
        for name in SCENARIOS
    ],
)
def test_a_run_that_waits_survives_two_crashes_at_places_that_are_drawn(name: str, crash_kit: Any) -> None:
    report = replace(crash_kit, points="sample", size=300).survives(SCENARIOS[name], crashes=2)

    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_that_waits_survives_two_crashes_wherever_they_are(name: str, crash_kit: Any) -> None:
    report = crash_kit.survives(SCENARIOS[name], crashes=2)

    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


@pytest.mark.crash
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_that_waits_survives_processes_that_are_killed(name: str, crash_kit: Any) -> None:
    report = crash_kit.survives_kills(f"examples.waiting:{name}")

    assert report.crashes >= 14
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


@pytest.mark.crash
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_signal_may_come_at_any_place_also_where_the_clock_ends_the_wait(name: str) -> None:
    report = survives_every_signal(SCENARIOS[name])

    assert report.crashes > 50
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_so_it_may_on_a_server(moved: Move) -> None:
    report = survives_every_signal(moved(SCENARIOS["reminder"]))

    assert report.crashes > 50
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


# Five hundred interleavings: the time of the waits is far off, so nothing but a signal may end them.


class Desk:
    """A world: what was sent out and what was booked, each line once for each time; a booking has a key.

    Both take a moment, of so many seconds.
    """

    def __init__(self, folder: Path, moment: float = 0.0) -> None:
        self._moment = moment
        self._path = folder / "desk"
        self._path.touch()

    def note(self, line: str, *, once: bool = False) -> None:
        time.sleep(self._moment)
        if not (once and line in self.effects()):
            with self._path.open("a") as file:
                file.write(f"{line}\n")
        time.sleep(self._moment)

    def effects(self) -> list[str]:
        return self._path.read_text().splitlines()


class Clerk(AgentRun):
    """Mails, waits and books."""

    @tool(effect=Effect.AT_MOST_ONCE, on_doubt="skip")
    def mail(self, ctx: ToolContext[Desk]) -> None:
        ctx.deps.note(f"mail {ctx.run_id}")

    @tool(effect=Effect.IDEMPOTENT)
    def book(self, ctx: ToolContext[Desk]) -> None:
        ctx.deps.note(f"book {ctx.idempotency_key}", once=True)


class Asks:
    """Mails; waits for the orders of the run's input, all in one turn, beside a booking; tells what came."""

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:
        match run.turns:
            case 0:
                return Clerk.mail.call()
            case 1:
                return [*(WaitFor(f"paid:{order}", timeout=A_WEEK) for order in run.input), Clerk.book.call()]
            case _:
                return Finish([step.result for step in run.steps if step.tool == "wait_for"])


FATES = ("goes on", "dies", "is overtaken and thaws")
WAYS: Sequence[tuple[Sequence[str], Sequence[str]]] = (
    (["o1"], ["o1"]),
    (["o1"], ["o1", "o1"]),
    (["o1", "o2"], ["o1"]),
    (["o1", "o2"], ["o2"]),
    (["o1", "o2"], ["o1", "o2"]),
    (["o1", "o2"], ["o2", "o1"]),
    (["o1", "o2"], ["o2", "o1", "o2"]),
)
"""What a run waits for, and what comes at one place, in that order; the rest comes later."""


class Interleavings:
    """Runs in one store, each of which meets its signals at another place."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder, self._numbers = url, folder, count(1)
        self.sender = RunStore(url)
        self.hasty = RunStore(url, patience=0.0)
        """A store through which nobody waits for a worker that stands in a transaction."""
        self.came = 0
        """How often something came at the place where it was to come."""

    def scenario(self, orders: Sequence[str]) -> Scenario:
        """Return a run that has not begun, in a world of its own."""
        number = next(self._numbers)
        folder = self._folder / str(number)
        folder.mkdir()
        return Scenario(
            agent=Clerk,
            decider=Asks(),
            world=lambda _: Desk(folder),
            url=lambda _: self._url,
            run_id=f"run-{number}",
            input=list(orders),
        )

    def hire(self, scenario: Scenario, lives: list[Life] | None = None) -> SteppedWorker:
        """Bring in a worker, whose life ends where its run waits."""

        def live(life: Life) -> RunState:
            life.max_wait = 0.0
            if lives is not None:
                lives.append(life)
            return scenario.live(self._folder, life, Audit(alone=False))

        return SteppedWorker(live)

    def places(self, orders: Sequence[str], *, after: int) -> int:
        """Return how many places a worker reaches, after so many others ended where the run waits."""
        scenario, lives = self.scenario(orders), []
        for _ in range(after + 1):
            self.hire(scenario, lives).finish()
        return len(lives[-1].places)

    def send(self, store: RunStore, scenario: Scenario, orders: Sequence[str]) -> bool:
        """Send signals, each as one delivery however often; say whether all of them came."""
        try:
            for order in orders:
                scenario.send(store, [(f"paid:{order}", {"order": order}, f"evt-{order}")])
        except (StoreBusy, StoreUnusable, RunNotFound):  # a worker stands in a transaction, or before the start
            return False
        return True

    def play(self, orders: Sequence[str], coming: Sequence[str], after: int, place: int, fate: str) -> None:
        """Let signals come where a worker stands, and look at what the run comes to."""
        scenario = self.scenario(orders)
        for _ in range(after):
            self.hire(scenario).finish()
        worker = self.hire(scenario)
        worker.move(place)
        self.came += self.send(self.hasty, scenario, coming)
        if fate == "dies":
            worker.die()
        elif fate == "goes on":
            worker.finish()
            assert worker.error is None, worker.error
        else:
            other = self.hire(replace(scenario, patience=0.0))
            other.finish()
            assert other.error is None or isinstance(other.error, StoreBusy | StoreUnusable), other.error
            worker.finish()
            assert worker.error is None or isinstance(worker.error, RunMoved), worker.error
        if not self.send(self.sender, scenario, orders):  # nobody had started it yet
            self.hire(scenario).finish()
            assert self.send(self.sender, scenario, orders)
        last = self.hire(scenario)
        last.finish()
        assert last.error is None, last.error
        self.look_at(scenario, orders)

    def look_at(self, scenario: Scenario, orders: Sequence[str]) -> None:
        state, journal = self.sender.load(scenario.run_id), self.sender.journal(scenario.run_id)
        ended = [entry.data for entry in journal if entry.type == "wait_ended"]
        received = [entry.seq for entry in journal if entry.type == "signal_received"]
        effects = Counter(line.split()[0] for line in scenario.effects(scenario.world(self._folder)))
        assert state.status is Status.DONE
        assert [(came["reason"], came["payload"]) for came in state.answer] == [
            ("signal", {"order": order}) for order in orders
        ]
        assert sorted(data["received"] for data in ended) == received
        assert len(received) == len(orders)
        assert [*wrong_waits(journal)] == []
        assert (state.signals, effects["book"], effects["mail"] <= 1) == ((), 1, True)
        record = self.sender.record(scenario.run_id)
        assert (record.status, record.lease_owner) == (Status.DONE, None)


@pytest.mark.parametrize(
    ("drawn", "least"),
    [pytest.param(150, 75, marks=pytest.mark.crash), pytest.param(None, 500, marks=pytest.mark.exhaustive)],
)
def test_a_wait_ends_by_its_signal_wherever_that_comes_and_whoever_dies_there(
    url: str, tmp_path: Path, drawn: int | None, least: int
) -> None:
    tried = Interleavings(url, tmp_path)

    with tried.sender, tried.hasty:
        plays = [
            (orders, coming, after, place, fate)
            for (orders, coming), after in product(WAYS, range(2))
            for place, fate in product(range(1, tried.places(orders, after=after) + 1), FATES)
        ]
        if drawn is not None:
            plays = random.Random(3).sample(plays, drawn)  # noqa: S311  # which are tried, no secret
        for orders, coming, after, place, fate in plays:
            try:
                tried.play(orders, coming, after, place, fate)
            except AssertionError as error:
                error.add_note(f"{coming} came for {orders} at place {place} of worker {after + 1}, which {fate}")
                raise

    assert tried.came >= least


# Processes.

ROUNDS = 20
MOMENT = 0.02

Process = subprocess.Popen
Spawn = Callable[..., "Process[str]"]


@pytest.fixture
def spawn(url: str, tmp_path: Path) -> Iterator[Spawn]:
    """Starts this file as a program, and waits until it is ready."""
    with ExitStack() as started:

        def start(role: str) -> "Process[str]":
            process = started.enter_context(
                Process(
                    [sys.executable, __file__, role, url, str(tmp_path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},  # the examples are there
                )
            )
            started.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            return process

        yield start


def wait_for(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.crash
def test_workers_are_killed_while_another_process_signals(spawn: Spawn, url: str, tmp_path: Path) -> None:
    draw = random.Random(7)  # noqa: S311  # moments, not secrets
    sender, in_flight = spawn("send"), 0
    assert sender.stdin is not None

    with RunStore(url) as store:
        for number in range(ROUNDS):
            worker = spawn("work")
            store.start(Clerk, run_id=f"run-{number}", goal="collect", input=["o1", "o2"])
            sender.stdin.write(f"run-{number} {draw.uniform(0, 0.3)}\n")
            sender.stdin.flush()
            time.sleep(draw.uniform(0.02, 0.35))  # a moment that nobody chose
            worker.kill()
            worker.wait()
            in_flight += not store.load(f"run-{number}").is_over
        sender.stdin.close()
        assert sender.wait(30) == 0
        last = spawn("work")
        wait_for(lambda: len(store.runs(status="done")) == ROUNDS)
        last.terminate()
        assert last.wait(30) == 0

        effects = Desk(tmp_path).effects()
        for number in range(ROUNDS):
            run_id = f"run-{number}"
            journal, state = store.journal(run_id), store.load(run_id)
            assert state.answer is not None, state.failure
            assert [(came["reason"], came["payload"]) for came in state.answer] == [
                ("signal", "o1"),
                ("signal", "o2"),
            ]
            assert Counter(entry.type for entry in journal)["signal_received"] == 2
            assert [*wrong_waits(journal)] == []
            assert effects.count(f"book {run_id}:3:book") == 1
            assert effects.count(f"mail {run_id}") <= 1
        assert {record.lease_owner for record in store.runs(limit=None)} == {None}
    assert in_flight >= ROUNDS / 2


def work(url: str, folder: Path) -> None:
    with RunStore(url) as store:
        desk, tell = Desk(folder, MOMENT), say_when_ready
        options = {"lease": 1.0, "poll": 0.05, "park_after": 100, "on_event": tell}  # a slow machine parks nothing
        Worker(store, agents=[Clerk], decider=Asks(), deps=desk, **options).run()


def say_when_ready(notice: Notice) -> None:
    if notice.kind == "ready":  # it would end in good order from now on
        print("ready", flush=True)  # noqa: T201  # who started it waits for that


def send(url: str) -> None:
    """Send both signals to each run that is named, after so many seconds; and again, as one who heard no answer."""
    with RunStore(url) as store:
        print("ready", flush=True)  # noqa: T201  # who started it waits for that
        for line in sys.stdin:
            run_id, delay = line.split()
            time.sleep(float(delay))
            for order in ("o2", "o1", "o2", "o1"):
                store.signal(run_id, f"paid:{order}", order, delivery_id=f"evt-{order}")


if __name__ == "__main__":
    _, role, at, where = sys.argv
    work(at, Path(where)) if role == "work" else send(at)
