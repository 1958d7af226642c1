"""How the command line prints: plain text in a pipe, colours on a terminal, nothing that a terminal executes."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from agent_es.cli.exits import Exit
from agent_es.errors import AgentError
from agent_es.journal import timestamp
from agent_es.visible import visible

WIDE = 10_000
"""Columns of a pipe: who reads it wants whole lines."""

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str, style: str = "") -> None:
    """Print a line on standard output."""
    out.print(Text(visible(text), style=style), soft_wrap=True)


def tell(text: str, style: str = "dim") -> None:
    """Print a line on standard error: what happens on the way."""
    err.print(Text(visible(text), style=style), soft_wrap=True)


def say_json(value: Any) -> None:
    """Print one JSON value on a line of its own, in ASCII, at once: who reads the pipe may wait for it."""
    sys.stdout.write(json.dumps(value, sort_keys=True, default=_plain) + "\n")
    sys.stdout.flush()


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible("" if cell is None else str(cell))) for cell in row))
    return table


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal while something long goes on; lend the function that moves it."""
    with Progress(console=err, transient=True, disable=total is None or not err.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def age(since: datetime, now: datetime) -> str:
    """Return how long ago something was, in its largest unit.

    >>> from datetime import UTC, timedelta
    >>> noon = datetime(2026, 7, 5, 12, tzinfo=UTC)
    >>> age(noon - timedelta(minutes=90), noon), age(noon, noon)
    ('1h', '0s')
    """
    seconds = max(0, int((now - since).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def explain(error: Exception) -> tuple[str, int]:
    """Return the one line that an error is told in, and the exit status that goes with it."""
    what = str(error) if isinstance(error, AgentError) else f"{type(error).__name__}: {error}"
    return f"error: {' '.join(visible(what).split())}", Exit.ERROR


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    raise TypeError(f"{type(value)} has no JSON form")
