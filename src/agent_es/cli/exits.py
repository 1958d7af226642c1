"""What an exit status of ``agent-es`` means."""

from enum import IntEnum


class Exit(IntEnum):
    """The exit statuses; 2, wrong usage, is the option parser's."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    WAITS = 3
    FAILED = 4
    INTERRUPTED = 130
