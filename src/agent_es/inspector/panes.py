"""What lies there after an act, beside what lay there before, and beside what there is without a crash.

Rule: no process and no file; what a look found becomes what is shown.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Literal

from agent_es.testing.journey import many
from agent_es.testing.survival import NOT_COUNTED

KeptBy = Literal["store", "provider"]


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
    kept_by: KeptBy
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
class Seen:
    """What a look found."""

    journal: Sequence[Sequence[Any]]
    claimed: Sequence[tuple[str, str]]
    status: str
    is_over: bool
    in_doubt: bool
    effects: Sequence[str] | None
    ledger: Mapping[str, Any] | None
    sent: Mapping[str, Any] | None

    def kept(self) -> Mapping[tuple[str, KeptBy], str]:
        """Return what is told of each key, by the key and who keeps it."""
        kept: dict[tuple[str, KeptBy], str] = {(key, "store"): f"held by {step}" for key, step in self.claimed}
        return kept | {(key, "provider"): _sent(times) for key, times in (self.sent or {}).items()}


NOTHING = Seen((), (), "not started", is_over=False, in_doubt=False, effects=None, ledger=None, sent=None)


def panes_of(seen: Seen, before: Seen, calm: Seen, *, has_ended: bool, in_doubt: bool) -> Panes:
    """Return what is shown of a look; ``before`` is the last one, ``calm`` one at a life without a crash."""
    expected = Counter(calm.effects or ())
    kept, had = seen.kept(), before.kept()
    return Panes(
        journal=[
            Line(seq, kind, brief, text, n >= len(before.journal))
            for n, (seq, kind, brief, text) in enumerate(seen.journal)
        ],
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


def _verdict(seen: Seen, calm: Seen, *, has_ended: bool, in_doubt: bool) -> Verdict:
    """Say what there is, beside what there is without a crash."""
    if seen.effects is None:
        return Verdict(Word.NOT_COUNTED, "", "", [NOT_COUNTED])
    happened, expected = Counter(seen.effects), Counter(calm.effects or ())
    double, missing = happened - expected, expected - happened
    figure, right = _figure(seen), _figure(calm)
    told = [
        f"{what} happened {many(happened[what], 'time')}, and {expected[what]} without a crash" for what in double
    ]
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
        told = told or [f"all of it has happened, and the journal says that the run is {seen.status}"]
    else:
        word = Word.LESS if missing else Word.ONCE
        told = told or ["everything happened as often as without a crash"]
    return Verdict(word, figure, right, told)


def _figure(seen: Seen) -> str:
    """Return what it comes to: the sum of the ledger, or else how many things happened.

    >>> from dataclasses import replace
    >>> _figure(replace(NOTHING, effects=["ship P"])), _figure(replace(NOTHING, ledger={"A": "1.50", "B": "2.00"}))
    ('1 effect', '3.50')
    """
    if seen.ledger is not None:
        try:
            return f"{sum((Decimal(str(amount)) for amount in seen.ledger.values()), Decimal('0.00')):f}"
        except InvalidOperation:
            pass  # it holds something else than amounts
    return many(len(seen.effects or ()), "effect")


def _sent(times: Any) -> str:
    """Say how often a key was sent.

    >>> _sent(1), _sent(2)
    ('sent once', 'sent 2 times')
    """
    return "sent once" if times == 1 else f"sent {times} times"
