"""The two levels for processes: bubblewrap, and Landlock with seccomp where bubblewrap is not to be had.

Bubblewrap gives a process a file system, a network, a process table and a user of its own:

    files       an empty root; the system's programs read-only; what is allowed; /tmp in memory, bounded
    network     none. With allowed hosts: still none, but a proxy on 127.0.0.1 (`egress_proxy.py`) that connects to
                those hosts and no others; the command finds it in HTTPS_PROXY and HTTP_PROXY
    processes   it sees and signals only its own; all of them die with the launcher
    kernel      the seccomp filter of `seccomp.py`; no capabilities; no new privileges; no further namespaces
    behind it   Landlock with the same files once more, and limits by rlimit and, where they are ours, control groups

Landlock and seccomp alone refuse the same files, calls, limits and variables. The process table, the host's name and
what `stat` shows of a file that cannot be opened stay shared. There is no /proc inside, and no /tmp but what is
allowed. Landlock holds back signals to others from ABI 6 on (Linux 6.12). No socket of any family can be made, so hosts
cannot be allowed and nothing inside can listen; pairs of sockets and pipes work. The process that starts it has to end
what it leaves behind.

As root the limit of processes is a control group, because rlimit does not bind root; where none can be made the level
is not reached, and the self-test says so.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dragoman.sandbox import egress_proxy, launcher, seccomp
from dragoman.sandbox.model import MIB, Level, Limits, Report, Sandbox, Unavailable
from dragoman.sandbox.program_files import SETTINGS, SYSTEM, files_needed_by, interpreter
from dragoman.sandbox.self_test import run_probes

PROGRAM = "bwrap"
INSTALL = "install bubblewrap (Debian, Fedora, Arch: the package bubblewrap)"
ALLOW = (
    "let bubblewrap make user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone,"
    " kernel.apparmor_restrict_unprivileged_userns), and as root make control groups writable"
)
LAUNCHER = "/run/dragoman/launch"
"""Where the launcher lies inside."""
CAN_DISABLE_NAMESPACES = (0, 8)
"""The first version that can forbid further user namespaces by itself; seccomp does so in any case."""
ITS_OWN_PROCESSES = 2
"""Bubblewrap's, outside and inside."""


NO_FILTER = ("no seccomp filter for this machine's architecture", "use x86_64, aarch64")
KERNEL = "use a kernel from 6.12 on, with landlock in its lsm list; as root also make control groups writable"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class Bubblewrap:
    level = Level.BUBBLEWRAP

    def __init__(self, program: str | None = None) -> None:
        self._program = program or shutil.which(PROGRAM)
        self._version: str | None = None

    def self_test(self) -> Report:
        if self._program is None:
            return Report.missing(self.level, "bwrap is not installed", INSTALL)
        if os.stat(self._program).st_mode & stat.S_ISUID:  # children gain no privileges: it would not start for them
            remedy = f"chmod u-s {self._program}, and {ALLOW}"
            return Report.missing(self.level, f"{self._program} is set-user-id", remedy)
        version = self.version()
        if version is None:
            return Report.missing(self.level, f"{self._program} does not run", INSTALL)
        if seccomp.here() is None:
            return Report.missing(self.level, *NO_FILTER)
        if not launcher.landlock_abi():
            remedy = "use a kernel from 5.13 on, with landlock in its lsm list"
            return Report.missing(self.level, "the kernel has no Landlock", remedy, version)
        return run_probes(self.level, version, self.argv, ALLOW)

    def version(self) -> str | None:
        """As it says itself, `0.8.0`."""
        if self._version is None and self._program is not None:
            try:
                found = subprocess.run(
                    [self._program, "--version"], capture_output=True, text=True, timeout=10, check=True
                ).stdout
            except (OSError, subprocess.SubprocessError):
                return None
            self._version = found.split()[-1] if found.split() else None
        return self._version

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]:
        """What to start so that `command` runs inside. The environment and stdin, stdout, stderr are passed on."""
        machine = seccomp.here()
        if self._program is None or machine is None:
            raise Unavailable(self.level, "bwrap is not installed", INSTALL)
        needed = files_needed_by(command[0], os.environ.get("PATH"))
        families = seccomp.NETWORK if sandbox.hosts else seccomp.NO_NETWORK
        plan: dict[str, Any] = {
            "bwrap": [self._program, *self._options(sandbox, needed)],
            "filter": seccomp.program(machine, families=families),
            "variables": list(sandbox.variables),
            "group": _group(sandbox.limits, beside=ITS_OWN_PROCESSES),
            "again": [interpreter(), "-I", "-S", LAUNCHER],
            "inner": {
                "variables": list(sandbox.variables),
                "limits": _rlimits(sandbox.limits, beside=ITS_OWN_PROCESSES),
                "rules": _rules(sandbox, (*needed, "/proc"), ("/dev",), ("/tmp", "/dev/shm")),
            },
        }
        if sandbox.hosts:
            proxy = [interpreter(), "-I", "-S", egress_proxy.__file__]
            plan["egress"] = {"command": proxy, "hosts": list(sandbox.hosts)}
        return _launch({"outside": plan}, command)

    def _options(self, sandbox: Sandbox, needed: tuple[str, ...]) -> Iterator[str]:
        yield from ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
        if _numbers(self.version()) >= CAN_DISABLE_NAMESPACES:
            yield "--disable-userns"
        yield from ("--uid", str(sandbox.uid), "--gid", str(sandbox.gid), "--hostname", sandbox.hostname)
        scratch = str(sandbox.limits.scratch_mb * MIB)
        for place in SYSTEM:
            if os.path.islink(place):
                yield from ("--symlink", os.readlink(place), place)
            else:
                yield from ("--ro-bind-try", place, place)
        yield from ("--proc", "/proc", "--dev", "/dev")
        for place in ("/tmp", "/dev/shm"):
            yield from ("--perms", "1777", "--size", scratch, "--tmpfs", place)
        for place in dict.fromkeys((*SETTINGS, *files_needed_by(interpreter()), *needed)):
            yield from ("--ro-bind-try", place, place)
        yield from ("--ro-bind", launcher.file(), LAUNCHER)
        yield from _allowed(sandbox)
        # The root is memory too, and must not be filled. And root's own user could write the kernel's settings below
        # /proc, under any name inside.
        yield from ("--remount-ro", "/proc", "--remount-ro", "/", "--chdir", sandbox.cwd)


class Landlock:
    level = Level.LANDLOCK

    def self_test(self) -> Report:
        abi = launcher.landlock_abi()
        if not abi:
            return Report.missing(self.level, "the kernel has no Landlock", KERNEL)
        if seccomp.here() is None:
            return Report.missing(self.level, *NO_FILTER)
        return run_probes(self.level, f"ABI {abi}", self.argv, KERNEL)

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]:
        machine = seccomp.here()
        if machine is None:
            raise Unavailable(self.level, *NO_FILTER)
        if sandbox.hosts:
            raise Unavailable(self.level, "hosts cannot be told apart without a network of its own", "use bubblewrap")
        if shown := _hidden_within(sandbox):
            why = f"{', '.join(shown)} cannot be hidden inside what is allowed"
            raise Unavailable(self.level, why, "allow less, or use bubblewrap")
        plan: dict[str, Any] = {
            "filter": seccomp.program(machine, families=()),
            "variables": list(sandbox.variables),
            "group": _group(sandbox.limits),
            "limits": _rlimits(sandbox.limits),
            "rules": _rules(sandbox, files_needed_by(command[0], os.environ.get("PATH")), DEVICES),
            "cwd": sandbox.cwd,
        }
        return _launch({"alone": plan}, command)


def _launch(plan: dict[str, dict[str, Any]], command: tuple[str, ...]) -> tuple[str, ...]:
    return (interpreter(), "-I", "-S", launcher.file(), launcher.written(plan), "--", *command)


def _allowed(sandbox: Sandbox) -> Iterator[str]:
    """Outer places before inner ones: what is hidden lies over what is around it, and under what is allowed in it."""
    places = [
        *((place, "--ro-bind") for place in sandbox.read),
        *((place, "--bind") for place in sandbox.write),
        *((place, "--tmpfs") for place in _hidden_within(sandbox)),
    ]
    for place, how in sorted(places, key=lambda each: len(Path(each[0]).parts)):
        yield from (how, place) if how == "--tmpfs" else (how, place, place)
    for place in _hidden_within(sandbox):
        yield from ("--remount-ro", place)
    if not any(Path(sandbox.cwd).is_relative_to(place) for place in (*sandbox.read, *sandbox.write, "/tmp")):
        yield from ("--dir", sandbox.cwd)


def _hidden_within(sandbox: Sandbox) -> list[str]:
    """Those of the hidden places that something allowed, or the system's own directories, would show."""
    shown = (*sandbox.read, *sandbox.write, *SYSTEM)
    return [place for place in sandbox.hidden if any(Path(place).is_relative_to(around) for around in shown)]


def _rules(
    sandbox: Sandbox, needed: tuple[str, ...], devices: tuple[str, ...], scratch: tuple[str, ...] = ()
) -> list[tuple[str, str]]:
    """What Landlock allows: places, and what may be done there."""
    return [
        *((place, "read") for place in (*SYSTEM, *SETTINGS, *needed, *sandbox.read)),
        *((place, "device") for place in devices),
        *((place, "write") for place in (*scratch, *sandbox.write)),
    ]


def _group(limits: Limits, *, beside: int = 0) -> dict[str, int]:
    """What a control group should hold. `beside`: processes of our own in it."""
    return {"pids": limits.processes + beside, "memory": limits.memory_mb * MIB}


def _rlimits(limits: Limits, *, beside: int = 0) -> dict[str, int]:
    wanted = {
        "core": 0,
        "open_files": limits.open_files,
        "memory": (limits.address_mb or limits.memory_mb) * MIB,
        "processes": limits.processes + beside,
        "file_size": limits.file_mb * MIB,
        "cpu_seconds": limits.cpu_seconds,
    }
    return {name: most for name, most in wanted.items() if most is not None}


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (version or "0").split(".") if part.isdigit())
