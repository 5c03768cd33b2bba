"""A copy of the database while everything goes on: whole, on the disk, and never over another file.

The writer copies, a few pages between two units (`Copy`): a reader that copied all of them at once would keep the
write-ahead log from beginning anew for as long as that takes, and one in steps would have to begin again with every
commit. The hub asks for the steps, and puts the finished copy on the disk and into its place in a thread (`finish`).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import apsw

from dragoman import durable

STEP = 256
"""Pages between two units: a megabyte;"""
LONGEST_STEP = 64 * STEP
"""and where the database grows as fast as that, up to so many."""

NOT_WRITTEN: dict[str, tuple[int, str]] = {
    "FullError": (errno.ENOSPC, "no space is left there"),
    "CantOpenError": (errno.ENOENT, "it cannot be opened"),
    "ReadOnlyError": (errno.EROFS, "it is read-only"),
}
"""What SQLite says of the copy, and never of a store that is only read."""


FAR = 1 << 32
"""Pages that are left before the first step, which finds out: more than a database has."""


class Copy:
    """A copy under way, on the connection that writes: what it commits meanwhile goes into the copy, too."""

    def __init__(self, source: apsw.Connection, part: str) -> None:
        self._connection = apsw.Connection(part)
        try:
            self._connection.execute("PRAGMA journal_mode = OFF")  # half a copy is thrown away
            self._connection.execute("PRAGMA synchronous = OFF")  # `finish` syncs it, where no unit waits
            self._pages = self._connection.backup("main", source, "main")
        except BaseException:
            self._connection.close()
            raise
        self.left = FAR

    def step(self, pages: int) -> int:
        """How many pages are left; 0 when the copy is whole."""
        if self.left:
            done = self._pages.step(pages)
            self.left = 0 if done else max(1, self._pages.remaining)
            if done:
                self._pages.finish()
        return self.left

    def close(self) -> None:
        self._pages.close(True)
        self._connection.close()


def part_of(target: Path) -> Path:
    """Where the copy is made. Raises `FileExistsError` if it could not be put into its place."""
    if target.exists():
        raise FileExistsError(f"{target} exists already: name a file that does not")
    return target.with_name(f"{target.name}.{os.getpid()}.part")


def finish(part: Path, target: Path) -> None:
    """The copy is one file, in its place, and on the disk when this returns."""
    try:
        copy = apsw.Connection(str(part))
        try:
            copy.execute("PRAGMA synchronous = FULL")
            copy.execute("PRAGMA journal_mode = DELETE")  # without a log beside it
        finally:
            copy.close()
    except apsw.Error as error:
        if type(error).__name__ in NOT_WRITTEN:
            raise OSError(*NOT_WRITTEN[type(error).__name__]) from error
        raise
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.link(part, target)  # unlike a rename, never over another file
    durable.sync_directory(target.parent)


def discard(part: Path) -> None:
    for beside in ("", "-journal", "-wal", "-shm"):
        part.with_name(part.name + beside).unlink(missing_ok=True)
