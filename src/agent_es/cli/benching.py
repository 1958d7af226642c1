"""The command ``bench``: apart from the others, since it brings what it measures against."""

from collections.abc import Sequence
from pathlib import Path

from agent_es.bench import Workload
from agent_es.bench.command import MEASURES, perform


def bench(only: Sequence[Workload], folder: Path, *, quick: bool, as_json: bool) -> int:
    """Measure, and show what was found."""
    return perform(
        {workload: MEASURES[workload] for workload in only or Workload}, folder, quick=quick, as_json=as_json
    )
