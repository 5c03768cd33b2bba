"""Chiffon over HTTP: register, send, long poll, acknowledge, steer tasks.

    POST /api/agent/register    200 {"status":"registered", agent_id, agent_type, protocol_version}
    POST /api/agent/message     202 {"status":"accepted","message_id":…}, after the commit
    GET  /api/agent/messages    200 {"messages":[{"delivery_id":…,"message":{…}}]}; ?wait=SECONDS&max=COUNT&ack=IDS
    POST /api/agent/ack         200 {"acknowledged":COUNT}; {"delivery_ids":[…]}
    POST /api/tasks/ID/VERB     200 {"task_id":…,"status":…}; cancel {"reason"?}, pause, resume {"answer"?}

Everything else is an `error` envelope with the status of `messages.error_table`. Polls and acknowledgments are every
protocol's (`http_endpoint`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from dragoman.core.commands import Command
from dragoman.core.ids import TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.protocols.chiffon import codec
from dragoman.security.urls import Network, Resolve, UrlRefused
from dragoman.server.asgi import ASGIApp, Disconnected, Receive, Scope, Send, answer, header_text, read_body
from dragoman.server.callbacks import Callbacks, CallbackSender, CallbackUrls
from dragoman.server.chiffon import inbound, outbound
from dragoman.server.chiffon.files import AgentFiles
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.chiffon.websocket import ChiffonWebSocket
from dragoman.server.handler import Endpoint
from dragoman.server.http_endpoint import SMALL_BODY, Decided, HttpEndpoint
from dragoman.server.refusals import UNREADABLE
from dragoman.server.session import CommandFrame, Invalid
from dragoman.wire.errors import RemoteProtocolError

TASKS = "/api/tasks/"

_encode = msgspec.json.Encoder().encode


class ChiffonHttp(HttpEndpoint[ChiffonHandler]):
    def __init__(
        self,
        handler: ChiffonHandler,
        *,
        callbacks: Callbacks | None = None,
        negotiation: Literal["lowest", "highest"] = "lowest",
    ) -> None:
        super().__init__(handler)
        self._callbacks = callbacks or Callbacks()
        self._negotiation: Literal["lowest", "highest"] = negotiation

    def routes(self) -> dict[str, ASGIApp]:
        return {
            "/api/agent/message": self.guarded("POST", "agent.message", self.message),
            "/api/agent/messages": self.guarded("GET", "agent.poll", self.poll),
            "/api/agent/ack": self.guarded("POST", "agent.ack", self.ack),
            "/api/agent/register": self.guarded("POST", "agent.register", self._register),
        }

    def prefixes(self) -> dict[str, ASGIApp]:
        return {TASKS: self.task}

    # -- POST /api/agent/message

    async def message(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        data = await read_body(scope, receive, self._limits.message_bytes, agent.id)
        decoded = self._handler.decode(agent, data, traceparent=header_text(scope, b"traceparent"))
        if isinstance(decoded, Invalid):
            context, subject = decoded.context, decoded.message_id
            await self.refuse(send, "agent.message", decoded.fault, agent=agent, about=context, subject=subject)
            return
        request = decoded.request
        what: str | None = "agent.message"
        try:
            command = decoded.command if isinstance(decoded, CommandFrame) else await decoded.find()
            assert isinstance(command, Command)
            what = None  # what the hub itself refuses, it records
            await self._hub.execute(command)
        except (Refused, StoreFailed) as error:
            fault = error.fault if isinstance(error, Refused) else UNREADABLE
            await self.refuse(send, what, fault, agent=agent, about=request.context, subject=request.message_id)
            return
        assert request.message_id is not None
        await answer(send, 202, b'{"status":"accepted","message_id":"%b"}' % request.message_id.encode())

    # -- POST /api/agent/register

    async def _register(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        data = await read_body(scope, receive, SMALL_BODY, agent.id)
        sent = codec.decode_registration(data)
        command = inbound.registration_of(agent, sent, negotiation=self._negotiation)
        if sent.callback_url is not None:
            try:
                await self._callbacks.check(sent.callback_url)
            except UrlRefused as refused:
                fault = Fault(kind=Kind.INVALID, message=str(refused), next=refused.next, field="callback_url")
                raise Refused(fault) from None
        known: Agent = await self.execute(command)
        await answer(send, 200, outbound.registered(known))

    # -- POST /api/tasks/ID/VERB

    async def task(self, scope: Scope, receive: Receive, send: Send) -> None:
        id, _, verb = scope["path"].removeprefix(TASKS).partition("/")
        what: str | None = f"task.{verb}"
        try:
            if verb not in inbound.VERBS or not id or len(id) > 200:
                what = "http.path"
                raise refuse(
                    Kind.NOT_FOUND, "there is nothing at this path", next="use /api/tasks/ID/cancel, pause or resume"
                )
            if scope["method"] != "POST":
                await self.wrong_method(send, "POST")
                return
            principal = self._handler.principal(scope)
            data = await read_body(scope, receive, SMALL_BODY, principal)
            body = self._handler.json(data) if data.strip() else {}
            task = await self.execute(inbound.steering_of(verb, principal, TaskId(id.lower()), body))
            await answer(send, 200, _encode({"task_id": task.id, "status": task.status.value}))
        except Disconnected:
            return
        except Decided as decided:
            await self.refuse(send, None, decided.fault)
        except (Refused, RemoteProtocolError) as error:
            await self.refuse(send, what, self.fault(error))


def endpoints(
    handler: ChiffonHandler,
    *,
    negotiation: Literal["lowest", "highest"] = "lowest",
    callback_networks: Sequence[Network] = (),
    resolve: Resolve | None = None,
    posts: bool = True,
) -> tuple[Endpoint, ...]:
    """All of chiffon's endpoints on the HTTP port. `posts`: whether this node posts to callback URLs."""
    urls = CallbackUrls(allowed=callback_networks, resolve=resolve)
    sender = CallbackSender(handler, allowed=callback_networks, resolve=resolve) if posts else None
    http = ChiffonHttp(handler, callbacks=urls, negotiation=negotiation)
    files = () if handler.files is None else (AgentFiles(handler, handler.files),)
    return (http, ChiffonWebSocket(handler), *(() if sender is None else (sender,)), *files)
