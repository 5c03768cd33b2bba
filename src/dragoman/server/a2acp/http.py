"""A2acp over HTTP: send, long poll, acknowledge.

    POST /a2acp/messages    a request: 200 with the response, as soon as it is there; or an error message
                            with `Prefer: respond-async`: 202, and the response comes to the inbox
                            a response, an error, an event: 202 {"status":"accepted","message_id":…}, after the commit
    GET  /a2acp/messages    200 {"messages":[{"delivery_id":…,"message":{…}}]}; ?wait=SECONDS&max=COUNT
                            &answer_to=MESSAGE_ID: the answer to that request once more, if it was lost on the way
    POST /a2acp/ack         200 {"acknowledged":COUNT}; takes {"delivery_ids":[…]}

The credential of a message is its token. A bearer secret is not needed there; where there is one, it must be the same
agent's. Polls and acknowledgments take the agent's secret. Everything else is an error message with a status of
`protocols.a2acp.errors`.

A request waits as long as its contract allows. Then its task is over (TIMEOUT), whoever waits for it. If its connection
breaks before it has the answer, or the hub stops, the answer comes to the inbox. So it does where a client closes its
side and may have gone: one that reads on is told 202.
"""

from __future__ import annotations

from urllib.parse import parse_qs

import msgspec

from dragoman.core.commands import Acknowledge, Command, ShakeHands, Submit, TellAgain
from dragoman.core.ids import DeliveryId, SessionId
from dragoman.core.memory import STRANGERS
from dragoman.core.model.agents import Agent
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.protocols.a2acp import errors
from dragoman.protocols.a2acp.types import HANDSHAKE_SECONDS, MESSAGE_BYTES
from dragoman.server.a2acp import outbound
from dragoman.server.a2acp.handler import A2acpHandler, About
from dragoman.server.a2acp.names import PROTOCOL
from dragoman.server.a2acp.session import refused_as
from dragoman.server.asgi import ASGIApp, Disconnected, Receive, Scope, Send, answer, header, is_gone, read_body
from dragoman.server.http_endpoint import HttpEndpoint
from dragoman.server.refusals import UNREADABLE
from dragoman.server.session import Invalid
from dragoman.wire.errors import RemoteProtocolError

SLACK = 2.0
"""Seconds beyond the hub's own clocks, which answer first."""
APPLIED = ((b"preference-applied", b"respond-async"),)
_INBOX = "it was taken, and its answer comes to your inbox: GET /a2acp/messages"
LEAVING = Fault(kind=Kind.OVERLOADED, message=f"the hub stops; {_INBOX}", retryable=True)
UNANSWERED = Fault(kind=Kind.TIMEOUT, message=f"this request waits no longer; {_INBOX}", retryable=True)


class A2acpHttp(HttpEndpoint[A2acpHandler]):
    def routes(self) -> dict[str, ASGIApp]:
        poll = self.guarded("GET", "agent.poll", self.poll)
        return {
            "/a2acp/messages": self.by_method({"GET": poll, "POST": self.message}),
            "/a2acp/ack": self.guarded("POST", "agent.ack", self.ack),
        }

    # -- POST /a2acp/messages

    async def message(self, scope: Scope, receive: Receive, send: Send) -> None:
        about = About()
        what: str | None = "a2acp.message"
        try:
            link = self._linked(scope)
            what = None  # a refusal for want of room is counted and not recorded
            data = await read_body(scope, receive, MESSAGE_BYTES, STRANGERS if link is None else link.id)
            later = responds_later(scope)
            trace = header(scope, b"traceparent")
            decoded = self._handler.decode(data, link, traceparent=None if trace is None else trace.decode("latin-1"))
            if isinstance(decoded, Invalid):
                about, what = decoded.context, refused_as(decoded.fault)
                raise Refused(decoded.fault)
            about, what = decoded.request.context, "a2acp.message"
            found = await decoded.find()
            what = None  # what the hub itself refuses, it records
            said: _Answer | None
            if isinstance(found, Submit | ShakeHands) and not later:
                said = await self._awaited(found, about, receive)
            elif isinstance(found, Command):
                said = await self._decided(found, about)
            else:
                said = _Answer(found[0])
        except Disconnected:
            return
        except (Refused, RemoteProtocolError) as error:
            fault = self.fault(error)
            if what is not None or not isinstance(error, Refused):
                what = refused_as(fault)
            await self.refuse(send, what, fault, agent=about.agent, about=about, subject=about.id)
            return
        except StoreFailed:
            await self.refuse(send, "a2acp.message", UNREADABLE, agent=about.agent, about=about, subject=about.id)
            return
        if said is not None:
            await self._hand_over(said, about, receive, send)
            return
        accepted = msgspec.json.encode({"status": "accepted", "message_id": about.id, "correlation_id": about.thread})
        await answer(send, 202, accepted, headers=APPLIED if later and isinstance(found, Submit | ShakeHands) else ())

    def _linked(self, scope: Scope) -> Agent | None:
        """Whose secret came along, if one did."""
        return None if header(scope, b"authorization") is None else self._handler.agent(scope)

    async def _decided(self, command: Command, about: About) -> _Answer | None:
        """What a committed command is answered with, if it is at once; raises `Refused`."""
        told = self._handler.encode_answer(about, await self._hub.execute(command))
        return None if told is None else _Answer(told)

    async def _awaited(self, command: Submit | ShakeHands, about: About, receive: Receive) -> _Answer | None:
        """Wait for the answer itself. Whoever goes away before it, or does not get it, finds it in the inbox; one that
        may have gone is told that what it asked was accepted."""
        session = SessionId(self._hub.mint())
        asked: Command
        if isinstance(command, ShakeHands):
            patience: float = HANDSHAKE_SECONDS
            asked = msgspec.structs.replace(command, awaited=session)
        else:
            patience = command.timing.total_seconds or 0
            asked = msgspec.structs.replace(command, reply=msgspec.structs.replace(command.reply, awaited=session))
        _, waited = await self.park(session, asked, patience + SLACK, receive)
        if not waited.outgoing_messages:
            if waited.gone:
                return None
            raise Refused(LEAVING if self._draining else UNANSWERED)
        (outgoing,) = waited.outgoing_messages
        assert about.agent is not None
        (frame,) = await self._handler.encode(outgoing, about.agent, self._hub.now())
        return _Answer(frame, outbound.failure_in(outgoing), None if waited.gone else outgoing.delivery.id)

    async def _hand_over(self, said: _Answer, about: About, receive: Receive, send: Send) -> None:
        """An answer that a request waited for is acknowledged when it was written to a client that is there. Where that
        was wrong, the client asks for it (`answer_to`)."""
        gone = said.delivery is not None and await is_gone(receive)
        await answer(send, 200 if said.fault is None else errors.status_of(said.fault), said.frame)
        if said.delivery is not None and about.agent is not None and not gone:
            command = Acknowledge(principal=about.agent.id, protocol=PROTOCOL, deliveries=(said.delivery,))
            self._hub.enqueue_and_forget(command)

    # -- GET /a2acp/messages

    async def poll(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        missed = parse_qs(scope["query_string"].decode("latin-1")).get("answer_to")
        if missed is not None:
            await self._hub.execute(TellAgain(principal=agent.id, protocol=PROTOCOL, request_id=missed[-1].lower()))
        await super().poll(agent, scope, receive, send)


class _Answer(msgspec.Struct, frozen=True):
    """A message that is the body of an HTTP answer; `fault` where it is an error. `delivery`: it waits for an
    acknowledgment."""

    frame: bytes
    fault: Fault | None = None
    delivery: DeliveryId | None = None


def responds_later(scope: Scope) -> bool:
    """RFC 7240: whether the client wants the answer in its inbox."""
    said = header(scope, b"prefer")
    return said is not None and b"respond-async" in said.lower()
