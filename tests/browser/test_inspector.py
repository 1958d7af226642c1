"""The inspector as a person uses it: each test opens the command's own URL in a browser."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from agent_es import AgentRun, RunStore
from tests.inspect.zoo import HOSTILE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

Check = Callable[["Page"], None]
Keep = Callable[["Page", str], Path]
Opened = Callable[..., "Page"]

WIDTHS = {"phone": 360, "desk": 1280, "wall": 1920}
PAGES = {"runs": "/", "inbox": "/inbox", "run": "/runs/run-7f3a", "moment": "/runs/run-7f3a/at/3",
         "asking": "/runs/approval-1", "hostile": "/runs/hostile-1/at/2", "lab": "/lab",
         "compare": "/compare?left=run-7f3a&right=failed-1"}  # fmt: skip


SLOW = """
import time
from agent_es import AgentRun, CallTool, Effect, Finish, ScriptedDecider, tool


class SlowRun(AgentRun):
    decider = ScriptedDecider([*[CallTool("rest", {"n": n}) for n in range(8)], Finish("rested")])

    @tool(effect=Effect.READ)
    def rest(self, n: int) -> int:
        time.sleep(0.4)
        return n
"""


class SlowRun(AgentRun):
    """Is what the worker's agent is called."""


def expect(found: Any) -> Any:
    from playwright.sync_api import expect as expecting  # noqa: PLC0415

    return expecting(found)


def go(page: "Page", path: str) -> None:
    """Open another page of the inspector."""
    parts = urlsplit(page.url)
    page.goto(f"{parts.scheme}://{parts.netloc}{path}")


@pytest.fixture
def worker(store: RunStore, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Gives what starts a worker process of the slow agent, which is ended with the test."""
    (tmp_path / "slow.py").write_text(SLOW)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command = [sys.executable, "-m", "agent_es", "worker", "slow:SlowRun", "--store", store.url, "--until-idle"]
        started.append(subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL))

    yield start
    for process in started:
        process.terminate()
        process.wait(timeout=30)


def watch_shifts(page: "Page") -> Callable[[], float]:
    """Count how far things move that nobody moved; return what tells it."""
    page.evaluate(
        "() => { window.shifted = 0; new PerformanceObserver(list => { for (const entry of list.getEntries()) "
        "if (!entry.hadRecentInput) window.shifted += entry.value; }).observe({type: 'layout-shift'}); }"
    )
    return lambda: float(page.evaluate("window.shifted"))


def test_the_url_opens_and_does_not_keep_the_token(page: "Page") -> None:
    expect(page).to_have_title("Runs · agent_es")

    assert urlsplit(page.url).query == ""
    page.reload()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()


def test_runs_are_found_by_status_and_by_text(zoo: RunStore, page: "Page") -> None:
    page.reload()
    rows = page.locator("table.runs tbody tr")
    expect(rows).to_have_count(len(zoo.runs()))

    page.locator("#count-waiting").click()
    expect(rows).to_have_count(len(zoo.runs(status="waiting")))

    page.get_by_label("text").fill("doubt")
    page.get_by_label("text").press("Enter")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("doubt-1")


def test_the_slider_moves_through_time_and_each_moment_has_its_url(zoo: RunStore, page: "Page") -> None:
    go(page, "/runs/run-7f3a")
    slider = page.get_by_role("slider", name="moment")
    state = page.locator("#moment")
    expect(state).to_contain_text("seq 6")

    slider.focus()
    for _ in range(3):
        slider.press("ArrowLeft")
    expect(state).to_contain_text("Event 3")
    expect(page).to_have_url(re.compile("/runs/run-7f3a/at/3$"))
    expect(page.locator("output[for=seq]")).to_have_text("3")
    expect(page.locator(".difference")).to_contain_text("steps[1]")

    slider.press("ArrowRight")
    expect(page).to_have_url(re.compile("/at/4$"))
    expect(page.locator(".difference")).to_contain_text("attempt")
    page.reload()
    expect(state).to_contain_text("Event 4")
    page.get_by_role("link", name="follow the run").click()
    expect(page).to_have_url(re.compile("/runs/run-7f3a$"))


def test_a_run_is_seen_as_it_grows_and_nothing_jumps(
    store: RunStore, page: "Page", worker: Callable[[], None]
) -> None:
    store.start(SlowRun, run_id="slow-1", goal="Rest")
    go(page, "/runs/slow-1")
    journal = page.locator("#journal > li")
    expect(journal).to_have_count(1)
    expect(page.locator("#live")).to_have_text("live")
    journal.first.locator("summary").click()
    shifted = watch_shifts(page)

    worker()
    expect(journal.nth(4)).to_be_visible(timeout=20_000)
    expect(page.locator("#head")).to_contain_text("running")
    expect(page.locator("#head")).to_contain_text("done", timeout=20_000)

    expect(journal).to_have_count(store.record("slow-1").cursor)
    assert [int(text) for text in page.locator("#journal > li .seq").all_inner_texts()] == [
        entry.seq for entry in store.journal("slow-1")
    ]
    expect(page.locator("#seq")).to_have_attribute("max", str(store.record("slow-1").cursor - 1))
    expect(page.locator("#moment")).to_contain_text("finished")
    expect(journal.first.locator("pre")).to_be_visible()  # what a reader opened stays open
    assert shifted() < 0.1


def test_a_page_that_stands_at_a_moment_stays_there_while_the_run_goes_on(
    store: RunStore, page: "Page", worker: Callable[[], None]
) -> None:
    store.start(SlowRun, run_id="slow-1", goal="Rest")
    go(page, "/runs/slow-1/at/0")
    expect(page.locator("#live")).to_have_text("live")

    worker()
    expect(page.locator("#journal > li").nth(4)).to_be_visible(timeout=20_000)

    expect(page.locator("#moment")).to_contain_text("Event 0")
    expect(page.locator("#head")).to_contain_text("running")


def test_the_table_follows_the_runs_without_a_jump(store: RunStore, page: "Page", worker: Callable[[], None]) -> None:
    for n in range(3):
        store.start(SlowRun, run_id=f"slow-{n}", goal="Rest")
    page.reload()
    expect(page.locator("#live")).to_have_text("live")
    shifted = watch_shifts(page)

    worker()

    expect(page.locator("#count-running")).not_to_contain_text("0", timeout=20_000)
    expect(page.locator("#count-done")).to_contain_text("3", timeout=30_000)
    expect(page.locator("table.runs")).to_contain_text("done")
    assert shifted() < 0.1


def test_a_yes_is_given_in_the_inbox_and_is_gone_from_it(zoo: RunStore, page: "Page", picture: Keep) -> None:
    go(page, "/inbox")
    item = page.get_by_role("article", name="approval of run approval-1")
    expect(item).to_contain_text("480.00")
    picture(page, "inbox")

    item.get_by_role("button", name="Approve").click()

    expect(page).to_have_url(re.compile("/inbox$"))
    expect(item).to_have_count(0)
    assert zoo.journal("approval-1")[-1].data["by"] == "dana"


def test_what_comes_is_in_the_inbox_at_once_and_who_writes_is_not_disturbed(zoo: RunStore, page: "Page") -> None:
    go(page, "/inbox")
    expect(page.locator("#live")).to_have_text("live")
    reason = page.get_by_role("article", name="approval of run approval-1").get_by_label("why").first
    reason.fill("because")

    zoo.pause("awaits-1", by="ann", reason="wait a moment")
    page.wait_for_timeout(1_500)
    expect(reason).to_have_value("because")
    expect(page.get_by_role("article", name="paused of run awaits-1")).to_have_count(0)

    reason.blur()
    expect(page.get_by_role("article", name="paused of run awaits-1")).to_be_visible()


def test_who_answers_after_another_person_is_told_so(zoo: RunStore, url: str, browser: "Browser") -> None:
    page = browser.new_page(java_script_enabled=False)  # nothing takes the button away meanwhile
    page.goto(url)
    go(page, "/runs/asking-1")

    zoo.answer("asking-1", 0, "the old one", by="ann")
    page.get_by_role("button", name="the new one").click()

    expect(page.get_by_role("alert")).to_contain_text("ann")
    assert zoo.load("asking-1").steps[0].result["answer"] == "the old one"
    page.close()


@pytest.mark.parametrize("path", ["/runs/hostile-1", "/runs/hostile-1/at/2", "/runs/hostile-1/at/4", "/", "/inbox"])
def test_nothing_runs_that_a_model_or_a_tool_wrote(zoo: RunStore, page: "Page", path: str) -> None:
    zoo.steer("awaits-1", HOSTILE.replace("\0", ""), by="dana")
    zoo.pause("awaits-1", by="dana", reason=HOSTILE.replace("\0", ""))

    go(page, path)
    for summary in page.locator("summary").all():
        if summary.is_visible():
            summary.click()

    assert "owned" not in page.title()
    assert page.locator("main script, main img, main style, main iframe").count() == 0
    expect(page.locator("main h1").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert len(page.content()) < 1_000_000
    if path != "/":
        expect(page.locator("main")).to_contain_text("<script>document.title='owned'</script>")
        expect(page.locator("main")).to_contain_text(r"\u202e")


def test_the_lab_shows_who_pays_twice_and_who_pays_once(page: "Page", picture: Keep, check_accessible: Check) -> None:
    go(page, "/lab")
    page.get_by_role("button", name="Crash it").click()
    expect(page.locator(".lab-death")).to_contain_text("killed by signal 9")
    naive, durable = page.locator(".lab-side").nth(0), page.locator(".lab-side").nth(1)
    expect(durable.locator(".lab-figure")).to_have_text("180.00")

    page.get_by_role("button", name="Naive restart").click()
    expect(naive.locator(".lab-figure")).to_have_text("360.00")
    expect(naive.locator(".lab-word")).to_contain_text("DOUBLE")

    page.get_by_role("button", name="Durable resume").click()
    expect(durable.locator(".lab-word")).to_contain_text("ONCE")
    expect(durable.locator(".lab-figure")).to_have_text("180.00")
    expect(durable).to_contain_text("7 events")

    picture(page, "lab")
    check_accessible(page)
    page.get_by_role("button", name="Reset").click()
    expect(page.locator(".lab-before")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_readable_for_all_and_fits(
    zoo_url: str, new_page: Opened, check_accessible: Check, picture: Keep, name: str, scheme: str
) -> None:
    for place, width in WIDTHS.items():
        page = new_page(viewport={"width": width, "height": 1000}, color_scheme=scheme)
        page.goto(zoo_url)
        go(page, PAGES[name])
        expect(page.locator("main h1").first).to_be_visible()

        picture(page, f"{name}-{place}-{scheme}")

        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, place
        if place != "wall":
            check_accessible(page)


def test_everything_is_reached_by_the_keyboard(zoo: RunStore, page: "Page") -> None:
    go(page, "/runs/approval-1")

    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("to the content")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    reached = set()
    for _ in range(60):
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        page.keyboard.press("Tab")

    assert {"journal as JSON lines", "Approve", "Deny", "Do something to this run", "seq"} <= reached


def test_without_scripts_everything_but_the_live_part_works(zoo: RunStore, url: str, new_page: Opened) -> None:
    page = new_page(java_script_enabled=False)
    page.goto(url)
    go(page, "/runs/run-7f3a")
    page.get_by_role("link", name="← before").click()
    assert page.url.endswith("/runs/run-7f3a/at/5")

    go(page, "/inbox")
    page.get_by_role("article", name="approval of run approval-1").get_by_role("button", name="Deny").click()

    assert page.url.endswith("/inbox")
    assert zoo.load("approval-1").steps[1].status == "failed"
