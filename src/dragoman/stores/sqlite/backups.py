"""A copy of the database while everything goes on: whole, on the disk, and never over another file."""

from __future__ import annotations

import os
from pathlib import Path

import apsw


def backup(source: apsw.Connection, target: Path) -> None:
    """A consistent copy, on the disk when this returns. Commits go on meanwhile."""
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
        directory = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    finally:
        part.unlink(missing_ok=True)
