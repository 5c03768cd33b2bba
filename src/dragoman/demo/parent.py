"""A child that ends with its parent, however that one ends.

The parent holds the other end of our standard input and never writes to it. When it stops, crashes or is killed, the
system closes that end, and we read the end of the file. Unlike a death signal this works on every POSIX system and does
not depend on which thread started us.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

PATIENCE = 3.0
"""Seconds between asking ourselves to stop and not asking any more."""


def end_with_parent() -> None:
    threading.Thread(target=_watch, name="parent-watch", daemon=True).start()


def _watch() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(PATIENCE)
    os._exit(1)
