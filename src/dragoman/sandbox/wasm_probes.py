"""Everything that is forbidden to a module, attempted by small modules written for it.

A module that got what it should not have ends with code 42. One that was refused ends with 0, or is ended by the host
with the code that the table expects.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec

from dragoman.sandbox import wasm_host
from dragoman.sandbox.model import Limits, Probe, Sandbox
from dragoman.sandbox.wasm import Wasm
from dragoman.sandbox.wasm_host import FUEL, REFUSED, TIME, TRAPPED

GOT_IT = 42
SECRET = "DRAGOMAN_PROBE_SECRET"
LIMITS = Limits(memory_mb=16, seconds=0.25, open_files=32)
SECONDS = 60.0
STDERR_SHOWN = 600

SPIN = '(module (memory (export "memory") 1) (func (export "_start") (loop $on (br $on))))'
SLEEP = """(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (i32.store8 (i32.const 8) (i32.const 0)) (i32.store (i32.const 16) (i32.const 1))
    (i64.store (i32.const 24) (i64.const 3600000000000))
    (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))))"""
GROW = """(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (loop $on (br_if $on (i32.and (i32.ne (memory.grow (i32.const 16)) (i32.const -1))
                                  (i32.lt_u (memory.size) (i32.const 1024)))))
    (if (i32.ge_u (memory.size) (i32.const 1024)) (then (call $exit (i32.const 42))))))"""
HUGE = '(module (memory (export "memory") 32768) (func (export "_start")))'
DEEP = '(module (memory (export "memory") 1) (func $f (call $f) (call $f)) (func (export "_start") (call $f)))'
BEYOND = """(module (memory (export "memory") 1)
  (func (export "_start") (drop (i32.load (i32.const 2000000000)))))"""
SOCKET = """(module
  (import "wasi_snapshot_preview1" "sock_open" (func $open (param i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start") (drop (call $open (i32.const 1) (i32.const 1) (i32.const 0)))))"""
DESCRIPTOR = """(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start") (local $fd i32)
    (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 64))
    (local.set $fd (i32.const 3))
    (loop $on
      (if (i32.eqz (call $read (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 32)))
        (then (call $exit (i32.const 42))))
      (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
      (br_if $on (i32.lt_u (local.get $fd) (i32.const 64))))))"""
ENVIRONMENT = """(module
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (drop (call $sizes (i32.const 0) (i32.const 4)))
    (if (i32.load (i32.const 0)) (then (call $exit (i32.const 42))))))"""


def opening(path: str, *, create: bool = False) -> str:
    """Opens a path below the first allowed directory, following links."""
    flags, rights = (1, 0x40) if create else (0, 0x2)
    return f"""(module
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1) (data (i32.const 100) "{path}")
  (func (export "_start")
    (if (i32.eqz (call $open (i32.const 3) (i32.const 1) (i32.const 100) (i32.const {len(path.encode())})
                   (i32.const {flags}) (i64.const {rights}) (i64.const {rights}) (i32.const 0) (i32.const 0)))
      (then (call $exit (i32.const 42))))))"""


class Attempt(NamedTuple):
    name: str
    module: str
    expected: int = 0
    fuel: int | None = None
    allowed: bool = False
    """Whether a directory is given, read-only, to break out of."""


ATTEMPTS = (
    Attempt("run for ever on fuel", SPIN, FUEL, fuel=1_000_000),
    Attempt("run for ever in time", SPIN, TIME),
    Attempt("sleep for ever", SLEEP, TIME),
    Attempt("take more memory", GROW),
    Attempt("begin with more memory", HUGE, REFUSED),
    Attempt("call without end", DEEP, TRAPPED),
    Attempt("read beyond its memory", BEYOND, TRAPPED),
    Attempt("make a network socket", SOCKET, REFUSED),
    Attempt("find a descriptor", DESCRIPTOR),
    Attempt("find a secret in the environment", ENVIRONMENT),
    Attempt("read a file outside", opening("/etc/passwd")),
    Attempt("climb out of an allowed directory", opening("../outside/canary"), allowed=True),
    Attempt("name a file by its whole path", opening("/etc/passwd"), allowed=True),
    Attempt("follow a link outside", opening("link"), allowed=True),
    Attempt("write where it may only read", opening("written", create=True), allowed=True),
)
NUMBER = len(ATTEMPTS)


def attempt(cache: str | None) -> tuple[Probe, ...]:
    """All of them, in a process that loads the compiler once and forks for each module."""
    command = (sys.executable, "-I", "-m", __name__, json.dumps(cache))
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
    if run.returncode:
        raise OSError(run.stderr.decode("utf-8", "replace").strip()[-STDERR_SHOWN:] or f"exit code {run.returncode}")
    return msgspec.json.decode(run.stdout, type=tuple[Probe, ...])


def main(cache: str | None) -> None:
    import wasmtime  # noqa: F401  (before the first fork)

    wasm = Wasm(cache)
    with tempfile.TemporaryDirectory(prefix="dragoman-wasm-") as place:
        inside, outside = Path(place) / "inside", Path(place) / "outside"
        inside.mkdir()
        outside.mkdir()
        (outside / "canary").write_text("got out")
        os.symlink(outside / "canary", inside / "link")
        (inside / "allowed").write_text("as allowed")
        file = Path(place) / "module.wat"

        def run(module: str, *, allowed: bool, fuel: int | None = None) -> tuple[int, str]:
            """The exit code, negative for a signal, and what stood on stderr."""
            file.write_text(module)
            limits = msgspec.structs.replace(LIMITS, fuel=fuel)
            plan = wasm.plan(Sandbox(read=(str(inside),) if allowed else (), limits=limits))
            request = {"plan": plan, "words": [str(file)], "environ": {SECRET: "secret"}}
            null, stderr = os.open(os.devnull, os.O_RDWR), os.memfd_create("stderr")
            host = os.getpid()
            if (pid := os.fork()) == 0:
                wasm_host.become(request, [null, null, stderr], host)
            _, status = os.waitpid(pid, 0)
            text = os.pread(stderr, STDERR_SHOWN, 0).decode("utf-8", "replace").strip().removeprefix("dragoman: ")
            os.close(null)
            os.close(stderr)
            return os.waitstatus_to_exitcode(status), text

        # A module that fails to open anything at all would seem to be refused everything.
        code, text = run(opening("allowed"), allowed=True)
        if code != GOT_IT:
            raise OSError(f"a module could not open a file that it was given: {text}")
        found = []
        for each in ATTEMPTS:
            code, text = run(each.module, allowed=each.allowed, fuel=each.fuel)
            how = f"exit code {code}" if code >= 0 else f"signal {-code}"
            found.append(Probe(attempt=each.name, refused=code == each.expected, saw=text or how))
    sys.stdout.write(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
