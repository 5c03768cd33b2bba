"""A2acp's row of `sdk.services`: an agent that serves and calls over one link, and a client with a link of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from dragoman.protocols.a2acp import intents
from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.types import Message, MessageType
from dragoman.sdk.a2acp.caller import A2acpCaller, Call
from dragoman.sdk.a2acp.channel import Answered, Channel, HttpPost, Post, Received, Unwritten, channels
from dragoman.sdk.a2acp.identity import Identity
from dragoman.sdk.a2acp.link import A2acpLink, Memory
from dragoman.sdk.address import Address
from dragoman.sdk.calling.calls import ConnectedClient
from dragoman.sdk.errors import HubUnreachable
from dragoman.sdk.links import Frame
from dragoman.sdk.messages import Accepted
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.services import Participant, Service


@asynccontextmanager
async def service(who: Participant, address: Address, runtime: Runtime) -> AsyncIterator[Service]:
    post = HttpPost(address)
    try:
        async with service_over(who, post, channels(address, post), runtime) as made:
            yield made
    finally:
        await post.close()


@asynccontextmanager
async def service_over(
    who: Participant, post: Post, dial: Callable[[], Channel], runtime: Runtime
) -> AsyncIterator[Service]:
    """The same over other channels, for tests."""
    memory, identity = Memory(), _identity(who, post, runtime)
    caller = identity.caller = A2acpCaller(identity)
    try:
        yield Service(dial=lambda: A2acpLink(dial(), identity, memory), caller=caller)
    finally:
        await caller.end(HubUnreachable(f"{who.id} is not at work any more"))


def client(who: Participant, address: Address, runtime: Runtime) -> A2acpClient:
    post = HttpPost(address)
    return A2acpClient(_identity(who, post, runtime), channels(address, post), who.give_up_after)


def _identity(who: Participant, post: Post, runtime: Runtime) -> Identity:
    return Identity(who.known_id, post, runtime, domain=who.domain, version=who.version, state_dir=who.state_dir)


class A2acpClient(ConnectedClient[Call, Channel], A2acpCaller):
    """A caller with a link of its own. It serves nothing, and declines every request."""

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
        await self._identity.find_domain()
        await link.open()

    def _attach(self, link: Channel) -> None:
        self.attach(link)

    def _detach(self) -> None:
        self.detach()

    async def _listen(self, link: Channel) -> None:
        for received in await link.receive():
            self._take(link, received)

    def _take(self, channel: Channel, received: Received) -> None:
        match received:
            case Accepted(ids=ids):
                for id in ids:
                    self.accepted(id)
            case Unwritten(id=id, error=error):
                self.refused(id, None, error)
            case Answered(id=id, data=data, is_refusal=is_refusal):
                message = self._identity.read(data)
                if message is not None and is_refusal:
                    self.refused(id, message, None)
                elif message is not None:
                    self.receive(message)
            case Frame(data=data, receipt=receipt):
                message = self._identity.read(data)
                if message is not None:
                    self._identity.contract_changed(message)
                    if not self.receive(message) and message.message_type is MessageType.REQUEST:
                        self._decline(channel, message)
                if receipt is not None:
                    channel.acknowledge(receipt)

    def _decline(self, channel: Channel, asked: Message) -> None:
        reason, kind = f"{self._identity.me.agent_id} gives out work and does none", MessageType.RESPONSE
        payload = intents.payload(intents.Decision(accepted=False, reason=reason))
        if asked.intent != intents.ACCEPT:
            kind = MessageType.ERROR
            payload = Refusal(code=Code.CAPABILITY_NOT_FOUND, message=reason).payload(asked.thread)
            if asked.contract_id is not None:
                payload["contract_id"] = asked.contract_id
        id, to = self._runtime.mint(), asked.source_agent
        write = self._identity.write(
            kind, id=id, to=to, intent=asked.intent, payload=payload, correlation_id=asked.thread
        )
        channel.send(id, asked.thread, write)
