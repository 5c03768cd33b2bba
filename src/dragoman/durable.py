"""Small files that a power cut leaves whole: the one way in which anything of ours writes one.

A file is written under another name, synced, and moved into its place; then its directory is synced. So a reader
of it finds what was there before or all that was written, never an empty file and never a part of one. A new
directory is synced into the directory above it, or it would be gone with everything in it.

Not for files that grow or are changed in place: the database, its ring of direct messages and the logs of children have
their own rules. Everything that does input and output may import this, and it imports nothing of ours.
"""

from __future__ import annotations

import os
from pathlib import Path


def write(
    path: Path,
    *pieces: bytes | bytearray,
    replace: bool = True,
    draft: Path | None = None,
    modified_ns: int | None = None,
) -> None:
    """On the disk, whole, when this returns, and for its owner alone. Without `replace`, raises `FileExistsError` where
    a file is there already; any `OSError` leaves what was there. `draft` is the name it has meanwhile."""
    draft = draft or path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as out:
            os.fchmod(out.fileno(), 0o600)  # whatever the umask says
            for piece in pieces:
                out.write(piece)
            out.flush()
            if modified_ns is not None:
                os.utime(out.fileno(), ns=(modified_ns, modified_ns))
            os.fsync(out.fileno())
        if replace:
            os.replace(draft, path)
        else:
            os.link(draft, path)  # unlike a rename, never over another file
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)


def make_directory(path: Path, mode: int = 0o700) -> None:
    """Make the directory where it is missing, and those above it; what was made is on the disk when this returns."""
    missing = []
    above = path
    while not above.exists():
        missing.append(above)
        above = above.parent
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_directory(made.parent)


def sync_directory(path: Path) -> None:
    """The names in the directory are on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
