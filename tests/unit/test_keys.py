"""Keys: the same text for one intent, another text for another intent."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_es.errors import BadTool
from agent_es.keys import DEFAULT, MAX_LENGTH, KeyTemplate, renewed, sub_key

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
WORDS = TEXT | st.text("a:-._~/%", max_size=3)


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
        ("A#2!", "A%232%21"),
        ("None", "None"),
        (None, "%~"),
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


@pytest.mark.parametrize("nothing", ["", "None", "null", "%00", "\0"], ids=ascii)
def test_what_is_left_out_is_no_text(nothing: str) -> None:
    template = KeyTemplate("{a}:refund")

    assert template.fill({"a": None}) != template.fill({"a": nothing})


@pytest.mark.parametrize("separator", [":", "/", " ", ":x:", "-:", ":-"])
@given(st.lists(WORDS, min_size=3, max_size=5))
def test_two_different_sets_of_arguments_never_make_one_key(separator: str, words: list[str]) -> None:
    template = KeyTemplate(f"{{a}}{separator}{{b}}")
    template.check("refund", ["a", "b"])

    one = template.fill({"a": words[0], "b": separator.join(words[1:])})
    other = template.fill({"a": separator.join(words[:-1]), "b": words[-1]})

    assert one != other


@pytest.mark.parametrize("separator", ["", "x", "-", "_", ".", "~", "a1"])
def test_blanks_that_could_run_into_each_other_are_refused(separator: str) -> None:
    template = KeyTemplate(f"{{a}}{separator}{{b}}")

    with pytest.raises(BadTool, match=r"tool refund: .* two of its blanks could run into each other"):
        template.check("refund", ["a", "b"])


@pytest.mark.parametrize(
    ("separator", "one", "other"),
    [
        ("%", {"a": ":", "b": "3A"}, {"a": "", "b": "3A:"}),
        ("%3A", {"a": "x:", "b": ""}, {"a": "x", "b": ":"}),
    ],
)
def test_what_stands_for_an_escaped_character_separates_no_blanks(
    separator: str, one: dict[str, str], other: dict[str, str]
) -> None:
    template = KeyTemplate(f"{{a}}{separator}{{b}}")
    try:
        template.check("refund", ["a", "b"])
    except BadTool:
        return

    assert template.fill(one) != template.fill(other)


@given(st.text(st.characters(codec="utf-8"), max_size=600), st.text(st.characters(codec="utf-8"), max_size=600))
@example("x" * 600, "y" * 600)
def test_a_key_has_at_most_255_characters(first: str, second: str) -> None:
    key = KeyTemplate("{a}:{b}").fill({"a": first, "b": second})

    assert len(key) <= MAX_LENGTH == 255


def test_a_key_of_255_characters_is_whole_and_a_longer_one_ends_in_its_digest() -> None:
    template = KeyTemplate("{a}")

    assert template.fill({"a": "x" * 255}) == "x" * 255
    assert template.fill({"a": "x" * 256}) == (
        "x" * 190 + "!" + "85e62acd750c4eb56b7b6a1d66dca5bfaac5f062608a1a893410d0288936c09a"
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
    with pytest.raises(BadTool, match=r"tool refund: .*'refund' cannot work: it names no argument: one key for all"):
        KeyTemplate("refund").check("refund", ["order_id"])


@pytest.mark.parametrize("name", ["run_id", "idx", "tool"])
def test_a_blank_that_could_be_an_argument_or_the_position_is_refused(name: str) -> None:
    with pytest.raises(BadTool, match=f"'{name}' is both an argument and the step's own; rename the argument"):
        KeyTemplate(f"{{order_id}}:{{{name}}}").check("refund", ["order_id", name])


@pytest.mark.parametrize("template", ["{order_id}#2", "#{order_id}", "{order_id}!", "{order_id}:!:{amount}"])
def test_the_marks_of_renewed_and_of_long_keys_stand_in_no_template(template: str) -> None:
    with pytest.raises(BadTool, match=r"holds one of '#!', which mark keys of ours"):
        KeyTemplate(template).check("refund", ["order_id", "amount"])


@pytest.mark.parametrize("conversion", ["r", "s", "a"])
def test_a_blank_is_formatted_and_never_converted(conversion: str) -> None:
    with pytest.raises(BadTool, match=f"it converts with !{conversion}; use a format"):
        KeyTemplate(f"{{order_id!{conversion}}}").check("refund", ["order_id"])


def test_a_format_that_names_another_blank_is_refused_where_it_is_declared() -> None:
    with pytest.raises(BadTool, match="tool refund"):
        KeyTemplate("{order_id:{amount}}").check("refund", ["order_id", "amount"])


def test_everything_that_is_wrong_with_a_template_is_said_at_once() -> None:
    with pytest.raises(BadTool, match=r"names 'order', .*; .* mark keys of ours; .* run into each other"):
        KeyTemplate("{order}#{amount}{tool}").check("refund", ["amount"])


def test_the_key_of_a_step_is_its_position_unless_it_says_otherwise() -> None:
    values = {"run_id": "run:7", "idx": 1, "tool": "refund"}

    assert KeyTemplate(DEFAULT).fill(values) == "run%3A7:1:refund"


# Keys that are made of keys.

KEYS = TEXT.map(lambda text: KeyTemplate("{a}:refund").fill({"a": text})) | st.integers(235, 255).map("k".__mul__)


@given(KEYS)
@example("k" * 190 + "!" + "0" * 64)
def test_a_key_can_be_renewed_for_ever_and_is_another_one_each_time(key: str) -> None:
    chain = [key]
    for _ in range(12):
        chain.append(renewed(chain[-1]))

    assert len(set(chain)) == 13
    assert all(len(it) <= MAX_LENGTH for it in chain)


@given(KEYS, KEYS)
def test_two_keys_stay_two_when_they_are_renewed(one: str, other: str) -> None:
    assert (renewed(one) == renewed(other)) is (one == other)


@given(TEXT)
def test_no_arguments_make_a_key_that_was_renewed(text: str) -> None:
    template = KeyTemplate("{a}")

    assert renewed(template.fill({"a": text})) != template.fill({"a": f"{text}#2"})
    assert "#" not in template.fill({"a": text})


def test_a_key_counts_how_often_it_was_renewed() -> None:
    assert [renewed("k"), renewed("k#2"), renewed("k#9")] == ["k#2", "k#3", "k#10"]


@given(KEYS, TEXT, TEXT)
@example("k" * 255, "create", "pay")
def test_each_call_of_a_step_has_a_key_of_its_own_that_is_the_same_at_every_attempt(
    key: str, one: str, other: str
) -> None:
    assert (sub_key(key, one) == sub_key(key, other)) is (one == other)
    assert sub_key(key, one) != key
    assert len(sub_key(key, one)) <= MAX_LENGTH
