"""Names in PostgreSQL, whose texts cannot hold the character NUL, though names chosen by clients may.

NUL becomes two characters 1, and the character 1 becomes 1 and 2. That can be undone, and names keep their order and
their beginnings: so indexes, pages and searches by a prefix work on the written form. Bodies need none of this: JSON
writes NUL as an escape of six characters.
"""

from __future__ import annotations

from typing import TypeVar, overload

S = TypeVar("S", bound=str)


@overload
def written(name: S) -> S: ...
@overload
def written(name: None) -> None: ...
def written(name: str | None) -> str | None:
    if name is None or ("\x00" not in name and "\x01" not in name):
        return name
    return name.replace("\x01", "\x01\x02").replace("\x00", "\x01\x01")


def read(text: str) -> str:
    if "\x01" not in text:
        return text
    return text.replace("\x01\x01", "\x00").replace("\x01\x02", "\x01")
