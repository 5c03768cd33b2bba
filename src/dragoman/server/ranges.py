"""A part of a file (RFC 9110, 14): `Range`, `If-Range`, 206 and 416. For all doors that give files; pure.

    bytes=0-99     the first hundred bytes          bytes=-100     the last hundred
    bytes=100-     from there to the end            bytes=0-,5-9   several: the whole file is given instead

What is no range of ours is ignored, as the document wants, and the whole file is given.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dragoman.messages.files import FileRef

_RANGE = re.compile(r"bytes\s*=\s*(\d*)\s*-\s*(\d*)", re.IGNORECASE)
LONGEST = 20
"""Digits; no file has more bytes."""


class Part(NamedTuple):
    """What is answered: the status, the bytes from `start` to before `end`, and the headers that say so."""

    status: int
    start: int
    end: int
    headers: tuple[tuple[str, str], ...]


def etag(ref: FileRef) -> str:
    return f'"{ref.sha256}"'


def part_of(ref: FileRef, size: int, wanted: str | None, if_range: str | None) -> Part:
    """The part of a file that a request wants: of `size` bytes, all of it, or none (416)."""
    always = (("accept-ranges", "bytes"), ("etag", etag(ref)))
    whole = Part(200, 0, size, always)
    found = None if wanted is None else _RANGE.fullmatch(wanted.strip())
    if found is None or (if_range is not None and if_range.strip() != etag(ref)):
        return whole
    first, last = found[1][:LONGEST], found[2][:LONGEST]
    if first:
        start, end = int(first), min(size, int(last) + 1 if last else size)
        if last and int(last) < int(first):
            return whole  # no range at all
    elif last:
        start, end = max(0, size - int(last)), size
    else:
        return whole
    if start >= size:
        return Part(416, 0, 0, (*always, ("content-range", f"bytes */{size}")))
    return Part(206, start, end, (*always, ("content-range", f"bytes {start}-{end - 1}/{size}")))
