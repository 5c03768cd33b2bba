"""What is known of a file that belongs to a task. The `Files` port keeps its bytes, under an id of the hub.

`name` is the sender's name for it: for people to read, never a path.
"""

from __future__ import annotations

import mimetypes
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


class _Attachment(msgspec.Struct):
    """A file as a hub names it: some leave out its size."""

    id: str
    name: str
    mime_type: str
    sha256: str
    size: int = 0


def attachments_in(given: object) -> tuple[FileRef, ...]:
    """The files that the hub names beside work; none if a caller uses the field for something else."""
    try:
        return tuple(
            FileRef(id=one.id, name=one.name, mime_type=one.mime_type, size=one.size, sha256=one.sha256)
            for one in msgspec.convert(given, tuple[_Attachment, ...])
        )
    except msgspec.ValidationError:
        return ()


class KeptFile(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A file and its owner: only the owner may attach it to a task."""

    ref: FileRef
    owner: str


def shown_name(name: str) -> str:
    """A client's file name without anything that could make it more than a name: the last part of a path, without
    control and direction characters."""
    last = _UNSHOWN.sub("", name).replace("\\", "/").rstrip("/").rpartition("/")[2].strip()
    return FALLBACK_NAME if last in ("", ".", "..") else last[:LONGEST_NAME]


BYTES = "application/octet-stream"
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
"""What HTTP clients declare when they do not know the type; no file has it."""
_KNOWN = mimetypes.MimeTypes(filenames=())
"""The types of this library alone: the same upload must not become another file on another machine."""
_MORE = {
    ".csv": "text/csv", ".jsonl": "application/jsonl", ".log": "text/plain", ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet", ".patch": "text/x-diff", ".diff": "text/x-diff",
    ".toml": "application/toml", ".webp": "image/webp", ".yaml": "application/yaml", ".yml": "application/yaml",
}  # fmt: skip


def type_of(name: str, declared: str) -> str:
    """The media type of a file: the one that its sender declared, or else the one that its name implies."""
    if declared.isprintable() and 0 < len(declared) <= 127 and not declared.lower().startswith(FORMS):
        return declared
    ending = "." + name.lower().rpartition(".")[2]
    guessed, packed = _KNOWN.guess_type(shown_name(name))
    if packed is not None:
        return f"application/{packed}" if packed in ("gzip", "zstd") else BYTES
    return _MORE.get(ending) or guessed or BYTES
