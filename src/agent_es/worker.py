"""A worker: claims a due run, moves it for a moment, gives it back; many beside each other, on many machines.

Rule 1: a run is claimed for one step, and for those that fit in a moment after it: no run keeps the others waiting.
Rule 2: a claim is counted before anything is done: a run that kills its workers is parked, and starves nobody.
Rule 3: what this code cannot read or has no class for is left as it is, and shown; the others go on.
Rule 4: a run that several workers had in vain is moved alone: if it kills this one too, no other is blamed for that.
Rule 5: who has nothing to do sleeps until the next run is due that it knows of, and is woken before that by the bell;
underneath it polls.  A run that waits costs no more than its row.
Rule 6: an orderly stop finishes what is under way within the grace, or hands it back: it uses up no claim.
"""

import queue
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from agent_es.decider import Decider
from agent_es.errors import AgentError, AgentUnknown, BadAgent, RunMoved, RunUnreadable
from agent_es.heart import Heart
from agent_es.live import LiveRuns
from agent_es.notices import Kind, Notice, OnEvent, ignore
from agent_es.owners import Lease, Owner
from agent_es.run import AgentRun
from agent_es.runtime import Runner
from agent_es.store import RunStore
from agent_es.store.inbox import Tell
from agent_es.tools import Tool, describe

SLICE = 0.05
"""Seconds since its claim after which a run begins no further step, and others get their turn: two commits a step are
saved where steps are short, and where they are long nobody would wait less for it."""

MAX_DEFERRED = 60.0
"""Seconds for which a run that could not be moved is left alone at most."""

BREATH = 0.01
"""Seconds for which a worker waits at least between two looks for something to claim."""

MAX_POLL = 86_400.0
"""Seconds after which a worker looks at the latest, whatever it is told."""

MAX_WAIT = 5.0
"""Seconds after which a store that failed is asked again at most."""

Deciders = Decider | Mapping[type[AgentRun], Decider]
"""One for all agents, or one for each; an agent that has none here has its own."""


@dataclass(slots=True)
class Tally:
    """What a worker has done."""

    steps: int = 0
    """Steps that came to their end."""
    lost: int = 0
    """Claims that another worker took over."""
    parked: int = 0
    """Runs that no worker got anywhere with."""
    skipped: int = 0
    """Claims of runs that this code cannot act on."""
    failed: int = 0
    """Claims that ended in an error of a decider, a tool's declaration, or the store."""
    handed_back: int = 0
    """Runs whose step took longer than the grace of a stop."""
    events: int = 0
    """Events that were appended."""


@dataclass(frozen=True, slots=True)
class Later:
    """A run that could not be moved, and is left alone for so many seconds."""

    seconds: float
    counts: bool
    """Whether that counts against the run."""
    trouble: str


class Worker:
    """Moves the due runs of some agents, up to ``concurrency`` at once.

    ``decider`` is one, or a mapping from agents; ``deps``, ``tools`` and ``at_once`` are as for a ``Runner``.  A
    claim holds for ``lease`` seconds and is renewed.  A run that is claimed takes a step, and those that begin within
    ``moment`` seconds; 0 gives it back after one.  A due run is noticed at once; ``poll`` seconds is how late that
    may be where a notice was lost.  A run that ``park_after`` workers in a row got nowhere with is parked; its last
    two claims are moved alone.  A stop waits for ``grace`` seconds.  ``notify`` is told, in a thread of its own,
    of each thing that waits for a person, as by ``store.notify_people``.
    """

    def __init__(
        self,
        store: RunStore,
        *,
        agents: Iterable[type[AgentRun]],
        decider: Deciders | None = None,
        deps: Any = None,
        tools: Iterable[Tool] = (),
        at_once: int | None = None,
        concurrency: int = 8,
        lease: float = 30.0,
        poll: float = 0.5,
        park_after: int = 5,
        grace: float = 10.0,
        moment: float = SLICE,
        owner: Owner | None = None,
        notify: Tell | None = None,
        on_event: OnEvent = ignore,
    ) -> None:
        known = tuple(agents)
        if not known or concurrency < 1 or park_after < 1:
            raise BadAgent("a worker needs an agent, a slot to move it in, and one attempt: agents=[...]")
        if not 0 < poll <= MAX_POLL or grace < 0 or moment < 0:
            raise BadAgent(
                f"poll={poll}, grace={grace}, moment={moment}: none is negative; a worker that waits no time at all "
                f"between looks never rests, and one that looks less often than every {MAX_POLL:g} s may oversleep"
            )
        self.store = store
        self.concurrency = concurrency
        self.lease = lease
        self.poll = poll
        self.park_after = park_after
        self.grace = grace
        self.moment = moment
        self.owner = owner or Owner.here()
        self.tally = Tally()
        self._notify = notify
        self._on_event = on_event
        self._heart = Heart(store.leases)
        self._stops = threading.Event()
        self._alone_from = max(2, park_after - 1)
        self._ended: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()
        """What came to the end of its step, so that its slot is free; None wakes who waits."""
        self._is_rung = self._hurries = False
        self._agents, self._fires_at = known, 0.0
        self._orders: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()
        """What is to be moved next; None ends a thread, and one that hangs in a body gets its own too late."""
        self._live = LiveRuns()
        self._takes_one = False
        self._threads = 0
        self._flying: dict[int, Lease] = {}
        self._runners: dict[str, Runner] = {}
        for agent in known:
            if agent.agent_name in self._runners:
                raise BadAgent(f"two agents are called {agent.agent_name!r}")
            self._runners[agent.agent_name] = Runner(
                store,
                decider.get(agent) if isinstance(decider, Mapping) else decider,
                deps=deps,
                tools=tools,
                agents=[agent],
                at_once=at_once,
                on_event=self._hear,
                owner=self.owner,
                lease=lease,
                heart=self._heart,
            )

    def run(self, *, until_idle: bool = False, once: bool = False) -> Tally:
        """Move runs until ``stop`` is called, or SIGTERM or SIGINT comes; return what was done.

        ``until_idle`` ends when nothing is due; ``once`` after one step.
        """
        self._orders, self._threads, self._fires_at = queue.SimpleQueue(), 0, 0.0
        self._takes_one = once
        with self._stopped_by_signals(), self._listening(), self._notifying():
            self._tell("ready", "", f"{', '.join(self._runners)}; {self.concurrency} at once")
            while not self._stops.is_set():
                self._fire()
                if len(self._flying) < self.concurrency and (lease := self._claim()):
                    (self._fly if lease.claims < self._alone_from else self._fly_alone)(lease)
                    if once:
                        break
                    continue
                if until_idle and not self._flying:
                    break
                self._rest()
            self._drain()
        for _ in range(self._threads):
            self._orders.put(None)
        return self.tally

    def stop(self) -> None:
        """Claim nothing more, and end when what is under way has ended; from any thread, and a signal's handler."""
        self._stops.set()
        self._ended.put(None)

    def _rest(self) -> None:
        """Wait until there may be something to claim: a step ended, a run is due, or so much time went by."""
        until = time.monotonic() + self.poll
        due_in = self._due_in()
        while self._land(max(BREATH, min(due_in, until - time.monotonic()))):  # it was the bell
            due_in = self._due_in()
            if due_in == 0 or self._stops.is_set() or time.monotonic() > until:
                return

    def _due_in(self) -> float:
        """Return in how many seconds there may be something to do, at most those after which that is tried anyway."""
        scheduled_in = max(0.0, self._fires_at - time.monotonic())
        if len(self._flying) >= self.concurrency:
            return min(self.poll, scheduled_in)
        try:
            due_in = self.store.leases.due_in([*self._runners])
        except AgentError as error:
            self._tell("store_failed", "", str(error))
            return self.poll
        return min(self.poll, scheduled_in, self.poll if due_in is None else due_in)

    def _fire(self) -> None:
        """Start what is scheduled and due, unless it is too early to look again."""
        if time.monotonic() < self._fires_at:
            return
        wait, timetable = self.poll, self.store.timetable
        try:
            started = timetable.fire(self._agents)
            for run in started:
                self.tally.events += 1
                self._tell("started", run.run_id, run.goal, seq=0)
            due_in = timetable.due_in(self._agents)
            if due_in is not None and (started or due_in > 0):  # else it is due, and not for this worker to start
                wait = min(wait, max(0.0, due_in))
        except AgentError as error:
            self._tell("store_failed", "", str(error))
            wait = MAX_WAIT
        self._fires_at = time.monotonic() + wait

    def _claim(self) -> Lease | None:
        """Claim a run; where the store fails, again after growing waits, until it does not or this is to stop."""
        wait = self.poll
        while not self._stops.is_set():
            try:
                return self.store.leases.claim([*self._runners], self.owner, self.lease)
            except AgentError as error:
                self._tell("store_failed", "", str(error))
                self._stops.wait(wait)
                wait = min(2 * wait, MAX_WAIT)
        return None

    def _fly(self, lease: Lease) -> None:
        """Move a run in a thread of its own meanwhile."""
        self._flying[id(lease)] = lease
        self._heart.keep(lease)
        if len(self._flying) > self._threads:
            self._threads += 1
            # A body that cannot be stopped must not keep the interpreter alive.
            name = f"agent_es step {self._threads}"
            threading.Thread(target=self._serve, args=[self._orders], name=name, daemon=True).start()
        self._orders.put(lease)

    def _serve(self, orders: "queue.SimpleQueue[Lease | None]") -> None:
        """Move one run after the other: a thread for each step would be a third of a short one."""
        while (lease := orders.get()) is not None:
            try:
                self._work(lease)
            except Exception:  # a slot is never lost
                traceback.print_exc()

    def _fly_alone(self, lease: Lease) -> None:
        """Move a run once nothing else is under way, and begin nothing else until it has come to its end."""
        self._heart.keep(lease)
        self._clear()
        if self._stops.is_set():
            self._heart.leave(lease)
            self._give_back(lease)
        else:
            self._fly(lease)
            self._clear()

    def _clear(self) -> None:
        """Wait until nothing is under way, or this is to stop."""
        while self._flying and not self._stops.is_set():
            self._land(self.poll)

    def _land(self, timeout: float) -> bool:
        """Wait for a step to end, or for the bell; say whether it was the bell."""
        try:
            lease = self._ended.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return False
        if lease is None:
            self._is_rung = False
            return True
        self._flying.pop(id(lease), None)  # one that was handed back may end after all
        return False

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Be woken when a run becomes due."""
        over = threading.Event()
        listen = self.store.bell.listen
        listener = threading.Thread(target=listen, args=[over, self._ring], name="agent_es bell", daemon=True)
        listener.start()
        try:
            yield
        finally:
            over.set()
            listener.join(BREATH * 2)  # it gives back its connection before the store is closed, where it can

    @contextmanager
    def _notifying(self) -> Iterator[None]:
        """Tell people meanwhile of what waits for them, and once more at the end."""
        over = threading.Event()
        teller = threading.Thread(target=self._tell_people, args=[over], name="agent_es notify", daemon=True)
        if self._notify is None:
            yield
            return
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join(self.grace)

    def _tell_people(self, over: threading.Event) -> None:
        is_last = False
        while self._notify is not None and not is_last:
            is_last, wait = over.is_set(), self.poll
            try:
                self.store.notify_people(self._notify)
            except AgentError as error:
                self._tell("store_failed", "", str(error))
                wait = MAX_WAIT
            over.wait(wait)

    def _ring(self) -> None:
        """Wake the one who waits, once for however many notices came meanwhile."""
        if not self._is_rung:
            self._is_rung = True
            self._ended.put(None)

    def _drain(self) -> None:
        """Wait for what is under way; hand back what takes longer than the grace."""
        until = time.monotonic() + self.grace
        while self._flying and time.monotonic() < until and not self._hurries:
            self._land(until - time.monotonic())
        for lease in self._flying.values():
            self._heart.leave(lease)
            self._give_back(lease)
            self.tally.handed_back += 1
            self._tell("handed_back", lease.run_id)
        self._flying.clear()

    def _work(self, lease: Lease) -> None:
        """Move a run for a moment, whatever happens, and give it back."""
        later: Later | None = None
        try:
            self._move(lease)
        except RunMoved as moved:  # another worker has it
            self.tally.lost += 1
            self._tell("lease_lost", lease.run_id, str(moved))
        except (RunUnreadable, AgentUnknown) as unreadable:
            self.tally.skipped += 1
            later = Later(MAX_DEFERRED, counts=False, trouble=str(unreadable))
            self._tell("skipped", lease.run_id, later.trouble)
        except BaseException as error:  # the next step may do better; after so many the run is parked
            self.tally.failed += 1
            trouble = f"{type(error).__qualname__}: {describe(error)}"
            later = Later(min(2.0**lease.claims, MAX_DEFERRED), counts=True, trouble=trouble)
            self._tell("step_failed", lease.run_id, trouble)
        finally:
            self._heart.leave(lease)
            try:
                self._give_back(lease, later)
            finally:
                self._ended.put(lease)

    def _move(self, lease: Lease) -> None:
        """Take a step of a run that was claimed, and those after it that begin within the moment."""
        until = time.monotonic() + self.moment
        state = self.store.load(lease.run_id, known=self._live.take(lease.run_id))
        runner = self._runners[state.agent]
        run = runner.claimed(state, lease)
        if lease.claims > self.park_after and run.state.can_move:
            run.record_parked(f"{lease.claims - 1} workers had the run, and none of them got anywhere")
            runner.save(run)
            self.tally.parked += 1
            self.tally.steps += 1
        else:
            is_more = True
            while is_more:
                runner.move(run)
                self.tally.steps += 1
                is_more = (
                    run.lease is not None  # else its last append gave it back
                    and run.state.can_move
                    and not (self._takes_one or self._stops.is_set())
                    and time.monotonic() < until
                )
        self._live.put(run.recorded)

    def _give_back(self, lease: Lease, later: Later | None = None) -> None:
        with suppress(AgentError):  # it lapses by itself
            if later is None:
                self.store.leases.release(lease)
            else:
                self.store.leases.defer(lease, later.seconds, counts=later.counts, trouble=later.trouble)

    def _hear(self, notice: Notice) -> None:
        """Count what is in the journal, and pass it on."""
        if notice.seq >= 0:
            self.tally.events += 1
        self._on_event(notice)

    def _tell(self, kind: Kind, run_id: str, text: str = "", seq: int = -1) -> None:
        """Tell what the worker did; whoever is told and raises keeps it from nothing."""
        try:
            self._on_event(Notice(kind, run_id, seq, text=text))
        except Exception:
            traceback.print_exc()

    def _on_signal(self, *_: object) -> None:
        """Stop; whoever asks twice does not want to wait for what is under way."""
        self._hurries = self._stops.is_set()
        self.stop()

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT meanwhile, where this is the thread that signals come to."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
