"""Chiffon over HTTP: register, send, long poll, acknowledge, steer tasks.

    POST /api/agent/register    200 {"status":"registered", agent_id, agent_type, protocol_version}
    POST /api/agent/message     202 {"status":"accepted","message_id":…}, after the commit
    GET  /api/agent/messages    200 {"messages":[{"delivery_id":…,"message":{…}}]}; ?wait=SECONDS&max=COUNT
    POST /api/agent/ack         200 {"acknowledged":COUNT}; {"delivery_ids":[…]}
    POST /api/tasks/ID/VERB     200 {"task_id":…,"status":…}; cancel {"reason"?}, pause, resume {"answer"?}

Everything else is an `error` envelope with the status of `bindings.errormap`. A poll is a link that takes what waits,
or waits for it, and is gone. What it took and did not acknowledge is offered again when its lease ends, so a client
that goes away in the middle loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal
from urllib.parse import parse_qs

import msgspec
import structlog

from dragoman.bindings import chiffon
from dragoman.bindings.chiffon.exchange import PROTOCOL
from dragoman.core.agents.model import Agent
from dragoman.core.commands import Acknowledge, Cancel, CloseLink, Command, OpenLink, Pause, Resume
from dragoman.core.delivery.model import Parcel
from dragoman.core.errors import Fault, Kind, Refused, refuse
from dragoman.core.ids import ADMIN, AgentId, DeliveryId, SessionId, TaskId
from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.errors import ChiffonError
from dragoman.protocols.chiffon.types import Correlation
from dragoman.security.urls import UrlRefused
from dragoman.transports.asgi import ASGIApp, Disconnected, Receive, Scope, Send, answer, header, read_body
from dragoman.transports.desk import Desk
from dragoman.wire.errors import RemoteProtocolError

log = structlog.get_logger("dragoman.transports")

SMALL_BODY = 1024 * 1024
"""Registrations, acknowledgments and controls are never longer."""
DEFAULT_COUNT = 32
MOST_ACKS = 10_000
VERBS = ("cancel", "pause", "resume")

_encode = msgspec.json.Encoder().encode


class Callbacks:
    """Where agents that registered a callback URL are told to (`push.Push`). This one takes none."""

    async def check(self, url: str) -> None:
        raise UrlRefused("this hub calls no callback URLs; poll or open a WebSocket instead.")

    def follow(self, agent: AgentId) -> None: ...


class ChiffonHttp:
    """The handlers; `routes` says which path is whose."""

    def __init__(
        self,
        desk: Desk,
        *,
        callbacks: Callbacks | None = None,
        negotiation: Literal["lowest", "highest"] = "lowest",
    ) -> None:
        self._desk = desk
        self._hub = desk.hub
        self._limits = desk.limits
        self._callbacks = callbacks or Callbacks()
        self._negotiation: Literal["lowest", "highest"] = negotiation
        self._polls: set[_Poll] = set()
        self._draining = False

    def routes(self) -> dict[str, ASGIApp]:
        return {
            "/api/agent/message": self.message,
            "/api/agent/messages": self._guarded("GET", "agent.poll", self._poll),
            "/api/agent/ack": self._guarded("POST", "agent.ack", self._ack),
            "/api/agent/register": self._guarded("POST", "agent.register", self._register),
        }

    def drain(self) -> None:
        """Answer every parked poll, and park no more."""
        self._draining = True
        for poll in self._polls:
            poll.wake()

    # -- POST /api/agent/message

    async def message(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._wrong_method(scope, send, "POST")
            return
        agent: Agent | None = None
        try:
            agent = self._desk.agent(scope)
            data = await read_body(scope, receive, self._limits.message_bytes)
        except Disconnected:
            return
        except (Refused, RemoteProtocolError) as error:
            await self._no(send, "agent.message", _fault(error), agent=agent)
            return
        traceparent = header(scope, b"traceparent")
        heard = self._desk.understand(agent, data, traceparent=traceparent.decode("latin-1") if traceparent else None)
        command, fault = heard.command, heard.fault
        if heard.look is not None:
            try:
                found = await heard.look()
                assert isinstance(found, Command)
                command = found
            except Refused as refused:
                fault = refused.fault
        if command is None:
            assert fault is not None
            await self._no(send, "agent.message", fault, agent=agent, about=heard.about, subject=heard.message_id)
            return
        try:
            await self._hub.ask(command)
        except Refused as refused:
            await self._no(send, None, refused.fault, agent=agent, about=heard.about)
            return
        assert heard.message_id is not None
        await answer(send, 202, b'{"status":"accepted","message_id":"%b"}' % heard.message_id.encode())

    # -- GET /api/agent/messages

    async def _poll(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        wait, count = self._wishes(scope["query_string"])
        session = SessionId(self._hub.mint())
        poll = _Poll()
        self._hub.attach(session, poll)
        self._polls.add(poll)
        try:
            await self._hub.ask(
                OpenLink(principal=agent.id, protocol=PROTOCOL, session=session, ordered=False, credit=count)
            )
            if not poll.parcels and wait > 0 and not self._draining:
                await poll.wait(wait, receive)
        finally:
            self._polls.discard(poll)
            if not poll.parcels:  # else the hub has let go of it: a poll takes parcels once
                closed = self._hub.post(CloseLink(principal=agent.id, session=session, lost=False))
                closed.add_done_callback(lambda done: self._closed(session, done))
                with contextlib.suppress(Refused):  # then nothing was given to it either
                    await closed  # until then something may still be given to it
            else:
                self._hub.detach(session)
        now = self._hub.now()
        entries = [
            b'{"delivery_id":"%b","message":%b}' % (parcel.delivery.id.encode(), frame)
            for parcel in poll.parcels
            for frame in chiffon.wire_of(parcel, agent, now)
        ]
        await answer(send, 200, b'{"messages":[%b]}' % b",".join(entries))

    def _closed(self, session: SessionId, closed: asyncio.Future[Any]) -> None:
        self._hub.detach(session)
        if not closed.cancelled() and closed.exception() is not None:
            log.warning("poll not closed", session=session)

    def _wishes(self, query: bytes) -> tuple[float, int]:
        said = parse_qs(query.decode("latin-1"))
        try:
            wait = float(said.get("wait", ["0"])[-1])
            count = int(said.get("max", [str(DEFAULT_COUNT)])[-1])
        except ValueError:
            wait, count = -1.0, 0
        if not 0 <= wait < float("inf") or count < 1:
            what = "expected wait=SECONDS (0 or more) and max=COUNT (1 or more)"
            raise refuse(Kind.INVALID, what, field="query", stage="shape")
        return min(wait, self._limits.poll_seconds), min(count, self._limits.poll_messages)

    # -- POST /api/agent/ack

    async def _ack(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        ids = self._desk.json(await read_body(scope, receive, SMALL_BODY)).get("delivery_ids")
        if type(ids) is not list or len(ids) > MOST_ACKS or not all(type(id) is str for id in ids):
            raise refuse(
                Kind.INVALID,
                f"expected a list of at most {MOST_ACKS} delivery ids",
                field="delivery_ids",
                stage="shape",
            )
        deliveries = tuple(map(DeliveryId, ids))
        known = (
            await self._hub.ask(Acknowledge(principal=agent.id, protocol=PROTOCOL, deliveries=deliveries)) if ids else 0
        )
        await answer(send, 200, _encode({"acknowledged": known}))

    # -- POST /api/agent/register

    async def _register(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        data = await read_body(scope, receive, SMALL_BODY)
        said = codec.decode_registration(data)
        command = chiffon.registration_of(agent, said, negotiation=self._negotiation)
        if said.callback_url is not None:
            try:
                await self._callbacks.check(said.callback_url)
            except UrlRefused as refused:
                raise refuse(Kind.INVALID, str(refused), field="callback_url") from None
        known: Agent = await self._ask(command)
        self._callbacks.follow(agent.id)
        await answer(send, 200, chiffon.registered(known))

    # -- POST /api/tasks/ID/VERB

    async def task(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`fallback` paths below /api/tasks/ do not exist."""
        id, _, verb = scope["path"].removeprefix("/api/tasks/").partition("/")
        about: Correlation | None = None
        what: str | None = f"task.{verb}"
        try:
            if verb not in VERBS or not id or len(id) > 200:
                what = "http.path"
                raise refuse(Kind.NOT_FOUND, "there is nothing at this path; use /api/tasks/ID/cancel, pause or resume")
            if scope["method"] != "POST":
                await self._wrong_method(scope, send, "POST")
                return
            principal = self._desk.principal(scope)
            data = await read_body(scope, receive, SMALL_BODY)
            body = self._desk.json(data) if data.strip() else {}
            task = await self._ask(_steer(verb, principal, TaskId(id.lower()), body))
            await answer(send, 200, _encode({"task_id": task.id, "status": task.status.value}))
        except Disconnected:
            return
        except _Decided as decided:
            await self._no(send, None, decided.fault, about=about)
        except (Refused, RemoteProtocolError) as error:
            await self._no(send, what, _fault(error), about=about)

    # -- what they share

    def _guarded(
        self, method: str, what: str, handle: Callable[[Agent, Scope, Receive, Send], Awaitable[None]]
    ) -> ASGIApp:
        """A handler that only has to say what goes well."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            agent: Agent | None = None
            try:
                if scope["method"] != method:
                    await self._wrong_method(scope, send, method)
                    return
                agent = self._desk.agent(scope)
                await handle(agent, scope, receive, send)
            except Disconnected:
                return
            except _Decided as decided:
                await self._no(send, None, decided.fault, agent=agent)
            except (Refused, RemoteProtocolError) as error:
                await self._no(send, what, _fault(error), agent=agent)

        return app

    async def _ask(self, command: Command) -> Any:
        """Ask the hub; its refusal is in the audit record already."""
        try:
            return await self._hub.ask(command)
        except Refused as refused:
            raise _Decided(refused.fault) from None

    async def _no(
        self,
        send: Send,
        what: str | None,
        fault: Fault,
        *,
        agent: Agent | None = None,
        about: Correlation | None = None,
        subject: str | None = None,
    ) -> None:
        """Refuse; `what` was tried, or None if the hub decided and recorded it itself."""
        if what is not None:
            who = agent.id if agent is not None else None
            await self._desk.refusals.note(what, fault, principal=who, protocol=PROTOCOL, about=subject)
        headers: tuple[tuple[bytes, bytes], ...] = ()
        status = chiffon.status_of(fault)
        if status == 401:
            headers = ((b"www-authenticate", b"Bearer"),)
        elif status in (429, 503):
            headers = ((b"retry-after", b"1"),)
        await answer(send, status, self._desk.no(fault, agent=agent, about=about), headers=headers)

    async def _wrong_method(self, scope: Scope, send: Send, allowed: str) -> None:
        fault = Fault(kind=Kind.INVALID, message=f"this path takes {allowed}; use that method")
        await answer(send, 405, self._desk.no(fault), headers=((b"allow", allowed.encode()),))


class _Decided(Exception):
    """The hub refused a command."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class _Poll:
    """A parked poll: `core.ports.LinkEnd`."""

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def deliver(self, parcels: Sequence[Parcel]) -> None:
        self.parcels.extend(parcels)
        self.wake()

    def hang_up(self, reason: str) -> None:
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
        while (await receive())["type"] != "http.disconnect":
            pass
        self.wake()


def _steer(verb: str, principal: AgentId, task: TaskId, body: dict[str, Any]) -> Command:
    protocol = "api" if principal == ADMIN else PROTOCOL
    if verb == "cancel":
        reason = body.get("reason")
        given = {"reason": reason} if type(reason) is str and reason else {}
        return Cancel(principal=principal, protocol=protocol, task_id=task, **given)
    if verb == "pause":
        return Pause(principal=principal, protocol=protocol, task_id=task)
    return Resume(
        principal=principal, protocol=protocol, task_id=task, answer=body.get("answer"), has_answer="answer" in body
    )


def _fault(error: Refused | RemoteProtocolError) -> Fault:
    if isinstance(error, Refused):
        return error.fault
    if isinstance(error, ChiffonError):
        return chiffon.fault_of(error)
    return Fault(kind=Kind.TOO_LARGE, message=error.what)
