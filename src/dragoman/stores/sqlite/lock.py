"""One hub per data directory: an flock on `<directory>/lock`.

The writer process inherits the descriptor, and an flock belongs to the open file, not to a process: an orphaned
writer that still finishes a commit after its hub was killed keeps the next hub out until it is done.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

from dragoman.stores.sqlite.errors import StoreInUse

ORPHAN_PATIENCE = 5.0
"""Seconds to wait for the writer of a hub that is dead itself."""


async def acquire(directory: Path) -> int:
    """The locked descriptor; `StoreInUse` if a living hub has it."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = asyncio.get_running_loop().time() + ORPHAN_PATIENCE
        while not _try(descriptor):
            holder = _holder(descriptor)
            orphaned = holder is not None and not _alive(holder)
            if not orphaned or asyncio.get_running_loop().time() > deadline:
                raise StoreInUse(str(directory), holder)
            await asyncio.sleep(0.01)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
