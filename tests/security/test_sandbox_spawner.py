"""The sandbox as the hub would start it: a command line for the spawner, nothing else."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.sandbox.levels import SandboxBackend, SandboxLevels, all_levels
from dragoman.sandbox.model import Level, Limits, Sandbox
from dragoman.sandbox.program_files import interpreter
from dragoman.supervisor.spawner_client import Ended, Launch, SpawnerClient
from tests.support.sandboxes import backend_of

PATIENCE = 60.0
AGENT = (
    "import json, os, sys\n"
    "print(json.dumps({'pid': os.getpid(), 'home': os.listdir('.'), 'key': os.environ['KEY']}), flush=True)\n"
    "for line in sys.stdin: print(line.upper(), end='', flush=True)\n"
)
_levels: list[SandboxLevels] = []


@pytest.fixture(autouse=True)
def still_serving() -> None:
    """No hub takes part here."""


WEAKER = [pytest.mark.soak] if shutil.which("bwrap") else []
"""What this machine has something stronger for is tried in long runs only."""


@pytest.fixture(params=[Level.BUBBLEWRAP, pytest.param(Level.LANDLOCK, marks=WEAKER)], ids=str)
def backend(request: pytest.FixtureRequest) -> SandboxBackend:
    if not _levels:
        _levels.append(all_levels())
    backend = backend_of(_levels[0], request.param)
    report = _levels[0].report(backend)
    if not report.passed:
        pytest.skip(f"{report.level}: {report.why_not}; {report.remedy}")
    return backend


@pytest.fixture
async def spawner() -> AsyncIterator[SpawnerClient]:
    spawner = SpawnerClient(f"test{os.getpid()}x{os.urandom(4).hex()}")
    yield spawner
    async with asyncio.timeout(PATIENCE):
        await spawner.close()


class Child:
    def __init__(self, spawner: SpawnerClient, backend: SandboxBackend, home: Path) -> None:
        self._spawner = spawner
        env = {"KEY": "value", "LANG": "C.UTF-8"}
        sandbox = Sandbox(write=(str(home),), cwd=str(home), variables=tuple(env), limits=Limits(memory_mb=256))
        argv = backend.argv(sandbox, (interpreter(), "-I", "-S", "-c", AGENT))
        self._launch = Launch(argv=argv, env=env, cwd="/", limits={"core": 0, "open_files": 1024})
        (self._stdin, self.to), (self.out, self._stdout), (self.err, self._stderr) = (os.pipe() for _ in range(3))

    async def begin(self) -> None:
        self.handle = await self._spawner.start(self._launch, (self._stdin, self._stdout, self._stderr))
        async with asyncio.timeout(PATIENCE):
            assert await self.handle.started is not None, await self.handle.ended

    async def line(self) -> bytes:
        """Empty at the end of its output."""

        def read() -> bytes:
            found = b""
            while not found.endswith(b"\n") and (piece := os.read(self.out, 1)):
                found += piece
            return found

        async with asyncio.timeout(PATIENCE):
            return await asyncio.to_thread(read)

    async def ended(self) -> Ended:
        async with asyncio.timeout(PATIENCE):
            return await self.handle.ended


async def test_lines_go_in_and_come_out_until_its_input_ends(
    spawner: SpawnerClient, backend: SandboxBackend, tmp_path: Path
) -> None:
    (tmp_path / "mine").touch()
    child = Child(spawner, backend, tmp_path)
    await child.begin()
    first = await child.line()
    assert b'"home": ["mine"], "key": "value"' in first, os.read(child.err, 4096)
    os.write(child.to, b'{"type":"ping"}\n')
    assert await child.line() == b'{"TYPE":"PING"}\n'
    os.close(child.to)
    assert (await child.ended()).code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_ends_all_of_it(
    spawner: SpawnerClient, backend: SandboxBackend, tmp_path: Path, number: int
) -> None:
    child = Child(spawner, backend, tmp_path)
    await child.begin()
    assert await child.line()
    spawner.signal(child.handle, number)
    assert (await child.ended()).clean is False
    assert await child.line() == b""


async def test_nothing_of_it_outlives_the_spawner(
    spawner: SpawnerClient, backend: SandboxBackend, tmp_path: Path
) -> None:
    child = Child(spawner, backend, tmp_path)
    await child.begin()
    assert await child.line()
    assert spawner.pid is not None
    os.kill(spawner.pid, signal.SIGKILL)
    assert await child.line() == b""
