"""Values as the journal holds them: one canonical JSON text each.

Rule 1: what is read back is what everybody sees, on the first run too.
Rule 2: a text is valid Unicode: a lone surrogate becomes U+FFFD, a split pair becomes its character.
Rule 3: nothing that was stored chooses a Python type; a type comes from an annotation of today's code.
"""

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import datetime, time, timezone
from enum import Enum
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import TzInfo

from agent_es.errors import NotRecordable

MAX_DEPTH = 64
"""How deeply a recorded value may nest; deeper ones save and then cannot be loaded from a deeper stack."""

BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


def canonical(value: Any) -> str:
    """Return the JSON text of a value: sorted keys, no spaces, valid Unicode.

    Tuples are written as lists, and subclasses of ``str`` and ``int`` as what they extend.
    Raises ``NotRecordable`` for what JSON cannot say: other types, NaN, keys that are not text,
    a nesting deeper than ``MAX_DEPTH``.

    >>> canonical({"b": 1, "a": ("x", None)})
    '{"a":["x",null],"b":1}'
    """
    _check(value, MAX_DEPTH)
    try:
        text = _to_json(value)
    except ValueError as error:
        raise NotRecordable(f"JSON cannot say it: {error}") from None
    valid = valid_unicode(text)
    return valid if valid == text else canonical(json.loads(valid, object_pairs_hook=_no_two_alike))


_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode


def _no_two_alike(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise NotRecordable("two keys differ only in halves of characters")
    return dict(pairs)


def decode(text: str) -> Any:
    """Return the value of a canonical JSON text."""
    return json.loads(text)


def parsed(text: str) -> Any:
    """Return what a JSON text says that a model wrote; raise ``NotRecordable`` for what could be read in two ways.

    >>> parsed('{"amount": 180}')
    {'amount': 180}
    """
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, NotRecordable):
            raise
        raise NotRecordable(f"it is no JSON: {error}") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise NotRecordable(f"{bounded(repr(twice), 100)} is there twice")
    return dict(pairs)


def _refuse_constant(name: str) -> Any:
    raise NotRecordable(f"{name} is no number")


def covers(text: str, other: str) -> bool:
    """Whether one JSON text leaves out no field of another one; it may have more, and a field another name.

    >>> covers('{"a":1,"b":2}', '{"a":1}'), covers('{"b":1}', '{"a":1}'), covers('{"b":2}', '{"a":1}')
    (True, True, False)
    """
    return _covers(decode(text), decode(other))


def _covers(value: Any, other: Any) -> bool:
    if isinstance(value, dict) and isinstance(other, dict):
        new = [item for name, item in value.items() if name not in other]
        return all(_covers(value[name], item) if name in value else _takes(new, item) for name, item in other.items())
    if isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        return all(map(_covers, value, other))
    return True


def _takes(new: list[Any], item: Any) -> bool:
    """Take what stands for an item out of the fields that are new: a field may have another name now."""
    found = next((at for at, candidate in enumerate(new) if str(candidate) == str(item)), None)
    if found is not None:
        del new[found]
    return found is not None


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def valid_unicode(text: str) -> str:
    r"""Return the text with split surrogate pairs joined and lone ones replaced.

    >>> valid_unicode("ok \ud83d") == "ok \ufffd", valid_unicode("\ud83d\ude00") == "\U0001f600"
    (True, True)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def bounded(text: str, limit: int = 2_000) -> str:
    """Return the text, cut to a number of characters and made safe to store."""
    text = valid_unicode(text)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


_ATOMS, _NESTS = (str, int, float), (dict, list, tuple)  # a tuple of types is looked through twice as fast as a union


def _check(value: Any, depth: int) -> None:
    if value is None or isinstance(value, _ATOMS):
        return
    if not isinstance(value, _NESTS):
        raise NotRecordable(f"{_name(value)} is not JSON")
    if depth == 0:
        raise NotRecordable(f"it nests deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise NotRecordable(f"a key of type {_name(key)} is not JSON; keys are text")
            _check(item, depth - 1)
    else:
        for item in value:
            _check(item, depth - 1)


def _name(value: Any) -> str:
    return type(value).__qualname__


_ZONED = re.compile(r'"(\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d))\[([A-Za-z0-9_+/-]+)\]"')


def _with_zones(plain: Any, value: Any) -> Any:
    """Return JSON data with the zones of the values that it was made from, and its sets in an order of their own."""
    if isinstance(plain, str) and _zone(value) is not None:
        return f"{value.isoformat()}[{_zone(value)}]"
    if isinstance(plain, dict) and isinstance(value, dict):
        _refuse_zones(value)
        return {name: _with_zones(item, one) for (name, item), one in zip(plain.items(), value.values(), strict=True)}
    if isinstance(plain, list) and isinstance(value, set | frozenset):
        _refuse_zones(value)
        return sorted(plain, key=canonical)
    if isinstance(plain, list) and isinstance(value, list | tuple | deque):
        return [_with_zones(item, one) for item, one in zip(plain, value, strict=True)]
    return plain


def _zone(value: Any) -> str | None:
    """Return the name of a time's zone; raise ``NotRecordable`` for a time whose meaning JSON would lose."""
    if not isinstance(value, datetime):
        return None
    if isinstance(value.tzinfo, ZoneInfo):
        return value.tzinfo.key
    if value.tzinfo is None and value.fold:
        raise NotRecordable("a time without a zone that is the second of its hour cannot be told from the first")
    return None


def _refuse_zones(members: Iterable[Any]) -> None:
    for member in members:
        if isinstance(member, tuple):
            _refuse_zones(member)
        elif _zone(member) is not None:
            raise NotRecordable("a time in a zone can be no key and no member of a set; use UTC there")


def _with_times(plain: Any, texts: Container[tuple[Any, ...]], at: tuple[Any, ...] = ()) -> Any:
    """Return JSON data with texts that name a zone as the times that they stand for, but for those at ``texts``."""
    if isinstance(plain, dict):
        return {name: _with_times(item, texts, (*at, name)) for name, item in plain.items()}
    if isinstance(plain, list):
        return [_with_times(item, texts, (*at, place)) for place, item in enumerate(plain)]
    if isinstance(plain, str) and at not in texts and (told := _ZONED.fullmatch(f'"{plain}"')):
        return datetime.fromisoformat(told[1]).astimezone(ZoneInfo(told[2]))
    return plain


def is_same(back: Any, value: Any) -> bool:
    """Whether a value that was read back is the one that was written: of the same types, all the way down.

    A text may have had its halves of characters replaced; a time keeps its instant, its offset and its zone.
    """
    if isinstance(value, datetime):
        return isinstance(back, datetime) and _told(back) == _told(value)
    if back is value:
        return True
    as_json = _JSON.get(type(back), ())  # what no annotation says more of
    if type(back) is not type(value) and (isinstance(value, bool) or not isinstance(value, as_json)):
        return False
    return _SAME.get(_kind(value) or object, _is_equal)(back, value)


def _is_same_text(back: str, value: str) -> bool:
    return back == valid_unicode(value)


def _is_same_mapping(back: Mapping[Any, Any], value: Mapping[Any, Any]) -> bool:
    kept = {_whole(key): item for key, item in value.items()}
    return back.keys() == kept.keys() and all(is_same(back[key], kept[key]) for key in kept)


def _is_same_sequence(back: Sequence[Any], value: Sequence[Any]) -> bool:
    return len(back) == len(value) and all(map(is_same, back, value))


def _is_same_set(back: AbstractSet[Any], value: AbstractSet[Any]) -> bool:
    return back == {_whole(item) for item in value} and {*map(type, back)} == {*map(type, value)}


def _is_same_model(back: BaseModel, value: BaseModel) -> bool:
    return is_same([vars(back), back.model_extra], [vars(value), value.model_extra])


def _is_equal(back: Any, value: Any) -> bool:
    """Compare as the type does; a type that compares by identity, by what its objects hold."""
    if is_dataclass(value):
        return all(is_same(getattr(back, f.name), getattr(value, f.name)) for f in fields(value))
    if isinstance(value, time) and (back.tzinfo is None) != (value.tzinfo is None):
        return False
    if "__eq__" not in {name for base in type(value).__mro__[:-1] for name in vars(base)}:
        return bool(getattr(back, "__dict__", None) == getattr(value, "__dict__", None))
    return bool(back == value) or bool(back != back and value != value)  # noqa: PLR0124  # as NaN is not


_SAME: Mapping[type, Callable[[Any, Any], bool]] = {
    str: _is_same_text,
    Mapping: _is_same_mapping,
    Sequence: _is_same_sequence,
    AbstractSet: _is_same_set,
    BaseModel: _is_same_model,
}


_JSON: Mapping[type, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    float: (float,),
    list: (list, tuple),
    dict: (dict,),
}


def _kind(value: Any) -> type | None:
    """Return which of the kinds in ``_SAME`` a value is of."""
    if isinstance(value, bytes | bytearray | Enum):
        return None
    return next((kind for kind in _SAME if isinstance(value, kind)), None)


def _repaired(value: Any) -> Any:
    """Return plain JSON data with valid Unicode in it: pydantic would write three characters for a half of a key."""
    if type(value) is dict:
        return {_whole(key): _repaired(item) for key, item in value.items()}
    if type(value) is list:
        return [_repaired(item) for item in value]
    return valid_unicode(value) if type(value) is str else value


def _whole(item: Any) -> Any:
    return valid_unicode(item) if isinstance(item, str) else item


def _told(at: datetime) -> tuple[Any, ...]:
    """Return everything that a time says."""
    zone = at.tzinfo.key if isinstance(at.tzinfo, ZoneInfo) else None
    is_nameless = isinstance(at.tzinfo, ZoneInfo) and zone is None
    is_strange = not (at.tzinfo is None or isinstance(at.tzinfo, ZoneInfo | timezone | TzInfo))
    return at.replace(tzinfo=None, fold=0), at.utcoffset(), zone, is_nameless, is_strange


def _is_of_json(annotation: Any) -> bool:
    """Whether an annotation names types of JSON alone, with nothing of a user's in it."""
    inner = get_args(annotation)
    if get_origin(annotation) in (list, Union, UnionType):
        return all(map(_is_of_json, inner))
    if get_origin(annotation) is dict:
        return inner[0] is str and _is_of_json(inner[1])
    return any(annotation is known for known in (*_PLAIN, int, dict, list, Any))


def _is_plain(value: Any) -> bool:
    """Whether a value is of the very types that JSON data is read back as, all the way down."""
    kind = type(value)
    if kind is dict:
        return {*map(type, value)} <= {str} and all(map(_is_plain, value.values()))
    if kind is list:
        return all(map(_is_plain, value))
    return kind in _PLAIN or (kind is int and -_WIDE < value < _WIDE)


_PLAIN = (str, float, bool, NoneType)
_WIDE = 1 << 63
"""From where on an integer is long: what reads JSON may bound it."""


class Shape:
    """How the values of one annotation are written to JSON and read back."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation

    @cached_property
    def _adapter(self) -> TypeAdapter[Any] | None:
        """None where there is no annotation: then a value is what JSON makes of it."""
        if self.annotation is Any:
            return None
        try:
            return TypeAdapter(self.annotation, config=BASE64)
        except PydanticUserError:  # a model, dataclass or TypedDict brings its own configuration
            return TypeAdapter(self.annotation)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether it asks for nothing but JSON data: then what fits it reads back as it is, and need not be tried."""
        return _is_of_json(self.annotation)

    def build(self) -> None:
        """Raise now, and not at the first value, where the annotation has no JSON form."""
        _ = self._adapter

    def encode(self, value: Any) -> str:
        """Return the canonical JSON text of a value; raise ``NotRecordable`` where it does not read back as it is."""
        if self._adapter is None:
            return canonical(value)
        try:
            fitting = self._adapter.validate_python(_repaired(value))
            if self._is_plain and _is_plain(fitting):
                return canonical(fitting)
            text = self._text_of(fitting)
            back = self.decode(text)
        except NotRecordable:
            raise
        except Exception as error:  # user types raise what they like
            why = what_is_wrong(error) if isinstance(error, ValidationError) else str(error)
            raise NotRecordable(f"{_name(value)} does not fit {self}: {bounded(why, 500)}") from None
        if not is_same(back, fitting):
            raise NotRecordable(f"{_name(value)} would read back as something else: {bounded(repr(back), 200)}")
        return text

    def decode(self, text: str, *, strictly: bool = False) -> Any:
        """Return the value of the text, as annotated; raises what the annotation's type raises.

        ``strictly``, a text is no number, and a number no truth.
        """
        if self._adapter is None:
            return decode(text)
        if not _ZONED.search(text):
            return self._adapter.validate_json(text, strict=strictly or None)
        try:
            return self._adapter.validate_json(text)  # it may be a text that only looks like a time
        except ValidationError:
            return self._with_zones(decode(text))

    def _with_zones(self, plain: Any) -> Any:
        """Read texts that name a zone as times, but for those that the annotation wants as text."""
        assert self._adapter is not None  # noqa: S101  # for the type checker
        texts: set[tuple[Any, ...]] = set()
        while True:
            try:
                return self._adapter.validate_python(_with_times(plain, texts))
            except ValidationError as error:
                more = {e["loc"] for e in error.errors(include_url=False) if e["type"] == "string_type"} - texts
                if not more:
                    raise
                texts |= more

    def _text_of(self, value: Any) -> str:
        """Write a value, and its times with the names of their zones, as RFC 9557 does."""
        assert self._adapter is not None  # noqa: S101  # for the type checker
        plain = self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True)
        return canonical(_with_zones(plain, self._adapter.dump_python(value, by_alias=True, round_trip=True)))

    def schema(self) -> Mapping[str, Any]:
        """Return the JSON schema of the annotation."""
        return {} if self._adapter is None else cast(Mapping[str, Any], self._adapter.json_schema())

    def __str__(self) -> str:
        is_plain = get_origin(self.annotation) is None and isinstance(self.annotation, type)
        return self.annotation.__qualname__ if is_plain else str(self.annotation)


def what_is_wrong(error: ValidationError, *, within: int = 0) -> str:
    """Return what a validation found, in one line; ``within`` parts of each place are left out."""
    return "; ".join(
        f"{'.'.join(map(str, e['loc'][within:])) or 'value'}: {e['msg']}" for e in error.errors(include_url=False)
    )
