"""An experiment on one scenario: crash its worker, restart naively, resume durably, and see what moved.

Rule 1: workers live and die in processes of their own; what is seen here is what they left on disk.
Rule 2: the naive restart works on a copy of what the dead worker left, the resume on the original.
Rule 3: one act at a time, in the order of ``ORDER``; what an act came to is one frozen ``Moment``.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Literal

from agent_es.errors import ActOutOfOrder, BadScenario
from agent_es.inspector.lives import ALIVE, ASIDE, LEFT, NAIVE
from agent_es.testing.journey import many
from agent_es.testing.survival import NOT_COUNTED

STORY = "agent_es.demo:scenario"
WITHIN = 60.0
"""Seconds that a worker has for its life."""
STARTS_WITHIN = 60.0
"""Seconds that a scenario has to be imported in."""
SLACK = 10.0
"""Seconds beyond a worker's time after which the process that forks workers is given up."""

Name = Literal["crash", "restart", "resume"]


class Stage(StrEnum):
    """Where an experiment stands."""

    FRESH = "fresh"
    """No worker has lived yet."""
    DEAD = "dead"
    """A worker was killed, and nobody has gone on."""
    OVER = "over"
    """The run was gone on with, as far as it goes."""


ORDER: Mapping[Name, frozenset[Stage]] = {
    "crash": frozenset({Stage.FRESH, Stage.DEAD}),
    "restart": frozenset({Stage.DEAD, Stage.OVER}),
    "resume": frozenset({Stage.DEAD}),
}
"""When there is which act; the naive restart, once.  A crash of who is dead is one of its recovery."""


@dataclass(frozen=True)
class About:
    """What a scenario is about."""

    agent: str
    goal: str
    run_id: str
    told: str
    """What the agent says of itself."""


@dataclass(frozen=True)
class Spot:
    """Where a worker may die, in words."""

    n: int
    """Counted from 1 over the life of a worker."""
    what: str
    of: str
    """What the worker is doing."""
    kind: Literal["request", "commit", "mark"]
    meaning: str
    """What has happened by then, and what is in the journal."""

    def __str__(self) -> str:
        return f"{self.what} {self.of}" if self.kind == "request" else f"{self.what}, in {self.of}"


@dataclass(frozen=True)
class Act:
    """What one worker did."""

    name: Name
    said: Sequence[str]
    killed_by: int | None
    """The signal that it died by; None where it came to its end."""
    spot: Spot | None
    """Where it was killed; None where it was not, or where its time was over."""
    pid: int
    seconds: float


@dataclass(frozen=True)
class Line:
    """A line of the journal."""

    seq: int
    type: str
    brief: str
    text: str
    """As the store gives it."""
    is_new: bool


@dataclass(frozen=True)
class Key:
    """A key, and who keeps it."""

    key: str
    kept_by: Literal["store", "provider"]
    told: str
    """The step that holds it, or how often it was sent."""
    is_new: bool


@dataclass(frozen=True)
class Happening:
    """Something that happened in the world."""

    what: str
    is_new: bool
    is_double: bool


@dataclass(frozen=True)
class Total:
    """What an account of the world's ledger comes to, and what it comes to without a crash."""

    account: str
    amount: str
    right: str
    is_new: bool

    @property
    def is_wrong(self) -> bool:
        """Whether it is another amount than without a crash."""
        return self.amount != self.right


class Word(StrEnum):
    """What an act came to, in a word."""

    DOUBLE = "double"
    ONCE = "once"
    LESS = "less"
    IN_DOUBT = "in doubt"
    SO_FAR = "so far"
    NOT_COUNTED = "not counted"


@dataclass(frozen=True)
class Verdict:
    """What an act came to: a word, a figure, and the sentences behind them."""

    word: Word
    figure: str
    right: str
    """The figure without a crash."""
    told: Sequence[str]


@dataclass(frozen=True)
class Panes:
    """What lies there after an act: journal, keystore and ledger; what is new came with it."""

    journal: Sequence[Line]
    keys: Sequence[Key]
    happened: Sequence[Happening]
    totals: Sequence[Total]
    status: str
    verdict: Verdict


@dataclass(frozen=True)
class Side:
    """One of the two ways to go on: its acts so far, and what lies there."""

    acts: Sequence[Act] = ()
    panes: Panes | None = None


@dataclass(frozen=True)
class Moment:
    """Where an experiment stands."""

    stage: Stage
    about: About
    spots: Sequence[Spot]
    """Where the next worker may die."""
    durable: Side = field(default_factory=Side)
    naive: Side = field(default_factory=Side)

    def may(self, name: Name) -> bool:
        """Whether there is that act now."""
        return self.stage in ORDER[name] and not (name == "restart" and self.naive.acts)

    @property
    def hard_spot(self) -> Spot:
        """The last mark in the body that has most of them; without any, the moment after a body."""
        marks = [spot for spot in self.spots if spot.kind == "mark"]
        if marks:
            (of, _), *_ = Counter(spot.of for spot in marks).most_common(1)
            return [spot for spot in marks if spot.of == of][-1]
        ran = [spot for spot in self.spots if (spot.what, spot.of) == ("after", "the wait for a body")]
        return (ran or [*self.spots])[-1]


@dataclass(frozen=True)
class _Seen:
    """What a look found."""

    journal: Sequence[Sequence[Any]]
    claimed: Sequence[tuple[str, str]]
    status: str
    is_over: bool
    in_doubt: bool
    effects: Sequence[str] | None
    ledger: Mapping[str, Any] | None
    sent: Mapping[str, Any] | None

    def keys(self) -> Mapping[tuple[str, Literal["store", "provider"]], str]:
        kept: dict[tuple[str, Literal["store", "provider"]], str] = {
            (key, "store"): f"held by {step}" for key, step in self.claimed
        }
        return kept | {(key, "provider"): _sent(times) for key, times in (self.sent or {}).items()}


NOTHING = _Seen((), (), "not started", is_over=False, in_doubt=False, effects=None, ledger=None, sent=None)


class Experiment:
    """Crashes the worker of a scenario, and goes on with its run in two ways.

    ``name`` is the ``module:name`` of the scenario; ``within``, the seconds that each worker has.  Close it at the
    end, or use it by ``with``.  Acts raise ``ActOutOfOrder`` where it is not their turn, and ``BadScenario`` where
    the scenario cannot be lived through.
    """

    def __init__(self, name: str = STORY, *, within: float = WITHIN) -> None:
        self.name = name
        self._within = within
        self._lock = threading.Lock()
        self._forks: _Forks | None = None
        self._now: Moment | None = None
        self._calm = self._durable = NOTHING

    def __enter__(self) -> "Experiment":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def moment(self) -> Moment:
        """Where it stands, while an act is under way too; the first look imports the scenario, and counts places."""
        now = self._now
        if now is not None:
            return now
        with self._lock:
            return self._begun()

    def places(self) -> Sequence[Spot]:
        """Return where the next worker may die: the first one, or who goes on with what a dead one left."""
        return self.moment.spots

    def crash(self, n: int) -> Act:
        """Let a worker live up to place ``n``, where it gets a SIGKILL.  After a crash, that is one of its recovery."""
        with self._acting("crash") as (now, forks):
            spot = next((spot for spot in now.spots if spot.n == n), None)
            if spot is None:
                raise BadScenario(f"place {n}: this worker has the places 1 to {len(now.spots)}")
            act = self._live(forks, "crash", ALIVE, spot)
            self._went_on(forks, now, act)
            return act

    def resume(self) -> Act:
        """Let another worker go on with the run, from its journal, to the end."""
        with self._acting("resume") as (now, forks):
            act = self._live(forks, "resume", ALIVE)
            self._went_on(forks, now, act)
            return act

    def restart_naively(self) -> Act:
        """Do what a program without a journal does, on a copy: begin at the top, under new keys."""
        with self._acting("restart") as (now, forks):
            forks.copy(LEFT, NAIVE)
            before = forks.look(LEFT, self._within)
            act = self._live(forks, "restart", NAIVE)
            seen = forks.look(NAIVE, self._within)
            panes = _panes(seen, before, self._calm, has_ended=act.killed_by is None, in_doubt=False)
            self._now = replace(now, naive=Side((act,), panes))
            return act

    def reset(self) -> None:
        """Forget everything; the scenario is imported anew, as it is then."""
        with self._lock:
            self._end()

    def close(self) -> None:
        """End the processes, and remove their folder: an act that is under way ends with them."""
        if self._forks is not None:
            self._forks.end()

    @contextmanager
    def _acting(self, name: Name) -> Iterator[tuple[Moment, "_Forks"]]:
        """Let one act be done, if it is its turn."""
        with self._lock:
            now = self._begun()
            if not now.may(name):
                raise ActOutOfOrder(_why_not(name, now))
            assert self._forks is not None  # noqa: S101  # for the type checker
            yield now, self._forks

    def _begun(self) -> Moment:
        if self._now is None:
            self._forks = _Forks(self.name)
            try:
                spots = self._forks.places(self._within)
                self._calm = self._forks.look(ASIDE, self._within)
            except BadScenario:
                self._end()
                raise
            self._durable = NOTHING
            self._now = Moment(Stage.FRESH, self._forks.about, spots)
        return self._now

    def _end(self) -> None:
        self.close()
        self._forks = self._now = None

    def _live(self, forks: "_Forks", name: Name, folder: str, spot: Spot | None = None) -> Act:
        began = time.monotonic()
        if name == "restart":
            life = forks.live("naive", folder, self._within)
        else:
            life = forks.live("live", folder, self._within, None if spot is None else spot.n)
        seconds = time.monotonic() - began
        killed_by = os.WTERMSIG(life.status) if os.WIFSIGNALED(life.status) else None
        died_there = killed_by == signal.SIGKILL and life.at is not None
        said = [*life.said, *([f"it was not done within {self._within:g} s, and was killed"] if life.is_late else [])]
        if name == "crash" and not killed_by:
            said.append("it came to its end before that place, and nobody killed it")
        return Act(name, said, killed_by, spot if died_there else None, life.pid, seconds)

    def _went_on(self, forks: "_Forks", now: Moment, act: Act) -> None:
        """Take in what became of the run itself."""
        seen = forks.look(ALIVE, self._within)
        has_ended = act.killed_by is None
        panes = _panes(seen, self._durable, self._calm, has_ended=has_ended, in_doubt=seen.in_doubt)
        spots: Sequence[Spot] = ()
        if not has_ended:
            forks.copy(ALIVE, LEFT)
            forks.copy(ALIVE, ASIDE)
            spots = forks.places(self._within)
        self._durable = seen
        self._now = replace(
            now,
            stage=Stage.OVER if has_ended else Stage.DEAD,
            spots=spots,
            durable=Side((*now.durable.acts, act), panes),
        )


def _why_not(name: Name, now: Moment) -> str:
    match name:
        case "crash":
            return "nobody is left to crash: the run was gone on with; reset the lab"
        case "resume" if now.stage is Stage.OVER:
            return "the run was gone on with before; reset the lab"
        case "restart" if now.naive.acts:
            return "it was restarted naively before; reset the lab"
        case _:
            return "no worker has died yet: crash one first"


# What a look tells.


def _panes(seen: _Seen, before: _Seen, calm: _Seen, *, has_ended: bool, in_doubt: bool) -> Panes:
    expected = Counter(calm.effects or ())
    kept, had = seen.keys(), before.keys()
    return Panes(
        journal=[Line(*entry, is_new=n >= len(before.journal)) for n, entry in enumerate(seen.journal)],
        keys=[Key(key, by, told, had.get((key, by)) != told) for (key, by), told in kept.items()],
        happened=[*_happenings(seen.effects or (), Counter(before.effects or ()), expected)],
        totals=[*_totals(seen.ledger or {}, before.ledger or {}, calm.ledger or {})],
        status=seen.status,
        verdict=_verdict(seen, calm, has_ended=has_ended, in_doubt=in_doubt),
    )


def _happenings(effects: Iterable[str], had: Counter[str], expected: Counter[str]) -> Iterable[Happening]:
    happened = Counter[str]()
    for what in effects:
        happened[what] += 1
        yield Happening(what, happened[what] > had[what], happened[what] > expected[what])


def _totals(ledger: Mapping[str, Any], had: Mapping[str, Any], calm: Mapping[str, Any]) -> Iterable[Total]:
    for account in {**calm, **ledger}:
        amount, right = (str(of.get(account, "0")) for of in (ledger, calm))
        yield Total(account, amount, right, account in ledger and had.get(account) != ledger[account])


def _verdict(seen: _Seen, calm: _Seen, *, has_ended: bool, in_doubt: bool) -> Verdict:
    """Say what there is, beside what there is without a crash."""
    if seen.effects is None:
        return Verdict(Word.NOT_COUNTED, "", "", [NOT_COUNTED])
    happened, expected = Counter(seen.effects), Counter(calm.effects or ())
    double, missing = happened - expected, expected - happened
    figure, right = _figure(seen), _figure(calm)
    told = [f"{what} happened {many(happened[what], 'time')}, and {expected[what]} without a crash" for what in double]
    told += [f"{what} has not happened, and {many(expected[what], 'time')} without a crash" for what in missing]
    if double and figure != right:
        told.append(f"{figure} where {right} is right")
    if double:
        word = Word.DOUBLE
    elif in_doubt:
        word = Word.IN_DOUBT
        told.insert(0, "the run says that it does not know, and waits for somebody who looks")
    elif not has_ended:
        word = Word.SO_FAR
        told = told or ["all of it has happened; whether the journal knows is another question"]
    else:
        word = Word.LESS if missing else Word.ONCE
        told = told or ["everything happened as often as without a crash"]
    return Verdict(word, figure, right, told)


def _figure(seen: _Seen) -> str:
    """Return what it comes to: the sum of the ledger, or else how many things happened.

    >>> _figure(replace(NOTHING, effects=["ship P"])), _figure(replace(NOTHING, ledger={"A": "1.50", "B": "2.00"}))
    ('1 ×', '3.50')
    """
    if seen.ledger is not None:
        try:
            return f"{sum((Decimal(str(amount)) for amount in seen.ledger.values()), Decimal('0.00')):f}"
        except InvalidOperation:
            pass  # it holds something else than amounts
    return f"{len(seen.effects or ())} ×"


def _sent(times: Any) -> str:
    """Say how often a key was sent.

    >>> _sent(1), _sent(2)
    ('sent once', 'sent 2 times')
    """
    return "sent once" if times == 1 else f"sent {times} times"


# The process that forks workers.


@dataclass(frozen=True)
class _Life:
    """How a worker ended, and what it said."""

    pid: int
    status: int
    is_late: bool
    at: str | None
    said: Sequence[str]
    told: Mapping[str, Any]


class _Forks:
    """The process that has imported the scenario, and forks a worker for each order.  Raises ``BadScenario``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = subprocess.Popen(  # noqa: S603  # the module beside this one
            [sys.executable, "-m", "agent_es.inspector.lives", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # what is typed to stop the server is not for it: it ends with its orders
        )
        self.about = About(**self._answer(STARTS_WITHIN)["about"])

    def copy(self, source: str, target: str) -> None:
        """Let one folder be as another is."""
        self._order(SLACK, "copy", source, target)

    def places(self, within: float) -> Sequence[Spot]:
        """Count where the worker that goes on with what lies aside may die; it does."""
        return [Spot(*place) for place in self._told("places", ASIDE, within)]

    def look(self, folder: str, within: float) -> _Seen:
        """Return what lies in a folder; of any other than that aside, a copy is looked at."""
        if folder != ASIDE:
            self.copy(folder, ASIDE)
        return _Seen(**self._told("look", ASIDE, within, kind="seen"))

    def live(self, act: str, folder: str, within: float, *more: Any) -> _Life:
        """Let a worker live."""
        ended = self._order(within, act, within, folder, *more)
        said: list[str] = []
        told: dict[str, Any] = {}
        for kind, value in ended["lines"]:
            if kind in ("said", "failed"):
                said.append(value)
            told[kind] = value
        return _Life(ended["pid"], ended["status"], ended["late"], told.get("place"), said, told)

    def end(self) -> None:
        """End it, and what it started."""
        assert self._process.stdin is not None  # noqa: S101  # for the type checker
        assert self._process.stdout is not None  # noqa: S101
        with suppress(OSError):  # it is gone
            self._process.stdin.close()
        try:
            self._process.wait(SLACK)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _told(self, act: str, folder: str, within: float, kind: str | None = None) -> Any:
        life = self.live(act, folder, within)
        if (kind or act) not in life.told:
            why = "; ".join(life.said) or f"its worker took more than {within:g} s"
            raise BadScenario(f"{self._name} cannot be lived through: {why}")
        return life.told[kind or act]

    def _order(self, within: float, *order: Any) -> Mapping[str, Any]:
        assert self._process.stdin is not None  # noqa: S101  # for the type checker
        try:
            print(json.dumps(order), file=self._process.stdin, flush=True)
        except (OSError, ValueError):
            raise self._gone() from None
        return self._answer(within + SLACK)

    def _answer(self, within: float) -> Mapping[str, Any]:
        assert self._process.stdout is not None  # noqa: S101  # for the type checker
        too_late = threading.Timer(within, self._process.kill)
        too_late.start()
        try:
            line = self._process.stdout.readline()
        except ValueError:  # it was closed meanwhile
            line = ""
        finally:
            too_late.cancel()
        if not line:
            raise self._gone()
        answer: Mapping[str, Any] = json.loads(line)
        if "failed" in answer:
            self.end()
            raise BadScenario(answer["failed"])
        return answer

    def _gone(self) -> BadScenario:
        self.end()
        return BadScenario(
            f"the process that lives {self._name} has ended (status {self._process.returncode}); reset the lab"
        )
