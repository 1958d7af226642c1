"""The crash kit: run an agent, kill it anywhere, and see whether it survives."""

from agent_es.testing.clock import FrozenClock, MovableClock
from agent_es.testing.crash import Crash, CrashingRunner, CrashPoint, Life, Place, essence, live_through, sigkill
from agent_es.testing.provider import PaymentProvider
from agent_es.testing.scenario import Ending, Scenario
from agent_es.testing.survival import DidNotSurvive, Failure, Report, survives_every_crash

__all__ = [
    "Crash",
    "CrashPoint",
    "CrashingRunner",
    "DidNotSurvive",
    "Ending",
    "Failure",
    "FrozenClock",
    "Life",
    "MovableClock",
    "PaymentProvider",
    "Place",
    "Report",
    "Scenario",
    "essence",
    "live_through",
    "sigkill",
    "survives_every_crash",
]
