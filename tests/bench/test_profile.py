"""Where a step spends its time: what is found has a name, and all of the time is counted."""

from inspect import currentframe
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any, cast

from benchmarks.databases import Files
from benchmarks.profile import AROUND, COURSE, DATABASE, FOLD, JSON, NAMED_AT_LEAST, NAMELESS, Scale, part_of, watch


def test_all_of_the_time_is_counted_and_nearly_all_of_it_has_a_name(tmp_path: Path) -> None:
    began = perf_counter()

    looked = watch(Files(tmp_path), Scale(rounds=2, steps=100), lambda rounds, _: rounds)

    whole = sum(looked.seconds.values())
    assert looked.steps == 200
    assert 0.1 * (perf_counter() - began) < whole < perf_counter() - began
    assert {DATABASE, AROUND, COURSE} <= {*looked.seconds}
    assert looked.seconds[NAMELESS] <= (1 - NAMED_AT_LEAST) * whole
    assert [*tmp_path.iterdir()] == []


def currentframe_of_caller() -> FrameType | None:
    frame = currentframe()
    return None if frame is None else frame.f_back


def test_the_innermost_place_that_has_a_name_counts_and_a_library_does_not() -> None:
    def frame_in(path: str, name: str = "f") -> FrameType | None:
        code = compile(f"def {name}():\n return look()\nfound = {name}()", path, "exec")
        values: dict[str, Any] = {"look": currentframe_of_caller}
        exec(code, values)  # noqa: S102  # code that stands at a place
        return cast(FrameType, values["found"])

    assert part_of(frame_in("/x/agent_es/state.py")) == FOLD
    assert part_of(frame_in("/x/agent_es/values.py")) == JSON
    assert part_of(frame_in("/x/agent_es/store/sqlite.py")) == AROUND
    assert part_of(frame_in("/x/agent_es/store/sqlite.py", "begin")) == DATABASE
    assert part_of(frame_in("/y/psycopg/cursor.py")) == DATABASE
