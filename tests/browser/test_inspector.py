"""The inspector as a person uses it: each test opens the command's own URL in a browser."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from agent_es import RunStore

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

SLOW_AGENT = """
import time
from agent_es import AgentRun, CallTool, Effect, Finish, ScriptedDecider, tool

class SlowRun(AgentRun):
    decider = ScriptedDecider([*[CallTool("rest", {"n": n}) for n in range(12)], Finish("rested")])

    @tool(effect=Effect.READ)
    def rest(self, n: int) -> int:
        time.sleep(0.3)
        return n
"""


def expect(found: object) -> object:
    from playwright.sync_api import expect as expecting  # noqa: PLC0415

    return expecting(found)


def test_the_url_opens_and_does_not_keep_the_token(page: "Page") -> None:
    expect(page).to_have_title("Runs · agent_es")

    assert urlsplit(page.url).query == ""
    page.reload()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()


def test_runs_are_found_by_status_and_by_text(
    zoo: RunStore, page: "Page", picture: Callable[["Page", str], Path]
) -> None:
    page.reload()
    picture(page, "runs")
    rows = page.locator("table.runs tbody tr")
    expect(rows).to_have_count(len(zoo.runs()))

    page.get_by_role("link", name="waiting").first.click()
    expect(rows).to_have_count(len(zoo.runs(status="waiting")))

    page.get_by_label("text").fill("doubt")
    page.get_by_label("text").press("Enter")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("doubt-1")
