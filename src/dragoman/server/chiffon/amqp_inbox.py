"""What agents send over AMQP, from the broker's delivery to its acknowledgment.

Each agent that sends has a connection loop, so that its messages keep their order and are decoded, decided and refused
as over a WebSocket. Only what follows the decision differs:

    outcome                   the broker's delivery
    ------------------------  ------------------------------------------------------------------------------------
    committed                 acknowledged
    refused for overload      kept unacknowledged, and decided again in its place after `HOLD_SECONDS`; so the broker
                              keeps what comes behind it. It is never put back into the queue
    refused for good          the sender gets the `error`; a copy without the token goes to `chiffon.dead`; when the
                              broker has confirmed that, acknowledged

A sender that waits for an answer names `amq.rabbitmq.reply-to`, and gets its receipt or its error there. Any other gets
its error in its own queue, and no receipt: the broker's confirm says that the message is on its way to the hub
(chiffon-D5). Without a valid token only the former is answered: who sent it is not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec
import structlog

from dragoman.amqp import Arrival, Broker, Lost, Outcome, Unfit
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.protocols.chiffon import amqp, codec
from dragoman.protocols.chiffon.errors import ChiffonError
from dragoman.protocols.chiffon.types import Correlation
from dragoman.security import tokens
from dragoman.server.chiffon import inbound, outbound
from dragoman.server.chiffon.amqp_peer import OPERATIONS, Message, Peer
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.handler import LONGEST_INSTANCE
from dragoman.server.refusals import UNREADABLE

log = structlog.get_logger("dragoman.amqp")

DEAD_AGAIN_SECONDS = 2.0
"""How soon a refused message that `chiffon.dead` did not take is offered to it again."""
MOST_KEPT = 64 * 1024
"""Bytes of a refused message that is too large."""

_encode = msgspec.json.Encoder().encode


class Links(Protocol):
    """Where the links of agents are (`amqp.ChiffonAmqp`)."""

    def sent_by(self, agent: AgentId, instance: str | None, farewell: Callable[[bytes], None] | None) -> None:
        """This process of the agent sent a message with its token."""
        ...

    async def listen(self, agent: AgentId, instance: str | None, farewell: Callable[[bytes], None]) -> None:
        """The agent consumes its queue from now on; raises `Refused`, `Unfit` or `Lost`. `farewell` tells it why the
        hub ends that."""
        ...

    def leave(self, agent: AgentId, instance: str | None) -> None:
        """This process of the agent consumes its queue no more."""
        ...


class AmqpInbox:
    """All messages that the broker delivered and the hub did not acknowledge."""

    def __init__(
        self, handler: ChiffonHandler, links: Links, *, negotiation: Literal["lowest", "highest"] = "lowest"
    ) -> None:
        self.handler = handler
        self.hub = handler.hub
        self._links = links
        self._negotiation: Literal["lowest", "highest"] = negotiation
        self._peers: dict[AgentId, Peer] = {}
        self._broker: Broker | None = None
        self._consumer = ""
        self._open: dict[int, None] = {}
        """The deliveries that are not settled, oldest first."""
        self._settled: list[int] = []
        self._receipts: dict[str, list[str]] = {}
        self._flushing = False
        self._refusing: set[asyncio.Task[None]] = set()
        self.dead = 0

    @property
    def undecided(self) -> int:
        return len(self._open)

    @property
    def held(self) -> int:
        return sum(len(peer.held) for peer in self._peers.values())

    # -- the connection

    async def attach(self, broker: Broker, prefetch: int) -> None:
        """Consume over this connection. What came over an earlier one comes again."""
        self._broker = broker
        self._open.clear()
        self._settled.clear()
        self._receipts.clear()
        for peer in self._peers.values():
            peer.forget()
        self._consumer = await broker.consume(amqp.INBOX, self.receive, prefetch=prefetch)

    def detach(self) -> None:
        """Acknowledge nothing more, whatever is decided."""
        self._broker = None
        for refusing in self._refusing:
            refusing.cancel()
        for peer in self._peers.values():
            peer.forget()

    async def drain(self, seconds: float) -> None:
        """Take nothing more, and wait until everything that came is decided, save what is held."""
        if self._broker is None:
            return
        try:
            async with asyncio.timeout(seconds):
                if not self._broker.lost.done():
                    await self._broker.cancel(self._consumer)
                await asyncio.gather(*(peer.loop.drain() for peer in self._peers.values()))
                await asyncio.gather(*self._refusing)
        except (TimeoutError, Lost):
            log.warning("messages of the queue are left to the next hub", messages=len(self._open))
        for peer in self._peers.values():
            peer.forget()
        self._flush()

    def sweep(self) -> None:
        """Refuse what agents sent that were removed meanwhile: nobody else answers it."""
        for id, peer in list(self._peers.items()):
            if self.hub.agent(id) is None:
                del self._peers[id]
                for message in list(peer.open.values()):
                    self._refuse_unknown(message)
                peer.forget()

    # -- in

    def receive(self, arrival: Arrival) -> None:
        broker = self._broker
        if broker is None:
            return
        self._open[arrival.tag] = None
        taken = amqp.take_token(arrival.headers.get(amqp.AUTHORIZATION), arrival.body, self.handler.guard)
        message = Message(broker, arrival, taken.body, taken.credential)
        try:
            token = tokens.bearer((taken.credential or "").encode("utf-8", "replace"))
            agent = self.handler.agent_with(token)
        except Refused as refused:
            self._refuse_stranger(message, refused.fault)
            return
        if arrival.key not in OPERATIONS:
            self._links.sent_by(agent.id, message.header(amqp.INSTANCE), message.tell if message.answer_to else None)
        peer = self._peers.get(agent.id)
        if peer is None:
            peer = self._peers[agent.id] = Peer(self, agent)
        message.peer = peer
        peer.receive(message)

    # -- out of a decision

    def accepted(self, message: Message, id: str | None) -> None:
        if self._settle(message) and id is not None and (place := message.answer_to) is not None:
            self._receipts.setdefault(place, []).append(id)

    def answered(self, message: Message, answer: bytes) -> None:
        """An operation is done, and this is its answer."""
        if self._settle(message) and (place := message.answer_to) is not None:
            message.broker.reply(place, answer, message.arrival.message_id)

    def refused(self, message: Message, fault: Fault, agent: Agent | None, about: Correlation | None) -> None:
        if fault.kind is Kind.OVERLOADED and message.peer is not None:
            if message.broker is self._broker:
                message.peer.hold(message)
            return
        refusing = asyncio.ensure_future(self._refuse(message, fault, agent, about))
        self._refusing.add(refusing)
        refusing.add_done_callback(self._refusing.discard)

    def _refuse_stranger(self, message: Message, fault: Fault) -> None:
        async def record_and_refuse() -> None:
            await self.handler.refusals.record(
                "agent.message", fault, principal=None, protocol=self.handler.protocol, about=None
            )
            await self._refuse(message, fault, None, None)

        refusing = asyncio.ensure_future(record_and_refuse())
        self._refusing.add(refusing)
        refusing.add_done_callback(self._refusing.discard)

    def _refuse_unknown(self, message: Message) -> None:
        try:
            self.handler.agent_with(None)
        except Refused as refused:
            self.refused(message, refused.fault, None, None)

    async def _refuse(self, message: Message, fault: Fault, agent: Agent | None, about: Correlation | None) -> None:
        broker, arrival = message.broker, message.arrival
        error = self.handler.encode_refusal(fault, agent=agent, context=about)
        headers = {
            "x-refused": fault.kind.value,
            "x-reason": fault.message[:500],
            "x-routing-key": arrival.key[:255],
            **({} if agent is None else {"x-agent-id": agent.id}),
        }
        body = amqp.blotted(message.body, message.credential, self.handler.guard)
        if len(body) > self.handler.guard.bytes:
            body, headers["x-cut-from-bytes"] = body[:MOST_KEPT], str(len(body))
        try:
            if (place := message.answer_to) is not None:
                broker.reply(place, error, arrival.message_id)
            elif agent is not None:
                await broker.publish(amqp.queue_of(agent.id), error, id=self.hub.mint(), type="error")
            while await broker.publish(amqp.DEAD, body, id=self.hub.mint(), headers=headers) is not Outcome.TAKEN:
                log.error("a refused message cannot be kept", queue=amqp.DEAD)
                await asyncio.sleep(DEAD_AGAIN_SECONDS)
                await broker.declare_queue(amqp.DEAD, amqp.QUORUM)
        except (Lost, Unfit) as lost:
            log.info("a refused message comes again", why=str(lost))
            return
        self.dead += 1
        self._settle(message)

    # -- acknowledgments

    def _settle(self, message: Message) -> bool:
        """Acknowledge a delivery at the end of this turn; False if it came over an earlier connection."""
        if message.peer is not None:
            message.peer.open.pop(message.arrival.tag, None)
        if message.broker is not self._broker or message.arrival.tag not in self._open:
            return False
        del self._open[message.arrival.tag]
        self._settled.append(message.arrival.tag)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)
        return True

    def _flush(self) -> None:
        """One acknowledgment for everything before the oldest open delivery, and one for each of the others."""
        self._flushing = False
        broker = self._broker
        settled, self._settled = self._settled, []
        receipts, self._receipts = self._receipts, {}
        if broker is None or broker.lost.done():
            return
        oldest = next(iter(self._open), None)
        before = [tag for tag in settled if oldest is None or tag < oldest]
        if before:
            broker.ack(max(before), multiple=True)
        for tag in settled:
            if oldest is not None and tag > oldest:
                broker.ack(tag)
        for place, ids in receipts.items():
            broker.reply(place, _encode({"accepted": ids}))

    # -- operations: what chiffon has no message for

    async def operate(self, message: Message, id: AgentId) -> Sequence[bytes]:
        """Register, listen, cancel, pause, resume: by the routing key, as the paths of HTTP do (D9, D13)."""
        agent = self.hub.agent(id)
        if agent is None:
            raise refuse(Kind.UNAUTHENTICATED, "this agent was removed from the hub")
        verb = message.arrival.key.removeprefix("hub.")
        instance = message.header(amqp.INSTANCE)
        if instance is not None and len(instance) > LONGEST_INSTANCE:
            raise refuse(Kind.INVALID, f"at most {LONGEST_INSTANCE} characters", field=amqp.INSTANCE)
        try:
            if verb == amqp.REGISTER:
                sent = codec.decode_registration(message.body)
                if sent.callback_url is not None:
                    raise refuse(Kind.INVALID, "register a callback URL over HTTP", field="callback_url")
                known = await self.hub.execute(inbound.registration_of(agent, sent, negotiation=self._negotiation))
                await self._links.listen(id, instance, message.tell)
                self.answered(message, outbound.registered(known))
                return ()
            if verb == amqp.LISTEN:
                await self._links.listen(id, instance, message.tell)
                self.answered(message, _encode({"agent_id": id, "status": "listening"}))
                return ()
            if verb == amqp.LEAVE:
                self._links.leave(id, instance)
                self.answered(message, _encode({"agent_id": id, "status": "left"}))
                return ()
            body = self.handler.json(message.body)
            task_id = body.pop("task_id", None)
            if type(task_id) is not str or not 0 < len(task_id) <= 200:
                raise refuse(Kind.INVALID, "expected the id of a task", field="task_id")
            task = await self.hub.execute(inbound.steering_of(verb, id, TaskId(task_id.lower()), body))
        except ChiffonError as error:
            raise Refused(error.fault) from None
        except StoreFailed:
            raise Refused(UNREADABLE) from None
        except Unfit as unfit:
            raise refuse(Kind.CONFLICT, str(unfit)) from None
        except Lost:
            return ()  # it comes again
        self.answered(message, _encode({"task_id": task.id, "status": task.status.value}))
        return ()
