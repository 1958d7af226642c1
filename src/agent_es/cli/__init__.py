"""The command ``agent-es``."""


def main() -> None:
    """Run it."""
