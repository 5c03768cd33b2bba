"""Backup of the database while the hub runs: complete, synced, and never over another file.

The writer copies a few pages between two units (`Copy`). A reader that copied all pages at once would keep the
write-ahead log from restarting for as long as that takes, and one that copied in steps would have to begin again after
every commit. The hub asks for the steps, and syncs and moves the finished copy in a thread (`finish`).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import apsw

from dragoman import durable

STEP = 256
"""Pages copied between two units: a megabyte."""
LONGEST_STEP = 64 * STEP
"""The most pages between two units, for a database that grows as fast as it is copied."""

NOT_WRITTEN: dict[str, tuple[int, str]] = {
    "FullError": (errno.ENOSPC, "no space is left there"),
    "CantOpenError": (errno.ENOENT, "it cannot be opened"),
    "ReadOnlyError": (errno.EROFS, "it is read-only"),
}
"""Errors of SQLite that concern the copy, and never a store that is only read."""


FAR = 1 << 32
"""Pages left before the first step, which finds the real number: more than any database has."""


class Copy:
    """A copy under way. It uses the writing connection, so later commits go into the copy, too."""

    def __init__(self, source: apsw.Connection, part: str) -> None:
        self._connection = apsw.Connection(part)
        try:
            self._connection.execute("PRAGMA journal_mode = OFF")  # an incomplete copy is deleted
            self._connection.execute("PRAGMA synchronous = OFF")  # `finish` syncs it, where no unit waits
            self._pages = self._connection.backup("main", source, "main")
        except BaseException:
            self._connection.close()
            raise
        self.left = FAR

    def step(self, pages: int) -> int:
        """Copy so many pages; gives how many are left, 0 when the copy is complete."""
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
    """The path at which the copy is made. Raises `FileExistsError` if the target exists."""
    if target.exists():
        raise FileExistsError(f"{target} exists already: name a file that does not")
    return target.with_name(f"{target.name}.{os.getpid()}.part")


def finish(part: Path, target: Path) -> None:
    """Make the copy one file, sync it and move it to its target."""
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
