"""What users may import, and the tree of errors."""

import inspect
import subprocess
import sys
from pathlib import Path

import agent_es
from agent_es import errors

ROOT = Path(__file__).parents[2]


def test_every_public_name_can_be_imported_from_the_root() -> None:
    for name in agent_es.__all__:
        assert getattr(agent_es, name) is not None


def test_the_public_names_are_listed_in_order() -> None:
    assert agent_es.__all__ == sorted(agent_es.__all__)
    assert set(agent_es.__all__) <= set(dir(agent_es))


def test_importing_the_root_imports_nothing_heavy() -> None:
    code = "import sys, agent_es; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert "agent_es" in loaded
    assert not {"sqlalchemy", "pydantic", "eventsourcing", "typer", "rich"} & set(loaded)


def test_the_pure_modules_load_no_database() -> None:
    code = "import sys, agent_es.step, agent_es.decider; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert not {"sqlalchemy", "eventsourcing_sqlalchemy", "agent_es.store"} & set(loaded)


def test_the_tree_in_the_errors_docstring_is_the_tree_of_classes() -> None:
    drawn = []
    for line in (errors.__doc__ or "").splitlines():
        if "──" in line or line.strip() == "AgentError":
            head, _, tail = line.rpartition("── ")
            drawn.append((len(head.replace("├", " ").replace("└", " ")) // 4, tail.split()[0]))

    def walk(cls: type[Exception], depth: int) -> list[tuple[int, str]]:
        children = [child for child in cls.__subclasses__() if child.__module__ == errors.__name__]
        return [(depth, cls.__name__), *(row for child in children for row in walk(child, depth + 1))]

    tree = walk(errors.AgentError, 0)
    assert [name for _, name in drawn] == [name for _, name in tree]
    assert [depth for depth, _ in drawn] == [depth for depth, _ in tree]


def test_an_errors_docstring_is_its_default_message() -> None:
    for name, cls in inspect.getmembers(errors, inspect.isclass):
        assert issubclass(cls, errors.AgentError), name
        assert str(cls()) == cls.__doc__


def test_ci_runs_the_readmes_test_command_word_for_word() -> None:
    readme = (ROOT / "README.md").read_text()
    block = readme.split("```")[1].strip().splitlines()

    assert len(block) == 2
    assert block[1] in (ROOT / ".ci/run").read_text().splitlines()
