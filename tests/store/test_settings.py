"""The settings of the event store library: cipher and compressor apply to every event; a wrong key reads nothing."""

import hashlib
import hmac
import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from eventsourcing.persistence import Cipher
from eventsourcing.utils import Environment

from agent_es import AgentRun, CallTool, Effect, Finish, Runner, RunState, RunStore, ScriptedDecider, tool
from agent_es.errors import RunUnreadable, StoreUnusable
from agent_es.events import stream_id

Sql = Callable[..., list[tuple[Any, ...]]]


class Sealing(Cipher):
    """A toy: it hides a text behind a key, and notices another key."""

    def __init__(self, environment: Environment) -> None:
        self._key = (environment.get("CIPHER_KEY") or "").encode()

    def encrypt(self, plaintext: bytes) -> bytes:
        nonce = os.urandom(8)
        hidden = self._hide(nonce, plaintext)
        return nonce + self._seal(nonce + hidden) + hidden

    def decrypt(self, ciphertext: bytes) -> bytes:
        nonce, seal, hidden = ciphertext[:8], ciphertext[8:40], ciphertext[40:]
        if not hmac.compare_digest(seal, self._seal(nonce + hidden)):
            raise ValueError("the seal is broken")
        return self._hide(nonce, hidden)

    def _hide(self, nonce: bytes, text: bytes) -> bytes:
        stream = hashlib.shake_256(self._key + nonce).digest(len(text))
        return bytes(a ^ b for a, b in zip(text, stream, strict=True))

    def _seal(self, text: bytes) -> bytes:
        return hmac.digest(self._key, text, "sha256")


def sealing(key: str) -> dict[str, str]:
    return {"CIPHER_TOPIC": f"{__name__}:Sealing", "CIPHER_KEY": key}


ZLIB = {"COMPRESSOR_TOPIC": "zlib"}


class Refund(AgentRun):
    @tool(effect=Effect.READ)
    def search(self, query: str) -> str:
        return f"the policy on {query}"


SCRIPT = ScriptedDecider([CallTool("search", {"query": "refunds"}), Finish("refunded")])


def run(store: RunStore) -> RunState:
    return Runner(store, SCRIPT).run(Refund, run_id="run-7f3a", goal="Refund ORD-3300")


@pytest.mark.parametrize("env", [sealing("k"), ZLIB, {**sealing("k"), **ZLIB}], ids=["cipher", "compressor", "both"])
def test_a_run_is_read_back_through_cipher_and_compressor(
    open_store: Callable[..., RunStore], env: dict[str, str]
) -> None:
    state = run(open_store(env=env))

    again = open_store(env=env)

    assert again.load("run-7f3a").answer == state.answer == "refunded"
    assert again.load("run-7f3a").steps[0].result == "the policy on refunds"
    assert [entry.type for entry in again.journal("run-7f3a")] == [
        "run_started",
        "llm_decided",
        "tool_result",
        "finished",
    ]
    assert again.repository.get(stream_id("run-7f3a")).state == again.load("run-7f3a")
    assert again.rebuild() == 1


def test_what_is_enciphered_cannot_be_read_in_the_events(open_store: Callable[..., RunStore], sql: Sql) -> None:
    run(open_store(env=sealing("k")))

    states = [state for (state,) in sql("SELECT state FROM agent_es_events")]

    assert len(states) == 4
    assert not any(word in state for state in states for word in (b"refund", b"policy", b"timestamp"))


def test_what_is_compressed_and_enciphered_was_compressed_first(
    open_store: Callable[..., RunStore], sql: Sql
) -> None:
    run(open_store(env={**sealing("k"), **ZLIB}))
    cipher = Sealing(Environment(env=sealing("k")))

    ((state,),) = sql("SELECT state FROM agent_es_events WHERE originator_version = 4")

    assert zlib.decompress(cipher.decrypt(state)) == b'{"timestamp":"2026-07-05T10:00:03Z","answer":"\\"refunded\\""}'


WRONG = {
    "another key": (sealing("k"), sealing("another")),
    "no key": (sealing("k"), {}),
    "a key where there was none": ({}, sealing("k")),
    "no compressor": (ZLIB, {}),
    "a compressor where there was none": ({}, ZLIB),
}


@pytest.mark.parametrize(("written", "read"), WRONG.values(), ids=WRONG.keys())
def test_what_was_written_otherwise_is_unreadable_and_left_untouched(
    open_store: Callable[..., RunStore], sql: Sql, written: dict[str, str], read: dict[str, str]
) -> None:
    run(open_store(env=written))
    before = sql("SELECT * FROM agent_es_events"), sql("SELECT * FROM agent_es_runs")

    store = open_store(env=read)

    for use in (
        lambda: store.load("run-7f3a"),
        lambda: store.journal("run-7f3a"),
        lambda: run(store),
        lambda: store.repository.get(stream_id("run-7f3a")),
    ):
        with pytest.raises(RunUnreadable):
            use()
    store.rebuild()
    assert [record.run_id for record in store.runs()] == ["run-7f3a"]
    assert (sql("SELECT * FROM agent_es_events"), sql("SELECT * FROM agent_es_runs")) == before


def test_a_wrong_key_is_asked_for(open_store: Callable[..., RunStore]) -> None:
    run(open_store(env=sealing("k")))

    with pytest.raises(RunUnreadable, match=r"cannot be deciphered \(ValueError\); is the key right\?"):
        open_store(env=sealing("another")).load("run-7f3a")


@pytest.mark.parametrize("setting", ["CIPHER_TOPIC", "COMPRESSOR_TOPIC"])
def test_a_setting_that_names_nothing_makes_the_store_unusable(
    open_store: Callable[..., RunStore], setting: str
) -> None:
    with pytest.raises(StoreUnusable, match="no_such_package"):
        open_store(env={setting: "no_such_package:Thing"})
