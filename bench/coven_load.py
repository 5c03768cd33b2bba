"""Coven agents of somebody else's: built from the document's text alone, and what they do under load.

An agent opens its stream, registers, is welcomed, and answers every SendMessage with one `done`. Everything is
awaited with a bound. This module lives in load processes only (bench/streams.py says why).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from bench.hub import ChiffonWs
from bench.load import Meter
from bench.streams import AGENT_STREAM, BidiStream, channel, coven_types

ANSWER = "Deployment completed successfully.\nKuma instance running.\nMonitored services: 5"


class CovenAgent:
    """One agent on a connection of its own; `work` gets (agent, SendMessage)."""

    def __init__(
        self,
        address: str,
        id: str,
        token: str,
        types: Any,
        work: Callable[[CovenAgent, Any], None],
        lose: Callable[[str], None],
    ) -> None:
        self._types = types
        self._work = work
        self._welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._stream = BidiStream(channel(address, alone=True), AGENT_STREAM, self._hear, lose, metadata)
        register = types.RegisterAgent(agent_id=id, name=id, capabilities=["chat"])
        self._stream.send(types.AgentMessage(register=register).SerializeToString())

    async def welcomed(self) -> None:
        await asyncio.wait_for(self._welcome, 20)

    def _hear(self, message: bytes) -> None:
        heard = self._types.ServerMessage.FromString(message)
        if heard.HasField("send_message"):
            self._work(self, heard.send_message)
        elif heard.HasField("welcome"):
            self._welcome.set_result(None)

    def say(self, **event: Any) -> None:
        response = self._types.MessageResponse(**event)
        self._stream.send(self._types.AgentMessage(response=response).SerializeToString())

    def close(self) -> None:
        self._stream.close()


class CovenTasks(ChiffonWs):
    """Callers as in `hub-ws` (the fastest door there is for them); the agents are coven's."""

    def __init__(self, url: str, grpc: str, clients: list[str], agents: list[tuple[str, str]], size: int) -> None:
        super().__init__(url, clients, [], size)
        self._address, self._named = grpc, agents

    async def open(self, meter: Meter, in_flight: int) -> None:
        types = coven_types()
        done = types.Done(full_response=ANSWER)

        def work(agent: CovenAgent, order: Any) -> None:
            agent.say(request_id=order.request_id, done=done)

        self._fleet = [CovenAgent(self._address, id, token, types, work, meter.lose) for id, token in self._named]
        for agent in self._fleet:
            await agent.welcomed()
        await super().open(meter, in_flight)

    def close(self) -> None:
        for agent in self._fleet:
            agent.close()
        super().close()
