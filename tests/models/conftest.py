"""Stubs of models, closed when the test ends: in this process, or as one that can be killed."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.models.script import Lines, Script, write_script
from tests.models.stub import Request, Stub, read_transcript

ROOT = Path(__file__).parents[2]


class StubProcess:
    """A stub in a process of its own: it can be killed, and started again at the same URL."""

    def __init__(self, script: Lines, folder: Path) -> None:
        self._script, self.log = folder / "script.json", folder / "transcript.jsonl"
        write_script(self._script, script)
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start it; it goes on from its transcript."""
        port = str(urlsplit(self.url).port or 0)
        files = ["--script", str(self._script), "--log", str(self.log), "--port", port]
        program = [sys.executable, "-m", "tests.models.stub", *files]
        self._process = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.url = self._process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        self._process.wait(30)
        self._process.stdout.close()

    @property
    def requests(self) -> list[Request]:
        """All requests so far, from the file."""
        return read_transcript(self.log)


@pytest.fixture
def new_stub() -> Iterator[Callable[[Script], Stub]]:
    """Starts a stub in this process with a script."""
    with ExitStack() as started:
        yield lambda script: started.enter_context(Stub(script))


@pytest.fixture
def new_stub_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Lines], StubProcess]]:
    """Starts a stub in a process of its own with a script."""
    with ExitStack() as started:

        def start(script: Lines) -> StubProcess:
            process = StubProcess(script, tmp_path_factory.mktemp("stub"))
            started.callback(process.kill)
            return process

        yield start
