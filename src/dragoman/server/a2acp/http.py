"""A2acp over HTTP: messages, long polls, acknowledgments; tokens and declarations.

    POST /a2acp/messages          a request: 200 with the response, as soon as it is there; or an error message
                                  with `Prefer: respond-async`: 202, and the response comes to the inbox
                                  a response, an error, an event: 202 {"status":"accepted",…}, after the commit
    GET  /a2acp/messages          200 {"messages":[{"delivery_id":…,"message":{…}}]}; ?wait=SECONDS&max=COUNT
                                  &answer_to=MESSAGE_ID: the answer to that request once more, if it was lost
    POST /a2acp/ack               200 {"acknowledged":COUNT}; takes {"delivery_ids":[…]}
    POST /a2acp/agents            an agent declares which intents it serves, on which terms (D6)
    POST /auth/token              a token for messages to one target (D5); the agent's own secret by HTTP Basic or as a
                                  bearer
    GET  /.well-known/jwks.json   the public keys, for programs that verify tokens themselves

The credential of a message is its token. It needs no bearer secret; where there is one, it must be the same agent's.
Polls, acknowledgments and declarations take the agent's secret. Every refusal is an error message, with a status of
`protocols.a2acp.errors`.

A request waits as long as its contract allows; then its task is over (TIMEOUT). If its connection breaks before the
answer, or the hub stops, the answer comes to the inbox. The same where a client closes its side and may have gone: one
that reads on gets 202.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta

from dragoman.core.agreements.domain_policy import domain_of
from dragoman.core.commands import Acknowledge, Command, NoteRead, RegisterAgent, ShakeHands, Submit, TellAgain
from dragoman.core.ids import SECOND, AgentId, DeliveryId, Instant, SessionId, rfc3339
from dragoman.core.memory import STRANGERS
from dragoman.core.model.agents import Agent
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, new_fault, owned_by, refuse
from dragoman.messages.tasks import Json
from dragoman.protocols.a2acp import codec
from dragoman.protocols.a2acp.contracts import Capability
from dragoman.protocols.a2acp.errors import status_of
from dragoman.protocols.a2acp.intents import INTENTS
from dragoman.protocols.a2acp.types import (
    HANDSHAKE_SECONDS,
    LONGEST_TTL,
    MESSAGE_BYTES,
    PROTOCOL,
    PROTOCOL_VERSION,
    Id,
    Name,
    ProtocolVersion,
    SemVer,
)
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.security import tokens
from dragoman.server.a2acp.contracts import offer_of
from dragoman.server.a2acp.handler import A2acpHandler, About, refused_as
from dragoman.server.a2acp.judge import check_schema
from dragoman.server.a2acp.outbound import failure_in
from dragoman.server.asgi import (
    ASGIApp,
    Disconnected,
    Receive,
    Scope,
    Send,
    answer,
    header,
    header_text,
    is_gone,
    read_body,
)
from dragoman.server.handler import UNKNOWN
from dragoman.server.http_endpoint import SMALL_BODY, HttpEndpoint
from dragoman.server.refusals import UNREADABLE
from dragoman.server.session import Invalid
from dragoman.wire.errors import RemoteProtocolError

SLACK = 2.0
"""Seconds beyond the hub's own clocks, which answer first."""
APPLIED = ((b"preference-applied", b"respond-async"),)
FRESH = ((b"cache-control", b"no-store"),)
CACHED = ((b"cache-control", b"public, max-age=300"),)
TOKEN_BODY = 64 * 1024
MOST_INTENTS = 1000
_INBOX = "it was taken, and its answer comes to your inbox: GET /a2acp/messages"
LEAVING = new_fault(Kind.OVERLOADED, "the hub stops", next=_INBOX, retryable=True)
UNANSWERED = new_fault(Kind.TIMEOUT, "this request waits no longer", next=_INBOX, retryable=True)


class TokenWish(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: Id
    target_agent_id: Id
    requested_capabilities: tuple[Name, ...] = ()
    ttl: Annotated[int, Meta(ge=1, le=LONGEST_TTL)] | None = None


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: Id
    domain: Name | None = None
    version: SemVer = "1.0.0"
    protocol_version: ProtocolVersion = PROTOCOL_VERSION
    capabilities: Annotated[tuple[Capability, ...], Meta(max_length=MOST_INTENTS)] = ()
    max_concurrent: Annotated[int, Meta(ge=1, le=10_000)] | None = None


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a declaration: as the hub understood it, and which agent the broker is."""

    agent_id: str
    domain: str
    version: str
    capabilities: tuple[Capability, ...]
    grants: tuple[str, ...]
    broker: Party
    protocol_version: str = PROTOCOL_VERSION


class _Answer(msgspec.Struct, frozen=True):
    """A message that is the body of an HTTP answer; `fault` where it is an error. `delivery`: it waits for an
    acknowledgment."""

    frame: bytes
    fault: Fault | None = None
    delivery: DeliveryId | None = None


class A2acpHttp(HttpEndpoint[A2acpHandler]):
    """`ttl`: seconds that a token lasts if its agent does not say."""

    def __init__(self, handler: A2acpHandler, *, ttl: int) -> None:
        super().__init__(handler)
        self._ttl = ttl

    def routes(self) -> dict[str, ASGIApp]:
        poll = self.guarded("GET", "agent.poll", self.poll)
        return {
            "/a2acp/messages": self.by_method({"GET": poll, "POST": self.message}),
            "/a2acp/ack": self.guarded("POST", "agent.ack", self.ack),
            "/a2acp/agents": self.guarded("POST", "agent.register", self.register),
            "/auth/token": self.by_method({"POST": self.token}),
            "/.well-known/jwks.json": self.by_method({"GET": self.published_keys}),
        }

    # -- POST /a2acp/messages

    async def message(self, scope: Scope, receive: Receive, send: Send) -> None:
        about = About()
        try:
            link = None if header(scope, b"authorization") is None else self._handler.agent(scope)
            data = await read_body(scope, receive, MESSAGE_BYTES, STRANGERS if link is None else link.id)
            decoded = self._handler.decode(data, link, traceparent=header_text(scope, b"traceparent"))
            if isinstance(decoded, Invalid):
                about = decoded.context
                raise Refused(decoded.fault)
        except Disconnected:
            return
        except (Refused, RemoteProtocolError) as error:
            fault = self.fault(error)
            await self.refuse(send, refused_as(fault), fault, agent=about.agent, about=about, subject=about.id)
            return
        about, later = decoded.request.context, responds_later(scope)
        try:
            found = await decoded.find()
            waits = isinstance(found, Submit | ShakeHands)
            reply: _Answer | None
            if isinstance(found, Submit | ShakeHands) and not later:
                reply = await self._awaited(found, about, receive)
            elif isinstance(found, Command):
                frame = self._handler.encode_answer(about, await self._hub.execute(found))
                reply = None if frame is None else _Answer(frame)
            else:
                reply = _Answer(found[0])
        except Refused as refused:  # the handler or the hub has recorded it
            await self.refuse(send, None, refused.fault, agent=about.agent, about=about)
        except StoreFailed:
            await self.refuse(send, "a2acp.message", UNREADABLE, agent=about.agent, about=about, subject=about.id)
        else:
            if reply is not None:
                await self._hand_over(reply, about, receive, send)
                return
            body = msgspec.json.encode({"status": "accepted", "message_id": about.id, "correlation_id": about.thread})
            await answer(send, 202, body, headers=APPLIED if later and waits else ())

    async def _awaited(self, command: Submit | ShakeHands, about: About, receive: Receive) -> _Answer | None:
        """Wait for the answer itself. A client that leaves before it, or does not get it, finds it in its inbox. None:
        the client may have gone, and its request is accepted."""
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
        return _Answer(frame, failure_in(outgoing), None if waited.gone else outgoing.delivery.id)

    async def _hand_over(self, reply: _Answer, about: About, receive: Receive, send: Send) -> None:
        """The hub acknowledges an awaited answer when it was written to a client that is there. If the client did not
        get it after all, it asks again (`answer_to`)."""
        gone = reply.delivery is not None and await is_gone(receive)
        await answer(send, 200 if reply.fault is None else status_of(reply.fault), reply.frame)
        if reply.delivery is not None and about.agent is not None and not gone:
            command = Acknowledge(principal=about.agent.id, protocol=PROTOCOL, deliveries=(reply.delivery,))
            self._hub.enqueue_and_forget(command)

    # -- GET /a2acp/messages

    async def poll(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        missed = parse_qs(scope["query_string"].decode("latin-1")).get("answer_to")
        if missed is not None:
            await self._hub.execute(TellAgain(principal=agent.id, protocol=PROTOCOL, request_id=missed[-1].lower()))
        await super().poll(agent, scope, receive, send)

    # -- POST /a2acp/agents

    async def register(self, agent: Agent, scope: Scope, receive: Receive, send: Send) -> None:
        """The newest declaration replaces the one before; contracts keep their terms. The hub compiles the schemas
        here, so that it refuses none later. What an agent may ask of others, a person allows (`agent add
        --capability`)."""
        declared = declaration(self._handler.json(await read_body(scope, receive, SMALL_BODY, agent.id)))
        if declared.agent_id != agent.id:
            message = owned_by(agent.id, declared.agent_id)
            raise refuse(Kind.UNAUTHENTICATED, message, field="agent_id", rule="subject")
        if not codec.understands(declared.protocol_version):
            raise refuse(
                Kind.UNSUPPORTED_VERSION,
                f"version {declared.protocol_version} is not spoken here",
                field="protocol_version",
                supported_versions=codec.supported(),
                received_version=declared.protocol_version,
            )
        if declared.domain is not None and agent.domain not in (None, declared.domain):
            raise refuse(
                Kind.FORBIDDEN,
                f"agent {agent.id!r} was added to another domain",
                next="a person may remove the agent and add it to that domain",
                field="domain",
            )
        named: set[str] = set()
        for place, capability in enumerate(declared.capabilities):
            at = f"capabilities[{place}]"
            if capability.intent in named or capability.intent in INTENTS:
                what = "is there twice" if capability.intent in named else "is an intent of the broker's own"
                raise refuse(
                    Kind.INVALID, f"{capability.intent!r} {what}", next="choose another name", field=f"{at}.intent"
                )
            named.add(capability.intent)
            check_schema(capability.input_schema, f"{at}.input_schema")
            check_schema(capability.output_schema, f"{at}.output_schema")
        registered: Agent = await self.execute(
            RegisterAgent(
                principal=agent.id,
                protocol=PROTOCOL,
                work_types=tuple(capability.intent for capability in declared.capabilities),
                version=declared.version,
                protocol_version=PROTOCOL_VERSION,
                domain=declared.domain,
                offers=tuple(map(offer_of, declared.capabilities)),
                max_concurrent=declared.max_concurrent,
            )
        )
        body = Declared(
            agent_id=registered.id,
            domain=domain_of(registered),
            version=declared.version,
            capabilities=declared.capabilities,
            grants=registered.capabilities,
            broker=self._handler.auth.broker,
        )
        await answer(send, 200, msgspec.json.encode(body))

    # -- the auth service

    async def published_keys(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, msgspec.json.encode(self._handler.auth.published()), headers=CACHED)

    async def token(self, scope: Scope, receive: Receive, send: Send) -> None:
        agent: Agent | None = None
        try:
            agent = self._holder(scope)
            wish = codec.body(self._handler.json(await read_body(scope, receive, TOKEN_BODY, agent.id)), TokenWish)
            if wish.agent_id != agent.id:
                raise refuse(
                    Kind.UNAUTHENTICATED,
                    f"{owned_by(agent.id, wish.agent_id)}",
                    next="ask for tokens of your own",
                    field="agent_id",
                    rule="subject",
                )
            target = wish.target_agent_id
            granted = self._handler.auth.issue(agent, target, wish.requested_capabilities, wish.ttl or self._ttl)
            await self._hub.execute(
                NoteRead(principal=agent.id, protocol=PROTOCOL, what="auth.token", about=target)
            )  # fmt: skip
        except Disconnected:
            return
        except (Refused, RemoteProtocolError) as error:
            await self.refuse(send, "auth.token", self.fault(error), agent=agent)
            return
        expires = rfc3339(Instant(granted.expires_at * SECOND))
        body = msgspec.json.encode({"token": granted.token, "expires_at": expires})
        await answer(send, 200, body, headers=FRESH)

    def _holder(self, scope: Scope) -> Agent:
        """The agent whose secret it is: as a bearer, or by HTTP Basic with the agent's id as the name; raises
        `Refused`."""
        credential = header(scope, b"authorization")
        if credential is None or credential[:6].lower() != b"basic ":
            return self._handler.agent(scope)
        name, secret = _basic(credential)
        agent = self._hub.agent_of(tokens.token_hash(secret))
        if agent is None or agent.id != AgentId(name) or agent.protocol != PROTOCOL:
            facts = {"agent_id": UNKNOWN, "token_status": "invalid", "rule": "secret"}
            message = "no a2acp agent of that name has this secret"
            next = "`dragoman agent token ID` makes a new one"
            raise Refused(new_fault(Kind.UNAUTHENTICATED, message, next=next, facts=facts))
        return agent


def responds_later(scope: Scope) -> bool:
    """RFC 7240: whether the client wants the answer in its inbox."""
    preference = header(scope, b"prefer")
    return preference is not None and b"respond-async" in preference.lower()


def declaration(tree: Json) -> Declaration:
    """A null in a capability counts as absent."""
    capabilities = tree.get("capabilities")
    if isinstance(capabilities, list):
        tree = {**tree, "capabilities": [_present(one) for one in capabilities]}
    return codec.body(tree, Declaration)


def _present(capability: object) -> object:
    if not isinstance(capability, dict):
        return capability
    return {name: value for name, value in capability.items() if value is not None}


def _basic(credential: bytes) -> tuple[str, str]:
    """The name and the secret. An agent's id may have colons in it, its secret has none."""
    try:
        encoded = credential[6:].strip() if len(credential) <= 2 * tokens.LONGEST else b""
        plain = base64.b64decode(encoded, validate=True)
        name, _, secret = plain.decode().rpartition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return name, secret
