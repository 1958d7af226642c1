"""What a model is sent: a run that reads long pages, all of them in each question, or with a cap on memory.

The model is a function that counts what it is sent: the bytes of the messages as JSON, four for a token.  It goes by
that alone: it reads the next page that it sees no trace of, and at the end answers with the figures that it still
sees.  What a summary takes to be written counts too, with the question after it.  There is one round: the same run
sends the same bytes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from agent_es import AgentRun, Effect, Memory, Runner, RunStore, ToolContext, tool
from agent_es.bench.measure import Bar, Figure, Measured, Report, Show
from agent_es.bench.payloads import url_of
from agent_es.integrations.pydantic_ai import ModelDecider, ModelSummarizer

UNIT = "tokens"
CAP = 8_000
CHARACTERS = 5_000
"""Of a page."""
GOAL = "Read the whole ledger, and say the figure of each of its pages."
LINE = "A posting of the day, as it came in, booked and signed.  "

GROWTH_AT_MOST = 1.1
TWICE_AT_MOST = 2.3

ALL, OUTLINE, SUMMED, NO_FACTS = (
    "everything is sent",
    "agent_es, an outline",
    "agent_es, a model sums up",
    "an outline without facts",
)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    pages: int = 40
    """That a run reads, one with each step; and then twice as many."""
    share: float = 0.3
    """Of what is sent without a cap, at most; the longer a run, the less."""


FULL, QUICK = Scale(), Scale(20, 0.6)


def figure_of(page: int) -> int:
    """Return the figure that a page has."""
    return 10_000 + 7_919 * page % 90_000


def text_of(page: int) -> str:
    """Return a page: its figure stands in the middle, where no beginning of it shows it."""
    begins = f"Page {page} of the ledger.  {LINE * (CHARACTERS // 2 // len(LINE))}"
    ends = LINE * (CHARACTERS // len(LINE))
    return f"{begins}The figure of page {page} is {figure_of(page)}.  {ends}"[:CHARACTERS]


class Ledger(AgentRun):
    """Keeps the figure of each page that it reads as a fact."""

    @tool(effect=Effect.READ)
    def read_page(self, ctx: ToolContext, page: int) -> str:
        """Read a page of the ledger."""
        ctx.remember(f"figure of page {page}", figure_of(page))
        return text_of(page)


class Prose(AgentRun):
    """Keeps nothing but what it read."""

    @tool(effect=Effect.READ)
    def read_page(self, page: int) -> str:
        """Read a page of the ledger."""
        return text_of(page)


@dataclass(slots=True)
class Reader:
    """Is the model: it reads so many pages, then answers with every figure that it sees."""

    pages: int
    questions: list[int] = field(default_factory=list)
    """Tokens of each question what to do next."""
    summing: list[int] = field(default_factory=lambda: [0])
    """Tokens that were sent for summaries before each of them, and since."""

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """Answer a question, and count it."""
        sent = ModelMessagesTypeAdapter.dump_json(messages, exclude_none=True).decode()
        tokens = len(sent.encode()) // 4
        seen = {int(page) for page in re.findall(r"[Pp]age (\d+)", sent)}
        if not info.function_tools:  # the question is what a phase came to
            self.summing[-1] += tokens
            return said(
                TextPart("\n".join(f"Page {page} was read and is in order." for page in sorted(seen))), tokens
            )
        self.questions.append(tokens)
        self.summing.append(0)
        assert len(self.questions) <= self.pages + 1, (
            f"it goes round: {self.pages} pages, {len(self.questions)} questions"
        )
        page = max(seen, default=-1) + 1
        if page < self.pages:
            return said(ToolCallPart("read_page", {"page": page}, f"page-{page}"), tokens)
        found = dict(re.findall(r"figure of page (\d+) (?:is|=) (\d+)", sent))
        return said(TextPart(", ".join(f"{page}: {found[page]}" for page in sorted(found, key=int))), tokens)


def said(part: TextPart | ToolCallPart, tokens: int) -> ModelResponse:
    """Return an answer with the count of its question."""
    length = len(part.content if isinstance(part, TextPart) else part.args_as_json_str())
    return ModelResponse(parts=[part], usage=RequestUsage(input_tokens=tokens, output_tokens=length // 4))


@dataclass(frozen=True, slots=True)
class Way:
    """How a run is read: what it keeps, and how much of it is read at once."""

    agent: type[AgentRun]
    memory: Callable[[Model], Memory | None]


WAYS: Mapping[str, Way] = {
    ALL: Way(Ledger, lambda _: None),
    OUTLINE: Way(Ledger, lambda _: Memory(cap=CAP)),
    SUMMED: Way(Ledger, lambda model: Memory(cap=CAP, summarizer=ModelSummarizer(model))),
    NO_FACTS: Way(Prose, lambda _: Memory(cap=CAP)),
}
CAPPED = (OUTLINE, SUMMED)


@dataclass(frozen=True, slots=True)
class Sent:
    """What one run sent to its model, and how it ended."""

    questions: Sequence[int]
    """Tokens of each question."""
    turns: Sequence[int]
    """Tokens of each question with the summary that was written before it."""
    right: int
    """Figures of its answer that are right."""

    @property
    def total(self) -> int:
        """All tokens that were sent."""
        return sum(self.turns)


def measure(folder: Path, show: Show, *, quick: bool) -> Report:
    """Return what is sent with a cap and without one."""
    return compare(folder, QUICK if quick else FULL, show)


def compare(folder: Path, scale: Scale, show: Show) -> Report:
    """Let each way read so many pages, and twice as many."""
    entered = [(name, pages) for pages in (scale.pages, 2 * scale.pages) for name in WAYS]
    found = {entered[n]: read(folder, *entered[n]) for n in show(range(len(entered)), "memory")}
    first, *more = [bar for name in CAPPED for bar in bars_of(name, scale, found)]
    shown = [
        Measured.of(name, "", n, [tokens], UNIT)
        for name in (ALL, *CAPPED)
        for n, tokens in enumerate(found[name, 2 * scale.pages].turns, 1)
    ]
    return Report(tuple(figures_of(found)), first, tuple(more), tuple(shown))


def read(folder: Path, name: str, pages: int) -> Sent:
    """Let a run read so many pages."""
    reader, way = Reader(pages), WAYS[name]
    model = FunctionModel(reader.answer, model_name="reader")
    decider = ModelDecider(model, memory=way.memory(model))
    with RunStore(url_of(folder / f"{name}, {pages}.db")) as store:
        run = Runner(store, decider).run(way.agent, run_id="ledger", goal=GOAL)
    assert run.answer is not None, run.status
    assert len(run.steps) == pages, f"{len(run.steps)} of {pages} pages were read"
    right = sum(f"{page}: {figure_of(page)}" in run.answer.split(", ") for page in range(pages))
    turns = [sum(both) for both in zip(reader.questions, reader.summing, strict=False)]
    return Sent(reader.questions, turns, right)


def bars_of(name: str, scale: Scale, found: Mapping[tuple[str, int], Sent]) -> list[Bar]:
    """Return what must hold for a memory with a cap."""
    pages = scale.pages
    capped, whole = found[name, pages], found[ALL, pages]
    early, late = capped.turns[pages * 3 // 8 : pages * 5 // 8], capped.turns[-(pages // 4) :]
    turn = (whole.questions[-1] - whole.questions[0]) / pages
    between = f"{pages * 3 // 8 + 1} to {pages * 5 // 8}"
    return [
        Bar(
            f"{name}, the last {len(late)} questions of {pages + 1} / questions {between}",
            mean(late) / mean(early),
            "at most",
            GROWTH_AT_MOST,
        ),
        Bar(f"{name}, the longest question / the cap and a turn", max(capped.questions) / (CAP + turn), "at most", 1),
        Bar(f"{name}, {pages} pages / everything is sent", capped.total / whole.total, "at most", scale.share),
        Bar(
            f"{name}, {2 * pages} pages / {pages} pages",
            found[name, 2 * pages].total / capped.total,
            "at most",
            TWICE_AT_MOST,
        ),
        *(Bar(f"{name}, right figures of {n}", found[name, n].right, "at least", n) for n in (pages, 2 * pages)),
    ]


def figures_of(found: Mapping[tuple[str, int], Sent]) -> list[Figure]:
    """Return what each way sent, and what it still saw at the end."""
    return [
        figure
        for (name, pages), sent in found.items()
        for figure in (
            Figure(f"{name}, {pages} pages, all questions", sent.total, UNIT),
            Figure(f"{name}, {pages} pages, the last question", sent.questions[-1], UNIT),
            Figure(f"{name}, {pages} pages, right figures in the answer", sent.right, f"of {pages}"),
        )
    ]
