"""The report: one file that says what a run came to, needs nothing else, and in which nothing acts."""

import json
import re
import sys
from base64 import b64encode
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agent_es import RunStore
from agent_es.cli import main
from agent_es.demo import RUN_ID, RUNS_DB
from agent_es.errors import RunNotFound
from agent_es.inspector.report import report, report_of
from agent_es.inspector.view import MOST, MOST_STEPS
from agent_es.journal import JournalEntry
from agent_es.testing.clock import STORY
from agent_es.transfer import Tally, export_lines

Told = tuple[float, str, dict[str, Any]]
JournalOf = Callable[..., list[JournalEntry]]

NOW = STORY + timedelta(days=9, hours=5)
EVIL = "</style></pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'<!--\x1b[2J\u202e\u2066\0{{ 7*7 }}"
REFERS = {"src", "href", "action", "srcset", "data", "poster", "background", "formaction", "ping", "xlink:href"}


class Page(HTMLParser):
    """What a file has: its elements with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._is_style = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._is_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._is_style = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._is_style else data

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    @property
    def ids(self) -> list[str | None]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    @property
    def labels(self) -> list[str]:
        return [str(attributes["aria-label"]) for _, attributes in self.elements if "aria-label" in attributes]

    @property
    def references(self) -> set[str]:
        return {
            value or "" for _, attributes in self.elements for name, value in attributes.items() if name in REFERS
        }


def run_of(
    *steps: tuple[str, Any, Any], goal: str = "see", name: str = "run-1", tool_of: Callable[[int], str] | None = None
) -> list[Told]:
    """A run whose steps have these tools, arguments and results."""
    started = {"run_id": name, "agent": "Looks", "agent_version": "1", "goal": goal, "input": goal}
    told: list[Told] = [(0, "run_started", started)]
    for idx, (tool, args, result) in enumerate(steps):
        step = {"idx": idx, "tool": tool, "attempt": 1}
        told.append((len(told), "llm_decided", {**step, "turn": idx, "args": args}))
        told.append((len(told), "tool_result", {**step, "result": result}))
    return [*told, (len(told), "finished", {"answer": goal})]


def test_it_tells_what_happened_in_all_its_parts(eventful: list[JournalEntry]) -> None:
    page = Page(report_of(eventful, now=NOW))

    for told in ("waiting (person)", "step 5 ask_person is waiting", "1 lost", "2 takeover", "a voucher is fine too"):
        assert told in page.text, told
    for told in ("6 of 8", "12,150 of 20,000", "0.0243 of 0.10", "1 of 2", "9 d 5 h of 14 d", "by dana or ann"):
        assert told in page.text, told
    assert "refunded" in page.text
    assert {"time: 9 d 5 h of 14 d", "steps: 6 of 8", "calls of refund: 1 of 2"} <= set(page.labels)
    assert [it for it in page.ids if str(it).startswith("seq-")] == [f"seq-{entry.seq}" for entry in eventful]
    assert len(set(page.ids)) == len(page.ids)


def test_it_needs_nothing_else_and_nothing_in_it_acts(eventful: list[JournalEntry]) -> None:
    html = report_of(eventful, now=NOW)
    page = Page(html)

    assert page.references
    assert all(it.startswith("#") for it in page.references)
    assert {it[1:] for it in page.references} <= set(page.ids)
    assert not page.tags & {"script", "link", "iframe", "object", "embed", "img", "base", "form", "audio", "video"}
    assert not [name for _, attributes in page.elements for name in attributes if name == "style" or name[:2] == "on"]
    assert html.count("<style>") == 1
    assert "url(" not in html
    assert "@import" not in html


def test_its_policy_forbids_all_but_its_one_style(eventful: list[JournalEntry]) -> None:
    html = report_of(eventful, now=NOW)

    (policy,) = [
        it["content"] for tag, it in Page(html).elements if it.get("http-equiv") == "Content-Security-Policy"
    ]
    (style,) = re.findall("<style>(.*?)</style>", html, re.DOTALL)
    told = b64encode(sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{told}'; base-uri 'none'; form-action 'none'"


def test_the_report_of_the_story_shows_the_crash_and_one_refund(story: list[JournalEntry]) -> None:
    page = Page(report_of(story, now=NOW))

    assert "1 lost" in page.text
    assert "2 takeover" in page.text
    assert "ORD-3300:refund:180.00" in page.text


def test_its_digest_is_that_of_the_exported_lines(story_folder: Path) -> None:
    store = RunStore(f"sqlite:///{story_folder / RUNS_DB}")
    tally = Tally()
    lines = [*export_lines(store, [RUN_ID], tally)]

    html = report(store, RUN_ID, now=NOW)
    store.close()

    assert tally.result.digest in html
    assert tally.result.digest == sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def test_the_same_journal_at_the_same_time_gives_the_same_bytes(eventful: list[JournalEntry]) -> None:
    again = [JournalEntry.parse(str(entry)) for entry in eventful]

    assert report_of(eventful, now=NOW) == report_of(again, now=NOW)
    assert report_of(eventful, now=NOW) != report_of(eventful, now=NOW + timedelta(days=1))


def test_what_is_over_looks_the_same_a_year_later(story: list[JournalEntry]) -> None:
    now, later = (report_of(story, now=at) for at in (NOW, NOW + timedelta(days=365)))

    assert [a for a, b in zip(now.splitlines(), later.splitlines(), strict=True) if a != b] == [
        "<dt>written</dt><dd>2026-07-14T15:00:00Z, by agent_es 0.1.0</dd>"
    ]


def test_what_was_under_way_when_a_run_was_cancelled_does_not_grow(journal_of: JournalOf) -> None:
    entries = journal_of([*run_of(("look", {}, "seen"))[:2], (60, "cancelled", {"by": "dana", "reason": "enough"})])

    page, later = (Page(report_of(entries, now=at)) for at in (NOW, NOW + timedelta(days=365)))

    assert [told for told in page.labels if told.startswith("step 0")] == [
        told for told in later.labels if told.startswith("step 0")
    ]
    assert any("59 s" in told for told in page.labels)


def test_hostile_words_are_shown_and_do_nothing(journal_of: JournalOf) -> None:
    entries = journal_of(
        run_of((EVIL, {EVIL: EVIL}, {EVIL: EVIL}), (EVIL, {}, EVIL), goal=EVIL, name="<big>" + EVIL[:30]), run_id="x"
    )

    html = report_of(entries, now=NOW)

    page = Page(html)
    assert not page.tags & {"script", "img", "big"}
    assert not [name for _, attributes in page.elements for name in attributes if name[:2] == "on"]
    assert html.count("</style>") == 1
    assert not {"\x1b", "\u202e", "\u2066", "\0"} & set(html)
    assert "<script>alert(1)</script>" in page.text
    assert "\\u202e" in page.text
    assert "{{ 7*7 }}" in page.text
    assert all(it.startswith("#") for it in page.references)


def test_five_megabytes_are_cut_and_it_says_so(journal_of: JournalOf) -> None:
    html = report_of(journal_of(run_of(("look", {"at": "x"}, '<&"' * 1_700_000))), now=NOW)

    assert len(html) < 250_000
    assert "5,100,000 characters in all" in html


@pytest.mark.crash
def test_a_run_of_thousands_of_events_is_bounded_and_counts_what_it_leaves_out(journal_of: JournalOf) -> None:
    steps = [("look", {"at": n}, '<&"' * 400) for n in range(1_100)]

    entries = journal_of(run_of(*steps))
    html = report_of(entries, now=NOW)

    page = Page(html)
    assert len(html) < 8_000_000
    assert f"{len(entries) - 2 * MOST:,} events are left out here" in page.text
    assert f"{1_100 - MOST_STEPS:,} earlier steps are left out here" in page.text
    assert len([it for it in page.ids if str(it).startswith("seq-")]) == 2 * MOST


# The command.


Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(
    story_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """Calls the command line in an empty folder; its store is that of the story."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_ES_STORE", str(story_folder / RUNS_DB))

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["agent-es", *words])
        status: Any = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code
        return (status or 0, *capsys.readouterr())

    return call


def test_the_command_writes_the_file_and_says_where(shell: Shell, tmp_path: Path) -> None:
    status, out, _ = shell("report", RUN_ID, "--json")

    content = (tmp_path / "run-7f3a.html").read_bytes()
    assert (status, json.loads(out)) == (
        0,
        {"path": "run-7f3a.html", "run_id": RUN_ID, "sha256": sha256(content).hexdigest()},
    )
    assert content.startswith(b"<!doctype html>")


def test_the_command_makes_a_picture_too(shell: Shell, tmp_path: Path) -> None:
    status, out, _ = shell("report", RUN_ID, "-o", "a.html", "--png", "a.png")

    assert status == 0
    assert "a.html" in out
    assert "a.png" in out
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_no_file_is_written_over_unless_it_is_said(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("mine")
    (tmp_path / "a.png").write_text("mine")

    status, _, err = shell("report", RUN_ID, "-o", "a.html")
    assert (status, (tmp_path / "a.html").read_text()) == (1, "mine")
    assert "a.html is there already" in err
    status, _, _ = shell("report", RUN_ID, "-o", "b.html", "--png", "a.png")
    assert (status, (tmp_path / "a.png").read_text(), (tmp_path / "b.html").exists()) == (1, "mine", False)

    status, _, _ = shell("report", RUN_ID, "-o", "a.html", "--png", "a.png", "--force")
    assert status == 0
    assert (tmp_path / "a.html").read_text() != "mine"


def test_what_cannot_be_written_or_is_not_there_is_one_line(shell: Shell) -> None:
    status, _, err = shell("report", RUN_ID, "-o", "no/such/folder.html")
    assert (status, err.splitlines()) == (
        1,
        ["error: no/such/folder.html cannot be written: No such file or directory"],
    )

    status, _, err = shell("report", "run-none")
    assert status == 1
    assert "run-none" in err


def test_without_the_extra_it_says_what_to_install(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("agent_es.inspector")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)

    status, _, err = shell("report", RUN_ID)

    assert status == 1
    assert "pip install 'agent-es[inspect]'" in err


def test_a_run_that_is_not_there_has_no_report(store: RunStore) -> None:
    with pytest.raises(RunNotFound):
        report(store, "run-none")
