"""What a store promises, one promise after the other, for whoever brings another store.

Rule 1: every promise is checked, whatever became of those before it, and all that broke is told.
Rule 2: other runs may be there, and others may write: agents, runs, keys and tables are drawn anew.
Rule 3: a slow machine breaks no promise: what must come is waited for; what came too early is told by when it came.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from operator import methodcaller
from typing import Any

from sqlalchemy import insert, select

from agent_es.errors import KeyReused, LeaseLost, RunConflict, RunMoved, RunNotFound
from agent_es.events import stream_id
from agent_es.run import AgentRun
from agent_es.store import RunStore
from agent_es.store.feed import FeedEntry
from agent_es.testing.lease_promises import PROMISES_OF_LEASES
from agent_es.testing.trial import (
    FUTURE,
    PAST,
    RIVALS,
    Seen,
    Trial,
    append,
    at_once,
    call,
    calls,
    doubt,
    end,
    equal,
    journal,
    late,
    lines,
    notifications,
    once_more,
    own_table,
    parked,
    refused,
    result,
    settled,
    wait,
    woken,
)
from agent_es.values import canonical

EACH = 10
"""How many events each of those who append at once has."""
TEXTS = {
    "a NUL": "a\0b",
    "half a character": "cut \ud83d",
    "emoji": "\N{FAMILY}\N{VARIATION SELECTOR-16}\N{ZERO WIDTH JOINER}\N{GRINNING FACE}",
    "marks": "' \" \\ %s %% ? :1 {} -- \t\r\n\x7f",
    "length": "\N{GREEK SMALL LETTER OMEGA} and so on; " * 5_000,
}


class NotAStore(AssertionError):
    """A store broke promises: ``broken`` says of each what was seen, and ``held`` names those that it kept."""

    def __init__(self, broken: Mapping[str, str], held: Sequence[str]) -> None:
        told = [f"* {promise}\n  {seen}" for promise, seen in broken.items()]
        super().__init__("\n".join([f"{len(broken)} of {len(broken) + len(held)} promises are broken:", *told]))
        self.broken = broken
        self.held = held


def check_store(open_store: Callable[[], RunStore], *, rebuild: bool = True) -> list[str]:
    """Check what every store promises; return the promises, a sentence each.

    ``open_store`` opens the same database anew at each call, as another process would.  It may hold other runs; those
    that are made here stay.  ``rebuild=False`` leaves out the one promise that touches all runs and lets nobody else
    append meanwhile.  Takes some seconds.  Raises ``NotAStore`` with all that broke, and what the first
    opening raises.
    """
    open_store().close()
    held: list[str] = []
    broken: dict[str, str] = {}
    errors: list[Exception] = []
    for promise in (*PROMISES, _rows_and_keys_that_are_made_again_are_what_they_were) if rebuild else PROMISES:
        sentence = promise.__name__.strip("_").replace("_", " ")
        try:
            with ExitStack() as opened:
                promise(Trial(open_store, opened))
        except Exception as error:
            errors.append(error)
            broken[sentence] = str(error) if isinstance(error, Seen) else f"seen: {error!r}"
        else:
            held.append(sentence)
    if broken:
        raise NotAStore(broken, held) from ExceptionGroup("what was seen", errors)
    return held


# Runs and appends.


def _a_run_is_read_by_another_opening_as_it_was_recorded(trial: Trial) -> None:
    run = trial.start(call, result, end)

    other = trial.open()
    equal("state", other.load(run.state.run_id), run.state)
    equal("journal", journal(other, run), trial.recorded)
    equal("journal after 1", [str(entry) for entry in other.journal(run.state.run_id, after=1)], trial.recorded[2:])
    earlier = other.load(run.state.run_id, version=2)
    equal("version at 2", earlier.version, 2)
    equal("state, from the one at 2 on", other.load(run.state.run_id, known=earlier), run.state)


def _a_run_that_was_never_started_is_not_found(trial: Trial) -> None:
    for ask in (trial.store.load, trial.store.journal, trial.store.record):
        refused(RunNotFound, ask, trial.name)
    refused(RunNotFound, trial.take, trial.begin())


def _a_run_that_is_started_again_is_the_one_that_is_there_and_no_other(trial: Trial) -> None:
    words: dict[str, Any] = {"run_id": trial.name, "goal": "check", "input": [1]}
    stores = [trial.open() for _ in range(RIVALS)]

    states = at_once(partial(store.start, trial.agent, **words) for store in stores)

    equal("runs that were started", [state.resumed for state in states].count(False), 1)
    for store in stores:
        equal("state", store.start(trial.agent, **words), states[0])
    for other in ({"input": [2]}, {"goal": "another"}):
        refused(RunConflict, trial.store.start, trial.agent, **(words | other))
    equal("version", trial.store.load(trial.name).version, 1)


def _of_those_who_append_at_one_version_one_wins_and_the_others_leave_nothing(trial: Trial) -> None:
    run = trial.start()
    slower, *rivals = [trial.again(run, calls(f"{trial.name} {n}")) for n in range(RIVALS + 1)]

    came_to = at_once((partial(trial.open().save, rival) for rival in rivals), unless=RunMoved)

    won = [rival for rival, it in zip(rivals, came_to, strict=True) if not isinstance(it, RunMoved)]
    equal("those who won", len(won), 1)
    refused(RunMoved, trial.store.save, slower)
    equal("state", trial.store.load(run.state.run_id), won[0].state)


def _an_append_of_several_events_is_all_or_none(trial: Trial) -> None:
    held, one, other = (f"{trial.name} {name}" for name in ("held", "one", "other"))

    def appended(store: RunStore, *keys: str | None) -> None:
        run = trial.start()
        calls(*keys)(run)
        wanted = run.state.version
        try:
            store.save(run)
        except KeyReused:
            wanted = 1
        equal("version", trial.versions([run]), [wanted])

    appended(trial.store, None, None, held)
    appended(trial.store, None, None, held)
    both = [(one, other), (other, one)] * 2
    at_once(partial(appended, trial.open(), *keys) for keys in both)


def _a_text_is_read_back_to_the_letter_whatever_it_holds(trial: Trial) -> None:
    other = trial.open()
    for name, text in TEXTS.items():
        run = trial.start(call, methodcaller("record_result", 0, canonical(text)), text=text)

        state, kept = other.load(run.state.run_id), text.replace("\ud83d", "\ufffd")
        said = [state.goal, state.input, state.tags, state.steps[0].result, other.record(run.state.run_id).tags]
        equal(f"{name}: said", said, [kept, {kept: [kept]}, {kept: kept}, kept, {kept: kept}])


def _a_journal_of_1200_events_is_put_in_as_a_whole_and_read_back_in_order(trial: Trial) -> None:
    run = trial.begin_long(1_200)
    written: Any = {run.state.run_id: run.pending_events}

    trial.store.put_journals(written)

    other, new = trial.open(), trial.begin()
    equal("journal", journal(other, run), lines(run, run.pending_events))
    equal("state", other.load(run.state.run_id), run.state)
    refused(RunConflict, trial.store.put_journals, {new.state.run_id: new.pending_events} | written)
    refused(RunNotFound, other.load, new.state.run_id)


def _what_many_append_at_once_is_all_there_at_positions_that_are_distinct_and_in_order(trial: Trial) -> None:
    after = trial.store.recorder.max_notification_id() or 0
    runs = [trial.start(call) for _ in range(RIVALS)]

    at_once(partial(append, trial.open(), run, EACH) for run in runs)

    versions = {stream_id(run.state.run_id): run.state.version for run in runs}
    told = [it for it in notifications(trial.store, after) if it.originator_id in versions]
    positions = [it.id for it in told]
    equal("positions", positions, sorted(set(positions)))
    for stream, version in versions.items():
        found = [it.originator_version for it in told if it.originator_id == stream]
        equal("versions", found, [*range(1, version + 1)])


def _a_store_that_was_closed_is_used_again(trial: Trial) -> None:
    run = trial.start(call)
    for _ in range(2):
        trial.store.close()
        equal("state", trial.store.load(run.state.run_id), run.state)
        append(trial.store, run, 1)


# Rows and keys.


def _a_row_says_what_the_events_of_its_run_say(trial: Trial) -> None:
    run = trial.start()
    for command in (call, late(PAST), wait(PAST), woken, once_more, doubt, settled, result, end):
        command(run)
        trial.store.save(run)

        row, state = trial.store.record(run.state.run_id), run.state
        equal("row.cursor", row.cursor, state.version)
        for name in ("agent", "goal", "status", "waiting_for", "wake_at", "tags", "started_at", "updated_at"):
            equal(f"row.{name}", getattr(row, name), getattr(state, name))


def _runs_are_found_by_what_they_are_and_the_one_that_changed_last_first(trial: Trial) -> None:
    waiting = trial.start(call, late(FUTURE), wait(FUTURE))
    runs = {"done": trial.start(end), "running": trial.start(call), "waiting": waiting}
    find = partial(trial.store.runs, agent=trial.name)

    for status, run in runs.items():
        equal(status, [row.run_id for row in find(status=status)], [run.state.run_id])
    equal("waiting for a retry", [row.status for row in find(waiting_for="retry")], ["waiting"])
    times = [row.updated_at for row in find()]
    equal("times", times, sorted(times, reverse=True))
    equal("up to 2", len(find(limit=2)), 2)


def _of_those_who_claim_a_key_one_has_it_and_the_others_leave_nothing(trial: Trial) -> None:
    rivals = [trial.start() for _ in range(RIVALS)]
    for run in rivals:
        calls(trial.name)(run)

    came_to = at_once((partial(trial.open().save, run) for run in rivals), unless=KeyReused)

    has = [not isinstance(it, KeyReused) for it in came_to]
    equal("steps that have the key", has.count(True), 1)
    equal("versions", trial.versions(rivals), [1 + it for it in has])
    slower = trial.start()
    calls(None, trial.name)(slower)
    equal("step", refused(KeyReused, trial.store.save, slower).idx, 1)
    append(trial.store, rivals[has.index(True)], 1)


def _what_a_body_writes_commits_with_its_result_or_neither_does(trial: Trial) -> None:
    good, failing, moved, lost = runs = [trial.start(call) for _ in range(4)]
    append(trial.store, trial.again(moved), 1)
    lost.lease = trial.take(lost)
    trial.take(lost, force=True)
    with own_table(trial.store) as table:

        def transact(run: AgentRun, *, fails: bool = False) -> None:
            def body(session: Any) -> None:
                session.execute(insert(table).values(run_id=run.state.run_id))
                result(run)
                if fails:
                    raise LookupError

            trial.store.transact(run, body)

        transact(good)
        refused(LookupError, transact, failing, fails=True)
        refused(RunMoved, transact, moved)
        refused(LeaseLost, transact, lost)

        with trial.store.recorder.datastore.transaction(commit=False) as session:
            equal("rows", [*session.scalars(select(table.c.run_id))], [good.state.run_id])
    equal("versions", trial.versions(runs), [3, 2, 3, 2])
    equal("versions of the runs at hand", [run.state.version for run in runs], [3, 2, 2, 2])


# What touches the runs of others too.


def _rows_and_keys_that_are_made_again_are_what_they_were(trial: Trial) -> None:
    keyed = calls(trial.name)
    happened = [(call, late(FUTURE), wait(FUTURE)), (call, doubt), (call, result, end), (parked,)]
    runs = [trial.start(), trial.start(keyed), *(trial.start(*commands) for commands in happened)]
    trial.take(runs[0])
    rows = [trial.store.record(run.state.run_id) for run in runs]

    equal("whether all were made again", trial.store.rebuild() >= len(runs), wanted=True)

    equal("rows", [trial.store.record(run.state.run_id) for run in runs], rows)
    refused(KeyReused, trial.start, keyed)


def _the_feed_gives_each_event_once_and_in_order_also_while_many_append(trial: Trial) -> None:
    store = trial.open()
    before = store.recorder.max_notification_id() or 0
    long, *runs = trial.begin_long(1_200), *(trial.start(call) for _ in range(RIVALS))
    ids = {run.state.run_id for run in (long, *runs)}
    seen: list[FeedEntry] = []
    ended: list[AgentRun] = []
    journals: Any = {long.state.run_id: long.pending_events}

    def put_in() -> None:
        try:
            trial.store.put_journals(journals)
        finally:
            ended.append(long)

    def write(other: RunStore, run: AgentRun) -> None:
        try:
            while not ended:
                append(other, run, 1)
        finally:
            ended.append(run)

    def follow() -> None:
        position, is_last = before, False
        while not is_last:
            is_last = len(ended) == 1 + len(runs)
            for entry in store.feed(after=position):
                position = entry.position
                seen.extend([entry] if entry.run_id in ids else [])

    at_once([follow, put_in, *(partial(write, trial.open(), run) for run in runs)])

    positions = [entry.position for entry in seen]
    equal("positions", positions, sorted(set(positions)))
    for run in (long, *runs):
        told = [entry for entry in seen if entry.run_id == run.state.run_id]
        equal("seqs", [entry.seq for entry in told], [*range(run.state.version)])
        written = lines(run, run.pending_events) if run is long else journal(store, run)
        equal("events", [str(entry) for entry in told], written)


PROMISES: Sequence[Callable[[Trial], None]] = (
    _a_run_is_read_by_another_opening_as_it_was_recorded,
    _a_run_that_was_never_started_is_not_found,
    _a_run_that_is_started_again_is_the_one_that_is_there_and_no_other,
    _of_those_who_append_at_one_version_one_wins_and_the_others_leave_nothing,
    _an_append_of_several_events_is_all_or_none,
    _a_text_is_read_back_to_the_letter_whatever_it_holds,
    _a_journal_of_1200_events_is_put_in_as_a_whole_and_read_back_in_order,
    _what_many_append_at_once_is_all_there_at_positions_that_are_distinct_and_in_order,
    _a_store_that_was_closed_is_used_again,
    _a_row_says_what_the_events_of_its_run_say,
    _runs_are_found_by_what_they_are_and_the_one_that_changed_last_first,
    _of_those_who_claim_a_key_one_has_it_and_the_others_leave_nothing,
    _what_a_body_writes_commits_with_its_result_or_neither_does,
    *PROMISES_OF_LEASES,
    _the_feed_gives_each_event_once_and_in_order_also_while_many_append,
)
