"""Values as the journal holds them: one canonical JSON text each.

Rule 1: what is read back is what everybody sees, on the first run too.
Rule 2: a text is valid Unicode: a lone surrogate becomes U+FFFD, a split pair becomes its character.
Rule 3: nothing that was stored chooses a Python type; a type comes from an annotation of today's code.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, cast, get_origin
from zoneinfo import ZoneInfo

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from agent_es.errors import NotRecordable

MAX_DEPTH = 64
"""How deeply a recorded value may nest; deeper ones save and then cannot be loaded from a deeper stack."""

_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


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
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    except ValueError as error:
        raise NotRecordable(f"JSON cannot say it: {error}") from None
    valid = valid_unicode(text)
    return valid if valid == text else canonical(json.loads(valid, object_pairs_hook=_no_two_alike))


def _no_two_alike(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise NotRecordable("two keys differ only in halves of characters")
    return dict(pairs)


def decode(text: str) -> Any:
    """Return the value of a canonical JSON text."""
    return json.loads(text)


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


def _check(value: Any, depth: int) -> None:
    if value is None or isinstance(value, str | int | float):
        return
    if not isinstance(value, dict | list | tuple):
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
    if isinstance(plain, list) and isinstance(value, list | tuple):
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


def _with_times(plain: Any) -> Any:
    """Return JSON data with the texts that name a zone as the times that they stand for."""
    if isinstance(plain, dict):
        return {name: _with_times(item) for name, item in plain.items()}
    if isinstance(plain, list):
        return [_with_times(item) for item in plain]
    if isinstance(plain, str) and (told := _ZONED.fullmatch(f'"{plain}"')):
        return datetime.fromisoformat(told[1]).astimezone(ZoneInfo(told[2]))
    return plain


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
            return TypeAdapter(self.annotation, config=_CONFIG)
        except PydanticUserError:  # a model, dataclass or TypedDict brings its own configuration
            return TypeAdapter(self.annotation)

    def build(self) -> None:
        """Raise now, and not at the first value, where the annotation has no JSON form."""
        _ = self._adapter

    def encode(self, value: Any) -> str:
        """Return the canonical JSON text of a value; raise ``NotRecordable`` where it does not read back as it is."""
        if self._adapter is None:
            return canonical(value)
        try:
            text = self._text_of(self._adapter.validate_python(value))
            again = self._text_of(self.decode(text))
        except NotRecordable:
            raise
        except Exception as error:  # user types raise what they like
            why = what_is_wrong(error) if isinstance(error, ValidationError) else str(error)
            raise NotRecordable(f"{_name(value)} does not fit {self}: {bounded(why, 500)}") from None
        if again != text:
            raise NotRecordable(f"{_name(value)} reads back as something else: {bounded(again, 200)}")
        return text

    def decode(self, text: str) -> Any:
        """Return the value of the text, as annotated; raises what the annotation's type raises."""
        if self._adapter is None:
            return decode(text)
        if _ZONED.search(text):  # JSON knows no zones: hand over the times as times
            return self._adapter.validate_python(_with_times(decode(text)))
        return self._adapter.validate_json(text)

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


def what_is_wrong(error: ValidationError) -> str:
    """Return what a validation found, in one line."""
    return "; ".join(
        f"{'.'.join(map(str, e['loc'])) or 'value'}: {e['msg']}" for e in error.errors(include_url=False)
    )
