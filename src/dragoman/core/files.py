"""A file that belongs to a task: what is known of it. Its bytes lie with the `Files` port, under a name of ours.

`name` is what its sender called it: for people to read, never a path.
"""

from __future__ import annotations

import re

import msgspec

FALLBACK_NAME = "file"
LONGEST_NAME = 255
_UNSHOWN = re.compile(r"[\x00-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class FileRef(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    id: str
    name: str
    mime_type: str
    size: int
    sha256: str


class KeptFile(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A file and who brought it: only they may make it part of a task."""

    ref: FileRef
    owner: str


def shown_name(name: str) -> str:
    """A client's file name without anything that could make it more than a name: the last part of a path, without
    control and direction characters."""
    last = _UNSHOWN.sub("", name).replace("\\", "/").rstrip("/").rpartition("/")[2].strip()
    return FALLBACK_NAME if last in ("", ".", "..") else last[:LONGEST_NAME]
