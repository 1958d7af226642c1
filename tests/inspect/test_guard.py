import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from agent_es import RunStore
from agent_es.inspector import guard
from agent_es.inspector.acting import COMMANDS
from tests.inspect.conftest import PORT, TOKEN
from tests.inspect.zoo import ShopRun

PATHS = [
    "/",
    "/?q=x",
    "/inbox",
    "/runs/run-1",
    "/runs/run-1/at/0",
    "/runs/run-1/journal.jsonl",
    "/lab",
    "/static/base.css",
    "/nowhere",
]
Stranger = Callable[..., httpx.Client]


@pytest.fixture
def run_1(store: RunStore) -> None:
    store.start(ShopRun, run_id="run-1", goal="g")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"cookies": {f"agent_es_{PORT}": "wrong"}},
        {"cookies": {f"agent_es_{PORT + 1}": TOKEN}},
        {"headers": {"Authorization": "Bearer wrong"}},
        {"headers": {"Authorization": TOKEN.upper()}},
        {"params": {"token": "wrong"}},
        {"params": {"token": ""}},
        {"headers": {"Cookie": 'agent_es="'}},
    ],
)
def test_a_request_without_the_token_is_told_nothing(
    stranger: Stranger, run_1: None, path: str, shown: dict[str, dict[str, str]]
) -> None:
    someone = stranger()
    someone.cookies.update(shown.get("cookies", {}))

    answer = someone.get(path, headers=shown.get("headers"), params=shown.get("params"))

    assert answer.status_code == 401
    assert "run-1" not in answer.text
    assert "set-cookie" not in answer.headers


def test_the_first_url_sets_a_cookie_that_scripts_and_other_sites_do_not_get_and_goes_on_without_the_token(
    stranger: Stranger,
) -> None:
    someone = stranger()

    answer = someone.get("/inbox", params={"token": TOKEN, "kind": "a b"})

    assert (answer.status_code, answer.headers["location"]) == (303, "/inbox?kind=a+b")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert someone.get("/inbox").status_code == 200


def test_a_token_sends_nobody_to_another_host(stranger: Stranger) -> None:
    answer = stranger().get(f"http://127.0.0.1:{PORT}//example.invalid/", params={"token": TOKEN})

    assert answer.headers["location"] == "/example.invalid/"


@pytest.mark.parametrize(
    "host",
    ["example.invalid", f"example.invalid:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}",
     f"127.0.0.1.example.invalid:{PORT}",
     f"[::1].example.invalid:{PORT}", f"127.0.0.1:{PORT}@example.invalid", ""],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", f"/?token={TOKEN}"])
def test_a_name_of_another_site_that_leads_here_is_refused(stranger: Stranger, path: str, host: str) -> None:
    someone = stranger()

    answer = someone.get(path, headers={"Host": host, "Authorization": f"Bearer {TOKEN}"})

    assert answer.status_code == 421
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
def test_each_name_of_loopback_is_heard(stranger: Stranger, name: str) -> None:
    answer = stranger().get("/", headers={"Host": f"{name}:{PORT}", "Authorization": f"Bearer {TOKEN}"})

    assert answer.status_code == 200


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "origin",
    [None, "null", "http://example.invalid", f"http://127.0.0.1:{PORT + 1}", f"https://127.0.0.1:{PORT}",
     f"http://127.0.0.1:{PORT}.example.invalid", f"http://localhost:{PORT}"],
)  # fmt: skip
def test_a_post_of_another_site_is_refused_though_the_browser_sends_the_cookie(
    client: httpx.Client, store: RunStore, run_1: None, command: str, origin: str | None
) -> None:
    del client.headers["Origin"]

    answer = client.post(
        f"/runs/run-1/{command}",
        data={"text": "x", "reason": "x", "name": "x"},
        headers={} if origin is None else {"Origin": origin},
    )

    assert answer.status_code == 403
    assert store.record("run-1").cursor == 1


def test_a_page_is_not_read_for_another_site(client: httpx.Client, run_1: None) -> None:
    answer = client.get("/runs/run-1", headers={"Origin": "http://example.invalid"})

    assert answer.status_code == 403
    assert "run-1" not in answer.text


def test_a_program_that_shows_the_token_as_a_bearer_needs_no_origin(
    stranger: Stranger, store: RunStore, run_1: None
) -> None:
    answer = stranger().post(
        "/runs/run-1/steer", data={"text": "hurry"}, headers={"Authorization": f"Bearer {TOKEN}"}
    )

    assert answer.status_code == 303
    assert store.load("run-1").messages[0].text == "hurry"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_changes_but_by_post(
    client: httpx.Client, store: RunStore, run_1: None, command: str, method: str
) -> None:
    answer = client.request(method, f"/runs/run-1/{command}", params={"text": "x", "name": "x", "reason": "x"})

    assert answer.status_code in (404, 405)
    assert store.record("run-1").cursor == 1


def test_a_form_too_large_or_of_unknown_size_is_refused(client: httpx.Client, store: RunStore, run_1: None) -> None:
    def pieces() -> object:
        yield b"text=x"

    large = client.post("/runs/run-1/steer", data={"text": "x" * guard.MAX_BODY})
    unknown = client.post("/runs/run-1/steer", content=pieces())

    assert (large.status_code, unknown.status_code) == (413, 413)
    assert store.record("run-1").cursor == 1


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_says_that_nothing_from_elsewhere_runs_here(
    client: httpx.Client, run_1: None, path: str
) -> None:
    answer = client.get(path)

    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


def test_pages_hold_no_script_style_or_handler_of_their_own() -> None:
    templates = [*(Path(guard.__file__).parent / "templates").glob("*.html")]

    assert len(templates) > 5
    for template in templates:
        text = template.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=\"/static/)", text), template
        assert not re.search(r"\son[a-z]+=|\sstyle=|javascript:|https?://", text), template
        if template.name != "report.html":  # a file of its own, with a policy of its own
            assert "<style" not in text, template
