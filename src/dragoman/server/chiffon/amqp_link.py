"""What the hub has for an agent, published to that agent's queue.

A confirm of the broker settles a notice: it is in the agent's own queue, on the disks of the broker. It does not settle
work: only a message of the agent about it shows that the agent has begun (chiffon-D5), and the idle clock watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
import structlog

from dragoman.amqp import Outcome
from dragoman.core.commands import Acknowledge
from dragoman.core.ids import AgentId
from dragoman.core.model.agents import Agent
from dragoman.core.model.outgoing import Outgoing
from dragoman.protocols.chiffon import amqp
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.content import traceparent
from dragoman.server.lanes import LaneLink
from dragoman.wire.closing import CloseReason

log = structlog.get_logger("dragoman.amqp")

SIDE_BY_SIDE = 256

_encode = msgspec.json.Encoder().encode


class Publish(Protocol):
    async def __call__(self, queue: str, body: bytes, *, id: str, headers: Mapping[str, Any]) -> Outcome:
        """Returns when the broker has the message, or says that it does not; waits while there is no connection."""
        ...


class AmqpLink(LaneLink):
    """One agent's link. `over` is called when it can be used no more; then it has to be closed."""

    not_taken = "the agent's queue at the broker did not take the work"
    taking_acknowledges_work = False

    def __init__(
        self,
        handler: ChiffonHandler,
        agent: AgentId,
        publish: Publish,
        over: Callable[[AmqpLink, CloseReason | None], None],
        *,
        instance: str | None = None,
        farewell: Callable[[bytes], None] | None = None,
    ) -> None:
        super().__init__(handler, agent, side_by_side=SIDE_BY_SIDE)
        self.agent = agent
        self._publish = publish
        self._over = over
        self.instance = instance
        self._farewell = farewell

    def learn(self, instance: str | None, farewell: Callable[[bytes], None] | None) -> None:
        """A message of the agent says which process is at the other end, where the hub did not know: it started after
        that process."""
        if self._farewell is None and farewell is not None:
            self.instance, self._farewell = instance, farewell

    def hang_up(self, reason: CloseReason) -> None:
        if self._farewell is not None:
            self._farewell(_encode({"closed": {"code": reason.websocket, "reason": reason.sentence}}))
        self._over(self, reason)

    def _broken(self) -> None:
        self._over(self, None)

    async def _send(self, outgoing: Outgoing, agent: Agent) -> bool:
        headers = {amqp.TRACEPARENT: traceparent(outgoing.task, outgoing.delivery.id)}  # all-D7
        frames = await self._handler.encode(outgoing, agent, self._hub.now())
        for id, frame in zip(self._handler.receipts(outgoing, len(frames)), frames, strict=True):
            outcome = await self._publish(amqp.queue_of(self.agent), frame, id=id, headers=headers)
            if outcome is not Outcome.TAKEN:
                log.warning("not published", agent=self.agent, why=outcome.value)
                if outcome is Outcome.UNROUTABLE:  # the queue was deleted: the agent is gone
                    asyncio.get_running_loop().call_soon(self._broken)
                return False
        return True

    async def _acknowledge(self, acknowledge: Acknowledge) -> None:
        self._hub.enqueue_and_forget(acknowledge)


def is_remembered(agent: Agent) -> bool:
    """Whether the agent used AMQP before, maybe by an earlier process of the hub."""
    return agent.details.get(REMEMBERED) is True


def remembering(agent: Agent, uses_amqp: bool) -> dict[str, Any]:
    """The agent's details, with or without the note that it uses AMQP."""
    others = {name: value for name, value in agent.details.items() if name != REMEMBERED}
    return {**others, REMEMBERED: uses_amqp}


REMEMBERED = "amqp"
"""The name of that note in the agent's details."""
