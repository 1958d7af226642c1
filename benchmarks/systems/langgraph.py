"""LangGraph: a cycle of two nodes, ``decide`` and ``look``, a checkpoint after each before the next begins.

Its state keeps what was decided and found, as an agent's does: a list that grows, in the ordinary channel, or in its
``DeltaChannel`` (the variant ``delta``), which is in beta and stores what was added.
"""

import operator
import sqlite3
from contextlib import closing, suppress
from time import monotonic
from typing import Annotated, Any, TypedDict

import psycopg
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row

from benchmarks.databases import dsn_of, is_sqlite, path_of
from benchmarks.systems.process import RUN_ID, STEPS, WARM, WARM_STEPS, Job, Span, Work, answer, args_of, result_of

NOTE = (
    "Commits about four times a step (a checkpoint for each node, and its writes), durability='sync'; nothing finds "
    "or holds a run.  SQLite is in WAL mode by its own doing, synchronous at its default, FULL.  Its ordinary "
    "channel stores the whole list again each time, so what is resumed was recorded with durability='exit'.  The "
    "delta channel, which is in beta, stores what was added."
)
DELTA = "delta"
EVERY = 200
"""After so many additions the delta channel stores the whole list."""


class Died(Exception):
    """As a process does that is killed."""


def add(state: list[Any] | None, writes: list[list[Any]]) -> list[Any]:
    """Return a list with what was written."""
    found = [*(state or [])]
    for write in writes:
        found.extend(write)
    return found


class Whole(TypedDict):
    """The state in ordinary channels."""

    idx: int
    seen: Annotated[list[Any], operator.add]


class Delta(TypedDict):
    """The state where the list is in a delta channel."""

    idx: int
    seen: Annotated[list[Any], DeltaChannel(add, snapshot_frequency=EVERY)]


class Goal:
    """How far graphs go in this process, and whether it dies there."""

    count = 0
    dies = False


def decide(state: Any) -> dict[str, Any]:
    """Return the decision of a step."""
    if Goal.dies and state["idx"] == Goal.count:
        raise Died
    return {"seen": [{"tool": "search_policy", "args": args_of(state["idx"])}]}


def look(state: Any) -> dict[str, Any]:
    """Return the result of a step."""
    return {"seen": [result_of(state["idx"])], "idx": state["idx"] + 1}


def next_of(state: Any) -> str:
    """Return where to go from a result."""
    return "decide" if state["idx"] < Goal.count or Goal.dies else END


def opened(job: Job) -> Any:
    """Return the graph on the store."""
    if is_sqlite(job.url):
        saver: Any = SqliteSaver(sqlite3.connect(path_of(job.url), check_same_thread=False, timeout=30))
    else:
        saver = PostgresSaver(
            psycopg.connect(dsn_of(job.url), autocommit=True, prepare_threshold=0, row_factory=dict_row)
        )
    saver.setup()
    graph: Any = StateGraph(Delta if job.variant == DELTA else Whole)
    graph.add_node("decide", decide)
    graph.add_node("look", look)
    graph.add_edge(START, "decide")
    graph.add_edge("decide", "look")
    graph.add_conditional_edges("look", next_of, ["decide", END])
    return graph.compile(checkpointer=saver)


def invoke(graph: Any, thread_id: str, given: dict[str, Any] | None, durability: str = "sync") -> None:
    """Run a thread to its end, from its start or from where it is."""
    config = {"configurable": {"thread_id": thread_id}, "recursion_limit": 10**7}
    done = graph.invoke(given, config, durability=durability)
    assert (done["idx"], len(done["seen"])) == (Goal.count, 2 * Goal.count)


def run(graph: Any, thread_id: str) -> None:
    """Run a thread from its start to its end."""
    invoke(graph, thread_id, {"idx": 0, "seen": []})


def steps(job: Job) -> Span:
    """Run a thread to its end."""
    graph = opened(job)
    Goal.count = WARM_STEPS
    run(graph, WARM)
    if not job.count:  # this graph takes one step at least
        return Span(0.0, 0.0)
    Goal.count = job.count
    began = monotonic()
    run(graph, RUN_ID)
    return Span(began, monotonic())


def fill(job: Job) -> Span:
    """Run a thread until it dies."""
    graph = opened(job)
    Goal.count, Goal.dies = job.count, True
    began = monotonic()
    with suppress(Died):
        invoke(graph, RUN_ID, {"idx": 0, "seen": []}, "async" if job.variant == DELTA else "exit")
    with closing(graph.checkpointer.conn):
        return Span(began, monotonic())


def resume(job: Job) -> Span:
    """Go on with a thread until its next step is recorded."""
    Goal.count = job.count + 1
    began = monotonic()
    graph = opened(job)
    invoke(graph, RUN_ID, None)
    return Span(began, monotonic())


def runs(job: Job) -> Span:
    """Run this process's part of the threads."""
    graph = opened(job)
    Goal.count = WARM_STEPS
    run(graph, f"{WARM}-{job.part}")
    Goal.count = STEPS
    job.await_start()
    began = monotonic()
    for n in job.mine():
        run(graph, f"run-{n}")
    return Span(began, monotonic())


WORKS: dict[str, Work] = {"steps": steps, "fill": fill, "resume": resume, "runs": runs}

if __name__ == "__main__":
    answer(NOTE, WORKS)
