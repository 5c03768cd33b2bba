"""Sets the scene for the probes, runs them in the sandbox that is to be proved, and judges from outside.

The scene is real: a file with a canary, listening sockets, a process to kill, a secret in the environment and in
another process, an open descriptor. What can be seen from outside is judged there: a probe that claims to be refused
but left a file, a connection or a dead process behind was not refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.sandbox import probes
from dragoman.sandbox.model import Level, Limits, Probe, Report, Sandbox
from dragoman.sandbox.program_files import interpreter

SECONDS = 30.0
LIMITS = Limits(memory_mb=256, processes=16, open_files=64, file_mb=8, scratch_mb=8, cpu_seconds=20)
SECRET = "DRAGOMAN_PROBE_SECRET"
SCRIPT = Path(probes.__file__)
STDERR_SHOWN = 600


class ProbeSetup(NamedTuple):
    inputs: dict[str, Any]
    outside: Path
    secret: str
    victim: subprocess.Popen[bytes]
    listener: socket.socket
    leaked: int


def run_probes(
    level: Level, version: str, argv: Callable[[Sandbox, tuple[str, ...]], tuple[str, ...]], remedy: str
) -> Report:
    """Every probe, in the sandbox that `argv` builds."""
    with _set_up() as setup:
        sandbox = Sandbox(
            read=(str(SCRIPT),),
            write=(setup.inputs["home"],),
            cwd=setup.inputs["home"],
            variables=("PATH",),
            limits=LIMITS,
        )
        command = (interpreter(), "-I", "-S", str(SCRIPT))
        try:
            run = subprocess.run(
                argv(sandbox, command),
                env={"PATH": os.environ.get("PATH", os.defpath), SECRET: setup.secret},
                input=json.dumps(setup.inputs).encode(),
                capture_output=True,
                timeout=SECONDS,
                pass_fds=(setup.leaked,),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Report.broken(level, version, f"the self-test did not end within {SECONDS:g} s", remedy)
        except OSError as error:
            return Report.broken(level, version, f"it does not start: {error}", remedy)
        found = tuple(_checked_from_outside(probe, setup) for probe in _results(run.stdout))
    if not found:
        printed = run.stderr.decode("utf-8", "replace").strip()[-STDERR_SHOWN:] or f"exit code {run.returncode}"
        return Report.broken(level, version, f"it does not start: {printed}", remedy)
    return Report.judged(level, version, found, expected=len(probes.PROBES), remedy=remedy)


def _results(output: bytes) -> Iterator[Probe]:
    for line in output.splitlines():
        attempt, refused, saw = json.loads(line)
        yield Probe(attempt=attempt.replace("_", " "), refused=refused, saw=saw)


def _checked_from_outside(probe: Probe, setup: ProbeSetup) -> Probe:
    """What happened, which may not be what the probe reports."""
    happened: bool
    match probe.attempt.replace(" ", "_"):
        case "write_a_file_outside":
            happened = (setup.outside / "written").exists()
        case "kill_a_process_outside":
            happened = setup.victim.poll() is not None
        case "connect_to_the_host":
            happened = probe.refused is False or _was_connected_to(setup.listener)
        case _:
            return probe
    return Probe(attempt=probe.attempt, refused=not happened, saw=probe.saw)


def _was_connected_to(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _set_up() -> Iterator[ProbeSetup]:
    secret = secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        inside, outside = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"dragoman-{name}-")))
            for name in ("inside", "outside")
        )
        canary = outside / "canary"
        canary.write_text(secret)
        leaked = os.open(canary, os.O_RDONLY)
        stack.callback(os.close, leaked)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        local, abstract = stack.enter_context(socket.socket(socket.AF_UNIX)), f"dragoman-{secrets.token_hex(8)}"
        local.bind(f"{outside}/s")
        local.listen()
        hidden = stack.enter_context(socket.socket(socket.AF_UNIX))
        hidden.bind("\0" + abstract)
        hidden.listen()
        victim = subprocess.Popen(
            [interpreter(), "-I", "-S", "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            env={SECRET: secret},
        )
        stack.callback(_end, victim)
        inputs = {
            "canary": str(canary),
            "outside": str(outside),
            "home": str(inside),
            "port": listener.getsockname()[1],
            "abstract": abstract,
            "processes": LIMITS.processes,
            "memory_mb": LIMITS.memory_mb,
            "victim": victim.pid,
            "secret": secret,
        }
        yield ProbeSetup(inputs, outside, secret, victim, listener, leaked)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
