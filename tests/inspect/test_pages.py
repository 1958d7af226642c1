"""What the pages say, without a browser: lists, one run, its moments, two runs, the journal, what waits."""

import html
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from urllib.parse import quote

import httpx
import pytest

from agent_es import Runner, RunStore, ScriptedDecider, Status
from agent_es.decider import Finish
from agent_es.inspector.runs import AT_ONCE
from tests.inspect.zoo import HOSTILE, STORIES, ShopRun, tell

LINK = re.compile(r'<th scope="row"><a id="run-\d+" href="/runs/([^"]+)"')


class Elements(HTMLParser):
    """Lists what of a page may act."""

    def __init__(self) -> None:
        super().__init__()
        self.acting: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "style", "iframe", "object", "embed", "base"):
            self.acting.append(dict(attrs).get("src"))
        for name, value in attrs:
            if name.startswith("on") or name == "style" or "javascript:" in (value or ""):
                self.acting.append(f"{name}={value}")


def text_of(answer: httpx.Response) -> str:
    """Return what a reader sees, roughly: the page without tags, entities resolved."""
    return html.unescape(re.sub(r"<[^>]+>", " ", answer.text))


def pages_of(client: httpx.Client, first: str, rel: str) -> list[list[str]]:
    """Return the runs of each page, going on by its link."""
    found, url = [], first
    while True:
        answer = client.get(url)
        found.append(LINK.findall(answer.text))
        link = re.search(rf'<a href="([^"]+)" rel="{rel}"', answer.text)
        if link is None:
            return found
        url = html.unescape(link[1])


@pytest.fixture
def many(store: RunStore) -> list[str]:
    ids = [f"run-{n:03}" for n in range(2 * AT_ONCE + 7)]
    for n, run_id in enumerate(ids):
        store.start(ShopRun, run_id=run_id, goal="even" if n % 2 == 0 else "odd 100%")
    return ids[::-1]


def test_the_table_says_of_each_run_what_its_row_has(client: httpx.Client, zoo: RunStore) -> None:
    page = client.get("/")

    assert LINK.findall(page.text) == [record.run_id for record in zoo.runs()]
    approval = next(row for row in page.text.split("<tr>") if "approval-1" in row)
    assert "waiting: approval" in html.unescape(re.sub(r"<[^>]+>", "", approval))
    assert "0.025" in approval
    assert str(zoo.record("approval-1").cursor) in approval
    assert "from now" in approval


def test_all_runs_are_reached_by_the_links_each_once_forwards_and_backwards(
    client: httpx.Client, many: list[str]
) -> None:
    forwards = pages_of(client, "/", "next")
    backwards = pages_of(client, "/?before=last", "prev")

    assert [run_id for page in forwards for run_id in page] == many
    assert [run_id for page in reversed(backwards) for run_id in page] == many
    assert max(map(len, forwards + backwards)) == AT_ONCE


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status=waiting", {"asleep-1", "parked-1", "awaits-1", "asking-1", "approval-1", "doubt-1"}),
        ("status=waiting&waiting_for=doubt", {"doubt-1"}),
        ("agent=RefundRun", {"run-7f3a"}),
        ("tag=order%3DORD-1", {"pending-1"}),
        ("q=REFUND", {"run-7f3a"}),
        ("q=doubt", {"doubt-1"}),
        ("q=%25", set()),
        ("q=_", set()),
        ("status=failed&q=done", set()),
    ],
)
def test_runs_are_found_by_what_a_url_says(client: httpx.Client, zoo: RunStore, query: str, found: set[str]) -> None:
    assert set(LINK.findall(client.get(f"/?{query}").text)) == found


@pytest.mark.parametrize(
    "query",
    ["status=perhaps", "tag=order", "after=yesterday", "before=x", "q=" + "x" * 5_000, "after=2026-07-05T10:00:00,"],
)
def test_a_url_that_asks_for_what_cannot_be_is_answered_in_words(client: httpx.Client, zoo: RunStore, query: str) -> None:
    answer = client.get(f"/?{query}")

    assert answer.status_code in (200, 400)
    assert "Traceback" not in answer.text


def test_the_counts_are_of_all_runs_whatever_is_shown(client: httpx.Client, zoo: RunStore) -> None:
    page = " ".join(text_of(client.get("/?q=doubt")).split())

    counts = zoo.counts()
    assert f"all {counts.total}" in page
    for status, count in counts.by_status.items():
        assert re.search(rf"{status} {count}\b", page), status


def test_a_moment_shows_the_state_folded_to_it_and_what_it_changed(client: httpx.Client, zoo: RunStore) -> None:
    crashed, again = client.get("/runs/run-7f3a/at/3"), client.get("/runs/run-7f3a/at/4")

    assert "steps[1]" in crashed.text
    assert re.search(r"steps\[1\]\.attempt\b.*?1.*?2", again.text, re.DOTALL)
    assert "follow the run" in crashed.text
    assert 'data-follow="no"' in crashed.text
    assert 'data-follow="no"' not in client.get("/runs/run-7f3a").text


@pytest.mark.parametrize("run_id", [*STORIES, "run-7f3a"])
def test_every_moment_of_every_run_has_a_page_of_bounded_size(
    client: httpx.Client, zoo: RunStore, run_id: str
) -> None:
    for seq in range(zoo.record(run_id).cursor):
        answer = client.get(f"/runs/{quote(run_id, safe='')}/at/{seq}")

        assert answer.status_code == 200, seq
        assert len(answer.content) < 400_000
        assert "{{" not in answer.text.replace("{{ 7 * 7 }}", "")


@pytest.mark.parametrize("moment", ["at/99", "at/-1", "at/x", "at?seq=99", "at?seq=", "at?seq=" + "9" * 30])
def test_a_moment_that_is_not_there_is_said_to_be_none(client: httpx.Client, zoo: RunStore, moment: str) -> None:
    assert client.get(f"/runs/done-1/{moment}").status_code == 404


def test_the_slider_gets_the_moment_alone_and_its_url_is_the_moments(client: httpx.Client, zoo: RunStore) -> None:
    answer = client.get("/runs/run-7f3a/at", params={"seq": "3"}, headers={"HX-Request": "true"})

    assert answer.headers["hx-replace-url"] == "/runs/run-7f3a/at/3"
    assert answer.text.lstrip().startswith('<section id="moment"')
    assert "<html" not in answer.text


def test_the_journal_comes_as_the_command_prints_it(client: httpx.Client, zoo: RunStore) -> None:
    for run_id in ("run-7f3a", "hostile-1"):
        lines = client.get(f"/runs/{run_id}/journal.jsonl").content.decode(errors="surrogatepass").splitlines()

        assert lines == [str(entry) for entry in zoo.journal(run_id)]
    assert client.get("/runs/nobody/journal.jsonl").status_code == 404


def test_two_runs_stand_beside_each_other_with_where_they_differ(client: httpx.Client, zoo: RunStore) -> None:
    page = client.get("/compare", params={"left": "done-1", "right": "failed-1"})
    moments = client.get("/compare", params={"left": "run-7f3a", "left_at": 3, "right": "run-7f3a", "right_at": 5})

    assert "the order is older than the shop" in text_of(page)
    assert re.search(r"status.*?done.*?failed", text_of(page), re.DOTALL)
    assert "steps[1].status" in text_of(moments)
    assert client.get("/compare", params={"left": "done-1", "right": "nobody"}).status_code == 404
    assert client.get("/compare", params={"left": "done-1", "left_at": "99", "right": "done-1"}).status_code == 404


def test_what_others_wrote_is_text_on_every_page(client: httpx.Client, zoo: RunStore) -> None:
    zoo.steer("awaits-1", HOSTILE.replace("\0", ""), by="dana")
    zoo.pause("awaits-1", by="dana", reason=HOSTILE.replace("\0", ""))
    pages = ["/", "/inbox", "/runs/hostile-1", "/runs/hostile-1/at/1", "/runs/hostile-1/at/2", "/runs/awaits-1",
             "/?q=" + quote(HOSTILE[:900].replace("\0", "")), "/runs/" + quote("<b>x", safe="") ,
             "/compare?left=hostile-1&right=awaits-1"]  # fmt: skip

    for path in pages:
        raw = client.get(path).text
        page = Elements()
        page.feed(raw)
        assert page.acting == ["/static/htmx.min.js", "/static/inspector.js"], path
        assert not any(char in raw for char in "\x1b\x00\x07\u202e"), path


def test_the_inbox_shows_exactly_what_would_run(client: httpx.Client, zoo: RunStore) -> None:
    page = client.get("/inbox")
    shown = text_of(page)

    for item in zoo.inbox():
        assert item.run_id in shown
        if item.args is not None and item.kind != "question":
            assert json.dumps(item.args, indent=2, sort_keys=True) in shown
        if item.digest is not None:
            assert f'value="{item.digest}"' in page.text
    assert "dana or ann" in shown


def test_a_run_that_this_code_cannot_read_leaves_the_list_readable(
    client: httpx.Client, zoo: RunStore, sql: Callable[[str], None]
) -> None:
    sql("UPDATE agent_es_events SET topic = 'agent_es:Unheard' WHERE topic = 'agent_es:StepInDoubt'")

    assert "doubt-1" in client.get("/").text
    assert "cannot read" in client.get("/inbox").text
    assert client.get("/runs/doubt-1").status_code == 409


def test_an_empty_store_says_how_a_run_is_started(client: httpx.Client) -> None:
    assert "agent-es run" in client.get("/").text
    assert "Nothing waits" in client.get("/inbox").text


def test_a_run_that_is_over_is_drawn_until_its_end(client: httpx.Client, store: RunStore) -> None:
    Runner(store, ScriptedDecider([Finish("done")]), agents=[ShopRun]).run(ShopRun, run_id="run-1", goal="g")
    state = store.load("run-1")

    assert state.status is Status.DONE
    assert state.updated_at is not None
    assert state.updated_at < datetime.now(UTC)
    first, second = (re.search(r"<svg.*?</svg>", client.get("/runs/run-1").text, re.DOTALL) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first[0] == second[0]


def test_a_run_in_flight_is_listed_beside_the_others(client: httpx.Client, store: RunStore) -> None:
    tell(store, "awaits-1")

    page = client.get("/runs/awaits-1")

    assert "waiting: signal" in text_of(page)
    assert "the signal paid" in text_of(page)
