"""One bridge from calls that block to code that awaits: there is no second copy of anything for it."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def awaitable(call: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Return a form of a blocking call that can be awaited; it runs in a thread of the event loop's pool.

    Every call of a store, a runner or a projection has this form.  One that is cancelled while it runs goes on to
    its end in its thread: an append is never cut in half, and what it came to is in the journal.

    >>> asyncio.run(awaitable(int)("18"))
    18
    """

    @wraps(call)
    async def awaited(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(call, *args, **kwargs)

    return awaited
