"""A client that speaks a2acp itself: a caller with a link of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dragoman.protocols.a2acp import intents
from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.types import Message, MessageType
from dragoman.sdk.caller_a2acp import A2acpCaller
from dragoman.sdk.channel import Answered, Channel, Unsaid
from dragoman.sdk.errors import DragomanError, HubUnreachable
from dragoman.sdk.links import Accepted, Frame, LinkDown, unreachable
from dragoman.sdk.talk_a2acp import Persona
from dragoman.sdk.world import backoff

log = logging.getLogger("dragoman.sdk")


class A2acpClient(A2acpCaller):
    """A caller with a link of its own. It serves nothing: who wants something of it is told so."""

    def __init__(self, persona: Persona, dial: Callable[[], Channel]) -> None:
        super().__init__(persona)
        self._dial = dial
        self._online: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect; a hub that is not there is reported at once, one that goes away later is waited for."""
        channel = self._dial()
        try:
            await self._persona.find_out()
            await channel.open()
        except LinkDown as down:
            await channel.close()
            await self._persona.post.close()
            raise unreachable(down) from None
        except BaseException:
            await channel.close()
            await self._persona.post.close()
            raise
        self.attach(channel)
        self._online = asyncio.get_running_loop().create_task(self._stay_online(channel))

    async def close(self) -> None:
        if self._online is not None:
            self._online.cancel()
            await asyncio.gather(self._online, return_exceptions=True)
        await self.end(HubUnreachable("the client was closed"))
        await self._persona.post.close()

    async def _stay_online(self, channel: Channel) -> None:
        failures = 0
        try:
            while True:
                try:
                    while True:
                        for said in await channel.receive():
                            self._hear(channel, said)
                        failures = 0
                except LinkDown as down:
                    log.warning("no link to the hub (%s)", down)
                self.detach()
                while self._channel is None:
                    await channel.close()
                    await self._world.sleep(backoff(failures, self._world.chance()))
                    failures += 1
                    channel = self._dial()
                    try:
                        await channel.open()
                        self.attach(channel)
                    except LinkDown as down:
                        log.info("still no link to the hub (%s)", down)
        except DragomanError as error:
            self._fail_all(error)
        finally:
            self.detach()
            await channel.close()

    def _hear(self, channel: Channel, said: Frame | Accepted | Answered | Unsaid) -> None:
        match said:
            case Accepted():
                for id in said.ids:
                    self.accepted(id)
            case Unsaid():
                self.refused(said.id, None, said.error)
            case Answered():
                message = self._persona.read(said.data)
                if message is not None and said.is_refusal:
                    self.refused(said.id, message, None)
                elif message is not None:
                    self.hear(message)
            case Frame():
                message = self._persona.read(said.data)
                if message is not None:
                    self._persona.news(message)
                    if not self.hear(message) and message.message_type is MessageType.REQUEST:
                        self._decline(channel, message)
                if said.receipt is not None:
                    channel.acknowledge(said.receipt)

    def _decline(self, channel: Channel, asked: Message) -> None:
        """Somebody wants something of a client."""
        words = f"{self._persona.me.agent_id} gives out work and does none"
        id = self._world.mint()
        if asked.intent == intents.ACCEPT:
            body = intents.payload(intents.Decision(accepted=False, reason=words))
            kind = MessageType.RESPONSE
        else:
            body = Refusal(code=Code.CAPABILITY_NOT_FOUND, message=words).payload(asked.thread)
            kind = MessageType.ERROR
        if asked.contract_id is not None and kind is MessageType.ERROR:
            body["contract_id"] = asked.contract_id
        write = self._persona.write(
            kind, id=id, to=asked.source_agent, intent=asked.intent, payload=body, correlation_id=asked.thread
        )
        channel.say(id, asked.thread, write)
