"""The collection of an invoice for the crash kit: the customer pays on some day, and workers die on the way.

Try one, in the folder of the checkout: agent-es fuzz examples.collections.crashes:paid

Rule 1: time goes by where a run waits, and who pays does so then; on the first day, as soon as the first mail is out.
Rule 2: a mail that may be out is not sent again, so it is held against what the journal says of it.
"""

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

from agent_es import RunStore
from agent_es.testing import Ending, MovableClock, Scenario
from agent_es.testing.clock import STORY
from agent_es.testing.folders import in_its_folder
from examples.collections.agent import CollectRun
from examples.collections.host import Booking, Host, Mail, Paid, Payment

NUMBER, EVENT = "INV-1042", Paid("evt-77", Decimal("480.00"))


class Calendar(MovableClock):
    """Time that goes by where somebody sleeps, up to the next thing that happens in the world."""

    world: "World"

    def opens(self, world: "World") -> None:
        """Go on where the last worker left off: what it knew of the time died with it."""
        with RunStore(world.url) as store:
            self._now = max([STORY, *(record.updated_at for record in store.runs())])
        self.world = world

    def sleep(self, seconds: float) -> None:
        """Let time go by; whoever is told of something meanwhile is awake by then."""
        until = self.now() + timedelta(seconds=seconds)
        self._now = max(self.now(), min(until, self.world.pays_at or until))
        self.world.see()


class World(Host):
    """The host, and a customer who pays on some day, or never."""

    def __init__(self, folder: Path, clock: Calendar, day: int | None) -> None:
        self.url = in_its_folder(folder)
        super().__init__(self.url, today=lambda: clock.now().date())
        self.bill(NUMBER, "ann@example.com", "480.00", due_on=STORY.date())
        self._clock = clock
        self._day = day
        clock.opens(self)

    @property
    def pays_at(self) -> datetime | None:
        """When the customer will pay; None where they never do, or have."""
        return None if self._day is None or self.rows(Payment) else STORY + timedelta(days=self._day)

    def send(self, address: str, text: str) -> None:
        """Send a mail; who pays at once does so before anybody waits for it."""
        super().send(address, text)
        self.see()

    def see(self) -> None:
        """Let the customer pay, where it is time: the bank calls the webhook, in a process of its own."""
        if (pays_at := self.pays_at) is not None and self._clock.now() >= pays_at:
            with RunStore(self.url, clock=self._clock) as store:
                self.webhook(store, NUMBER, EVENT)

    def effects(self) -> list[str]:
        """Return what happened, each as often as it did."""
        return [f"book {row['event_id']}" for row in self.rows(Booking)]


def reminded_as_said(ending: Ending) -> None:
    """Hold where each reminder went out once; or at most once, where the journal says that nobody knows."""
    said = {step.idx: step.args["text"] for step in ending.state.steps if step.tool == "remind"}
    doubted = {entry.data["idx"] for entry in ending.journal if entry.type == "step_in_doubt"}
    out = [row["text"] for row in ending.world.rows(Mail)]
    for idx, text in said.items():
        may_be = (0, 1) if idx in doubted else (1,)
        assert out.count(text) in may_be, f"{text!r} went out {out.count(text)} times"  # noqa: S101
    assert set(out) <= {*said.values()}, out  # noqa: S101


def collected(day: int | None) -> Scenario:
    """Return the scenario in which the customer pays on that day, counted from 0; or never."""
    clock = Calendar()
    return Scenario(
        agent=CollectRun,
        world=lambda folder: World(folder, clock, day),
        invariant=reminded_as_said,
        goal=f"Collect {NUMBER}",
        input={"invoice": NUMBER},
        run_id=f"collect-{NUMBER}",
        tags={"invoice": NUMBER},
        clock=clock,
    )


paid = collected(day=11)
"""Reminded twice, then paid."""
