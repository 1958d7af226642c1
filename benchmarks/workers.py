"""Runs moved to their end by one worker process and by two, on each database, and the least that it takes.

A run is three calls of a tool that takes no time, then the answer: four claims, seven appends, four releases, each a
commit of its own.  The floor makes as many with ``sqlite3``, of the same events, one after the other, without a fold.
Runs are recorded before a round, off the clock; a round lasts from the first worker's start to the last one's end.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import monotonic, perf_counter

from agent_es import AgentRun, CallTool, Effect, Finish, RunStore, ScriptedDecider, Status, tool
from agent_es.bench.append import INSERT_EVENT, connect
from agent_es.bench.journals import url_of
from agent_es.bench.measure import Bar, Figure, Report, Samples, Show, Side
from agent_es.events import stream_id
from agent_es.worker import Worker
from benchmarks.postgres import STUCK, Span, serving

STEPS = 3
ONE, TWO = "1 worker", "2 workers"
CREWS: Mapping[str, int] = {ONE: 1, TWO: 2}
FLOOR = "sqlite3, as many commits"

CLAIM = (
    "UPDATE agent_es_runs SET lease_owner = ?, lease_token = lease_token + 1, lease_until = ?, claims = claims + 1 "
    "WHERE run_id = ?"
)
UPDATE_ROW = "UPDATE agent_es_runs SET status = ?, cursor = ?, updated_at = ?, claims = 0 WHERE run_id = ?"
RELEASE = "UPDATE agent_es_runs SET lease_owner = NULL, lease_until = 0, claims = 0 WHERE run_id = ?"


class LookRun(AgentRun):
    """Looks three times, and says so."""

    decider = ScriptedDecider([*[CallTool("look", {"query": "refund policy window"})] * STEPS, Finish("seen")])

    @tool(effect=Effect.READ)
    def look(self, query: str) -> str:
        """Return something at once."""
        return f"found for {query}"


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return how many runs a second workers move, side by side."""
    rounds, runs = (2, 25) if quick else (5, 200)
    on_sqlite = compare(
        url_of(folder / "workers.db"),
        runs,
        show(range(rounds), "workers, sqlite"),
        {FLOOR: floor(folder / "floor.db", runs)},
    )
    with serving(folder / "postgres") as url:
        on_postgres = compare(url, runs, show(range(rounds), "workers, postgres"), {})
    figures: list[Figure] = []
    for database, samples in {"sqlite": on_sqlite, "postgres": on_postgres}.items():
        for side in CREWS:
            per_second = samples.per_second(side)
            figures += [
                Figure(f"{database}, {side}", per_second, "runs/s"),
                Figure(f"{database}, {side}", per_second * STEPS, "steps/s"),
            ]
        figures.append(Figure(f"{database}, {TWO} / {ONE}, worst round", 1 / samples.spread(TWO, ONE)[1], "x"))
    figures += [
        Figure(f"sqlite, {FLOOR}", on_sqlite.per_second(FLOOR), "runs/s"),
        Figure(f"sqlite, {ONE} / {FLOOR}", on_sqlite.ratio(FLOOR, ONE), "x"),
        Figure(f"sqlite, {ONE} / {FLOOR}, worst round", on_sqlite.spread(FLOOR, ONE)[0], "x"),
    ]
    return Report(
        tuple(figures),
        Bar(f"sqlite, {TWO} / {ONE}", on_sqlite.ratio(ONE, TWO), "at least", 0.7),
        (Bar(f"postgres, {TWO} / {ONE}", on_postgres.ratio(ONE, TWO), "at least", 1.0),),
    )


def compare(url: str, runs: int, rounds: Iterable[int], others: Mapping[str, Side]) -> Samples:
    """Return the seconds that a run took, by one worker, by two, and by whatever else took turns with them."""
    spawning = multiprocessing.get_context("spawn")
    barriers = {crew: spawning.Barrier(crew + 1) for crew in CREWS.values()}
    spans: Queue[Span] = spawning.Queue()
    orders: list[Queue[int]] = [spawning.Queue() for _ in range(max(CREWS.values()))]
    with RunStore(url) as store:
        workers = [spawning.Process(target=work, args=(url, order, barriers, spans), daemon=True) for order in orders]
        for process in workers:
            process.start()

        def play(side: str) -> float:
            if side in others:
                return others[side]()
            crew, first = CREWS[side], store.count()
            for n in range(first, first + runs):
                store.start(LookRun, run_id=f"run-{n}", goal="look")
            for order in orders[:crew]:
                order.put(crew)
            barriers[crew].wait(STUCK)
            played = [spans.get(timeout=STUCK) for _ in range(crew)]
            assert len(store.runs(status=Status.DONE, limit=None)) == first + runs
            return (max(it.ended for it in played) - min(it.began for it in played)) / runs

        samples = take_turns(play, [*CREWS, *others], rounds)
    for order, process in zip(orders, workers, strict=True):
        order.put(0)
        process.join(STUCK)
        assert process.exitcode == 0
    return samples


def take_turns(play: Callable[[str], float], sides: list[str], rounds: Iterable[int]) -> Samples:
    """Let the sides take turns, every other round backwards."""
    samples = Samples(sides)
    for side in sides:
        play(side)  # to warm up
    for n in rounds:
        for side in reversed(sides) if n % 2 else sides:
            samples.add(side, play(side))
    return samples


def work(url: str, orders: "Queue[int]", barriers: Mapping[int, Barrier], spans: "Queue[Span]") -> None:
    """Move what is due whenever it is ordered, in a crew of so many; a process's whole life."""
    with RunStore(url) as store:
        while crew := orders.get(timeout=STUCK):
            worker = Worker(store, agents=[LookRun])
            barriers[crew].wait(STUCK)
            began = monotonic()
            worker.run(until_idle=True)
            spans.put(Span(began, monotonic()))


def floor(path: Path, runs: int) -> Side:
    """Return the side that speaks to sqlite3 as its documentation does, in the tables of the library."""
    store, database = RunStore(url_of(path)), connect(path)
    store.start(LookRun, run_id="model", goal="look")
    Worker(store, agents=[LookRun]).run(until_idle=True)
    _, *events = store.recorder.rows(stream_id("model"))  # its start is off the clock
    turns = [events[n : n + 2] for n in range(0, len(events), 2)]

    def side() -> float:
        first = store.count()
        names = [f"run-{n}" for n in range(first, first + runs)]
        for name in names:
            store.start(LookRun, run_id=name, goal="look")
        began = perf_counter()
        for n in range(STEPS + 1):
            for name in names:
                commit(CLAIM, ("floor", 30.0, name))
                for event in turns[n]:
                    append(name, *event)
                commit(RELEASE, (name,))
        return (perf_counter() - began) / runs

    def append(name: str, version: int, topic: str, state: bytes) -> None:
        database.execute(INSERT_EVENT, (stream_id(name).bytes, version, topic, state))
        commit(UPDATE_ROW, ("running", version, 0.0, name))

    def commit(statement: str, values: tuple[object, ...]) -> None:
        database.execute(statement, values)
        database.commit()

    return side
