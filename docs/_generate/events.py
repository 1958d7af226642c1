"""The page of the events: their fields from the schema, with what each means."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from inspect import getdoc
from typing import Any, Literal, get_args, get_origin

from pydantic import AwareDatetime
from pydantic.fields import FieldInfo

from agent_es.events import (
    REGISTRY,
    AnswerUnusable,
    ApprovalDenied,
    ApprovalGranted,
    ApprovalRequested,
    BudgetReserved,
    CallDelayed,
    Cancelled,
    CompensationBegan,
    CompensationEnded,
    DoubtSettled,
    EnvelopeChanged,
    Event,
    FactRecorded,
    Finished,
    JsonText,
    LlmAnswered,
    LlmDecided,
    Parked,
    Paused,
    QuestionAnswered,
    Requeued,
    Resumed,
    RunFailed,
    RunStarted,
    SignalReceived,
    Steered,
    StepInDoubt,
    StepRefused,
    Summarized,
    ToolFailed,
    ToolResult,
    UsageRecorded,
    WaitBegan,
    WaitEnded,
)
from agent_es.journal import JournalEntry
from agent_es.legality import call_digest

HEADER = ("originator_id", "originator_version", "timestamp")
"""What every event has; the page tells of it once."""

COMMON: Mapping[str, str] = {
    "idx": "the step, numbered from 0 over the whole run",
    "tool": "the tool's name",
    "attempt": "which start of the step's body this is about, from 1; 0 where it has not started",
}
MEANINGS: Mapping[type[Event], Mapping[str, str]] = {
    RunStarted: {
        "run_id": "the run's id, as people write it",
        "agent": "the name of the agent, by which its class is found on a resume",
        "agent_version": "the `agent_version` of the class that started the run, for people",
        "goal": "what the run is to reach",
        "input": "what the run was started with",
        "tags": "texts by which people find their runs",
        "parent": "the run that started this one, and waits for its end",
        "envelope": "what the run may do, and what it may spend; absent where it may do anything",
    },
    BudgetReserved: {
        "turn": "the turn for which the decider is asked",
        "tokens": "what asking may take at most",
        "cost": "what asking may cost at most, in the currency that the decider tells costs in",
    },
    UsageRecorded: {
        "turn": "the turn for which the decider was asked",
        "tokens": "what asking took",
        "cost": "what asking cost",
        "is_known": "false where the process died while the decider was asked: then it is what was set aside",
    },
    LlmDecided: {
        "turn": "the answer of the decider that this call belongs to, from 0",
        "args": "the arguments as the decider gave them",
        "attempt": "0 where the step is queued, n where attempt n starts with this event",
        "key": "the idempotency key; absent for a `READ` tool and for a call that was refused",
        "call_id": "the provider's name for the call: kept as data, never used as a key",
        "keyed_as": "the name under which the key is held, where the tool has had another",
        "undoes": "the step whose effect this one undoes, while the run is compensated",
    },
    LlmAnswered: {
        "turn": "the turn whose calls were read from this, or the one with which the run ends",
        "model": "the model, as its provider calls it",
        "answer": "the message in the form of whoever asked, whole: signatures and hidden parts lie in it",
        "finish_reason": "why the model stopped, where it says so",
        "tokens": "how long the conversation was then, this answer with it; absent where the model did not count",
        "request": "what was asked, where whoever asks must be able to tell that the same is asked again",
    },
    AnswerUnusable: {
        "turn": "the turn that was asked for",
        "model": "the model, as its provider calls it",
        "answer": "what it said, bounded; for people",
        "reason": "what was wrong: the model is told when it is asked again",
        "finish_reason": "why the model stopped, where it says so",
    },
    FactRecorded: {
        "idx": "the step that found it, whose result comes with it",
        "name": "by what it is remembered; of two steps with one name, what the later one found counts",
        "value": "what is remembered",
    },
    Summarized: {
        "first": "the first step that the summary stands for; 0 where it stands for those before it too",
        "up_to": "the first step after it",
        "text": "what the decider reads instead",
        "phase": "what the phase is called; empty where it grew too long",
    },
    StepRefused: {"rule": "which rule of the envelope it was", "reason": "what was wrong, in words"},
    CallDelayed: {
        "until": "when the call may start",
        "is_given": "whether that time is its own; else it asks again then",
    },
    ApprovalRequested: {
        "args": "what the body would get, with the defaults of the code that asked: this is shown, and runs",
        "key": "the idempotency key of the call; absent where it has none",
        "digest": "SHA-256 of the tool, these arguments and the key: what is approved is this, and nothing else",
        "rule": "which rules of the envelope ask",
        "by": "who may answer: a person whom each of these groups names, by patterns; anybody, where there are none",
        "people": "how many different people must say yes",
        "expires_at": "when it is too late to answer; absent where it never is",
        "then": "what happens at that time: `deny`, and with `park` a person must see to the run as well",
    },
    ApprovalGranted: {
        "digest": "what the person said yes to: that of the question, or that of the arguments given here",
        "by": "the person",
        "args": "the arguments that the person gave instead; absent where it is a yes to what was shown",
        "key": "the key that those arguments have",
        "keyed_as": "the name under which that key is held, where the tool has had another",
        "reason": "why; empty where nobody said",
    },
    ApprovalDenied: {
        "digest": "what was denied",
        "by": "the person, or `the clock`",
        "reason": "why: the decider sees it",
        "is_expired": "whether nobody answered in time",
    },
    QuestionAnswered: {"answer": "what the person said", "by": "the person"},
    Steered: {"text": "what the person has to say, as the decider sees it", "by": "the person"},
    Paused: {"by": "the person", "reason": "why; empty where nobody said"},
    Resumed: {"by": "the person"},
    EnvelopeChanged: {"envelope": "what counts from then on", "by": "the person", "reason": "why"},
    ToolResult: {"result": "what the tool gave, as the decider sees it"},
    ToolFailed: {
        "error": "an object: `type`, `message`, and `applied`: false where the effect surely did not happen, true "
        "where it did and its value is lost, null where nobody knows and the tool says that the decider is told",
        "retry_at": "when the next attempt is due; absent where there is none and the decider sees the error",
    },
    StepInDoubt: {"reason": "why nobody knows"},
    DoubtSettled: {
        "outcome": "`happened` or `did_not_happen`; or what the tool's `on_doubt` does: `skipped`, `told`",
        "by": "the person, `probe`, or `on_doubt`",
        "key": "the new key of a step that did not happen",
    },
    WaitBegan: {
        "wake_at": "when the wait ends at the latest; absent where the clock does not end it",
        "idx": "the step that waits; absent where the steps do that are retrying",
        "attempt": "the attempt whose body asked to wait; absent where the decider did",
        "signal": "the name of the signal that ends the wait; `answer:` and the step's number for a question",
        "child": "the run that was started with this event, whose end ends the wait",
    },
    WaitEnded: {
        "reason": "`clock` or `signal`: what came first",
        "idx": "the step that goes on; absent where the steps do that are retrying",
        "received": "the `seq` of the signal that ended the wait: it is used up",
    },
    SignalReceived: {
        "name": "what the signal is called: a step that waits for that name goes on",
        "payload": "what it brought",
        "delivery_id": "by which it is known again: it is recorded once, however often it is brought",
    },
    Cancelled: {"by": "the person", "reason": "why"},
    Parked: {"reason": "what this code cannot act on"},
    Requeued: {"by": "the person"},
    CompensationBegan: {"by": "who asked for it", "reason": "why; empty where nobody said"},
    CompensationEnded: {},
    Finished: {"answer": "what the run came to"},
    RunFailed: {"reason": "why the decider gave up"},
}
REFUND, REFUND_KEY = '{"amount":180.0,"order_id":"ORD-3300"}', "ORD-3300:refund:180.00"
LESS, LESS_KEY = '{"amount":170.0,"order_id":"ORD-3300"}', "ORD-3300:refund:170.00"
"""What is asked for, and what a person says yes to instead."""

EXAMPLES: Mapping[type[Event], tuple[int, Mapping[str, Any]]] = {
    RunStarted: (
        0,
        {
            "run_id": "run-7f3a",
            "agent": "RefundRun",
            "agent_version": "1",
            "goal": "Refund ORD-3300",
            "input": "null",
        },
    ),
    LlmDecided: (
        3,
        {
            "idx": 1,
            "turn": 1,
            "tool": "process_refund",
            "args": REFUND,
            "attempt": 1,
            "key": REFUND_KEY,
        },
    ),
    BudgetReserved: (1, {"turn": 0, "tokens": 4_000, "cost": Decimal("0.02")}),
    UsageRecorded: (2, {"turn": 0, "tokens": 812, "cost": Decimal("0.0041")}),
    LlmAnswered: (
        1,
        {
            "turn": 0,
            "model": "test",
            "answer": '{"parts":[{"args":"{}","tool_name":"search_policy"}]}',
            "finish_reason": "tool_call",
            "tokens": 812,
        },
    ),
    AnswerUnusable: (
        1,
        {"turn": 0, "model": "test", "answer": "The refund", "reason": "it was cut", "finish_reason": "length"},
    ),
    FactRecorded: (5, {"idx": 1, "name": "refunded", "value": '"180.00"'}),
    Summarized: (9, {"first": 0, "up_to": 4, "text": "The policy allows the refund.", "phase": "research"}),
    StepRefused: (
        4,
        {"idx": 1, "tool": "process_refund", "rule": "limits: process_refund.amount", "reason": "500 is not <= 200"},
    ),
    CallDelayed: (
        4,
        {
            "idx": 1,
            "tool": "search_policy",
            "attempt": 0,
            "until": datetime(2026, 7, 5, 10, 0, 9, tzinfo=UTC),
            "is_given": True,
        },
    ),
    ApprovalRequested: (
        4,
        {
            "idx": 1,
            "tool": "process_refund",
            "args": REFUND,
            "key": REFUND_KEY,
            "digest": call_digest("process_refund", REFUND, REFUND_KEY),
            "rule": "needs_approval: process_refund.amount > 100",
            "by": (("dana", "ann-*"),),
            "people": 2,
            "expires_at": datetime(2026, 7, 6, 10, 0, 4, tzinfo=UTC),
        },
    ),
    ApprovalGranted: (
        5,
        {
            "idx": 1,
            "tool": "process_refund",
            "digest": call_digest("process_refund", LESS, LESS_KEY),
            "by": "dana",
            "args": LESS,
            "key": LESS_KEY,
            "reason": "the fee is ours to keep",
        },
    ),
    ApprovalDenied: (
        5,
        {
            "idx": 1,
            "tool": "process_refund",
            "digest": call_digest("process_refund", REFUND, REFUND_KEY),
            "by": "dana",
            "reason": "the parcel has not come back",
        },
    ),
    QuestionAnswered: (6, {"idx": 2, "answer": '"credit"', "by": "dana"}),
    Steered: (4, {"text": "The customer has written again: credit will do.", "by": "dana"}),
    Paused: (4, {"by": "dana", "reason": "the provider is down"}),
    Resumed: (5, {"by": "dana"}),
    EnvelopeChanged: (
        6,
        {"envelope": '{"budget":{"turns":40}}', "by": "ann", "reason": "the order has many lines"},
    ),
    ToolResult: (
        5,
        {
            "idx": 1,
            "tool": "process_refund",
            "attempt": 2,
            "result": '{"amount":"180.00","order_id":"ORD-3300","refund_id":"rf-1"}',
        },
    ),
    ToolFailed: (
        4,
        {
            "idx": 1,
            "tool": "process_refund",
            "attempt": 1,
            "error": '{"applied":false,"message":"the order is closed","type":"NotApplied"}',
        },
    ),
    StepInDoubt: (
        8,
        {
            "idx": 1,
            "tool": "process_refund",
            "attempt": 5,
            "reason": "attempt 5 of 5: TimeoutError: no answer within 10 s; "
            "nobody can tell whether process_refund happened",
        },
    ),
    DoubtSettled: (
        9,
        {
            "idx": 1,
            "tool": "process_refund",
            "attempt": 5,
            "outcome": "did_not_happen",
            "by": "ann",
            "key": "ORD-3300:refund:180.00#2",
        },
    ),
    WaitBegan: (5, {"wake_at": datetime(2026, 7, 12, 10, 0, 5, tzinfo=UTC), "idx": 2, "signal": "paid"}),
    WaitEnded: (7, {"reason": "signal", "idx": 2, "received": 6}),
    SignalReceived: (6, {"name": "paid", "payload": '{"amount":"180.00"}', "delivery_id": "evt-8c21"}),
    Cancelled: (6, {"by": "ann", "reason": "the customer kept it"}),
    Parked: (4, {"reason": "run run-7f3a step 1: this program has no tool 'process_refund'; requeue it where it is"}),
    Requeued: (5, {"by": "ann"}),
    CompensationBegan: (7, {"by": "ann", "reason": "the order was a mistake"}),
    CompensationEnded: (10, {}),
    Finished: (6, {"answer": '"Refund of $180.00 for ORD-3300 is complete."'}),
    RunFailed: (5, {"reason": "the order is closed"}),
}
PAGE = """<!-- Generated by python -m docs._generate from agent_es.events: edit docs/_generate/events.py instead. -->

# Events

A run's journal is a list of events.  `agent-es journal RUN` prints one JSON line per event, with sorted keys:

| name | JSON | meaning |
|---|---|---|
| `type` | text | the event's name in snake case |
| `run_id` | text | the run |
| `seq` | number | the event's place in its run, from 0 |
| `ts` | text | when it was recorded: UTC, ISO 8601, with `Z`; no fraction where it is zero |
| `data` | object | the event's own fields, below; a field without a value is absent |

What a tool, a decider or a person said lies in the store as one canonical JSON text: sorted keys, no spaces.  A
journal line shows it as the value that it stands for.  Such fields are marked *any value* below.

Events are never rewritten.  The stored name of an event is its topic, which stays the same where a class moves; only
the topics on this page can be read back.  A run that holds an event of a newer version, or one that is not here, is
left alone, with [`RunUnreadable`](errors.md#rununreadable).
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([PAGE, *(section(topic, cls) for topic, cls in REGISTRY.items())])


def section(topic: str, cls: type[Event]) -> str:
    """Return what the page says of one event."""
    rows = ["| field | JSON | meaning |", "|---|---|---|"]
    for name, about in cls.model_fields.items():
        if name not in HEADER:
            rows.append(f"| `{name}` | {shown(about)} | {meaning(cls, name, about)} |")
    entry = example(cls)
    told = (getdoc(cls) or "").replace("``", "`")
    if len(rows) == 2:  # noqa: PLR2004  # the head alone
        rows = ["It has no fields of its own."]
    return (
        f"## {cls.__name__}\n\n{told}\n\n"
        f"`type` is `{entry.type}`, the topic `{topic}`, the version {cls.class_version}.\n\n"
        + "\n".join(rows)
        + f"\n\n```json\n{entry}\n```\n"
    )


def shown(about: FieldInfo) -> str:
    """Say in words what JSON a field holds."""
    if JsonText.__metadata__[0] in about.metadata:  # type: ignore[attr-defined]
        return "any value"
    kinds: Mapping[Any, str] = {
        str: "text",
        int: "number",
        bool: "true or false",
        Decimal: "text, a number",
        Mapping[str, str]: "object of texts",
        AwareDatetime: "text, a time",
        tuple[tuple[str, ...], ...]: "list of lists of texts",
    }
    options = get_args(about.annotation)
    if get_origin(about.annotation) is Literal:
        return "text"
    if type(None) in options and options[0] is JsonText:
        return "any value, may be absent"
    if type(None) in options:
        return f"{kinds[options[0]]}, may be absent"
    return kinds[about.annotation]


def meaning(cls: type[Event], name: str, about: FieldInfo) -> str:
    """Say what a field means: its description in the schema, or what is written here."""
    told = about.description or MEANINGS.get(cls, {}).get(name) or COMMON.get(name)
    if told is None:
        raise ValueError(f"say in docs/_generate/events.py what {cls.__name__}.{name} means")
    return told


def example(cls: type[Event]) -> JournalEntry:
    """Return a line of a journal that holds such an event."""
    if cls not in EXAMPLES:
        raise ValueError(f"give an example of {cls.__name__} in docs/_generate/events.py")
    seq, values = EXAMPLES[cls]
    at = datetime(2026, 7, 5, 10, 0, seq, tzinfo=UTC)
    event: Any = cls(timestamp=at, originator_version=seq + 1, **values)
    return JournalEntry("run-7f3a", event)
