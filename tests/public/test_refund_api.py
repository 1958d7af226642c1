"""The example of a web API, behind a real server that is killed and started again."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_es.testing import PaymentProvider

EXAMPLES = Path(__file__).parents[2] / "examples"
WITHIN = 30.0
"""Seconds that anything may take."""

SLOW = """
import os, time
from pathlib import Path
import refund_api
from agent_es.testing import PaymentProvider
from refund_api import RefundRun, app

def hang(*_):
    Path(os.environ["HANGS"]).touch()
    time.sleep(float(os.environ["FOR"]))

if os.environ["HANGS"] == "paying":
    refund_api.provider = PaymentProvider("provider.db", after_commit=hang)
else:
    refund_api.send_mail = hang
provider = refund_api.provider
"""
"""The same program, with something outside that takes for ever: there it can be killed at the hard spot."""

ORDER = {"order_id": "ORD-3300", "amount": "180.00"}


class Site:
    """A folder with the database, and the processes that use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.provider = PaymentProvider(folder / "provider.db")
        self._started: list[subprocess.Popen[str]] = []
        self._clients: list[httpx.Client] = []
        (folder / "slow_api.py").write_text(SLOW)

    def serve(self, *, hangs: str = "", seconds: float = 600, worker: str = "thread") -> "Served":
        """Start the API, and wait until it answers."""
        app = "slow_api:app" if hangs else "refund_api:app"
        log = self.folder / f"log-{len(self._started)}"
        process = self._start(["uvicorn", app, "--port", "0"], log, HANGS=hangs, FOR=str(seconds), WORKER=worker)
        url = wait_for(lambda: re.search(r"running on (http://\S+)", log.read_text()), process)[1]
        self._clients.append(httpx.Client(base_url=url, timeout=WITHIN))
        return Served(process, self._clients[-1])

    def work(self, *, hangs: str = "") -> "subprocess.Popen[str]":
        """Start a worker, apart from the API."""
        module = "slow_api" if hangs else "refund_api"
        options = ["--deps", f"{module}:provider", "--lease", "1", "--poll", "0.1"]
        command = ["agent_es", "worker", f"{module}:RefundRun", *options]
        return self._start(command, self.folder / f"log-{len(self._started)}", HANGS=hangs, FOR="600")

    def _start(self, command: list[str], log: Path, **env: str) -> "subprocess.Popen[str]":
        path = os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
        ours = {"AGENT_ES_STORE": "sqlite:///refunds.db", "LEASE": "1", "PYTHONPATH": path}
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=self.folder,
                env={**os.environ, **ours, **env},
                stdout=out,
                stderr=out,
                text=True,
            )
        self._started.append(process)
        return process

    def end(self) -> None:
        for client in self._clients:
            client.close()
        for process in self._started:
            process.kill()
            process.wait(WITHIN)

    def rows(self, table: str) -> int:
        with closing(sqlite3.connect(self.folder / "refunds.db")) as database:
            ((count,),) = database.execute(f"SELECT count(*) FROM {table}")  # noqa: S608
        return int(count)


class Served:
    """A server, and a client of it."""

    def __init__(self, process: "subprocess.Popen[str]", client: httpx.Client) -> None:
        self.process = process
        self.client = client

    def refund(self, **order: Any) -> httpx.Response:
        return self.client.post("/refunds", json=order or ORDER)

    def look(self) -> dict[str, Any]:
        answer = self.client.get("/refunds/refund-ORD-3300")
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def settle(self, idx: int, outcome: str) -> httpx.Response:
        found = {"idx": idx, "outcome": outcome, "by": "ann"}
        return self.client.post("/refunds/refund-ORD-3300/settle", json=found)

    def is_(self, status: str) -> Callable[[], bool]:
        return lambda: bool(self.look()["status"] == status)

    def stop(self, number: int) -> int:
        self.client.close()
        self.process.send_signal(number)
        return self.process.wait(WITHIN)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    opened = Site(tmp_path)
    yield opened
    opened.end()


def wait_for(happened: Callable[[], Any], process: "subprocess.Popen[str] | None" = None) -> Any:
    until = time.monotonic() + WITHIN
    while not (found := happened()):
        assert time.monotonic() < until, "it did not happen in time"
        assert process is None or process.poll() is None, "the process has ended"
        time.sleep(0.02)
    return found


def test_a_refund_is_asked_for_and_moves_to_its_end_by_itself(site: Site) -> None:
    served = site.serve()

    answer = served.refund()
    wait_for(served.is_("done"))

    assert (answer.status_code, answer.json()) == (202, {"run_id": "refund-ORD-3300"})
    assert served.look() == {
        "run_id": "refund-ORD-3300",
        "status": "done",
        "waiting_for": None,
        "answer": "180.00 were refunded.",
        "steps": [
            {"idx": 0, "tool": "process_refund", "status": "done"},
            {"idx": 1, "tool": "tell_customer", "status": "done"},
        ],
    }
    assert site.provider.ledger == {"ORD-3300": "180.00"}
    assert served.stop(signal.SIGTERM) in (0, -signal.SIGTERM)  # uvicorn raises it again at its end


@pytest.mark.parametrize("worker", ["thread", pytest.param("process", marks=pytest.mark.crash)])
def test_a_server_that_is_killed_while_it_pays_has_paid_once_when_it_is_back(site: Site, worker: str) -> None:
    served = site.serve(hangs="paying", worker=worker)
    working = site.work(hangs="paying") if worker == "process" else served.process
    served.refund()
    wait_for((site.folder / "paying").exists)
    assert site.provider.refunds == 1

    working.kill()
    served.stop(signal.SIGKILL)
    again = site.serve(worker=worker)
    if worker == "process":
        site.work()
    wait_for(again.is_("done"))

    assert site.provider.ledger == {"ORD-3300": "180.00"}
    assert site.provider.keystore == {"ORD-3300:refund:180.00": 2}
    assert again.refund().status_code == 409


@pytest.mark.crash
def test_a_server_that_is_killed_after_its_answer_has_forgotten_nothing(site: Site) -> None:
    served = site.serve(worker="elsewhere")
    assert served.refund().status_code == 202
    served.stop(signal.SIGKILL)
    assert site.provider.refunds == 0

    again = site.serve()
    wait_for(again.is_("done"))

    assert site.provider.ledger == {"ORD-3300": "180.00"}


def test_an_order_and_the_start_of_its_run_are_both_there_or_neither(site: Site) -> None:
    served = site.serve(worker="elsewhere")
    assert served.refund().status_code == 202

    again = served.refund()
    other = served.refund(order_id="ORD-3300", amount="999.00")
    assert [again.status_code, other.status_code] == [409, 409]
    assert "/refunds/refund-ORD-3300" in other.json()["detail"]

    with closing(sqlite3.connect(site.folder / "refunds.db")) as database, database:
        database.execute("DELETE FROM orders")
    taken = served.refund(order_id="ORD-3300", amount="999.00")  # the order is new, its run is not

    assert taken.status_code == 409
    assert (site.rows("orders"), site.rows("agent_es_runs"), site.rows("agent_es_events")) == (0, 1, 1)


def test_many_clients_at_once_get_one_refund_for_each_order(site: Site) -> None:
    served = site.serve()
    orders = [f"ORD-{n % 10}" for n in range(30)]

    with ThreadPoolExecutor(10) as clients:
        answers = list(clients.map(lambda order: served.refund(order_id=order, amount="1.00").status_code, orders))
    wait_for(lambda: site.provider.refunds == 10)

    assert sorted(answers) == [202] * 10 + [409] * 20
    assert set(site.provider.ledger.values()) == {"1.00"}


@pytest.mark.crash
def test_a_mail_of_which_nobody_knows_is_settled_by_a_person(site: Site) -> None:
    served = site.serve(hangs="mailing")
    served.refund()
    wait_for((site.folder / "mailing").exists)
    served.stop(signal.SIGKILL)

    again = site.serve()
    wait_for(again.is_("waiting"))
    doubt = again.look()
    wrong = again.settle(0, "happened")
    right = again.settle(1, "happened")
    wait_for(again.is_("done"))

    assert (doubt["waiting_for"], doubt["steps"][1]["status"]) == ("doubt", "in_doubt")
    assert (wrong.status_code, right.status_code) == (409, 200)
    assert wrong.json()["detail"].startswith("run refund-ORD-3300: step 0 is not in doubt")
    assert site.provider.keystore == {"ORD-3300:refund:180.00": 1}


@pytest.mark.crash
def test_a_server_that_is_told_to_end_ends_the_step_that_it_has_begun(site: Site) -> None:
    served = site.serve(hangs="paying", seconds=2)
    served.refund()
    wait_for((site.folder / "paying").exists)

    served.stop(signal.SIGTERM)

    with closing(sqlite3.connect(site.folder / "refunds.db")) as database:
        row = database.execute("SELECT lease_owner, claims, cursor FROM agent_es_runs").fetchone()
    assert row == (None, 0, 3)  # started, decided, and its result


@pytest.mark.parametrize(
    ("path", "order", "status"),
    [
        ("/refunds", {"order_id": "../etc", "amount": "1.00"}, 422),
        ("/refunds", {"order_id": "ORD-1", "amount": "-1"}, 422),
        ("/refunds", {"order_id": "ORD-1", "amount": "1.001"}, 422),
        ("/refunds/nobody/settle", {"idx": 0, "outcome": "happened", "by": "ann"}, 404),
    ],
)
def test_what_is_no_refund_is_refused(site: Site, path: str, order: dict[str, Any], status: int) -> None:
    served = site.serve(worker="elsewhere")

    answer = served.client.post(path, json=order)

    assert answer.status_code == status
    assert site.rows("orders") == 0
