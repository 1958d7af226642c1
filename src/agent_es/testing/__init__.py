"""The crash kit: run an agent, kill it anywhere, and see whether it survives."""

from agent_es.testing.clock import FrozenClock
from agent_es.testing.crash import Crash, CrashingRunner, CrashPoint, essence, live_through, sigkill
from agent_es.testing.provider import PaymentProvider

__all__ = [
    "Crash",
    "CrashPoint",
    "CrashingRunner",
    "FrozenClock",
    "PaymentProvider",
    "essence",
    "live_through",
    "sigkill",
]
