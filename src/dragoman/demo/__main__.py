"""One demo agent as a process: `python -m dragoman.demo PART ID [STATE_DIR]`.

The address and the token come by DRAGOMAN_URL and DRAGOMAN_TOKEN, never by arguments, which other users can read.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from dragoman import DragomanError
from dragoman.demo.roster import AGENTS, SCRIBE

BY_NAME = {part.name: part for part in AGENTS}


PATIENCE = 3.0
"""Seconds between asking ourselves to stop and not asking any more."""


def end_with_parent() -> None:
    """End with the hub, however that one ends: it holds the other end of our standard input and never writes to it.
    Unlike a death signal this works on every POSIX system, whichever thread started us."""
    threading.Thread(target=_watch, name="parent-watch", daemon=True).start()


def _watch() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(PATIENCE)
    os._exit(1)


def main(arguments: list[str]) -> int:
    if not 2 <= len(arguments) <= 3 or arguments[0] not in BY_NAME:
        sys.stderr.write(f"usage: python -m dragoman.demo {{{','.join(BY_NAME)}}} ID [STATE_DIR]\n")
        return 2
    part, id, *state = arguments
    # Beside a hub that logs on the same terminal; a broken link is the hub's stop more often than news.
    logging.basicConfig(level=logging.ERROR, format=f"%(asctime)s [demo {id}] %(levelname)s %(message)s")
    if part != SCRIBE.name:  # its standard input is its way to the hub, which sees to its end
        end_with_parent()
    try:
        importlib.import_module(f"dragoman.demo.{part}").run(id, Path(state[0]) if state else None)
    except DragomanError as error:
        logging.getLogger("dragoman.demo").error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
