"""Breaking out of a WebAssembly module, attack by attack; then what a module may do, and the cache of compiled code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.sandbox.model import Level, Limits, Probe, Report, Sandbox
from dragoman.sandbox.wasm import INSTALL, Wasm, installed

if installed() is None:
    pytest.skip(f"wasm: the package wasmtime is not installed; {INSTALL}", allow_module_level=True)

from dragoman.sandbox import wasm_probes
from dragoman.sandbox.wasm_host import FUEL, REFUSED, TIME

SECONDS = 60
ECHO = """(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 64))
    (loop $on
      (i32.store (i32.const 4) (i32.const 4096))
      (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
      (if (i32.load (i32.const 8)) (then
        (i32.store (i32.const 4) (i32.load (i32.const 8)))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 12)))
        (br $on))))))"""


@pytest.fixture(autouse=True)
def still_serving() -> None:
    """No hub takes part here."""


@pytest.fixture(scope="module")
def report() -> Report:
    return Wasm().self_test()


def run(
    sandbox: Sandbox, command: tuple[str, ...], stdin: bytes = b"", *, cache: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[bytes]:
    argv = Wasm(cache=cache and str(cache)).argv(sandbox, command)
    return subprocess.run(argv, env=environ, input=stdin, capture_output=True, timeout=SECONDS, check=False)


def module(place: Path, text: str) -> tuple[str, ...]:
    file = place / "module.wat"
    file.write_text(text)
    return (str(file),)


@pytest.mark.parametrize("name", [attempt.name for attempt in wasm_probes.ATTEMPTS])
def test_attack_is_refused(report: Report, name: str) -> None:
    found: dict[str, Probe] = {probe.attempt: probe for probe in report.probes}
    assert name in found, report.why_not
    assert found[name].refused, found[name].saw


def test_the_level_is_claimed_after_that(report: Report) -> None:
    assert (report.level, report.available, report.passed, report.why_not) == (Level.WASM, True, True, None)


def test_lines_go_in_and_come_out(tmp_path: Path) -> None:
    argv = Wasm().argv(Sandbox(), module(tmp_path, ECHO))
    lines = b'{"type":"hello"}\n{"type":"bye"}\n'
    found = subprocess.run(argv, env={}, input=lines, capture_output=True, timeout=SECONDS, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, lines, b"")


@pytest.mark.parametrize(
    ("limits", "code"),
    [(Limits(fuel=100_000), FUEL), (Limits(seconds=0.1), TIME)],
    ids=["fuel", "time"],
)
def test_an_endless_loop_is_stopped_in_a_process_of_its_own_too(tmp_path: Path, limits: Limits, code: int) -> None:
    argv = Wasm().argv(Sandbox(limits=limits), module(tmp_path, wasm_probes.SPIN))
    found = subprocess.run(argv, env={}, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False)
    assert found.returncode == code


def test_a_module_that_waits_for_input_for_ever_is_stopped(tmp_path: Path) -> None:
    argv = Wasm().argv(Sandbox(limits=Limits(seconds=0.1)), module(tmp_path, ECHO))
    with subprocess.Popen(argv, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.wait(SECONDS) == TIME


def test_a_module_whose_host_died_before_it_began_never_begins(tmp_path: Path) -> None:
    plan = Wasm().plan(Sandbox(limits=Limits(seconds=0.1)))
    request = {"key": 1, "plan": plan, "words": module(tmp_path, wasm_probes.SPIN), "environ": {}}
    elsewhere = os.getppid()
    code = f"from dragoman.sandbox import wasm_host\nwasm_host.become({request!r}, [0, 1, 2], {elsewhere})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=SECONDS, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (1, b"", b"")


def test_a_file_for_its_output_grows_no_larger_than_allowed(tmp_path: Path) -> None:
    flood = ECHO.replace("(drop (call $read", "(i32.store (i32.const 8) (i32.const 4096)) (drop (call $read").replace(
        "(call $read (i32.const 0)", "(call $read (i32.const 9)"
    )
    argv = Wasm().argv(Sandbox(limits=Limits(file_mb=1, seconds=0.5)), module(tmp_path, flood))
    printed = tmp_path / "printed"
    with printed.open("wb") as out:
        found = subprocess.run(
            argv, env={}, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, timeout=SECONDS, check=False
        )
    assert found.returncode != 0
    assert printed.stat().st_size <= 1 << 20


def test_a_file_that_is_no_module_is_refused(tmp_path: Path) -> None:
    found = run(Sandbox(), module(tmp_path, "nonsense"))
    assert found.returncode == REFUSED
    assert b"cannot be started" in found.stderr


def test_a_directory_that_may_be_written_is_written(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    found = run(Sandbox(write=(str(given),)), module(tmp_path, wasm_probes.opening("made", create=True)))
    assert found.returncode == wasm_probes.GOT_IT
    assert (given / "made").exists()


def test_only_named_variables_reach_a_module(tmp_path: Path) -> None:
    command = module(tmp_path, wasm_probes.ENVIRONMENT)
    given = {"KEY": "value", "TOKEN": "secret"}
    assert run(Sandbox(), command, **given).returncode == 0
    assert run(Sandbox(variables=("KEY",)), command, **given).returncode == wasm_probes.GOT_IT


def test_compiled_code_is_kept_and_used_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    assert run(Sandbox(), module(tmp_path, ECHO), b"x", cache=cache).stdout == b"x"
    (kept,) = cache.iterdir()
    before = kept.stat()
    assert run(Sandbox(), module(tmp_path, ECHO), b"y", cache=cache).stdout == b"y"
    assert kept.stat().st_mtime_ns == before.st_mtime_ns


def test_damaged_compiled_code_is_made_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    run(Sandbox(), module(tmp_path, ECHO), b"x", cache=cache)
    (kept,) = cache.iterdir()
    kept.write_bytes(b"damaged")
    assert run(Sandbox(), module(tmp_path, ECHO), b"y", cache=cache).stdout == b"y"


def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    """Whoever can put compiled code there could run anything."""
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    assert run(Sandbox(), module(tmp_path, ECHO), b"x", cache=cache).stdout == b"x"
    assert list(cache.iterdir()) == []
