"""Agents on RabbitMQ at work while hubs, or the broker, are killed under them. What they sent, did and received stands
in the `Ledger`.

Acknowledged is what the broker has confirmed: from then on the message is the broker's and the hub's. An agent whose
connection breaks connects again, and publishes again what was not confirmed, with the same ids.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aio_pika.exceptions import AMQPError, ChannelInvalidStateError, DeliveryError
from aiormq.exceptions import AMQPError as ConnectionLost

from tests.support.amqp_agent import PATIENCE, QueueAgent, about, result, work
from tests.support.ledger import Ledger

BROKEN = (OSError, AMQPError, ConnectionLost, ChannelInvalidStateError, DeliveryError, TimeoutError, RuntimeError)
KIND = "infra"
AT_ONCE = 16


class QueueFleet:
    """`tokens`: of the orchestrator and of each worker, by id."""

    def __init__(self, url: str, tokens: Mapping[str, str], ledger: Ledger, seed: int = 1) -> None:
        self.ledger = ledger
        self.sending = asyncio.Event()
        self.changed = asyncio.Condition()
        self._url = url
        self._tokens = tokens
        self._random = random.Random(seed)
        self._results: dict[tuple[str, str], dict[str, Any]] = {}
        """Agents remember what they did: their memory is not what is tested."""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> QueueFleet:
        self.sending.set()
        workers = [id for id in self._tokens if id != "orchestrator"]
        runs = [self._always("orchestrator", self._collect), self._always("orchestrator", self._submit)]
        runs += [self._always(id, self._work) for id in workers]
        self._tasks = [asyncio.ensure_future(run) for run in runs]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- what a test waits for

    async def until(self, holds: Callable[[], object], what: str, seconds: float = 1.5 * PATIENCE) -> None:
        """Until this holds of the ledger, which is looked at after each of its changes."""
        try:
            async with asyncio.timeout(seconds), self.changed:
                await self.changed.wait_for(lambda: self._check() or holds())
        except TimeoutError:
            raise AssertionError(
                f"not within {seconds:g} s: {what}; {len(self.ledger.unanswered)} unanswered"
            ) from None

    async def more(self, count: int = 20) -> None:
        """So many outcomes more."""
        before = len(self.ledger.outcomes)
        await self.until(lambda: len(self.ledger.outcomes) >= before + count, f"{count} outcomes more")

    async def drained(self) -> None:
        self.sending.clear()
        await self.until(lambda: not self.ledger.unanswered, "every acknowledged task is answered")

    def _check(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _changed(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    # -- agents

    async def _always(self, id: str, run: Callable[[QueueAgent], Awaitable[None]]) -> None:
        """Over one connection after the other."""
        while True:
            try:
                async with asyncio.timeout(PATIENCE):
                    agent = await QueueAgent(self._url, id, self._tokens[id]).__aenter__()
            except BROKEN:
                await asyncio.sleep(0.1)
                continue
            try:
                async with _while_connected(agent):
                    await run(agent)
            except BROKEN:
                pass
            finally:
                await _close(agent)

    async def _submit(self, agent: QueueAgent) -> None:
        async def one_after_the_other() -> None:
            while True:
                await self.sending.wait()
                request = work(KIND, n=self._random.getrandbits(64))
                self.ledger.sends(request)
                await agent.send(request)
                self.ledger.was_acknowledged(request)
                if self._random.random() < 0.1:  # a client that is not sure sends again
                    await agent.send(request)
                while len(self.ledger.unanswered) > 4 * AT_ONCE:
                    async with self.changed:
                        await self.changed.wait()

        await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))

    async def _work(self, agent: QueueAgent) -> None:
        await agent.consume()
        await agent.send(
            {"agent_id": agent.id, "agent_type": KIND, "supported_versions": ["1.0"]}, key="register"
        )  # fmt: skip
        while True:
            message = await agent.came.get()
            request = _read(message.body)
            if request.get("type") == "work_request":
                await self._do(agent, request)
            await message.ack()

    async def _do(self, agent: QueueAgent, request: dict[str, Any]) -> None:
        id = agent.id, request["request_id"]
        if id not in self._results:
            self.ledger.does(request)
            self._results[id] = result(request)
            for number in (1, 2):
                status = about(
                    request, "work_status",
                    {"status": "running", "progress_percent": 30 * number, "step": {"number": number, "name": "step"}},
                )  # fmt: skip
                await agent.send(status)
                self.ledger.was_taken(status)
        await agent.send(self._results[id])

    async def _collect(self, agent: QueueAgent) -> None:
        await agent.consume()
        while True:
            message = await agent.came.get()
            received = _read(message.body)
            if received.get("type") in ("work_status", "work_result"):
                self.ledger.hears(received)
                await self._changed()
            await message.ack()


def _read(body: bytes) -> dict[str, Any]:
    return dict(json.loads(body))


@asynccontextmanager
async def _while_connected(agent: QueueAgent) -> AsyncIterator[None]:
    """Ends with an `OSError` as soon as the connection does: a consumer alone would wait for ever."""
    lost = asyncio.get_running_loop().create_future()
    agent.connection.close_callbacks.add(lambda *_: lost.done() or lost.set_result(None))
    here = asyncio.current_task()
    assert here is not None
    is_over = False

    def over(_: object) -> None:
        nonlocal is_over
        is_over = True
        here.cancel()

    lost.add_done_callback(over)
    try:
        yield
    except asyncio.CancelledError:
        if is_over and not here.uncancel():
            raise ConnectionResetError("the broker is gone") from None
        raise
    finally:
        lost.remove_done_callback(over)


async def _close(agent: QueueAgent) -> None:
    try:
        async with asyncio.timeout(2):
            await agent.connection.close()
    except BROKEN:
        pass
