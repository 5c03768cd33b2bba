"""The shape of what two nodes say to each other, as one digest.

A node of another version may know a command with a field more, or a kind of event that this one does not. The handshake
compares the digests, so that nobody has to remember that a row or a command is also a message of the stream. In a shape
are names, tags, the order of fields, their types and whether they may be missing; defaults and docstrings are not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect


def shape_of(kinds: Iterable[Any]) -> str:
    """A digest that two versions share if each decodes whatever the other encodes of these types."""
    lines: dict[str, str] = {}
    roots = [_name(inspect.type_info(kind), lines) for kind in kinds]
    text = "\n".join((*roots, *(f"{name} = {line}" for name, line in sorted(lines.items()))))
    return hashlib.sha256(text.encode()).hexdigest()


def _name(kind: inspect.Type, lines: dict[str, str]) -> str:
    """How this type is written; the structs and enums in it are written into `lines`, once."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            name = f"{cls.__module__.rpartition('.')[2]}.{cls.__qualname__}"
            if name not in lines:
                lines[name] = ""  # it may have itself in a field
                how = f"{kind.tag_field}={kind.tag!r} array={kind.array_like} strict={kind.forbid_unknown_fields}"
                parts = (f"{one.encode_name}{'' if one.required else '?'}: {_name(one.type, lines)}" for one in fields)
                lines[name] = f"{how} ({', '.join(parts)})"
            return name
        case inspect.EnumType(cls=cls):
            return f"{cls.__qualname__}{[member.value for member in cls]}"
        case inspect.LiteralType(values=values):
            return f"Literal{list(values)}"
        case inspect.Metadata(type=inner):
            return _name(inner, lines)
        case inspect.CustomType(cls=cls):
            return cls.__qualname__
        case _:
            made_of = ", ".join(_name(one, lines) for one in _parts(kind))
            return f"{type(kind).__name__}[{made_of}]"


def _parts(kind: msgspec.Struct) -> Iterator[inspect.Type]:
    """The types that this one is made of."""
    for field in kind.__struct_fields__:
        value = getattr(kind, field)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, inspect.Type):
                yield one
