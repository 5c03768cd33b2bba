"""Agentmsg over HTTP: send, long poll, acknowledge. The shared state has its own file (`state`).

    POST /agentmsg/messages    202 {"status":"accepted","message_id":…}, after the commit; what has an answer of the
                               hub's own (REGISTER, STATE_UPDATE, STATE_QUERY) has it there: "answer": {…message…}
    GET  /agentmsg/messages    200 {"messages":[{"delivery_id":…,"message":{…}}]}; ?wait=SECONDS&max=COUNT&ack=IDS
    POST /agentmsg/ack         200 {"acknowledged":COUNT}; takes {"delivery_ids":[…]}, or an ACK, which may as well be
                               sent like any other message

Everything else is an ErrorReport with a status of `answers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from dragoman.core.commands import Command
from dragoman.core.ids import AgentId
from dragoman.core.model.agents import Agent
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.protocols.agentmsg.types import Message, MessageType, StateQuery
from dragoman.server.agentmsg.handler import About, AgentmsgHandler, Decoded
from dragoman.server.agentmsg.session import AgentmsgWebSocket
from dragoman.server.agentmsg.state import AgentmsgState, read
from dragoman.server.asgi import ASGIApp, Receive, Scope, Send, answer, header_text, read_body
from dragoman.server.handler import Endpoint
from dragoman.server.http_endpoint import SMALL_BODY, HttpEndpoint
from dragoman.server.session import (
    Acknowledged,
    Answered,
    CommandFrame,
    Ignored,
    Invalid,
    LookUp,
    Request,
)


def endpoints(handler: AgentmsgHandler) -> tuple[Endpoint, ...]:
    http = AgentmsgHttp(handler)
    return (http, AgentmsgWebSocket(handler), AgentmsgState(handler, http))


class AgentmsgHttp(HttpEndpoint[AgentmsgHandler]):
    def __init__(self, handler: AgentmsgHandler) -> None:
        super().__init__(handler)
        self._under_way: dict[tuple[AgentId, str], asyncio.Future[Sequence[bytes]]] = {}

    def routes(self) -> dict[str, ASGIApp]:
        poll = self.guarded("GET", "agent.poll", self.poll)
        return {
            "/agentmsg/messages": self.by_method(
                {"GET": poll, "POST": self.guarded("POST", "agent.message", self.message)}
            ),
            "/agentmsg/ack": self.guarded("POST", "agent.ack", self.ack),
        }

    async def ack(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        data = await read_body(scope, receive, SMALL_BODY, agent.id)
        if self._handler.json(data).get("type") != MessageType.ACK:

            async def read() -> dict[str, Any]:
                return {"type": "http.request", "body": data, "more_body": False}

            await super().ack(agent, scope, read, send)
            return
        decoded = self._handler.decode(agent, data, self._query_state)
        if isinstance(decoded, Invalid):
            raise Refused(decoded.fault)
        deliveries = decoded.deliveries if isinstance(decoded, Acknowledged) else ()
        await answer(send, 200, b'{"acknowledged":%d}' % await self.acknowledged(agent, deliveries))

    # -- POST /agentmsg/messages

    async def message(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        data = await read_body(scope, receive, self._limits.message_bytes, agent.id)
        trace = header_text(scope, b"traceparent")
        decode = partial(self._handler.decode, agent, data, self._query_state, traceparent=trace)
        decoded = decode()
        first: asyncio.Future[Sequence[bytes]] | None = None
        if isinstance(decoded, Ignored):  # it came before
            first = self._under_way.get((agent.id, str(decoded.message_id)))
            if first is None:  # over another connection; what is kept the store recognises
                decoded = decode(waits=True)
        if isinstance(decoded, Invalid):
            self._release(agent, decoded.context)
            await self.refuse(send, "agent.message", decoded.fault, agent=agent, subject=decoded.message_id)
            return
        request = decoded.request if isinstance(decoded, CommandFrame | LookUp) else Request(decoded.message_id)
        message_id, context = request.message_id, request.context
        assert message_id is not None
        try:
            answers = await (
                self._decide(agent, decoded, message_id, context) if first is None else asyncio.shield(first)
            )
        except Refused as refused:
            what = "agent.message" if isinstance(decoded, LookUp) else None
            await self.refuse(send, what, refused.fault, agent=agent, about=context, subject=message_id)
            return
        except StoreFailed:
            fault = Fault(kind=Kind.OVERLOADED, message="the shared state cannot be read now", retryable=True)
            await self.refuse(send, "agent.message", fault, agent=agent, subject=message_id)
            return
        accepted = b'{"status":"accepted","message_id":"%b"' % message_id.encode()
        await answer(send, 202, accepted + (b',"answer":%b}' % answers[0] if answers else b"}"))

    async def _decide(self, agent: Agent, decoded: Decoded, message_id: str, context: Any) -> Sequence[bytes]:
        """The answers to a message. A request that brings the same message meanwhile waits for the same answers
        (all-D5)."""
        key = (agent.id, message_id)
        outcome = self._under_way[key] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            answers = await self._answers(agent, decoded)
        except BaseException as error:
            self._release(agent, context)
            outcome.set_exception(error) if isinstance(error, Exception) else outcome.cancel()
            raise
        finally:
            if self._under_way.get(key) is outcome:
                del self._under_way[key]
        outcome.set_result(answers)
        return answers

    async def _answers(self, agent: Agent, decoded: Decoded) -> Sequence[bytes]:
        """What is answered beside that it was accepted; raises `Refused`."""
        match decoded:
            case Acknowledged(deliveries=deliveries):
                await self.acknowledged(agent, deliveries)
            case Answered(frames=frames):
                return frames
            case LookUp(find=find, request=request):
                found = await find()
                if not isinstance(found, Command):
                    return found
                return self._handler.encode_answer(agent, request.context, await self._execute(found, request))
            case CommandFrame(command=command, request=request):
                return self._handler.encode_answer(agent, request.context, await self._execute(command, request))
        return ()

    async def _execute(self, command: Command, request: Request) -> Any:
        """The first command's outcome, when all of them are committed; raises `Refused`."""
        enqueued = [self._hub.enqueue(one) for one in (command, *request.also)]
        outcomes = await asyncio.gather(*enqueued, return_exceptions=True)
        refusal = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
        if refusal is None:
            return outcomes[0]
        meant = request.otherwise(refusal.fault) if request.otherwise and isinstance(refusal, Refused) else None
        if meant is None:
            raise refusal
        return await self._hub.execute(meant)

    def _release(self, agent: Agent, context: Any) -> None:
        if isinstance(context, About):
            self._handler.release(agent.id, context)

    async def _query_state(self, agent: Agent, message: Message) -> Sequence[bytes]:
        asked: StateQuery = message.payload
        if asked.watch:
            raise refuse(
                Kind.INVALID,
                "watch over the WebSocket, or at GET /agentmsg/state/watch",
                next="this request ends with its answer",
                field="payload.watch",
            )
        found = await read(self._handler, agent.id, asked)
        self._handler.encode_answer(agent, About(message.id, message=message), None)
        return (found.message(self._handler, agent.id, message.id),)
