"""Wasmtime: a WebAssembly module with WASI, in a process of its own. It has its three streams, the directories it was
given, its time, its memory, and nothing else: no network, no processes, no files beside those.

    argv     a command line, for whoever starts processes: an interpreter has to start first
    Warm     a process that has everything loaded and forks once a module: some milliseconds

The module's stdin and stdout are plain bytes: lines of JSON, as for any other child.
"""

from __future__ import annotations

import array
import functools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from importlib import metadata, util
from pathlib import Path
from typing import Any

import msgspec

from dragoman.sandbox.model import Level, Report, Sandbox, Unavailable

INSTALL = "pip install 'dragoman[sandbox]'"
HOST = (sys.executable, "-I", "-m", "dragoman.sandbox.wasm_host")
START_SECONDS = 20.0
LARGEST_OUTPUT = 16 << 20


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a module ended; what it wrote, up to `LARGEST_OUTPUT`."""

    code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""


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
            found = wasm_probes.attempt(self)
        except (OSError, TimeoutError, subprocess.SubprocessError) as error:
            return Report(
                level=self.level, version=version, available=True, why_not=f"it does not start: {error}", remedy=INSTALL
            )
        return Report.judged(
            self.level, version, found, expected=wasm_probes.NUMBER, remedy="report it: this is a defect"
        )

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


class Warm:
    """A loaded host, and one fork of it a module. For one thread at a time to start things; many may run at once."""

    def __init__(self, wasm: Wasm) -> None:
        self._wasm = wasm
        self._ended: dict[int, dict[str, Any]] = {}
        self._next = 0
        self._gone = False
        self._changed = threading.Condition()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._host = subprocess.Popen(
            [*HOST, "--serve", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={},
        )
        theirs.close()
        self._link = ours
        self._link.settimeout(START_SECONDS)
        self._receiver = threading.Thread(target=self._listen, name="wasm host", daemon=True)
        try:
            if not self._link.recv(256):
                raise ConnectionError("the host of WebAssembly modules ended at its start")
        except OSError:
            self.close()
            raise
        self._link.settimeout(None)
        self._receiver.start()

    def start(
        self, sandbox: Sandbox, command: tuple[str, ...], streams: tuple[int, int, int], environ: dict[str, str]
    ) -> int:
        """Begin; returns the key to wait by. The streams are copied."""
        self._next += 1
        wish = {"key": self._next, "plan": self._wasm.plan(sandbox), "words": command, "environ": environ}
        rights = array.array("i", streams)
        self._link.sendmsg([json.dumps(wish).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        return self._next

    def wait(self, key: int, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        with self._changed:
            while not (self._gone or key in self._ended):
                if not self._changed.wait(until - time.monotonic()):
                    raise TimeoutError("the module did not end")
            if key not in self._ended:
                raise ConnectionError("the host of WebAssembly modules has ended, and the module with it")
            return self._ended.pop(key)

    def run(
        self, sandbox: Sandbox, command: tuple[str, ...], said: bytes = b"", environ: dict[str, str] | None = None
    ) -> Outcome:
        """From beginning to end. Files take what goes in and out: a pipe would have to be read at the same time."""
        ends = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
        try:
            os.write(ends[0], said)
            os.lseek(ends[0], 0, os.SEEK_SET)
            key = self.start(sandbox, command, (ends[0], ends[1], ends[2]), environ or {})
            how = self.wait(key, sandbox.limits.seconds + START_SECONDS)
            out, err = (os.pread(end, LARGEST_OUTPUT, 0) for end in ends[1:])
        finally:
            for end in ends:
                os.close(end)
        return Outcome(code=how.get("code"), signal=how.get("signal"), stdout=out, stderr=err)

    def close(self) -> None:
        """All of it: modules that still run end with their host."""
        self._host.kill()
        self._host.wait()
        if self._receiver.is_alive():
            self._receiver.join(START_SECONDS)  # its socket must not close under it
        self._link.close()

    def _listen(self) -> None:
        while found := self._results():
            said = json.loads(found)
            with self._changed:
                self._ended[said["key"]] = said
                self._changed.notify_all()
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def _results(self) -> bytes:
        try:
            return self._link.recv(65536)
        except OSError:
            return b""

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
