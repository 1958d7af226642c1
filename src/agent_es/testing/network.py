"""A network between a tool and its provider, which loses calls and answers.

Rule 1: a time-out before the commit means that the call never arrived; one after it, that it did and its answer was
lost.  The caller sees the same ``TimeoutError`` for both, and can never tell them apart.
Rule 2: faults come in the order in which calls are sent; after the last fault everything is fine.
Rule 3: an error of the provider is an answer too, and is lost as one.
"""

import random
import threading
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self, TypeVar, get_args

from agent_es.crashpoints import crash_point
from agent_es.errors import BadScenario

T = TypeVar("T")

Fault = Literal["fine", "before", "after"]
"""What becomes of one call: it is answered, it never arrives, or it arrives and its answer is lost."""

NO_ANSWER = "no answer came in time"


class FlakyNetwork:
    """Sends calls under one fault after the other, from any thread.  The next life of a worker begins with the first.

    >>> network = FlakyNetwork(["after"])
    >>> network.send(lambda: "paid")
    Traceback (most recent call last):
    TimeoutError: no answer came in time
    >>> network.send(lambda: "paid"), network.sent, network.arrived
    ('paid', 2, 2)
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.sent = 0
        """How many calls were sent."""
        self.arrived = 0
        """How many of them arrived, answered or not."""
        self._faults = iter(faults)
        self._lock = threading.Lock()

    @classmethod
    def drawn(cls, seed: int, *, before: float = 0.2, after: float = 0.2, calls: int = 100) -> Self:
        """Draw the faults of so many calls; ``before`` and ``after`` are the shares of each, between 0 and 1."""
        fine = 1 - before - after
        if min(before, after, fine) < 0:
            raise BadScenario(
                f"before={before}, after={after}: two shares of one are neither negative nor more than 1"
            )
        draw = random.Random(seed)  # noqa: S311  # faults to reproduce, not a secret
        kinds: tuple[Fault, ...] = ("fine", "before", "after")
        return cls(draw.choices(kinds, weights=(fine, before, after), k=calls))

    def send(self, call: Callable[[], T]) -> T:
        """Do the call under the next fault and return its answer.

        Raises ``TimeoutError`` where the call or its answer is lost, and ``BadScenario`` for a fault that is none.
        """
        fault = self._next()
        crash_point("the call is on its way")
        if fault == "before":
            raise TimeoutError(NO_ANSWER)
        with self._lock:
            self.arrived += 1
        try:
            answer = call()
        except Exception:
            if fault == "after":
                raise TimeoutError(NO_ANSWER) from None
            raise
        crash_point("the call has arrived, its answer has not")
        if fault == "after":
            raise TimeoutError(NO_ANSWER)
        return answer

    def _next(self) -> Any:
        with self._lock:
            self.sent += 1
            fault: Any = next(self._faults, "fine")
        if fault not in get_args(Fault):
            raise BadScenario(f"{fault!r:.80} is no fault of a network; there are {', '.join(get_args(Fault))}")
        return fault
