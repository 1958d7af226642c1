"""What a model's answer means: calls, an answer, the end of a phase, or nothing that anything can be done with.

Rule 1: an answer is taken as a whole: where a part of it cannot be, nothing of it is acted on.
Rule 2: an answer that was cut is acted on only as far as that is sure: a text may be half of one, a call with all of
its arguments may not.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeVar

from pydantic_ai.messages import ModelResponse, ToolCallPart

from agent_es.decider import Call, ClosePhase, Finish, Said, Unusable, Used
from agent_es.errors import NotRecordable
from agent_es.integrations.pydantic_ai.offers import CLOSE_PHASE, FINAL_RESULT, Final, Offers, Unreadable
from agent_es.integrations.pydantic_ai.requests import CUT, MADE_UP, as_json
from agent_es.state import RunState
from agent_es.tools import CallTool
from agent_es.values import canonical

T = TypeVar("T")

ENDS_BADLY = {
    "content_filter": "the model refused, or its answer was filtered",
    "error": "the model ended with an error",
}


@dataclass(frozen=True)
class Reader:
    """Reads the answers of a model that was offered these things beside tools."""

    offers: Offers
    final: Final | None
    asks: int
    """How many answers to one question may be unusable, before the run is parked."""

    def read(self, response: ModelResponse, state: RunState) -> Used:
        """Return the decision, what it took, and what it was read from."""
        return told(self._decision(response, state), response, self.asks)

    def _decision(
        self, response: ModelResponse, state: RunState
    ) -> Call | Sequence[Call] | Finish | ClosePhase | str:
        """Return what an answer means, or why nothing can be done with it."""
        if (why := ENDS_BADLY.get(response.finish_reason or "")) is not None:
            return why
        if response.state != "complete":
            return f"the answer is {response.state}"
        try:
            if response.tool_calls:
                return self._calls(response, state)
            return self._text(response)
        except Unreadable as error:
            return str(error)

    def _text(self, response: ModelResponse) -> Finish:
        text = response.text
        if not text or not text.strip():
            raise Unreadable("the answer is empty")
        if response.finish_reason == CUT:
            raise Unreadable("the answer was cut: it was too long")
        if self.final is not None:
            raise Unreadable(f"the answer is text; call {FINAL_RESULT} to give the final answer")
        return Finish(text)

    def _calls(self, response: ModelResponse, state: RunState) -> Sequence[Call] | Finish | ClosePhase:
        calls = response.tool_calls
        if response.finish_reason == CUT and not arguments_of(calls[-1]).strip():
            raise Unreadable("the answer was cut in the middle of a call: it was too long")
        if self.final is not None and FINAL_RESULT in {call.tool_name for call in calls}:
            _check_alone(calls, FINAL_RESULT)
            return Finish(_named(FINAL_RESULT, self.final.read, arguments_of(calls[0])))
        if CLOSE_PHASE in self.offers and CLOSE_PHASE in {call.tool_name for call in calls}:
            _check_alone(calls, CLOSE_PHASE)
            if len(state.steps) == state.summarized:
                raise Unreadable(f"{CLOSE_PHASE}: nothing was done in this phase that could be summed up")
        read = [self._call(call) for call in calls]
        return read[0] if isinstance(read[0], ClosePhase) else [call for call in read if isinstance(call, Call)]

    def _call(self, call: ToolCallPart) -> Call | ClosePhase:
        name, arguments = call.tool_name, arguments_of(call)
        call_id = None if call.tool_call_id.startswith(MADE_UP) else call.tool_call_id
        if name not in self.offers:
            return CallTool(name, arguments, call_id)
        offer = _named(name, lambda text: self.offers.read(name, text), arguments)
        return offer if isinstance(offer, ClosePhase) else replace(offer, call_id=call_id)


def told(decision: Any, response: ModelResponse, asks: int) -> Used:
    """Return a decision, or a reason why there is none, with what it took and what it was read from."""
    model, finish = response.model_name or "", response.finish_reason
    answer = as_json(response)
    try:
        canonical(answer)
    except NotRecordable as error:
        answer, decision = None, f"the answer cannot be recorded: {error}"
    said = Said(model, answer, finish, response.usage.total_tokens or None)
    found = Unusable(decision, asks) if isinstance(decision, str) else decision
    return Used(found, response.usage.total_tokens, price_of(response), said)


def price_of(response: ModelResponse) -> Decimal:
    """Return what an answer cost in US dollars, 0 where that is not known: nobody is asked over the network."""
    if response.usage.cost is not None:
        return response.usage.cost
    try:
        return response.cost().total_price
    except (LookupError, ValueError, AssertionError):  # a model without a price, or without a name
        return Decimal(0)


def arguments_of(call: ToolCallPart) -> str:
    """Return the arguments of a call as text: the model's own where there is one."""
    if isinstance(call.args, str):
        return call.args
    return "" if call.args is None else json.dumps(call.args)


def _check_alone(calls: Sequence[ToolCallPart], name: str) -> None:
    if len(calls) > 1:
        raise Unreadable(f"{name} was called beside other calls, and none of them was made; call it alone")


def _named(name: str, read: Callable[[str], T], arguments: str) -> T:
    try:
        return read(arguments)
    except Unreadable as error:
        raise Unreadable(f"{name}: {error}") from None
