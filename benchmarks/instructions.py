"""What a replay, a step and a claim cost in instructions of Python's machine, which no busy machine changes.

Counted are the instructions that Python executes, its calls of functions in C, and the statements and commits that
SQLite sees.  They are the same in each run, so a tenth more is no noise: ``tests/bench/test_instructions.py`` fails.

Rule 1: what is counted is warm: the work was done before, in the same process and on the same store.
Rule 2: it runs in a process of its own, where nothing else traces: coverage and debuggers do it by the same means.
Rule 3: other threads only add: of some counts the smallest is reported.
Rule 4: what is recorded holds for one minor version of Python, whose instructions are its own.
"""

import gc
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Annotated, Any

import typer
from sqlalchemy import event
from sqlalchemy.pool import Pool

from agent_es import AgentRun, CallTool, Effect, Finish, Runner, RunStore, ScriptedDecider, Worker, tool
from agent_es.bench.journals import fill
from agent_es.bench.payloads import url_of

ROOT = Path(__file__).parents[1]
RECORDED = Path(__file__).with_name("instructions.json")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = ("eventsourcing", "eventsourcing-sqlalchemy", "sqlalchemy", "pydantic")
"""Whose instructions are counted too."""

AT_MOST = 1.1
"""How many times what was recorded is allowed."""
TIMES: Mapping[str, int] = {"replay": 3, "snapshot": 3, "step": 5, "claim": 20}
"""How often each is counted: a claim wakes and waits, and that differs most."""
TOP = 20
"""So many functions are recorded for each workload: those that execute most."""
EVENTS = 1_000
STEPS_BEFORE = 2
APART = frozenset({"agent_es bell", "agent_es leases"})
"""Threads that look and wait beside the work, as often as the clock says."""

Act = Callable[[], object]
Entry = dict[str, Any]
"""The counts of each workload, and what they were made with: JSON."""


class CountedRun(AgentRun):
    """Looks three times, and says so."""

    decider = ScriptedDecider([*[CallTool("look", {"query": "refund policy window"})] * 3, Finish("seen")])

    @tool(effect=Effect.READ)
    def look(self, query: str) -> str:
        """Return something at once."""
        return f"found for {query}"


# What is counted.


def replay(folder: Path) -> Act:
    """Return the load of a run of a thousand events, from the first one."""
    store = RunStore(url_of(folder / "replay.db"), snapshots=False)
    fill(store, "run-replay", EVENTS, lambda rounds, _: rounds)
    store.load("run-replay")
    return lambda: store.load("run-replay")


def snapshot(folder: Path) -> Act:
    """Return the load of a run of a thousand events from a snapshot of all of them."""
    store = RunStore(url_of(folder / "snapshot.db"))
    fill(store, "run-snapshot", EVENTS, lambda rounds, _: rounds)
    store.snapshot("run-snapshot")
    store.load("run-snapshot")
    return lambda: store.load("run-snapshot")


def step(folder: Path) -> Act:
    """Return the third step of a run: its lease, a decision, a result, and the lease given back."""
    store = RunStore(url_of(folder / "step.db"))
    store.start(CountedRun, run_id="run-step", goal="look")
    runner = Runner(store)
    for _ in range(STEPS_BEFORE):
        runner.step("run-step")
    return lambda: runner.step("run-step")


def claim(folder: Path) -> Act:
    """Return the third step of a run by a worker that begins, claims, moves and ends."""
    store = RunStore(url_of(folder / "claim.db"))
    store.start(CountedRun, run_id="run-claim", goal="look")
    worker = Worker(store, agents=[CountedRun], concurrency=1)

    def act() -> None:
        worker.run(once=True)
        for thread in threading.enumerate():
            if thread.name.startswith("agent_es step"):
                thread.join()

    for _ in range(STEPS_BEFORE):
        act()
    return act


WORKLOADS: Mapping[str, Callable[[Path], Act]] = {
    "replay": replay,
    "snapshot": snapshot,
    "step": step,
    "claim": claim,
}


# How it is counted.


@dataclass(frozen=True, slots=True)
class Counted:
    """What one piece of work executed."""

    functions: Mapping[CodeType, int]
    """The instructions of each."""
    calls: int
    statements: tuple[str, ...]

    @property
    def instructions(self) -> int:
        """All of them."""
        return sum(self.functions.values())

    def as_object(self) -> Entry:
        """Return it as it is recorded."""
        named: Counter[str] = Counter()
        for code, count in self.functions.items():
            named[name_of(code)] += count
        return {
            "counts": {
                "instructions": self.instructions,
                "calls of C": self.calls,
                "statements": len(self.statements),
                "commits": self.statements.count("COMMIT"),
            },
            "functions": dict(sorted(named.items(), key=lambda item: (-item[1], item[0]))[:TOP]),
        }


class Told(list[str]):
    """What SQLite is told."""

    def hear(self, statement: str) -> None:
        """Keep a statement."""
        if not is_apart():
            self.append(statement)


def counted(act: Act, told: Told) -> Counted:
    """Return what some work executes in all threads, and what SQLite is told meanwhile."""
    functions: Counter[CodeType] = Counter()
    calls: Counter[str] = Counter()
    begin, end = monitored(functions, calls) if hasattr(sys, "monitoring") else traced(functions, calls)
    gc.collect()
    gc.disable()
    told.clear()
    begin()
    try:
        act()
    finally:
        end()
        gc.enable()
    kept = dict(functions)  # a thread of the worker's may just be ending
    for own in (counted, end):
        kept.pop(own.__code__, None)
    return Counted(kept, calls.total(), tuple(text for text in told if not text.startswith("--")))


def is_apart() -> bool:
    """Say whether this thread only looks and waits."""
    # ``current_thread`` takes a lock where the thread is not known yet, and who is counted may hold it.
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # noqa: SLF001
    return thread is not None and thread.name in APART


OURS = frozenset({Told.hear.__code__, is_apart.__code__})
"""What counts is not counted."""


def traced(functions: Counter[CodeType], calls: Counter[str]) -> tuple[FunctionType, FunctionType]:
    """Return what begins to count and what ends it, by the means of Python 3.11."""

    def on_opcode(frame: FrameType, what: str, _: object) -> Any:
        if what == "opcode":
            functions[frame.f_code] += 1
        return on_opcode

    def on_frame(frame: FrameType, _: str, __: object) -> Any:
        if frame.f_code in OURS or is_apart():
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return on_opcode

    def on_call(frame: FrameType, what: str, _: object) -> None:
        if what == "c_call" and frame.f_code not in OURS and not is_apart():
            calls["c"] += 1

    def begin() -> None:
        threading.setprofile(on_call)
        threading.settrace(on_frame)
        sys.setprofile(on_call)
        sys.settrace(on_frame)

    def end() -> None:
        sys.settrace(None)
        sys.setprofile(None)
        threading.settrace(None)  # type: ignore[arg-type]  # as its documentation says
        threading.setprofile(None)

    return begin, end


def monitored(functions: Counter[CodeType], calls: Counter[str]) -> tuple[FunctionType, FunctionType]:
    """Return what begins to count and what ends it, by the means of Python 3.12 and later."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]  # Python 3.11 has none
    number, events = monitoring.PROFILER_ID, monitoring.events

    def on_instruction(code: CodeType, _: int) -> None:
        if code not in OURS and not is_apart():
            functions[code] += 1

    def on_call(code: CodeType, _: int, called: object, __: object) -> None:
        if code not in OURS and not isinstance(called, (FunctionType, MethodType)) and not is_apart():
            calls["c"] += 1

    def begin() -> None:
        monitoring.use_tool_id(number, "benchmarks.instructions")
        monitoring.register_callback(number, events.INSTRUCTION, on_instruction)
        monitoring.register_callback(number, events.CALL, on_call)
        monitoring.set_events(number, events.INSTRUCTION | events.CALL)

    def end() -> None:
        monitoring.set_events(number, 0)
        monitoring.free_tool_id(number)

    return begin, end


def name_of(code: CodeType) -> str:
    """Return a function's file, as its package calls it, and its name."""
    parts = Path(code.co_filename).parts
    at = max((n for n, part in enumerate(parts) if part in {"src", "site-packages", f"python{PYTHON}"}), default=-2)
    return f"{'/'.join(parts[at + 1 :])} {code.co_qualname}"


def tell() -> None:
    """Count here and write what was found to stdout as JSON; raise where somebody else traces this process."""
    if sys.gettrace() or sys.getprofile():
        raise RuntimeError(f"{sys.gettrace() or sys.getprofile()} traces this process, and would be counted")
    told = Told()
    event.listen(Pool, "connect", lambda connection, _: connection.set_trace_callback(told.hear))
    found: Entry = {}
    for name, prepare in WORKLOADS.items():
        counts = []
        for _ in range(TIMES[name]):
            with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a bell may listen for a moment more
                counts.append(counted(prepare(Path(folder)), told))
        found[name] = min(counts, key=lambda one: one.instructions).as_object()
    json.dump(found, sys.stdout)


def count(first: str = "") -> Entry:
    """Return what is counted in a process of its own, which executes ``first`` before anything else."""
    code = f"{first}\nfrom benchmarks.instructions import tell\ntell()"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "AGENT_ES"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONHASHSEED": "0", **kept},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: Entry = json.loads(done.stdout)
    return {"versions": {package: version(package) for package in PACKAGES}, **found}


# What it is held against.


def recorded() -> Entry | None:
    """Return what was recorded for this version of Python, if anything was."""
    entries: dict[str, Entry] = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    return entries.get(PYTHON)


def record(entry: Entry) -> None:
    """Record the counts of this version of Python, in the place of older ones."""
    entries: dict[str, Entry] = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    text = json.dumps({**entries, PYTHON: entry}, indent=2, sort_keys=True)
    RECORDED.write_text(f"{text}\n", encoding="utf-8")


def grown(now: Entry, before: Entry) -> list[str]:
    """Return what costs more than is allowed, a line for each count, and in which functions."""
    lines = []
    for name in WORKLOADS:
        counts, old = now[name]["counts"], before[name]["counts"]
        for what, value in counts.items():
            if value > old[what] * AT_MOST:
                line = f"{name}: {value:,} {what}, recorded {old[what]:,} ({value / old[what] - 1:+.0%})"
                lines.append(f"{line}; most in {where(now[name]['functions'], before[name]['functions'])}")
    if lines and now["versions"] != before["versions"]:
        lines.append(f"recorded with {before['versions']}, counted with {now['versions']}")
    return lines


def where(now: Mapping[str, int], before: Mapping[str, int]) -> str:
    """Return the functions that grew most, of those that execute most."""
    more = sorted((before.get(name, 0) - count, name) for name, count in now.items())
    return ", ".join(f"{name} ({-less:+,})" for less, name in more[:3] if less < 0) or "many functions"


def main(
    *,
    to_record: Annotated[
        bool, typer.Option("--record", help="Record the counts for this version of Python.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write the counts as one JSON object to stdout.")] = False,
) -> None:
    """Count instructions, calls, statements and commits; exit with 1 where one grew by more than a tenth."""
    now = count()
    if to_record:
        record(now)
    before = recorded()
    if as_json:
        print(json.dumps({PYTHON: now}))
    else:
        for name in WORKLOADS:
            for what, value in now[name]["counts"].items():
                known = f"{before[name]['counts'][what]:>9,}" if before else "  nothing"
                print(f"{name:8} {value:>9,} {what:13} recorded: {known}")
    if before is None:
        print(f"nothing is recorded for Python {PYTHON}: python -m benchmarks.instructions --record", file=sys.stderr)
        return
    lines = grown(now, before)
    sys.stderr.writelines(f"grown: {line}\n" for line in lines)
    raise typer.Exit(1 if lines else 0)


if __name__ == "__main__":
    typer.run(main)
