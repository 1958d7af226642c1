"""Some weeks of an overdue invoice, played in a second.

Run it: python -m examples.collections [FOLDER] [--never-paid] [--killed] [--model NAME]
"""

import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from agent_es import Decider, Notice, Runner, RunStore
from agent_es.testing import CrashingRunner, Life, MovableClock, Place, sigkill
from examples.collections.agent import CollectRun, collect
from examples.collections.host import Booking, Host, Mail, Paid

NUMBER, AMOUNT = "INV-1042", "480.00"
DAY = 86_400.0
"""Seconds."""
PAYS_ON = 11
"""The day on which the customer pays, counted from 0."""
DIES_ON = {0: "the mail is out", PAYS_ON: "the booking is written"}
"""Where the worker of a day is killed, where one is."""
TOLD = {"completed", "in_doubt", "settled", "waiting", "woken", "finished", "run_failed"}


class Doomed(Life):
    """The life of a worker that is killed when it comes to a place."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place

    def reach(self, place: Place) -> None:
        """Be killed there."""
        if place.what == self._place:
            sigkill(place)


class Weeks:
    """The host and its store in a folder, and a clock that is moved by hand."""

    def __init__(self, folder: Path, now: datetime | None = None, model: str | None = None) -> None:
        url = f"sqlite:///{folder / 'host.db'}"
        self.folder = folder
        self.model = model
        self.decider = decider_of(model)
        self.clock = MovableClock(now) if now else MovableClock()
        self.store = RunStore(url, clock=self.clock)
        self.host = Host(url, today=lambda: self.clock.now().date())

    def say(self, text: object) -> None:
        """Print what happened today, before anybody is killed."""
        print(f"{self.clock.now():%a %d %b}  {text}", flush=True)

    def hear(self, notice: Notice) -> None:
        """Print what happened to the run."""
        if notice.kind in TOLD:
            self.say(" ".join(filter(None, [notice.kind.replace("_", " "), notice.tool, notice.text])))

    def worker(self, **life: Any) -> Runner:
        """Return a worker that does what is due today, and waits for nothing."""
        kind = CrashingRunner if life else Runner
        return kind(
            self.store, self.decider, agents=[CollectRun], deps=self.host, on_event=self.hear, max_wait=0, **life
        )

    def kill_one(self, run_id: str, place: str) -> None:
        """Let a process begin what is due today; it is killed where it comes to a place."""
        now = self.clock.now().isoformat()
        command = [sys.executable, "-m", "examples.collections", str(self.folder), "--die", run_id, now, place]
        command += ["--model", self.model] if self.model else []
        if (status := subprocess.run(command, check=False).returncode) != 0:
            self.say(f"the worker ended with {status}: {place}")

    def play(self, *, pays: bool, kills: bool) -> None:
        """Let the days go by until the run is over."""
        self.host.bill(NUMBER, "ann@example.com", AMOUNT, due_on=self.clock.now().date())
        run, day = collect(self.store, NUMBER), 0
        while not run.is_over:
            if pays and day == PAYS_ON:
                for _ in range(2):  # the bank sends it again
                    self.say(f"the bank: {self.host.webhook(self.store, NUMBER, Paid('evt-77', Decimal(AMOUNT)))}")
            if kills and day in DIES_ON:
                self.kill_one(run.run_id, DIES_ON[day])
            run = self.worker().resume(run.run_id)
            self.clock.move(DAY)
            day += 1
        for entry in self.store.journal(run.run_id):
            if entry.type in ("wait_began", "signal_received", "wait_ended"):
                print(entry)
        mails, bookings = len(self.host.rows(Mail)), [row["event_id"] for row in self.host.rows(Booking)]
        print(f"{mails} mails, booked: {', '.join(bookings) or 'nothing'}")
        print(f"{run.status}: {run.answer or run.failure}")

    def close(self) -> None:
        """Close the connections."""
        self.host.close()
        self.store.close()


def decider_of(model: str | None) -> Decider | None:
    """Return the model of that name, or None for the script that the agent has."""
    if not model:
        return None
    from examples.collections.model import collector  # noqa: PLC0415  # an optional extra

    return collector(model)


if __name__ == "__main__":
    options = ArgumentParser(prog="python -m examples.collections", description=__doc__.partition("\n")[0])
    options.add_argument("folder", nargs="?", type=Path, help="where host.db is kept")
    options.add_argument("--never-paid", action="store_true", help="nobody pays")
    options.add_argument("--killed", action="store_true", help="two workers are killed on the way")
    options.add_argument("--die", nargs=3, metavar=("RUN", "NOW", "PLACE"), help="be the worker that is killed")
    options.add_argument("--model", default=os.environ.get("AGENT_ES_MODEL"), help="who decides, as openai:gpt-5")
    given = options.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    weeks = Weeks(folder, given.die and datetime.fromisoformat(given.die[1]), given.model)
    if given.die:
        weeks.worker(life=Doomed(given.die[2])).resume(given.die[0])
    else:
        weeks.play(pays=not given.never_paid, kills=given.killed)
    weeks.close()
