"""The host: an ordinary program with invoices, mails and bookings, in the database in which its runs are.

Rule: what the bank says is written down and told to the run in one transaction, or neither.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import create_engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from agent_es import RunStore, crash_point
from agent_es.errors import IllegalEvent, RunNotFound


class Table(DeclarativeBase):
    """What the host keeps beside its runs."""


class Invoice(Table):
    """What a customer owes."""

    __tablename__ = "invoices"
    number: Mapped[str] = mapped_column(primary_key=True)
    address: Mapped[str]
    amount: Mapped[str]  # a decimal number: not every database has such a type
    due_on: Mapped[date]


class Payment(Table):
    """What the bank has told of, once for each of its events."""

    __tablename__ = "payments"
    event_id: Mapped[str] = mapped_column(primary_key=True)
    invoice: Mapped[str]
    amount: Mapped[str]


class Booking(Table):
    """A payment that is settled against its invoice: the run writes it."""

    __tablename__ = "bookings"
    event_id: Mapped[str] = mapped_column(primary_key=True)
    invoice: Mapped[str]
    amount: Mapped[str]


class Mail(Table):
    """What went out.  It stands for a mail server: that takes no key, and nobody can ask it afterwards."""

    __tablename__ = "mails"
    number: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[str]
    text: Mapped[str]


@dataclass(frozen=True)
class Paid:
    """An event of the bank, as it comes to the webhook and goes on to the run."""

    event_id: str
    amount: Decimal


class Host:
    """What the agent's tools get as ``ctx.deps``; ``today`` tells the date."""

    def __init__(self, url: str, *, today: Callable[[], date] = lambda: datetime.now(UTC).date()) -> None:
        self.engine = create_engine(url, poolclass=NullPool)
        self.today = today
        Table.metadata.create_all(self.engine)

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()

    def bill(self, number: str, address: str, amount: str, due_on: date) -> None:
        """Write an invoice down, unless it is there."""
        with Session(self.engine) as session, session.begin():
            session.merge(Invoice(number=number, address=address, amount=amount, due_on=due_on))

    def overdue(self, number: str) -> Invoice | None:
        """Return an invoice that should have been paid by today and is not booked."""
        unpaid = select(Invoice).where(Invoice.number == number, Invoice.due_on <= self.today())
        with Session(self.engine) as session:
            return session.scalar(unpaid.where(Invoice.number.not_in(select(Booking.invoice))))

    def send(self, address: str, text: str) -> None:
        """Send a mail: who asks twice sends twice."""
        crash_point("the mail is not out yet")
        with Session(self.engine) as session, session.begin():
            session.add(Mail(address=address, text=text))
        crash_point("the mail is out")

    def webhook(self, store: RunStore, invoice: str, paid: Paid) -> str:
        """Write down that an invoice was paid, and tell the run that waits for it; return what came of it.

        The bank sends an event until it is answered, so the same one may come twice.
        """
        payload = {"event_id": paid.event_id, "amount": str(paid.amount)}
        try:
            with Session(self.engine) as session, session.begin():
                session.add(Payment(invoice=invoice, **payload))
                session.flush()  # an event that is there already is refused here
                try:
                    told = store.signal(
                        tag=("invoice", invoice),
                        name="paid",
                        payload=payload,
                        delivery_id=paid.event_id,
                        session=session,
                    )
                except (RunNotFound, IllegalEvent):  # the money is there, whether or not anybody waits for it
                    return "nobody waits for it: a person must book it"
        except IntegrityError:
            return "it is known"
        return f"told to {', '.join(run.run_id for run in told)}"

    def rows(self, table: type[Table]) -> list[dict[str, Any]]:
        """Return all rows of one of the tables."""
        with Session(self.engine) as session:
            names = [column.name for column in table.__table__.columns]
            return [{name: getattr(row, name) for name in names} for row in session.scalars(select(table))]
