"""What a child is told, and in which order, while its connection opens and closes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.core.commands import Command, OpenLink, PartLink
from dragoman.core.ids import AgentId
from dragoman.core.memory import MemoryBudget
from dragoman.supervisor.pipes import ThrottledPipes
from dragoman.supervisor.process import ChildContext, ChildProcess
from dragoman.supervisor.spawner_client import Ended, Handle, Launch

A1 = AgentId("a1")
PATIENCE = 60.0
LAUNCH = Launch(argv=("/bin/true",), env={}, cwd="/")
ORDER: Any = SimpleNamespace(weight=0, delivery=SimpleNamespace(id="d1", kind=None))


class Hub:
    """Commits nothing until it is let: commands wait for their outcome."""

    def __init__(self) -> None:
        self.memory = MemoryBudget()
        self.waiting: list[tuple[Command, asyncio.Future[Any]]] = []
        self.end: Any = None

    def mint(self) -> str:
        return "id"

    def now(self) -> int:
        return 0

    def agent(self, id: AgentId) -> Any:
        return SimpleNamespace(id=id)

    def attach(self, session: str, end: Any) -> None:
        self.end = end

    def detach(self, session: str) -> None:
        self.end = None

    def enqueue(self, command: Command) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((command, future))
        return future

    def commit(self) -> list[type[Command]]:
        """What waits, decided in its order."""
        waiting, self.waiting = self.waiting, []
        for _, future in waiting:
            future.set_result(None)
        return [type(command) for command, _ in waiting]


class SpawnerClient:
    """A process that is only the other end of three pipes."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    async def start(self, launch: Launch, streams: tuple[int, int, int]) -> Handle:
        self.stdin, self.stdout, self.stderr = streams
        loop = asyncio.get_running_loop()
        self.handle = Handle(1, loop.create_future(), loop.create_future())
        return self.handle

    def signal(self, handle: Handle, number: int) -> None:
        self.signals.append(number)

    def read(self) -> list[bytes]:
        os.set_blocking(self.stdin, False)
        try:
            return os.read(self.stdin, 65536).splitlines()
        except BlockingIOError:
            return []

    def close(self) -> None:
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.close(descriptor)


class FakeSession:
    protocol = "forge"

    def writable(self) -> None: ...

    def closed(self) -> None: ...

    def encode(self, outgoing: Any, agent: Any, now: int) -> list[bytes]:
        return [b"order"]

    def encode_shutdown(self, grace_ms: int, reason: str) -> bytes:
        return b"shutdown"


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
async def spawner() -> AsyncIterator[SpawnerClient]:
    spawner = SpawnerClient()
    yield spawner
    spawner.close()


@pytest.fixture
async def run(hub: Hub, spawner: SpawnerClient, tmp_path: Path) -> AsyncIterator[ChildProcess]:
    context = ChildContext(
        hub=hub,  # type: ignore[arg-type]
        spawner=spawner,  # type: ignore[arg-type]
        environments=None,  # type: ignore[arg-type]
        throttled=ThrottledPipes(),
        homes=tmp_path,
        session=lambda agent, connection, log, whole: FakeSession(),  # type: ignore[arg-type, return-value]
        environ={},
        sandbox_policy=None,  # type: ignore[arg-type]
        task=None,  # type: ignore[arg-type]
    )
    child: Any = SimpleNamespace(agent=A1)
    run = ChildProcess(child, context)
    await run.begin(LAUNCH)
    yield run
    run.discard()


@pytest.mark.requirement("forge-D10")
@pytest.mark.parametrize("stands", [False, True], ids=["the link is about to open", "the link stands"])
async def test_an_assignment_to_a_child_comes_before_the_shutdown(
    stands: bool, hub: Hub, spawner: SpawnerClient, run: ChildProcess
) -> None:
    serving = asyncio.ensure_future(run.serve())
    await turns()
    if stands:
        assert hub.commit() == [OpenLink]
        await serving
    ending = asyncio.ensure_future(run.end("stopping", 60.0))
    await turns()
    assert spawner.read() == []
    hub.end.deliver([ORDER])  # of a unit that was under way
    assert hub.commit() == ([PartLink] if stands else [OpenLink, PartLink])
    heard: list[bytes] = []
    async with asyncio.timeout(PATIENCE):
        while len(heard) < 2:  # each is written when the one before it was read
            heard += spawner.read()
            await asyncio.sleep(0)
    assert heard == [b"order", b"shutdown"]
    spawner.handle.ended.set_result(Ended(code=0))
    await asyncio.gather(serving, ending)
    assert spawner.signals == []


@pytest.mark.requirement("forge-D10")
async def test_a_child_that_ends_meanwhile_is_not_waited_for(
    hub: Hub, spawner: SpawnerClient, run: ChildProcess
) -> None:
    serving = asyncio.ensure_future(run.serve())
    await turns()
    ending = asyncio.ensure_future(run.end("stopping", 60.0))
    await turns()
    spawner.handle.ended.set_result(Ended(code=0))
    await ending
    assert spawner.signals == []
    hub.commit()
    await serving
