"""What tests of the inspector start from: the journal of a run to which everything happened, and an empty store."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from agent_es import Approval, Budget, Envelope, RunStore, Usage
from agent_es.demo import RUN_ID, RUNS_DB, tell
from agent_es.inspector.app import inspector
from agent_es.journal import JournalEntry, timestamp
from agent_es.legality import call_digest
from agent_es.testing.clock import STORY
from agent_es.values import canonical
from tests.inspect.zoo import ShopRun, fill

Told = tuple[float, str, dict[str, Any]]
"""Seconds since the first event, the event's type, and its data."""
Journal = list[JournalEntry]

PORT = 8765
TOKEN = "a-token-of-the-tests"  # noqa: S105

HOUR, DAY = 3600, 86_400

ENVELOPE = Envelope(
    limits={"refund.amount": "<= 500"},
    budget=Budget(
        steps=8,
        turns=12,
        tokens=20_000,
        cost=Decimal("0.10"),
        deadline=timedelta(days=14),
        calls={"refund": 2},
        each=Usage(tokens=4_000, cost=Decimal("0.02")),
    ),
    needs_approval=(Approval(call="refund.amount > 100", by=("dana", "ann"), within=timedelta(days=1)),),
)
REFUND = {"amount": "180.00", "order": "ORD-3300"}
KEY = "ORD-3300:refund:180.00"


def call(at: float, idx: int, turn: int, tool: str, args: Any, attempt: int, **more: Any) -> Told:
    return at, "llm_decided", {"idx": idx, "turn": turn, "tool": tool, "args": args, "attempt": attempt, **more}


def asked(at: float, turn: int, took: float, tokens: int, *, is_known: bool = True) -> list[Told]:
    used = {"turn": turn, "tokens": tokens, "cost": f"{tokens / 500_000:.4f}", "is_known": is_known}
    return [
        (at, "budget_reserved", {"turn": turn, "tokens": 4000, "cost": "0.02"}),
        (at + took, "usage_recorded", used),
    ]


def ended(at: float, idx: int, tool: str, attempt: int, result: Any) -> Told:
    return at, "tool_result", {"idx": idx, "tool": tool, "attempt": attempt, "result": result}


def everything() -> Iterator[Told]:
    """A crash, a retry, an approval, a doubt beside it, a wait of a week, a parked run, a question to a person."""
    envelope = json.loads(ENVELOPE.json_text)
    started = {"run_id": "run-1", "agent": "Refunds", "agent_version": "3", "goal": "Refund ORD-3300 and tell Ann"}
    yield (
        0,
        "run_started",
        {**started, "input": {"order": "ORD-3300"}, "tags": {"tenant": "acme"}, "envelope": envelope},
    )
    yield from asked(0.1, 0, 2.1, 1810)
    yield call(2.2, 0, 0, "search_policy", {"query": "refund policy window"}, 1)
    yield ended(2.34, 0, "search_policy", 1, "Refunds within 30 days of delivery.")
    yield from asked(2.35, 1, 3.2, 2040)
    yield call(5.6, 1, 1, "refund", REFUND, 0, key=KEY)
    digest = call_digest("refund", canonical(REFUND), KEY)
    gate = {"idx": 1, "tool": "refund", "args": REFUND, "key": KEY, "digest": digest, "by": [["dana", "ann"]]}
    yield 5.6, "approval_requested", {**gate, "rule": "needs_approval: refund.amount > 100", "people": 1}
    yield 5.6 + HOUR, "approval_granted", {"idx": 1, "tool": "refund", "digest": digest, "by": "dana", "reason": "ok"}
    yield call(5.7 + HOUR, 1, 1, "refund", REFUND, 1, key=KEY)
    yield call(36 + HOUR, 1, 1, "refund", REFUND, 2, key=KEY)
    yield 36.3 + HOUR, "fact_recorded", {"idx": 1, "name": "refunded", "value": "180.00"}
    yield ended(36.4 + HOUR, 1, "refund", 2, {"order": "ORD-3300", "refund_id": "rf-1"})
    yield from asked(36.5 + HOUR, 2, 2.4, 2300)
    mail, parcel = {"to": "ann"}, {"parcel": "P-1"}
    yield call(39 + HOUR, 2, 2, "send_mail", mail, 1, key="run-1:2:send_mail")
    yield call(39 + HOUR, 3, 2, "ship", parcel, 1, key="run-1:3:ship")
    error = {"type": "TimeoutError", "message": "the mail host did not answer within 2 s", "applied": None}
    again = {"retry_at": timestamp(STORY + timedelta(seconds=45 + HOUR))}
    yield 41 + HOUR, "tool_failed", {"idx": 2, "tool": "send_mail", "attempt": 1, "error": error, **again}
    yield 42 + HOUR, "step_in_doubt", {"idx": 3, "tool": "ship", "attempt": 1, "reason": "the carrier did not answer"}
    yield call(45 + HOUR, 2, 2, "send_mail", mail, 2, key="run-1:2:send_mail")
    yield ended(45.4 + HOUR, 2, "send_mail", 2, "sent")
    yield 2 * DAY, "doubt_settled", {"idx": 3, "tool": "ship", "attempt": 1, "outcome": "happened", "by": "dana"}
    yield ended(2 * DAY, 3, "ship", 1, "P-1")
    yield 2 * DAY + 1, "steered", {"text": "a voucher is fine too", "by": "dana"}
    yield from asked(2 * DAY + 2, 3, 3, 2900)
    yield call(2 * DAY + 5, 4, 3, "wait_for", {"signal": "delivered"}, 0)
    week = timestamp(STORY + timedelta(days=9, seconds=5))
    yield 2 * DAY + 5, "wait_began", {"idx": 4, "signal": "delivered", "wake_at": week}
    yield 9 * DAY + 5, "wait_ended", {"idx": 4, "reason": "clock"}
    yield 9 * DAY + 6, "parked", {"reason": "the tool look_up is gone"}
    yield 9 * DAY + 2 * HOUR, "requeued", {"by": "dana"}
    yield from asked(9 * DAY + 2 * HOUR + 1, 4, 2, 3100)
    yield call(9 * DAY + 2 * HOUR + 3, 5, 4, "ask_person", {"question": "Which card?"}, 0)
    yield 9 * DAY + 2 * HOUR + 3, "wait_began", {"idx": 5, "signal": "answer:5"}


def entries_of(told: Sequence[Told], run_id: str = "run-1") -> Journal:
    """The journal that is told, its times from the story's on."""
    return [
        JournalEntry.parse(
            json.dumps(
                {
                    "run_id": run_id,
                    "seq": seq,
                    "ts": timestamp(STORY + timedelta(seconds=at)),
                    "type": kind,
                    "data": data,
                }
            )
        )
        for seq, (at, kind, data) in enumerate(told)
    ]


@pytest.fixture
def journal_of() -> Callable[..., Journal]:
    """Returns the journal that is told as seconds, types and data."""
    return entries_of


@pytest.fixture
def eventful() -> Journal:
    """The journal of a run to which everything happened, and which asks a person now."""
    return entries_of([*everything()])


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


@pytest.fixture(scope="session")
def story_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the story was told: its worker was killed, and another one came."""
    folder = tmp_path_factory.mktemp("story")
    tell(folder, lambda *_: None)
    return folder


@pytest.fixture
def story(story_folder: Path) -> Journal:
    """The journal of the story."""
    with RunStore(f"sqlite:///{story_folder / RUNS_DB}") as opened:
        return opened.journal(RUN_ID)


@pytest.fixture
def sql(store: RunStore, tmp_path: Path) -> Callable[[str], None]:
    """Gives what writes to the file behind the store's back."""

    def execute(statement: str) -> None:
        with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
            assert database.execute(statement).rowcount

    return execute
