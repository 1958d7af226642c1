"""The example that collects an invoice: what it prints, what its webhook keeps, and that it survives every crash."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agent_es import Effect, Retry, Runner, RunState, RunStore, Status, ToolContext, Worker, tool
from agent_es.errors import BadSignal
from agent_es.testing import DidNotSurvive, MovableClock, survives_every_crash, survives_every_kill
from examples.collections.agent import PATIENCE, REMINDERS, CollectRun, collect
from examples.collections.crashes import collected
from examples.collections.host import Booking, Host, Mail, Paid, Payment

ROOT = Path(__file__).parents[2]
INVOICE, PAID = "INV-1042", Paid("evt-77", Decimal("480.00"))
WITHIN = 30.0
"""Seconds that anything may take."""


# The play.


def play(folder: Path, *flags: str) -> list[str]:
    command = [sys.executable, "-W", "error", "-m", "examples.collections", str(folder), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_page_shows_what_the_play_prints(tmp_path: Path) -> None:
    page = (ROOT / "examples" / "collections" / "README.md").read_text()
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)

    assert play(tmp_path) == shown.splitlines()


@pytest.mark.crash
def test_where_nobody_pays_a_person_is_told_after_the_last_reminder(tmp_path: Path) -> None:
    said = play(tmp_path, "--never-paid")

    assert said[-2:] == [
        "3 mails, booked: nothing",
        "failed: INV-1042 is not paid after 3 reminders; a person must see to it.",
    ]
    assert [line[:10] for line in said if line.endswith("woken clock")] == ["Sun 12 Jul", "Sun 19 Jul", "Sun 26 Jul"]


@pytest.mark.crash
def test_where_workers_are_killed_each_mail_is_sent_once_and_the_payment_booked_once(tmp_path: Path) -> None:
    said = play(tmp_path, "--killed")

    assert [line.split("  ")[1] for line in said if "(-9)" in line or "ended with" in line] == [
        "the worker ended with -9: the mail is out",
        "the worker ended with -9: the booking is written",
    ]
    assert "Sun 05 Jul  settled remind skipped, by on_doubt" in said
    assert said[-2:] == ["2 mails, booked: evt-77", "done: INV-1042 is paid, after 2 reminders."]


@pytest.mark.crash
def test_a_play_on_the_files_of_another_comes_to_the_same_end_and_does_nothing(tmp_path: Path) -> None:
    first = play(tmp_path)

    again = play(tmp_path)

    assert again == first[-7:]


# The webhook and the agent.


class House:
    """A host with its store, and a worker that does what is due."""

    def __init__(self, folder: Path) -> None:
        url = f"sqlite:///{folder / 'host.db'}"
        self.clock = MovableClock()
        self.store = RunStore(url, clock=self.clock)
        self.host = Host(url, today=lambda: self.clock.now().date())
        self.host.bill(INVOICE, "ann@example.com", "480.00", due_on=date(2026, 7, 1))

    def work(self) -> RunState:
        run = collect(self.store, INVOICE)
        return Runner(self.store, agents=[CollectRun], deps=self.host, max_wait=0).resume(run.run_id)

    def a_week_later(self) -> RunState:
        self.clock.move(PATIENCE.total_seconds())
        return self.work()

    def told(self, paid: Paid = PAID) -> str:
        return self.host.webhook(self.store, INVOICE, paid)

    def count(self, *tables: Any) -> list[int]:
        return [len(self.host.rows(table)) for table in tables]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    opened = House(tmp_path)
    yield opened
    opened.host.close()
    opened.store.close()


def test_a_payment_wakes_the_run_before_its_time(house: House) -> None:
    house.work()
    house.clock.move(86_400)

    told, again = house.told(), house.told()
    done = house.work()

    assert (told, again) == ("told to collect-INV-1042", "it is known")
    assert (done.status, done.answer) == (Status.DONE, "INV-1042 is paid, after 1 reminders.")
    assert house.count(Mail, Payment, Booking) == [1, 1, 1]


def test_a_payment_that_comes_before_anybody_waits_is_kept_for_the_wait(house: House) -> None:
    collect(house.store, INVOICE)
    house.told()

    done = house.work()

    assert (done.status, house.count(Mail, Booking)) == (Status.DONE, [1, 1])


def test_a_payment_and_its_signal_are_both_there_or_neither(house: House) -> None:
    house.work()

    with pytest.raises(BadSignal):
        house.told(Paid("e" * 201, PAID.amount))

    assert house.count(Payment) == [0]
    assert house.store.load("collect-INV-1042").signals == ()


@pytest.mark.parametrize("weeks", [None, REMINDERS])
def test_money_that_nobody_waits_for_is_written_down_all_the_same(weeks: int | None, house: House) -> None:
    if weeks is not None:
        house.work()
        for _ in range(weeks):
            house.a_week_later()

    told = house.told()

    assert told == "nobody waits for it: a person must book it"
    assert house.count(Payment, Booking) == [1, 0]


@pytest.mark.parametrize("payload", [None, "yes", {"event_id": "evt-77", "amount": "1.00"}])
def test_what_cannot_be_booked_is_for_a_person(payload: Any, house: House) -> None:
    house.work()
    house.store.signal(tag=("invoice", INVOICE), name="paid", payload=payload)

    failed = house.work()

    assert (failed.status, house.count(Booking)) == (Status.FAILED, [0])
    assert str(failed.failure).startswith("book_payment failed, a person must see to INV-1042: ")


def test_a_run_that_gave_up_begins_to_remind_again_where_a_person_sends_it_back(house: House) -> None:
    house.work()
    failed = [house.a_week_later() for _ in range(REMINDERS)][-1]
    house.store.requeue(failed.run_id, by="ann")

    waiting = house.work()

    assert (failed.status, waiting.status) == (Status.FAILED, Status.WAITING)
    assert house.host.rows(Mail)[-1]["text"].startswith("Reminder 1: ")
    assert house.count(Mail) == [REMINDERS + 1]


def test_an_invoice_that_is_not_overdue_is_left_alone(house: House) -> None:
    house.host.bill(INVOICE, "ann@example.com", "480.00", due_on=date(2026, 7, 6))

    done = house.work()

    assert (done.answer, house.count(Mail)) == ("INV-1042 is not overdue.", [0])


def test_a_worker_that_sleeps_goes_on_when_the_bank_calls(house: House, tmp_path: Path) -> None:
    with RunStore(f"sqlite:///{tmp_path / 'host.db'}") as store:  # whose time is the database's
        run_id = collect(store, INVOICE).run_id
        worker = Worker(store, agents=[CollectRun], deps=house.host)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            wait_for(lambda: store.record(run_id).waiting_for == "signal")
            house.host.webhook(store, INVOICE, PAID)
            wait_for(lambda: store.record(run_id).status is Status.DONE)
        finally:
            worker.stop()
            thread.join(WITHIN)

    assert house.count(Mail, Booking) == [1, 1]


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + WITHIN
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


# Crashes.

DAYS = [0, 3, 7, 11, 21, None]
"""At once, in the first week, on its last day, in the second week, on the last day of all, never."""


@pytest.mark.parametrize("day", DAYS)
def test_it_survives_a_crash_on_whatever_day_the_customer_pays(day: int | None, crash_kit: Any) -> None:
    report = replace(crash_kit, size=12).survives(collected(day))

    assert report.calm == ("failed" if day is None else "done")
    assert report.crashes
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


@pytest.mark.parametrize(
    "day", [pytest.param(3, marks=pytest.mark.crash), pytest.param(11, marks=pytest.mark.exhaustive)]
)
def test_it_survives_two_crashes(day: int, crash_kit: Any) -> None:
    report = replace(crash_kit, points="sample", size=200).survives(collected(day), crashes=2)

    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


@pytest.mark.crash
def test_it_survives_kills() -> None:
    report = survives_every_kill("examples.collections.crashes:paid", sample=20)

    assert report.crashes >= 10
    assert (report.double, report.lost, report.in_doubt) == (0, 0, 0)


class Nagger(CollectRun):
    """Sends a mail again that may be out."""

    agent_name = "CollectRun"

    @tool(effect=Effect.AT_MOST_ONCE, on_doubt="resend", retry=Retry(max_attempts=2))
    def remind(self, ctx: ToolContext[Host], address: str, text: str) -> None:
        """Send a mail."""
        ctx.deps.send(address, text)


class Forgetful(CollectRun):
    """Books a payment in a transaction of its own."""

    agent_name = "CollectRun"

    @tool(effect=Effect.READ)
    def book_payment(self, ctx: ToolContext[Host], number: str, paid: Paid) -> None:
        """Book a payment, whether or not it is booked."""
        again = len(ctx.deps.rows(Booking))
        with ctx.deps.engine.begin() as connection:
            row = {"event_id": f"{paid.event_id}-{again}", "invoice": number, "amount": str(paid.amount)}
            connection.execute(Booking.__table__.insert(), row)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        (Nagger, "'Reminder 1: please pay 480.00 for INV-1042.' went out 2 times"),
        (Forgetful, "double: book evt-77-1"),
    ],
)
@pytest.mark.crash
def test_an_agent_that_mails_or_books_twice_is_found_out(agent: type[CollectRun], says: str) -> None:
    with pytest.raises(DidNotSurvive, match=re.escape(says)):
        survives_every_crash(replace(collected(0), agent=agent))
