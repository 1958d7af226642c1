"""A payment provider to test against: it outlives the agent, because it is not in the agent.

Rule 1: a refund and its key are one transaction; the same key again gives the first answer and moves no money.
Rule 2: the same key with other parameters is refused.
Rule 3: a key that outlived its lifetime is forgotten when it is sent again: then the call pays again.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from agent_es.crashpoints import crash_point
from agent_es.errors import KeyMismatch


def nothing(_: str) -> None:
    """Do nothing."""


def utc_now() -> datetime:
    """Return the time of this computer."""
    return datetime.now(UTC)


class PaymentProvider:
    """Keeps a ledger and a keystore in a SQLite file of its own.

    ``before_commit`` and ``after_commit`` are told the key around the moment that the money moves: there the
    answer is not on its way yet, which is the hard spot for a caller to die in.  A key is kept for ``key_ttl``
    seconds from when it was first honoured, or for ever; ``now`` tells the time.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        before_commit: Callable[[str], object] = nothing,
        after_commit: Callable[[str], object] = nothing,
        key_ttl: float | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.path = Path(path)
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._key_ttl = float("inf") if key_ttl is None else key_ttl
        self._now = now
        with closing(self._connect()) as database:
            database.executescript(
                "PRAGMA journal_mode=WAL;"
                "CREATE TABLE IF NOT EXISTS ledger "
                "(id INTEGER PRIMARY KEY, order_id TEXT NOT NULL, amount TEXT NOT NULL);"
                "CREATE TABLE IF NOT EXISTS keystore "
                "(key TEXT PRIMARY KEY, parameters TEXT NOT NULL, answer TEXT NOT NULL, calls INTEGER NOT NULL, "
                "honoured_at REAL NOT NULL);"
            )

    def refund(self, order_id: str, amount: Decimal, *, key: str | None) -> dict[str, str]:
        """Refund an order and return the receipt; without a key, every call pays.

        Raises ``KeyMismatch`` where the key came with other parameters before.
        """
        crash_point("before the money moves")
        cents = f"{amount:.2f}"
        parameters = json.dumps({"amount": cents, "order_id": order_id}, sort_keys=True)
        with closing(self._connect()) as database:
            database.execute("BEGIN IMMEDIATE")
            at = self._now().timestamp()
            known = database.execute(
                "SELECT parameters, answer FROM keystore WHERE key = ? AND ? - honoured_at < ?",
                (key, at, self._key_ttl),
            ).fetchone()
            if known is None:
                posted = database.execute("INSERT INTO ledger (order_id, amount) VALUES (?, ?)", (order_id, cents))
                answer = {"amount": cents, "order_id": order_id, "refund_id": f"rf-{posted.lastrowid}"}
                if key is not None:
                    database.execute(
                        "INSERT INTO keystore VALUES (?, ?, ?, 1, ?) ON CONFLICT (key) DO UPDATE SET "
                        "parameters = excluded.parameters, answer = excluded.answer, calls = calls + 1, "
                        "honoured_at = excluded.honoured_at",
                        (key, parameters, json.dumps(answer), at),
                    )
            elif known[0] == parameters:
                answer = json.loads(known[1])
                database.execute("UPDATE keystore SET calls = calls + 1 WHERE key = ?", (key,))
            else:
                raise KeyMismatch(f"key {key} came with {known[0]} before, and now with {parameters}")
            self._before_commit(key or "")
            database.execute("COMMIT")
        self._after_commit(key or "")
        crash_point("the money has moved")
        return answer

    def effects(self) -> list[tuple[str, str]]:
        """Return each refund: the order, and what it was paid."""
        return [(order_id, amount) for order_id, amount in self._select("SELECT order_id, amount FROM ledger")]

    @property
    def ledger(self) -> dict[str, str]:
        """What each order was paid back in all."""
        totals: dict[str, Decimal] = {}
        for order_id, amount in self._select("SELECT order_id, amount FROM ledger ORDER BY id"):
            totals[order_id] = totals.get(order_id, Decimal(0)) + Decimal(amount)
        return {order_id: str(total) for order_id, total in totals.items()}

    @property
    def refunds(self) -> int:
        """How many times money moved."""
        ((count,),) = self._select("SELECT count(*) FROM ledger")
        return int(count)

    @property
    def keystore(self) -> dict[str, int]:
        """The keys that were honoured, and how often each was sent; one that was forgotten is counted on."""
        return dict(self._select("SELECT key, calls FROM keystore ORDER BY key"))

    def _select(self, sql: str) -> list[Any]:
        with closing(self._connect()) as database:
            return database.execute(sql).fetchall()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, timeout=30)
