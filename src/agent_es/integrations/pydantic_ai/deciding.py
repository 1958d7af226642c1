"""A decider that is a model."""

from collections.abc import Sequence
from types import EllipsisType
from typing import Any

from pydantic_ai.exceptions import FallbackExceptionGroup, ModelAPIError, UnexpectedModelBehavior
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from agent_es.decider import ClosePhase, Said, Unusable, Used
from agent_es.errors import BadDecider, BadDecision
from agent_es.integrations.pydantic_ai.answers import Reader
from agent_es.integrations.pydantic_ai.asking import AskedModel, Line, Patience, Question
from agent_es.integrations.pydantic_ai.deltas import OnDelta
from agent_es.integrations.pydantic_ai.offers import Final, Offered, Offers
from agent_es.integrations.pydantic_ai.requests import conversation, definitions
from agent_es.integrations.pydantic_ai.summarizing import ModelSummarizer
from agent_es.scratchpad import Memory
from agent_es.state import RunState
from agent_es.tools import ToolSpec

EVERYTHING = 2**62
"""Characters of a result that are shown to a model whose memory has no bound."""


class ModelDecider:
    """Lets a model decide, by the model layer of pydantic-ai.

    ``model`` is its name, as in ``"openai:gpt-5"``, or a pydantic-ai ``Model``, or a function that makes one.  By a
    name or a function, each request has connections of its own, so that workers can ask from several threads; a
    ``Model`` is shared, and answers one event loop after the other.

    ``instructions`` stand before each conversation, ``settings`` are pydantic-ai's ``ModelSettings``.  ``memory``
    says how much is read at once; left out, that is 32,000 tokens or three quarters of the model's window, and the
    model itself sums up what is older; None for all there is.  ``output_type`` is the type of the final answer: any
    that pydantic knows.  ``offers`` are what the model may do beside calling tools: ``Sleep``, ``WaitFor``,
    ``Ask``; with ``phases`` it may close a phase, too.

    ``on_delta`` is told what the model says as it comes, see ``Delta``.  ``patience`` bounds how long is asked where
    no answer comes, and ``asks`` how many answers to one question may be unusable: then the run is parked.

    Raises ``BadDecider``, and when it is asked, ``ModelUnavailable`` and ``ModelRefused``: then nothing is recorded,
    and the run can be resumed.
    """

    def __init__(
        self,
        model: AskedModel,
        *,
        instructions: str | None = None,
        settings: ModelSettings | None = None,
        memory: Memory | EllipsisType | None = ...,
        output_type: Any = str,
        offers: Sequence[Offered] = (),
        phases: bool = False,
        on_delta: OnDelta | None = None,
        patience: Patience | None = None,
        asks: int = 3,
    ) -> None:
        if asks < 1:
            raise BadDecider(f"asks={asks}: a model is asked at least once")
        self._line = Line(model, settings, patience or Patience())
        self._instructions = instructions
        self._offers = Offers([*offers, *([ClosePhase] if phases else [])])
        self._final = None if output_type is str else Final(output_type)
        self._reader = Reader(self._offers, self._final, asks)
        self._on_delta = on_delta
        self.memory: Memory | None = self._fitting() if isinstance(memory, EllipsisType) else memory

    async def decide(self, run: RunState, tools: Sequence[ToolSpec], /) -> Used:
        """Ask the model what to do next."""
        question = self._question(run, tools)
        try:
            answer = await self._line.ask(question, self._on_delta)
        except (ModelAPIError, FallbackExceptionGroup, UnexpectedModelBehavior) as error:
            why = f"nobody can read it: {error}"
            return Used(Unusable(why, self._reader.asks), said=Said(self._line.name, getattr(error, "body", None)))
        return self._reader.read(answer, run)

    def _question(self, run: RunState, tools: Sequence[ToolSpec]) -> Question:
        longest = EVERYTHING if self.memory is None else self.memory.longest_result
        own = [] if self._final is None else [self._final.definition]
        functions = [*definitions(tools), *self._offers.definitions]
        names = [tool.name for tool in [*functions, *own]]
        if twice := {name for name in names if names.count(name) > 1}:
            raise BadDecision(f"run {run.run_id}: {', '.join(sorted(twice))}: a tool has the name of what is offered")
        parameters = ModelRequestParameters(
            function_tools=functions,
            output_tools=own,
            output_mode="tool" if own else "text",
            allow_text_output=not own,
        )
        messages = conversation(run, longest=longest, instructions=self._instructions)
        return Question(run.run_id, run.turns, messages, parameters)

    def _fitting(self) -> Memory:
        """Return a memory that fits the model."""
        usual, window = Memory(), self._line.context_window
        cap = usual.cap if window is None else min(usual.cap, window * 3 // 4)
        return Memory(cap=cap, summarizer=ModelSummarizer(self._line))
