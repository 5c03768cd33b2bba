"""What a protocol's HTTP endpoints share: long polls, acknowledgments and refusals.

    GET  …/messages?wait=SECONDS&max=COUNT    200 {"messages":[{"delivery_id":…,"message":{…}}]}
                   &ack=ID,ID                 what came before is acknowledged first
    POST …/ack {"delivery_ids":[…]}           200 {"acknowledged":COUNT}

A poll is a link that takes the deliveries that wait, or waits for one, and ends. The hub delivers what it took and did
not acknowledge again when the lease ends, so a client that disconnects in the middle loses nothing. A poll may take
several messages of one task, in order; those that are not acknowledged come again in that order. A client that closes
its sending side may have gone: the hub answers its poll at once. A request that waits for its own answer is a poll that
takes only that answer (`core.delivery.outbox`).

The hub answers a refused request with the protocol's own error and status, and records it for the audit: the core does
if it decided (`Decided`), the endpoint if the request never became a command.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qs

import structlog

from dragoman.core.commands import Acknowledge, CloseLink, Command, OpenLink
from dragoman.core.ids import AgentId, DeliveryId, Instant, SessionId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, new_fault, refuse
from dragoman.server.asgi import (
    ASGIApp,
    Disconnected,
    Receive,
    Scope,
    Send,
    answer,
    departure,
    read_body,
    retry_after,
)
from dragoman.server.connection import close_link
from dragoman.server.handler import Endpoint, HttpHandler, instance_in
from dragoman.server.refusals import UNREADABLE
from dragoman.server.session import report_unencodable
from dragoman.wire.closing import CloseReason
from dragoman.wire.errors import RemoteProtocolError

log = structlog.get_logger("dragoman.server")

SMALL_BODY = 1024 * 1024
"""The largest registration, acknowledgment or control."""
DEFAULT_COUNT = 32
MOST_ACKS = 10_000

Handler = Callable[[Agent, Scope, Receive, Send], Awaitable[None]]


class Decided(Exception):
    """The hub refused a command, and has recorded that itself."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


H = TypeVar("H", bound=HttpHandler)


class HttpEndpoint(Endpoint, Generic[H]):
    """The request handlers of one protocol; `guarded` makes an ASGI application of one."""

    def __init__(self, handler: H) -> None:
        self._handler = handler
        self._hub = handler.hub
        self._limits = handler.limits
        self._polls: set[Poll] = set()
        self._draining = False

    # -- endpoints

    async def poll(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        wait, count, arrived = self._query(scope["query_string"])
        instance, acknowledged = instance_in(scope), None
        if arrived:  # enqueued before the poll opens, so decided before it
            acknowledged = self._hub.enqueue(
                Acknowledge(
                    principal=agent.id, protocol=self._handler.protocol, deliveries=tuple(map(DeliveryId, arrived))
                )
            )
        try:
            outgoing_messages = await self._take(agent.id, wait, count, receive, instance)
        finally:
            if acknowledged is not None:
                await acknowledged
        now = self._hub.now()
        entries = []
        unread: set[TaskId] = set()
        for outgoing in outgoing_messages:
            if outgoing.delivery.task in unread:
                continue  # delivered again, behind the one that could not be read
            frames = await self._encoded(outgoing, agent, now)
            if frames is None:
                unread.add(outgoing.delivery.task)
                continue
            for id, frame in zip(self._handler.receipts(outgoing, len(frames)), frames, strict=True):
                entries.append(b'{"delivery_id":"%b","message":%b}' % (id.encode(), frame))
        await answer(send, 200, b'{"messages":[%b]}' % b",".join(entries))

    async def _encoded(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        """The frames of an outgoing message; empty if the protocol has none for it; None if the store cannot be read
        now."""
        try:
            return await self._handler.encode(outgoing, agent, now)
        except StoreFailed as error:  # the hub delivers it again when its lease ends
            log.error("the store cannot be read", task=outgoing.delivery.task, why=str(error))
            return None
        except Exception as error:
            report_unencodable(self._hub, agent.id, outgoing, error)
        return ()

    async def _take(
        self, agent: AgentId, wait: float, count: int, receive: Receive, instance: str | None
    ) -> Sequence[Outgoing]:
        session = SessionId(self._hub.mint())
        opening = OpenLink(
            principal=agent,
            protocol=self._handler.protocol,
            session=session,
            ordered=False,
            credit=count,
            instance=instance,
        )
        _, poll = await self.park(session, opening, wait, receive)
        return poll.outgoing_messages

    async def park(self, session: SessionId, opening: Command, wait: float, receive: Receive) -> tuple[Any, Poll]:
        """Open a poll with this command and wait until something comes, the time is up, the client is gone, or the hub
        stops; then close the poll. Gives the command's outcome; raises `Refused`."""
        poll = Poll()
        self._hub.attach(session, poll)
        self._polls.add(poll)
        try:
            outcome = await self._hub.execute(opening)
            if not poll.outgoing_messages and wait > 0 and not self._draining:
                await poll.wait(wait, receive)
        finally:
            self._polls.discard(poll)
            if not poll.outgoing_messages:  # else the hub has closed it: a poll takes outgoing messages once
                closed = close_link(self._hub, CloseLink(principal=opening.principal, session=session, lost=False))
                with contextlib.suppress(Refused):  # then the hub gave it nothing either
                    await closed  # until then the hub may still give it something
            else:
                self._hub.detach(session)
        return outcome, poll

    def _query(self, query: bytes) -> tuple[float, int, Sequence[str]]:
        """How long to wait, how many messages to take, and which deliveries to acknowledge."""
        parameters = parse_qs(query.decode("latin-1"))
        arrived = [id for ids in parameters.get("ack", ()) for id in ids.split(",") if id]
        if len(arrived) > MOST_ACKS:
            raise refuse(Kind.INVALID, f"expected at most {MOST_ACKS} delivery ids", field="ack", stage="shape")
        try:
            wait = float(parameters.get("wait", ["0"])[-1])
            count = int(parameters.get("max", [str(DEFAULT_COUNT)])[-1])
        except ValueError:
            wait, count = -1.0, 0
        if not 0 <= wait < float("inf") or count < 1:
            what = "expected wait=SECONDS (0 or more) and max=COUNT (1 or more)"
            raise refuse(Kind.INVALID, what, field="query", stage="shape")
        return min(wait, self._limits.poll_seconds), min(count, self._limits.poll_messages), arrived

    async def ack(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        ids = self._handler.json(await read_body(scope, receive, SMALL_BODY, agent.id)).get("delivery_ids")
        if type(ids) is not list or len(ids) > MOST_ACKS or not all(type(id) is str for id in ids):
            what = f"expected a list of at most {MOST_ACKS} delivery ids"
            raise refuse(Kind.INVALID, what, field="delivery_ids", stage="shape")
        known = await self.acknowledged(agent, tuple(map(DeliveryId, ids)))
        await answer(send, 200, b'{"acknowledged":%d}' % known)

    async def acknowledged(self, agent: Agent, deliveries: tuple[DeliveryId, ...]) -> int:
        """Acknowledge deliveries; gives how many of them the hub knew."""
        if not deliveries:
            return 0
        command = Acknowledge(principal=agent.id, protocol=self._handler.protocol, deliveries=deliveries)
        return int(await self._hub.execute(command))

    async def drain(self, seconds: float) -> None:
        """Answer every parked poll, and park no more."""
        self._draining = True
        for poll in self._polls:
            poll.wake()

    # -- refusing

    def by_method(self, apps: Mapping[str, ASGIApp]) -> ASGIApp:
        """The application of a path that has several methods."""
        allowed = ", ".join(apps)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            handle = apps.get(scope["method"])
            if handle is None:
                await self.wrong_method(send, allowed)
            else:
                await handle(scope, receive, send)

        return app

    def guarded(self, method: str, what: str, handle: Handler) -> ASGIApp:
        """An application that calls `handle`, and answers and records every refusal."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            agent: Agent | None = None
            try:
                if scope["method"] != method:
                    await self.wrong_method(send, method)
                    return
                agent = self._handler.agent(scope)
                await handle(agent, scope, receive, send)
            except Disconnected:
                return
            except Decided as decided:
                await self.refuse(send, None, decided.fault, agent=agent)
            except (Refused, RemoteProtocolError) as error:
                await self.refuse(send, what, self.fault(error), agent=agent)
            except StoreFailed as error:
                log.error("the store cannot be read", what=what, why=str(error))
                await self.refuse(send, what, UNREADABLE, agent=agent)

        return app

    async def execute(self, command: Command) -> Any:
        """Execute a command. The hub has recorded its refusal already (`Decided`)."""
        try:
            return await self._hub.execute(command)
        except Refused as refused:
            raise Decided(refused.fault) from None

    def fault(self, error: Refused | RemoteProtocolError) -> Fault:
        return error.fault if isinstance(error, Refused) else self._handler.fault_of(error)

    async def refuse(
        self,
        send: Send,
        what: str | None,
        fault: Fault,
        *,
        agent: Agent | None = None,
        principal: AgentId | None = None,
        about: Any = None,
        subject: str | None = None,
    ) -> None:
        """Answer with a refusal. `what` names the operation; None if the hub has recorded the refusal itself."""
        if what is not None:
            who = agent.id if agent is not None else principal
            await self._handler.refusals.record(
                what, fault, principal=who, protocol=self._handler.protocol, about=subject
            )
        headers: tuple[tuple[bytes, bytes], ...] = ()
        status = self._handler.status_of(fault)
        if status == 401:
            headers = ((b"www-authenticate", b"Bearer"),)
        elif status in (429, 503):
            headers = ((b"retry-after", b"%d" % retry_after(fault)),)
        await answer(send, status, self._handler.encode_refusal(fault, agent=agent, context=about), headers=headers)

    async def wrong_method(self, send: Send, allowed: str) -> None:
        fault = new_fault(Kind.INVALID, f"this path takes {allowed}", next="use that method")
        await answer(send, 405, self._handler.encode_refusal(fault), headers=((b"allow", allowed.encode()),))


class Poll:
    """A parked poll: `core.ports.LinkEnd`. `gone`: its client disconnected, or may have."""

    def __init__(self) -> None:
        self.outgoing_messages: list[Outgoing] = []
        self.gone = False
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def deliver(self, outgoing_messages: Sequence[Outgoing]) -> None:
        self.outgoing_messages.extend(outgoing_messages)
        self.wake()

    def hang_up(self, reason: CloseReason) -> None:
        self.wake()

    def wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, seconds: float, receive: Receive) -> None:
        """Wait until something comes, the time is up, or the client is gone."""
        timer = asyncio.get_running_loop().call_later(seconds, self.wake)
        watcher = asyncio.ensure_future(self._watch(receive))
        try:
            await self._woken
        finally:
            timer.cancel()
            watcher.cancel()

    async def _watch(self, receive: Receive) -> None:
        await departure(receive)
        self.gone = True
        self.wake()
