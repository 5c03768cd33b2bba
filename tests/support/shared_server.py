"""A server that the tests of one run share, though they run in several processes: the first that needs it starts it,
and it ends when the last one that uses it is gone, also by a kill."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir

_users: list[int] = []
"""The locks that this process holds as a user of shared servers, while it runs."""


@contextmanager
def starting(kind: str) -> Iterator[Path]:
    """The directory of this run's server, which this process uses from now on. While the block runs, no other process
    is in it: it starts the server if none has."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}")[:12]
    directory = Path(gettempdir()) / f"dragoman-{kind}-{os.getuid()}-{run}"
    directory.mkdir(exist_ok=True)
    lock = os.open(directory.with_suffix(".users"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    _users.append(lock)
    alone = os.open(directory.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(alone, fcntl.LOCK_EX)
    try:
        yield directory
    finally:
        os.close(alone)


def end_after_the_last_user(directory: Path, end: Callable[[], None]) -> None:
    """Go to the background, and end the server there when no process uses it any more. Returns in the foreground."""
    if os.fork():
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    users = os.open(directory.with_suffix(".users"), os.O_RDWR)
    while True:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.5)
    end()
    for suffix in (".users", ".lock"):
        directory.with_suffix(suffix).unlink(missing_ok=True)
    os._exit(0)
