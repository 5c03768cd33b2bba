"""Breaking out of a process's sandbox, attack by attack, in every level that this machine has.

The attacks of the self-test are shown one by one; those that need more steps follow. At the end the self-test
itself is tested: with any one wall left out it must fail, or it would prove nothing.
"""

from __future__ import annotations

import ast
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from dragoman.sandbox import launcher, probes, seccomp
from dragoman.sandbox.model import Level, Limits, Probe, Report, Sandbox
from dragoman.sandbox.processes import Bubblewrap, Landlock
from dragoman.sandbox.program_files import interpreter
from dragoman.sandbox.self_test import SECRET, run_probes

SandboxBackend = Bubblewrap | Landlock
RUNGS: dict[Level, Callable[[], SandboxBackend]] = {Level.BUBBLEWRAP: Bubblewrap, Level.LANDLOCK: Landlock}
SECONDS = 60
_reports: dict[Level, Report] = {}


@pytest.fixture(autouse=True)
def still_serving() -> None:
    """No hub takes part here."""


def report_of(level: Level) -> Report:
    if level not in _reports:
        _reports[level] = RUNGS[level]().self_test()
    return _reports[level]


@pytest.fixture(params=list(RUNGS), ids=str)
def report(request: pytest.FixtureRequest) -> Report:
    found = report_of(request.param)
    if not found.available:
        pytest.skip(f"{found.level}: {found.why_not}; {found.remedy}")
    return found


@pytest.fixture
def backend(report: Report) -> SandboxBackend:
    if not report.passed:
        pytest.skip(f"{report.level} does not hold on this machine: {report.why_not}")
    return RUNGS[report.level]()


@pytest.fixture
def bubblewrap() -> Bubblewrap:
    found = report_of(Level.BUBBLEWRAP)
    if not found.passed:
        pytest.skip(f"bubblewrap: {found.why_not}; {found.remedy}")
    return Bubblewrap()


@pytest.mark.parametrize("name", [probe.__name__ for probe in probes.PROBES])
def test_attack_is_refused(report: Report, name: str) -> None:
    found = {probe.attempt: probe for probe in report.probes}
    probe: Probe | None = found.get(name.replace("_", " "))
    assert probe is not None, report.why_not
    assert probe.refused, probe.saw


def python(source: str) -> tuple[str, ...]:
    return (interpreter(), "-I", "-S", "-c", source)


def run(
    backend: SandboxBackend, sandbox: Sandbox, source: str, said: bytes = b"", **environ: str
) -> subprocess.CompletedProcess[bytes]:
    argv = backend.argv(sandbox, python(source))
    return subprocess.run(argv, env=environ, input=said, capture_output=True, timeout=SECONDS, check=False)


# -- what is allowed works: a sandbox in which nothing runs would pass every attack


def test_its_streams_files_and_variables_are_there(backend: SandboxBackend, tmp_path: Path) -> None:
    readable, home = tmp_path / "readable", tmp_path / "home"
    readable.write_text("given")
    home.mkdir()
    sandbox = Sandbox(read=(str(readable),), write=(str(home),), cwd=str(home), variables=("KEY",))
    source = f"""import os, subprocess, sys, threading
thread = threading.Thread(target=lambda: open("made", "w").write(sys.stdin.readline()))
thread.start(); thread.join()
subprocess.run(["/bin/sh", "-c", "echo from a child"], check=True)
print(open({str(readable)!r}).read(), os.environ["KEY"], os.getcwd())"""
    found = run(backend, sandbox, source, b"line\n", KEY="value", OTHER="kept away")
    assert (found.returncode, found.stderr) == (0, b"")
    assert found.stdout.decode().splitlines() == ["from a child", f"given value {home}"]
    assert (home / "made").read_text() == "line\n"


def test_a_program_is_found_by_its_name(backend: SandboxBackend) -> None:
    argv = backend.argv(Sandbox(variables=("PATH",)), ("sh", "-c", "echo $0 $KEY", "ran"))
    environ = {"PATH": "/nowhere:/usr/bin:/bin", "KEY": "kept away"}
    found = subprocess.run(argv, env=environ, capture_output=True, timeout=SECONDS, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"ran\n", b"")


def test_the_environment_is_what_was_allowed_and_nothing_more(backend: SandboxBackend) -> None:
    argv = backend.argv(Sandbox(variables=("KEY", "ABSENT")), ("/usr/bin/env",))
    environ = {"KEY": "value", "DRAGOMAN_TOKEN": "secret", "LD_PRELOAD_X": "x", "PATH": "/bin"}
    found = subprocess.run(argv, env=environ, capture_output=True, timeout=SECONDS, check=False)
    assert (found.returncode, found.stdout) == (0, b"KEY=value\n")


def test_its_exit_code_is_passed_on(backend: SandboxBackend) -> None:
    assert run(backend, Sandbox(), "raise SystemExit(7)").returncode == 7


@pytest.mark.parametrize("program", ["/no/such/program", "no-such-program"])
def test_a_missing_program_is_named_and_nothing_else_runs(backend: SandboxBackend, program: str) -> None:
    argv = backend.argv(Sandbox(), (program,))
    found = subprocess.run(argv, env={}, capture_output=True, timeout=SECONDS, check=False)
    assert found.returncode == launcher.REFUSED
    assert b"cannot be started in the sandbox" in found.stderr


# -- longer attacks


def test_the_hubs_data_directory_cannot_be_read_from_a_home_within_it(backend: SandboxBackend, tmp_path: Path) -> None:
    home = tmp_path / "hub" / "homes" / "agent"
    home.mkdir(parents=True)
    (tmp_path / "hub" / "admin.token").write_text("canary-token")
    sandbox = Sandbox(write=(str(home),), cwd=str(home), hidden=(str(tmp_path / "hub"),))
    found = run(backend, sandbox, "print(open('../../admin.token').read())")
    assert found.returncode == 1
    assert b"canary-token" not in found.stdout + found.stderr


def test_the_hubs_data_directory_stays_hidden_where_all_around_it_is_allowed(
    bubblewrap: Bubblewrap, tmp_path: Path
) -> None:
    home = tmp_path / "hub" / "homes" / "agent"
    home.mkdir(parents=True)
    (home / "mine").write_text("mine")
    (tmp_path / "hub" / "admin.token").write_text("canary-token")
    (tmp_path / "beside").write_text("beside")
    sandbox = Sandbox(read=(str(tmp_path),), write=(str(home),), cwd=str(home), hidden=(str(tmp_path / "hub"),))
    source = """import os
print(open("mine").read(), open("../../../beside").read(), os.listdir("../.."))
open("../../planted", "w")"""
    found = run(bubblewrap, sandbox, source)
    assert found.stdout == b"mine beside ['homes']\n"
    assert b"Read-only" in found.stderr
    assert not (tmp_path / "hub" / "planted").exists()


def test_a_read_only_place_cannot_be_written_by_any_name(backend: SandboxBackend, tmp_path: Path) -> None:
    place, home = tmp_path / "place", tmp_path / "home"
    place.mkdir()
    home.mkdir()
    (place / "file").write_text("as it was")
    sandbox = Sandbox(read=(str(place),), write=(str(home),), cwd=str(home))
    source = f"""import os
os.symlink({str(place / "file")!r}, "link")
def attempt(name, act):
    try: act(); print("did", name)
    except OSError: pass
attempt("write", lambda: open({str(place / "file")!r}, "a").write("changed"))
attempt("follow", lambda: open("link", "w").write("changed"))
attempt("truncate", lambda: os.truncate({str(place / "file")!r}, 0))
attempt("unlink", lambda: os.unlink({str(place / "file")!r}))
attempt("move", lambda: os.rename({str(place / "file")!r}, "moved"))
attempt("link", lambda: (os.link({str(place / "file")!r}, "hard"), open("hard", "w").write("changed")))
attempt("make", lambda: os.mkdir({str(place / "made")!r}))"""
    found = run(backend, sandbox, source)
    assert (found.returncode, found.stdout) == (0, b"")
    assert (place / "file").read_text() == "as it was"
    assert [each.name for each in place.iterdir()] == ["file"]


def test_a_fork_bomb_ends_at_the_limit_and_dies_with_its_first_process(backend: SandboxBackend) -> None:
    source = """import os
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            os.read(0, 1); os._exit(0)
        made += 1
except OSError: pass
print(made)"""
    found = run(backend, Sandbox(limits=Limits(processes=12)), source)
    assert 0 < int(found.stdout) < 12


def test_memory_beyond_the_limit_is_not_had_in_small_pieces_either(backend: SandboxBackend) -> None:
    source = """held = []
try:
    while len(held) < 4096: held.append(b"x" * (1 << 20))
except MemoryError: pass
got, held = len(held), None
print(got)"""
    found = run(backend, Sandbox(limits=Limits(memory_mb=128)), source)
    assert found.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL), found.stderr
    assert int(found.stdout or b"0") < 128


def test_memory_is_not_had_as_files_in_tmp(bubblewrap: Bubblewrap) -> None:
    source = """import os
written = {}
for place in ("/tmp", "/dev/shm", "/dev", "/", "/run"):
    written[place] = 0
    try:
        for number in range(64):
            with open(f"{place}/{number}", "wb", buffering=0) as file:
                written[place] += file.write(bytes(1 << 20))
    except OSError: pass
print({place: size >> 20 for place, size in written.items()})"""
    found = run(bubblewrap, Sandbox(limits=Limits(scratch_mb=4)), source)
    assert ast.literal_eval(found.stdout.decode()) == {"/tmp": 4, "/dev/shm": 4, "/dev": 0, "/": 0, "/run": 0}, (
        found.stderr
    )


def test_a_file_grows_no_larger_than_allowed(backend: SandboxBackend, tmp_path: Path) -> None:
    sandbox = Sandbox(write=(str(tmp_path),), cwd=str(tmp_path), limits=Limits(file_mb=1))
    run(backend, sandbox, "open('large', 'wb', buffering=0).write(bytes(3 << 20))")
    assert (tmp_path / "large").stat().st_size <= 1 << 20


def test_cpu_time_ends(backend: SandboxBackend) -> None:
    found = run(backend, Sandbox(limits=Limits(cpu_seconds=1)), "while True: pass")
    assert found.returncode in (-signal.SIGKILL, -signal.SIGXCPU, 128 + signal.SIGKILL, 128 + signal.SIGXCPU)


def test_it_sees_no_process_but_its_own(bubblewrap: Bubblewrap) -> None:
    """Landlock forbids signals to others, where the kernel is new enough, and not the sight of them."""
    seen = run(bubblewrap, Sandbox(), "import os; print(*(pid for pid in os.listdir('/proc') if pid.isdigit()))")
    assert len(seen.stdout.split()) == 2, seen  # bubblewrap's first one, and itself


def test_privileges_are_not_gained_by_a_program_that_has_them(backend: SandboxBackend) -> None:
    source = (
        """print([line for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd", "NoNewPrivs"))])"""
    )
    if isinstance(backend, Landlock):  # no /proc inside
        source = """import ctypes
libc = ctypes.CDLL(None)
print([libc.prctl(39, 0, 0, 0, 0), *(libc.prctl(23, capability, 0, 0, 0) for capability in range(41))])
import os; os.chown("/tmp", 1, 1)"""
    found = run(backend, Sandbox(), source)
    if isinstance(backend, Landlock):
        held = ast.literal_eval(found.stdout.decode().splitlines()[0])
        assert held[0] == 1
        assert found.returncode == 1
        if os.geteuid() == 0:
            assert set(held[1:]) == {0}
    else:
        assert found.stdout.count(b"0000000000000000") == 2, found.stdout
        assert b"NoNewPrivs:\\t1" in found.stdout


def test_nothing_outlives_its_parent(bubblewrap: Bubblewrap) -> None:
    """The starter is killed, not the sandbox: the pipe that the innermost process holds must end all the same."""
    ours, theirs = os.pipe()
    source = "import os, signal; os.fork(); os.setsid() if os.getpid() > 3 else 0; os.write(2, b'x'); signal.pause()"
    argv = bubblewrap.argv(Sandbox(), python(source))
    starter = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *argv],
        stdin=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as end:
        assert select.select([end], [], [], SECONDS)[0]
        assert end.read(1) == b"x"
        starter.kill()
        starter.wait(SECONDS)
        while select.select([end], [], [], SECONDS)[0]:
            if not end.read(64):
                return
    pytest.fail("something still holds the pipe")


# -- the way out, when hosts are allowed

CLIENT = """import os, socket, sys
def ask(target):
    host, port = os.environ["HTTPS_PROXY"].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as proxy:
        proxy.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n".encode())
        status = proxy.recv(1024).split(b" ")[1].decode()
        if status == "200":
            proxy.sendall(b"hello"); return status + " " + proxy.recv(64).decode()
        return status
for target in sys.stdin.read().split(): print(ask(target))
"""


@pytest.fixture
def echo() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.sendall(client.recv(64).upper())

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_an_allowed_host_is_reached_and_no_other(bubblewrap: Bubblewrap, echo: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as another:
        sandbox = Sandbox(hosts=(f"127.0.0.1:{echo}", f"localhost:{echo}"))
        targets = [f"127.0.0.1:{echo}", f"127.0.0.1:{another.getsockname()[1]}", f"localhost:{echo}", "example.org:443"]
        found = run(bubblewrap, sandbox, CLIENT, " ".join(targets).encode())
        another.setblocking(False)
        with pytest.raises(BlockingIOError):
            another.accept()
    assert found.stdout.decode().splitlines() == ["200 HELLO", "403", "403", "403"], found.stderr


def test_with_an_allowed_host_the_network_itself_is_still_not_there(bubblewrap: Bubblewrap, echo: int) -> None:
    source = f"import socket; socket.create_connection(('127.0.0.1', {echo}), timeout=60)"
    found = run(bubblewrap, Sandbox(hosts=(f"127.0.0.1:{echo}",)), source)
    assert found.returncode == 1
    assert b"ConnectionRefusedError" in found.stderr


# -- the self-test must be able to fail


ALLOW_ALL = seccomp.INSTRUCTION.pack(seccomp.RETURN, 0, 0, seccomp.ALLOW)


class Opened(Bubblewrap):
    """Bubblewrap with one wall left out."""

    def __init__(self, wall: str) -> None:
        super().__init__()
        self._wall = wall

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]:
        match self._wall:
            case "files":
                sandbox = msgspec.structs.replace(sandbox, read=(*sandbox.read, "/tmp"))
            case "writing":
                sandbox = msgspec.structs.replace(sandbox, write=("/tmp",))
            case "variables":
                sandbox = msgspec.structs.replace(sandbox, variables=("PATH", SECRET))
            case "limits":
                sandbox = msgspec.structs.replace(sandbox, limits=Limits())
        argv = super().argv(sandbox, command)
        plan = launcher.read(argv[4])["outside"]
        match self._wall:
            case "seccomp":
                plan["filter"] = ALLOW_ALL
            case "landlock":
                plan["inner"]["rules"] = [("/", "write")]
            case "network":
                plan["filter"] = ALLOW_ALL
                plan["bwrap"].insert(2, "--share-net")
        return (*argv[:4], launcher.written({"outside": plan}), *argv[5:])


@pytest.mark.parametrize(
    ("wall", "gets_through"),
    [
        ("files", "read a file outside"),
        ("writing", "write a file outside"),
        ("variables", "find a secret in the environment"),
        ("limits", "fork beyond the limit"),
        ("limits", "take more memory"),
        ("seccomp", "trace a process"),
        ("seccomp", "use the kernels keys"),
        ("seccomp", "leave a program set user id"),
        ("seccomp", "make a network socket"),
        ("network", "send a datagram"),
    ],
)
def test_the_self_test_fails_when_a_wall_is_left_out(bubblewrap: Bubblewrap, wall: str, gets_through: str) -> None:
    found = run_probes(Level.BUBBLEWRAP, "opened", Opened(wall).argv, "put it back")
    assert not found.passed
    assert gets_through in [probe.attempt for probe in found.probes if not probe.refused]


def test_without_landlock_the_other_walls_hold_alone(bubblewrap: Bubblewrap) -> None:
    """It is the second wall: what it refuses is refused by the first one too."""
    found = run_probes(Level.BUBBLEWRAP, "opened", Opened("landlock").argv, "put it back")
    assert [probe.attempt for probe in found.probes if not probe.refused] == []


def test_a_wall_that_cannot_be_put_up_is_not_gone_without(bubblewrap: Bubblewrap) -> None:
    """The launcher is told a filter that the kernel refuses: nothing may run."""
    argv = bubblewrap.argv(Sandbox(), ("/bin/echo", "it ran"))
    plan = launcher.read(argv[4])["outside"]
    plan["filter"] = b"\xff" * 8
    argv = (*argv[:4], launcher.written({"outside": plan}), *argv[5:])
    found = subprocess.run(argv, env={}, capture_output=True, timeout=SECONDS, check=False)
    assert found.returncode != 0
    assert found.stdout == b""
