"""The pages are true: what is generated is fresh, what is listed is complete, what is a command works.

The Python blocks of the pages are run by the project's ``conftest.py``, the shell blocks of the tutorial here.
"""

import inspect
import os
import queue
import re
import runpy
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

import agent_es
import agent_es.integrations.pydantic_ai
import agent_es.testing
from agent_es import errors, scratchpad, telemetry
from agent_es.cli.app import app
from agent_es.integrations import pydantic_ai as models
from agent_es.legality import LEGAL
from agent_es.testing import strategies

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_generate" not in page.parts)
HOMES = (agent_es, agent_es.testing, strategies, agent_es.integrations.pydantic_ai)
ANSWERS_WITHIN = 30.0
"""Seconds that a command of the tutorial has."""


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchor(heading: str) -> str:
    """The anchor that Markdown gives a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def anchors(page: Path) -> set[str]:
    return {anchor(title) for title in re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)}


# What is generated.


def test_the_transitions_on_the_page_are_those_that_the_code_obeys() -> None:
    page = read("concepts/how-a-run-survives.md")

    shown: dict[str, set[str]] = {}
    for status, event in re.findall(r"^\| (\w+) \| (?:`(\w+)`|nothing) \|", page, re.MULTILINE):
        shown.setdefault(status, set()).update({event} - {""})

    assert shown == {str(status): {event.__name__ for event in events} for status, events in LEGAL.items()}


def test_the_picture_and_the_table_of_transitions_say_the_same() -> None:
    page, picture = read("concepts/how-a-run-survives.md"), read("concepts/status.svg")

    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| ([\w, ]+) \|$", page, re.MULTILINE)
    told = {f"{before}: {event} leads to {to}" for before, event, after in rows for to in after.split(", ")}

    (desc,) = re.findall("<desc>(.*)</desc>", picture)
    assert set(desc.split("; ")) == told


# What is complete.


def test_every_command_and_every_option_is_documented() -> None:
    page = read("reference/cli.md")
    sections = dict(re.findall(r"^## (agent-es[\w -]*)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    program = get_command(app)

    assert set(sections) == {"agent-es", *(f"agent-es {name}" for name in program.commands)}  # type: ignore[attr-defined]
    for name, command in program.commands.items():  # type: ignore[attr-defined]
        for parameter in command.params:
            for option in parameter.opts if parameter.opts[0].startswith("-") else ():
                assert option in sections[f"agent-es {name}"], f"agent-es {name} {option}"


HOMES = (agent_es, agent_es.testing, strategies, scratchpad, models, telemetry)
"""The modules that say what of them is public."""


def test_every_public_name_is_in_the_reference() -> None:
    listed = re.findall(r"^::: ([\w.]+)$", read("reference/api.md"), re.MULTILINE)

    public = [f"{home.__name__}.{name}" for home in HOMES for name in home.__all__]
    assert sorted(listed) == sorted(public)


def test_every_error_has_a_paragraph_that_quotes_it() -> None:
    page = read("reference/errors.md")
    quoted = dict(re.findall(r"^##+ (\w+)\n\n> (.+)\n\nWhat happened: ", page, re.MULTILINE))

    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]
    assert re.findall(r"^##+ (.+)$", page, re.MULTILINE) == list(quoted)
    assert quoted == {cls.__name__: cls.__doc__ for cls in classes}


def test_every_event_has_its_example() -> None:
    page = read("reference/events.md")

    examples = re.findall(r'^\{"data": .*"type": "(\w+)"\}$', page, re.MULTILINE)
    assert examples == re.findall(r"^`type` is `(\w+)`", page, re.MULTILINE)


# What holds together.


def test_no_page_is_missing_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]

    assert sorted(re.findall(r": (\S+\.md)$", nav, re.MULTILINE)) == sorted(
        page.relative_to(DOCS).as_posix() for page in PAGES
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_link_inside_the_docs_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if "://" in target:
            continue
        name, _, place = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.is_file(), target
        assert there.is_relative_to(DOCS), target
        assert not place or place in anchors(there), target


def test_the_first_page_shows_the_two_commands_of_the_readme() -> None:
    (commands,) = re.findall("```bash\n(.*?)```", read("index.md"), re.DOTALL)

    assert commands == (ROOT / "README.md").read_text().split("```")[1].removeprefix("\n")


# What is code.


def test_every_page_that_holds_python_is_run_by_pytest() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "README.md", "docs"]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    collected = {line.rsplit(": ", 1)[0] for line in done.stdout.splitlines() if ": " in line}
    holding = {page for page in [ROOT / "README.md", *PAGES] if "\n```python\n" in page.read_text()}
    assert {page.relative_to(ROOT).as_posix() for page in holding} <= collected
    assert {"README.md", "docs"} <= set(settings["testpaths"])


def test_the_inbox_on_the_page_is_what_the_shell_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = read("howto/ask-a-person.md")
    (tmp_path / "page.py").write_text(page.split("```python\n", 1)[1].split("```", 1)[0])
    (shown,) = re.findall(r"^```text\n\$ (agent-es inbox .*?)^```$", page, re.MULTILINE | re.DOTALL)
    command, _, wanted = shown.partition("\n")
    monkeypatch.chdir(tmp_path)

    named = runpy.run_path("page.py")
    named["store"].approve("support-ORD-1", 0, by="dana")
    named["begin"]("ORD-2")
    done = subprocess.run(
        [sys.executable, "-m", "agent_es", *command.split()[1:]], capture_output=True, text=True, check=False
    )

    ago = re.compile(r"since     .* ago")
    assert ago.sub("since", done.stdout).splitlines() == ago.sub("since", wanted).splitlines(), done.stderr


# What is a command.


@dataclass(frozen=True)
class Block:
    """One thing that the reader does: save a file, or type commands and compare what they print."""

    line: int
    text: str
    file: str | None = None
    shown: str = ""


def blocks_of(page: str) -> Iterator[Block]:
    fence = re.compile(r"^([^\n]*)\n\n?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    found = list(fence.finditer(page))
    for match, after in zip(found, [*found[1:], None], strict=True):
        before, language, text = match.groups()
        line = page[: match.start(3)].count("\n") + 1
        if language == "python":
            saved = re.search(r"Save this as `([\w.]+)`:", before)
            assert saved, f"tutorial.md line {line}: under which name is this to be saved?"
            yield Block(line, text, file=saved.group(1))
        if language == "bash" and not before.startswith("<!-- not run:"):
            yield Block(line, text, shown=after.group(3) if after and after.group(2) == "text" else "")


class Shell:
    """A shell that is typed into, and whose lines are read as they come."""

    END = "the block has ended with "

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def type(self, commands: str, last: str | None) -> tuple[int, str]:
        """Give the commands; return their status and what they print, up to ``last`` where they go on without us."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{commands}\necho '{self.END}'$?\n")
        self._process.stdin.flush()
        printed: list[str] = []
        status: int | None = None
        while status is None or (last is not None and last not in printed):
            try:
                line = self._lines.get(timeout=ANSWERS_WITHIN)
            except queue.Empty:
                pytest.fail(f"no answer to:\n{commands}\nbut:\n{''.join(printed)}")
            if line.startswith(self.END):
                status = int(line.removeprefix(self.END))
            elif "Killed" not in line:  # the shell's own remark
                printed.append(line)
        return status, "".join(printed)


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    programs = Path(sys.executable).parent
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENT_ES", "COV"))}
    env: Mapping[str, str] = {**kept, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["bash", "--norc", "--noprofile"],  # noqa: S607  # the reader's
        cwd=folder,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # what it leaves behind ends with it
    )
    with process:
        try:
            yield Shell(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def timeless(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)


@pytest.mark.crash
def test_the_tutorial_works_word_for_word(tmp_path: Path) -> None:
    did: list[str] = []

    with shell(tmp_path) as reader:
        for block in blocks_of(read("tutorial.md")):
            if block.file is not None:
                (tmp_path / "tutorial" / block.file).write_text(block.text)
                did.append(f"save {block.file}")
            else:
                goes_on = block.text.endswith("&\n")
                last = block.shown.splitlines(keepends=True)[-1] if goes_on else None
                status, printed = reader.type(block.text, last)
                assert (status, timeless(printed)) == (0, timeless(block.shown)), f"tutorial.md line {block.line}"
                did.append(" ".join(block.text.split()[:2]))

    assert did[:5] == ["mkdir tutorial", "save refunds.py", "agent-es run", "kill -9", "python refunds.py"]
    assert {"agent-es journal", "agent-es resume", "agent-es show", "save deciders.py"} <= set(did)
