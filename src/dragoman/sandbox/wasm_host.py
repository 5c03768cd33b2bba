"""The process that a module runs in: compiles it, gives it what is allowed, and stops it when it has had enough.

    python -m dragoman.sandbox.wasm_host PLAN -- MODULE ARG…        one module, on our stdin, stdout and stderr

    how a module ends       exit code
    by itself, proc_exit    its own
    time                    124
    fuel                    125
    not allowed to start    126: not a module, more memory than allowed, asks for what WASI does not have
    a trap                  134: unreachable, out of bounds, the stack

Before the module's first instruction the process restricts itself as well (Landlock and seccomp, where the kernel has
them): a hole in the compiler leads into another cell. A kernel without them does not lower the level, which rests on
WebAssembly. Compiled code is kept only in a directory that belongs to us alone: a program that can write there can run
code.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import resource
import signal
import stat
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from dragoman import durable
from dragoman.sandbox import launcher, seccomp

TIME, FUEL, REFUSED, TRAPPED = 124, 125, 126, 134
LAST_SECONDS = 1.0
"""For a module that waits in a call of the host when its time is over, where no trap reaches it."""
MIB = 1 << 20
TABLE_ELEMENTS = 100_000
STACK = 1 << 20

_engines: dict[bool, Any] = {}


def engine(fuelled: bool) -> Any:
    """Without threads of its own: the warm host forks."""
    import wasmtime

    if fuelled not in _engines:
        config = wasmtime.Config()
        config.epoch_interruption = True
        config.consume_fuel = fuelled
        config.wasm_threads = False  # shared memory is not counted
        config.wasm_memory64 = False
        config.parallel_compilation = False
        config.max_wasm_stack = STACK
        _engines[fuelled] = wasmtime.Engine(config)
    return _engines[fuelled]


def load(engine: Any, file: str, cache: str | None, made_by: str) -> Any:
    """The module, from what was compiled before if that can be trusted. `made_by`: the compiler and its settings."""
    import wasmtime

    code = Path(file).read_bytes()
    if cache is None or not _ours_alone(Path(cache)):
        return wasmtime.Module(engine, _binary(code))
    name = hashlib.sha256(made_by.encode() + b" " + code).hexdigest()
    kept = Path(cache) / f"{name}.cwasm"
    with contextlib.suppress(OSError, wasmtime.WasmtimeError):
        return wasmtime.Module.deserialize_file(engine, str(kept))
    module = wasmtime.Module(engine, _binary(code))
    with contextlib.suppress(OSError):
        durable.write(kept, module.serialize())  # code that a power cut tore would be run all the same
    return module


def _binary(code: bytes) -> bytes:
    """Text is taken as well."""
    import wasmtime

    return code if code.startswith(b"\0asm") else bytes(wasmtime.wat2wasm(code))


def _ours_alone(directory: Path) -> bool:
    try:
        found = directory.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o022


def run(plan: dict[str, Any], words: list[str]) -> int:
    """`words`: the module's file, and its arguments. Returns the exit code."""
    import wasmtime

    limits = plan["limits"]
    fuel = limits["fuel"]
    machinery = engine(fuel is not None)
    try:
        module = load(machinery, words[0], plan["cache"], f"{plan['version']} {fuel is not None} {STACK}")
        wasi = wasmtime.WasiConfig()
        wasi.argv = words
        wasi.env = [(name, os.environ[name]) for name in plan["variables"] if name in os.environ]
        wasi.inherit_stdin()
        wasi.inherit_stdout()
        wasi.inherit_stderr()
        for places, changeable in ((plan["read"], False), (plan["write"], True)):
            for place in places:
                wasi.preopen_dir(place, place, changeable)
        store = wasmtime.Store(machinery)
        store.set_limits(
            memory_size=limits["memory_mb"] * MIB, table_elements=TABLE_ELEMENTS, instances=1, tables=8, memories=1
        )
        store.set_wasi(wasi)
        if fuel is not None:
            store.set_fuel(fuel)
        store.set_epoch_deadline(1)
        linker = wasmtime.Linker(machinery)
        linker.define_wasi()
        _restrict(plan)
        _watch(machinery, limits["seconds"])
        start: Any = linker.instantiate(store, module).exports(store)["_start"]
        start(store)
    except wasmtime.ExitTrap as ended:
        return ended.code
    except wasmtime.Trap as trap:
        return _why(trap)
    except (wasmtime.WasmtimeError, OSError, KeyError) as error:
        return _say(REFUSED, f"the module cannot be started: {str(error).splitlines()[0]}")
    return 0


def _why(trap: Any) -> int:
    import wasmtime

    if trap.trap_code is wasmtime.TrapCode.OUT_OF_FUEL:
        return _say(FUEL, "the module has used up its fuel")
    if trap.trap_code is wasmtime.TrapCode.INTERRUPT:
        return _say(TIME, "the module has used up its time")
    return _say(TRAPPED, f"the module trapped: {trap.message.strip().splitlines()[-1].strip()}")


def _say(code: int, sentence: str) -> int:
    os.write(2, f"dragoman: {sentence}\n".encode("utf-8", "replace"))
    return code


def _restrict(plan: dict[str, Any]) -> None:
    limits = plan["limits"]
    most = {"core": 0, "open_files": limits["open_files"], "file_size": limits["file_mb"] * MIB}
    launcher.limit(most)
    seconds = int(limits["seconds"]) + 10
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    rules = [(place, "read") for place in plan["read"]] + [(place, "write") for place in plan["write"]]
    filter = _filter()
    with contextlib.suppress(launcher.SandboxNotBuilt):
        launcher.drop_capabilities()
    with contextlib.suppress(launcher.SandboxNotBuilt):
        launcher.landlock(rules, network=False)
    if filter is not None:
        with contextlib.suppress(launcher.SandboxNotBuilt):
            launcher.seccomp(filter)


@functools.cache
def _filter() -> bytes | None:
    machine = seccomp.here()
    return None if machine is None else seccomp.program(machine, families=())


def _watch(machinery: Any, seconds: float) -> None:
    def over() -> None:
        never = threading.Event()
        never.wait(seconds)
        machinery.increment_epoch()
        never.wait(LAST_SECONDS)
        os._exit(_say(TIME, "the module has used up its time"))

    threading.Thread(target=over, daemon=True).start()


def become(request: dict[str, Any], streams: list[int], host: int) -> NoReturn:
    """What a fork does: it turns into the host of one module, and ends with it, or with the `host` it was forked from:
    asked for here, the parent could be the process that adopts orphans."""
    code = REFUSED
    try:
        signal.set_wakeup_fd(-1)
        launcher.die_with(host)
        os.setsid()
        for place, descriptor in enumerate(streams):
            os.dup2(descriptor, place)
        launcher.close_all_but(set())
        os.environ.clear()
        os.environ.update(request["environ"])
        code = run(request["plan"], request["words"])
    except BaseException as error:
        _say(code, f"the module cannot be run: {error}")
    finally:
        os._exit(code & 0xFF)


def main(words: list[str]) -> int:
    launcher.close_all_but(set())
    return run(json.loads(words[0]), words[2:])


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]) & 0xFF)
