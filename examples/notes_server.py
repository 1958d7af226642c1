"""A tiny MCP server over standard input and output: it keeps notes in a file.  `durable_agent.py` starts it."""

import sys
from pathlib import Path

from mcp.server import MCPServer

NOTES = Path(sys.argv[1])
server = MCPServer("notes")


@server.tool()
def notes_read() -> list[str]:
    """Read all notes."""
    return NOTES.read_text().splitlines() if NOTES.exists() else []


@server.tool()
def notes_add(text: str) -> str:
    """Add a note."""
    with NOTES.open("a") as notes:
        notes.write(f"{text}\n")
    return f"noted: {text}"


if len(sys.argv) > 1:
    server.run("stdio")
