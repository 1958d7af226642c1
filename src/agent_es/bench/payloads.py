"""What steps are made of in every workload: a decision and its result, of the size that real ones have.

Rule: this module loads nothing, so that a program that measures another system loads nothing of ours.
"""

from pathlib import Path

TOOL = "search_policy"
GOAL = "Refund order ORD-3300, 180.00, if the policy allows it"

_WHY = "w" * 125
_TEXT = "t" * 225


def url_of(path: Path) -> str:
    """Return the URL of a store in that file."""
    return f"sqlite:///{path}"


def args_json(idx: int) -> str:
    """Return the arguments of a step, canonical as a decision's are: some 200 bytes."""
    return f'{{"page":{idx % 10},"query":"refund policy window, order ORD-{idx:06}","why":"{_WHY}"}}'


def result_json(idx: int) -> str:
    """Return the result of a step: some 300 bytes."""
    return f'{{"text":"{_TEXT}","title":"Policy {idx:06}","url":"https://example.org/policies/{idx:06}"}}'
