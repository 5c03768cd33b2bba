"""Processes, looked at from outside: who runs, who is a zombie, and programs to be children."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PYTHON = (sys.executable, "-I", "-S", "-c")


def stat(pid: int) -> tuple[str, int] | None:
    """State and parent of a process, or None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1])


def runs(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    found = stat(pid)
    return found is not None and found[0] not in "ZX"


def children_of(pid: int) -> list[int]:
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [number for number in numbers if (found := stat(number)) is not None and found[1] == pid]


def zombies_of(pid: int) -> list[int]:
    return [child for child in children_of(pid) if (found := stat(child)) is not None and found[0] == "Z"]


def program(*lines: str) -> tuple[str, ...]:
    """A Python program as a command: a bare interpreter, quick to start."""
    return (*PYTHON, "\n".join(lines))


DAEMON = """
import os, sys, time
out = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(out + '.part', 'w') as f:
            f.write(str(os.getpid()))
        os.rename(out + '.part', out)
        time.sleep(600)
    os._exit(0)
os.wait()
"""
"""Leaves behind a process in a session of its own, whose number it writes into a file."""
