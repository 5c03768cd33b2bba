"""Chiffon over AMQP: the hub as a client of the user's broker (RabbitMQ).

    chiffon.hub          the hub consumes it: messages of agents (`amqp_inbox`), acknowledged after the commit
    chiffon.agent.<id>   the hub publishes to it what it has for that agent (`amqp_link`)
    chiffon.dead         the hub publishes to it what it refused, without the token

    lost connection      the hub connects again, after growing pauses. What was not acknowledged comes again, and is the
                         same message again. What was not confirmed is published again, in its place. The agents' links
                         stay open for `OUTAGE_SECONDS`
    single active        of the hubs that consume `chiffon.hub`, the broker gives messages to one: the order stays, and
    consumer             another takes over where it dies

The hub opens an agent's link when it gets a message of the agent over AMQP, with its token, and remembers that. From
then on the link follows the consumers of the agent's queue: no consumer, no link. A connection that the agent opens
otherwise (a WebSocket) replaces it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Literal

import structlog

from dragoman.amqp import Broker, Lost, Missing, Outcome, Place, Unfit
from dragoman.core.commands import RegisterAgent
from dragoman.core.ids import AgentId
from dragoman.core.model.agents import Agent
from dragoman.messages.faults import Refused
from dragoman.protocols.chiffon import amqp
from dragoman.server.chiffon.amqp_inbox import AmqpInbox
from dragoman.server.chiffon.amqp_link import AmqpLink, is_remembered, remembering
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.handler import Endpoint
from dragoman.wire.closing import CloseReason

log = structlog.get_logger("dragoman.amqp")

PREFETCH = 256
WINDOW = 256
"""Messages that the hub has published and the broker has not confirmed."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
OUTAGE_SECONDS = 20.0
"""A broker that restarts is back by then, and no attempt was lost."""
PRESENCE_SECONDS = 5.0
ABSENT = 2
"""A queue without a consumer at so many looks in a row has no agent: one that connects again is not gone."""
DRAIN_SECONDS = 5.0


class ChiffonAmqp(Endpoint):
    """The connection to the broker, and the links of all agents that use it."""

    def __init__(
        self,
        handler: ChiffonHandler,
        place: Place,
        *,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        negotiation: Literal["lowest", "highest"] = "lowest",
        presence_seconds: float = PRESENCE_SECONDS,
    ) -> None:
        self._handler = handler
        self._hub = handler.hub
        self._place = place
        self._tls = tls
        self._presence_seconds = presence_seconds
        self._inbox = AmqpInbox(handler, self, negotiation=negotiation)
        self._links: dict[AgentId, AmqpLink] = {}
        self._absent: dict[AgentId, int] = {}
        self._cut_off: set[AgentId] = set()
        """Agents whose token was replaced: who consumes their queue may have the old one."""
        self._opening: dict[AgentId, asyncio.Task[None]] = {}
        self._window = asyncio.Semaphore(WINDOW)
        self._published = 0
        self._broker: Broker | None = None
        self._connected = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._down_since: float | None = None
        self._why: str | None = "not connected yet"
        self._connections = 0
        self._returning = False
        """The broker is back: its agents connect again, too, after pauses of theirs."""

    # -- for people

    @property
    def trouble(self) -> str | None:
        return None if self._why is None else "serving, without a connection to the broker (the log says why)"

    @property
    def counts(self) -> Mapping[str, int]:
        return {
            "amqp_connected": int(self._why is None),
            "amqp_connections": self._connections,
            "amqp_links": len(self._links),
            "amqp_unacknowledged": self._inbox.undecided,
            "amqp_held": self._inbox.held,
            "amqp_unconfirmed": self._published,
            "amqp_refused": self._inbox.dead,
        }

    # -- its life

    def start(self) -> None:
        self._running = asyncio.ensure_future(self._run())

    async def drain(self, seconds: float = 0) -> None:
        """Take nothing more from the queue, answer what came, and close the links and the connection."""
        broker = self._broker
        if broker is not None:
            await self._inbox.drain(min(seconds, DRAIN_SECONDS))
        tasks = [task for task in (self._running, *self._opening.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=DRAIN_SECONDS)
        self._close_links()
        if broker is not None:
            await broker.close()

    async def abort(self) -> None:
        """Another node leads: cut the connection, and acknowledge nothing more. The broker gives the next hub all of
        it."""
        self._inbox.detach()
        tasks = [task for task in (self._running, *self._opening.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=DRAIN_SECONDS)
        for link in self._links.values():
            link.abort()
        self._links.clear()

    async def _run(self) -> None:
        """One connection after the other."""
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
        while True:
            why = "the connection ended"
            try:
                await self._serve()
            except (Lost, Missing, Unfit) as error:
                why = str(error)
            except Exception:  # a defect must not end the transport
                log.exception("the connection to the broker ended")
            if self._down_since is None:
                self._down_since, pause = loop.time(), FIRST_PAUSE
            if why != self._why:
                log.warning("no connection to the broker", broker=self._place.shown, why=why)
                self._why = why
            if self._links and loop.time() - self._down_since >= OUTAGE_SECONDS:
                log.warning("the broker is gone: its agents are offline", links=len(self._links))
                self._close_links()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _serve(self) -> None:
        """One connection, until it is lost."""
        broker = await Broker.connect(self._place, tls=self._tls(), name="dragoman")
        try:
            await broker.declare_exchange(amqp.EXCHANGE)
            await broker.declare_queue(amqp.DEAD, amqp.QUORUM)
            await broker.declare_queue(amqp.INBOX, amqp.ONE_CONSUMER)
            for key in amqp.KEYS:
                await broker.bind(amqp.INBOX, amqp.EXCHANGE, key)
            self._broker = broker
            self._connected.set()
            await self._inbox.attach(broker, PREFETCH)
            self._connections += 1
            self._why = self._down_since = None
            since = asyncio.get_running_loop().time()
            log.info("connected to the broker", broker=self._place.shown)
            while not broker.lost.done():
                self._returning = self._connections > 1 and asyncio.get_running_loop().time() - since < OUTAGE_SECONDS
                await self._look_for_consumers(broker)
                await asyncio.wait((broker.lost,), timeout=self._presence_seconds)
            raise Lost(broker.lost.result())
        finally:
            self._lose(broker)
            await broker.close()

    def _lose(self, broker: Broker) -> None:
        if self._broker is broker:
            self._broker = None
            self._connected.clear()

    # -- out

    async def publish(self, queue: str, body: bytes, *, id: str, headers: Mapping[str, Any]) -> Outcome:
        """Publish a message, over the next connection if this one is lost before the broker has answered."""
        async with self._window:
            self._published += 1
            try:
                while True:
                    await self._connected.wait()
                    broker = self._broker
                    assert broker is not None
                    try:
                        return await broker.publish(queue, body, id=id, headers=headers)
                    except Lost:
                        self._lose(broker)
            finally:
                self._published -= 1

    # -- links

    def sent_by(self, agent: AgentId, instance: str | None, farewell: Callable[[bytes], None] | None) -> None:
        """From now on the agent can be reached in its queue, unless it is connected otherwise."""
        self._cut_off.discard(agent)
        link = self._links.get(agent)
        if link is not None:
            link.learn(instance, farewell)
        elif not self._hub.reachable(agent):
            self._open(agent, instance, farewell)

    def _open(
        self, agent: AgentId, instance: str | None = None, farewell: Callable[[bytes], None] | None = None
    ) -> asyncio.Task[None]:
        """Open a link, once: a second one would replace the first, and take work for lost that is on its way."""
        opening = self._opening.get(agent)
        if opening is None:
            opening = self._opening[agent] = asyncio.ensure_future(self._open_quietly(agent, instance, farewell))
            opening.add_done_callback(lambda _: self._opening.pop(agent, None))
        return opening

    async def _open_quietly(
        self, agent: AgentId, instance: str | None, farewell: Callable[[bytes], None] | None
    ) -> None:
        try:
            await self.listen(agent, instance, farewell)
        except (Refused, Unfit, Lost) as error:
            why = error.fault.kind.value if isinstance(error, Refused) else str(error)
            log.warning("no link", agent=agent, why=why)

    def leave(self, agent: AgentId, instance: str | None) -> None:
        link = self._links.get(agent)
        if link is not None and link.instance == instance:
            self._link_over(link, None)

    async def listen(
        self, agent: AgentId, instance: str | None, farewell: Callable[[bytes], None] | None = None
    ) -> None:
        if self._broker is None:
            raise Lost(self._why or "not connected")
        await self._broker.declare_queue(amqp.queue_of(agent), amqp.QUORUM)
        link = AmqpLink(self._handler, agent, self.publish, self._link_over, instance=instance, farewell=farewell)
        old = self._links.get(agent)
        self._links[agent] = link
        self._absent.pop(agent, None)
        self._cut_off.discard(agent)
        try:
            await link.open(instance)
        except BaseException:
            self._link_over(link, None)
            raise
        finally:
            if old is not None:
                old.close()
        await self._remember(agent, True)

    async def _remember(self, id: AgentId, uses_amqp: bool) -> None:
        """Note in the agent's row whether it uses AMQP: after a restart of the hub its queue is looked at again."""
        agent = self._hub.agent(id)
        if agent is not None and is_remembered(agent) != uses_amqp:
            await self._hub.execute(_noted(agent, uses_amqp))

    def _link_over(self, link: AmqpLink, reason: CloseReason | None) -> None:
        if self._links.get(link.agent) is link:
            del self._links[link.agent]
            link.close()
        agent = self._hub.agent(link.agent)
        if reason is CloseReason.TOKEN_REPLACED and agent is not None:
            self._cut_off.add(link.agent)
            self._hub.enqueue_then(_noted(agent, False), lambda outcome, refusal: None)

    def _close_links(self) -> None:
        for link in list(self._links.values()):
            self._link_over(link, None)

    async def _look_for_consumers(self, broker: Broker) -> None:
        """Open and close links by the consumers of the agents' queues."""
        self._inbox.sweep()
        known = [agent.id for agent in self._hub.agents() if agent.id in self._links or is_remembered(agent)]
        for agent in known:
            try:
                consumers = await broker.declare_queue(amqp.queue_of(agent), amqp.QUORUM)
            except Unfit as unfit:
                log.error("an agent's queue cannot be used", agent=agent, why=str(unfit))
                consumers = 0
            link = self._links.get(agent)
            if consumers:
                self._absent.pop(agent, None)
                if link is None and agent not in self._cut_off and not self._hub.reachable(agent):
                    await asyncio.wait((self._open(agent),))
            elif link is not None and not self._returning:
                self._absent[agent] = self._absent.get(agent, 0) + 1
                if self._absent[agent] >= ABSENT:
                    log.info("nobody consumes the agent's queue", agent=agent)
                    self._link_over(link, None)


def _noted(agent: Agent, uses_amqp: bool) -> RegisterAgent:
    """A registration that changes nothing but the note."""
    return RegisterAgent(
        principal=agent.id,
        protocol=agent.protocol,
        work_types=agent.work_types,
        max_concurrent=None if agent.added_concurrent is None else agent.max_concurrent,
        memory_mb=agent.memory_mb,
        gpu_vram_mb=agent.gpu_vram_mb,
        callback_url=agent.callback_url,
        details=remembering(agent, uses_amqp),
    )
