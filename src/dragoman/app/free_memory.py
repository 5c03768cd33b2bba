"""How many bytes of memory this process may still get: the lowest of three limits.

    a limit of the process (`ulimit -v`, RLIMIT_AS)     its address space counts
    a limit of its control group, of either version     what the group uses counts, without caches that can be dropped
    the machine's memory                                what the kernel says is available

It is asked before a large message is read (`core.memory`), so it must be cheap: some ten microseconds.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

PAGE = resource.getpagesize()
STATM = Path("/proc/self/statm")
MEMINFO = Path("/proc/meminfo")
GROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
AVAILABLE = b"MemAvailable:"


class Names(NamedTuple):
    """What a version of control groups calls its files, and where below `CGROUPS` it is mounted."""

    mount: str
    limit: str
    used: str
    droppable: bytes


V1 = Names("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file")
V2 = Names("", "memory.max", "memory.current", b"inactive_file")


class Group(NamedTuple):
    path: Path
    names: Names


class FreeMemory:
    """Call it for the number of free bytes."""

    def __init__(self) -> None:
        self._group = own_group()

    def __call__(self) -> int | None:
        """The fewest of all; None where nothing can be read, and nothing is known to be limited."""
        known = [free for free in (_of_process(), free_in_group(self._group), _of_machine()) if free is not None]
        return min(known, default=None)


def _of_process() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    used = _read(STATM)
    return None if used is None else max(0, limit - int(used.split()[0]) * PAGE)


def free_in_group(group: Group | None) -> int | None:
    if group is None:
        return None
    limit, used = _read(group.path / group.names.limit), _read(group.path / group.names.used)
    if limit is None or used is None or not limit.strip().isdigit():  # "max"
        return None
    return max(0, int(limit) - int(used) + _droppable(group))


def _droppable(group: Group) -> int:
    """Pages of files: they count as used, and go when something else needs the room."""
    for line in (_read(group.path / "memory.stat") or b"").splitlines():
        name, _, count = line.partition(b" ")
        if name == group.names.droppable:
            return int(count)
    return 0


def _of_machine() -> int | None:
    for line in (_read(MEMINFO) or b"").splitlines():
        if line.startswith(AVAILABLE):
            return int(line.split()[1]) * 1024
    return None


def own_group(groups: Path = GROUPS, root: Path = CGROUPS) -> Group | None:
    """The control group of this process with its limits, if it has any. In a container the group that the kernel names
    may be mounted as the root."""
    for line in (_read(groups) or b"").splitlines():
        _, _, rest = line.decode(errors="surrogateescape").partition(":")
        controllers, _, path = rest.partition(":")
        names = V2 if not controllers else V1 if "memory" in controllers.split(",") else None
        if names is None:
            continue
        mounted = root / names.mount
        for at in (mounted / path.lstrip("/"), mounted):
            if (at / names.limit).exists():
                return Group(at, names)
    return None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
