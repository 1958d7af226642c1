"""Keys: the same text for one intent, another text for another intent."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_es.errors import BadTool
from agent_es.keys import MAX_LENGTH, KeyTemplate

WORDS = st.text(st.characters(codec="utf-8"), max_size=6) | st.text("a:-._~/%", max_size=3)


def test_the_key_of_the_story() -> None:
    template = KeyTemplate("{order_id}:refund:{amount:.2f}")

    assert template.fill({"order_id": "ORD-3300", "amount": Decimal(180)}) == "ORD-3300:refund:180.00"


@pytest.mark.parametrize(
    ("value", "escaped"),
    [
        ("A:refund", "A%3Arefund"),
        ("100%", "100%25"),
        ("a/b c", "a%2Fb%20c"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("\N{GRINNING FACE}", "%F0%9F%98%80"),
        ("{order_id}", "%7Border_id%7D"),
        ("", ""),
        (None, "None"),
    ],
)
def test_what_could_pass_for_a_separator_is_escaped(value: Any, escaped: str) -> None:
    assert KeyTemplate("{order_id}:refund").fill({"order_id": value}) == f"{escaped}:refund"


def test_the_words_around_the_blanks_stay_as_they_are_and_doubled_braces_are_braces() -> None:
    template = KeyTemplate("refund of {{{order_id}}} / 1")

    assert template.fill({"order_id": "A 1"}) == "refund of {A%201} / 1"


def test_values_that_no_blank_names_do_not_show() -> None:
    template = KeyTemplate("{order_id}:refund")

    assert template.fill({"order_id": "A", "note": "today"}) == template.fill({"order_id": "A", "note": "tomorrow"})


@pytest.mark.parametrize("separator", [":", "/", "-", "_", ".", "~", ":x:"])
@given(st.lists(WORDS, min_size=3, max_size=5))
def test_two_different_sets_of_arguments_never_make_one_key(separator: str, words: list[str]) -> None:
    template = KeyTemplate(f"{{a}}{separator}{{b}}")

    one = template.fill({"a": words[0], "b": separator.join(words[1:])})
    other = template.fill({"a": separator.join(words[:-1]), "b": words[-1]})

    assert one != other


@given(st.text(st.characters(codec="utf-8"), max_size=600), st.text(st.characters(codec="utf-8"), max_size=600))
@example("x" * 600, "y" * 600)
def test_a_key_has_at_most_255_characters(first: str, second: str) -> None:
    key = KeyTemplate("{a}:{b}").fill({"a": first, "b": second})

    assert len(key) <= MAX_LENGTH == 255


def test_a_key_of_255_characters_is_whole_and_a_longer_one_ends_in_its_digest() -> None:
    template = KeyTemplate("{a}")

    assert template.fill({"a": "x" * 255}) == "x" * 255
    assert template.fill({"a": "x" * 256}) == (
        "x" * 190 + "~" + "85e62acd750c4eb56b7b6a1d66dca5bfaac5f062608a1a893410d0288936c09a"
    )


def test_long_keys_that_differ_at_the_end_only_differ() -> None:
    template = KeyTemplate("{a}")

    assert template.fill({"a": "x" * 300 + "1"}) != template.fill({"a": "x" * 300 + "2"})


def test_no_short_value_makes_the_key_of_a_long_one() -> None:
    template = KeyTemplate("{a}")
    of_a_long_value = template.fill({"a": "x" * 300})

    of_a_short_value = template.fill({"a": of_a_long_value})

    assert of_a_short_value != of_a_long_value


def test_a_blank_must_name_an_argument_or_the_position() -> None:
    with pytest.raises(BadTool, match=r"tool refund: .* names 'order', which is no argument; use .*order_id"):
        KeyTemplate("{order}:refund").check("refund", ["order_id"])

    KeyTemplate("{run_id}:{idx}:{tool}:{order_id}").check("refund", ["order_id"])


@pytest.mark.parametrize("template", ["{order_id.x}", "{order_id[0]}", "{}", "{0}"])
def test_a_blank_reaches_into_no_argument(template: str) -> None:
    with pytest.raises(BadTool, match="which is no argument"):
        KeyTemplate(template).check("refund", ["order_id"])


def test_a_template_without_a_blank_would_be_one_key_for_all() -> None:
    with pytest.raises(BadTool, match=r"tool refund: .*'refund' names no argument: one key for all"):
        KeyTemplate("refund").check("refund", ["order_id"])
