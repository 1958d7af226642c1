"""What a model says as it comes: for whoever watches.  The journal has whole decisions only."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer.

    Where ``attempt`` is another one than before, the answer begins anew: what came of it so far counts no more.
    """

    run_id: str
    turn: int
    attempt: int
    """Which request of this turn it answers, in this process: counted from 1."""
    index: int
    """Which piece of the answer it is: counted from 0 in each attempt."""
    kind: Literal["text", "thinking", "tool_call"]
    text: str
    """What was said; of a call, a piece of its arguments."""
    tool: str = ""
    """Which tool is called, with the first piece of a call."""


OnDelta = Callable[[Delta], Awaitable[object] | object]
"""Is told each piece in order; where it raises, the answer is lost, and the run can be resumed."""


class Deltas:
    """Keeps pieces until somebody reads them: give it as ``on_delta``, and read it by ``async for``.

    The decider may be at work in another thread or event loop.  ``close()`` ends the reading, when all is read.
    """

    def __init__(self) -> None:
        self._kept: deque[Delta] = deque()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def __call__(self, delta: Delta) -> None:
        """Keep a piece."""
        with self._lock:
            self._kept.append(delta)
        self._wake()

    def close(self) -> None:
        """Say that nothing more comes."""
        self._is_closed = True
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        while True:
            with self._lock:
                if self._kept:
                    return self._kept.popleft()
                if self._is_closed:
                    raise StopAsyncIteration
                told = asyncio.Event()
                self._waiting.append((asyncio.get_running_loop(), told))
            await told.wait()

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, told in waiting:
            with suppress(RuntimeError):  # the loop of a reader that went away is closed
                loop.call_soon_threadsafe(told.set)
