"""How fast it is here: workloads that need nothing but the library, each against its floor.

Rule 1: a figure is made by a run of the program, never written by hand; what is judged is a ratio of two sides.
Rule 2: nothing is imported here, so that a command may name the workloads and start fast.
"""

from enum import StrEnum


class Workload(StrEnum):
    """What ``agent-es bench`` can measure."""

    APPEND = "append"
    REPLAY = "replay"
    HELP = "help"
    IMPORTS = "imports"
