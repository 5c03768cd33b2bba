"""Closed choices, for whoever got one wrong: a refusal that lists them needs no second look into a document."""

from __future__ import annotations

import enum
import re
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

_INVALID = re.compile(r"invalid enum value '.*'", re.IGNORECASE | re.DOTALL)


def in_words(what: str, hint: Any, path: str = "") -> str:
    """What msgspec said of a value, with the choices there are if it was none of them. `path` leads from `hint` to the
    value, by fields and dots."""
    if not _INVALID.fullmatch(what):
        return what
    for name in filter(None, path.split(".")):
        hint = _field(hint, name)
    found = choices(hint)
    return f"{what}; use one of: {', '.join(found)}" if found else what


def choices(hint: Any) -> list[str]:
    """An enum's values, or a Literal's; nothing where the type leaves more open."""
    if get_origin(hint) is Literal:
        return [str(one) for one in get_args(hint)]
    if isinstance(hint, enum.EnumMeta):
        members: list[enum.Enum] = list(hint)
        return [str(one.value) for one in members]
    return [one for part in _parts(hint) for one in choices(part)]


def _field(hint: Any, name: str) -> Any:
    for part in (hint, *_parts(hint)):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return get_type_hints(part, include_extras=True).get(name)
    return None


def _parts(hint: Any) -> tuple[Any, ...]:
    """What a union is made of, or what is annotated."""
    if get_origin(hint) is Annotated:
        return get_args(hint)[:1]
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
