"""A real browser on the real command; what it takes is imported where it is used: other environments have none."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_es import RunStore
from tests.inspect.zoo import fill

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Request

WIDTHS = {"phone": 360, "desk": 1280, "wall": 1920}


@pytest.fixture(scope="session")
def playwright() -> Iterator["Playwright"]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: "Playwright") -> Iterator["Browser"]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "these tests need Chromium: apt-get install chromium"
    launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"])
    yield launched
    launched.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore(f"sqlite:///{tmp_path / 'runs.db'}") as opened:
        yield opened


@pytest.fixture
def zoo(store: RunStore, tmp_path: Path) -> RunStore:
    fill(store, tmp_path)
    return store


@pytest.fixture(scope="module")
def zoo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Is an inspector on a zoo that nobody changes."""
    folder = tmp_path_factory.mktemp("zoo")
    with RunStore(f"sqlite:///{folder / 'runs.db'}") as opened:
        fill(opened, folder)
        with inspected(opened.url) as found:
            yield found


@pytest.fixture
def url(store: RunStore) -> Iterator[str]:
    with inspected(store.url) as found:
        yield found


@contextmanager
def inspected(store_url: str, *options: str) -> Iterator[str]:
    """Run ``agent-es inspect`` meanwhile; lend the URL that it prints."""
    command = [sys.executable, "-m", "agent_es", "inspect", "--json", "--by", "dana", "--store", store_url, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"]
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=20) == 130


@pytest.fixture
def new_page(browser: "Browser") -> Iterator[Callable[..., "Page"]]:
    """Gives pages of which each says nothing on its console that a reader would have to worry about."""
    opened: list[BrowserContext] = []
    said: list[str] = []

    def listen(message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning"):
            said.append(f"{message.type}: {message.text} ({message.location})")

    def missed(request: "Request") -> None:
        if request.failure != "net::ERR_ABORTED":  # a reader went on to another page
            said.append(f"failed: {request.url} {request.failure}")

    def new(**options: Any) -> "Page":
        context = browser.new_context(**options)
        opened.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", listen)
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("requestfailed", missed)
        return page

    yield new
    for context in opened:
        context.close()
    assert said == []


@pytest.fixture
def page(url: str, new_page: Callable[..., "Page"]) -> "Page":
    """Is a browser at the inspector's first page."""
    opened = new_page(viewport={"width": WIDTHS["desk"], "height": 900})
    opened.goto(url)
    return opened


@pytest.fixture
def check_accessible() -> Callable[["Page"], None]:
    """Gives what asserts that axe-core finds nothing serious on a page."""
    from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415

    def check(page: "Page") -> None:
        found = Axe().run(page).response["violations"]
        serious = [
            (each["id"], each["help"], [node["html"][:200] for node in each["nodes"][:3]])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == []

    return check


@pytest.fixture
def picture(tmp_path: Path) -> Callable[["Page", str], Path]:
    """Gives what keeps a screenshot where ``AGENT_ES_SCREENSHOTS`` says."""
    folder = Path(os.environ.get("AGENT_ES_SCREENSHOTS") or tmp_path / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)

    def keep(page: "Page", name: str) -> Path:
        path = folder / f"{name}.png"
        page.screenshot(path=path, full_page=False)
        return path

    return keep
