"""The story under as many crashes as some minutes allow: all of one and of two, then deeper ones that are drawn.

Rule: what the README says of it is read from the record that this writes, and a test holds the two together.
"""

import argparse
import json
import sys
from pathlib import Path

from agent_es.demo import scenario
from agent_es.testing import Report, survives_every_crash

RECORD = Path(__file__).with_name("fuzz.json")
SECONDS = 300.0


def sentence(report: Report) -> str:
    """Return what the README says of a run.

    >>> sentence(Report(runs=96, crashes=1412, in_doubt=3, points=40, seconds=59.6))
    '1,412 crashes in 96 runs: 0 double, 0 lost, 3 in doubt (40 places to die in; 60 s)'
    """
    return f"{report} ({report.points} places to die in; {report.seconds:.0f} s)"


def recorded() -> Report:
    """Return the last run that was recorded."""
    return Report(**json.loads(RECORD.read_text(encoding="utf-8")))


def main() -> None:
    """Fuzz, record, and say it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=SECONDS, help="how long (default: %(default)s)")
    options.add_argument("--seed", type=int, default=0, help="what deeper schedules are drawn with")
    chosen = options.parse_args()

    def show(done: int, _: int) -> None:
        if done % 100 == 0:
            print(f"{done:,} runs", end="\r", file=sys.stderr, flush=True)

    report = survives_every_crash(scenario, crashes=2, seconds=chosen.seconds, seed=chosen.seed, on_run=show)
    RECORD.write_text(json.dumps(report.as_dict(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(report.told())
    print(f"the README says: {sentence(report)}")


if __name__ == "__main__":
    main()
