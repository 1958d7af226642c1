"""What tests of the command line start from: a folder with a module of agents, and a shell in it."""

import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_es.cli import main


class Shell:
    """Calls the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._patch = patch

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._patch.setattr(sys, "argv", ["agent-es", *words])
        self._capsys.readouterr()
        status: Any = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code
        return (status or 0, *self._capsys.readouterr())


@pytest.fixture
def new_shell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[str], Shell]]:
    """Returns a shell in a folder whose module ``shop`` has that code."""

    def enter(code: str) -> Shell:
        (tmp_path / "shop.py").write_text(code)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        for name in ("AGENT_ES_STORE", "AGENT_ES_AGENT"):
            monkeypatch.delenv(name, raising=False)
        sys.modules.pop("shop", None)
        return Shell(capsys, monkeypatch)

    yield enter
    sys.modules.pop("shop", None)


@pytest.fixture
def dump() -> Callable[..., list[str]]:
    """Returns all that the folder's store has."""

    def dump_it(path: str = "agent_es.db") -> list[str]:
        with sqlite3.connect(path) as database:
            return [*database.iterdump()]

    return dump_it


@pytest.fixture
def assert_one_line() -> Callable[[str], None]:
    """Holds where standard error tells of one error, in one line, at its end."""

    def check(err: str) -> None:
        told = [line for line in err.splitlines() if line]
        assert told, "nothing was said"
        assert told[-1].startswith("error: ")
        assert "Traceback" not in err
        assert sum(line.startswith("error: ") for line in told) == 1

    return check
