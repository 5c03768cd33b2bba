"""Hyperlight: Python source in a virtual machine of its own, without an operating system inside.

It needs a hypervisor that it gets along with; `/dev/kvm` alone proves nothing, so the self-test runs a guest. It runs
source code only: no processes, no modules for WASI. Everything of it happens in a child process, because the library
may end the process it is in, and because only the end of a process stops a guest that does not end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dragoman.sandbox import hyperlight_host
from dragoman.sandbox.model import Level, Probe, Report, Sandbox, Unavailable

INSTALL = "pip install 'dragoman[hyperlight]'"
RUN_IT_WHERE = "use a machine with a hypervisor that Hyperlight supports (KVM or mshv), and let the hub open /dev/kvm"
SECONDS = 90.0
STDERR_SHOWN = 200


class Hyperlight:
    level = Level.HYPERLIGHT

    def __init__(self, python: str = sys.executable) -> None:
        self._host = (python, "-I", hyperlight_host.__file__)

    def self_test(self) -> Report:
        try:
            run = subprocess.run(
                [*self._host, "--self-test"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Report.broken(self.level, None, f"the self-test did not end within {SECONDS:g} s", RUN_IT_WHERE)
        try:
            found: dict[str, Any] = json.loads(run.stdout)
        except ValueError:
            last = run.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            why = f"it broke: {(last or [str(run.returncode)])[0][:STDERR_SHOWN]}"
            return Report.broken(self.level, None, why, RUN_IT_WHERE)
        if not found["version"]:
            return Report.missing(self.level, f"the package {found['missing']} is not installed", INSTALL)
        if found.get("broke"):
            device = "" if Path("/dev/kvm").exists() else "there is no /dev/kvm; "
            why = f"{device}no guest runs here: {found['broke'][:STDERR_SHOWN]}"
            return Report.broken(self.level, found["version"], why, RUN_IT_WHERE)
        probes = tuple(Probe(attempt=name, refused=refused, saw=saw) for name, refused, saw in found["trials"])
        return Report.judged(
            self.level, found["version"], probes, expected=len(hyperlight_host.ATTEMPTS), remedy=RUN_IT_WHERE
        )

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]:
        """`command`: the file with the source, alone. A guest has no arguments, no variables and no stdin."""
        if len(command) != 1 or sandbox.variables:
            raise Unavailable(self.level, "a guest takes no arguments and no variables", "write them into the source")
        if sandbox.read or sandbox.write or sandbox.hosts:
            raise Unavailable(self.level, "a guest is given no files and no hosts by us", "use bubblewrap")
        plan = {"memory_mb": sandbox.limits.memory_mb, "seconds": sandbox.limits.seconds}
        return (*self._host, json.dumps(plan), "--", *command)
