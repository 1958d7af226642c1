"""What the README says of the fuzzed story is what the last recorded run came to."""

from pathlib import Path

from benchmarks.fuzz import recorded, sentence

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_says_what_was_recorded() -> None:
    assert f"\n{sentence(recorded())}\n" in README.read_text(encoding="utf-8")


def test_what_was_recorded_is_a_proof() -> None:
    report = recorded()

    assert report.crashes >= 10_000
    assert report.seconds < 600
    assert report.all_of == 2
    assert (report.broken, report.double, report.lost) == (0, 0, 0)
