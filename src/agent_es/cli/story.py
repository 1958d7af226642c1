"""The command ``demo``: apart from the others, since it brings an agent of its own into the program."""

import tempfile
from contextlib import nullcontext
from pathlib import Path

from agent_es.cli.exits import Exit
from agent_es.cli.output import err, say, say_json
from agent_es.demo import PROVIDER_DB, RUN_ID, RUNS_DB, tell
from agent_es.errors import StoreUnusable

STYLES = {"act": "bold cyan", "line": "", "journal": "dim", "good": "bold green", "bad": "bold red"}


def demo(folder: Path | None, *, as_json: bool) -> int:
    """Tell the story in a folder that is kept, or in one that is not."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (RUNS_DB, PROVIDER_DB):
            if (folder / name).exists():
                raise StoreUnusable(f"{folder / name} is there already; name an empty folder for the demo")
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        waiting = err.status("the worker is on its way to the hard spot…") if err.is_terminal else nullcontext()

        def show_line(style: str, line: str) -> None:
            if not as_json:
                say(line if style == "act" else f"   {line}", STYLES[style])

        with waiting:
            told = tell(Path(place), show_line)
        if as_json:
            say_json(told.as_dict())
        elif folder is not None:
            say(f"The files are kept: agent-es journal {RUN_ID} --store {folder / RUNS_DB}")
    return Exit.DONE
