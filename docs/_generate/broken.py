"""The how-to about crashes: the broken agents, what the kit says of them, what pytest says of the page's own test.

Rule: what is printed is what a reader sees, but for the seconds that it took.
"""

import inspect
import os
import re
import subprocess
import sys
import tempfile
from functools import cache, partial
from pathlib import Path
from textwrap import dedent

from agent_es.demo import scenario as demo
from agent_es.testing import Scenario, fuzz
from examples import broken_agents

PAGE = Path(__file__).parents[1] / "howto" / "test-for-crashes.md"
SAVED = re.compile(
    r"^Save this as `(?P<name>[\w.]+)`:\n\n(?:<!-- skip: next -->\n\n)?```python\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MENDED = re.compile(r"^```diff\n-(?P<wrong>.*?)\n\+(?P<right>.*?)\n```$", re.MULTILINE)


def printed(name: str) -> str:
    """Return what ``agent-es fuzz`` prints of one of the examples, up to its journal."""
    return typed(f"examples.broken_agents:{name}", getattr(broken_agents, name))


def relived(name: str) -> str:
    """Return what ``agent-es fuzz --at`` prints of a smallest schedule that breaks an example, up to its journal."""
    scenario: Scenario = getattr(broken_agents, name)
    smallest = fuzz(scenario).smallest
    if smallest is None:
        raise ValueError(f"{name} is not broken")
    at = ",".join(map(str, smallest.schedule))
    return typed(f"examples.broken_agents:{name} --at {at}", scenario, smallest.schedule)


def unharmed() -> str:
    """Return what ``agent-es fuzz`` prints of the story."""
    return typed("demo", demo)


def typed(words: str, scenario: Scenario, only: tuple[int, ...] | None = None) -> str:
    """Return a command and what it prints, up to the journal."""
    told, _, _ = timeless(fuzz(scenario, only=only).told()).partition("\n  its journal:\n")
    return block("text", f"$ agent-es fuzz {words}\n{told}")


def code(name: str) -> str:
    """Return the source of one of the examples' classes, as a reader wants it."""
    return block("python", re.sub(r"  # noqa: .*", "", inspect.getsource(getattr(broken_agents, name))))


def failing_test() -> str:
    """Return what pytest says of the page's own test."""
    return block("text", "\n".join(pytest_of_the_page(mended=False)))


def passing_test() -> str:
    """Return what pytest says of it once it is mended as the page shows."""
    return block("text", "\n".join(pytest_of_the_page(mended=True)))


@cache
def pytest_of_the_page(*, mended: bool) -> list[str]:
    """Save the files that the page tells its reader to save, run pytest; return what it says of errors and in sum."""
    page = PAGE.read_text(encoding="utf-8")
    (mend,) = MENDED.finditer(page)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        for saved in SAVED.finditer(page):
            text = saved["text"].replace(mend["wrong"], mend["right"]) if mended else saved["text"]
            (folder / saved["name"]).write_text(text, encoding="utf-8")
        done = subprocess.run(  # this very program
            [sys.executable, "-m", "pytest", "-q", "--tb=short", "--no-header", "-p", "no:cacheprovider"],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))},
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            check=False,
        )
    lines = timeless(done.stdout).splitlines()
    errors = dedent("\n".join(line[1:] for line in lines if line.startswith("E "))).splitlines()
    return errors + [line for line in lines if re.match(r"crash kit: |\d+ (passed|failed)", line)]


def timeless(text: str) -> str:
    """Leave out how long it took."""
    return re.sub(r"; [\d.]+ s$| in [\d.]+s$", "", text, flags=re.MULTILINE)


def block(language: str, text: str) -> str:
    """Return a code block."""
    return f"```{language}\n{text.strip()}\n```\n"


PARTS = {
    "failing test": failing_test,
    "passing test": passing_test,
    **{
        f"the class {name}": partial(code, name)
        for name in ("NoKey", "KeyByArguments", "ActsItself", "CountsItself", "LooksAtTheRun")
    },
    **{
        f"fuzz {name}": partial(printed, name)
        for name in ("no_key", "key_by_arguments", "effect_while_deciding", "state_in_a_variable")
    },
    "one schedule": partial(relived, "no_key"),
    "fuzz demo": unharmed,
}
