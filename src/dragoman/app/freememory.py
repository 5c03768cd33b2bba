"""How many bytes of memory this process may still get: what is nearest of three limits.

    a limit of the process (`ulimit -v`, RLIMIT_AS)     its address space counts
    a limit of its control group (`memory.max`)         what the group uses counts, without caches that can be dropped
    the machine's memory                                what the kernel says is available

It is asked before a large message is read (`core.memory`), so it must be cheap: some ten microseconds.
"""

from __future__ import annotations

import resource
from pathlib import Path

PAGE = resource.getpagesize()
STATM = Path("/proc/self/statm")
MEMINFO = Path("/proc/meminfo")
GROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
AVAILABLE = b"MemAvailable:"


class FreeMemory:
    """Call it to know."""

    def __init__(self) -> None:
        self._group = _own_group()

    def __call__(self) -> int | None:
        """The fewest of all; None where nothing can be read, and nothing is known to be limited."""
        known = [free for free in (_of_process(), _of_group(self._group), _of_machine()) if free is not None]
        return min(known, default=None)


def _of_process() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    used = _read(STATM)
    return None if used is None else max(0, limit - int(used.split()[0]) * PAGE)


def _of_group(group: Path | None) -> int | None:
    if group is None:
        return None
    limit, used = _read(group / "memory.max"), _read(group / "memory.current")
    if limit is None or used is None or not limit.strip().isdigit():  # "max"
        return None
    return max(0, int(limit) - int(used) + _droppable(group))


def _droppable(group: Path) -> int:
    """Pages of files: they count as used, and go when something else needs the room."""
    for line in (_read(group / "memory.stat") or b"").splitlines():
        if line.startswith(b"inactive_file "):
            return int(line.split()[1])
    return 0


def _of_machine() -> int | None:
    for line in (_read(MEMINFO) or b"").splitlines():
        if line.startswith(AVAILABLE):
            return int(line.split()[1]) * 1024
    return None


def _own_group() -> Path | None:
    """Where the limits of our control group (version 2) are, if it has any."""
    for line in (_read(GROUPS) or b"").splitlines():
        if line.startswith(b"0::/"):
            group = CGROUPS / line[4:].decode()
            return group if (group / "memory.max").exists() else None
    return None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
