"""A client that speaks a2acp itself: a caller with a link of its own."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.protocols.a2acp import intents
from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.types import Message, MessageType
from dragoman.sdk.a2acp.caller import A2acpCaller
from dragoman.sdk.a2acp.calls import Call
from dragoman.sdk.a2acp.channel import Answered, Channel, Unsaid
from dragoman.sdk.a2acp.identity import Identity
from dragoman.sdk.calling.calls import ConnectedClient
from dragoman.sdk.messages import Accepted
from dragoman.sdk.network.pipe import Frame


class A2acpClient(ConnectedClient[Call, Channel], A2acpCaller):
    """A caller with a link of its own. It serves nothing: who wants something of it is told so."""

    def __init__(self, identity: Identity, dial: Callable[[], Channel], give_up_after: float | None = None) -> None:
        super().__init__(identity, give_up_after)
        self._dial = dial

    async def open(self) -> None:
        try:
            await super().open()
        except BaseException:
            await self._identity.post.close()
            raise

    async def close(self) -> None:
        await super().close()
        await self._identity.post.close()

    def _new_link(self) -> Channel:
        return self._dial()

    async def _connect(self, link: Channel) -> None:
        await self._identity.find_out()
        await link.open()

    def _attach(self, link: Channel) -> None:
        self.attach(link)

    def _detach(self) -> None:
        self.detach()

    async def _listen(self, link: Channel) -> None:
        for said in await link.receive():
            self._hear(link, said)

    def _hear(self, channel: Channel, said: Frame | Accepted | Answered | Unsaid) -> None:
        match said:
            case Accepted():
                for id in said.ids:
                    self.accepted(id)
            case Unsaid():
                self.refused(said.id, None, said.error)
            case Answered():
                message = self._identity.read(said.data)
                if message is not None and said.is_refusal:
                    self.refused(said.id, message, None)
                elif message is not None:
                    self.hear(message)
            case Frame():
                message = self._identity.read(said.data)
                if message is not None:
                    self._identity.news(message)
                    if not self.hear(message) and message.message_type is MessageType.REQUEST:
                        self._decline(channel, message)
                if said.receipt is not None:
                    channel.acknowledge(said.receipt)

    def _decline(self, channel: Channel, asked: Message) -> None:
        """Somebody wants something of a client."""
        words = f"{self._identity.me.agent_id} gives out work and does none"
        id = self._runtime.mint()
        if asked.intent == intents.ACCEPT:
            body = intents.payload(intents.Decision(accepted=False, reason=words))
            kind = MessageType.RESPONSE
        else:
            body = Refusal(code=Code.CAPABILITY_NOT_FOUND, message=words).payload(asked.thread)
            kind = MessageType.ERROR
        if asked.contract_id is not None and kind is MessageType.ERROR:
            body["contract_id"] = asked.contract_id
        write = self._identity.write(
            kind, id=id, to=asked.source_agent, intent=asked.intent, payload=body, correlation_id=asked.thread
        )
        channel.say(id, asked.thread, write)
