"""What a stub of a model says, and how it fails: values, which a file can hold.

Rule: the first requests of a turn meet its faults, each as often as it says; those after these get the answers of the
turn in order, and the last of them again and again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter


class Ill(StrEnum):
    """How a request can go wrong, though it is well-formed."""

    RATE_LIMITED = "429"
    BROKEN = "500"
    OVERLOADED = "503"
    CUT_BEFORE = "the connection is cut before the answer"
    CUT_BODY = "the connection is cut in the middle of the body"
    CUT_STREAM = "the stream is cut in the middle of its last text or arguments"
    MALFORMED = "the body is not JSON"
    EMPTY_BODY = "the body is empty"
    EMPTY_CHOICES = "the answer has no choice, and no output"
    NO_FINISH = "the answer ends without a reason"
    SLOW = "the answer is good, and late"


@dataclass(frozen=True)
class Fault:
    """``times`` requests go wrong; ``seconds`` is what ``SLOW`` takes, and what ``RATE_LIMITED`` asks to wait."""

    ill: Ill
    times: int = 1
    seconds: float = 0.0


@dataclass(frozen=True)
class Call:
    """One call: ``arguments`` is sent as it is, JSON or not; an ``id`` of None becomes one of its own."""

    name: str
    arguments: str = "{}"
    id: str | None = None


@dataclass(frozen=True)
class Answer:
    """What the model says; ``finish`` of None is the reason that fits; ``reasoning`` is opaque: encrypted content."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str | None = None
    finish: str | None = None

    @property
    def reason(self) -> str:
        """Why it ends: ``stop``, ``tool_calls``, ``length`` or ``content_filter``."""
        return self.finish or ("tool_calls" if self.calls else "stop")


@dataclass(frozen=True)
class Turn:
    """What meets the requests of one turn: the faults first, then the answers."""

    answers: tuple[Answer, ...]
    faults: tuple[Fault, ...] = ()

    def at(self, nth: int) -> tuple[Fault | None, int]:
        """Return what the request gets that had ``nth`` before it: a fault or none, and the index of the answer."""
        faults = [fault for fault in self.faults for _ in range(fault.times)]
        if nth < len(faults):
            return faults[nth], 0
        return None, min(nth - len(faults), len(self.answers) - 1)


@dataclass(frozen=True)
class Asked:
    """A request as a script sees it: ``turn`` counts the model's turns, ``opening`` is what the user said first."""

    path: str
    turn: int
    opening: str
    body: str


Lines = Sequence[Turn | Answer]
Script = Lines | Callable[[Asked], Turn | Answer]
"""A turn for each turn; or a function of the request, for requests that do not hold all turns that there were."""

FILE = TypeAdapter(list[Turn])


def turn_of(script: Script, asked: Asked) -> Turn | None:
    """Return the turn that a request is at, None where the script has ended."""
    if callable(script):
        return as_turn(script(asked))
    return as_turn(script[asked.turn]) if asked.turn < len(script) else None


def as_turn(line: Turn | Answer) -> Turn:
    return line if isinstance(line, Turn) else Turn((line,))


def write_script(path: Path, script: Lines) -> None:
    """Write a script for a stub that is a process of its own."""
    path.write_bytes(FILE.dump_json([as_turn(line) for line in script], indent=1))


def read_script(path: Path) -> list[Turn]:
    return FILE.validate_json(path.read_bytes())
