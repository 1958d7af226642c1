"""The faults that are put into the library, one at a time: each is what somebody could write and believe in.

Rule 1: a mutant is one exact replacement in one file; where the old text is not there exactly once, it is stale.
Rule 2: it breaks a promise of the library's, not its syntax: the package can be imported, and most runs end well.
"""

from dataclasses import dataclass
from pathlib import Path


class Stale(Exception):
    """The text that a mutant replaces is not in its file exactly once."""


@dataclass(frozen=True)
class Mutant:
    """A fault: what is broken, and how."""

    name: str
    what: str
    file: str
    """Below ``src/agent_es``."""
    old: str
    new: str

    def mutated(self, package: Path) -> str:
        """Return the text of the file with the fault in it; raise ``Stale``."""
        text = (package / self.file).read_text()
        if (found := text.count(self.old)) != 1:
            raise Stale(f"{self.name}: {self.file} has the text that it replaces {found} times:\n{self.old}")
        return text.replace(self.old, self.new)


MUTANTS = (
    # The order of marks, bodies and results.
    Mutant(
        "unmarked_retry",
        "a further attempt starts its body without a start mark of its own",
        "step.py",
        "            run.record_start(step.idx)\n            return [run.state.steps[step.idx]]\n",
        "            return [step]\n",
    ),
    Mutant(
        "late_decision",
        "a decision is appended together with its result, so the body starts before it is durable",
        "runtime.py",
        "        try:\n            self.store.save(run)\n",
        "        try:\n"
        '            if type(events[-1]).__name__ != "LlmDecided":\n'
        "                self.store.save(run)\n",
    ),
    Mutant(
        "late_start_mark",
        "the start mark of a further attempt is appended after its body",
        "step.py",
        "            if run.pending_events:\n                yield from appended(run)\n            if idle:\n",
        "            if run.pending_events and idle:\n"
        "                yield from appended(run)\n            if idle:\n",
    ),
    Mutant(
        "unmarked_in_the_queue",
        "a call that waited for its turn starts its body without a start mark",
        "step.py",
        '            self._todo.extend(step for step in run.state.open_steps if step.status == "queued")\n',
        '            self._ready.extend(step for step in run.state.open_steps if step.status == "queued")\n',
    ),
    Mutant(
        "asked_anew",
        "the decider is asked though steps of its last decision are open",
        "step.py",
        "        if now is None or not run.state.open_steps:\n            if run.pending_events:\n",
        "        if True:\n            if run.pending_events:\n",
    ),
    Mutant(
        "result_by_tool",
        "the result of a body goes to the first open step of its tool",
        "step.py",
        "                self._ready.extend(self._end(run.state.steps[idx], outcome))\n",
        "                tool = run.state.steps[idx].tool\n"
        "                step = next(step for step in run.state.open_steps if step.tool == tool)\n"
        "                self._ready.extend(self._end(step, outcome))\n",
    ),
    Mutant(
        "shown_resumed",
        "the decider is shown whether the run was resumed",
        "runtime.py",
        "state = self.store.load(run.state.run_id, known=run.recorded)  # the decider sees no crash",
        "state = replace(self.store.load(run.state.run_id), resumed=run.state.resumed)",
    ),
    # What an effect allows.
    Mutant(
        "once_started_again",
        "an AT_MOST_ONCE tool whose worker died is started again",
        "step.py",
        "tool.effect in (Effect.READ, Effect.TRANSACTIONAL):\n            return self._try_again(",
        "tool.effect in (Effect.READ, Effect.TRANSACTIONAL, Effect.AT_MOST_ONCE):\n"
        "            return self._try_again(",
    ),
    Mutant(
        "sent_unprobed",
        "a PROBED tool whose worker died is sent again without a question to its probe",
        "step.py",
        "tool.effect in (Effect.READ, Effect.TRANSACTIONAL):\n            return self._try_again(",
        "tool.effect in (Effect.READ, Effect.TRANSACTIONAL, Effect.PROBED):\n            return self._try_again(",
    ),
    Mutant(
        "no_as_yes",
        "what a probe says did not happen counts as happened",
        "step.py",
        '                self._run.record_settlement(step.idx, "did_not_happen", BY_PROBE)\n'
        "                if not self._gives_up(step):\n"
        "                    now = self._run.state.steps[step.idx]\n"
        '                    return self._try_again(now, f"{why}; the probe says it did not happen")\n',
        '                self._run.record_settlement(step.idx, "happened", BY_PROBE)\n'
        '                self._run.record_result(step.idx, "null")\n',
    ),
    Mutant(
        "yes_as_no",
        "what a probe says happened counts as not happened",
        "step.py",
        '                self._run.record_settlement(step.idx, "happened", BY_PROBE)\n'
        "                return self._end(step, answer)\n",
        '                self._run.record_settlement(step.idx, "did_not_happen", BY_PROBE)\n'
        "                return self._try_again(self._run.state.steps[step.idx], why)\n",
    ),
    Mutant(
        "probed_at_once",
        "a probe is asked after a time-out before it can know",
        "step.py",
        "            delay = max(delay, tool.settle_after)\n",
        "            delay = max(delay, 0)\n",
    ),
    Mutant(
        "probed_at_once_after_a_death",
        "a probe is asked after a death before it can know",
        "step.py",
        'if step.status == "started" and settled_at and settled_at > self._run.now:',
        'if step.status == "never" and settled_at and settled_at > self._run.now:',
    ),
    Mutant(
        "doubt_as_failure",
        "an attempt whose outcome is unknown is shown to the decider as a failure",
        "step.py",
        '                return self._doubt(step, f"{outcome.type}: {outcome.message}")\n        return []\n',
        "                run.record_failure(step.idx, Failed(outcome.type, outcome.message))\n        return []\n",
    ),
    Mutant(
        "doubt_skipped",
        "a doubt that waits for a person settles itself: the step counts as skipped",
        "step.py",
        'if tool.on_doubt == "skip":',
        'if tool.on_doubt in ("skip", "park"):',
    ),
    Mutant(
        "ttl_ignored",
        "a key is sent again though the provider has forgotten it",
        "step.py",
        "        if ttl is None or step.keyed_at is None:\n            return False\n",
        "        if ttl is None or step.keyed_at is None or ttl:\n            return False\n",
    ),
    Mutant(
        "ttl_from_the_last_attempt",
        "the life of a key is counted from the last attempt under it, not from the first",
        "state.py",
        "            if before[10] is not None and before[4] == event.key:\n                keyed_at = before[10]\n",
        "",
    ),
    Mutant(
        "wait_lost",
        "the next attempt is due at once",
        "step.py",
        "self._run.record_retry(step.idx, outcome, self._run.now + timedelta(seconds=delay))",
        "self._run.record_retry(step.idx, outcome, self._run.now)",
    ),
    Mutant(
        "wait_not_slept",
        "the next attempt starts before it is due",
        "runtime.py",
        "            self._sleep(wait)\n",
        "",
    ),
    # Keys.
    Mutant(
        "key_of_arguments",
        "two calls with the same arguments have the same key, where the tool has no template",
        "tools.py",
        "            return None\n        return self._filled(\n",
        "            return None\n"
        "        if self._template.is_default:\n"
        "            return f'{self.name}:{args}'\n"
        "        return self._filled(\n",
    ),
    Mutant(
        "key_per_attempt",
        "each attempt has a key of its own",
        "run.py",
        "            key=step.key,\n            call_id=step.call_id,\n",
        "            key=None if step.key is None else renewed(step.key),\n            call_id=step.call_id,\n",
    ),
    Mutant(
        "key_kept_after_no",
        "a step that did not happen is tried again under its old key",
        "run.py",
        '        if outcome == "did_not_happen" and step.key is not None:\n            key = renewed(step.key)\n',
        '        if outcome == "did_not_happen" and step.key is not None:\n            key = step.key\n',
    ),
    Mutant(
        "key_unclaimed",
        "no step holds its key",
        "store/recorder.py",
        "        for claim in claims:\n            self._claim(connection, claim)\n",
        "",
    ),
    Mutant(
        "key_shared",
        "another step may have the key that a step holds",
        "store/recorder.py",
        "        if (holder.run_id, holder.idx) != (claim.run_id, claim.idx):\n"
        "            raise KeyHeld(claim, holder)\n",
        "        _ = holder\n",
    ),
    Mutant(
        "key_claimed_before",
        "keys are claimed in a transaction of their own",
        "store/recorder.py",
        "        if row.columns is ALL:\n            connection.execute(self._insert_row, row.values)\n",
        "        for claim in claims:\n"
        "            self._claim(connection, claim)\n"
        '        connection.execute("COMMIT")\n'
        '        connection.execute("BEGIN IMMEDIATE")\n'
        "        if row.columns is ALL:\n"
        "            connection.execute(self._insert_row, row.values)\n",
    ),
    # The store.
    Mutant(
        "row_apart",
        "the row of a run is committed apart from its events",
        "store/recorder.py",
        "            self._claim(connection, claim)\n"
        "        self._note(connection, row, is_bounded=True)\n"
        "        dialect.insert(connection, self.events_table_name, stored)\n"
        "        if row.rings:\n",
        "            self._claim(connection, claim)\n"
        "        self._note(connection, row, is_bounded=True)\n"
        '        connection.execute("COMMIT")\n'
        '        connection.execute("BEGIN IMMEDIATE")\n'
        "        dialect.insert(connection, self.events_table_name, stored)\n"
        "        if row.rings:\n",
    ),
    Mutant(
        "race_ignored",
        "an event whose place is taken is left out, and the row is not looked at",
        "store/recorder.py",
        "            self._update(connection, row, before)\n"
        "        for claim in claims:\n"
        "            self._claim(connection, claim)\n"
        "        self._note(connection, row, is_bounded=True)\n"
        "        dialect.insert(connection, self.events_table_name, stored)\n",
        '            update = _update_of(row.columns, row.also, is_fenced=False).replace(" AND cursor = ?", "")\n'
        "            connection.execute(update, row.values)\n"
        "        for claim in claims:\n"
        "            self._claim(connection, claim)\n"
        "        for event in stored:\n"
        "            connection.execute(\n"
        '                f"INSERT OR IGNORE INTO {self.events_table_name} "\n'
        '                "(originator_id, originator_version, topic, state) VALUES (?, ?, ?, ?)",\n'
        "                (event.originator_id.bytes, event.originator_version, event.topic, event.state),\n"
        "            )\n",
    ),
    Mutant(
        "moved_and_going_on",
        "a worker that was overtaken goes on: what it finds in the journal is permission enough",
        "runtime.py",
        "step.tool, event.attempt, waits)\n            raise\n",
        "step.tool, event.attempt, waits)\n",
    ),
    Mutant(
        "appended_blindly",
        "an append whose answer was lost is made again without a look at the journal",
        "store/application.py",
        "                if unknown is not None and self._is_pending_there(run):\n"
        "                    return self._recorded(run)\n"
        "                if tries < APPEND_TRIES:\n",
        "                if tries < APPEND_TRIES:\n",
    ),
    Mutant(
        "believed_blindly",
        "an append whose answer was lost is believed to be there without a look at the journal",
        "store/application.py",
        "                if unknown is not None and self._is_pending_there(run):\n",
        "                if unknown is not None:\n",
    ),
    Mutant(
        "recorded_too_soon",
        "events count as recorded before the store has them",
        "store/application.py",
        "        own, others = self._appends_of(run)\n        if self._ends_child(run):\n",
        "        own, others = self._appends_of(run)\n"
        "        if run.pending_events[0].originator_version > 1:\n            run.mark_recorded()\n"
        "        if self._ends_child(run):\n",
    ),
    Mutant(
        "never_recorded",
        "events that the store has stay pending",
        "store/application.py",
        "        run.mark_recorded()\n        if lets_go and run.lease is not None:\n",
        "        if lets_go and run.lease is not None:\n",
    ),
    Mutant(
        "refused_and_pending",
        "what the store refused stays pending",
        "step.py",
        "        except KeyReused as reused:  # the whole append was refused: tell the decider, and record the rest\n"
        "            run.discard()\n",
        "        except KeyReused as reused:\n",
    ),
    Mutant(
        "tables_apart",
        "the version of the tables is committed apart from the tables",
        "store/recorder.py",
        '            connection.execute(f"DELETE FROM {schema.name}")\n',
        '            connection.execute("COMMIT")\n            connection.execute("BEGIN IMMEDIATE")\n',
    ),
    Mutant(
        "late_for_another",
        "a late result is taken for whatever attempt is under way",
        "run.py",
        'if step.status not in ("started", "in_doubt", "retrying") or attempt not in (None, step.attempt):',
        'if step.status not in ("started", "in_doubt", "retrying"):',
    ),
    # Waits and signals.
    Mutant(
        "early_signal_forgotten",
        "a signal that nobody waits for yet is forgotten",
        "state.py",
        "        self.received[seq] = Signal(seq, event.name, event.payload, event.delivery_id, event.timestamp)\n"
        "        if self.waiting:\n",
        "        if self.waiting:\n"
        "            self.received[seq] = "
        "Signal(seq, event.name, event.payload, event.delivery_id, event.timestamp)\n",
    ),
    Mutant(
        "early_signal_unrecorded",
        "a signal that nobody waits for yet is acknowledged and not recorded",
        "store/arrivals.py",
        "        run.record_signal(signal.name, signal.payload_json, signal.delivery_id)\n",
        "        if not run.state.waits:\n"
        "            return Delivered(run_id, run.version, is_new=True)\n"
        "        run.record_signal(signal.name, signal.payload_json, signal.delivery_id)\n",
    ),
    Mutant(
        "signal_of_one_turn",
        "a signal that a turn has no use for is forgotten with it",
        "state.py",
        "        self.current = {}\n        self.active = self.in_doubt",
        "        self.current = {}\n        self.received = {}\n        self.active = self.in_doubt",
    ),
    Mutant(
        "signal_used_twice",
        "a signal that ended a wait is there for the next one too",
        "state.py",
        "self.received.pop(event.received)",
        "self.received[event.received]",
    ),
    Mutant(
        "last_signal_first",
        "of several signals of one name the last ends the wait",
        "state.py",
        "next((signal for signal in self.signals if signal.name == step.awaits), None)",
        "next((signal for signal in self.signals[::-1] if signal.name == step.awaits), None)",
    ),
    Mutant(
        "delivered_again",
        "a delivery that is brought twice is recorded twice",
        "store/arrivals.py",
        "        if (there := self._there(connection, run_id, signal)) is not None:\n            return there\n",
        "        if (there := self._there(connection, run_id, signal)) is not None:\n"
        '            again = f"{signal.delivery_id} again at {there.seq}"\n'
        "            signal = Arriving(signal.name, signal.payload_json, again)\n",
    ),
    Mutant(
        "delivery_unnoted",
        "nobody notes which deliveries were recorded",
        "store/projection.py",
        "        if type(event) is SignalReceived\n    )\n",
        "        if type(event) is None\n    )\n",
    ),
    Mutant(
        "clock_first",
        "the clock ends a wait whose signal is there",
        "step.py",
        "        if signal := run.state.signal_for(step):\n"
        "            run.record_wait_ended(step.idx, signal.seq)\n"
        "        elif step.wake_at is not None and step.wake_at <= (now or run.now):\n"
        "            run.record_wait_ended(step.idx)\n",
        "        if step.wake_at is not None and step.wake_at <= (now or run.now):\n"
        "            run.record_wait_ended(step.idx)\n"
        "        elif signal := run.state.signal_for(step):\n"
        "            run.record_wait_ended(step.idx, signal.seq)\n",
    ),
    Mutant(
        "clock_unasked",
        "a wait with a time ends as soon as somebody looks at it",
        "step.py",
        "        elif step.wake_at is not None and step.wake_at <= (now or run.now):\n",
        "        elif step.wake_at is not None:\n",
    ),
    Mutant(
        "news_forgotten",
        "a signal that came while a worker was about to append is counted and not taken in",
        "run.py",
        "        self._state = self._recorded = fold(events, self._recorded)\n",
        "        from dataclasses import replace\n"
        "        signals = self._recorded.signals\n"
        "        self._state = self._recorded = replace(fold(events, self._recorded), signals=signals)\n",
    ),
    Mutant(
        "refused_by_a_signal",
        "a signal that came first refuses the append of who moves the run",
        "store/application.py",
        "                run.catch_up(news)\n                return\n",
        "                pass\n",
    ),
    Mutant(
        "transaction_refused_by_a_signal",
        "a signal that came while a TRANSACTIONAL body ran rolls it back",
        "store/application.py",
        "                self._catch_up_in(connection, run)\n",
        "",
    ),
    Mutant(
        "row_not_woken",
        "the row of a run that waits stays as it is when its signal comes",
        "store/projection.py",
        "    if _status_of(state) == _status_of(before):\n",
        "    if _status_of(state) == _status_of(before) or token is None:\n",
    ),
    Mutant(
        "waits_and_begins_again",
        "a step whose body asked to wait starts its body again",
        "step.py",
        '        if step.status in ("waiting", "gated") or not step.is_open:\n            return False\n',
        '        if step.status == "waiting" and not step.attempt:\n            return False\n',
    ),
    Mutant(
        "wait_apart",
        "what a body asked to wait for is not recorded in its transaction",
        "runtime.py",
        "            if not isinstance(outcome, Returned | Waits):\n",
        "            if not isinstance(outcome, Returned):\n",
    ),
    # What is said and remembered.
    Mutant(
        "fact_lost",
        "what a body wants to be remembered is not recorded with its result",
        "run.py",
        "        for name, value in outcome.facts:\n",
        "        for name, value in outcome.facts[:0]:\n",
    ),
    Mutant(
        "fact_by_luck",
        "of two calls of one turn, that which ended last says what is remembered",
        "state.py",
        "        if before is None or event.idx >= before.idx:\n",
        "        if before is None or event.idx >= 0:\n",
    ),
    Mutant(
        "facts_unsorted",
        "facts are read in the order in which calls ended",
        "state.py",
        "            self.remembered = dict(sorted({**self.remembered, **self.kept}.items()))\n",
        "            self.remembered = {**self.remembered, **self.kept}\n",
    ),
    Mutant(
        "answer_unrecorded",
        "what a model said is not kept beside the calls that were read from it",
        "step.py",
        "    if (said := asked.said) is not None:\n",
        "    if (said := asked.said) is not None and run.state.turns > 99:\n",
    ),
    Mutant(
        "turn_cut_in_two",
        "a summary stands for the first calls of a turn and not for the others",
        "scratchpad.py",
        "            if state.steps[idx].turn < state.turns - self.keep:\n",
        "            if idx < done - self.keep:\n",
    ),
    # What people say.
    Mutant(
        "one_yes_of_two",
        "one person's yes is enough where two must say it",
        "state.py",
        "        if len(gate.approved_by) >= gate.people:\n            self.gates -= 1\n",
        "        if gate.approved_by:\n            self.gates -= 1\n",
    ),
    Mutant(
        "yes_to_something_else",
        "a yes that was said before other arguments were given counts for those",
        "state.py",
        "edited_by=event.by, approved_by=(event.by,)",
        "edited_by=event.by, approved_by=(*gate.approved_by, event.by)",
    ),
    Mutant(
        "edit_forgotten",
        "a call starts with the decider's arguments where a person gave others",
        "state.py",
        '            args, status, value = gate.args_json, "queued", None\n',
        '            args, status, value = gate.said_json, "queued", None\n',
    ),
    Mutant(
        "yes_too_late",
        "a yes counts after the time to answer is over",
        "people.py",
        "    if gate.is_expired(run.now):\n",
        "    if gate.is_expired(run.now) and gate.people < 2:\n",
    ),
    Mutant(
        "pause_after_the_next",
        "what a decider says while its run is paused begins",
        "run.py",
        "        heard = {type(event) for event in events} & _HEARD\n",
        "        heard = {type(event) for event in events} & _HEARD\n"
        "        if Paused in heard:\n"
        "            self._state = self._recorded = evolve(self._state, Resumed(timestamp=self.now, by='nobody'))\n"
        "            heard = set()\n",
    ),
    Mutant(
        "message_unread",
        "a decision is recorded that was made before a message came, and stands behind it",
        "run.py",
        "_HEARD: frozenset[type[Event]] = frozenset((Steered, Paused, CompensationBegan))\n",
        "_HEARD: frozenset[type[Event]] = frozenset((Paused, CompensationBegan))\n",
    ),
    # Transactions of tools.
    Mutant(
        "result_apart",
        "the result of a TRANSACTIONAL tool is appended after its transaction",
        "store/application.py",
        "                self.recorder.append_in(connection, stored, change, claims_of(run.state.run_id, events))\n",
        "            self.recorder.append(stored, change, claims_of(run.state.run_id, events))\n",
    ),
    Mutant(
        "failed_and_committed",
        "the transaction of a body that failed is committed, with its failure",
        "runtime.py",
        "                raise RolledBack\n            run.record_outcome(body.idx, outcome)\n",
        "                run.record_failure(body.idx, outcome)\n"
        '                outcome = Returned("null")\n'
        "            else:\n"
        "                run.record_outcome(body.idx, outcome)\n",
    ),
    Mutant(
        "session_commits",
        "what a body commits is durable at once, not a savepoint",
        "store/datastore.py",
        'join_transaction_mode="create_savepoint"',
        'join_transaction_mode="control_fully"',
    ),
    Mutant(
        "rolled_back_and_pending",
        "what a transaction that was not committed left pending stays",
        "store/application.py",
        "            if not (stored and self._was_committed(run, stored)):\n                run.discard()\n",
        "            if not (stored and self._was_committed(run, stored)):\n",
    ),
    Mutant(
        "transaction_lost",
        "a transaction whose answer was lost counts as rolled back",
        "store/application.py",
        "            if not (stored and self._was_committed(run, stored)):\n",
        "            if stored or not stored:\n",
    ),
    Mutant(
        "transaction_believed",
        "a transaction whose answer was lost counts as committed",
        "store/application.py",
        "            if not (stored and self._was_committed(run, stored)):\n",
        "            if not stored:\n",
    ),
)
"""Every fault."""
