"""A hub that cannot start because the disk of its data directory is full: one sentence, and what to free."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from dragoman.cli.errors import CommandError, Exit

FULL = (errno.ENOSPC, errno.EDQUOT)
SQLITE_FULL, SQLITE_FAILED = "disk is full", "disk I/O error"
"""What the writer process says has no number: SQLite's words for it, and for what it meets on a disk where nothing of
its shared memory fits either."""
TOO_LITTLE = 1 << 20
LARGEST = 3
"""How many of the largest things in the directory are named."""


def is_full(error: BaseException, data: Path) -> bool:
    """Whether the error, or what it came from, is about space."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            return True
        cause = cause.__cause__ or cause.__context__
    if SQLITE_FULL in str(error):
        return True
    try:
        return SQLITE_FAILED in str(error) and shutil.disk_usage(_there(data)).free < TOO_LITTLE
    except OSError:
        return False


def disk_full(data: Path) -> CommandError:
    place = _there(data)
    held = sorted(((_bytes(one), one.name) for one in _in(data)), reverse=True)[:LARGEST]
    named = ", ".join(f"{name} {bytes / 1e6:,.1f} MB" for bytes, name in held if bytes >= 1e6)
    largest = f"; the largest in {data}: {named}" if named else ""
    return CommandError(
        Exit.NOT_ALLOWED,
        f"the disk of {data} is full, so the hub cannot start",
        next=f"free some space there (df -h {place}){largest}. Or move {data} to another disk, and name it with --data",
    )


def _there(data: Path) -> Path:
    place = data.absolute()
    while not place.exists():
        place = place.parent
    return place


def _in(data: Path) -> list[Path]:
    try:
        return list(data.iterdir())
    except OSError:
        return []


def _bytes(path: Path) -> int:
    """What it takes on the disk, with everything below it."""
    total = 0
    for folder, _, files in os.walk(path) if path.is_dir() else [(str(path.parent), [], [path.name])]:
        for file in files:
            try:
                total += os.lstat(os.path.join(folder, file)).st_blocks * 512
            except OSError:
                continue
    return total
