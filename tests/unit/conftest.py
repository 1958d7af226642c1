"""What every unit test runs under."""

from hypothesis import settings

settings.register_profile("agent_es", deadline=None)  # a busy machine is no failure
settings.load_profile("agent_es")
