"""Every effect in a few turns, for the crash kit: what must survive, and what the mutants of the library break.

Try one, in the folder of the checkout: agent-es fuzz examples.every_effect:errands

Rule 1: the world is not in the agent: it lies in the folder, and tells what happened there, however often.
Rule 2: what is to happen is counted absolutely, so that a fault which spoils the run without a crash is seen too.
Rule 3: a place to die in is marked around what becomes durable, never inside it, where it would hold a lock.
"""

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from agent_es import (
    AgentRun,
    CallTool,
    Decision,
    DidNotHappen,
    Effect,
    Fail,
    Finish,
    Happened,
    Retry,
    RunState,
    RunStore,
    ScriptedDecider,
    Status,
    ToolContext,
    ToolSpec,
    crash_point,
    tool,
)
from agent_es.testing import Ending, MovableClock, PaymentProvider, Scenario
from agent_es.testing.folders import in_its_folder
from agent_es.testing.network import Fault, FlakyNetwork
from agent_es.testing.provider import utc_now

DOWN = 30.0
"""Seconds until a worker that died is replaced, where time matters."""
KEPT = 40.0
"""Seconds for which the provider keeps a key there: longer than one worker is down, shorter than two."""
LAG = 50.0
"""Seconds until the carrier there knows of a parcel."""
RENEWED = re.compile(r"#\d+")
"""What marks the key of a step whose effect did not happen at first."""
MANY = 12
"""After how many turns a stubborn decider gives up."""
PATIENT = Retry(max_attempts=9, initial=1.0, jitter=0.0)


class World:
    """What is outside the agent: a provider, a carrier and a loudspeaker.

    ``now`` tells the time there; ``url`` is where the runs are, and the bookings beside them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        now: Callable[[], datetime] = utc_now,
        key_ttl: float | None = None,
        lag: float = 0.0,
        faults: Iterable[Fault] = (),
        url: Callable[[Path], str] = in_its_folder,
    ) -> None:
        self.network = FlakyNetwork(faults)
        self.provider = PaymentProvider(folder / "provider.db", key_ttl=key_ttl, now=now)
        self._now = now
        self._lag = timedelta(seconds=lag)
        self._world = folder / "world.db"
        self._runs = create_engine(url(folder), poolclass=NullPool)
        self._do("CREATE TABLE IF NOT EXISTS happened (what TEXT, key TEXT, at TEXT)")
        with self._runs.begin() as runs:
            runs.execute(text("CREATE TABLE IF NOT EXISTS bookings (seat TEXT)"))

    def act(self, what: str, key: str | None) -> str:
        """Let something happen that nobody takes back; give its receipt."""
        crash_point("before it happens")
        self._do("INSERT INTO happened VALUES (?, ?, ?)", what, key, self._now().isoformat())
        crash_point("it has happened")
        return receipt(key)

    def knows(self, key: str | None) -> bool:
        """Say whether something happened under that key: to one who walks over and looks."""
        happened = self._do("SELECT 1 FROM happened WHERE key = ?", key)
        return bool(happened) or key in self.provider.keystore

    def has_heard(self, key: str | None) -> bool:
        """Say so to one who asks from afar: what happened a moment ago is not known there yet."""
        happened = self._do("SELECT at FROM happened WHERE key = ?", key)
        return any(self._now() - datetime.fromisoformat(at) >= self._lag for (at,) in happened)

    def effects(self) -> list[str]:
        """Return what happened, each as often as it did: a word for what, and what it was done to."""
        refunds = [f"refund {order} {amount}" for order, amount in self.provider.effects()]
        with self._runs.connect() as runs:
            bookings = [f"book {seat}" for (seat,) in runs.execute(text("SELECT seat FROM bookings"))]
        return [*refunds, *bookings, *(what for (what,) in self._do("SELECT what FROM happened"))]

    def _do(self, sql: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self._world, isolation_level=None, timeout=30)) as database:
            return database.execute(sql, values).fetchall()


def receipt(key: str | None) -> str:
    """Return what an effect gives: it says which step it belongs to."""
    return f"receipt of {RENEWED.sub('', key or '')}"


class Errands(AgentRun):
    """Run errands with tools of every effect."""

    def was_shipped(self, ctx: ToolContext[World], key: str) -> Happened | DidNotHappen:
        """Ask the carrier for the parcel."""
        return Happened(receipt(key)) if ctx.deps.has_heard(key) else DidNotHappen()

    @tool(effect=Effect.READ)
    def look_up(self, order: str) -> str:
        """Look up an order."""
        return f"{order} is 10.00"

    @tool(effect=Effect.READ)
    def glance(self, ctx: ToolContext[World], order: str) -> list[Any]:
        """Look at an order, and say which glance it was."""
        return [order, ctx.attempt]

    @tool(effect=Effect.IDEMPOTENT, retry=PATIENT)
    def refund(self, ctx: ToolContext[World], order: str) -> str:
        """Refund an order, through a provider that keeps keys for ever."""
        ctx.deps.provider.refund(order, Decimal(10), key=ctx.idempotency_key)
        return receipt(ctx.idempotency_key)

    @tool(effect=Effect.IDEMPOTENT, key="{order}:{reason}")
    def refund_once(self, ctx: ToolContext[World], order: str, reason: str) -> str:  # noqa: ARG002  # in the key
        """Refund an order once for each reason."""
        ctx.deps.provider.refund(order, Decimal(10), key=ctx.idempotency_key)
        return receipt(ctx.idempotency_key)

    @tool(effect=Effect.IDEMPOTENT, retry=PATIENT, key_ttl=KEPT)
    def refund_soon(self, ctx: ToolContext[World], order: str) -> str:
        """Refund an order, through a provider that forgets keys."""
        world = ctx.deps
        world.network.send(lambda: world.provider.refund(order, Decimal(10), key=ctx.idempotency_key))
        return receipt(ctx.idempotency_key)

    @tool(effect=Effect.TRANSACTIONAL)
    def book(self, ctx: ToolContext[World], seat: str) -> str:
        """Book a seat in the store's own database."""
        ctx.session.execute(text("INSERT INTO bookings VALUES (:seat)"), {"seat": seat})
        ctx.session.commit()  # a savepoint: the transaction is the store's to commit
        crash_point("the row is written")
        if ctx.session.execute(text("SELECT count(*) FROM bookings WHERE seat = :seat"), {"seat": seat}).scalar() > 1:
            raise LookupError(f"{seat} is taken")
        return receipt(ctx.idempotency_key)

    @tool(effect=Effect.PROBED, probe=was_shipped, retry=PATIENT)
    def ship(self, ctx: ToolContext[World], parcel: str) -> str:
        """Ship a parcel, with a carrier that can be asked."""
        return ctx.deps.act(f"ship {parcel}", ctx.idempotency_key)

    @tool(effect=Effect.PROBED, probe=was_shipped, retry=PATIENT, settle_after=LAG)
    def ship_far(self, ctx: ToolContext[World], parcel: str) -> str:
        """Ship a parcel, with a carrier who hears of it late."""
        world = ctx.deps
        return world.network.send(lambda: world.act(f"ship {parcel}", ctx.idempotency_key))

    @tool(effect=Effect.AT_MOST_ONCE, retry=Retry(max_attempts=3))
    def announce(self, ctx: ToolContext[World], news: str) -> str:
        """Say something aloud: it cannot be unsaid."""
        world = ctx.deps
        return world.network.send(lambda: world.act(f"announce {news}", ctx.idempotency_key))


class Stubborn:
    """Works through the turns of a plan, and calls again what failed, as a model does; at last it gives up."""

    def __init__(self, *plan: Sequence[CallTool]) -> None:
        self.plan = plan

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:  # noqa: ARG002  # it knows its plan
        """Return what is missing of the first turn that is not done."""
        done = Counter((step.tool, repr(step.args)) for step in run.steps if step.status == "done")
        for turn in self.plan:
            wanted = Counter((call.tool, repr(call.args)) for call in turn)
            missing = wanted - done
            done -= wanted
            if run.turns == MANY:
                return Fail(f"{missing} is still missing")
            if missing:
                calls = {(call.tool, repr(call.args)): call for call in turn}
                return [calls[which] for which in missing.elements()]
        return Finish("done")


class Moody:
    """Gives another reason each time that it is asked for a decision, and later the reason that it gave."""

    def __init__(self, mood: int) -> None:
        self._reasons = count(1_000 * mood)

    def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Decision:  # noqa: ARG002  # it knows what to do
        """Refund, then ask for the same refund once more beside a look, then end."""
        if run.turns == 0:
            return CallTool("refund_once", {"order": "A", "reason": f"mood {next(self._reasons)}"})
        if run.turns == 1:
            return [CallTool("look_up", {"order": "A"}), CallTool("refund_once", run.steps[0].args)]
        return Finish("done")


def look_and_settle(store: RunStore, state: RunState, world: World) -> None:
    """Settle each doubt as somebody who walks over and looks."""
    for step in state.doubts:
        if world.knows(step.key):
            store.settle(state.run_id, step.idx, "happened", by="clerk", result=receipt(step.key))
        else:
            store.settle(state.run_id, step.idx, "did_not_happen", by="clerk")


def comes_to(**wanted: int) -> Callable[[Ending], None]:
    """Return the invariant that so much happened, and that each step has its own receipt; less, where in doubt."""

    def comes_to_that(ending: Ending) -> None:
        state, happened = ending.state, Counter(effect.split()[0] for effect in ending.world.effects())
        assert happened <= Counter(wanted), f"{dict(happened)} happened, instead of {wanted}"  # noqa: S101
        if not state.doubts:
            assert state.status is Status.DONE, f"the run is {state.status} for {state.waiting_for}"  # noqa: S101
            assert happened == Counter(wanted), f"{dict(happened)} happened, instead of {wanted}"  # noqa: S101
        for step in state.steps:
            if step.status == "done" and step.key is not None:
                assert step.result == receipt(step.key), f"step {step.idx} has the {step.result}"  # noqa: S101

    return comes_to_that


def refused_the_second_time(ending: Ending) -> None:
    """Hold where one refund was paid, and the other told the decider why not."""
    comes_to(refund=1)(ending)
    assert (ending.state.steps[2].error or {}).get("type") == "KeyReused", ending.state.steps[2]  # noqa: S101


def nothing_from_another_attempt(ending: Ending) -> None:
    """Hold where no glance stands in the journal as another."""
    for entry in ending.journal:
        event: Any = entry.event
        if entry.type == "tool_result" and event.tool == "glance":
            seen = entry.data["result"]
            assert seen == ["A", event.attempt], f"attempt {event.attempt} has the glance {seen}"  # noqa: S101


def each_in_its_time(ending: Ending) -> None:
    """Hold where, after a time-out, a second or more is waited, and nothing starts before it is over."""
    comes_to(refund=1, ship=1, announce=1)(ending)
    due: dict[int, datetime] = {}
    for entry in ending.journal:
        event: Any = entry.event
        if getattr(event, "retry_at", None) is not None:
            due[event.idx] = event.retry_at
            waits = event.retry_at - event.timestamp
            assert waits >= timedelta(seconds=1), f"step {event.idx} is tried again after {waits}"  # noqa: S101
        elif entry.type == "llm_decided" and event.idx in due:
            early = due.pop(event.idx) - event.timestamp
            assert early <= timedelta(), f"step {event.idx} is tried again {early} early"  # noqa: S101


def how_steps_ended(state: RunState) -> Any:
    """Return what must be the same whatever words the decider chose."""
    steps = [(step.tool, step.status, (step.error or {}).get("type")) for step in state.steps]
    return state.answer, state.turns, steps


def answer(state: RunState) -> Any:
    """Return what must be the same however often a step failed on the way."""
    return state.answer


LOOK, GLANCE = CallTool("look_up", {"order": "A"}), CallTool("glance", {"order": "A"})
REFUND = CallTool("refund", {"order": "A"})
BOOK, SHIP = CallTool("book", {"seat": "S"}), CallTool("ship", {"parcel": "P"})
ANNOUNCE = CallTool("announce", {"news": "N"})

twins = Scenario(
    agent=Errands,
    decider=ScriptedDecider([[REFUND, REFUND, LOOK], Finish("done")]),
    world=World,
    invariant=comes_to(refund=2),
    at_once=2,
)
"""The same refund twice in one turn is two refunds, beside a look that may be taken again."""

errands = Scenario(
    agent=Errands,
    decider=ScriptedDecider([[BOOK, SHIP], [ANNOUNCE, BOOK], Finish("done")]),
    world=World,
    invariant=comes_to(book=1, ship=1, announce=1),
    person=look_and_settle,
)
"""The effects that no key makes safe; the second booking of the seat fails once its row is written."""

MOODS = count()

moody = Scenario(
    agent=Errands,
    decider=lambda: Moody(next(MOODS)),
    world=World,
    invariant=refused_the_second_time,
    same=how_steps_ended,
)
"""The key is the intent: the same refund once more is refused, whatever the decider called it."""

crowd = Scenario(
    agent=Errands,
    decider=Stubborn([LOOK, REFUND, REFUND], [BOOK, ANNOUNCE]),
    world=World,
    invariant=comes_to(refund=2, book=1, announce=1),
    same=answer,
)
"""What holds where a worker that was overtaken goes on, and the store fails: for a machine.

Here nobody settles a doubt: whoever is overtaken in a body may still act, and no look at the world shows that.
"""

glance = Scenario(
    agent=Errands,
    decider=ScriptedDecider([GLANCE, Finish("done")]),
    world=World,
    invariant=nothing_from_another_attempt,
    same=answer,
)
"""One look that is never the same: whose it is that stands in the journal."""

CLOCK = MovableClock()


def after_a_while(folder: Path, clock: MovableClock = CLOCK) -> World:
    """Open the world as a worker finds it that replaces another."""
    clock.move(DOWN)
    return World(folder, now=clock.now, key_ttl=KEPT, lag=LAG, faults=["after"])


bad_day = Scenario(
    agent=Errands,
    decider=Stubborn([CallTool("refund_soon", {"order": "A"})], [CallTool("ship_far", {"parcel": "P"})], [ANNOUNCE]),
    world=after_a_while,
    invariant=each_in_its_time,
    person=look_and_settle,
    clock=CLOCK,
)
"""The first answer of each worker is lost, keys are forgotten, and who died is replaced a while later."""
