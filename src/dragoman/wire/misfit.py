"""Takes msgspec's error about a value apart: what is wrong, and in which field.

Where the value had to be one of a few, the refusal lists them, so that its reader need not look them up.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

_PLACE = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL)
_EXPECTED = re.compile(r"Expected `[^`]* \| [^`]*`")
_NAMED = re.compile(r"Object (?P<how>missing required|contains unknown) field `(?P<name>.*)`")


class Misfit(NamedTuple):
    """`field` is its dotted name, empty for the whole value."""

    what: str
    field: str
    is_missing: bool = False
    is_unknown: bool = False
    breaks_pattern: bool = False


def misfit(error: msgspec.ValidationError, base: str = "") -> Misfit:
    """`base` is where the value stands in the message."""
    place = _PLACE.fullmatch(str(error))
    assert place is not None  # the pattern matches any text
    what = _EXPECTED.sub(lambda found: found[0].replace(" | ", "` or `"), place["what"])
    named = _NAMED.fullmatch(what)
    if named is None:
        return Misfit(what, _joined(base, place["path"]), breaks_pattern="matching regex" in what)
    is_missing = named["how"] == "missing required"
    return Misfit(what, _joined(base, place["path"], named["name"]), is_missing, not is_missing)


def explain(
    error: msgspec.ValidationError, base: str = "", forms: Mapping[str, str] | str = ""
) -> tuple[str, str | None]:
    """What is wrong, as a refusal says it, and the dotted name of the field.

    `forms` says what a pattern asks for: by the last name in the field ("" for all others), or one text for all.
    """
    found = misfit(error, base)
    what = found.what
    if found.is_missing:
        what = "missing required field"
    elif found.breaks_pattern and forms:
        what = forms if isinstance(forms, str) else forms.get(found.field.rpartition(".")[2], forms.get("", what))
    return what, found.field or None


def _joined(*parts: str | None) -> str:
    return ".".join(part for part in parts if part)


_INVALID = re.compile(r"invalid enum value '.*'", re.IGNORECASE | re.DOTALL)


def advice(what: str, hint: Any, path: str = "") -> str:
    """What to do about msgspec's error about a value: the allowed choices, if it was none of them. `path` leads from
    `hint` to the value, by fields and dots. (msgspec says which error it is in its sentence only.)"""
    if not _INVALID.fullmatch(what):
        return ""
    for name in filter(None, path.split(".")):
        hint = _field(hint, name)
    found = choices(hint)
    return f"use one of: {', '.join(found)}" if found else ""


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
