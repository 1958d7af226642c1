"""``python -m agent_es`` is the command ``agent-es``."""

from agent_es.cli import main

if __name__ == "__main__":
    main()
