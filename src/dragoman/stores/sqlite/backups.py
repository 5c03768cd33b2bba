"""A copy of the database while everything goes on: whole, on the disk, and never over another file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import apsw

from dragoman import durable

NOT_WRITTEN: dict[type[apsw.Error], tuple[int, str]] = {
    apsw.FullError: (errno.ENOSPC, "no space is left there"),
    apsw.CantOpenError: (errno.ENOENT, "it cannot be opened"),
    apsw.ReadOnlyError: (errno.EROFS, "it is read-only"),
}
"""What SQLite says of the copy, and never of a store that is only read."""


def backup(source: apsw.Connection, target: Path) -> None:
    """A consistent copy, on the disk when this returns. Commits go on meanwhile. Raises `OSError` if the copy cannot be
    written, and what SQLite says if the source cannot be read."""
    if target.exists():
        raise FileExistsError(f"{target} exists already: name a file that does not")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        copy = apsw.Connection(str(part))
        try:
            copy.execute("PRAGMA synchronous = FULL")
            with copy.backup("main", source, "main") as pages:
                pages.step(-1)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        finally:
            copy.close()
        os.link(part, target)  # unlike a rename, never over another file
        durable.sync_directory(target.parent)
    except tuple(NOT_WRITTEN) as error:
        raise OSError(*NOT_WRITTEN[type(error)]) from error
    finally:
        part.unlink(missing_ok=True)
