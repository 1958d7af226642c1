"""A model that writes what stands for a phase."""

from collections.abc import Iterator
from decimal import Decimal

from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from agent_es.envelope import Usage
from agent_es.integrations.pydantic_ai.answers import price_of
from agent_es.integrations.pydantic_ai.asking import AskedModel, Line, Patience, Question
from agent_es.integrations.pydantic_ai.requests import request, told
from agent_es.scratchpad import Entry, Outline, Phase, Written

INSTRUCTIONS = """\
You sum up a part of the work of an agent, who reads your summary from then on in place of what it sums up.
Say what was done, what came of it, what was decided and why, and what is still open.  Keep names, numbers, ids, dates
and what failed, to the letter.  Invent nothing.  Answer with the summary alone."""

LONGEST_ENTRY = 16_000
"""Characters of one entry that are read to be summed up."""


class ModelSummarizer:
    """Lets a model sum up a phase; where it says nothing in three answers, an outline stands for it.

    ``model``, ``settings`` and ``patience`` are those of a ``ModelDecider``.  Raises ``ModelUnavailable`` and
    ``ModelRefused``: then nothing is recorded, and the run can be resumed.
    """

    asks = 3

    def __init__(
        self,
        model: AskedModel | Line,
        *,
        instructions: str = INSTRUCTIONS,
        settings: ModelSettings | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._instructions = instructions
        self._line = model if isinstance(model, Line) else Line(model, settings, patience or Patience())

    async def summarize(self, phase: Phase, /) -> Written:
        """Return a summary of at most ``phase.longest`` tokens, and what it took."""
        asked = request([told(_asked(phase))], self._instructions)
        question = Question(phase.run_id, -1, [asked], ModelRequestParameters())
        tokens, cost = 0, Decimal(0)
        for _ in range(self.asks):
            try:
                answer = await self._line.ask(question)
            except (ModelAPIError, UnexpectedModelBehavior):
                continue  # nobody can read what came
            tokens, cost = tokens + answer.usage.total_tokens, cost + price_of(answer)
            if answer.text and answer.text.strip():
                return Written(answer.text.strip(), Usage(tokens=tokens, cost=cost))
        return Written(Outline().summarize(phase), Usage(tokens=tokens, cost=cost))


def _asked(phase: Phase) -> str:
    return "\n".join(_lines(phase))


def _lines(phase: Phase) -> Iterator[str]:
    yield f"The goal of the work: {phase.goal}"
    if phase.name:
        yield f"The part of it that is over: {phase.name}"
    if phase.facts:
        yield "What is kept beside your summary, so that you need not say it:"
        yield from (f"- {name} = {value}" for name, value in phase.facts.items())
    for summary in phase.summaries:
        yield f"What was summed up before, and your summary takes the place of:\n{summary.text}"
    yield "What happened:"
    yield from map(_line, phase.entries)
    yield f"Write at most {phase.longest * 3 // 4:,} words."


def _line(entry: Entry) -> str:
    cut = "" if len(entry.text) <= LONGEST_ENTRY else f" [cut: {len(entry.text):,} characters]"
    return f"{entry.kind}: {entry.text[:LONGEST_ENTRY]}{cut}"
