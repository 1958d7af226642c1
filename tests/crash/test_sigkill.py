"""The story in a real process that gets a real SIGKILL at each request, and around the provider's commit."""

import signal
import subprocess
import sys
from itertools import product
from typing import Any

import pytest

from agent_es import Status
from agent_es.demo import RUN_ID
from agent_es.testing import essence

WORKER = """
import os, signal, sys
from pathlib import Path
from agent_es.demo import GOAL, PROVIDER_DB, RUN_ID, SCRIPT, RefundRun, open_store
from agent_es.testing import CrashingRunner, CrashPoint, PaymentProvider, sigkill

folder, where, side = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
die = lambda _: os.kill(os.getpid(), signal.SIGKILL)
hooks = {f"{side}_commit": die} if where == "provider" else {}
at = None if where == "provider" else CrashPoint(int(where), side)
provider = PaymentProvider(folder / PROVIDER_DB, **hooks)
worker = CrashingRunner(open_store(folder), SCRIPT, deps=provider, at=at, die=sigkill)
worker.run(RefundRun, run_id=RUN_ID, goal=GOAL)
"""

POINTS = [*product(map(str, range(1, 13)), ("before", "after")), *product(["provider"], ("before", "after"))]


@pytest.mark.crash
@pytest.mark.parametrize(("where", "side"), POINTS, ids=lambda part: part)
def test_a_process_killed_there_pays_once(where: str, side: str, new_world: Any) -> None:
    calm, world = new_world(), new_world()
    expected = calm.run(calm.worker())

    killed = subprocess.run([sys.executable, "-c", WORKER, world.folder, where, side], check=False)
    state = world.run(world.worker())

    assert killed.returncode == -signal.SIGKILL
    assert state.status is Status.DONE
    assert (world.provider.ledger, world.provider.refunds) == ({"ORD-3300": "180.00"}, 1)
    assert essence(world.store.load(RUN_ID)) == essence(expected)


def test_there_are_at_least_fourteen_kill_points() -> None:
    assert len(POINTS) >= 14
