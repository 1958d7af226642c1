"""What of an event may be left out, because it is not stored where it is None."""

from types import NoneType
from typing import get_args

import pytest

from agent_es.events import REGISTRY, Event


@pytest.mark.parametrize("cls", REGISTRY.values(), ids=lambda cls: cls.__name__)
def test_what_may_be_none_may_be_left_out_as_it_is_where_an_event_is_stored(cls: type[Event]) -> None:
    may_be_none = [field for field in cls.model_fields.values() if NoneType in get_args(field.annotation)]

    assert not [field for field in may_be_none if field.is_required()]
