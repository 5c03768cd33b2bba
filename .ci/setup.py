"""The development environment, made step by step, each step named while it runs: `python3 .ci/setup.py .venv dev`.

`make` calls it when pyproject.toml or constraints.txt changed. It uses uv where that is installed, else pip, and needs
nothing but the standard library. It must start under any Python 3, to say which one is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque

OLDEST = (3, 11)
BEAT = 0.2
"""Seconds between two looks at how far it is, on a terminal."""
SELDOM = 5.0
"""The same where every look is a line of its own."""
KEPT = 30
"""So many last lines of a program that failed are shown."""

COLLECTED = re.compile(r"^(?:Collecting|Requirement already satisfied:) ([A-Za-z0-9._-]+)")
INSTALLING = re.compile(r"^Installing collected packages: (.*)")


class Step:
    """One line: what is done, how far it is, and how long it took. On a terminal it is written over."""

    def __init__(self, place: str, what: str) -> None:
        self._title = f"  {place}  {what}"
        self._begun = time.monotonic()
        self._said = 0.0
        self._terminal = sys.stderr.isatty()
        self._print(f"{self._title} …", "")

    def tell(self, far: str) -> None:
        now = time.monotonic()
        if now - self._said >= (BEAT if self._terminal else SELDOM):
            self._print(f"{self._title}: {far} ({now - self._begun:.0f} s)", "")

    def done(self, remark: str = "") -> None:
        took = time.monotonic() - self._begun
        self._print(f"{self._title}{': ' if remark else ''}{remark}  {took:.1f} s", "\n")

    def _print(self, line: str, end: str) -> None:
        self._said = time.monotonic()
        sys.stderr.write(f"\r\x1b[K{line}{end}" if self._terminal else line + "\n")
        sys.stderr.flush()


def main(venv: str, extras: str) -> int:
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"dragoman needs python3 >= 3.11, this is {found}; set PYTHON=…")
    python = os.path.join(venv, "bin", "python")
    uv = shutil.which("uv")
    sys.stderr.write(f"setting up {venv} for .[{extras}]\n")

    step = Step("1/3", "the environment, by {}".format("uv" if uv else "python -m venv"))
    if os.access(python, os.X_OK):
        step.done("is there")
    else:
        run([uv, "venv", "-q", "--python", sys.executable, venv] if uv else [sys.executable, "-m", "venv", venv], step)
        step.done("python " + ".".join(map(str, sys.version_info[:3])))

    what = ["-c", "constraints.txt", "-e", f".[{extras}]"]
    step = Step("2/3", "the packages, by {}".format("uv" if uv else "pip"))
    if uv:
        run([uv, "pip", "install", "--compile-bytecode", "--python", python, *what], step, Progress(venv))
    else:
        plain = ["--disable-pip-version-check", "--no-color", "--progress-bar", "off"]
        run([python, "-m", "pip", "install", *plain, *what], step, Progress(venv))
    step.done(f"{len(installed(venv))} installed")

    step = Step("3/3", "compiling src")  # for commands that are started where nothing may be written
    run([python, "-m", "compileall", "-q", "src"], step)
    step.done()
    return 0


class Progress:
    """How far an installer is: what it said it looks for, and what has arrived since."""

    def __init__(self, venv: str) -> None:
        self._venv = venv
        self._before = len(installed(venv))
        self._found = 0
        self._name = ""
        self._wanted = 0

    def hear(self, line: str) -> None:
        collected, installing = COLLECTED.match(line), INSTALLING.match(line)
        if collected:
            self._found += 1
            self._name = collected.group(1)
        elif installing:
            self._wanted = installing.group(1).count(",") + 1

    def __str__(self) -> str:
        arrived = len(installed(self._venv)) - self._before
        if self._wanted:
            return f"installing {min(arrived, self._wanted)} of {self._wanted}"
        if self._name:
            return f"found {self._found}: {self._name}"
        return f"installed {arrived}" if arrived else "looking"


def installed(venv: str) -> list[str]:
    """The packages that are there."""
    library = os.path.join(venv, "lib")
    places = [os.path.join(library, name, "site-packages") for name in _listed(library)]
    return [name for place in places for name in _listed(place) if name.endswith(".dist-info")]


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def run(command: list[str], step: Step, progress: Progress | None = None) -> None:
    """A program to its end; what it prints is shown if it fails, and then so do we."""
    last: deque[str] = deque(maxlen=KEPT)
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")

    def listen() -> None:
        assert program.stdout is not None
        for line in program.stdout:
            last.append(line)
            if progress is not None:
                progress.hear(line)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    while True:
        try:
            code = program.wait(BEAT)
            break
        except subprocess.TimeoutExpired:
            step.tell(str(progress or "running"))
    listener.join()
    if code:
        sys.exit("\n{}\n{} failed with {}".format("".join(last), " ".join(command), code))


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
