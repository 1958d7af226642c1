"""The mutants of the library: none is stale, and the kit reports a few; `tox run -e mutants` tries every one."""

import ast
from pathlib import Path

import pytest

from benchmarks.mutants import ALIVE, KILLED, PACKAGE, fate_of
from benchmarks.mutations import MUTANTS, Mutant, Stale

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_replaces_is_there_once_and_what_it_becomes_is_python(mutant: Mutant) -> None:
    text = mutant.mutated(PACKAGE)

    assert ast.unparse(ast.parse(text)) != ast.unparse(ast.parse((PACKAGE / mutant.file).read_text()))


def test_each_mutant_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(MUTANTS)


@pytest.mark.parametrize("text", ["nothing of the kind", "both, both"], ids=["gone", "twice"])
def test_a_mutant_whose_text_is_not_there_once_is_stale(text: str, tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(text)

    with pytest.raises(Stale, match=r"step\.py has the text that it replaces"):
        Mutant("it", "is stale", "step.py", "both", "one").mutated(tmp_path)


@pytest.mark.parametrize(
    ("name", "trial", "problem"),
    [
        ("late_decision", "demo", "its decision is not in the journal"),
        pytest.param(
            *("unmarked_retry", "demo", "the second start has no start mark of its own"), marks=pytest.mark.crash
        ),
        pytest.param(
            *("key_of_arguments", "twins", "{'refund': 1} happened, instead of {'refund': 2}"),
            marks=pytest.mark.crash,
        ),
    ],
)
def test_the_kit_reports_a_fault_in_the_library(name: str, trial: str, problem: str) -> None:
    fate = fate_of(BY_NAME[name], trial)

    assert (fate.kind, fate.by) == (KILLED, trial)
    assert problem in fate.problem


@pytest.mark.crash
def test_a_mutant_that_only_stumbles_is_not_killed() -> None:
    stumbling = Mutant(
        "stumbling",
        "a name is misspelt where the first result is recorded",
        "step.py",
        "                run.record_outcome(step.idx, outcome)\n",
        "                run.record_outcome(step.idx, outcoem)\n",
    )
    not_python = Mutant("not_python", "the module cannot be imported", "step.py", "class Turn:", "class Turn")

    assert fate_of(stumbling, "demo").kind == "broken"
    assert fate_of(not_python, "demo").kind == "broken"


@pytest.mark.crash
def test_the_library_as_it_is_passes_what_a_mutant_is_put_to() -> None:
    assert fate_of(None, "twins").kind == ALIVE
