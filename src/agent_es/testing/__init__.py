"""The crash kit: run an agent, kill it anywhere, and see whether it survives.

The machine and the strategies need Hypothesis: ``pip install agent-es[testing]``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_es.testing.clock import FrozenClock, MovableClock
    from agent_es.testing.conformance import NotAStore, check_store
    from agent_es.testing.crash import Crash, CrashingRunner, CrashPoint, Life, Place, essence, live_through, sigkill
    from agent_es.testing.folders import on_postgres
    from agent_es.testing.kill import fuzz_with_kills, survives_every_kill
    from agent_es.testing.machine import RunMachine
    from agent_es.testing.model import HistoryRule, MalformedHistory, StrictModel, check_messages, messages_of
    from agent_es.testing.network import FlakyNetwork
    from agent_es.testing.provider import PaymentProvider
    from agent_es.testing.rivals import (
        survives_every_act,
        survives_every_fault,
        survives_every_signal,
        survives_overtaking,
    )
    from agent_es.testing.scenario import Ending, Scenario, load_scenario
    from agent_es.testing.stepped import SteppedWorker
    from agent_es.testing.survival import DidNotSurvive, Failure, Report, fuzz, survived, survives_every_crash

_HOME = {
    "Crash": "crash",
    "CrashPoint": "crash",
    "CrashingRunner": "crash",
    "DidNotSurvive": "survival",
    "Ending": "scenario",
    "Failure": "survival",
    "FlakyNetwork": "network",
    "FrozenClock": "clock",
    "HistoryRule": "model",
    "Life": "crash",
    "MalformedHistory": "model",
    "MovableClock": "clock",
    "NotAStore": "conformance",
    "PaymentProvider": "provider",
    "Place": "crash",
    "Report": "survival",
    "RunMachine": "machine",
    "Scenario": "scenario",
    "SteppedWorker": "stepped",
    "StrictModel": "model",
    "check_messages": "model",
    "check_store": "conformance",
    "essence": "crash",
    "fuzz": "survival",
    "fuzz_with_kills": "kill",
    "live_through": "crash",
    "load_scenario": "scenario",
    "messages_of": "model",
    "on_postgres": "folders",
    "sigkill": "crash",
    "survived": "survival",
    "survives_every_crash": "survival",
    "survives_every_fault": "rivals",
    "survives_every_kill": "kill",
    "survives_every_act": "rivals",
    "survives_every_signal": "rivals",
    "survives_overtaking": "rivals",
}

__all__ = [
    "Crash",
    "CrashPoint",
    "CrashingRunner",
    "DidNotSurvive",
    "Ending",
    "Failure",
    "FlakyNetwork",
    "FrozenClock",
    "HistoryRule",
    "Life",
    "MalformedHistory",
    "MovableClock",
    "NotAStore",
    "PaymentProvider",
    "Place",
    "Report",
    "RunMachine",
    "Scenario",
    "SteppedWorker",
    "StrictModel",
    "check_messages",
    "check_store",
    "essence",
    "fuzz",
    "fuzz_with_kills",
    "live_through",
    "load_scenario",
    "messages_of",
    "on_postgres",
    "sigkill",
    "survived",
    "survives_every_act",
    "survives_every_crash",
    "survives_every_fault",
    "survives_every_kill",
    "survives_every_signal",
    "survives_overtaking",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: a plugin that nobody uses costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'agent_es.testing' has no attribute {name!r}")
    return getattr(import_module(f"agent_es.testing.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
