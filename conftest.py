"""The code blocks of README and docs are tests: each page runs in a folder of its own."""

import asyncio
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
    namespace["_loop"] = asyncio.new_event_loop()  # what a library runs in that finds one, and leaves it open
    asyncio.set_event_loop(namespace["_loop"])


def leave(namespace: dict[str, Any]) -> None:
    """Leave nothing behind."""
    os.chdir(namespace["_here"])
    namespace["_folder"].cleanup()
    namespace["_loop"].close()
    asyncio.set_event_loop(None)


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    setup=enter,
    teardown=leave,
).pytest()
