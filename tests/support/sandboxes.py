"""Levels of the sandbox that this machine has, and hubs for which one of them is the strongest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dragoman.sandbox.levels import SandboxBackend, SandboxLevels, all_levels
from dragoman.sandbox.model import Level

NOWHERE = "/nowhere"
"""A PATH on which there is no bubblewrap."""
_levels = all_levels()


def backend_of(levels: SandboxLevels, level: Level) -> SandboxBackend:
    """Whether it works on this machine or not."""
    return next(backend for backend in levels._backends if backend.level is level)


def must_hold(level: Level) -> None:
    report = _levels.report(backend_of(_levels, level))
    if not report.passed:
        pytest.skip(f"{level}: {report.why_not}; {report.remedy}")


def settings_for(level: Level) -> dict[str, Any]:
    """Of a hub for which this level is the strongest there is."""
    weakest = {"DRAGOMAN_SANDBOX__MINIMUM": str(level), "DRAGOMAN_GRPC_PORT": "0"}
    return {**weakest, "PATH": NOWHERE} if level is Level.LANDLOCK else weakest


def marked(mark: str) -> list[int]:
    """Processes whose command line says so."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
            except OSError:
                pass
    return found
