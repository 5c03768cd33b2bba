"""Wasmtime: a WebAssembly module with WASI, in a process of its own. It has its three streams, the directories it was
given, its time, its memory, and nothing else: no network, no processes, no files beside those.

The module's stdin and stdout are plain bytes: lines of JSON, as for any other child.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Any

import msgspec

from dragoman.sandbox.model import Level, Report, Sandbox, Unavailable

INSTALL = "pip install 'dragoman[sandbox]'"
HOST = (sys.executable, "-I", "-m", "dragoman.sandbox.wasm_host")


class Wasm:
    level = Level.WASM

    def __init__(self, cache: str | None = None) -> None:
        self._cache = cache

    def self_test(self) -> Report:
        version = installed()
        if version is None:
            return Report.missing(self.level, "the package wasmtime is not installed", INSTALL)
        from dragoman.sandbox import wasm_probes

        try:
            found = wasm_probes.attempt(self._cache)
        except (OSError, TimeoutError, subprocess.SubprocessError) as error:
            return Report.broken(self.level, version, f"it does not start: {error}", INSTALL)
        remedy = "report it: this is a defect"
        return Report.judged(self.level, version, found, expected=wasm_probes.NUMBER, remedy=remedy)

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]:
        """`command`: the module's file, binary or text, and its arguments."""
        return (*HOST, json.dumps(self.plan(sandbox)), "--", *command)

    def plan(self, sandbox: Sandbox) -> dict[str, Any]:
        if sandbox.hosts:
            raise Unavailable(self.level, "modules have no network, so no hosts can be allowed", "use bubblewrap")
        for place in (*sandbox.read, *sandbox.write):
            if not os.path.isdir(place):
                raise Unavailable(self.level, f"{place} is not a directory, and modules are given those", "allow one")
            for kept_out in sandbox.hidden:
                if Path(kept_out).is_relative_to(place):
                    raise Unavailable(self.level, f"{kept_out} cannot be hidden inside {place}", "allow less")
        return {
            "limits": msgspec.to_builtins(sandbox.limits),
            "read": list(sandbox.read),
            "write": list(sandbox.write),
            "variables": list(sandbox.variables),
            "cache": self._cache,
            "version": installed(),
        }


@functools.cache
def installed() -> str | None:
    """The version, without importing it. Looked up once: that takes longer than to start a module."""
    if util.find_spec("wasmtime") is None:
        return None
    return metadata.version("wasmtime")
