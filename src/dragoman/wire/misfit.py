"""What msgspec says of a value that does not fit, taken apart: its words, and the field they are about."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

_PLACE = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?", re.DOTALL)
_NAMED = re.compile(r"Object (?P<how>missing required|contains unknown) field `(?P<name>.*)`")


class Misfit(NamedTuple):
    """`field` is its dotted name, empty for the whole value."""

    what: str
    field: str
    is_missing: bool = False
    is_unknown: bool = False


def misfit(error: msgspec.ValidationError, base: str = "") -> Misfit:
    """`base` is where the value stands in what was said."""
    place = _PLACE.fullmatch(str(error))
    assert place is not None  # the pattern matches any text
    what = place["what"]
    named = _NAMED.fullmatch(what)
    if named is None:
        return Misfit(what, _joined(base, place["path"]))
    is_missing = named["how"] == "missing required"
    return Misfit(what, _joined(base, place["path"], named["name"]), is_missing, not is_missing)


def explain(error: msgspec.ValidationError, base: str = "") -> tuple[str, str | None]:
    """In the words of our refusals: (what, dotted field name)."""
    found = misfit(error, base)
    return "missing required field" if found.is_missing else found.what, found.field or None


def _joined(*parts: str | None) -> str:
    return ".".join(part for part in parts if part)
