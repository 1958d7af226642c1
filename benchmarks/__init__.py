"""How fast agent_es is, as ratios to something else that was measured beside it; ``python -m benchmarks``."""
