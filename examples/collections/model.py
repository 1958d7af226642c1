"""The same agent with a model in place of the script: ``python -m examples.collections --model NAME``."""

from agent_es import WaitFor
from agent_es.integrations.pydantic_ai import ModelDecider
from examples.collections.agent import PATIENCE, REMINDERS

INSTRUCTIONS = f"""\
You collect the money for one invoice, whose number is in the input.
1. Look it up with find_overdue.  Where it finds nothing, say that the invoice is not overdue, and that is all.
2. Remind the customer with remind: the address and the amount are in what you found.
3. Wait for the signal "paid" with wait_for, for {PATIENCE.total_seconds():.0f} seconds.
4. Where the signal came, book its payload with book_payment, and say that the invoice is paid.
5. Where the time is over, go on with 2.  After {REMINDERS} reminders say that a person must see to it.
Call one tool at a time."""


def collector(model: str) -> ModelDecider:
    """Return a decider that asks a model; it may wait for the payment."""
    return ModelDecider(model, instructions=INSTRUCTIONS, offers=[WaitFor])
