"""The command ``report``: a run as one file, and its timeline as a picture."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_es.cli.commands import open_store
from agent_es.cli.exits import Exit
from agent_es.cli.output import say, say_json
from agent_es.errors import AgentError
from agent_es.timeline import segments


def report(run_id: str, output: Path | None, png: Path | None, store: str, *, force: bool, as_json: bool) -> int:
    """Write the report of a run, and a picture where one is wanted."""
    report_of = _from("report", "report_of")
    save_picture = None if png is None else _from("picture", "save_picture")
    output = Path(file_name(run_id)) if output is None else output
    entries = open_store(store).journal(run_id)
    now = datetime.now(UTC)
    for path in (output, png):
        if path is not None and path.exists() and not force:
            raise AgentError(f"{path} is there already; write it anew with --force, or elsewhere with -o and --png")
    told: dict[str, Any] = {"run_id": run_id, **_written(output, report_of(entries, now=now).encode())}
    if png is not None and save_picture is not None:
        try:
            save_picture(segments(entries), png, now=now)
        except OSError as error:
            raise _unwritten(png, error) from None
        told["png"] = {"path": str(png), "sha256": sha256(png.read_bytes()).hexdigest()}
    if as_json:
        say_json(told)
    else:
        say(f"run {run_id}: {output}, sha256 {told['sha256']}" + (f"; its timeline: {png}" if png else ""))
    return Exit.DONE


def file_name(run_id: str) -> str:
    """Return what the file of a run is called that was given no name.

    >>> file_name("refunds/ORD 3300"), file_name("..")
    ('refunds-ORD-3300.html', 'run.html')
    """
    return f"{re.sub('[^A-Za-z0-9._-]+', '-', run_id).strip('.-')[:100] or 'run'}.html"


def _written(path: Path, content: bytes) -> dict[str, str]:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise _unwritten(path, error) from None
    return {"path": str(path), "sha256": sha256(content).hexdigest()}


def _unwritten(path: Path, error: OSError) -> AgentError:
    return AgentError(f"{path} cannot be written: {error.strerror or error}")


def _from(module: str, name: str) -> Callable[..., Any]:
    """Return what writes; matplotlib is slow to come, and needed for pictures alone."""
    try:
        written: Callable[..., Any] = getattr(import_module(f"agent_es.inspector.{module}"), name)
    except ImportError as error:
        raise AgentError(
            f"a {module} needs a library that is not here ({error}): pip install 'agent-es[inspect]'"
        ) from None
    return written
