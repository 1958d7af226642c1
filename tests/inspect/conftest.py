from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from agent_es import RunStore
from agent_es.inspector.app import inspector
from tests.inspect.zoo import ShopRun, fill

PORT = 8765
TOKEN = "a-token-of-the-tests"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as opened:
        yield opened


@pytest.fixture
def zoo(store: RunStore, tmp_path: Path) -> RunStore:
    fill(store, tmp_path)
    return store


@pytest.fixture
def stranger(store: RunStore) -> Callable[..., httpx.Client]:
    """Gives a client that knows nothing, of an inspector on the store."""

    def new(**options: object) -> httpx.Client:
        made = {"token": TOKEN, "port": PORT, "by": "dana", "agents": {ShopRun.agent_name: ShopRun}, **options}
        application = inspector(store, **made)
        return TestClient(application, base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False)

    return new


@pytest.fixture
def client(stranger: Callable[..., httpx.Client]) -> httpx.Client:
    """Is a browser that has opened the URL with the token, and follows where it is sent."""
    opened = stranger()
    assert opened.get("/", params={"token": TOKEN}).status_code == 303
    opened.headers["Origin"] = f"http://127.0.0.1:{PORT}"
    opened.follow_redirects = True
    return opened
