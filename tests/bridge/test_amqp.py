"""Chiffon over a message queue beside every protocol: what callers and agents of the SDK can do is the same there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dragoman import TaskCancelled, TaskFailed
from tests.bridge.players.neutral import PATIENCE, soon
from tests.bridge.players.stage import Stage, playing
from tests.bridge.sdk_pairs import LONG, PROTOCOLS, VALUES, Cast
from tests.support import rabbitmq

pytestmark = pytest.mark.asyncio(loop_scope="module")
QUEUE = "chiffon+amqp"
PAIRS = [(QUEUE, QUEUE), *((QUEUE, one) for one in PROTOCOLS), *((one, QUEUE) for one in ("api", *PROTOCOLS))]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cast(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cast]:
    with rabbitmq.host() as host:
        async with playing(Path(tmp_path_factory.mktemp("hub")), amqp=host.url) as stage:
            await connected(stage)
            everybody = Cast(stage)
            yield everybody
            await everybody.close()


async def connected(stage: Stage) -> None:
    """The hub is connected to the broker: before that, a client over the queue finds no hub."""
    async with asyncio.timeout(PATIENCE):
        while "dragoman_amqp_connected 1.0" not in (await stage.admin.get("/metrics")).text:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("caller", "worker"), PAIRS, ids=["-to-".join(pair) for pair in PAIRS])
async def test_a_pair_with_a_queue_has_the_same_outcomes(cast: Cast, caller: str, worker: str) -> None:
    hub, agent = await cast.caller(caller), await cast.agent(worker)
    for what, value in VALUES.items():
        assert await soon(hub.call("give", {"what": what}, agent=agent)) == value, what
    if "a2acp" not in (caller, worker):  # its messages have at most 1,000,000 bytes
        assert await soon(hub.call("long", {}, agent=agent)) == LONG
    with pytest.raises(TaskFailed, match="out of cheese"):
        await soon(hub.call("crash", {}, agent=agent))
    async with asyncio.timeout(PATIENCE):
        events = [event async for event in hub.stream("stream", {}, agent=agent)]
    assert events[-1].kind == "completed"
    handle = await soon(hub.submit("wait", {}, agent=agent))
    async with asyncio.timeout(PATIENCE):
        async for event in handle.events():
            if event.kind == "progress":
                break
    await soon(handle.cancel())
    with pytest.raises(TaskCancelled):
        await soon(handle.result())
