"""The process in which the workers of the crash lab live and die: ``python -m agent_es.inspector.lives module:name``.

It has imported a scenario and opened nothing.  For each order, one line of JSON on standard input, it forks a worker
and answers with one line on standard output: how the worker ended, and what it said.

Rule 1: a worker that is to die gets a real SIGKILL, and what it started dies with it.
Rule 2: where the orders end, so does everything: the worker that lives just then, this process, and its folder.
Rule 3: looking changes nothing: it is done in a process of its own, on a copy.
"""

import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import getattr_static
from pathlib import Path
from typing import Any, Never
from uuid import uuid4

from sqlalchemy import select as rows_of

from agent_es.crashpoints import BEFORE_COMMIT
from agent_es.errors import AgentError, BadScenario, RunNotFound
from agent_es.journal import JournalEntry
from agent_es.keys import DEFAULT
from agent_es.notices import Notice
from agent_es.run import AgentRun
from agent_es.state import RunState
from agent_es.step import Append, Decide, NextDone, Probe, Start, Transact
from agent_es.store import RunStore
from agent_es.store.tables import keys
from agent_es.testing.audit import Audit
from agent_es.testing.crash import AFTER, BEFORE, Life, Place, sigkill
from agent_es.testing.folders import in_its_folder
from agent_es.testing.journey import stopped, where
from agent_es.testing.scenario import Scenario, load_scenario, scratch
from agent_es.tools import Tool
from agent_es.values import bounded, canonical

ALIVE, LEFT, NAIVE, ASIDE = "alive", "left", "naive", "aside"
"""The folders: of the run, of what the last dead worker left, of the naive restart, of what is only tried."""
MAX_SAID = 1_000
"""Characters of one line that a worker says."""
MAX_BRIEF = 120
"""Characters of one thing that is said of an event."""
PREFIX = "agent-es-lab-"
"""How the name of the folder begins that all of them are in."""
PIECE = 1 << 16
MOMENT = 0.05
"""Seconds after which it is seen at the latest that a worker has ended."""

Tell = Callable[[str, Any], None]


def serve(name: str) -> None:
    """Obey orders until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an agent prints is no answer of ours

    def answer(**told: Any) -> None:
        print(json.dumps(told), file=answers, flush=True)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        scenario = load_scenario(name)
        if scenario.url is not in_its_folder:
            raise BadScenario(f"{name} keeps its runs elsewhere (url=...): the lab copies what lies in the folder")
        if not hasattr(os, "fork"):
            raise BadScenario("the lab needs a system that can fork")
    except AgentError as error:
        answer(failed=str(error))
        return
    answer(about=_about(scenario))
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=scratch(), ignore_cleanup_errors=True) as made:
        orders = _Orders(0)
        for act, *values in orders:
            if act == "copy":
                answer(**_copied(Path(made), *values))
            else:
                answer(**_Worker(scenario, Path(made), act, values).lived(orders))


def _about(scenario: Scenario) -> dict[str, Any]:
    told = (scenario.agent.__doc__ or "").strip().partition("\n")[0]
    return {"agent": scenario.agent.agent_name, "goal": scenario.goal, "run_id": scenario.run_id, "told": told}


def _copied(made: Path, source: str, target: str) -> dict[str, Any]:
    """Let one folder be as another is."""
    shutil.rmtree(made / target, ignore_errors=True)
    if (made / source).exists():
        shutil.copytree(made / source, made / target)
    return {}


class _Orders:
    """The lines that come, and whether there will be any more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._left = b""

    def __iter__(self) -> Iterator[list[Any]]:
        while True:
            line, end, rest = self._left.partition(b"\n")
            if end:
                self._left = rest
                yield json.loads(line)
            elif not self.read():
                return

    def read(self) -> bool:
        """Read on; say whether there was more."""
        piece = os.read(self.fd, PIECE)
        self._left += piece
        return bool(piece)


class _Worker:
    """A forked process that does one thing, and tells of it by a pipe."""

    def __init__(self, scenario: Scenario, made: Path, act: str, values: list[Any]) -> None:
        self._within, folder, *more = values
        (made / folder).mkdir(exist_ok=True)
        self._pipe, write = os.pipe()
        self._said = b""
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            os.close(self._pipe)
            _do(scenario, act, made / folder, more, write)
        with suppress(OSError):  # it has done so itself, or is dead
            os.setpgid(self.pid, self.pid)
        os.close(write)
        os.set_blocking(self._pipe, False)

    def lived(self, orders: _Orders) -> dict[str, Any]:
        """Listen until the worker has ended; return its wait status, and what it said.

        It ends by SIGKILL where its time is over, and where the orders end.
        """
        until, is_late = time.monotonic() + self._within, False
        try:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            while not (ended or is_late):
                ready, _, _ = select.select([self._pipe, orders.fd], [], [], MOMENT)
                if orders.fd in ready and not orders.read():
                    break
                if self._pipe in ready and not self._listen():
                    time.sleep(MOMENT / 10)  # it says no more, and ends at once
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                is_late = not ended and time.monotonic() > until
        finally:
            with suppress(OSError):  # nobody is left
                os.killpg(self.pid, signal.SIGKILL)  # what it started, too
        if not ended:
            _, status = os.waitpid(self.pid, 0)
        while self._listen():
            pass
        os.close(self._pipe)
        lines = [json.loads(line) for line in self._said.split(b"\n")[:-1]]
        return {"pid": self.pid, "status": status, "late": is_late, "lines": lines}

    def _listen(self) -> bool:
        """Take in what was said; say whether there was anything."""
        try:
            piece = os.read(self._pipe, PIECE)
        except BlockingIOError:
            return False
        self._said += piece
        return bool(piece)


def _do(scenario: Scenario, act: str, folder: Path, values: list[Any], write: int) -> Never:
    """Be the worker."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with os.fdopen(write, "w") as pipe:

        def tell(kind: str, value: Any) -> None:
            print(json.dumps([kind, value]), file=pipe, flush=True)

        try:
            ACTS[act](scenario, folder, tell, *values)
        except BaseException as error:  # nothing may go on in the parent's name
            tell("failed", stopped(error) if isinstance(error, Exception) else f"a worker ended by {error!r:.200}")
        os._exit(0)


# What a worker does.


def _live(scenario: Scenario, folder: Path, tell: Tell, at: int | None) -> None:
    """Live the life of one worker on what lies in the folder, to a place or to its end."""

    def die(place: Place) -> Never:
        tell("place", str(place))
        sigkill(place)

    life, audit = Life(at, die=die), Audit(same=scenario.same)
    _say_where(scenario.live(folder, life, audit, partial(_say, DURABLE, tell)), tell)


def _count(scenario: Scenario, folder: Path, tell: Tell) -> None:
    """Live a life that nobody ends; tell where it could have ended."""
    life = Life()
    scenario.live(folder, life, Audit(same=scenario.same))
    tell("places", [[place.n, place.what, place.of, place.kind, _meaning(place)] for place in life.places])


def _live_naively(scenario: Scenario, folder: Path, tell: Tell) -> None:
    """Be a program without a journal, on what the dead worker left: it starts from the top, and its keys are new.

    The same agent and decider are driven to their end, as a run of another name that knows nothing of the first;
    no key is made from the business, but each from that name, as a program does that draws its keys.
    """
    forgetful = replace(
        scenario,
        agent=_with_new_keys(scenario.agent),
        tools=[tool.keyed(DEFAULT) for tool in scenario.tools],
        run_id=f"naive-{uuid4().hex[:8]}",
    )
    audit = Audit(alone=False, same=scenario.same)
    _say_where(forgetful.live(folder, Life(), audit, partial(_say, NAIVELY, tell)), tell)


def _with_new_keys(agent: type[AgentRun]) -> type[AgentRun]:
    """Return the agent, each of whose calls has a key of its own."""
    found = {name: getattr_static(agent, name) for name in dir(agent)}
    tools = {name: tool.keyed(DEFAULT) for name, tool in found.items() if isinstance(tool, Tool)}
    return type(agent.__name__, (agent,), {**tools, "agent_name": agent.agent_name})


def _look(scenario: Scenario, folder: Path, tell: Tell) -> None:
    """Tell what lies in the folder: the journal, the keys of the store, and what the world says of itself."""
    with scenario.open_store(folder, Audit()) as store:
        tell("seen", {**_run(store, scenario.run_id), **_seen_of(scenario, folder)})


def _run(store: RunStore, run_id: str) -> dict[str, Any]:
    with store.recorder.transaction(commit=False) as session:
        claimed = session.execute(
            rows_of(keys.c.key, keys.c.tool, keys.c.idx).where(keys.c.run_id == run_id).order_by(keys.c.idx)
        )
        told = [[key, f"step {idx} {tool}"] for key, tool, idx in claimed]
    try:
        state = store.load(run_id)
    except RunNotFound:
        return {"journal": [], "claimed": told, "status": "not started", "is_over": False, "in_doubt": False}
    return {
        "journal": [[entry.seq, entry.type, _brief(entry), str(entry)] for entry in store.journal(run_id)],
        "claimed": told,
        "status": where(state),
        "is_over": state.is_over,
        "in_doubt": bool(state.doubts),
    }


def _seen_of(scenario: Scenario, folder: Path) -> dict[str, Any]:
    world = scenario.world(folder)
    try:
        return {
            "effects": [_words(effect) for effect in scenario.effects(world)] if hasattr(world, "effects") else None,
            "ledger": _named(getattr(world, "ledger", None)),
            "sent": _named(getattr(world, "keystore", None)),
        }
    finally:
        if hasattr(world, "close"):
            world.close()


def _named(values: object) -> dict[str, Any] | None:
    """Return what a world keeps by name, where it keeps it so."""
    if not isinstance(values, Mapping):
        return None
    return {str(name): value if isinstance(value, int) else str(value) for name, value in values.items()}


def _words(effect: object) -> str:
    """Return the words of an effect.

    >>> _words(("ORD-3300", "180.00")), _words("ship P")
    ('ORD-3300 180.00', 'ship P')
    """
    return " ".join(map(str, effect)) if isinstance(effect, tuple | list) else str(effect)


ACTS: Mapping[str, Callable[..., None]] = {
    "live": _live,
    "look": _look,
    "naive": _live_naively,
    "places": _count,
}


# In words.


DURABLE = {
    "started": "it starts {run_id}: {text}",
    "resumed": "it reads the journal of {run_id}, up to seq {seq}",
    "memoized": "{step}: not called; its result is read from the journal",
    "attempted": "{step}: decided, and called{key}",
    "attempted_again": "{step}: its decision is read back and recorded again; attempt {attempt}{same_key}",
    "completed": "{step}: {text}",
    "finished": "finished: {text}",
}
NAIVELY = {
    "started": "it starts from the top, and knows nothing of a journal: {text}",
    "attempted": "{step}: called from the top{new_key}",
    "completed": "{step}: {text}",
    "finished": "finished: {text}",
}


def _say_where(state: RunState, tell: Tell) -> None:
    """Tell where a worker leaves its run, where that is not the end."""
    if not state.is_over:
        tell("said", f"it stops here: the run is {where(state)}")


def _say(words: Mapping[str, str], tell: Tell, notice: Notice) -> None:
    """Tell a notice in words."""
    key = notice.key
    told = words.get(notice.kind, "{otherwise}").format(
        run_id=notice.run_id,
        seq=notice.seq,
        step=f"step {notice.idx} {notice.tool}",
        attempt=notice.attempt,
        key=f" under the key {key}" if key else "",
        same_key=f", under the same key {key}" if key else "",
        new_key=f" under a new key, {key}" if key else "",
        text=notice.text,
        otherwise=str(notice).removeprefix(f"{notice.run_id} seq {notice.seq} "),
    )
    tell("said", bounded(told, MAX_SAID))


def _brief(entry: JournalEntry) -> str:
    """Say what an event is about: its step, and what it brings that is short."""
    data = entry.data
    step = " ".join(str(data[name]) for name in ("idx", "tool") if name in data)
    named = ("attempt", "goal", "key", "answer", "outcome", "reason", "signal", "name", "by")
    told = {name: data[name] for name in named if data.get(name) not in (None, 0, "", [])}
    more = [
        bounded(f"{name} {value if isinstance(value, str) else canonical(value)}", MAX_BRIEF)
        for name, value in told.items()
    ]
    return " · ".join(filter(None, [f"step {step}" if step else "", *more]))


def _meaning(place: Place) -> str:
    """Say what has happened at a place, and what is in the journal.

    >>> _meaning(Place(1, "the money has moved", "the body of step 1 (process_refund)", "mark"))
    'what the body did so far has happened; its result is not in the journal'
    """
    if place.kind == "mark":
        return "what the body did so far has happened; its result is not in the journal"
    if place.kind == "commit":
        return (
            "nothing of it is durable" if place.what == BEFORE_COMMIT else "it is durable; the worker does not know"
        )
    before, after = MEANINGS.get(
        type(place.request), ("it has not begun", "it is done; what it gave is not recorded")
    )
    return {BEFORE: before, AFTER: after}.get(place.what, "")


MEANINGS: Mapping[type[Any], tuple[str, str]] = {
    Decide: ("the decider is not asked yet", "the decision is known to the worker alone"),
    Append: ("only the worker knows of it", "it is in the journal"),
    Start: ("the start is in the journal; the body has not run", "the start is in the journal; the body has not run"),
    NextDone: ("the body has not run", "the body has run; its result is not in the journal"),
    Transact: (
        "neither the effect nor its result is durable",
        "the effect and its result are durable, in one commit",
    ),
    Probe: ("the provider is not asked yet", "the provider's answer is known to the worker alone"),
}


if __name__ == "__main__":
    serve(sys.argv[1])
