"""A state as bytes and back: what a snapshot of a run holds.

Rule 1: an image stands for a fold of the journal, and is worth nothing where that fold would be another one today:
``fold_name`` names the code of it, and an image of another name is not read.
Rule 2: what is read back is equal to what the fold gives, to the type of each field.
"""

import hashlib
from dataclasses import fields
from functools import cache
from inspect import getsource
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

import agent_es.events
import agent_es.state
import agent_es.values
from agent_es.state import RunState, Signal, Steps, parts_of

_KEPT = tuple(f.name for f in fields(RunState) if f.name not in ("resumed", "steps", "signals"))
"""What an image holds as it is."""


@cache
def fold_name() -> str | None:
    """Return the name of this code's fold: a digest of what it is made of; None where that cannot be looked at."""
    try:
        source = "\0".join(map(getsource, (agent_es.events, agent_es.state, agent_es.values)))
    except OSError:  # a program that was packed without its sources
        return None
    return hashlib.sha256(source.encode()).hexdigest()[:32]


@cache
def _image() -> type[BaseModel]:
    """Return how an image is written and read: in the shapes that the fold gives, and no others."""
    kept: dict[str, Any] = {name: (hint, ...) for name, hint in get_type_hints(RunState).items() if name in _KEPT}
    parts = get_type_hints(parts_of)["return"]
    config = ConfigDict(strict=True, extra="forbid")
    return create_model("Image", __config__=config, signals=(tuple[Signal, ...], ...), parts=(parts, ...), **kept)


def image_of(state: RunState) -> bytes:
    """Return a state as bytes."""
    kept = {name: getattr(state, name) for name in _KEPT}
    image = _image().model_construct(**kept, signals=state.signals, parts=parts_of(state.steps))
    return image.__pydantic_serializer__.to_json(image)


def state_of(image: bytes) -> RunState:
    """Return the state that an image was made of; raise ``ValidationError`` where it is none."""
    found = dict(_image().model_validate_json(image))
    past, current = found.pop("parts")
    return RunState(**found, steps=Steps(past, len(past), current))
