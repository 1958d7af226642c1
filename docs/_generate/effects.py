"""Every effect, killed at every crash point, once and during the recovery too: what happens.

The page's table is printed from these lives, and a test holds what is claimed against them.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path

from sqlalchemy import text

from agent_es import AgentRun, CallTool, Effect, Finish, RunState, RunStore, ScriptedDecider, ToolContext, tool
from agent_es.events import LlmDecided, ToolResult
from agent_es.step import Append, Transact
from agent_es.testing import Crash, CrashingRunner, FrozenClock, Life, Place
from agent_es.tools import DidNotHappen, Happened

RUN_ID = "run-1"
POINTS = (
    "before the decision is recorded",
    "after the decision is recorded",
    "in the body, before the commit",
    "in the body, after the commit",
    "after the result is recorded",
)
BEFORE_DECISION, AFTER_DECISION, BEFORE_COMMIT, AFTER_COMMIT, AFTER_RESULT = POINTS


@dataclass
class Outside:
    """The world outside the agent: what happened there, and what is remembered of keys.  It outlives every worker."""

    happened: list[str] = field(default_factory=list)
    started: int = 0
    die_at: str | None = None

    def reach(self, point: str) -> None:
        """Die here, if here is where this life ends."""
        if self.die_at == point:
            self.die_at = None
            raise Crash(point)

    def act(self, key: str, *, once: bool) -> str:
        """Make the effect happen; a provider that honours keys does so once per key."""
        self.started += 1
        self.reach(BEFORE_COMMIT)
        if not (once and key in self.happened):
            self.happened.append(key)
        self.reach(AFTER_COMMIT)
        return f"receipt of {key}"


class Actor(AgentRun):
    """One tool per effect."""

    def ask(self, ctx: ToolContext[Outside], key: str) -> Happened | DidNotHappen:
        """Ask the world whether it happened."""
        return Happened(f"receipt of {key}") if key in ctx.deps.happened else DidNotHappen()

    @tool(effect=Effect.READ)
    def read(self, ctx: ToolContext[Outside]) -> str:
        """Look something up."""
        return ctx.deps.act("a look", once=False)

    @tool(effect=Effect.IDEMPOTENT)
    def idempotent(self, ctx: ToolContext[Outside]) -> str:
        """Act through a provider that honours keys."""
        return ctx.deps.act(ctx.idempotency_key or "", once=True)

    @tool(effect=Effect.TRANSACTIONAL)
    def transactional(self, ctx: ToolContext[Outside]) -> str:
        """Act in the store's own database."""
        ctx.deps.started += 1
        ctx.session.execute(text("INSERT INTO bookings VALUES ('booked')"))
        ctx.deps.reach(BEFORE_COMMIT)
        return "booked"

    @tool(effect=Effect.PROBED, probe=ask)
    def probed(self, ctx: ToolContext[Outside]) -> str:
        """Act through a provider that forgets keys, and can be asked."""
        return ctx.deps.act(ctx.idempotency_key or "", once=False)

    @tool(effect=Effect.AT_MOST_ONCE)
    def at_most_once(self, ctx: ToolContext[Outside]) -> str:
        """Act through a provider that forgets everything."""
        return ctx.deps.act(ctx.idempotency_key or "", once=False)


class Dying(Life):
    """The life of a worker that dies where its world says."""

    def __init__(self, outside: Outside) -> None:
        super().__init__()
        self._outside = outside
        self._appended: set[type] = set()

    def reach(self, place: Place) -> None:
        """Die before or after the request that is a crash point."""
        match place.request:
            case Append(run) if place.what == "before":
                self._appended = {type(event) for event in run.pending_events}
                if LlmDecided in self._appended:
                    self._outside.reach(BEFORE_DECISION)
            case Append() if place.what == "after":
                if LlmDecided in self._appended:
                    self._outside.reach(AFTER_DECISION)
                if ToolResult in self._appended:
                    self._outside.reach(AFTER_RESULT)
            case Transact() if place.what == "after":
                self._outside.reach(AFTER_COMMIT)
                self._outside.reach(AFTER_RESULT)


@dataclass(frozen=True)
class Fate:
    """What became of a run: how often its effect happened and its body started, and where it stands."""

    happened: int
    started: int
    status: str
    waiting_for: str | None

    def __str__(self) -> str:
        times = {0: "did not happen", 1: "happened once"}.get(self.happened, f"happened {self.happened} times")
        return f"{times}, {self.status if self.waiting_for is None else 'in doubt'}"


def live(folder: Path, effect: Effect, points: Sequence[str]) -> Fate:
    """Give a run one life per crash point and a last one; return what became of it."""
    outside = Outside()
    store = RunStore(f"sqlite:///{folder / 'runs.db'}", clock=FrozenClock())
    with store.recorder.transaction(commit=True) as session:
        session.execute(text("CREATE TABLE bookings (what TEXT)"))
    plan = ScriptedDecider([CallTool(effect.value), Finish("done")])
    for point in (*points, None):
        outside.die_at = point
        worker = CrashingRunner(store, plan, deps=outside, agents=[Actor], life=Dying(outside))
        with suppress(Crash):
            worker.run(Actor, run_id=RUN_ID, goal=effect.value)
    state: RunState = store.load(RUN_ID)
    if effect is Effect.TRANSACTIONAL:
        with store.recorder.transaction(commit=False) as session:
            happened = int(session.execute(text("SELECT count(*) FROM bookings")).scalar_one())
    else:
        happened = len(outside.happened)
    store.close()
    return Fate(happened, outside.started, str(state.status), state.waiting_for)


def schedules() -> Iterator[tuple[str, ...]]:
    """Yield every crash point, alone and followed by every other during the recovery."""
    for first in POINTS:
        yield (first,)
    yield from product(POINTS, POINTS)


@cache
def fates() -> dict[tuple[Effect, tuple[str, ...]], Fate]:
    """Return what became of every effect under every schedule."""
    found = {}
    for effect, points in product(Effect, schedules()):
        with tempfile.TemporaryDirectory() as folder:
            found[effect, points] = live(Path(folder), effect, points)
    return found


def table() -> str:
    """Return the table of one crash: a row per effect, a column per crash point."""
    rows = [f"| effect | {' | '.join(POINTS)} |", f"|---|{'---|' * len(POINTS)}"]
    for effect in Effect:
        cells = [cell(fates()[effect, (point,)]) for point in POINTS]
        rows.append(f"| `{effect.name}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def cell(fate: Fate) -> str:
    """Say what became of a run, for the table."""
    return f"{fate} (body started {fate.started} times)"


def twice() -> str:
    """Return, per effect, what two crashes came to over all pairs of crash points."""
    rows = ["| effect | pairs | effects | ended |", "|---|--:|---|---|"]
    for effect in Effect:
        pairs = [fates()[effect, points] for points in schedules() if len(points) > 1]
        effects = sorted({fate.happened for fate in pairs})
        ends = sorted({fate.status if fate.waiting_for is None else "in doubt" for fate in pairs})
        rows.append(f"| `{effect.name}` | {len(pairs)} | {' or '.join(map(str, effects))} | {' or '.join(ends)} |")
    return "\n".join(rows) + "\n"
