"""Values: one canonical text each, and what is read back is what was meant."""

import base64
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple
from uuid import UUID
from zoneinfo import TZPATH, ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, RootModel, SecretStr, computed_field
from typing_extensions import TypedDict

from agent_es.errors import NotRecordable
from agent_es.values import Shape, bounded, canonical, decode, digest, valid_unicode

VALID_TEXT = st.text()
ANY_TEXT = st.text(st.characters())  # lone surrogates too


def json_values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Return what JSON can say, with these texts; keys are valid Unicode."""
    atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
    return st.recursive(atoms, lambda inner: st.lists(inner) | st.dictionaries(VALID_TEXT, inner), max_leaves=20)


# The canonical text.


@given(json_values(VALID_TEXT))
def test_what_json_can_say_is_read_back_as_it_was(value: Any) -> None:
    text = canonical(value)

    assert decode(text) == value


@given(json_values(ANY_TEXT))
@example([1, 1.0, True, -0.0])
def test_the_text_of_a_value_that_was_read_back_is_the_same_text(value: Any) -> None:
    text = canonical(value)

    assert canonical(decode(text)) == text


@given(st.dictionaries(VALID_TEXT, st.integers()))
def test_the_order_in_which_a_mapping_was_filled_does_not_show(value: dict[str, int]) -> None:
    backwards = dict(reversed(value.items()))

    assert canonical(backwards) == canonical(value)


@pytest.mark.parametrize("value", [{"\ud800": 0, "\ue000": 0}, {"\ud83d\ude00": 0, "\ue000": 0}])
def test_keys_are_sorted_as_they_will_be_read_back(value: Any) -> None:
    text = canonical(value)

    assert canonical(decode(text)) == text


def test_two_keys_that_would_become_one_are_refused_and_not_lost() -> None:
    value = dict.fromkeys(("\ud800", "\ud801"), "something")

    with pytest.raises(NotRecordable):
        canonical(value)


@given(ANY_TEXT)
def test_every_text_becomes_valid_unicode_and_its_valid_characters_stay(text: str) -> None:
    valid = valid_unicode(text)

    assert valid.encode().decode() == valid
    assert in_the_basic_plane(valid) == in_the_basic_plane(text)


def in_the_basic_plane(text: str) -> list[str]:
    """Return the characters that neither a repair nor a joined pair can have made."""
    return [c for c in text if c <= "\uffff" and c != "\ufffd" and not "\ud800" <= c <= "\udfff"]


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        ("cut \ud83d", '"cut \ufffd"'),
        ("\ude00 cut", '"\ufffd cut"'),
        ("\ud83d\ude00", '"\U0001f600"'),
        ("\ude00\ud83d", '"\ufffd\ufffd"'),
    ],
)
def test_a_split_pair_is_joined_and_a_lone_surrogate_is_replaced(text: str, recorded: str) -> None:
    assert canonical(text) == recorded


def test_a_surrogate_at_the_end_of_one_text_is_not_joined_with_the_start_of_the_next() -> None:
    assert decode(canonical(["\ud83d", "\ude00"])) == ["\ufffd", "\ufffd"]


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Label(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not what it is"


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        ((1, (2,)), "[1,[2]]"),
        (Colour.RED, '"red"'),
        (Level.HIGH, "3"),
        (Label("what it is"), '"what it is"'),
        (True, "true"),
        (10**100, "1" + "0" * 100),
    ],
)
def test_what_extends_a_json_type_is_written_as_what_it_extends(value: Any, recorded: str) -> None:
    assert canonical(value) == recorded


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({1, 2}, "set is not JSON"),
        (b"raw", "bytes is not JSON"),
        (Decimal("1.5"), "Decimal is not JSON"),
        (datetime(2026, 7, 5, tzinfo=UTC), "datetime is not JSON"),
        ([object()], "object is not JSON"),
        ({1: "one"}, "a key of type int is not JSON; keys are text"),
        ({None: "none"}, "a key of type NoneType is not JSON"),
        (float("nan"), "not JSON compliant"),
        ([float("inf")], "not JSON compliant"),
        ([10**5000], "Exceeds the limit"),
    ],
)
def test_what_json_cannot_say_is_refused(value: Any, says: str) -> None:
    with pytest.raises(NotRecordable, match=says):
        canonical(value)


def in_lists(depth: int) -> Any:
    value: Any = "the kernel"
    for _ in range(depth):
        value = [value]
    return value


def in_mappings(depth: int) -> Any:
    value: Any = "the kernel"
    for _ in range(depth):
        value = {"in": value}
    return value


@pytest.mark.parametrize("nested", [in_lists, in_mappings])
def test_a_value_nests_64_deep_and_no_deeper(nested: Callable[[int], Any]) -> None:
    assert decode(canonical(nested(64))) == nested(64)
    with pytest.raises(NotRecordable, match="64"):
        canonical(nested(65))


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)

    with pytest.raises(NotRecordable, match="nests deeper"):
        canonical(value)


def test_a_digest_is_the_sha_256_of_the_text() -> None:
    assert digest("180.00 €") == "4b265f8d16ea65f0e3ae2f83ff3a51669ca270a7921744e7e1a7af15bf382e70"


def test_a_long_text_is_cut_and_says_how_long_it_was() -> None:
    assert bounded("x" * 2_000) == "x" * 2_000
    assert bounded("x" * 2_001) == "x" * 2_000 + "… (2,001 characters)"
    assert bounded("cut \ud83d") == "cut \ufffd"


# Annotated values.


class Receipt(BaseModel):
    amount: Decimal
    paid_at: datetime
    lines: list[Decimal] = []


class Wired(BaseModel):
    order_id: str = Field(alias="orderId")


class Priced(BaseModel):
    model_config = ConfigDict(extra="forbid")

    net: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gross(self) -> int:
        return self.net * 2


@dataclass(frozen=True)
class Point:
    x: int
    at: date


class Address(TypedDict):
    street: str
    since: date


class Size(Enum):
    SMALL = 1


ROUND_TRIPS = [
    (Decimal, Decimal("180.00"), '"180.00"'),
    (datetime, datetime(2026, 7, 5, 10, tzinfo=UTC), '"2026-07-05T10:00:00Z"'),
    (timedelta, timedelta(days=60), '"P60D"'),
    (UUID, UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
    (Size, Size.SMALL, "1"),
    (Colour, Colour.RED, '"red"'),
    (bytes, b"\xff\x00", f'"{base64.urlsafe_b64encode(bytes([255, 0])).decode()}"'),
    (int, 10**100, "1" + "0" * 100),
    (type(None), None, "null"),
    (int | None, None, "null"),
    (tuple[int, str], (1, "a"), '[1,"a"]'),
    (set[int], {5}, "[5]"),
    (set[str], {"b", "c", "a"}, '["a","b","c"]'),
    (frozenset[tuple[int, str]], frozenset({(2, "a"), (1, "b")}), '[[1,"b"],[2,"a"]]'),
    (PurePosixPath, PurePosixPath("/a"), '"/a"'),
    (time, time(9, 30), '"09:30:00"'),
    (datetime, datetime(2026, 7, 5, 10), '"2026-07-05T10:00:00"'),  # noqa: DTZ001
    (list[list[Decimal]], [[Decimal("1.50")], []], '[["1.50"],[]]'),
    (Mapping[str, date], {"b": date(2026, 1, 2), "a": date(2026, 1, 1)}, '{"a":"2026-01-01","b":"2026-01-02"}'),
    (Point, Point(3, date(2026, 7, 5)), '{"at":"2026-07-05","x":3}'),
    (Address, Address(street="Main", since=date(2026, 7, 5)), '{"since":"2026-07-05","street":"Main"}'),
    (
        Receipt,
        Receipt(amount=Decimal("180.00"), paid_at=datetime(2026, 7, 5, tzinfo=UTC), lines=[Decimal("0.10")]),
        '{"amount":"180.00","lines":["0.10"],"paid_at":"2026-07-05T00:00:00Z"}',
    ),
    (list[Point], [Point(3, date(2026, 7, 5))], '[{"at":"2026-07-05","x":3}]'),
]


@pytest.mark.parametrize(("annotation", "value", "recorded"), ROUND_TRIPS)
def test_an_annotated_value_comes_back_as_annotated(annotation: Any, value: Any, recorded: str) -> None:
    shape = Shape(annotation)

    text = shape.encode(value)
    back = shape.decode(text)

    assert text == recorded
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value"), [(Wired, Wired(orderId="ORD-3300")), (Priced, Priced(net=90))], ids=["alias", "computed"]
)
def test_a_model_whose_json_has_other_names_or_more_of_them_comes_back(annotation: Any, value: Any) -> None:
    shape = Shape(annotation)

    text = shape.encode(value)

    assert shape.decode(text) == value


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_a_decimal_keeps_its_digits(value: Decimal) -> None:
    shape = Shape(Decimal)

    back = shape.decode(shape.encode(value))

    assert str(back) == str(value)


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_keeps_its_instant(value: datetime) -> None:
    shape = Shape(datetime)

    back = shape.decode(shape.encode(value))

    assert back == value


@pytest.mark.parametrize("kind", [set, frozenset])
@given(st.sets(st.text() | st.integers() | st.booleans()))
def test_the_order_of_a_set_does_not_show(kind: Callable[[Any], Any], members: set[Any]) -> None:
    shape = Shape(set[Any] if kind is set else frozenset[Any])

    texts = {shape.encode(kind(ordered)) for ordered in (sorted(members, key=repr), sorted(members, key=str)[::-1])}

    assert len(texts) == 1


# Times in zones.

NEW_YORK = ZoneInfo("America/New_York")
BEFORE_THE_CLOCKS_CHANGE = datetime(2026, 3, 7, 9, tzinfo=NEW_YORK)
TEXT = "2026-03-07T09:00:00-05:00[America/New_York]"


class Pair(NamedTuple):
    first: datetime
    second: str


class Meeting(BaseModel):
    at: datetime = Field(alias="startsAt")
    notes: str = ""


@dataclass(frozen=True)
class Slot:
    meeting: Meeting
    others: list[datetime | None]


class Calendar(TypedDict):
    slots: dict[str, Slot]


def in_new_york(*moment: int, fold: int = 0) -> datetime:
    return datetime(*moment, tzinfo=NEW_YORK, fold=fold)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        (BEFORE_THE_CLOCKS_CHANGE, TEXT),
        (in_new_york(2026, 11, 1, 1, 30), "2026-11-01T01:30:00-04:00[America/New_York]"),
        (in_new_york(2026, 11, 1, 1, 30, fold=1), "2026-11-01T01:30:00-05:00[America/New_York]"),
        (in_new_york(2026, 3, 7, 9, 0, 0, 5), "2026-03-07T09:00:00.000005-05:00[America/New_York]"),
        (datetime(2026, 3, 7, 9, tzinfo=ZoneInfo("UTC")), "2026-03-07T09:00:00+00:00[UTC]"),
        (datetime(2026, 3, 7, 9, tzinfo=ZoneInfo("Etc/GMT+5")), "2026-03-07T09:00:00-05:00[Etc/GMT+5]"),
        (datetime(2026, 3, 7, 9, tzinfo=timezone(timedelta(hours=5, minutes=30))), "2026-03-07T09:00:00+05:30"),
        (datetime(2026, 3, 7, 9, tzinfo=UTC), "2026-03-07T09:00:00Z"),
        (datetime(2026, 3, 7, 9), "2026-03-07T09:00:00"),  # noqa: DTZ001
    ],
    ids=str,
)
def test_a_time_keeps_its_zone_its_fold_and_with_them_its_arithmetic(value: datetime, recorded: str) -> None:
    shape = Shape(datetime)

    text = shape.encode(value)
    back = shape.decode(text)

    assert text == f'"{recorded}"'
    assert (back, back.fold, back.utcoffset()) == (value, value.fold, value.utcoffset())
    assert isinstance(back.tzinfo, ZoneInfo) is isinstance(value.tzinfo, ZoneInfo)
    assert (back + timedelta(days=1)).isoformat() == (value + timedelta(days=1)).isoformat()


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime | None, BEFORE_THE_CLOCKS_CHANGE),
        (list[datetime], [BEFORE_THE_CLOCKS_CHANGE, datetime(2026, 3, 7, tzinfo=UTC)]),
        (Sequence[datetime], [BEFORE_THE_CLOCKS_CHANGE]),
        (tuple[datetime, str], (BEFORE_THE_CLOCKS_CHANGE, "a")),
        (Mapping[str, datetime], {"b": BEFORE_THE_CLOCKS_CHANGE, "a": in_new_york(2026, 1, 1)}),
        (OrderedDict[str, datetime], OrderedDict(a=BEFORE_THE_CLOCKS_CHANGE, b=in_new_york(2026, 1, 1))),
        (deque[datetime], deque([BEFORE_THE_CLOCKS_CHANGE])),
        (Pair, Pair(BEFORE_THE_CLOCKS_CHANGE, "a")),
        (Meeting, Meeting(startsAt=BEFORE_THE_CLOCKS_CHANGE)),
        (Slot, Slot(Meeting(startsAt=BEFORE_THE_CLOCKS_CHANGE), [None, BEFORE_THE_CLOCKS_CHANGE])),
        (
            Calendar,
            Calendar(slots={"a": Slot(Meeting(startsAt=BEFORE_THE_CLOCKS_CHANGE), [BEFORE_THE_CLOCKS_CHANGE])}),
        ),
        (RootModel[list[datetime]], RootModel[list[datetime]]([BEFORE_THE_CLOCKS_CHANGE])),
    ],
    ids=lambda it: getattr(it, "__name__", None) or str(it)[:40],
)
def test_a_time_keeps_its_zone_wherever_it_stands(annotation: Any, value: Any) -> None:
    shape = Shape(annotation)

    text = shape.encode(value)
    back = shape.decode(text)

    assert back == value
    assert text.count("[America/New_York]") == repr(value).count("key='America/New_York'")
    assert repr(back).count("key='America/New_York'") == repr(value).count("key='America/New_York'")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, TEXT),
        (list[str], [TEXT]),
        (dict[str, str], {"at": TEXT}),
        (dict[str, Any], {"at": TEXT}),
        (list[Any], [TEXT, "2026-99-99T99:99:99Z[Nowhere]"]),
        (object, TEXT),
        (Meeting, Meeting(startsAt=BEFORE_THE_CLOCKS_CHANGE, notes=TEXT)),
        (Pair, Pair(BEFORE_THE_CLOCKS_CHANGE, TEXT)),
        (Any, TEXT),
    ],
    ids=lambda it: getattr(it, "__name__", None) or str(it)[:40],
)
def test_a_text_that_looks_like_a_time_in_a_zone_is_a_text(annotation: Any, value: Any) -> None:
    shape = Shape(annotation)

    back = shape.decode(shape.encode(value))

    assert back == value
    assert repr(back) == repr(value)


class Wandering(tzinfo):
    """A zone of somebody else's, as dateutil has them."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=-4 if moment is not None and moment.month > 6 else -5)

    def dst(self, moment: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, moment: datetime | None) -> str:
        return "wandering"


def without_a_name() -> ZoneInfo:
    for folder in TZPATH:
        if (file := Path(folder) / "America/New_York").exists():
            with file.open("rb") as data:
                return ZoneInfo.from_file(data)
    pytest.skip("no zone files on this machine")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime, lambda: datetime(2026, 3, 7, 9, tzinfo=Wandering())),
        (datetime, lambda: datetime(2026, 3, 7, 9, tzinfo=without_a_name())),
        (time, lambda: time(9, tzinfo=NEW_YORK)),
        (datetime, lambda: datetime(2026, 11, 1, 1, 30, fold=1)),  # noqa: DTZ001
        (datetime, lambda: in_new_york(2026, 3, 8, 2, 30)),  # no clock in New York ever shows it
        (set[datetime], lambda: {BEFORE_THE_CLOCKS_CHANGE}),
        (dict[datetime, str], lambda: {BEFORE_THE_CLOCKS_CHANGE: "a"}),
        (set[tuple[int, datetime]], lambda: {(1, BEFORE_THE_CLOCKS_CHANGE)}),
    ],
    ids=["another library's", "without a name", "of a time", "naive fold", "in a gap", "in a set", "a key", "nested"],
)
def test_a_time_whose_meaning_cannot_be_kept_is_refused_and_not_changed(
    annotation: Any, value: Callable[[], Any]
) -> None:
    with pytest.raises(NotRecordable):
        Shape(annotation).encode(value())


def test_a_zone_that_this_machine_does_not_know_is_an_error_and_no_other_zone() -> None:
    with pytest.raises(Exception, match="Nowhere"):
        Shape(datetime).decode('"2026-03-07T09:00:00-05:00[America/Nowhere]"')


def test_a_value_without_an_annotation_is_what_json_makes_of_it() -> None:
    shape = Shape(Any)

    text = shape.encode((1, Colour.RED))

    assert (text, shape.decode(text)) == ('[1,"red"]', [1, "red"])


def test_a_text_with_a_lone_surrogate_is_recorded_whether_annotated_or_not() -> None:
    assert Shape(str).encode("cut \ud83d") == Shape(Any).encode("cut \ud83d") == '"cut \ufffd"'


@pytest.mark.parametrize("annotation", [dict[str, int], dict[str, Any], Mapping[str, int], dict, Any], ids=str)
def test_a_key_with_a_lone_surrogate_is_recorded_whether_annotated_or_not(annotation: Any) -> None:
    assert Shape(annotation).encode({"cut \ud83d": 1}) == '{"cut \ufffd":1}'


@pytest.mark.parametrize("annotation", [dict[str, Any], dict, Mapping[str, object], object, Any], ids=str)
@pytest.mark.parametrize(
    "item", [(1, (2,)), Colour.RED, Level.HIGH, Label("what it is"), OrderedDict(b=1, a=(2,)), [{"a": ("x", None)}]]
)
def test_where_nothing_is_annotated_inside_a_value_it_is_what_json_makes_of_it(annotation: Any, item: Any) -> None:
    shape, value = Shape(annotation), {"a": item}

    text = shape.encode(value)

    assert text == canonical(value)
    assert shape.decode(text) == decode(text)


@pytest.mark.parametrize("annotation", [dict[str, Any], dict, Mapping[str, object], object, Any], ids=str)
@pytest.mark.parametrize(
    "item", [Decimal("1.50"), b"raw", {1, 2}, datetime(2026, 7, 5, tzinfo=UTC), Size.SMALL, float("inf"), object()]
)
def test_what_json_cannot_say_is_refused_where_nothing_is_annotated_inside_a_value_too(
    annotation: Any, item: Any
) -> None:
    with pytest.raises(NotRecordable):
        Shape(annotation).encode({"a": item})


@pytest.mark.parametrize("value", [[1, 2], (1, 2)])
def test_whatever_fits_an_annotation_that_leaves_the_type_open_is_recorded(value: Any) -> None:
    shape = Shape(Sequence[int])

    assert [*shape.decode(shape.encode(value))] == [1, 2]


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        (int, "many", "str does not fit int"),
        (Receipt, {"amount": "1"}, "dict does not fit Receipt"),
        (list[int], 5, "int does not fit list"),
        (Decimal, Decimal("NaN"), "Decimal does not fit Decimal"),
        (float, float("nan"), "not JSON compliant"),
        (Annotated[int, PlainSerializer(lambda number: f"about {number}")], 5, "int does not fit"),
        (Any, object(), "object is not JSON"),
        (list[Any], in_lists(65), "nests deeper than 64"),
    ],
)
def test_a_value_that_its_annotation_cannot_give_back_is_refused(annotation: Any, value: Any, says: str) -> None:
    with pytest.raises(NotRecordable, match=says):
        Shape(annotation).encode(value)


def test_a_secret_comes_back_as_it_was_or_is_refused_and_is_never_altered() -> None:
    shape = Shape(SecretStr)
    try:
        text = shape.encode(SecretStr("hush"))
    except NotRecordable:
        return

    assert shape.decode(text) == SecretStr("hush")


class Refunded(BaseModel):
    amount: Decimal


class Charged(BaseModel):
    amount: Decimal


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Refunded | Charged, Charged(amount=Decimal(180))),
        (Size | int, Size.SMALL),
        (datetime | str, "2026-07-05T10:00:00Z"),
    ],
    ids=str,
)
def test_a_value_that_would_come_back_as_another_member_of_its_union_is_refused_and_not_changed(
    annotation: Any, value: Any
) -> None:
    shape = Shape(annotation)
    try:
        text = shape.encode(value)
    except NotRecordable:
        return

    back = shape.decode(text)
    assert type(back) is type(value)


def test_a_type_that_raises_anything_makes_a_value_unrecordable_and_no_more() -> None:
    class Moody(BaseModel):
        mood: str

        def __str__(self) -> str:
            raise LookupError("in no mood")

        __repr__ = __str__

    with pytest.raises(NotRecordable, match="Moody does not fit int"):
        Shape(int).encode(Moody(mood="bad"))


def test_the_schema_of_an_annotation_is_the_one_that_a_model_is_shown() -> None:
    assert Shape(list[int]).schema() == {"items": {"type": "integer"}, "type": "array"}
    assert Shape(Any).schema() == {}
