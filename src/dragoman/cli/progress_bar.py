"""How far a task is, on one line of a terminal that is written over until the task ends.

The line is repainted by a thread, so that the time goes on while nothing comes. Everything else that a command prints
meanwhile goes through `printing.note`, which erases the line in the same write.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from typing import TextIO

from dragoman.cli import printing

BEAT = 0.2
"""Seconds between two paintings."""
WIDTH = 24


def render(percent: float | None, words: str, seconds: float, columns: int) -> str:
    """The line: `  ████████████░░░░░░░░░░░░  50 %  step 2/4 configure  12 s`, no wider than the terminal."""
    parts = [words, printing.duration(seconds)]
    if percent is not None:
        share = min(100.0, max(0.0, percent)) / 100
        full = round(share * WIDTH)
        parts = [f"{'█' * full}{'░' * (WIDTH - full)}  {percent:3g} %", *parts]
    line = "  " + "  ".join(part for part in parts if part)
    return line if len(line) < columns else line[: max(0, columns - 2)] + "…"


def is_supported(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class ProgressBar:
    """Around the time that one waits. `ticking`: whether the time goes on by itself."""

    def __init__(self, stream: TextIO | None = None, *, ticking: bool = True) -> None:
        self._stream = stream or sys.stderr
        self._begun = time.monotonic()
        self._percent: float | None = None
        self._words = ""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True) if ticking else None

    def __enter__(self) -> ProgressBar:
        printing.painted.append(self)
        if self._ticker is not None:
            self._ticker.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._ticker is not None:
            self._ticker.join()
        self._write(printing.ERASE)
        printing.painted.remove(self)

    def update(self, percent: float | None, words: str) -> None:
        self._percent = self._percent if percent is None else percent
        self._words = words
        self.paint()

    def paint(self) -> None:
        columns = shutil.get_terminal_size().columns
        line = render(self._percent, self._words, time.monotonic() - self._begun, columns)
        self._write(printing.ERASE + line)

    def _tick(self) -> None:
        while not self._over.wait(BEAT):
            self.paint()

    def _write(self, text: str) -> None:
        with self._lock:
            self._stream.write(text)
            self._stream.flush()
