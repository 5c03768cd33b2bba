"""What a protocol's HTTP endpoints share: long polls, acknowledgments, and saying no.

    GET  …/messages?wait=SECONDS&max=COUNT    200 {"messages":[{"delivery_id":…,"message":{…}}]}
                   &ack=ID,ID                 what came before is acknowledged first
    POST …/ack {"delivery_ids":[…]}           200 {"acknowledged":COUNT}

A poll is a link that takes what waits, or waits for it, and is gone. What it took and did not acknowledge is offered
again when its lease ends, so a client that goes away in the middle loses nothing. Of a task it may get several messages
at once, in order; what of them is not acknowledged comes again in that order. One that sends nothing more may have
gone: its poll is answered with what there is, and waits for nothing. A request that waits for its own answer is a poll
that takes only that (`core.delivery.outbox`).

Everything that is refused is answered with the protocol's own error and its status, and is in the audit record: by the
hub, if it decided (`Decided`), by us, if it did not get that far.
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
from dragoman.messages.faults import Fault, Kind, Refused, refuse
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
"""Registrations, acknowledgments and controls are never longer."""
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
    """The handlers of one protocol; `guarded` makes an endpoint of one."""

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
        if arrived:  # decided before the poll is opened, for it was handed in before
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
                continue  # it is offered again behind the one that could not be read
            frames = await self._encoded(outgoing, agent, now)
            if frames is None:
                unread.add(outgoing.delivery.task)
                continue
            for id, frame in zip(self._handler.receipts(outgoing, len(frames)), frames, strict=True):
                entries.append(b'{"delivery_id":"%b","message":%b}' % (id.encode(), frame))
        await answer(send, 200, b'{"messages":[%b]}' % b",".join(entries))

    async def _encoded(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        """Its frames; none, if there are no words for it; None, if they cannot be found now."""
        try:
            return await self._handler.encode(outgoing, agent, now)
        except StoreFailed as error:  # it is offered again when its lease ends
            log.error("not told now", task=outgoing.delivery.task, why=str(error))
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
        """The outcome of a command that opens a link without order, and the link's end when it is over: something came,
        the time is up, the client is gone, or the hub stops. Raises `Refused`."""
        poll = Poll()
        self._hub.attach(session, poll)
        self._polls.add(poll)
        try:
            outcome = await self._hub.execute(opening)
            if not poll.outgoing_messages and wait > 0 and not self._draining:
                await poll.wait(wait, receive)
        finally:
            self._polls.discard(poll)
            if not poll.outgoing_messages:  # else the hub has let go of it: a poll takes outgoing messages once
                closed = close_link(self._hub, CloseLink(principal=opening.principal, session=session, lost=False))
                with contextlib.suppress(Refused):  # then nothing was given to it either
                    await closed  # until then something may still be given to it
            else:
                self._hub.detach(session)
        return outcome, poll

    def _query(self, query: bytes) -> tuple[float, int, Sequence[str]]:
        """How long to wait, how much to take, and which deliveries have arrived."""
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
        """How many of them were known."""
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
        """The endpoint of a path where each method does something else."""
        allowed = ", ".join(apps)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            handle = apps.get(scope["method"])
            if handle is None:
                await self.wrong_method(send, allowed)
            else:
                await handle(scope, receive, send)

        return app

    def guarded(self, method: str, what: str, handle: Handler) -> ASGIApp:
        """A handler that only has to say what goes well."""

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
        """Ask the hub; its refusal is in the audit record already."""
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
        """Refuse; `what` was tried, or None if the hub decided and recorded it itself."""
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
        fault = Fault(kind=Kind.INVALID, message=f"this path takes {allowed}; use that method")
        await answer(send, 405, self._handler.encode_refusal(fault), headers=((b"allow", allowed.encode()),))


class Poll:
    """A parked poll: `core.ports.LinkEnd`. `gone`: its client went away, or may have."""

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
        """Until something comes, the time is up, or the client is gone."""
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
