"""What a name names: the objects that the command line and the crash kit are told of by ``module:name``."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from agent_es.errors import BadName


def load_module(name: str) -> ModuleType:
    """Import a module, from the working directory too; raise ``BadName``."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(name)
    except Exception as error:  # a module runs whatever it likes
        raise BadName(f"importing {name} failed: {type(error).__name__}: {error}") from error


def load(name: str) -> Any:
    """Import what ``module:name`` names, from the working directory too; raise ``BadName``.

    >>> load("agent_es.loading:load") is load
    True
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise BadName(f"{name!r} names nothing to import; write module:name, as in shop.agents:RefundRun")
    module = load_module(module_name)
    if not hasattr(module, attribute):
        raise BadName(f"{name}: {module_name} has no {attribute!r}")
    return getattr(module, attribute)
