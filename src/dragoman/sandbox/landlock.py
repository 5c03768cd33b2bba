"""Landlock and seccomp without namespaces: for machines without bubblewrap. Weaker, and called what it is.

The same files, calls, limits and variables are refused as under bubblewrap, by the kernel's other means. What stays
shared is the process table, the host's name and what `stat` tells of a file that cannot be opened. There is no /proc
inside, and no /tmp but what is allowed. Signals to others are held back since Landlock ABI 6 (Linux 6.12). No socket of
any family can be made, so hosts cannot be allowed and nothing inside can listen; pairs of sockets and pipes work.
The process that starts it has to end what it leaves behind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from dragoman.sandbox import launcher, seccomp
from dragoman.sandbox.bubblewrap import group, hidden_within, rlimits
from dragoman.sandbox.model import Level, Report, Sandbox, Unavailable
from dragoman.sandbox.program_files import SETTINGS, SYSTEM, files_needed_by, interpreter
from dragoman.sandbox.self_test import run_probes

KERNEL = "use a kernel from 6.12 on, with landlock in its lsm list; as root also make control groups writable"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class Landlock:
    level = Level.LANDLOCK

    def self_test(self) -> Report:
        abi = launcher.landlock_abi()
        if not abi:
            return Report.missing(self.level, "the kernel has no Landlock", KERNEL)
        if seccomp.here() is None:
            return Report.missing(
                self.level, "no seccomp filter for this machine's architecture", "use x86_64, aarch64"
            )
        return run_probes(self.level, f"ABI {abi}", self.argv, KERNEL)

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]:
        machine = seccomp.here()
        if machine is None:
            raise Unavailable(self.level, "no seccomp filter for this machine's architecture", "use x86_64, aarch64")
        if sandbox.hosts:
            raise Unavailable(self.level, "hosts cannot be told apart without a network of its own", "use bubblewrap")
        if shown := hidden_within(sandbox):
            raise Unavailable(
                self.level,
                f"{', '.join(shown)} cannot be hidden inside what is allowed",
                "allow less, or use bubblewrap",
            )
        plan: dict[str, Any] = {
            "filter": seccomp.program(machine, families=()),
            "variables": list(sandbox.variables),
            "group": group(sandbox.limits),
            "limits": rlimits(sandbox.limits),
            "rules": list(_rules(sandbox, files_needed_by(command[0], os.environ.get("PATH")))),
            "cwd": sandbox.cwd,
        }
        return (interpreter(), "-I", "-S", launcher.file(), launcher.written({"alone": plan}), "--", *command)


def _rules(sandbox: Sandbox, needed: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for place in (*SYSTEM, *SETTINGS, *needed, *sandbox.read):
        yield place, "read"
    for place in DEVICES:
        yield place, "device"
    for place in sandbox.write:
        yield place, "write"
