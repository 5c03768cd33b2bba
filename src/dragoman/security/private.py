"""Files that only their owner may read: signing keys, master keys, the keys of certificates.

    what                 mode   otherwise
    -------------------  -----  -------------------------------------------------------
    a directory          0700   refused, never changed in silence: others may have read it already
    a file               0600   refused likewise; appears whole or not at all, and is on the disk on return
    owner                this user, or root

Every refusal names the file and the command that repairs it, and never the file's content.

The same secrets are in the memory of the hub and of its writer: `leave_no_dumps` keeps them out of core dumps.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from dragoman import durable

LARGEST = 1 << 20
PR_SET_DUMPABLE = 4


class Advised(Exception):
    """A problem and what to do about it, as two sentences."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(f"{problem}. {advice}" if advice else problem)
        self.problem = problem
        self.advice = advice


class PrivateFileError(Advised):
    """A secret cannot be kept or read there."""


def directory(path: Path) -> Path:
    """The directory, made if it is missing, and closed to others."""
    try:
        durable.make_directory(path)
        found = path.stat()
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be made: {error.strerror}", "Name another directory.") from None
    if not stat.S_ISDIR(found.st_mode):
        raise PrivateFileError(f"{path} is not a directory", "Name another one.")
    _owned(path, found, "700")
    return path


def read(path: Path) -> bytes:
    """The content of the file. Raises `FileNotFoundError` as it is: at the first start there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PrivateFileError(
            f"{path} cannot be read: {error.strerror}", "Run as its owner, or give it to the user that runs this."
        ) from None
    try:
        # Check the opened file, not the path: no other file can be swapped in between.
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PrivateFileError(f"{path} is not a plain file", "Name one.")
        _owned(path, found, "600")
        if found.st_size > LARGEST:
            raise PrivateFileError(f"{path} is too large for a key ({found.st_size:,} bytes)", "Is it the right file?")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(LARGEST)
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes, *, replace: bool) -> None:
    """Write the file, atomic and durable. Without `replace`, raises `FileExistsError` when another process was
    faster."""
    try:
        durable.write(path, data, replace=replace)
    except FileExistsError:
        raise
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be written: {error.strerror}", "Check space and permissions.") from None


def _owned(path: Path, found: os.stat_result, mode: str) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise PrivateFileError(f"{path} belongs to another user, who knows what is in it", "Use one of your own.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise PrivateFileError(
            f"{path} can be read by others (mode {stat.S_IMODE(found.st_mode):04o}), so it is no secret",
            f"Replace what is in it if others may have looked, then: chmod {mode} {path}",
        )


def leave_no_dumps() -> None:
    """Turn core dumps off for this process and its children. Other processes of the same user can no longer read its
    memory or attach to it either, until it executes a program."""
    import ctypes  # here, for commands and the SDK import this file, also where there is no `resource`
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
