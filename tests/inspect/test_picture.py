"""The timeline as a picture: a PNG of the size that was said, for any words, by several threads at once."""

import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import matplotlib.pyplot as plt  # to see that nobody uses it

from agent_es.inspector.picture import DPI, save_picture
from agent_es.journal import JournalEntry
from agent_es.testing.clock import STORY
from agent_es.timeline import Segment, segments

NOW = STORY + timedelta(days=9, hours=5)


def size_of(path: Path) -> tuple[int, int]:
    """The size that a PNG says it has, in pixels."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    width, height = struct.unpack(">II", head[16:])
    return width, height


def test_it_is_a_png_as_large_as_it_says(eventful: list[JournalEntry], tmp_path: Path) -> None:
    said = save_picture(segments(eventful), tmp_path / "run.png", now=NOW)

    width, height = size_of(tmp_path / "run.png")
    assert (width, height) == said
    assert width >= 10 * DPI
    assert 8 * 28 * DPI / 100 < height < width


def test_the_same_run_gives_the_same_picture_and_another_moment_another(
    eventful: list[JournalEntry], tmp_path: Path
) -> None:
    found = segments(eventful)
    for name, seq in (("a", None), ("b", None), ("c", 11)):
        save_picture(found, tmp_path / name, now=NOW, until_seq=seq)

    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_any_words_can_be_drawn(tmp_path: Path) -> None:
    tool = "$\\frac{$ 漢字 \x1b \u202e" + "x" * 5_000_000
    bad = Segment(kind="attempt", began_seq=1, began_at=STORY, idx=0, tool=tool, attempt=1)

    save_picture([bad], tmp_path / "a.png", now=NOW)
    save_picture([], tmp_path / "b.png", now=NOW)

    assert size_of(tmp_path / "a.png")[0] < 4_000
    assert size_of(tmp_path / "b.png")[0] < 4_000


def test_several_are_made_at_once_and_leave_nothing_open(eventful: list[JournalEntry], tmp_path: Path) -> None:
    found = segments(eventful)
    with ThreadPoolExecutor(4) as pool:
        sizes = [*pool.map(lambda n: save_picture(found, tmp_path / f"{n}.png", now=NOW), range(4))]

    assert len(set(sizes)) == 1
    assert len({(tmp_path / f"{n}.png").read_bytes() for n in range(4)}) == 1
    assert plt.get_fignums() == []
