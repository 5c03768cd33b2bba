"""The spawner with real processes: what a child finds, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from dragoman.supervisor.spawner_client import Ended, Handle, Launch, SpawnerClient
from tests.support.children import DAEMON, PYTHON, children_of, command_of, program, runs, stat, zombies_of

PATIENCE = 60.0


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


class Started:
    def __init__(self, handle: Handle, stdin: int, stdout: int, stderr: int) -> None:
        self.handle, self.stdin, self.stdout, self.stderr = handle, stdin, stdout, stderr

    async def pid(self) -> int:
        async with asyncio.timeout(PATIENCE):
            pid = await self.handle.started
        assert pid is not None, await self.handle.ended
        return pid

    async def ended(self) -> Ended:
        async with asyncio.timeout(PATIENCE):
            return await self.handle.ended

    async def printed(self) -> str:
        """All of its output, until the end."""

        def read() -> bytes:
            found = b""
            while piece := os.read(self.stdout, 65536):
                found += piece
            return found

        async with asyncio.timeout(PATIENCE):
            return (await asyncio.to_thread(read)).decode()

    def close(self) -> None:
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.close(descriptor)


Start = Callable[..., Awaitable[Started]]


@pytest.fixture
async def spawner() -> AsyncIterator[SpawnerClient]:
    spawner = SpawnerClient(f"test{os.getpid()}x{os.urandom(4).hex()}")
    yield spawner
    async with asyncio.timeout(PATIENCE):
        await spawner.close()


@pytest.fixture
async def start(spawner: SpawnerClient, tmp_path: Path) -> AsyncIterator[Start]:
    made: list[Started] = []

    async def begin(*argv: str, env: dict[str, str] | None = None, **more: object) -> Started:
        (stdin, to), (out, stdout), (err, stderr) = os.pipe(), os.pipe(), os.pipe()
        launch = Launch(argv=argv, env=env or {"PATH": os.environ["PATH"]}, **{"cwd": str(tmp_path), **more})  # type: ignore[arg-type]
        started = Started(await spawner.start(launch, (stdin, stdout, stderr)), to, out, err)
        made.append(started)
        return started

    yield begin
    for started in made:
        started.close()


async def test_a_child_speaks_over_the_streams_it_was_given(start: Start) -> None:
    child = await start("cat")
    os.write(child.stdin, b"hello\n")
    assert await asyncio.to_thread(os.read, child.stdout, 100) == b"hello\n"
    assert runs(await child.pid())
    os.close(child.stdin)
    child.stdin = os.open("/dev/null", os.O_RDONLY)
    assert await child.ended() == Ended(code=0)


@pytest.mark.parametrize(
    ("command", "how"),
    [
        (("true",), Ended(code=0)),
        (("sh", "-c", "exit 7"), Ended(code=7)),
        (("sh", "-c", "kill -9 $$"), Ended(signal=9)),
    ],
)
async def test_the_end_of_a_child_is_reported(start: Start, command: tuple[str, ...], how: Ended) -> None:
    assert await (await start(*command)).ended() == how


async def test_a_command_that_cannot_be_started_says_why(start: Start, tmp_path: Path) -> None:
    child = await start("no-such-program")
    why = "'no-such-program' cannot be started: No such file or directory"
    assert await child.ended() == Ended(failed=why, permanent=True)
    assert await child.handle.started is None
    child = await start("true", cwd=str(tmp_path / "nowhere"))
    assert "cannot be entered" in (await child.ended()).failed  # type: ignore[operator]
    assert await (await start("true")).ended() == Ended(code=0)


async def test_a_child_has_only_the_environment_it_was_given(
    start: Start, spawner: SpawnerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "of the hub")
    child = await start("env", env={"PATH": os.environ["PATH"], "MINE": "x"})
    printed = dict(line.split("=", 1) for line in (await child.printed()).splitlines())
    assert printed == {"PATH": os.environ["PATH"], "MINE": "x", "DRAGOMAN_DESCENDANT": f"{spawner.mark}:1"}
    assert b"CANARY" not in Path(f"/proc/{spawner.pid}/environ").read_bytes()


async def test_no_descriptor_is_inherited(start: Start) -> None:
    with socket.socket() as ours:
        os.set_inheritable(ours.fileno(), True)
        child = await start(*program("import os", "print(sorted(map(int, os.listdir('/proc/self/fd'))))"))
        descriptors = await child.printed()
    assert descriptors.strip() == "[0, 1, 2, 3]"  # the last is the listing itself


async def test_limits_are_in_force(start: Start) -> None:
    names = ("RLIMIT_CORE", "RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE")
    child = await start(
        sys.executable, "-c", f"import resource as r; print([r.getrlimit(getattr(r, n)) for n in {names}])",
        limits={"core": 0, "open_files": 64, "memory": 1 << 30, "cpu_seconds": 9, "file_size": 1 << 20},
    )  # fmt: skip
    wanted = [(most, most) for most in (0, 64, 1 << 30, 9, 1 << 20)]
    assert (await child.printed()).strip() == str(wanted)


async def test_a_child_is_alone_in_its_session_and_gains_no_privileges(start: Start) -> None:
    child = await start("cat", "/proc/self/status", "/proc/self/stat")
    printed = await child.printed()
    said = dict(line.split(":\t", 1) for line in printed.splitlines() if ":\t" in line)
    group, session = printed.rpartition(")")[2].split()[2:4]
    assert group == session == said["Pid"]
    ignored = int(said["SigIgn"], 16) & ~(3 << 31)  # 32 and 33 are the C library's own: nobody can set them back
    assert (said["NoNewPrivs"], ignored, int(said["SigBlk"], 16)) == ("1", 0, 0)


async def test_a_signal_goes_to_the_whole_group(start: Start, spawner: SpawnerClient) -> None:
    child = await start("sh", "-c", "sleep 600 & echo $!; wait")
    sleeping = int(await asyncio.to_thread(os.read, child.stdout, 100))
    await child.pid()
    spawner.signal(child.handle, signal.SIGTERM)
    assert (await child.ended()).signal == signal.SIGTERM
    await until(lambda: not runs(sleeping), "the sleeper dies too")


async def test_what_a_child_leaves_behind_dies_with_it(start: Start, spawner: SpawnerClient, tmp_path: Path) -> None:
    """In its group, and in a session of its own."""
    child = await start("sh", "-c", 'sleep 600 & echo $!; "$@"', "sh", *PYTHON, DAEMON, str(tmp_path / "daemon"))
    sleeping = int(await asyncio.to_thread(os.read, child.stdout, 100))
    assert (await child.ended()).clean
    daemon = int((tmp_path / "daemon").read_text())
    await until(lambda: not runs(sleeping) and not runs(daemon), "both die")
    assert spawner.pid is not None
    await until(lambda: not zombies_of(spawner.pid or 0), "and are reaped")
    assert children_of(spawner.pid) == []


async def test_a_daemon_of_a_living_child_is_let_live(start: Start, spawner: SpawnerClient, tmp_path: Path) -> None:
    child = await start("sh", "-c", '"$@"; sleep 600', "sh", *PYTHON, DAEMON, str(tmp_path / "daemon"))
    await until((tmp_path / "daemon").exists, "it is there")
    daemon = int((tmp_path / "daemon").read_text())
    other = await start("true")
    assert (await other.ended()).clean
    await until(lambda: (stat(daemon) or ("", 0))[1] == spawner.pid, "it came to the spawner")
    assert runs(daemon)
    spawner.signal(child.handle, signal.SIGKILL)
    await until(lambda: not runs(daemon), "it dies with its child")


async def test_a_process_without_the_mark_dies_with_a_child_that_is_stopped(
    start: Start, spawner: SpawnerClient
) -> None:
    child = await start("sh", "-c", "env -i setsid sleep 600 & echo $!; sleep 600")
    sleeping = int(await asyncio.to_thread(os.read, child.stdout, 100))
    await until(lambda: Path(f"/proc/{sleeping}/cmdline").read_bytes().startswith(b"sleep"), "it broke away")
    spawner.signal(child.handle, signal.SIGTERM)
    await until(lambda: not runs(sleeping), "it dies with its child")


async def test_a_process_without_the_mark_dies_when_no_living_child_can_have_started_it(
    start: Start, spawner: SpawnerClient
) -> None:
    older = await start("sleep", "600")
    await older.pid()
    child = await start("sh", "-c", "(env -i setsid sleep 600 & echo $!); read over")
    stray = int(await asyncio.to_thread(os.read, child.stdout, 100))
    await until(lambda: command_of(stray).startswith(b"sleep"), "it took the mark off")
    await until(lambda: stray in children_of(spawner.pid or 0), "it came to the spawner")
    os.write(child.stdin, b"\n")
    await child.ended()
    assert runs(stray)  # it may be the older one's
    spawner.signal(older.handle, signal.SIGKILL)
    await until(lambda: not runs(stray), "it is nobody's")


async def test_closing_the_spawner_kills_everything(start: Start, spawner: SpawnerClient, tmp_path: Path) -> None:
    child = await start("sh", "-c", '"$@"; sleep 600', "sh", *PYTHON, DAEMON, str(tmp_path / "daemon"))
    pid = await child.pid()
    await until((tmp_path / "daemon").exists, "it is there")
    daemon = int((tmp_path / "daemon").read_text())
    helper = spawner.pid
    assert helper is not None
    async with asyncio.timeout(PATIENCE):
        await spawner.close()
    await until(lambda: not runs(pid) and not runs(daemon), "both die")
    assert stat(helper) is None
    assert child.handle.ended.done()


async def test_a_killed_spawner_takes_its_children_along_and_is_replaced(
    start: Start, spawner: SpawnerClient, tmp_path: Path
) -> None:
    child = await start("sh", "-c", '"$@"; sleep 600', "sh", *PYTHON, DAEMON, str(tmp_path / "daemon"))
    pid = await child.pid()
    await until((tmp_path / "daemon").exists, "it is there")
    daemon = int((tmp_path / "daemon").read_text())
    first = spawner.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert (await child.ended()).signal == signal.SIGKILL
    await until(lambda: not runs(pid) and not runs(daemon), "both die")
    assert (await (await start("true")).ended()).clean
    assert spawner.pid not in (None, first)


async def test_leftovers_of_an_earlier_life_are_found_by_their_mark(start: Start, spawner: SpawnerClient) -> None:
    child = await start("sleep", "600")
    pid = await child.pid()
    await spawner.sweep()
    assert runs(pid)  # ours
    orphan = await asyncio.create_subprocess_exec(
        "sleep", "600", env={**os.environ, "DRAGOMAN_DESCENDANT": f"{spawner.mark}:7"}
    )
    assert await spawner.sweep() == 1
    async with asyncio.timeout(PATIENCE):
        assert await orphan.wait() == -signal.SIGKILL
    assert runs(pid)


async def test_many_children_start_and_end(start: Start, spawner: SpawnerClient) -> None:
    children = [await start("sh", "-c", f"exit {number}") for number in range(60)]
    assert [(await child.ended()).code for child in children] == list(range(60))
    assert spawner.pid is not None
    assert children_of(spawner.pid) == []
