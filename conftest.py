"""The code blocks of README and docs are tests: each page runs in a folder of its own."""

import os
import tempfile
from typing import Any

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser


def enter(namespace: dict[str, Any]) -> None:
    """Go to a new folder."""
    namespace["_here"] = os.getcwd()  # noqa: PTH109
    namespace["_folder"] = tempfile.TemporaryDirectory()
    os.chdir(namespace["_folder"].name)


def leave(namespace: dict[str, Any]) -> None:
    """Leave nothing behind."""
    os.chdir(namespace["_here"])
    namespace["_folder"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    setup=enter,
    teardown=leave,
).pytest()
