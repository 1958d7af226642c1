"""The command ``agent-es``.

Rule 1: an error is one line that names the thing and what to do; ``--debug`` shows where it came from.
Rule 2: what came from a model, a tool or a person is printed with its control characters made visible.
Rule 3: commands are declared in ``app`` and do their work in ``commands``, which is imported when one is called.
"""

from agent_es.cli.app import main

__all__ = ["main"]
