"""The command ``fuzz``: a progress bar on the way, a report at the end."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agent_es.cli.exits import Exit
from agent_es.cli.output import err, say, say_json
from agent_es.errors import BadScenario
from agent_es.testing import survival
from agent_es.testing.journey import Schedule
from agent_es.testing.kill import killing
from agent_es.testing.scenario import load_scenario
from agent_es.testing.survival import OnRun

DEMO = "agent_es.demo:scenario"


def fuzz(
    scenario: str,
    crashes: int,
    seconds: float | None,
    sample: int | None,
    seed: int,
    at: str | None,
    *,
    with_kills: bool,
    as_json: bool,
) -> int:
    """Live through a scenario, and report."""
    name = DEMO if scenario == "demo" else scenario
    loaded = load_scenario(name)
    only = None if at is None else schedule_of(at)
    with ExitStack() as left:
        kill = left.enter_context(killing(name)) if with_kills else None
        on_run = left.enter_context(progress_of(f"fuzzing {name}", hidden=only is not None))
        report = survival.fuzz(
            loaded, crashes=crashes, only=only, sample=sample, seconds=seconds, seed=seed, kill=kill, on_run=on_run
        )
    if as_json:
        say_json(report.as_dict())
    else:
        say(report.told(), "red" if report.broken else "")
    return Exit.ERROR if report.broken else Exit.DONE


def schedule_of(text: str) -> Schedule:
    """Return the places that a text lists.

    >>> schedule_of("23,4")
    (23, 4)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadScenario(f"--at {text!r} lists no places; write their numbers, as in --at 23,4") from None


@contextmanager
def progress_of(what: str, *, hidden: bool) -> Iterator[OnRun]:
    """Show a bar on a terminal, unless somebody debugs there; lend what moves it."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=hidden or not err.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
