"""The pages of the crash lab: driven to 360.00 and to 180.00, with htmx and without."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from agent_es.inspector import lab
from agent_es.inspector.experiment import STORY, Experiment
from tests.inspect.conftest import PORT, TOKEN

HOSTILE = """
from agent_es import AgentRun, CallTool, Effect, Finish, ScriptedDecider, tool
from agent_es.testing import Scenario


class Clerk(AgentRun):
    @tool(effect=Effect.READ)
    def look(self) -> str:
        return "<script>alert(1)</script>" + "<img onerror=alert(2)>\\x1b[2J\\u202e"


hostile = Scenario(
    agent=Clerk,
    goal="<b onclick=alert(3)>",
    decider=ScriptedDecider([CallTool("look"), Finish("<i>done</i>")]),
    world=lambda folder: None,
)
"""
SWAPPED = {"HX-Request": "true"}


@pytest.fixture(scope="module")
def experiments() -> Iterator[list[Experiment]]:
    """The story, and a scenario of the examples; nothing is imported before somebody looks."""
    opened = [Experiment(), Experiment("examples.broken_agents:no_key")]
    yield opened
    for each in opened:
        each.close()


@pytest.fixture
def browser(stranger: Callable[..., httpx.Client]) -> Callable[..., httpx.Client]:
    def opened(*experiments: Experiment) -> httpx.Client:
        client = stranger(more=lab.routes(*experiments))
        client.get("/", params={"token": TOKEN})
        client.headers["Origin"] = f"http://127.0.0.1:{PORT}"
        return client

    return opened


@pytest.fixture
def client(browser: Callable[..., httpx.Client], experiments: list[Experiment]) -> httpx.Client:
    """Is a browser in front of the lab, where nothing has happened yet."""
    for each in experiments:
        each.reset()
    return browser(*experiments)


def act(client: httpx.Client, name: str, **form: str) -> httpx.Response:
    answer = client.post(f"/lab/{name}", data={"scenario": STORY, **form})
    assert answer.status_code == 303, answer.text
    return client.get(answer.headers["location"])


def verdicts(page: httpx.Response) -> list[tuple[str, str]]:
    figures = re.findall(r'class="lab-figure">([^<]*)<', page.text)
    words = re.findall(r'class="lab-word">.*?</span> ([A-Z ]+)</p>', page.text)
    return [*zip(figures, words, strict=True)]


def chosen(page: httpx.Response) -> str:
    (place,) = re.findall(r'<option value="(\d+)" selected>', page.text)
    return str(place)


def is_offered(page: httpx.Response, button: str) -> bool:
    (found,) = re.findall(rf'<button id="{button}"([^>]*)>', page.text)
    return "disabled" not in found


def test_the_story_is_driven_to_360_and_to_180_without_javascript(client: httpx.Client) -> None:
    fresh = client.get("/lab")
    assert [is_offered(fresh, name) for name in ("crash", "naive", "resume", "reset")] == [True, False, False, True]
    assert verdicts(fresh) == []

    crashed = act(client, "crash", place=chosen(fresh))
    assert "was killed by signal 9" in crashed.text
    assert "the money has moved, in the body of step 1 (process_refund)" in crashed.text
    assert verdicts(crashed) == [("180.00", "SO FAR"), ("180.00", "SO FAR")]

    restarted = act(client, "naive")
    assert verdicts(restarted) == [("360.00", "DOUBLE"), ("180.00", "SO FAR")]
    assert "360.00 where 180.00 is right" in restarted.text

    resumed = act(client, "resume")
    assert verdicts(resumed) == [("360.00", "DOUBLE"), ("180.00", "ONCE")]
    assert [is_offered(resumed, name) for name in ("crash", "naive", "resume", "reset")] == [
        False,
        False,
        False,
        True,
    ]

    assert verdicts(act(client, "reset")) == []


@pytest.mark.crash
def test_the_recovery_is_crashed_too_and_its_places_are_offered(client: httpx.Client) -> None:
    first = act(client, "crash", place="31")
    assert chosen(first) != "31"

    again = act(client, "crash", place=chosen(first))

    assert again.text.count("was killed by signal 9") == 2
    assert verdicts(act(client, "resume")) == [("180.00", "SO FAR"), ("180.00", "ONCE")]


def test_with_htmx_the_lab_alone_is_answered(client: httpx.Client) -> None:
    answer = client.post("/lab/crash", data={"scenario": STORY, "place": "31"}, headers=SWAPPED)

    assert answer.status_code == 200
    assert "<html" not in answer.text
    assert verdicts(answer) == [("180.00", "SO FAR"), ("180.00", "SO FAR")]


def test_what_is_out_of_order_is_said_and_changes_nothing(client: httpx.Client) -> None:
    refused = client.post("/lab/resume", data={"scenario": STORY})
    assert refused.status_code == 409
    assert "no worker has died yet: crash one first" in refused.text

    for place in ("", "0", "43", "x", "-1", "1" * 40, "٣"):
        assert client.post("/lab/crash", data={"scenario": STORY, "place": place}).status_code == 400
    swapped = client.post("/lab/naive", data={"scenario": STORY}, headers=SWAPPED)
    assert swapped.status_code == 200
    assert "crash one first" in swapped.text
    assert verdicts(client.get("/lab")) == []


@pytest.mark.crash
def test_the_lab_has_a_page_for_each_scenario_and_for_no_other(client: httpx.Client) -> None:
    page = client.get("/lab/examples.broken_agents%3Ano_key")
    assert page.status_code == 200
    assert 'href="/lab/agent_es.demo%3Ascenario"' in page.text

    name = "examples.broken_agents:no_key"
    client.post("/lab/crash", data={"scenario": name, "place": chosen(page)})
    client.post("/lab/resume", data={"scenario": name})

    assert verdicts(client.get(lab.lab_url(name)))[1] == ("360.00", "DOUBLE")
    assert verdicts(client.get("/lab")) == []
    assert client.get("/lab/os%3Asystem").status_code == 404
    assert client.post("/lab/crash", data={"scenario": "os:system", "place": "1"}).status_code == 404


def test_no_act_is_done_by_a_get(client: httpx.Client) -> None:
    for name in lab.ACTS:
        assert client.get(f"/lab/{name}").status_code == 404


@pytest.mark.crash
def test_a_scenario_that_cannot_be_imported_is_said_and_may_be_tried_again(
    browser: Callable[..., httpx.Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = Experiment("corner_shop:hostile")
    client = browser(experiment)
    broken = client.get("/lab")
    assert broken.status_code == 400
    assert "importing corner_shop failed" in broken.text
    assert is_offered(broken, "reset")

    (tmp_path / "corner_shop.py").write_text(HOSTILE)

    assert client.get("/lab").status_code == 200
    experiment.close()


def test_what_an_agent_says_is_shown_and_nothing_in_it_acts(
    browser: Callable[..., httpx.Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corner_shop.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    experiment = Experiment("corner_shop:hostile")
    client = browser(experiment)
    form = {"scenario": experiment.name}
    client.post("/lab/crash", data={**form, "place": str(len(experiment.places()))})
    client.post("/lab/naive", data=form)
    client.post("/lab/resume", data=form)

    page = client.get("/lab").text
    experiment.close()

    assert "&lt;script&gt;alert(1)" in page
    for acting in ("<script>alert", "<img", "<b onclick", "<i>done", "\x1b", "\u202e"):
        assert acting not in page
    assert " style=" not in page
